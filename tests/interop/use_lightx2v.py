"""LightX2V's own code on a CPU, from a checkout of ModelTC/LightX2V.

`python use_lightx2v.py build CHECKOUT FOLDER` compiles its quantizers (lightx2v_kernels.py).
`python use_lightx2v.py run CHECKOUT LIBRARY SCRIPT ARGUMENT...` runs one of its tools/convert.
`python use_lightx2v.py load CHECKOUT LIBRARY CLASS FOLDER FILE WEIGHT...` loads weights by one of
its classes, and writes the tensors that the class then has to FILE.

What stands in: cuda_on_cpu.h for the GPU; `Tensor.cuda()` leaves a tensor where it is, and the
device of its platform is the CPU. Its packages are entered without their `__init__`, which imports
the whole engine. Modules that are imported and not used here (EMPTY) are empty.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

import lightx2v_kernels
import torch
from safetensors.torch import load_file, save_file

PACKAGES = {
    "lightx2v_kernel": "lightx2v_kernel/python/lightx2v_kernel",
    "lightx2v_platform": "lightx2v_platform",
    "lightx2v_platform.base": "lightx2v_platform/base",
    "lightx2v": "lightx2v",
    "lightx2v.utils": "lightx2v/utils",
    "lightx2v.common": "lightx2v/common",
    "lightx2v.common.ops": "lightx2v/common/ops",
    "lightx2v.common.ops.mm": "lightx2v/common/ops/mm",
}
EMPTY = [
    "lightx2v.common.ops.mm.triton_kernels",
    "lightx2v.utils.ggml_tensor",
    "lightx2v.utils.lora_loader",
    "lightx2v.utils.quant_utils",
]
SUFFIX = "_cuda_buffer"  # of the attributes in which it holds what it has loaded


def prepare(checkout: Path, library: Path) -> None:
    torch.ops.load_library(library)
    torch.Tensor.cuda = lambda self: self
    for name, folder in PACKAGES.items():
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [str(checkout / folder)]
    sys.modules |= {name: MagicMock() for name in EMPTY}
    from lightx2v_platform.base import global_var

    global_var.AI_DEVICE = "cpu"


def run(script: Path, arguments: list[str]) -> None:
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # qtorch asks ninja
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")


def load(kind: str, folder: Path, file: Path, weights: list[str]) -> None:
    from lightx2v.common.ops.mm import mm_weight

    stored = {}
    for shard in folder.glob("*.safetensors"):
        stored |= load_file(shard)
    loaded = {}
    for name in weights:
        layer = mm_weight.MM_WEIGHT_REGISTER[kind](name, None, create_cuda_buffer=True)
        layer.load(stored)
        for attribute, tensor in vars(layer).items():
            if attribute.endswith(SUFFIX) and isinstance(tensor, torch.Tensor):
                part = attribute.removesuffix(SUFFIX)
                loaded[f"{name.removesuffix('weight')}{part}"] = tensor.contiguous()
    save_file(loaded, file)


def main(command: str, checkout: str, *arguments: str) -> None:
    if command == "build":
        print(lightx2v_kernels.build(Path(checkout), Path(arguments[0])))
        return
    library, what, *more = arguments
    prepare(Path(checkout), Path(library))
    if command == "run":
        run(Path(checkout) / "tools/convert" / what, more)
    else:
        folder, file, *weights = more
        load(what, Path(folder), Path(file), weights)


if __name__ == "__main__":
    main(*sys.argv[1:])
