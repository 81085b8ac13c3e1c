"""Products of groups: of rows, each group times a matrix of its own, and of k."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import _native
from ._arrays import count, empty, is_on_device, number, numbers, to_library, zeros
from ._device import Place, require_place, run
from ._native import Format, MxScaleMode
from ._ops import _beside, _number_of_host, _operand, _output
from ._transform import Transform, lower, result_shape


def grouped_gemm(
    a: Any,
    b: Any,
    offsets: Any,
    *,
    lengths: Any = None,
    alpha: Any = 1.0,
    bias: Any = None,
    index: Any = None,
    destinations: Any = None,
    weights: Any = None,
    add: bool = False,
    out: Any = None,
    out_rows: int | None = None,
    out_dtype: Any = None,
    transform: Transform = "identity",
    expected_rows: int = 0,
    batch_invariant: bool = False,
    threads: int = 0,
) -> Any:
    """For each group g and its rows r: alpha * a[r] b[g]^T + bias[g], as `gemm` has it. Which rows
    a group has is known where the data is: on a CUDA device nothing is read back.

    Args:
        a: [M, K]; a ScaledTensor, or an array of f32, f16 or bf16. Everything else lies where `a`
            does, as for `gemm`.
        b: [G, N, K], likewise; the pairs are those of `gemm`.
        offsets: int32 [G + 1]; group g has the rows from offsets[g] to offsets[g + 1]. Numbers that
            are no rows are cut to 0..M; `check_groups` finds them.
        lengths: int32 [G]: group g has so many rows from offsets[g] on, and rows between groups
            belong to none.
        alpha: a factor, or float32 [G], one for each group.
        bias: [G, N] of f32, f16 or bf16.
        index: int32 [M]: row r is a[index[r]], where M is the index's length, and zeros where
            index[r] is no row of `a`.
        destinations: int32 [M]: row r goes to row destinations[r] of the result, and nowhere where
            that is none.
        weights: float32 [M]: with `destinations`, row r is weighted so.
        add: with `destinations`: rows are added to the result, each and each sum rounded to its
            dtype; it is float32, or its rows begin and end at multiples of 16 bytes. On a CUDA
            device in any order: not the same bits from run to run.
        out: write here; [M, N], with `destinations` [any, N]. Rows that no group has stay as they
            are; in a result that is made here they are zero.
        out_rows: with `destinations` and without `out`: rows of the result.
        out_dtype: as for `gemm`.
        transform: "gelu_tanh", "gelu_erf", "silu", "swiglu" or `Swiglu`, as for `gemm`; not with
            `add`.
        expected_rows: rows that a group is expected to have; for the choice of tiles on a CUDA
            device, right whatever it is. 0: as many as if groups shared all rows out.
        batch_invariant: the bits of a row of the result depend neither on the other rows of its
            group nor on other groups. May cost time.
        threads: 0 for all of the machine's.

    Returns:
        An array [M, N] (half of N after SwiGLU) in `a`'s library, or `out`.

    Raises:
        TypeError: an argument of the wrong kind or dtype.
        ValueError: shapes, strides, devices or a pair of recipes that are not allowed; `out` that
            is read-only or shares memory with an input. Nothing was written then.

    >>> import numpy as np, blockscale
    >>> experts = np.stack([np.eye(32), 2 * np.eye(32)]).astype(np.float32)
    >>> w = blockscale.quantize(experts, "mxfp8_e4m3")
    >>> offsets = np.array([0, 1, 3], np.int32)
    >>> blockscale.grouped_gemm(np.ones((3, 32), np.float32), w, offsets)[:, 0].tolist()
    [1.0, 2.0, 2.0]
    """
    if offsets is None:
        raise TypeError("offsets: is missing; groups with rows of their own: masked_grouped_gemm")
    hints = (expected_rows, batch_invariant, threads)
    call = call_of(
        *(a, b, offsets, lengths, alpha, bias, index, destinations, weights, add, transform, *hints)
    )
    rows = _rows_of_result(call, destinations, out, out_rows)
    return _run(call, (rows, call.columns), out, out_dtype)


def masked_grouped_gemm(
    a: Any,
    b: Any,
    counts: Any,
    *,
    alpha: Any = 1.0,
    bias: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    transform: Transform = "identity",
    expected_rows: int = 0,
    batch_invariant: bool = False,
    threads: int = 0,
) -> Any:
    """`grouped_gemm` of groups that have matrices of their own: the first counts[g] rows of a[g]
    times b[g]^T.

    Args:
        a: [G, rows, K]; as for `grouped_gemm`, as all that follows.
        b: [G, N, K].
        counts: int32 [G], cut to 0..rows.
        alpha, bias, out_dtype, transform, expected_rows, batch_invariant, threads: as for
            `grouped_gemm`. Without `expected_rows` groups are taken to be full.
        out: write here; [G, rows, N]. Rows from counts[g] on stay as they are; in a result that is
            made here they are zero.

    Returns:
        An array [G, rows, N] in `a`'s library, or `out`.

    Raises:
        TypeError, ValueError: as for `grouped_gemm`. Nothing was written then.

    >>> import numpy as np, blockscale
    >>> x = np.ones((2, 3, 32), np.float32)
    >>> counts = np.array([1, 2], np.int32)
    >>> blockscale.masked_grouped_gemm(x, x, counts)[..., 0].tolist()
    [[32.0, 0.0, 0.0], [32.0, 32.0, 0.0]]
    """
    moves_nothing = (None, None, None, False)  # index, destinations, weights, add
    hints = (expected_rows, batch_invariant, threads)
    call = call_of(a, b, None, counts, alpha, bias, *moves_nothing, transform, *hints)
    return _run(call, (call.groups, call.rows, call.columns), out, out_dtype)


def k_grouped_gemm(
    a: Any,
    b: Any,
    offsets: Any,
    *,
    alpha: float = 1.0,
    add: bool = False,
    out: Any = None,
    threads: int = 0,
) -> Any:
    """For each group g: alpha * a[:, k of g] b[:, k of g]^T, of k from offsets[g] to
    offsets[g + 1]: gradients of the weights of experts.

    Args:
        a: [M, K]; a ScaledTensor, or an array of f32, f16 or bf16. Everything else lies where `a`
            does, as for `gemm`.
        b: [N, K], likewise; the pairs are those of `gemm`.
        offsets: int32 [G + 1], cut to 0..K; groups may begin anywhere in a block of scales.
        alpha: a factor.
        add: add to `out`.
        out: write here; float32 [G, M, N].
        threads: 0 for all of the machine's.

    Returns:
        An array [G, M, N] of float32 in `a`'s library, or `out`. That of a group without k is zero,
        or with `add` as it was.

    Raises:
        TypeError, ValueError: as for `grouped_gemm`. Nothing was written then.

    >>> import numpy as np, blockscale
    >>> x = np.ones((1, 32), np.float32)
    >>> blockscale.k_grouped_gemm(x, x, np.array([0, 5, 32], np.int32)).ravel().tolist()
    [5.0, 27.0]
    """
    left, left_shape, _, place = _operand(a, "a")
    right, right_shape, _, right_place = _operand(b, "b")
    require_place(right_place, place, "b", "a")
    _require_dimensions("a", left_shape, ("M", "K"))
    _require_dimensions("b", right_shape, ("N", "K"))
    ends = numbers(offsets, "offsets", "int32", place)
    options = (_number_of_host(alpha, "alpha"), bool(add), count(threads, "threads"))
    shape = (max(_size(ends) - 1, 0), left_shape[0], right_shape[0])
    result, array, fmt = _output(out, shape, Format.f32, place, "a", zeros if add else empty)
    run(place, _native.k_grouped_gemm, left, right, ends, (array, fmt), options)
    return to_library(array, fmt, place) if result is None else result


def check_groups(
    a: Any,
    b: Any,
    offsets: Any,
    *,
    lengths: Any = None,
    index: Any = None,
    destinations: Any = None,
    out_rows: int | None = None,
) -> None:
    """Reads the numbers that `grouped_gemm` is given, and says what is wrong with them. A product
    does not: it cuts them to what there is. On a CUDA device this waits for them.

    Args:
        a, b, offsets, lengths, index, destinations: as for `grouped_gemm`; of
            `masked_grouped_gemm` `offsets` are None, and `lengths` the counts.
        out_rows: with `destinations`: rows of the result.

    Raises:
        TypeError, ValueError: as for `grouped_gemm`.
        ValueError: offsets that descend or lie outside of 0..M, lengths below 0 or beyond the end,
            groups that share rows, an index or a destination beyond the last row. (Below 0 they
            stand for no row.)

    >>> import numpy as np, blockscale
    >>> x = np.ones((3, 32), np.float32)
    >>> blockscale.check_groups(x, x[None], np.array([0, 3], np.int32))
    """
    call = call_of(
        *(a, b, offsets, lengths, 1.0, None, index, destinations, None, False, "identity"),
        *(0, False, 0),
    )
    rows = _rows_of_result(call, destinations, None, out_rows)
    shape = (rows, call.columns) if offsets is not None else (call.groups, rows, call.columns)
    result = (empty(shape, Format.f16, call.place), Format.f16)  # nothing is written
    run(call.place, _native.check_groups, *call.operands, result, call.options)


class _Call(NamedTuple):
    """A product of groups of rows, looked at: all but the result."""

    place: Place
    left_format: Format | None  # of a plain `a`
    groups: int
    rows: int  # of the product, of each group where they are masked
    columns: int
    operands: tuple[Any, Any, Any]  # a, b and offsets for the native module
    options: tuple[Any, ...]  # likewise
    adds: bool


def call_of(
    a: Any,
    b: Any,
    offsets: Any,
    lengths: Any,
    alpha: Any,
    bias: Any,
    index: Any,
    destinations: Any,
    weights: Any,
    add: bool,
    transform: Transform,
    expected_rows: int,
    batch_invariant: bool,
    threads: int,
    quantization: tuple[MxScaleMode, bool | None, float] | None = None,
) -> _Call:
    """What a product of groups of rows asks for, looked at; `quantization` as of `product_of`.

    Raises:
        TypeError, ValueError: as `grouped_gemm` does.
    """
    is_masked = offsets is None
    left, left_shape, left_format, place = _operand(a, "a")
    right, right_shape, _, right_place = _operand(b, "b")
    require_place(right_place, place, "b", "a")
    _require_dimensions("a", left_shape, ("G", "rows", "K") if is_masked else ("M", "K"))
    _require_dimensions("b", right_shape, ("G", "N", "K"))
    fused = lower(transform, place)

    def integers(x: Any, argument: str) -> Any:
        return None if x is None else numbers(x, argument, "int32", place)

    ends = integers(offsets, "offsets")
    if is_masked and lengths is None:
        raise TypeError("counts: is missing")
    its_lengths = integers(lengths, "counts" if is_masked else "lengths")
    factor = _factors(alpha, place)
    bias_pair = None if bias is None else _beside(bias, "bias", place)
    rows_of_a, its_destinations = integers(index, "index"), integers(destinations, "destinations")
    its_weights = None if weights is None else numbers(weights, "weights", "float32", place)
    (columns,) = result_shape((right_shape[-2],), fused)
    return _Call(
        place,
        left_format,
        right_shape[0],
        left_shape[-2] if rows_of_a is None else _size(rows_of_a),
        columns,
        (left, right, ends),
        (factor, its_lengths, bias_pair, rows_of_a, its_destinations, its_weights, bool(add), fused)
        + (quantization, count(expected_rows, "expected_rows", 2**57), bool(batch_invariant))
        + (count(threads, "threads"),),
        bool(add),
    )


def _rows_of_result(call: _Call, destinations: Any, out: Any, out_rows: int | None) -> int:
    if out_rows is not None and (destinations is None or out is not None):
        raise ValueError("out_rows: is given, goes with destinations and without out")
    if destinations is None:
        return call.rows
    if out is not None:
        return int(out.shape[0]) if len(getattr(out, "shape", ())) == 2 else call.rows
    if out_rows is None:
        raise ValueError("out: is missing; with destinations give it, or out_rows")
    return count(out_rows, "out_rows")


def _run(call: _Call, shape: tuple[int, ...], out: Any, out_dtype: Any) -> Any:
    default = None if call.adds else call.left_format
    dtype = out_dtype if out_dtype is not None else default or Format.f32
    result, array, fmt = _output(out, shape, dtype, call.place, "a", zeros)
    run(call.place, _native.grouped_gemm, *call.operands, (array, fmt), call.options)
    return to_library(array, fmt, call.place) if result is None else result


def _require_dimensions(argument: str, shape: tuple[int, ...], names: tuple[str, ...]) -> None:
    if len(shape) != len(names):
        raise ValueError(f"{argument}: shape is {tuple(shape)}, must be ({', '.join(names)})")


def _factors(alpha: Any, place: Place) -> Any:
    """`alpha` as a number, or an array of one for each group."""
    if type(alpha) is float:
        return alpha
    if not is_on_device(alpha, "alpha") and len(getattr(alpha, "shape", ())) == 0:
        return number(alpha, "alpha")
    return numbers(alpha, "alpha", "float32", place)


def _size(array: Any) -> int:
    """Elements of an array of one dimension; the native module refuses others."""
    return int(array.shape[0]) if len(array.shape) > 0 else 0
