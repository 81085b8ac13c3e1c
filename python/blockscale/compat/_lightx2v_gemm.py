"""LightX2V's functions of `lightx2v_kernel.gemm`: `blockscale.compat.lightx2v` has what users
read."""

from __future__ import annotations

import torch

from ._lightx2v_bytes import quantized_as_lightx2v
from ._lightx2v_kernels import Quantized, add_gated_product, modulated, product, quantized, scalar

_NVFP4 = ("nvfp4", "nvfp4")
_MXFP4 = ("mxfp4", "mxfp4")
_MXFP8 = ("mxfp8_e4m3", "mxfp8_e4m3")
_MXFP8_MXFP6 = ("mxfp8_e4m3", "mxfp6_e3m2")


# ---- Quantizers ---------------------------------------------------------------------------------


def scaled_nvfp4_quant(
    input: torch.Tensor, input_global_scale: torch.Tensor, *, lightx2v_bytes: bool = False
) -> Quantized:
    """NVFP4: blocks of 16, with a scale of the whole that is given.

    Args:
        input: [m, n] of bfloat16, float16 or float32, n a multiple of 16.
        input_global_scale: float32 of one element, where `input` is: 2688 / amax.
        lightx2v_bytes: give LightX2V's bytes, where `blockscale.quantize` has others for a few, in
            operators of torch, which take longer.

    Returns:
        uint8 [m, n / 2], low nibble first, and float8_e4m3fn [ceil128(m), ceil4(n / 16)], swizzled;
        padding is 0.

    Raises:
        TypeError, ValueError: an argument of another dtype, shape or device.
    """
    factor = scalar(input_global_scale, "input_global_scale")
    if lightx2v_bytes:
        return quantized_as_lightx2v(input, factor)
    return quantized(input, "nvfp4", factor)


def scaled_mxfp4_quant(input: torch.Tensor) -> Quantized:
    """MXFP4: blocks of 32.

    Args:
        input: [m, n] of bfloat16, float16 or float32, n a multiple of 32.

    Returns:
        uint8 [m, n / 2], low nibble first, and float8_e8m0fnu [ceil128(m), ceil4(n / 32)],
        swizzled; padding is 0.

    Raises:
        TypeError, ValueError: an input of another dtype or shape.
    """
    return quantized(input, "mxfp4")


def scaled_mxfp6_quant(input: torch.Tensor) -> Quantized:
    """MXFP6 in e3m2: as `scaled_mxfp4_quant`, values [m, 3 n / 4], 4 in 3 bytes."""
    return quantized(input, "mxfp6_e3m2")


def scaled_mxfp8_quant(input: torch.Tensor) -> Quantized:
    """MXFP8 in e4m3: as `scaled_mxfp4_quant`, values [m, n]."""
    return quantized(input, "mxfp8_e4m3")


def scaled_mxfp8_gelu_quant(input: torch.Tensor) -> Quantized:
    """`scaled_mxfp8_quant` of GELU (its tanh form) of `input`, in one pass, in float32."""
    return quantized(input, "mxfp8_e4m3", transform="gelu_tanh")


def scaled_mxfp8_modulate_quant(
    input: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor
) -> Quantized:
    """`scaled_mxfp8_quant` of input * (1 + scale) + shift, in one pass, in float32.

    Args:
        input: [m, n] of bfloat16, float16 or float32, n a multiple of 32.
        scale, shift: rows of n, of these dtypes: one for all rows of `input`, one for each, or as
            many as divide them into equal runs. Sizes of 1 may stand between.

    Returns:
        As `scaled_mxfp8_quant`.

    Raises:
        TypeError, ValueError: an argument of another dtype, shape or device.
    """
    return modulated(input, scale, shift)


# ---- Products -----------------------------------------------------------------------------------


def cutlass_scaled_nvfp4_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scales_a: torch.Tensor,
    scales_b: torch.Tensor,
    alpha: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """alpha * mat_a mat_b^T + bias, both operands as `scaled_nvfp4_quant` gives them.

    Args:
        mat_a, mat_b: uint8 [m, k / 2] and [n, k / 2].
        scales_a, scales_b: float8_e4m3fn, of their rows.
        alpha: float32 of one element, 1 / (global scale of a * global scale of b); on a GPU it is
            read when the kernel runs.
        bias: [n] or [1, n] of bfloat16, float16 or float32.

    Returns:
        bfloat16 [m, n].

    Raises:
        TypeError, ValueError: an argument of another dtype, shape or device.
    """
    return product(_NVFP4, mat_a, mat_b, scales_a, scales_b, alpha, bias)


