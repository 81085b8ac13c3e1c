"""The pinned rules of docs/numerics.md in numpy, written from the rules alone.

Nothing here comes from the library or from the packages it is compared with. Every step that the
rules round is a float32 operation of numpy; boundaries of elements are exact float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Array = np.ndarray
FLOAT32_MAX = np.float32(np.finfo(np.float32).max)


def _magnitudes(exponent_bits: int, mantissa_bits: int, count: int) -> Array:
    """The first `count` non-negative values of a format, in the order of their codes."""
    bias = 2 ** (exponent_bits - 1) - 1
    codes = np.arange(count)
    exponent, mantissa = codes >> mantissa_bits, codes & (2**mantissa_bits - 1)
    fraction = mantissa / 2.0**mantissa_bits
    normal = (1 + fraction) * 2.0 ** (exponent - bias)
    return np.where(exponent == 0, fraction * 2.0 ** (1 - bias), normal)


@dataclass(frozen=True)
class Element:
    """An element format without infinities: its non-negative values in the order of their codes."""

    bits: int
    mantissa_bits: int
    emax: int
    magnitudes: Array

    @property
    def largest(self) -> float:
        return float(self.magnitudes[-1])

    def encode(self, x: Array) -> Array:
        """Codes of float32 values: to nearest, ties to even, saturating, the sign of zero kept."""
        magnitude = np.abs(x).astype(np.float64)
        boundaries = (self.magnitudes[:-1] + self.magnitudes[1:]) / 2
        code = np.searchsorted(boundaries, magnitude, side="left")
        tie = magnitude == boundaries[np.minimum(code, len(boundaries) - 1)]
        code = np.where(tie & (code % 2 == 1), code + 1, code)
        sign = np.signbit(x).astype(np.int64) << (self.bits - 1)
        return (code | sign).astype(np.uint8)

    def decode(self, codes: Array) -> Array:
        sign_bit = 1 << (self.bits - 1)
        values = self.magnitudes[codes & (sign_bit - 1)]
        return np.where(codes & sign_bit, -values, values).astype(np.float32)


E2M1 = Element(4, 1, 2, _magnitudes(2, 1, 8))
E2M3 = Element(6, 3, 2, _magnitudes(2, 3, 32))
E3M2 = Element(6, 2, 4, _magnitudes(3, 2, 32))
E4M3 = Element(8, 3, 8, _magnitudes(4, 3, 127))


@dataclass(frozen=True)
class Quantized:
    """`codes` [n, k], one a byte; `scales` as bytes or float32; NVFP4's factor as stored."""

    codes: Array
    scales: Array
    tensor_scale: np.float32 | None = None


def nvfp4_tensor_scale(amax: np.float32) -> np.float32:
    if amax == 0:
        return np.float32(1)
    with np.errstate(over="ignore"):
        return min(np.float32(2688) / np.float32(amax), FLOAT32_MAX)


def quantize_nvfp4(weight: Array, amax: np.float32) -> Quantized:
    """`amax` is the largest magnitude of the tensors that share the tensor scale."""
    return quantize_nvfp4_scaled(weight, nvfp4_tensor_scale(amax))


def quantize_nvfp4_multiplier(weight: Array, amax: np.float32) -> Quantized:
    """For dialects that store the multiplier amax / 2688: the divisor is its rounded inverse."""
    multiplier = np.float32(amax) / np.float32(2688)
    quantized = quantize_nvfp4_scaled(weight, np.float32(1) / multiplier)
    return Quantized(quantized.codes, quantized.scales, multiplier)


