"""LightX2V's CUDA quantizers as a library for the CPU.

Their source is compiled as C++ with cuda_on_cpu.h. Three things are rewritten in a copy of it:
`kernel<<<grid, block, 0, stream>>>(` calls Launch, inline PTX calls ptx, and #include lines go,
as cuda_on_cpu.h has what they name. Nothing else is changed.
"""

from __future__ import annotations

import re
import subprocess
import sysconfig
from pathlib import Path

from torch.utils.cpp_extension import include_paths, library_paths

HERE = Path(__file__).parent
FORMATS = {"nvfp4": 4, "mxfp4": 3, "mxfp6": 3, "mxfp8": 3}  # and the tensors of their operators
LAUNCH = re.compile(r"(\w+<[^<>]*>)\s*<<<([^<>]*)>>>")
ASM = re.compile(r'asm volatile\(\s*((?:"[^"]*"\s*)+):\s*"=\w"\((\w+)\)\s*:\s*([^;]*?)\);')
INCLUDE = re.compile(r"^#include .*$", re.MULTILINE)


def rewrite(source: str) -> str:
    def call(match: re.Match) -> str:
        text, result, inputs = match.groups()
        values = re.findall(r'"f"\(([^()]*)\)', inputs)
        return f"on_cpu::ptx({result}, {text.strip()}, {{{', '.join(values)}}});"

    rewritten = ASM.sub(call, LAUNCH.sub(r"on_cpu::Launch(\2, \1)", INCLUDE.sub("", source)))
    assert "asm" not in rewritten and "<<<" not in rewritten
    return rewritten


def operators() -> str:
    """Registers them as lightx2v_kernel's Python calls them, for the CPU."""
    lines = []
    for name, count in FORMATS.items():
        operator = f"scaled_{name}_quant_sm120"
        tensors = ", ".join(f"Tensor! t{i}" for i in range(count))
        lines.append(f'  library.def("{operator}({tensors}) -> ()");')
        lines.append(f'  library.impl("{operator}", torch::kCPU, &{name}::{operator});')
    body = "\n".join(lines)
    return f"TORCH_LIBRARY_FRAGMENT(lightx2v_kernel, library) {{\n{body}\n}}\n"


def build(checkout: Path, folder: Path) -> Path:
    parts = ['#include "cuda_on_cpu.h"\n']
    for name in FORMATS:
        file = checkout / f"lightx2v_kernel/csrc/gemm/{name}_quant_kernels_sm120.cu"
        parts.append(f"namespace {name} {{\n{rewrite(file.read_text())}\n}}\n")
    source, library = folder / "quantizers.cpp", folder / "quantizers.so"
    source.write_text("".join(parts) + operators())
    (cuda,) = Path(sysconfig.get_path("purelib")).glob("nvidia/cu[0-9]*/include")
    command = ["g++", "-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-o", library, source]
    command += [f"-I{place}" for place in (HERE, *include_paths(), cuda)]
    command += [f"-L{place}" for place in library_paths()] + ["-ltorch_cpu", "-lc10"]
    subprocess.run([str(word) for word in command], check=True)
    return library
