"""gemm whose result is quantized for the next product."""

from __future__ import annotations

from typing import Any

from . import _native
from ._device import run
from ._native import MxScaleMode, Recipe, ScaleLayout, TensorScaleSense
from ._ops import _floor, _quantized, _require_out, _result_options, _with_given, product_of
from ._tensor import ScaledTensor
from ._tensor import empty as empty_scaled
from ._transform import Transform


def gemm_quantize(
    a: Any,
    b: Any,
    recipe: Recipe | str,
    *,
    alpha: Any = 1.0,
    beta: float = 0.0,
    c: Any = None,
    bias: Any = None,
    layout: ScaleLayout | str | None = None,
    scale_mode: MxScaleMode | str | None = None,
    tensor_scale: Any = None,
    sense: TensorScaleSense | str | None = None,
    amax_floor: float = 0.0,
    transform: Transform = "identity",
    out: ScaledTensor | None = None,
    batch_invariant: bool = False,
    threads: int = 0,
) -> ScaledTensor:
    """`quantize` of a product in float32, which on a CUDA device is stored nowhere. On the CPU it
    is `gemm`'s; on Hopper where `gemm` does not divide K (docs/python.md), else last bits differ.

    Args:
        a, b, alpha, beta, c, bias, batch_invariant, threads: as for `gemm`.
        recipe: "fp8_1x128", "fp8_1x128_pow2", "fp8_1x128_ue8m0", "mxfp8_e4m3" or "nvfp4".
        layout, scale_mode, sense, amax_floor: as for `quantize`.
        tensor_scale: NVFP4: the tensor scale (in `sense`), which must be given.
        transform: "gelu_tanh", "gelu_erf", "swiglu" or `Swiglu` of the product. With SwiGLU the
            rows of `b` are gates and ups, as the columns of `quantize`'s x are.
        out: write here, as for `quantize`.

    Returns:
        A ScaledTensor [M, N] or [batch, M, N] (half of N after SwiGLU) in `a`'s library, or `out`.

    Raises:
        TypeError, ValueError: as for `gemm` and `quantize`. Nothing was written then.

    >>> import numpy as np, blockscale
    >>> w = blockscale.quantize(np.eye(32, dtype=np.float32), "mxfp8_e4m3")
    >>> x = np.full((2, 32), 3.0, np.float32)
    >>> blockscale.dequantize(blockscale.gemm_quantize(x, w, "mxfp8_e4m3")).sum().item()
    192.0
    """
    traits = _quantized(recipe)
    layout, sense, mode = _result_options(traits, out, layout, sense, scale_mode)
    if traits.tensor_scale and tensor_scale is None:
        raise ValueError(f"tensor_scale: is missing, must be given for {traits.name}")
    floor = _floor(amax_floor, traits)
    given = None if tensor_scale is None else True
    place, shape, _, *operands, options = product_of(
        a, b, alpha, beta, c, bias, batch_invariant, transform, (mode, given, floor), threads
    )
    if out is None:
        out = empty_scaled(shape, traits, layout, sense, place)
    else:
        _require_out(out, "out", shape, traits, layout, sense, place)
    if given:
        _with_given(
            out, tensor_scale, None, lambda _: run(place, _native.gemm, *operands, out, options)
        )
    else:
        run(place, _native.gemm, *operands, out, options)
    return out