def quantize_nvfp4_scaled(weight: Array, tensor_scale: np.float32) -> Quantized:
    rows, k = weight.shape
    blocks = weight.reshape(rows, k // 16, 16)
    block_scale = (np.abs(blocks).max(axis=-1) / np.float32(6)) * tensor_scale
    scales = E4M3.encode(block_scale)
    decoded = E4M3.decode(scales)
    with np.errstate(divide="ignore", over="ignore"):
        factor = np.minimum(tensor_scale / decoded, FLOAT32_MAX)[..., None]
    codes = np.where(decoded[..., None] == 0, np.uint8(0), E2M1.encode(blocks * factor))
    return Quantized(codes.reshape(rows, k), scales, tensor_scale)


def mx_exponent_ceil(amax: Array, element: Element) -> Array:
    """The least e >= -127 with amax <= largest * 2^e."""
    _, exponent = np.frexp(amax.astype(np.float64) / element.largest)
    exponent = exponent.astype(np.int64)
    for e in (exponent - 2, exponent - 1):  # frexp's e always suffices; a smaller one may
        fits = amax.astype(np.float64) <= np.ldexp(element.largest, e)
        exponent = np.where(fits, np.minimum(exponent, e), exponent)
    return np.where(amax == 0, -127, np.maximum(exponent, -127))


def mx_exponent_even(amax: Array, element: Element, mantissa_bits: int | None = None) -> Array:
    """Half an ulp at the element's mantissa width is added to amax, which is then floored."""
    width = element.mantissa_bits if mantissa_bits is None else mantissa_bits
    bits = amax.astype(np.float32).view(np.uint32).astype(np.int64)
    exponent = ((bits + (1 << (22 - width))) >> 23) - 127 - element.emax
    return np.where(amax == 0, -127, np.maximum(exponent, -127))


def quantize_mx(weight: Array, element: Element, exponent_rule=mx_exponent_ceil) -> Quantized:
    rows, k = weight.shape
    blocks = weight.reshape(rows, k // 32, 32)
    exponents = exponent_rule(np.abs(blocks).max(axis=-1), element)
    scaled = np.ldexp(blocks.astype(np.float64), -exponents[..., None])
    codes = element.encode(scaled).reshape(rows, k)
    return Quantized(codes, (exponents + 127).astype(np.uint8))


def round_up_to_power_of_two(scales: Array) -> Array:
    fraction, exponent = np.frexp(scales)
    return np.ldexp(np.float32(1), np.where(fraction == 0.5, exponent - 1, exponent))


def quantize_fp8(
    weight: Array,
    block_rows: int,
    block_k: int,
    power_of_two: bool = False,
    amax: np.float32 | None = None,
) -> Quantized:
    """e4m3 with one float32 scale per block_rows x block_k; sizes are whole blocks."""
    rows, k = weight.shape
    blocks = weight.reshape(rows // block_rows, block_rows, k // block_k, block_k)
    block_amax = np.abs(blocks).max(axis=(1, 3))
    if amax is not None:
        block_amax = np.full_like(block_amax, amax)
    scales = np.maximum(block_amax / np.float32(448), np.float32(2.0**-126))
    if power_of_two:
        scales = round_up_to_power_of_two(scales)
    scales = np.where(block_amax == 0, np.float32(1), scales).astype(np.float32)
    codes = E4M3.encode(blocks / scales[:, None, :, None])
    return Quantized(codes.reshape(rows, k), scales)


def exponent_bytes(power_of_two: Array) -> Array:
    """ue8m0 bytes of float32 powers of two."""
    return ((power_of_two.view(np.uint32) >> 23) & 0xFF).astype(np.uint8)


def decode_exponents(scales: Array) -> Array:
    return np.ldexp(np.float32(1), scales.astype(np.int32) - 127).astype(np.float32)


def pack4(codes: Array) -> Array:
    """Two values a byte, the low nibble first."""
    return codes[:, 0::2] | codes[:, 1::2] << 4


def unpack4(packed: Array) -> Array:
    return np.stack([packed & 0xF, packed >> 4], axis=-1).reshape(packed.shape[0], -1)


def pack6(codes: Array) -> Array:
    """Four values in three bytes: value i in bits 6i..6i+5 of a little-endian word."""
    four = codes.reshape(codes.shape[0], -1, 4).astype(np.uint32)
    word = four[..., 0] | four[..., 1] << 6 | four[..., 2] << 12 | four[..., 3] << 18
    three = np.stack([word & 0xFF, word >> 8 & 0xFF, word >> 16 & 0xFF], axis=-1)
    return three.astype(np.uint8).reshape(codes.shape[0], -1)


def unpack6(packed: Array) -> Array:
    three = packed.reshape(packed.shape[0], -1, 3).astype(np.uint32)
    word = three[..., 0] | three[..., 1] << 8 | three[..., 2] << 16
    four = np.stack([word >> shift & 0x3F for shift in (0, 6, 12, 18)], axis=-1)
    return four.astype(np.uint8).reshape(packed.shape[0], -1)


def expand_scales(scales: Array, shape: tuple[int, int]) -> Array:
    """Scales [r, c] of blocks, one for each value of a [rows, k] matrix."""
    rows, k = shape
    block_rows, block_k = -(-rows // scales.shape[0]), -(-k // scales.shape[1])
    grid = scales.repeat(block_rows, axis=0).repeat(block_k, axis=1)
    return grid[:rows, :k]


def swizzle(scales: Array) -> Array:
    """Block scales [rows, columns] as LightX2V's kernels and tcgen05 have them, padded with 0.

    From `get_sf_out_address` of lightx2v_kernel's *_quant_kernels_sm120.cu (ModelTC/LightX2V):
    tiles of 128 x 4, those of a row of tiles one behind the other; in a tile row m % 32 is slowest,
    then m % 128 // 32, then the column.
    """
    rows, columns = -(-scales.shape[0] // 128) * 128, -(-scales.shape[1] // 4) * 4
    padded = np.zeros((rows, columns), scales.dtype)
    padded[: scales.shape[0], : scales.shape[1]] = scales
    tiles = padded.reshape(rows // 128, 4, 32, columns // 4, 4)
    return tiles.transpose(0, 3, 2, 1, 4).reshape(rows, columns)


def round_to_bfloat16(x: Array) -> Array:
    """Float32 values rounded to bfloat16, to nearest, ties to even (finite values)."""
    bits = x.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


def sqnr_db(reference: Array, other: Array) -> float:
    reference, error = reference.astype(np.float64), other.astype(np.float64) - reference
    return float(10 * np.log10((reference**2).sum() / (error**2).sum()))
