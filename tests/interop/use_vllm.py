"""vLLM's own code on a CPU, in its own environment.

`python use_vllm.py quantize MODEL FOLDER SCHEME WEIGHT...` writes a checkpoint of its `fp8`.
`python use_vllm.py read FOLDER FILE WEIGHT...` loads each layer, writes its values in f32 to FILE,
and prints vLLM's version and the class that loaded them.

vLLM reads the configuration, chooses the method of each layer, makes its parameters, loads and
processes them, and says what the weights are. It has no FP8 blocks, MXFP8 and NVFP4 for a CPU: its
emulation is registered as a kernel of this platform, and of blocks, whose values it takes before
any product, a kernel that needs a GPU. It rounds FP8 weights again, with their own scale, by a
CUDA kernel: its plain form of that in torch stands in.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
import vllm._custom_ops
import vllm.platforms
from safetensors.torch import load_file, save_file
from vllm.config import ModelConfig, VllmConfig, set_current_vllm_config
from vllm.config.load import LoadConfig
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.platforms.cpu import CpuPlatform
from vllm.platforms.interface import PlatformEnum

vllm.platforms._current_platform = CpuPlatform()  # this build is for GPUs and finds none

from vllm.model_executor.kernels.linear import (  # noqa: E402 (these ask for the platform)
    EmulationMxfp8LinearKernel,
    EmulationNvFp4LinearKernel,
    register_linear_kernel,
)
from vllm.model_executor.kernels.linear.scaled_mm.triton import (  # noqa: E402
    TritonFp8BlockScaledMMKernel,
)
from vllm.model_executor.layers.linear import ReplicatedLinear  # noqa: E402
from vllm.model_executor.layers.quantization.input_quant_fp8 import QuantFP8  # noqa: E402
from vllm.model_executor.layers.quantization.utils.quant_utils import (  # noqa: E402
    GroupShape,
    get_and_maybe_dequant_weights,
    scaled_quantize,
)
from vllm.model_executor.model_loader.weight_utils import get_quant_config  # noqa: E402


class BlocksWithoutProducts(TritonFp8BlockScaledMMKernel):
    @classmethod
    def is_supported(cls, *_: object) -> tuple[bool, str | None]:
        return True, None


def scaled_fp8_quant(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return QuantFP8(static=True, group_shape=GroupShape.PER_TENSOR).forward_native(x, scale)


def register_kernels() -> None:
    vllm._custom_ops.scaled_fp8_quant = scaled_fp8_quant
    register_linear_kernel(BlocksWithoutProducts, PlatformEnum.CPU, "fp8_block")
    register_linear_kernel(EmulationMxfp8LinearKernel, PlatformEnum.CPU, "mxfp8")
    register_linear_kernel(EmulationNvFp4LinearKernel, PlatformEnum.CPU, "nvfp4")


def quantize(model: Path, folder: Path, scheme: str, weights: list[str]) -> None:
    folder.mkdir()
    tensors = load_file(model / "model.safetensors")
    for name in weights:
        codes, scale = scaled_quantize(tensors[name], GroupShape.PER_TENSOR, torch.float8_e4m3fn)
        tensors |= {name: codes, name + "_scale": scale.reshape(())}
        if scheme == "static":
            tensors[name.removesuffix("weight") + "input_scale"] = torch.tensor(0.125)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((model / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": scheme}
    (folder / "config.json").write_text(json.dumps(config))
    for file in model.glob("*token*"):
        shutil.copy(file, folder)


def read(folder: Path, file: Path, weights: list[str]) -> None:
    register_kernels()
    model = ModelConfig(str(folder), dtype="bfloat16", runner="pooling")
    stored = load_file(folder / "model.safetensors")
    quantization = get_quant_config(model, LoadConfig())
    values, methods = {}, set()
    vllm_config = VllmConfig()
    vllm_config.model_config = model
    with set_current_vllm_config(vllm_config), torch.inference_mode():
        # Layers ask for the group of processes that they are a part of: this one alone.
        init_distributed_environment(1, 0, f"file://{file.resolve()}.group", 0, "gloo")
        initialize_model_parallel()
        for name in weights:
            layer = load_layer(name.removesuffix(".weight"), stored, quantization)
            values[name] = get_and_maybe_dequant_weights(layer, torch.float32).contiguous()
            method = getattr(layer, "scheme", layer.quant_method)
            methods.add(type(method).__name__)
    save_file(values, file)
    (method,) = methods
    print(vllm.__version__, method)


def load_layer(module: str, stored: dict[str, torch.Tensor], quantization) -> ReplicatedLinear:
    """Its parameters are the stored tensors of that name, all of them and no others."""
    tensors = {
        name.removeprefix(module + "."): tensor
        for name, tensor in stored.items()
        if name.startswith(module + ".") and not name.endswith(".bias")
    }
    codes = tensors["weight"]
    rows, k = codes.shape[0], codes.shape[1] * (2 if codes.dtype == torch.uint8 else 1)
    layer = ReplicatedLinear(
        k,
        rows,
        bias=False,
        params_dtype=torch.bfloat16,
        quant_config=quantization,
        prefix=module,
        disable_tp=True,
    )
    parameters = dict(layer.named_parameters())
    assert parameters.keys() == tensors.keys(), (parameters.keys(), tensors.keys())
    for name, parameter in parameters.items():
        parameter.weight_loader(parameter, tensors[name])
    layer.quant_method.process_weights_after_loading(layer)
    return layer


def main(command: str, *arguments: str) -> None:
    if command == "quantize":
        model, folder, scheme, *weights = arguments
        quantize(Path(model), Path(folder), scheme, weights)
    else:
        folder, file, *weights = arguments
        read(Path(folder), Path(file), weights)


if __name__ == "__main__":
    main(*sys.argv[1:])