def cutlass_scaled_mxfp4_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scales_a: torch.Tensor,
    scales_b: torch.Tensor,
    alpha: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `cutlass_scaled_nvfp4_mm`, of what `scaled_mxfp4_quant` gives, scales float8_e8m0fnu."""
    return product(_MXFP4, mat_a, mat_b, scales_a, scales_b, alpha, bias)


def cutlass_scaled_mxfp6_mxfp8_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scales_a: torch.Tensor,
    scales_b: torch.Tensor,
    alpha: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `cutlass_scaled_mxfp4_mm`: mat_a of `scaled_mxfp8_quant`, mat_b of `scaled_mxfp6_quant`,
    [m, k] and [n, 3 k / 4]."""
    return product(_MXFP8_MXFP6, mat_a, mat_b, scales_a, scales_b, alpha, bias)


def cutlass_scaled_mxfp8_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scales_a: torch.Tensor,
    scales_b: torch.Tensor,
    alpha: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `cutlass_scaled_mxfp4_mm`, of what `scaled_mxfp8_quant` gives, [m, k] and [n, k]."""
    return product(_MXFP8, mat_a, mat_b, scales_a, scales_b, alpha, bias)


def cutlass_scaled_mxfp8_mm_residual_gate(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scales_a: torch.Tensor,
    scales_b: torch.Tensor,
    alpha: torch.Tensor,
    residual: torch.Tensor,
    gate: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """residual += gate * (alpha * mat_a mat_b^T + bias), rounded once.

    Args:
        mat_a, mat_b, scales_a, scales_b, alpha, bias: as for `cutlass_scaled_mxfp8_mm`.
        residual: [m, n] of bfloat16, float16 or float32, written in place.
        gate: [n], [1, n] or [m, n] of these dtypes.

    Returns:
        `residual`.

    Raises:
        TypeError, ValueError: an argument of another dtype, shape or device.
    """
    operands = (mat_a, mat_b, scales_a, scales_b, alpha, bias)
    add_gated_product(_MXFP8, residual, operands, gate)
    return residual


def cutlass_scaled_nvfp4_mm_split_n_stride(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scales_a: torch.Tensor,
    scales_b: torch.Tensor,
    alpha: torch.Tensor,
    bias: torch.Tensor | None = None,
    split_n_parts: int = 2,  # noqa: ARG001
) -> torch.Tensor:
    """`cutlass_scaled_nvfp4_mm`; `split_n_parts` is of LightX2V's kernel and changes nothing."""
    return product(_NVFP4, mat_a, mat_b, scales_a, scales_b, alpha, bias)


def cutlass_scaled_nvfp4_mm_split_n_stride_gelu(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scales_a: torch.Tensor,
    scales_b: torch.Tensor,
    alpha: torch.Tensor,
    bias: torch.Tensor | None = None,
    split_n_parts: int = 2,  # noqa: ARG001
) -> torch.Tensor:
    """GELU (its tanh form) of `cutlass_scaled_nvfp4_mm`, rounded once."""
    operands = (mat_a, mat_b, scales_a, scales_b, alpha, bias)
    return product(_NVFP4, *operands, transform="gelu_tanh")


def cutlass_scaled_nvfp4_mm_split_n_stride_residual_gate(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scales_a: torch.Tensor,
    scales_b: torch.Tensor,
    alpha: torch.Tensor,
    residual: torch.Tensor,
    gate: torch.Tensor,
    bias: torch.Tensor | None = None,
    split_n_parts: int = 2,  # noqa: ARG001
) -> torch.Tensor:
    """As `cutlass_scaled_mxfp8_mm_residual_gate`, of NVFP4."""
    operands = (mat_a, mat_b, scales_a, scales_b, alpha, bias)
    add_gated_product(_NVFP4, residual, operands, gate)
    return residual
