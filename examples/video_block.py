"""Blocks of a video model that is larger than the GPU: quantized, and copied to it as they run.

A block is one of a diffusion transformer: attention and an MLP of tokens, each behind a norm that
a time step scales and shifts, each result scaled by a gate. All blocks lie in pinned memory of the
CPU; the GPU holds two, of which one is copied to while the other runs. Prints what a step through
all blocks takes, what its work and its copies take alone, memory, and whether the results have the
bits of blocks that are moved to the GPU one by one.

    python examples/video_block.py
    python examples/video_block.py --blocks 40 --hidden 5120 --ffn 13824 --rows 4096 --device cuda

Needs: torch, and a Hopper GPU for --device cuda (the default where torch sees one).
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import blockscale.nn
import torch
from torch.nn import functional

HEAD = 128  # columns of a head
CALLS = 4  # of a row: what is copied ahead before the first one is little beside all of them
RECIPES = ("bf16", "fp8_row", "fp8_128x128", "mxfp8_e4m3", "mxfp4", "nvfp4")


class Block(torch.nn.Module):
    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.heads = max(1, hidden // HEAD)
        self.norms = torch.nn.ModuleList(
            torch.nn.LayerNorm(hidden, eps=1e-6, elementwise_affine=False) for _ in range(2)
        )
        self.qkv_proj = torch.nn.Linear(hidden, 3 * hidden)
        self.out_proj = torch.nn.Linear(hidden, hidden)
        self.up_proj = torch.nn.Linear(hidden, ffn)
        self.down_proj = torch.nn.Linear(ffn, hidden)
        # of attention and of the MLP: shift, scale, gate
        self.modulation = torch.nn.Parameter(torch.randn(6, hidden) / hidden**0.5)

    def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        """x [rows, hidden] and the embedding [6, hidden] of a time step -> [rows, hidden]."""
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = self.modulation + step
        heads = project(self.qkv_proj, self.norms[0](x), (scale, shift))
        x = project(self.out_proj, self.attention(heads), gate=gate, residual=x)
        y = project(self.up_proj, self.norms[1](x), (mlp_scale, mlp_shift))
        return project(self.down_proj, y, "gelu_tanh", gate=mlp_gate, residual=x)

    def attention(self, heads: torch.Tensor) -> torch.Tensor:
        """Every row looks at every other one."""
        rows, hidden = heads.shape[0], heads.shape[1] // 3
        heads = heads.view(rows, 3, self.heads, hidden // self.heads)
        queries, keys, values = heads.permute(1, 2, 0, 3)[:, None].contiguous()
        seen = functional.scaled_dot_product_attention(queries, keys, values)
        return seen[0].transpose(0, 1).reshape(rows, hidden)


def project(
    layer: torch.nn.Module,
    x: torch.Tensor,
    transform: tuple[torch.Tensor, torch.Tensor] | str = "identity",
    gate: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """residual + gate * layer(transform(x)), by a scale and a shift, or GELU: two launches of a
    quantized layer, as its inputs' quantizer has the transform, its product's epilogue the rest."""
    if isinstance(layer, blockscale.nn.Linear):
        fused = transform if isinstance(transform, str) else blockscale.Modulate(*transform)
        inputs = blockscale.quantize(x, layer.activations, transform=fused)
        beta = 0.0 if residual is None else 1.0
        options = {"bias": layer.bias, "gate": gate, "c": residual, "beta": beta}
        return blockscale.gemm(inputs, layer.weight, out_dtype=x.dtype, **options)
    if isinstance(transform, tuple):
        x = (1 + transform[0]) * x + transform[1]
    elif transform == "gelu_tanh":
        x = functional.gelu(x, approximate="tanh")
    y = layer(x)
    return y if residual is None else residual + gate * y


def blocks_of(
    count: int, hidden: int, ffn: int, recipe: str, device: torch.device
) -> list[torch.nn.Module]:
    """Blocks of random weights in `recipe`, inputs too, made on `device` and moved to the CPU."""
    blocks = []
    for _ in range(count):
        with device:
            block = Block(hidden, ffn).bfloat16().eval()
        if recipe != "bf16":
            block = blockscale.nn.quantize(
                block, recipe, include=["*_proj.weight"], activations="dynamic"
            )
        blocks.append(block.cpu())
    return blocks


def one_after_one(
    blocks: list[torch.nn.Module], x: torch.Tensor, step: torch.Tensor
) -> torch.Tensor:
    for block in blocks:
        x = block(x, step)
    return x


def one_by_one(blocks: list[torch.nn.Module], x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """What they give, each moved as a whole to where `x` is, and away again."""
    for block in blocks:
        x = copy.deepcopy(block).to(x.device)(x, step)
    return x


@dataclass
class Result:
    """Of a step through all blocks; times in milliseconds, those alone only on a GPU."""

    is_same: bool
    step: float
    work: float | None  # one block on the GPU, called as often as there are blocks
    copies: float | None  # all bytes from pinned memory
    memory: tuple[int, int]  # of Offload, on the device and on the CPU
    allocated: int  # bytes of the GPU that Offload took
    peak: int  # at most, with what a step takes itself

    @property
    def bound(self) -> float:
        """The longer one of work and copies over the step: 1 where it hides the other."""
        return max(self.work or 0, self.copies or 0) / self.step


def milliseconds(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Of a call in a row of them, the median of so many rows."""
    times = []
    for _ in range(repeats):
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(CALLS):
                call()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / CALLS)
        else:
            started = time.perf_counter()
            for _ in range(CALLS):
                call()
            times.append((time.perf_counter() - started) * 1e3 / CALLS)
    return statistics.median(times)


