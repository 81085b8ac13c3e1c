"""LightX2V's own bytes of NVFP4: `blockscale.compat.lightx2v` has what users read.

S is the global scale, amax that of a block of 16; every operation is one of float32, rounded once:

    s = e4m3(S * (amax * 0.16666667)), at most 448
    code = e2m1(x * (S * rcp(s))), at most 6; 0 where s is 0

rcp is a GPU's `rcp.approx.ftz.f32`. It depends on the mantissa alone, of which s has eight, and is
at most one unit in the last place off the rounded reciprocal. So it is that and a step, and the
eight steps are one integer: a table would have to be copied to the GPU first, where the call may be
one that a CUDA graph captures.
"""

from __future__ import annotations

import functools
import math

import torch

from .._arrays import plain
from .._torch_layer import is_seen
from ._lightx2v_kernels import Quantized, define
from ._lightx2v_reciprocals import RECIPROCALS

_BLOCK = 16
_SIXTH = float.fromhex("0x1.555556p-3")  # 1 / 6 in float32
_LARGEST_SCALE = 448.0
#: Where e2m1's codes change: a number on a boundary has the even code.
_BELOW_EVEN = (0.75, 1.75, 3.5)
_ABOVE_EVEN = (0.25, 1.25, 2.5, 5.0)


def steps_of(reciprocals: tuple[int, ...]) -> int:
    """The steps from rounded reciprocals to these, one more than each in two bits, the lowest for
    the mantissa 1.

    Args:
        reciprocals: bits of float32, for each code of e4m3 without the sign.

    Raises:
        ValueError: they are not recorded, or not such steps.
    """
    if not reciprocals:
        raise ValueError(
            "lightx2v_bytes: is True, must be False: no GPU's reciprocals are recorded in "
            "blockscale/compat/_lightx2v_reciprocals.py (tools/record_rcp.py prints them)"
        )
    if len(reciprocals) != 128:
        raise ValueError(f"reciprocals: {len(reciprocals)} are recorded, must be 128")
    codes = torch.arange(1, 127, dtype=torch.uint8, device="cpu")
    scales = codes.view(torch.float8_e4m3fn).float()
    recorded = torch.tensor(reciprocals[1:127], dtype=torch.int32, device="cpu")
    steps = recorded - scales.reciprocal().view(torch.int32)
    if steps.abs().max() > 1:
        raise ValueError("reciprocals: one is no neighbour of the rounded one, all must be")
    packed = 0
    mantissas = scales.view(torch.int32) >> 20 & 7
    for mantissa in range(8):
        (step, *others) = steps[mantissas == mantissa].unique().tolist()
        if others:
            raise ValueError(f"reciprocals: those of 1 + {mantissa}/8 differ, must not")
        packed |= (step + 1) << 2 * mantissa
    return packed


@functools.cache
def _steps() -> int:
    return steps_of(RECIPROCALS)


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
    _steps()
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
    codes = _magnitudes(blocks * (factor * _reciprocals(decoded))[..., None])
    codes += blocks.signbit().to(torch.uint8) << 3
    codes = codes.masked_fill_(~(decoded > 0)[..., None], 0).view(rows, columns)
    return codes[:, ::2] | codes[:, 1::2] << 4, _in_tiles(scales)


def _reciprocals(scales: torch.Tensor) -> torch.Tensor:
    """What the GPU gives, of float32 that are e4m3."""
    at = scales.view(torch.int32) >> 19 & 14  # twice the mantissa's three bits
    steps = (torch.full_like(at, _steps()) >> at & 3) - 1
    return (scales.reciprocal().view(torch.int32) + steps).view(torch.float32)


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
    m, n = input.shape
    tiles = ((m + 127) // 128 * 128, (n // _BLOCK + 3) // 4 * 4)
    values = input.new_empty((m, n // 2), dtype=torch.uint8)
    return values, input.new_empty(tiles, dtype=torch.float8_e4m3fn)


_library = torch.library.Library("blockscale_lightx2v", "FRAGMENT")
define(
    _library,
    "nvfp4(Tensor input, Tensor input_global_scale) -> (Tensor values, Tensor scales)",
    _quantized,
    _shapes,
)
