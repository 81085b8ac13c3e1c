"""quantize, dequantize and gemm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import numpy as np

from . import _native
from ._arrays import count, empty, format_of, is_on_device, number, plain, require_type, to_library
from ._arrays import describe as describe_array
from ._device import ON_CPU, Device, Place, current, require_place, require_writable, run
from ._native import Format, MxScaleMode, Recipe, ScaleChoice, ScaleLayout, TensorScaleSense
from ._tensor import RecipeTraits, ScaledTensor, enum_member, floats, traits_of
from ._tensor import empty as empty_scaled
from ._transform import Transform, lower, result_shape

_GIVEN_SCALES = ("fp8_tensor", "fp8_tensor_e5m2", "fp8_row")
_ROWS_AND_COLUMNS = ("fp8_1x128", "fp8_1x128_pow2", "fp8_1x128_ue8m0")


def _matrix_shape(array: Any, argument: str) -> tuple[int, ...]:
    shape = tuple(array.shape)
    if len(shape) not in (2, 3):
        raise ValueError(
            f"{argument}: shape is {shape}, must be (rows, columns) or (batch, rows, columns)"
        )
    return shape


def _floor(value: Any, traits: RecipeTraits) -> float:
    floor = number(value, "amax_floor")
    if floor != 0 and not traits.name.startswith("fp8"):
        raise ValueError(f"amax_floor: given for {traits.name}, only FP8 recipes have one")
    return floor


def quantize(
    x: Any,
    recipe: Recipe | str,
    *,
    layout: ScaleLayout | str | None = None,
    scale_mode: MxScaleMode | str | None = None,
    tensor_scale: Any = None,
    sense: TensorScaleSense | str | None = None,
    scales: Any = None,
    amax_floor: float = 0.0,
    transform: Transform = "identity",
    scale_choice: ScaleChoice | str = "amax",
    channel_weights: Any = None,
    channel_means: Any = None,
    out: ScaledTensor | None = None,
    threads: int = 0,
) -> ScaledTensor:
    """Quantize f32, f16 or bf16 values; the rules are in docs/numerics.md.

    Args:
        x: [rows, k] or [batch, rows, k], k contiguous; numpy, torch, DLPack or buffer protocol; or
            on a CUDA device, of torch, cupy or jax: then everything else is there too, and the work
            is queued on that library's current stream.
        recipe: a `Recipe` or its name, e.g. "nvfp4", "mxfp8_e4m3", "fp8_128x128".
        layout: where the scales go: "row_major" (default), "mn_major", "swizzled_128x4",
            "swizzled_8x4".
        scale_mode: MX: "floor", "ceil" (default), "even" or "even_e2m1": how a block's exponent is
                chosen.
        tensor_scale: NVFP4: use this tensor scale (in `sense`) instead of the data's; a float, or
            float32 [1] or [batch].
        sense: how NVFP4's tensor scale is stored: "divisor" (2688 / amax; default) or "multiplier".
        scales: fp8_tensor, fp8_tensor_e5m2 and fp8_row: use these scales; a float, or float32 of
            the shape of the result's, or of one element (as many dimensions) for all of them.
        amax_floor: FP8: a block's largest magnitude counts as at least this.
        transform: what is quantized instead of x, computed in f32 in the same pass: "gelu_tanh",
            "gelu_erf", "silu", "swiglu", `Swiglu`, `Modulate(scale, shift)` or `RmsNorm(weight)`.
        scale_choice: MX and NVFP4 on the CPU: the scale of a block comes from its largest magnitude
            ("amax", default), or is that of the least squared error ("mse"), or of the least one
            weighted by `channel_weights` ("weighted").
        channel_weights: float32 [k], at least 0: the mean square of each input channel, say.
        channel_means: float32 [k], MX recipes: the mean of each input channel, whose square is at
            most its weight; None stands for zeros.
        out: write here. Of the result's shape and of `recipe`; its layout and sense are the
            defaults of `layout` and `sense`. Must not share memory with `x`.
        threads: 0 for all of the machine's.

    Returns:
        A ScaledTensor of `x`'s shape (half the columns after SwiGLU) in `x`'s library, or `out`.

    Raises:
        TypeError: `x`, or an operand of `transform`, is no array of f32, f16 or bf16.
        ValueError: a shape, stride, device or option that is not allowed; `out` that is read-only
            or shares memory with `x`. Nothing was written then.

    >>> import numpy as np, blockscale
    >>> t = blockscale.quantize(np.array([[1.0, -2.0, 0.5, 6.0] * 8], np.float32), "mxfp4")
    >>> t.scales.view(np.uint8).item()  # 2^0, biased by 127
    127
    """
    asked = tensor_scale if scales is None else scales
    options = (recipe, layout, sense, scale_mode, asked, amax_floor, transform, scale_choice)
    options += (channel_weights, channel_means, threads)
    done: ScaledTensor | None = _native.quantize(x, out, options, None)
    if done is not None:
        return done
    array, fmt, place = plain(x, "x")
    x_shape = _matrix_shape(array, "x")
    traits = _quantized(recipe)
    layout, sense, mode = _result_options(traits, out, layout, sense, scale_mode)
    amax_floor, threads = _floor(amax_floor, traits), count(threads, "threads")
    fused = lower(transform, place)
    shape = result_shape(x_shape, fused)
    if out is None:
        out = empty_scaled(shape, traits, layout, sense, place)
    else:
        _require_out(out, "out", shape, traits, layout, sense, place)

    by_channel = {"channel_weights": channel_weights, "channel_means": channel_means}
    named = [name for name, value in by_channel.items() if value is not None]
    choice = (
        _CHOICE if scale_choice in _AMAX else enum_member(scale_choice, ScaleChoice, "scale_choice")
    )
    if isinstance(place, Device) and (named or choice is not _CHOICE):
        argument = named[0] if choice is _CHOICE else "scale_choice"
        raise ValueError(f"{argument}: is given, on a device scales are those of amax")
    weights, means = (_by_channel(name, value, shape[-1]) for name, value in by_channel.items())

    def run_given(given: bool | None) -> None:
        options = (None, layout, sense, mode, given, amax_floor, fused, choice, weights, means)
        run(place, _native.quantize, (array, fmt), out, (*options, threads))

    if tensor_scale is None and scales is None:
        run_given(None)
    else:
        _with_given(out, tensor_scale, scales, run_given)
    return out


def _by_channel(name: str, value: Any, k: int) -> np.ndarray | None:
    if value is None:
        return None
    array, dtype, _ = describe_array(value, name)
    if dtype != "float32":
        raise TypeError(f"{name}: has dtype {dtype}, must be float32")
    if tuple(array.shape) != (k,):
        raise ValueError(f"{name}: shape is {tuple(array.shape)}, must be {(k,)}")
    return np.ascontiguousarray(array)


def _result_options(
    traits: RecipeTraits,
    out: ScaledTensor | None,
    layout: ScaleLayout | str | None,
    sense: TensorScaleSense | str | None,
    scale_mode: MxScaleMode | str | None,
) -> tuple[ScaleLayout, TensorScaleSense, MxScaleMode]:
    """What was given of these, or what `out` has, or the default."""
    if out is not None and not isinstance(out, ScaledTensor):
        raise TypeError(f"out: is a {type(out).__name__}, must be a ScaledTensor")
    default_layout, default_sense = _DEFAULTS if out is None else (out._layout, out._sense)
    layout = default_layout if layout is None else enum_member(layout, ScaleLayout, "layout")
    sense = default_sense if sense is None else enum_member(sense, TensorScaleSense, "sense")
    if scale_mode is None:
        return layout, sense, _CEIL
    if not traits.name.startswith("mx"):
        raise ValueError(f"scale_mode: given for {traits.name}, only MX recipes have a choice")
    return layout, sense, enum_member(scale_mode, MxScaleMode, "scale_mode")


_DEFAULTS = (ScaleLayout.row_major, TensorScaleSense.divisor)
_CEIL = MxScaleMode.ceil
_CHOICE = ScaleChoice.amax
_AMAX = ("amax", _CHOICE)


def _quantized(recipe: Recipe | str) -> RecipeTraits:
    traits = traits_of(recipe, "recipe")
    if traits.plain:
        raise ValueError(f"recipe: {traits.name} is a plain format, nothing to quantize to")
    return traits


def quantize_rows_and_columns(
    x: Any,
    recipe: Recipe | str,
    *,
    layout: ScaleLayout | str = ScaleLayout.row_major,
    amax_floor: float = 0.0,
    transform: Transform = "identity",
    out: tuple[ScaledTensor, ScaledTensor] | None = None,
    threads: int = 0,
) -> tuple[ScaledTensor, ScaledTensor]:
    """`quantize` of a matrix and of its transpose, from one read.

    For training, where a product needs an activation or a gradient along one axis and its
    derivative along the other.

    Args:
        x: [rows, k] or [batch, rows, k], as for `quantize`.
        recipe: "fp8_1x128", "fp8_1x128_pow2" or "fp8_1x128_ue8m0".
        layout: of both results' scales.
        amax_floor, transform, threads: as for `quantize`; a transform is computed once.
        out: write into this pair.

    Returns:
        ScaledTensors [..., rows, k] and [..., k, rows], each with scales for 128 of its own
        columns, and the bytes that `quantize` gives.

    Raises:
        TypeError, ValueError: as for `quantize`. Nothing was written then.

    >>> import numpy as np, blockscale
    >>> a, b = blockscale.quantize_rows_and_columns(np.ones((2, 128), np.float32), "fp8_1x128")
    >>> a.shape, b.shape
    ((2, 128), (128, 2))
    """
    array, fmt, place = plain(x, "x")
    x_shape = _matrix_shape(array, "x")
    traits = traits_of(recipe, "recipe")
    if traits.name not in _ROWS_AND_COLUMNS:
        raise ValueError(f"recipe: is {traits.name}, must be one of {', '.join(_ROWS_AND_COLUMNS)}")
    placed = enum_member(layout, ScaleLayout, "layout")
    amax_floor, threads = number(amax_floor, "amax_floor"), count(threads, "threads")
    fused = lower(transform, place)
    shape = result_shape(x_shape, fused)
    shapes = (shape, (*shape[:-2], shape[-1], shape[-2]))
    if out is None:
        rows, columns = (
            empty_scaled(s, traits, placed, TensorScaleSense.divisor, place) for s in shapes
        )
    else:
        if not (isinstance(out, tuple) and [type(t) for t in out] == [ScaledTensor] * 2):
            raise TypeError(f"out: is {out!r}, must be a pair of ScaledTensors")
        rows, columns = out
        for i, tensor in enumerate(out):
            _require_out(
                tensor, f"out[{i}]", shapes[i], traits, placed, TensorScaleSense.divisor, place
            )
    options = (None, placed, None, None, None, amax_floor, fused, _CHOICE, None, None, threads)
    run(place, _native.quantize_rows_and_columns, (array, fmt), rows, columns, options)
    return rows, columns


def _require_out(
    out: ScaledTensor,
    argument: str,
    shape: tuple[int, ...],
    traits: RecipeTraits,
    layout: ScaleLayout,
    sense: TensorScaleSense,
    place: Place,
) -> None:
    if out._shape != shape or out._recipe is not traits.recipe or out._layout is not layout:
        wanted = (shape, traits.name, layout.name)
        got = (out.shape, out.recipe.name, out.layout.name)
        raise ValueError(f"{argument}: (shape, recipe, layout) is {got}, must be {wanted}")
    if traits.tensor_scale and out._sense is not sense:
        raise ValueError(f"{argument}: sense is {out.sense.name}, must be {sense.name}")
    require_place(out._place, place, argument)
    require_writable(out._values, out._place, f"{argument}.values")


def _with_given(
    out: ScaledTensor, tensor_scale: Any, scales: Any, run: Callable[[bool], None]
) -> None:
    """The library reads given scales from `out`; what was there returns if it refuses the call."""
    place = out._place
    if tensor_scale is not None:
        if out._tensor_scale is None:
            raise ValueError(f"tensor_scale: is given, but {out.recipe.name} has none")
        target, argument = out._tensor_scale, "tensor_scale"
        given = floats(tensor_scale, tuple(target.shape), place)
    if scales is not None:
        if out.recipe.name not in _GIVEN_SCALES:
            raise ValueError(
                f"scales: are given, but {out.recipe.name} takes its own; "
                f"only {', '.join(_GIVEN_SCALES)} can be told"
            )
        target, argument = out._scales, "scales"
        given = _given_scales(scales, tuple(target.shape), place)
    if isinstance(place, Device) and place.immutable:
        raise ValueError(f"{argument}: cannot be given on a device of jax; use torch or cupy")
    if not isinstance(place, Device) and not target.flags.writeable:
        raise ValueError(f"out.{argument}: is read-only, must be writable")
    with current(place):
        before = target.clone() if hasattr(target, "clone") else target.copy()
        target[...] = given
        try:
            run(True)
        except BaseException:
            target[...] = before
            raise


def _given_scales(scales: Any, shape: tuple[int, ...], place: Place) -> Any:
    if isinstance(scales, Real):
        return scales
    array, dtype, its_place = describe_array(scales, "scales")
    if dtype != "float32":
        raise TypeError(f"scales: has dtype {dtype}, must be float32")
    one = (1,) * len(shape)
    if tuple(array.shape) not in (shape, one):
        raise ValueError(f"scales: shape is {tuple(array.shape)}, must be {shape} or {one}")
    require_place(its_place, place, "scales")
    return array


def dequantize(
    x: ScaledTensor, *, out_dtype: Any = "float32", out: Any = None, threads: int = 0
) -> Any:
    """Values of a ScaledTensor, rounded once (to nearest even) into `out_dtype`.

    Args:
        x: a ScaledTensor.
        out_dtype: float32, float16 or bfloat16, as a name or a dtype of numpy or torch.
        out: an array of `x.shape` to write into; its dtype decides.
        threads: 0 for all of the machine's.

    Returns:
        An array of `x.shape` in `x`'s library, or `out`.

    Raises:
        TypeError: `x` is no ScaledTensor, or a dtype that is not allowed.
        ValueError: `out` has another shape, is read-only, or shares memory with `x`. Nothing was
            written then.

    >>> import numpy as np, blockscale
    >>> t = blockscale.quantize(np.full((1, 32), 3.0, np.float32), "mxfp4")
    >>> float(blockscale.dequantize(t)[0, 0])
    3.0
    """
    if not isinstance(x, ScaledTensor):
        raise TypeError(f"x: is a {type(x).__name__}, must be a ScaledTensor")
    place, threads = x._place, count(threads, "threads")
    result, array, fmt = _output(out, x.shape, out_dtype, place)
    if isinstance(place, Device):  # as `run` does
        place.queue(_native.dequantize, x, array, fmt, threads)
    else:
        _native.dequantize(x, array, fmt, threads, ON_CPU)
    return to_library(array, fmt, place) if result is None else result


def _output(
    out: Any,
    shape: tuple[int, ...],
    out_dtype: Any,
    place: Place,
    first: str = "x",
    make: Callable[..., Any] = empty,
    asked: str = "out_dtype",
) -> tuple[Any, Any, Format]:
    """(caller's array or None, its memory or new memory of `make`'s, its format). `asked` is the
    argument that the format came of."""
    if out is None:
        fmt = format_of(out_dtype, asked)
        require_type(fmt, place, asked)
        return None, make(shape, fmt, place), fmt
    array, fmt, its_place = plain(out, "out")
    require_place(its_place, place, "out", first)
    if array.shape != shape:
        raise ValueError(f"out: shape is {tuple(array.shape)}, must be {shape}")
    require_writable(array, its_place, "out")
    return out, array, fmt


def gemm(
    a: Any,
    b: Any,
    *,
    alpha: Any = 1.0,
    beta: float = 0.0,
    c: Any = None,
    bias: Any = None,
    gate: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    transform: Transform = "identity",
    batch_invariant: bool = False,
    fast_accumulation: bool = False,
    threads: int = 0,
) -> Any:
    """gate * (alpha * a b^T + bias) + beta * c, or what a transform makes of it.

    Args:
        a: [M, K] or [batch, M, K]; a ScaledTensor, or an array of f32, f16 or bf16. On a CUDA
            device everything else is there too, and the work is queued on that library's current
            stream.
        b: [N, K] or [batch, N, K]; likewise. Which pairs are possible: docs/numerics.md.
        alpha: a factor; where `a` is on a CUDA device also an array of one float32 there, which is
            read when the kernel runs.
        beta: a factor. With 0, `c` is not read.
        c: [M, N] or [batch, M, N] of f32, f16 or bf16.
        bias: [N] or [1, N], added to each row.
        gate: [N] or [1, N], a factor of each column, bias in it, but not c; None: 1.
        out: write here; [M, N] or [batch, M, N]. May be `c` itself; no other overlap is allowed.
        out_dtype: float32, float16 or bfloat16; default: `a`'s dtype if it is plain, else float32.
        transform: "gelu_tanh", "gelu_erf", "silu", "swiglu" or `Swiglu` of all that, in float32,
            before it is rounded to the result's type. With SwiGLU the rows of `b` are gates and
            ups, as the columns of `quantize`'s x are, and the result has half as many columns.
        batch_invariant: the bits of a row of the result depend neither on M nor on the other rows
            of `a`. May cost time.
        fast_accumulation: FP8's tensor cores may add up all of K, where otherwise float32 adds up
            their sums of 128: faster, and less exact (docs/numerics.md, "Error bound"). Hopper does
            so with `a` in "fp8_row" or "fp8_tensor" beside `b` in "mxfp4"; everything else is as it
            is without.
        threads: 0 for all of the machine's.

    Returns:
        An array in `a`'s library, or `out`.

    Raises:
        TypeError: an argument of the wrong kind or dtype.
        ValueError: shapes, strides, devices or a pair of recipes that are not allowed; `out` that
            is read-only or shares memory with an input. Nothing was written then.

    >>> import numpy as np, blockscale
    >>> w = blockscale.quantize(np.eye(32, dtype=np.float32), "nvfp4")
    >>> blockscale.gemm(np.ones((1, 32), np.float32), w).sum().item()
    32.0
    """
    if out is not None:
        given = (alpha, beta, c, bias, batch_invariant, transform, None, threads, gate)
        if _native.gemm(a, b, out, (*given, fast_accumulation), None):
            return out
    place, shape, left_format, left, right, options = product_of(
        *(a, b, alpha, beta, c, bias, batch_invariant, transform, None, threads, gate),
        fast_accumulation,
    )
    dtype = out_dtype if out_dtype is not None else left_format or Format.f32
    result, array, fmt = _output(out, shape, dtype, place, "a")
    if isinstance(place, Device):  # as `run` does
        place.queue(_native.gemm, left, right, (array, fmt), options)
    else:
        _native.gemm(left, right, (array, fmt), options, ON_CPU)
    return to_library(array, fmt, place) if result is None else result


def product_of(
    a: Any,
    b: Any,
    alpha: Any,
    beta: float,
    c: Any,
    bias: Any,
    batch_invariant: bool,
    transform: Transform,
    quantization: tuple[MxScaleMode, bool | None, float] | None,
    threads: int,
    gate: Any,
    fast_accumulation: bool = False,
) -> tuple[Place, tuple[int, ...], Format | None, Any, Any, tuple[Any, ...]]:
    """What a product asks for, looked at: (where everything lies, shape of the result, format of a
    plain `a`, then for the native module a, b, options).

    Raises:
        TypeError, ValueError: as `gemm` does.
    """
    left, left_shape, left_format, place = _operand(a, "a")
    right, right_shape, _, right_place = _operand(b, "b")
    require_place(right_place, place, "b", "a")
    shape = product_shape(left_shape, right_shape)
    fused = lower(transform, place)
    if fused is not None:
        shape = result_shape(shape, fused)
    factor = _factor(alpha, place)
    beta, threads = _number_of_host(beta, "beta"), count(threads, "threads")
    if beta != 0.0 and c is None:
        raise ValueError(f"c: is missing, must be given with beta = {beta}")
    c_pair = None if c is None or beta == 0.0 else _beside(c, "c", place)
    bias_pair = None if bias is None else _row(bias, "bias", place)
    gate_pair = None if gate is None else _row(gate, "gate", place)
    options = (
        *(factor, beta, c_pair, bias_pair, bool(batch_invariant), fused, quantization, threads),
        *(gate_pair, bool(fast_accumulation)),
    )
    return place, shape, left_format, left, right, options


def _operand(x: Any, argument: str) -> tuple[Any, tuple[int, ...], Format | None, Place]:
    """(what the native module takes, shape, plain format or None, place)."""
    if isinstance(x, ScaledTensor):
        return x, x._shape, None, x._place
    array, fmt, place = plain(x, argument)
    return (array, fmt), _matrix_shape(array, argument), fmt, place


def product_shape(left: Sequence[Any], right: Sequence[Any]) -> tuple[Any, ...]:
    """D's, of a's and b's, whose sizes need be no numbers yet."""
    if len(left) == len(right) == 2:
        return left[0], right[0]
    batches = [shape[0] for shape in (left, right) if len(shape) == 3]
    batch = batches[-1] if batches[0] == 1 else batches[0]
    if batches[-1] not in (1, batch):
        raise ValueError(f"a, b: batches are {left[0]} and {right[0]}, must be equal or 1")
    return batch, left[-2], right[-2]