def copied_alone(block_bytes: int, count: int, device: torch.device, repeats: int) -> float:
    """Milliseconds for so many blocks' bytes from pinned memory."""
    source = torch.empty(block_bytes, dtype=torch.uint8, pin_memory=True)
    there = torch.empty_like(source, device=device)

    def copies() -> None:
        for _ in range(count):
            there.copy_(source, non_blocking=True)

    return milliseconds(copies, device, repeats)


def measure(
    blocks: list[torch.nn.Module],
    x: torch.Tensor,
    step: torch.Tensor,
    resident: int,
    repeats: int,
) -> Result:
    """Runs the blocks, which are changed to be copied to where `x` is as they run."""
    device, work, copies = x.device, None, None
    is_cuda = device.type == "cuda"
    want = one_by_one(blocks, x, step)
    if is_cuda:
        one = copy.deepcopy(blocks[0]).to(device)
        work = milliseconds(lambda: one_after_one([one] * len(blocks), x, step), device, repeats)
        del one
    before = torch.cuda.memory_allocated(device) if is_cuda else 0
    offload = blockscale.nn.Offload(blocks, resident=resident, device=device)
    allocated = torch.cuda.memory_allocated(device) - before if is_cuda else 0
    is_same = all(torch.equal(offload(x, step), want) for _ in range(2))  # the first one warms up
    if is_cuda:
        torch.cuda.reset_peak_memory_stats(device)
    took = milliseconds(lambda: offload(x, step), device, repeats)
    peak = torch.cuda.max_memory_allocated(device) if is_cuda else 0
    memory = offload.memory()
    if is_cuda:
        size = memory.device // min(resident, len(blocks))
        copies = copied_alone(size, len(blocks), device, repeats)
    offload.close()
    return Result(is_same, took, work, copies, (memory.device, memory.host), allocated, peak)


def show(result: Result) -> None:
    print(f"a step takes {result.step:.2f} ms")
    if result.work is not None:
        print(f"  its work alone {result.work:.2f} ms, its copies alone {result.copies:.2f} ms")
        print(f"  the longer one of them is {result.bound:.2f} of the step")
    device, host = result.memory
    print(f"blocks take {device / 1e6:.1f} MB of the device and {host / 1e6:.1f} MB of the CPU")
    if result.work is not None:
        print(f"  allocated for them: {result.allocated / device:.3f} of that")
        print(f"  at most in a step, with its own results: {result.peak / 1e6:.1f} MB")
    same = "the same bits as" if result.is_same else "OTHER BITS than"
    print(f"results have {same} those of blocks moved one by one")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = {"blocks": 4, "hidden": 256, "ffn": 512, "rows": 64, "resident": 2, "repeats": 5}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default: {default}")
    parser.add_argument("--recipe", choices=RECIPES, default="fp8_row", help="default: fp8_row")
    found = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cpu", "cuda"], default=found)
    options = parser.parse_args()
    for name in sizes:
        least = 2 if name in ("blocks", "resident") else 1
        if getattr(options, name) < least:
            parser.error(f"--{name}: is {getattr(options, name)}, must be {least} or more")
    if options.hidden % HEAD:
        parser.error(f"--hidden: is {options.hidden}, must be a multiple of {HEAD}")
    torch.manual_seed(0)
    device = torch.device(options.device)
    with torch.no_grad():
        blocks = blocks_of(options.blocks, options.hidden, options.ffn, options.recipe, device)
        x = torch.randn(options.rows, options.hidden, dtype=torch.bfloat16).to(device)
        step = torch.randn(6, options.hidden, dtype=torch.bfloat16).to(device)
        result = measure(blocks, x, step, options.resident, options.repeats)
    print(
        f"{options.blocks} blocks of {options.hidden} x {options.ffn} in {options.recipe}, "
        f"{options.rows} rows, {options.resident} resident on {device}"
    )
    show(result)
    return 0 if result.is_same else 1


if __name__ == "__main__":
    sys.exit(main())
