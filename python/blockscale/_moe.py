"""Mixture of experts: routing, sorting by expert, and the whole layer."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import _native
from ._arrays import count, new_numbers, number, numbers, numbers_anywhere, plain, to_library
from ._device import Place, require_place, run
from ._grouped import _require_dimensions
from ._native import Format, Recipe
from ._ops import _beside, _operand, _output
from ._tensor import traits_of
from ._transform import Lowered, lower, lower_swiglu

_SCORES = ("softmax", "sigmoid")
_ACTIVATIONS = ("swiglu", "silu", "gelu_tanh", "gelu_erf")
_INTERLEAVES = (0, 1, 64)
_MOST_CHOICES = 16  # of a token
WORKSPACE_LIMIT = 2 << 30


def route(
    logits: Any,
    top_k: int,
    *,
    score: str = "softmax",
    correction_bias: Any = None,
    groups: int = 1,
    top_groups: int = 1,
    best_of_group: int = 2,
    renormalize: bool = True,
    scale: float = 1.0,
    shared_experts: int = 0,
    threads: int = 0,
) -> tuple[Any, Any]:
    """Each token's experts, those of the largest score + correction_bias, the largest first (of
    equal ones the lower expert), and their weights. The same bits on every CPU and GPU.

    Args:
        logits: [T, experts] of f32, f16 or bf16; at most 2^20 tokens and 1,024 experts.
        top_k: experts of a token, 1 to 16.
        score: what logits become: "softmax" over all experts, or each one's "sigmoid".
        correction_bias: float32 [experts], added to scores for the choice alone; None: 0.
        groups: experts are so many groups of equal size, side by side; 1 to 32.
        top_groups: with groups above 1, experts are chosen from so many of them,
        best_of_group: those whose 1 or 2 best experts have the largest sum.
        renormalize: weights are divided by a token's sum of them, + 1e-20.
        scale: weights are multiplied by it.
        shared_experts: so many experts more, numbered behind the others, that every token goes to
            with weight 1, behind its top_k; 16 with these at most.
        threads: 0 for all of the machine's.

    Returns:
        (ids, weights): int32 and float32 [T, top_k + shared_experts] in the library of `logits`.
        Weights are scores, without the bias.

    Raises:
        TypeError: an argument of the wrong kind or dtype.
        ValueError: shapes, devices or numbers that are not allowed.

    >>> import numpy as np, blockscale
    >>> ids, weights = blockscale.route(np.array([[0, 1, 3, 0]], np.float32), 2)
    >>> ids.tolist(), [round(w, 3) for w in weights[0].tolist()]
    ([[2, 1]], [0.881, 0.119])
    """
    array, fmt, place = plain(logits, "logits")
    _require_dimensions("logits", array.shape, ("T", "experts"))
    tokens, experts = array.shape
    if score not in _SCORES:
        raise ValueError(f"score: is {score!r}, must be {' or '.join(_SCORES)}")
    bias = correction_bias
    if bias is not None:
        bias = numbers(bias, "correction_bias", "float32", place, "logits")
    top_k = count(top_k, "top_k")
    if top_k > experts:
        raise ValueError(f"top_k: is {top_k}, must be at most {experts}, the experts")
    sizes = {"groups": groups, "top_groups": top_groups, "best_of_group": best_of_group}
    options = (
        *(top_k, bias, _SCORES.index(score)),
        *(count(value, name) for name, value in sizes.items()),
        *(bool(renormalize), number(scale, "scale"), count(threads, "threads")),
        count(shared_experts, "shared_experts"),
    )
    if options[-1] > _MOST_CHOICES:
        raise ValueError(f"shared_experts: is {options[-1]}, must be at most {_MOST_CHOICES}")
    shape = (tokens, top_k + options[-1])
    ids, weights = (new_numbers(shape, of, place) for of in ("int32", "float32"))
    run(place, _native.route, (array, fmt), (ids, weights), options)
    return to_library(ids, None, place), to_library(weights, None, place)


class SortedEntries(NamedTuple):
    """What `moe_sort` gives, all int32. Entry t * top_k + j is token t's j-th choice. In brackets
    what TensorRT-LLM calls it; the last four are None where `tile` is 1.

    Args:
        offsets: [experts + 1]: where each expert's rows begin, and the end.
        row_of_entry: [T, top_k]: -1 if it was dropped (expanded_idx_to_permuted_idx).
        entry_of_row: [rows]: -1 in padding and behind the last row (permuted_idx_to_expanded_idx).
        token_of_row: [rows]: the token of a row's entry, or -1.
        expert_of_tile: [tiles]: -1 behind the last one (tile_idx_to_expert_idx).
        row_limit_of_tile: [tiles]: the row behind the tile's last entry, 0 behind the last tile
            (tile_idx_to_mn_limit).
        padded_rows: [1]: of all experts (total_num_padded_tokens).
        tiles: [1]: how many there are (num_non_exiting_tiles).

    >>> import numpy as np, blockscale
    >>> entries = blockscale.moe_sort(np.array([[2], [0], [2]], np.int32), 3, tile=8)
    >>> entries.expert_of_tile.tolist(), entries.row_limit_of_tile.tolist()
    ([0, 2, -1], [1, 10, 0])
    """

    offsets: Any
    row_of_entry: Any
    entry_of_row: Any
    token_of_row: Any
    expert_of_tile: Any
    row_limit_of_tile: Any
    padded_rows: Any
    tiles: Any


def moe_sort(
    ids: Any,
    experts: int,
    *,
    local_expert_offset: int = 0,
    expert_map: Any = None,
    tile: int = 1,
    threads: int = 0,
) -> SortedEntries:
    """Sorts entries of a routing by expert; those of one expert stay in their order. With `tile`
    above 1 each expert's rows are padded to whole tiles: TensorRT-LLM's moe_sort.

    Args:
        ids: int32 [T, top_k], the experts of each token; at most 2^20 tokens and 16 of them each.
            An entry whose id names no expert that is here is dropped: -1, say. May repeat.
        experts: how many are here, 1 to 1,024.
        local_expert_offset: id of the first one.
        expert_map: int32 [ids]: id i is read as expert_map[i], where experts lie elsewhere than
            their numbers say; every other id is dropped. None: ids are as they are.
        tile: rows of a tile: 1 (no padding), or 8 to 256.
        threads: 0 for all of the machine's.

    Returns:
        SortedEntries, arrays of int32 in the library of `ids`: offsets, row_of_entry, entry_of_row
        and token_of_row; with tiles expert_of_tile, row_limit_of_tile, padded_rows and tiles too.
        On a CUDA device all numbers stay there, so that sizes are those of the worst case: rows =
        T * top_k, with tiles the most that padding can make of it; tiles = rows / tile.

    Raises:
        TypeError, ValueError: as for `route`.

    >>> import numpy as np, blockscale
    >>> ids = np.array([[2, 0], [2, -1], [0, 1]], np.int32)
    >>> entries = blockscale.moe_sort(ids, 3)
    >>> entries.offsets.tolist(), entries.token_of_row.tolist()
    ([0, 2, 3, 5], [0, 2, 2, 0, 1, -1])
    """
    array, place = _ids(ids)
    experts, tile = count(experts, "experts"), count(tile, "tile")
    tokens, top_k = array.shape
    rows = _native.moe_sort_rows(tokens, top_k, experts, tile)
    shapes: list[tuple[int, ...] | None] = [(experts + 1,), (tokens, top_k), (rows,), (rows,)]
    shapes += [None] * 4 if tile == 1 else [(rows // tile,)] * 2 + [(1,)] * 2
    results = tuple(s if s is None else new_numbers(s, "int32", place) for s in shapes)
    offset = count(local_expert_offset, "local_expert_offset")
    mapped = _expert_map(expert_map, place, "ids")
    options = (experts, offset, tile, count(threads, "threads"), mapped)
    run(place, _native.moe_sort, array, results, options)
    return SortedEntries(*(r if r is None else to_library(r, None, place) for r in results))


def moe(
    x: Any,
    w13: Any,
    w2: Any,
    ids: Any,
    weights: Any,
    *,
    activation: str | None = "swiglu",
    gate_first: bool = True,
    interleave: int = 0,
    limit: float | None = None,
    alpha: float = 1.0,
    up_shift: float = 0.0,
    activations: Recipe | str | None = None,
    expert_alphas: tuple[Any, Any] | None = None,
    biases: tuple[Any, Any] | None = None,
    local_expert_offset: int = 0,
    expert_map: Any = None,
    all_experts: int = 0,
    weights_on_input: bool = False,
    shared: tuple[Any, Any] | None = None,
    residual: Any = None,
    out: Any = None,
    deterministic: bool = True,
    batch_invariant: bool = False,
    workspace_limit: int = WORKSPACE_LIMIT,
    threads: int = 0,
) -> Any:
    """A mixture-of-experts layer in one call: for each token t, residual[t] + the sum over j of
    weights[t, j] * expert(ids[t, j])(x[t]), where an expert is

        activation(x w13^T * alpha + bias) w2^T * alpha + bias

    Args:
        x: [T, H], an array of f32, f16 or bf16, or a ScaledTensor in a recipe that `gemm` pairs
            with the weights'; at most 2^20 tokens. Everything else lies where `x` does. On a CUDA
            device nothing is read back, and the work is queued on that library's current stream.
        w13: [E, 2 I, H], gates and ups (without SwiGLU [E, I, H]); a ScaledTensor or an array. Or
            [2 E, I, H]: gates and ups of each expert apart, one matrix behind the other with scales
            of its own, for an I that no block of scales divides.
        w2: [E, H, I], likewise.
        ids: int32 [T, top_k], experts of each token, at most 16. What names no expert that is here
            is dropped, -1, say: a token without one has the residual, or 0.
        weights: float32 [T, top_k]; None: 1.
        activation: "swiglu", "silu", "gelu_tanh", "gelu_erf", or None.
        gate_first: SwiGLU: whether gates come first in w13, or ups.
        interleave: SwiGLU: 0 if gates and ups are two halves; 1 or 64 if so many rows of each
            alternate.
        limit, alpha, up_shift: SwiGLU: as `Swiglu` has them. gpt-oss: interleave=1, limit=7,
            alpha=1.702, up_shift=1.
        activations: what x, if it is plain, and the first product's result are quantized to:
            "fp8_1x128", "fp8_1x128_pow2", "fp8_1x128_ue8m0", "fp8_row" or "mxfp8_e4m3"; or "bf16":
            x is taken as it is. None: fp8_1x128 where both weights are FP8, else bf16.
        expert_alphas: a pair of float32 [E], or None, for w13 and w2.
        biases: a pair of [E, 2 I] (without SwiGLU [E, I]) and [E, H] of f32, f16 or bf16, both
            of one dtype, or None.
        local_expert_offset: id of the first expert.
        expert_map: as for `moe_sort`.
        all_experts: experts that ids are spread over, here and on other devices; for the choice of
            tiles on a CUDA device, right whatever it is. 0: those that are here.
        weights_on_input: Llama 4's form: the sum over j of expert(weights[t, j] * x[t]). `x` is an
            array then, and the product is rounded to its dtype before it is quantized.
        shared: a pair (w13, w2), [S, 2 I', H] and [S, H, I'], of shared experts in tensors of their
            own: every token goes to each of the S, 1 to 16, with weight 1. They have the same
            activation, and neither alphas nor biases.
        residual: [T, H] of the result's dtype; may be `out`.
        out: write here; [T, H] of f32, f16 or bf16.
        deterministic: False: on a CUDA device rows of experts may be added to the result as they
            come, each and each sum rounded to its dtype: other bits from run to run, and no
            [T * top_k, H] rows in memory. Done where it is faster: 64 entries or more an expert, I
            of 512 or more, rows of the result that begin and end at multiples of 16 bytes or are
            float32. Not with `batch_invariant`.
        batch_invariant: a token's bits depend neither on T nor on the other tokens. May cost time.
        workspace_limit: tokens go through the layer in parts that need no more bytes than this, of
            at least 128 tokens. On the CPU, and with `shared`, bits may depend on it without
            `batch_invariant`.
        threads: 0 for all of the machine's.

    Returns:
        An array [T, H] in `x`'s library, of its dtype (of a ScaledTensor bf16), or `out`.

    Raises:
        TypeError: an argument of the wrong kind or dtype.
        ValueError: shapes, strides, devices or a pair of recipes that are not allowed; `out` that
            is read-only or shares memory with an input. Nothing was written then.

    >>> import numpy as np, blockscale
    >>> w13 = blockscale.quantize(np.ones((2, 256, 128), np.float32), "fp8_128x128")
    >>> w2 = blockscale.quantize(np.ones((2, 128, 128), np.float32), "fp8_128x128")
    >>> x, ids = np.full((3, 128), 1 / 128, np.float32), np.array([[0], [1], [-1]], np.int32)
    >>> blockscale.moe(x, w13, w2, ids, None)[:, 0].tolist()  # silu(1) * 128, in bf16
    [93.5, 93.5, 0.0]
    """
    fused = lower_activation(activation, gate_first, interleave, (limit, alpha, up_shift))
    recipe = None if activations is None else traits_of(activations, "activations").recipe
    if out is not None:
        given = (
            *(fused, recipe, *_pair(expert_alphas, "expert_alphas"), *_pair(biases, "biases")),
            *(local_expert_offset, residual, workspace_limit, threads, expert_map, all_experts),
            *(batch_invariant, weights_on_input, shared, deterministic),
        )
        if _native.moe((x, w13, w2), (ids, weights), out, given, None):
            return out
    left, left_shape, left_format, place = _operand(x, "x")
    up, up_shape, _, up_place = _operand(w13, "w13")
    down, down_shape, _, down_place = _operand(w2, "w2")
    require_place(up_place, place, "w13")
    require_place(down_place, place, "w2")
    _require_dimensions("x", left_shape, ("T", "H"))
    _require_dimensions("w13", up_shape, ("E", "2 I" if activation == "swiglu" else "I", "H"))
    _require_dimensions("w2", down_shape, ("E", "H", "I"))
    beside = _shared(shared, activation == "swiglu", place)
    routes = _routes(ids, weights, left_shape[0], place)
    options = (
        fused,
        recipe,
        *_pair_of_alphas(expert_alphas, place),
        *_pair_of_biases(biases, place),
        count(local_expert_offset, "local_expert_offset"),
        None if residual is None else _beside(residual, "residual", place, "x"),
        count(workspace_limit, "workspace_limit", 2**57),
        count(threads, "threads"),
        _expert_map(expert_map, place, "x"),
        count(all_experts, "all_experts", 2**57),
        bool(batch_invariant),
        bool(weights_on_input),
        beside,
        bool(deterministic),
    )
    shape = (left_shape[0], down_shape[1])
    dtype = left_format or Format.bf16
    result, array, fmt = _output(out, shape, dtype, place, asked="out")
    run(place, _native.moe, (left, up, down), routes, (array, fmt), options)
    return to_library(array, fmt, place) if result is None else result


def _expert_map(expert_map: Any, place: Place, beside: str) -> Any:
    return None if expert_map is None else numbers(expert_map, "expert_map", "int32", place, beside)


_USUAL = (None, 1.0, 0.0)


def lower_activation(
    activation: Any, gate_first: bool, interleave: int, swiglu: tuple[Any, Any, Any] = _USUAL
) -> Lowered | None:
    """What comes between the products, in the native module's form; `swiglu` are its limit, alpha
    and shift.

    Raises:
        TypeError, ValueError: as `moe` does.
    """
    if activation is not None and not isinstance(activation, str):
        raise TypeError(f"activation: is {_kind(activation)}, must be a name or None")
    columns = count(interleave, "interleave")
    if columns not in _INTERLEAVES:
        raise ValueError(f"interleave: is {columns}, must be 0, 1 or 64")
    if activation == "swiglu":
        order = "gate_first" if gate_first else "up_first"
        return lower_swiglu(order, columns or None, *swiglu)
    if activation is not None and activation not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise ValueError(f"activation: is {activation!r}, must be {known} or None")
    if columns or not gate_first or swiglu != _USUAL:
        given = dict(zip(("limit", "alpha", "up_shift"), swiglu, strict=True))
        unusual = [n for (n, x), usual in zip(given.items(), _USUAL, strict=True) if x != usual]
        argument = "interleave" if columns else "gate_first" if not gate_first else unusual[0]
        raise ValueError(f"{argument}: is given, goes with swiglu alone")
    return None if activation is None else lower(activation, "numpy")


def _ids(ids: Any, place: Place | None = None) -> tuple[Any, Place]:
    array, its_place = numbers_anywhere(ids, "ids", "int32")
    if place is not None:
        require_place(its_place, place, "ids")
    _require_dimensions("ids", array.shape, ("T", "top_k"))
    return array, its_place


def _routes(ids: Any, weights: Any, tokens: int, place: Place) -> tuple[Any, Any]:
    """ids and weights of so many tokens, for the native module."""
    chosen, _ = _ids(ids, place)
    shape = tuple(chosen.shape)
    if shape[0] != tokens:
        raise ValueError(f"ids: shape is {shape}, must be ({tokens}, top_k), a row for each of x")
    if weights is None:
        return chosen, None
    theirs = numbers(weights, "weights", "float32", place, "x")
    if tuple(theirs.shape) != shape:
        raise ValueError(f"weights: shape is {tuple(theirs.shape)}, must be {shape}, that of ids")
    return chosen, theirs


def _pair(given: Any, argument: str) -> tuple[Any, Any]:
    if given is None:
        return None, None
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise TypeError(f"{argument}: is {_kind(given)}, must be a pair: of w13 and of w2")
    return given[0], given[1]


def _shared(shared: Any, is_gated: bool, place: Place) -> tuple[Any, Any] | None:
    """Weights of shared experts, for the native module."""
    if shared is None:
        return None
    names = (("S", "2 I" if is_gated else "I", "H"), ("S", "H", "I"))
    operands = []
    for i, weights in enumerate(_pair(shared, "shared")):
        operand, shape, _, its_place = _operand(weights, f"shared[{i}]")
        require_place(its_place, place, f"shared[{i}]")
        _require_dimensions(f"shared[{i}]", shape, names[i])
        operands.append(operand)
    return operands[0], operands[1]


def _kind(given: Any) -> str:
    """What it is, without its elements."""
    name = type(given).__name__
    return f"a {name} of {len(given)}" if isinstance(given, (tuple, list)) else f"a {name}"


def _pair_of_alphas(expert_alphas: Any, place: Place) -> tuple[Any, Any]:
    first, second = (
        None if x is None else numbers(x, f"expert_alphas[{i}]", "float32", place, "x")
        for i, x in enumerate(_pair(expert_alphas, "expert_alphas"))
    )
    return first, second


def _pair_of_biases(biases: Any, place: Place) -> tuple[Any, Any]:
    first, second = (
        None if x is None else _beside(x, f"biases[{i}]", place, "x")
        for i, x in enumerate(_pair(biases, "biases"))
    )
    if first is not None and second is not None and first[1] != second[1]:
        raise TypeError(
            f"biases[1]: has dtype {second[1].name}, must be {first[1].name} like biases[0]"
        )
    return first, second
