"""Blocks for tests of `blockscale.nn.Offload`, and what they give without it."""

from __future__ import annotations

import copy
from typing import Any

import blockscale.nn
import torch
from nn_experts import GateUpExperts, Mixture
from nn_model import same

WIDTH, INNER, ROWS, COUNT = 128, 256, 6, 5
#: Of every family, with inputs that are quantized; None: plain bf16.
RECIPES = ["nvfp4", "mxfp4", "mxfp8_e4m3", "fp8_row", "fp8_128x128", None]


class Block(torch.nn.Module):
    """Layers with and without a bias, a norm, and buffers of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up_proj = torch.nn.Linear(WIDTH, INNER)
        self.down_proj = torch.nn.Linear(INNER, WIDTH, bias=False)
        self.register_buffer("gate", torch.randn(WIDTH))
        self.register_buffer("shift", torch.randn(()), persistent=False)

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        y = torch.nn.functional.gelu(self.up_proj(self.norm(x) + self.shift))
        return x + scale * self.gate * self.down_proj(y)


def blocks_of(
    recipe: str | None = "mxfp8_e4m3", count: int = COUNT, kind: Any = Block
) -> torch.nn.ModuleList:
    """The same numbers each time, others in each block."""
    torch.manual_seed(0)
    blocks = torch.nn.ModuleList(kind() for _ in range(count)).eval()
    if recipe is None:
        return blocks.bfloat16()
    options = {"activations": "dynamic"} if kind is Block else {}
    return blockscale.nn.quantize(blocks, recipe, include=["*_proj*"], **options)


def mixture() -> torch.nn.Module:
    """A router and experts of random weights."""
    module = Mixture(GateUpExperts())
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return module


def inputs(dtype: Any = torch.float32) -> Any:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype)


def in_turn(blocks: Any, x: Any, *args: Any) -> Any:
    """What a loop over them gives."""
    with torch.no_grad():
        for block in blocks:
            x = block(x, *args)
    return x


def offloaded(blocks: Any, **options: Any) -> Any:
    """On the CPU, of copies of the blocks."""
    return blockscale.nn.Offload(copy.deepcopy(blocks), device="cpu", **options)


def gives_the_same(offload: Any, blocks: Any, steps: int = 3) -> bool:
    """Whether each of so many steps has the bits of `blocks`."""
    x = inputs(torch.bfloat16 if next(blocks[0].buffers()).dtype == torch.bfloat16 else None)
    want = in_turn(blocks, x)
    with torch.no_grad():
        return all(same(offload(x), want) for _ in range(steps))
