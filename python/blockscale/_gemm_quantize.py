"""gemm whose result is quantized for the next product."""

from __future__ import annotations

from typing import Any

from . import _native
from ._arrays import count
from ._device import Device, require_place
from ._native import MxScaleMode, Recipe, ScaleLayout, TensorScaleSense
from ._ops import (
    _beside,
    _bias,
    _factor,
    _floor,
    _number_of_host,
    _operand,
    _product_shape,
    _quantized,
    _require_out,
    _result_options,
    _with_given,
)
from ._tensor import ScaledTensor
from ._tensor import empty as empty_scaled
from ._transform import Transform, lower, result_shape


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
    """`quantize` of `gemm`'s result in float32, which on a CUDA device is stored nowhere.

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
    left, left_shape, _, place = _operand(a, "a")
    right, right_shape, _, right_place = _operand(b, "b")
    require_place(right_place, place, "b", "a")
    traits = _quantized(recipe)
    layout, sense, mode = _result_options(traits, out, layout, sense, scale_mode)
    if traits.tensor_scale and tensor_scale is None:
        raise ValueError(f"tensor_scale: is missing, must be given for {traits.name}")
    floor = _floor(amax_floor, traits)
    fused = lower(transform, place)
    shape = result_shape(_product_shape(left_shape, right_shape), fused)
    factor, factor_array = _factor(alpha, place)
    beta, threads = _number_of_host(beta, "beta"), count(threads, "threads")
    if beta != 0.0 and c is None:
        raise ValueError(f"c: is missing, must be given with beta = {beta}")
    c_pair = None if c is None or beta == 0.0 else _beside(c, "c", place)
    bias_pair = None if bias is None else _bias(bias, place)
    if out is None:
        out = empty_scaled(shape, traits, layout, sense, place)
    else:
        _require_out(out, "out", shape, traits, layout, sense, place)

    def run(given: bool) -> None:
        product = (factor, factor_array, beta, c_pair, bias_pair, bool(batch_invariant))
        call = (left, right, out, mode, given, floor, fused, *product)
        if isinstance(place, Device):
            place.queue(_native.cuda_gemm_quantize, *call)
        else:
            _native.gemm_quantize(*call, threads)

    if tensor_scale is None:
        run(False)
    else:
        _with_given(out, tensor_scale, None, run)
    return out