def _number_of_host(value: Any, argument: str) -> float:
    if type(value) is not float and is_on_device(value, argument):
        raise TypeError(f"{argument}: is an array on a device, must be a number")
    return number(value, argument)


def _beside(x: Any, argument: str, place: Place, first: str = "a") -> tuple[Any, Format]:
    """`plain` for what must lie where the first operand does."""
    array, fmt, its_place = plain(x, argument)
    require_place(its_place, place, argument, first)
    return array, fmt


def _row(x: Any, argument: str, place: Place) -> tuple[Any, Format]:
    array, fmt = _beside(x, argument, place)
    if array.ndim != 1 and (array.ndim != 2 or array.shape[0] != 1):
        raise ValueError(f"{argument}: shape is {tuple(array.shape)}, must be (N,) or (1, N)")
    return array, fmt


def _factor(alpha: Any, place: Place) -> Any:
    """`alpha` as a number, or an array of one: a device's are not read here."""
    if type(alpha) is float or not is_on_device(alpha, "alpha"):
        return number(alpha, "alpha")
    array, dtype, its_place = describe_array(alpha, "alpha")
    require_place(its_place, place, "alpha", "a")
    if dtype != "float32":
        raise TypeError(f"alpha: has dtype {dtype}, must be float32")
    if int(np.prod(array.shape)) != 1:
        raise ValueError(f"alpha: shape is {tuple(array.shape)}, must have one element")
    return array
