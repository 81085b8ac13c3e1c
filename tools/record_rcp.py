"""Prints what a GPU's `rcp.approx.ftz.f32` gives for every scale of an NVFP4 block, as JSON.

Usage: record_rcp.py [OUTPUT.json]

A list of 128 integers, the bits of an f32 each: entry i is of the value whose code in e4m3 is i. 0,
which has no reciprocal, and 127, which is NaN, get 0. Without OUTPUT.json it goes to stdout. On
stderr: the GPU, and how many entries are not the correctly rounded reciprocal. Needs a GPU and
torch, which compiles the kernel by NVRTC. On an H200 all are rounded, and LightX2V's bytes of
`blockscale.compat.lightx2v` rely on that.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

SOURCE = r"""
extern "C" __global__ void reciprocals(const float* x, float* result) {
  float y;
  asm volatile("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x[threadIdx.x]));
  result[threadIdx.x] = y;
}
"""
CODES = 128  # of e4m3, without the sign


def record() -> tuple[torch.Tensor, torch.Tensor]:
    """What the GPU gives, and the rounded reciprocals: int32 [128] each, on the CPU."""
    x = torch.arange(CODES, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    has_none = ~(x > 0)
    x = x.masked_fill(has_none, 1.0)
    of_gpu = torch.empty_like(x, device="cuda")
    kernel = torch.cuda._compile_kernel(SOURCE, "reciprocals")
    kernel(grid=(1, 1, 1), block=(CODES, 1, 1), args=[x.cuda(), of_gpu])
    results = (of_gpu.cpu(), (1 / x.double()).float())
    recorded, rounded = (y.view(torch.int32).masked_fill(has_none, 0) for y in results)
    return recorded, rounded


def main() -> int:
    if len(sys.argv) > 2:
        print(__doc__, file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("record_rcp.py: torch sees no GPU", file=sys.stderr)
        return 1
    recorded, rounded = record()
    text = json.dumps(recorded.tolist())
    if len(sys.argv) == 2:
        Path(sys.argv[1]).write_text(text + "\n")
    else:
        print(text)
    differ = int((recorded != rounded).sum())
    print(f"{torch.cuda.get_device_name()}: {differ} of {CODES} are not rounded", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
