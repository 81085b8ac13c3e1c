"""LightX2V's own bytes of NVFP4: `blockscale.compat.lightx2v` has what users read.

S is the global scale, amax that of a block of 16; every operation is one of float32, rounded once:

    s = e4m3(S * (amax * 0.16666667)), at most 448
    code = e2m1(x * (S * rcp(s))), at most 6; 0 where s is 0

rcp is a GPU's `rcp.approx.ftz.f32`, which for the 126 scales above 0 is the rounded reciprocal:
tools/record_rcp.py found it on an H200, and tests/gpu asks the GPU at hand. LightX2V's kernel is of
sm_120, which was not asked; PTX allows one unit in the last place there.
"""

from __future__ import annotations

import math

import torch

from .._arrays import plain
from .._torch_layer import is_seen
from ._lightx2v_kernels import Quantized, define, quantized_like

_BLOCK = 16
_SIXTH = float.fromhex("0x1.555556p-3")  # 1 / 6 in float32
_LARGEST_SCALE = 448.0
#: Where e2m1's codes change: a number on a boundary has the even code.
_BELOW_EVEN = (0.75, 1.75, 3.5)
_ABOVE_EVEN = (0.25, 1.25, 2.5, 5.0)


def quantized_as_lightx2v(input: torch.Tensor, factor: torch.Tensor) -> Quantized:
    """LightX2V's values, and scales in tiles; `factor` is a `scalar`, the global scale."""
    if input.dim() != 2:
        raise ValueError(f"input: shape is {tuple(input.shape)}, must be (m, n)")
    if is_seen(input):
        return torch.ops.blockscale_lightx2v.nvfp4(input, factor)
    return _quantized(input, factor)


def _quantized(input: torch.Tensor, input_global_scale: torch.Tensor) -> Quantized:
    _require(input, input_global_scale)
    with torch.no_grad():
        return _quantize(input, input_global_scale)


def _require(input: torch.Tensor, input_global_scale: torch.Tensor) -> None:
    plain(input, "input")
    if input.shape[1] % _BLOCK:
        raise ValueError(f"input.k: is {input.shape[1]}, must be a multiple of {_BLOCK} for nvfp4")
    if input_global_scale.device != input.device:
        here, there = input_global_scale.device, input.device
        raise ValueError(f"input_global_scale: is on {here}, must be on {there} like input")
    if not input_global_scale.is_cuda:
        value = input_global_scale.item()
        if not 0 < value < math.inf:
            raise ValueError(f"input_global_scale: is {value:g}, must be finite and above 0")


def _quantize(input: torch.Tensor, factor: torch.Tensor) -> Quantized:
    rows, columns = input.shape
    blocks = input.reshape(rows, columns // _BLOCK, _BLOCK)
    amax = blocks.abs().amax(-1).float()
    scales = (factor * (amax * _SIXTH)).clamp(0, _LARGEST_SCALE).masked_fill(amax == 0, 0)
    scales = scales.to(torch.float8_e4m3fn)
    decoded = scales.float()
    codes = _magnitudes(blocks * (factor * decoded.reciprocal())[..., None])
    codes += blocks.signbit().to(torch.uint8) << 3
    codes = codes.masked_fill_(~(decoded > 0)[..., None], 0).view(rows, columns)
    return codes[:, ::2] | codes[:, 1::2] << 4, _in_tiles(scales)


def _magnitudes(scaled: torch.Tensor) -> torch.Tensor:
    """e2m1 of float32 without the sign, one a byte, of NaN 0; `scaled` is overwritten."""
    magnitudes = scaled.abs_()
    codes = torch.zeros_like(magnitudes, dtype=torch.uint8)
    for boundary in _BELOW_EVEN:
        codes += (magnitudes >= boundary).view(torch.uint8)
    for boundary in _ABOVE_EVEN:
        codes += (magnitudes > boundary).view(torch.uint8)
    return codes


def _in_tiles(scales: torch.Tensor) -> torch.Tensor:
    """[rows, blocks] in tiles of 128 by 4, padding 0."""
    rows, blocks = scales.shape
    m, n = -(-rows // 128), -(-blocks // 4)
    padding = (0, 4 * n - blocks, 0, 128 * m - rows)
    padded = torch.nn.functional.pad(scales.view(torch.uint8), padding)
    tiles = padded.view(m, 4, 32, n, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(128 * m, 4 * n).view(scales.dtype)


def _shapes(input: torch.Tensor, _: torch.Tensor) -> Quantized:
    return quantized_like(input, "nvfp4")


_library = torch.library.Library("blockscale_lightx2v", "FRAGMENT")
define(
    _library,
    "nvfp4(Tensor input, Tensor input_global_scale) -> (Tensor values, Tensor scales)",
    _quantized,
    _shapes,
)
