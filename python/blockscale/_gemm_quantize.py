"""Products whose result is quantized for the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from . import _native
from ._device import Place, run
from ._grouped import call_of
from ._native import MxScaleMode, Recipe, ScaleLayout, TensorScaleSense
from ._ops import _floor, _quantized, _require_out, _result_options, _with_given, product_of
from ._tensor import RecipeTraits, ScaledTensor
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
    """`quantize` of a product in float32, which Hopper's FP8 kernels store nowhere, but for
    "fp8_row" and SiLU. On the CPU it is `gemm`'s; on Hopper where `gemm` does not divide K
    (docs/python.md), else last bits differ.

    Args:
        a, b, alpha, beta, c, bias, batch_invariant, threads: as for `gemm`.
        recipe: "fp8_1x128", "fp8_1x128_pow2", "fp8_1x128_ue8m0", "fp8_row", "mxfp8_e4m3" or
            "nvfp4".
        layout, scale_mode, sense, amax_floor: as for `quantize`.
        tensor_scale: NVFP4: the tensor scale (in `sense`), which must be given.
        transform: "gelu_tanh", "gelu_erf", "silu", "swiglu" or `Swiglu` of the product. With SwiGLU
            the rows of `b` are gates and ups, as the columns of `quantize`'s x are.
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
    asked = _asked(recipe, out, layout, sense, scale_mode, tensor_scale, amax_floor)
    place, shape, _, *operands, options = product_of(
        *(a, b, alpha, beta, c, bias, batch_invariant, transform, asked.quantization, threads),
        None,
    )

    def product(result: ScaledTensor) -> None:
        run(place, _native.gemm, *operands, result, options)

    return _into(out, asked, shape, place, product)


def grouped_gemm_quantize(
    a: Any,
    b: Any,
    offsets: Any,
    recipe: Recipe | str,
    *,
    lengths: Any = None,
    alpha: Any = 1.0,
    bias: Any = None,
    index: Any = None,
    layout: ScaleLayout | str | None = None,
    scale_mode: MxScaleMode | str | None = None,
    tensor_scale: Any = None,
    sense: TensorScaleSense | str | None = None,
    amax_floor: float = 0.0,
    transform: Transform = "identity",
    out: ScaledTensor | None = None,
    expected_rows: int = 0,
    batch_invariant: bool = False,
    threads: int = 0,
) -> ScaledTensor:
    """`quantize` of `grouped_gemm` in float32: rows of groups, quantized for the next product.

    Args:
        a, b, offsets, lengths, alpha, bias, index, expected_rows, batch_invariant, threads: as for
            `grouped_gemm`.
        recipe, layout, scale_mode, tensor_scale, sense, amax_floor: as for `gemm_quantize`. All
            groups have one tensor scale.
        transform: "gelu_tanh", "gelu_erf", "silu", "swiglu" or `Swiglu` of the product. With SwiGLU
            the rows of `b[g]` are gates and ups, as the columns of `quantize`'s x are.
        out: write here, as for `quantize`. Rows that no group has keep their values and scales; in
            a result that is made here both are zero.

    Returns:
        A ScaledTensor [M, N] (half of N after SwiGLU) in `a`'s library, or `out`.

    Raises:
        TypeError, ValueError: as for `grouped_gemm` and `quantize`. Nothing was written then.

    >>> import numpy as np, blockscale
    >>> experts = np.stack([np.eye(32), 2 * np.eye(32)]).astype(np.float32)
    >>> w = blockscale.quantize(experts, "mxfp8_e4m3")
    >>> offsets, x = np.array([0, 1, 3], np.int32), np.ones((3, 32), np.float32)
    >>> h = blockscale.grouped_gemm_quantize(x, w, offsets, "mxfp8_e4m3")
    >>> blockscale.dequantize(h)[:, 0].tolist()
    [1.0, 2.0, 2.0]
    """
    if offsets is None:
        raise TypeError("offsets: is missing")
    asked = _asked(recipe, out, layout, sense, scale_mode, tensor_scale, amax_floor)
    moves_nothing = (None, None, False)  # destinations, weights, add
    call = call_of(
        *(a, b, offsets, lengths, alpha, bias, index, *moves_nothing, transform),
        *(expected_rows, batch_invariant, threads),
        quantization=asked.quantization,
    )

    def product(result: ScaledTensor) -> None:
        run(call.place, _native.grouped_gemm, *call.operands, result, call.options)

    return _into(out, asked, (call.rows, call.columns), call.place, product, is_zero=True)


class _Asked(NamedTuple):
    """What a result is asked to be, looked at."""

    form: tuple[RecipeTraits, ScaleLayout, TensorScaleSense]
    quantization: tuple[MxScaleMode, bool | None, float]  # for the native module
    tensor_scale: Any


def _asked(
    recipe: Recipe | str,
    out: ScaledTensor | None,
    layout: ScaleLayout | str | None,
    sense: TensorScaleSense | str | None,
    scale_mode: MxScaleMode | str | None,
    tensor_scale: Any,
    amax_floor: float,
) -> _Asked:
    traits = _quantized(recipe)
    layout, sense, mode = _result_options(traits, out, layout, sense, scale_mode)
    if traits.tensor_scale and tensor_scale is None:
        raise ValueError(f"tensor_scale: is missing, must be given for {traits.name}")
    given = None if tensor_scale is None else True
    quantization = (mode, given, _floor(amax_floor, traits))
    return _Asked((traits, layout, sense), quantization, tensor_scale)


def _into(
    out: ScaledTensor | None,
    asked: _Asked,
    shape: tuple[int, ...],
    place: Place,
    product: Callable[[ScaledTensor], None],
    is_zero: bool = False,
) -> ScaledTensor:
    """What `product` was told to write: `out`, which must be as asked, or one that is made here."""
    if out is None:
        result = empty_scaled(shape, *asked.form, place, is_zero)
    else:
        _require_out(out, "out", shape, *asked.form, place)
        result = out
    if asked.tensor_scale is None:
        product(result)
    else:
        _with_given(result, asked.tensor_scale, None, lambda _: product(result))
    return result
