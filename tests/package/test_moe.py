"""A mixture-of-experts layer on the CPU against one in float64: every option, and what bad input
gets."""

from __future__ import annotations

import math
import re
from typing import Any

import blockscale
import ml_dtypes
import numpy as np
import pytest
from routes import ROUTINGS, TOKENS, E, normal, routes

BF16 = ml_dtypes.bfloat16
H, I = 160, 96  # noqa: E741 (as the header calls it)
LARGEST_ERROR = 0.006  # of the layer, in L2


# --- the layer in float64 -------------------------------------------------------------------------


def values(x: Any) -> np.ndarray:
    return (blockscale.dequantize(x) if isinstance(x, blockscale.ScaledTensor) else x).astype(float)


def requantized(x: np.ndarray, recipe: str) -> np.ndarray:
    """What becomes of numbers that are stored so."""
    numbers = x.astype(np.float32)
    return values(
        numbers.astype(BF16) if recipe == "bf16" else blockscale.quantize(numbers, recipe)
    )


def activated(
    h: np.ndarray,
    activation: str | None,
    gate_first: bool,
    interleave: int,
    limit: float | None = None,
    alpha: float = 1.0,
    up_shift: float = 0.0,
) -> Any:
    if activation is None:
        return h
    if activation == "gelu_tanh":
        inner = math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)
        return 0.5 * h * (1 + np.tanh(inner))
    if activation == "gelu_erf":
        return 0.5 * h * (1 + np.vectorize(math.erf)(h / math.sqrt(2)))
    if activation == "silu":
        return h / (1 + np.exp(-h))
    size = interleave or h.shape[-1] // 2
    halves = h.reshape(len(h), -1, 2, size)
    first, second = (halves[:, :, i].reshape(len(h), -1) for i in (0, 1))
    gate, up = (first, second) if gate_first else (second, first)
    if limit is not None:
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return gate / (1 + np.exp(-alpha * gate)) * (up + up_shift)


def layer(
    x: Any,
    w13: Any,
    w2: Any,
    ids: np.ndarray,
    weights: np.ndarray | None,
    *,
    activation: str | None = "swiglu",
    gate_first: bool = True,
    interleave: int = 0,
    activations: str = "fp8_1x128",
    expert_alphas: Any = None,
    biases: Any = None,
    local_expert_offset: int = 0,
    residual: Any = None,
    weights_on_input: bool = False,
    shared: Any = None,
    **swiglu: Any,
) -> np.ndarray:
    """`moe`, an entry at a time."""
    down = values(w2)
    up = values(w13).reshape(len(down), -1, down.shape[1])  # gates and ups that are apart, too
    is_taken = isinstance(x, blockscale.ScaledTensor) or activations == "bf16"
    tokens = values(x)
    alphas = [np.ones(len(down)) if a is None else a for a in expert_alphas or (None, None)]
    added = [np.zeros((len(down), 1)) if b is None else values(b) for b in biases or (None, None)]
    y = np.zeros((len(tokens), down.shape[1])) if residual is None else values(residual)
    for w13_of_all, w2_of_all in zip(*map(values, shared or ()), strict=True):
        h = (tokens if is_taken else requantized(tokens, activations)) @ w13_of_all.T
        h = requantized(activated(h, activation, gate_first, interleave, **swiglu), activations)
        y = y + h @ w2_of_all.T
    for t, j in np.ndindex(*ids.shape):
        e = ids[t, j] - local_expert_offset
        if not 0 <= e < len(down):
            continue
        weight = 1.0 if weights is None else float(weights[t, j])
        row = tokens[t : t + 1]
        if weights_on_input:
            row, weight = (weight * row).astype(np.float32).astype(x.dtype), 1.0
        row = values(row) if is_taken else requantized(row, activations)
        h = alphas[0][e] * (row @ up[e].T) + added[0][e]
        h = requantized(activated(h, activation, gate_first, interleave, **swiglu), activations)
        row = alphas[1][e] * (h @ down[e].T) + added[1][e]
        y[t] += weight * row[0]
    return y


def assert_close(y: Any, want: np.ndarray) -> None:
    assert y.shape == want.shape and np.linalg.norm(want) > 0
    error = np.linalg.norm(values(y) - want) / np.linalg.norm(want)
    assert error <= LARGEST_ERROR, error


def weights_of(
    recipe: str = "fp8_128x128", *, apart: bool = False, inner: int = I, gated: bool = True
) -> tuple[Any, Any]:
    rows = 2 * inner if gated else inner
    w13 = normal(E, rows, H, seed=1) / math.sqrt(H)
    w2 = normal(E, H, inner, seed=2) / math.sqrt(inner)
    if apart:
        w13 = w13.reshape(2 * E, inner, H)
    if recipe == "bf16":
        return w13.astype(BF16), w2.astype(BF16)
    if recipe == "nvfp4" and apart:  # whose gates and ups share a tensor scale
        up = blockscale.quantize(w13, recipe, tensor_scale=500.0)
        shared = blockscale.ScaledTensor(up.values, up.scales, recipe, tensor_scale=500.0)
        return shared, blockscale.quantize(w2, recipe)
    return blockscale.quantize(w13, recipe), blockscale.quantize(w2, recipe)


@pytest.mark.parametrize("kind", ROUTINGS)
@pytest.mark.parametrize("offset", [0, 5])
@pytest.mark.parametrize("threads", [1, 2])
def test_routings(kind: str, offset: int, threads: int) -> None:
    x, (w13, w2), (ids, weights) = (
        normal(TOKENS, H).astype(BF16),
        weights_of(),
        routes(kind, offset),
    )
    y = blockscale.moe(x, w13, w2, ids, weights, local_expert_offset=offset, threads=threads)
    assert y.dtype == BF16
    assert_close(y, layer(x, w13, w2, ids, weights, local_expert_offset=offset))
    here = ((ids >= offset) & (ids < offset + E)).any(axis=1)
    assert (y[~here] == 0).all() and (y[here] != 0).any(axis=1).all()


@pytest.mark.parametrize(("recipe", "activations"), [("fp8_128x128", None), ("mxfp4", "bf16")])
def test_swiglu_of_gpt_oss(recipe: str, activations: str | None) -> None:
    """Its layers: interleaved gates and ups with biases, clamped, and MXFP4 weights."""
    x, (w13, w2), (ids, weights) = normal(TOKENS, H).astype(BF16), weights_of(recipe), routes()
    biases = (4 * normal(E, 2 * I, seed=3), normal(E, H, seed=4))
    options = {"interleave": 1, "limit": 1.5, "alpha": 1.702, "up_shift": 1.0, "biases": biases}
    y = blockscale.moe(x, w13, w2, ids, weights, activations=activations, **options)
    want = layer(x, w13, w2, ids, weights, activations=activations or "fp8_1x128", **options)
    assert_close(y, want)
    with pytest.raises(ValueError, match="alpha: is given, goes with swiglu alone"):
        blockscale.moe(x, w13, w2, ids, weights, activation="gelu_tanh", alpha=2.0)
    options["limit"] = None  # which matters
    other = blockscale.moe(x, w13, w2, ids, weights, activations=activations, **options)
    assert np.linalg.norm(values(other) - want) > 0.02 * np.linalg.norm(want)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
@pytest.mark.parametrize("recipe", ["fp8_128x128", "bf16"])
def test_weights_on_the_input(dtype: type, recipe: str) -> None:
    x, (w13, w2), (ids, weights) = normal(TOKENS, H).astype(dtype), weights_of(recipe), routes()
    activations = "fp8_1x128" if recipe != "bf16" else "bf16"
    if recipe == "bf16" and dtype != BF16:
        w13, w2 = (w.astype(dtype) for w in (w13, w2))
    options = {"weights_on_input": True, "biases": (None, normal(E, H, seed=6))}
    y = blockscale.moe(x, w13, w2, ids, weights, **options)
    want = layer(x, w13, w2, ids, weights, activations=activations, **options)
    assert_close(y, want)
    behind = layer(x, w13, w2, ids, weights, activations=activations, biases=options["biases"])
    assert np.linalg.norm(behind - want) > 0.1 * np.linalg.norm(want)
    # Of one expert each, whose weight is a power of two: exactly those rows.
    one, half = ids[:, :1].copy(), np.full((TOKENS, 1), 0.5, np.float32)
    y = blockscale.moe(x, w13, w2, one, half, **options)
    assert np.array_equal(y, blockscale.moe(x * dtype(0.5), w13, w2, one, None, **options))


def shared_of(recipe: str, experts: int, inner: int) -> tuple[Any, Any]:
    w13 = normal(experts, 2 * inner, H, seed=8) / math.sqrt(H)
    w2 = normal(experts, H, inner, seed=9) / math.sqrt(inner)
    if recipe == "bf16":
        return w13.astype(BF16), w2.astype(BF16)
    return blockscale.quantize(w13, recipe), blockscale.quantize(w2, recipe)


@pytest.mark.parametrize("recipe", ["fp8_128x128", "bf16", "nvfp4"])
@pytest.mark.parametrize("experts", [1, 2])
def test_shared_experts(recipe: str, experts: int) -> None:
    x, (w13, w2), (ids, weights) = normal(TOKENS, H).astype(BF16), weights_of(recipe), routes()
    options: dict[str, Any] = {"shared": shared_of(recipe, experts, 64)}
    activations = "fp8_1x128" if recipe.startswith("fp8") else "bf16"
    for more in (
        {},
        {"weights_on_input": True, "residual": normal(TOKENS, H, seed=7).astype(BF16)},
    ):
        y = blockscale.moe(x, w13, w2, ids, weights, **options, **more)
        want = layer(x, w13, w2, ids, weights, activations=activations, **options, **more)
        assert_close(y, want)
        alone = layer(x, w13, w2, ids, weights, activations=activations, **more)
        assert np.linalg.norm(alone - want) > 0.1 * np.linalg.norm(want)
    # Of recipes of their own, which pair with the activations.
    options["shared"] = shared_of("fp8_row" if activations != "bf16" else "mxfp8_e4m3", experts, 96)
    y = blockscale.moe(x, w13, w2, ids, weights, **options)
    assert_close(y, layer(x, w13, w2, ids, weights, activations=activations, **options))


def test_shared_experts_are_those_that_ride_along() -> None:
    x, (w13, w2), (ids, weights) = normal(TOKENS, H), weights_of(inner=128), routes()
    last = blockscale.ScaledTensor  # a batch of one, without a copy
    own = tuple(last(w.values[-1:], w.scales[-1:], w.recipe) for w in (w13, w2))
    others = tuple(last(w.values[:-1], w.scales[:-1], w.recipe) for w in (w13, w2))
    ids = np.where(ids == E - 1, -1, ids).astype(np.int32)
    y = blockscale.moe(x, *others, ids, weights, shared=own)
    riding = np.concatenate([np.full((TOKENS, 1), E - 1, np.int32), ids], axis=1)
    ones = np.concatenate([np.ones((TOKENS, 1), np.float32), weights], axis=1)
    assert np.array_equal(y, blockscale.moe(x, w13, w2, riding, ones))


def test_experts_elsewhere_and_by_a_map() -> None:
    x, (w13, w2), (ids, weights) = normal(TOKENS, H).astype(BF16), weights_of(), routes()
    y = blockscale.moe(x, w13, w2, ids, weights)
    assert (blockscale.moe(x, w13, w2, ids, weights, all_experts=64) == y).all()
    # The same experts by other numbers; what the map does not name is dropped.
    places = np.arange(E, dtype=np.int32)[::-1].copy()
    elsewhere = np.where(ids >= 0, E - 1 - ids, ids).astype(np.int32)
    assert (blockscale.moe(x, w13, w2, elsewhere, weights, expert_map=places) == y).all()
    none = blockscale.moe(x, w13, w2, elsewhere + E, weights, expert_map=places)
    assert (none == 0).all()


@pytest.mark.parametrize("invariant", [True, False])
def test_batch_invariant(invariant: bool) -> None:
    tokens, hidden = 150, 512
    x = normal(tokens, hidden)
    up, down = normal(E, 2 * hidden, hidden, seed=1), normal(E, hidden, hidden, seed=2)
    w13, w2 = (blockscale.quantize(w / math.sqrt(hidden), "nvfp4") for w in (up, down))
    ids, weights = routes(tokens=tokens)
    options = {"batch_invariant": invariant}
    whole = blockscale.moe(x, w13, w2, ids, weights, **options)
    ones = [slice(t, t + 1) for t in range(tokens)]
    alone = [blockscale.moe(x[t], w13, w2, ids[t], weights[t], **options) for t in ones]
    assert (np.concatenate(alone) == whole).all() == invariant


def test_any_order_is_the_order_of_choices_on_the_cpu() -> None:
    tokens, hidden = 150, 512
    w13 = blockscale.quantize(normal(E, 2 * hidden, hidden, seed=1), "fp8_128x128")
    w2 = blockscale.quantize(normal(E, hidden, hidden, seed=2), "fp8_128x128")
    call = (normal(tokens, hidden), w13, w2, *routes(tokens=tokens))
    y = blockscale.moe(*call, deterministic=False)
    assert (y == blockscale.moe(*call)).all()
    with pytest.raises(ValueError, match="deterministic: is false, must be true with"):
        blockscale.moe(*call, deterministic=False, batch_invariant=True)


#: Of weights, and what activations become: None is the default, and what that then is.
RECIPES = [
    ("fp8_128x128", None, "fp8_1x128"),
    ("fp8_1x128", None, "fp8_1x128"),
    ("fp8_row", "fp8_1x128", "fp8_1x128"),
    ("bf16", None, "bf16"),
    ("nvfp4", None, "bf16"),
    ("mxfp4", "bf16", "bf16"),
    ("mxfp4", "mxfp8_e4m3", "mxfp8_e4m3"),
    ("mxfp8_e4m3", None, "bf16"),
    ("mxfp8_e4m3", "mxfp8_e4m3", "mxfp8_e4m3"),
]


@pytest.mark.parametrize(("recipe", "given", "activations"), RECIPES)
def test_recipes(recipe: str, given: str | None, activations: str) -> None:
    x, (ids, weights) = normal(TOKENS, H).astype(BF16), routes()
    w13, w2 = weights_of(recipe)
    y = blockscale.moe(x, w13, w2, ids, weights, activations=given)
    assert_close(y, layer(x, w13, w2, ids, weights, activations=activations))


def test_bf16_activations_of_fp8_weights() -> None:
    x, (w13, w2), (ids, weights) = normal(TOKENS, H).astype(BF16), weights_of(), routes()
    y = blockscale.moe(x, w13, w2, ids, weights, activations=blockscale.Recipe.bf16)
    want = layer(x, w13, w2, ids, weights, activations="bf16")
    assert_close(y, want)
    quantized = values(blockscale.moe(x, w13, w2, ids, weights))
    assert np.linalg.norm(quantized - want) > 0.01 * np.linalg.norm(want)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
def test_results_have_the_dtype_of_x(dtype: type) -> None:
    x, (w13, w2), (ids, weights) = normal(TOKENS, H).astype(dtype), weights_of(), routes()
    y = blockscale.moe(x, w13, w2, ids, weights)
    assert y.dtype == dtype
    assert_close(y, layer(x, w13, w2, ids, weights))


def test_x_that_is_quantized() -> None:
    x, (w13, w2), (ids, weights) = normal(TOKENS, H), weights_of(), routes()
    quantized = blockscale.quantize(x, "fp8_1x128", layout="mn_major")
    y = blockscale.moe(quantized, w13, w2, ids, weights)
    assert y.dtype == BF16
    assert_close(y, layer(quantized, w13, w2, ids, weights))
    out = np.full((TOKENS, H), np.nan, np.float32)
    assert blockscale.moe(quantized, w13, w2, ids, weights, out=out) is out
    assert np.array_equal(out.astype(BF16), y)


@pytest.mark.parametrize(
    "options",
    [
        {"gate_first": False},
        {"interleave": 1},
        {"interleave": 64, "gate_first": False},
        {"activation": "gelu_tanh"},
        {"activation": "gelu_erf"},
        {"activation": "silu"},
        {"activation": None},
    ],
    ids=str,
)
@pytest.mark.parametrize("recipe", ["fp8_128x128", "bf16"])
def test_activations(options: dict[str, Any], recipe: str) -> None:
    x, (ids, weights) = normal(TOKENS, H).astype(BF16), routes()
    gated = options.get("activation", "swiglu") == "swiglu"
    w13, w2 = weights_of(recipe, inner=128, gated=gated)
    y = blockscale.moe(x, w13, w2, ids, weights, **options)
    activations = "bf16" if recipe == "bf16" else "fp8_1x128"
    assert_close(y, layer(x, w13, w2, ids, weights, activations=activations, **options))


@pytest.mark.parametrize("recipe", ["fp8_128x128", "fp8_1x128", "bf16", "nvfp4"])
@pytest.mark.parametrize("inner", [80, 128])
def test_gates_apart(recipe: str, inner: int) -> None:
    """Of a shard whose I no block of 128 rows divides, too."""
    x, (ids, weights) = normal(TOKENS, H).astype(BF16), routes()
    w13, w2 = weights_of(recipe, apart=True, inner=inner)
    assert w13.shape == (2 * E, inner, H)
    activations = "fp8_1x128" if recipe.startswith("fp8") else "bf16"
    for gate_first in (True, False):
        y = blockscale.moe(x, w13, w2, ids, weights, gate_first=gate_first)
        options = {"activations": activations, "gate_first": gate_first}
        assert_close(y, layer(x, w13, w2, ids, weights, **options))


ALPHAS = (np.array([1, 0.5, -2, 4], np.float32), np.array([0.25, 1, 3, -1], np.float32))
BIASES = (normal(E, 2 * I, seed=5), normal(E, H, seed=6))


@pytest.mark.parametrize("which", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
def test_alphas_and_biases(which: tuple[bool, bool], dtype: type) -> None:
    x, (w13, w2), (ids, weights) = normal(TOKENS, H).astype(BF16), weights_of(), routes()
    options: dict[str, Any] = {
        "expert_alphas": [a if given else None for a, given in zip(ALPHAS, which, strict=True)],
        "biases": tuple(
            b.astype(dtype) if given else None for b, given in zip(BIASES, which, strict=True)
        ),
    }
    y = blockscale.moe(x, w13, w2, ids, weights, **options)
    assert_close(y, layer(x, w13, w2, ids, weights, **options))


def test_residuals_and_results_in_place() -> None:
    x, (w13, w2), (ids, weights) = normal(TOKENS, H), weights_of(), routes("half dropped")
    residual = 10 * normal(TOKENS, H, seed=7)
    want = layer(x, w13, w2, ids, weights, residual=residual)
    y = blockscale.moe(x, w13, w2, ids, weights, residual=residual)
    assert_close(y, want)
    dropped = ((ids < 0) | (ids >= E)).all(axis=1)
    assert dropped.any() and np.array_equal(y[dropped], residual[dropped])
    out = np.full((TOKENS, H + 3), 7, np.float32)[:, :H]  # with a stride
    assert blockscale.moe(x, w13, w2, ids, weights, residual=residual, out=out) is out
    assert np.array_equal(out, y) and (out.base[:, H:] == 7).all()
    assert blockscale.moe(x, w13, w2, ids, weights, residual=residual, out=residual) is residual
    assert np.array_equal(residual, y)


def test_weights_that_are_not_given_are_one() -> None:
    x, (w13, w2), (ids, weights) = normal(TOKENS, H).astype(BF16), weights_of(), routes()
    y = blockscale.moe(x, w13, w2, ids, None)
    assert np.array_equal(y, blockscale.moe(x, w13, w2, ids, np.ones_like(weights)))


def test_nothing_to_do() -> None:
    w13, w2 = weights_of()
    ids, weights = routes(tokens=0)
    x = np.zeros((0, H), np.float32)
    assert blockscale.moe(x, w13, w2, ids, weights).shape == (0, H)
    ids, weights = routes("none here")
    x = normal(TOKENS, H)
    assert (blockscale.moe(x, w13, w2, ids, weights) == 0).all()
    assert np.array_equal(blockscale.moe(x, w13, w2, ids, weights, residual=x), x)


def test_parts_have_the_bits_of_the_whole() -> None:
    tokens = 300
    x, (w13, w2), (ids, weights) = normal(tokens, H), weights_of(), routes(tokens=tokens)
    y = blockscale.moe(x, w13, w2, ids, weights)
    assert np.array_equal(blockscale.moe(x, w13, w2, ids, weights, workspace_limit=1), y)


def test_torch_in_torch_out() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")
    x, (w13, w2), (ids, weights) = normal(TOKENS, H), weights_of("bf16"), routes()
    given = [torch.from_numpy(a) for a in (x, ids, weights)]
    w = [torch.from_numpy(a.view(np.uint16)).view(torch.bfloat16) for a in (w13, w2)]
    y = blockscale.moe(given[0], *w, *given[1:])
    want = blockscale.moe(x, w13, w2, ids, weights)
    assert torch.equal(y, torch.from_numpy(want))
    with pytest.raises(TypeError, match=r"ids: .* must be int32; convert it with \.to\(torch\.int"):
        blockscale.moe(given[0], *w, given[1].long(), given[2])
    entries = blockscale.moe_sort(given[1], E, tile=8)
    assert all(part.dtype == torch.int32 for part in entries)
    assert [len(p) for p in blockscale.route(given[0], 2)] == [TOKENS, TOKENS]


# --- what the layer refuses -----------------------------------------------------------------------

X, IDS, WEIGHTS = np.ones((5, 64), np.float32), np.zeros((5, 2), np.int32), np.ones((5, 2), "f4")
W13, W2 = np.ones((4, 96, 64), np.float32), np.ones((4, 64, 48), np.float32)
GIVEN = {"x": X, "w13": W13, "w2": W2, "ids": IDS, "weights": WEIGHTS}


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"x": [1.0]}, TypeError, "x: is a list, must be an array"),
        ({"x": X[None]}, ValueError, "x: shape is (1, 5, 64), must be (T, H)"),
        ({"x": X[:, :32]}, ValueError, "w2.rows: is 64, must be 32, the k of x"),
        ({"x": X.astype(float)}, TypeError, "x: has dtype float64"),
        ({"w13": W13[0]}, ValueError, "w13: shape is (96, 64), must be (E, 2 I, H)"),
        ({"w13": W13[0], "activation": None}, ValueError,
         "w13: shape is (96, 64), must be (E, I, H)"),
        ({"w13": W13[:, :40]}, ValueError, "w13.rows: is 40, must be 96, twice the k of w2"),
        ({"w13": W13[:3]}, ValueError, "w13.batch: is 3, must be 4, the experts of w2"),
        ({"w13": W13[..., :32]}, ValueError, "w13.k: is 32, must be 64, the k of x"),
        ({"w2": W2[0]}, ValueError, "w2: shape is (64, 48), must be (E, H, I)"),
        ({"w2": W2[:0], "w13": W13[:0]}, ValueError, "w2.batch: is 0"),
        ({"ids": IDS.astype(np.int64)}, TypeError,
         'ids: has dtype int64, must be int32; convert it with .astype("int32")'),
        ({"ids": IDS[0]}, ValueError, "ids: shape is (2,), must be (T, top_k)"),
        ({"ids": IDS[:4]}, ValueError, "ids: shape is (4, 2), must be (5, top_k), a row for each"),
        ({"ids": np.zeros((5, 17), np.int32), "weights": None}, ValueError,
         "ids: is 17, must be in 1..16"),
        ({"ids": np.zeros((5, 4), np.int32)[:, ::2]}, ValueError,
         "ids: its elements must be contiguous; copy it first"),
        ({"weights": WEIGHTS.astype(float)}, TypeError, "weights: has dtype float64, must be flo"),
        ({"weights": WEIGHTS[:, :1]}, ValueError,
         "weights: shape is (5, 1), must be (5, 2), that of ids"),
        ({"activation": "relu"}, ValueError,
         "activation: is 'relu', must be swiglu, silu, gelu_tanh, gelu_erf or None"),
        ({"activation": blockscale.Swiglu()}, TypeError,
         "activation: is a Swiglu, must be a name or None"),
        ({"interleave": 7}, ValueError, "interleave: is 7, must be 0, 1 or 64"),
        ({"interleave": 64}, ValueError, "interleave: is 64, but the result has 48 columns"),
        ({"interleave": 1, "w13": W13.reshape(8, 48, 64)}, ValueError,
         "interleave: is 1, must be 0, as gates and ups are apart"),
        ({"interleave": 1, "activation": "gelu_erf"}, ValueError,
         "interleave: is given, goes with swiglu alone"),
        ({"gate_first": False, "activation": None}, ValueError,
         "gate_first: is given, goes with swiglu alone"),
        ({"activations": "nvfp4"}, ValueError, "activations: is nvfp4, must be one of bf16"),
        ({"activations": "int8"}, ValueError, "activations: is 'int8', must be one of"),
        ({"activations": "mxfp8_e4m3", "w13": blockscale.quantize(W13, "fp8_row")}, ValueError,
         "w2.k: is 48, must be a multiple of 32 for activations in mxfp8_e4m3"),
        ({"expert_alphas": np.ones(4, np.float32)}, TypeError,
         "expert_alphas: is a ndarray, must be a pair: of w13 and of w2"),
        ({"expert_alphas": (None,)}, TypeError, "expert_alphas: is a tuple of 1, must be a pair"),
        ({"expert_alphas": (np.ones(4), None)}, TypeError,
         "expert_alphas[0]: has dtype float64, must be float32"),
        ({"expert_alphas": (None, np.ones(3, np.float32))}, ValueError,
         "expert_alphas[1]: has 3 elements, must have 4, one for each expert of w2"),
        ({"biases": 1}, TypeError, "biases: is a int, must be a pair"),
        ({"biases": (np.ones((4, 95), np.float32), None)}, ValueError,
         "biases[0]: must be (E, N) = (4, 96), the rows of w13 of an expert"),
        ({"biases": (None, np.ones((4, 48), np.float32))}, ValueError,
         "biases[1]: must be (E, H) = (4, 64), the rows of w2"),
        ({"biases": (np.ones((4, 96), np.float32), np.ones((4, 64), np.float16))}, TypeError,
         "biases[1]: has dtype f16, must be f32 like biases[0]"),
        ({"biases": (None, np.ones((4, 80), np.float32)[:, :64])}, ValueError,
         "biases[1]: must be contiguous"),
        ({"local_expert_offset": -1}, ValueError, "local_expert_offset: is -1"),
        ({"residual": X.astype(np.float16)}, ValueError,
         "residual.dtype: is f16, must be that of out, f32"),
        ({"residual": X[:4]}, ValueError, "residual.rows: is 4, must be 5, the rows of out"),
        ({"out": X[:4].copy()}, ValueError, "out: shape is (4, 64), must be (5, 64)"),
        ({"out": X}, ValueError, "out: overlaps x.values, must not share memory with it"),
        ({"out": WEIGHTS}, ValueError, "out: shape is (5, 2)"),
        ({"out": np.broadcast_to(np.float32(1), (5, 64))}, ValueError, "out: is read-only"),
        ({"x": blockscale.quantize(X, "fp8_1x128"), "weights_on_input": True}, ValueError,
         "x.recipe: is fp8_1x128, must be f32, f16 or bf16 where weights are on the input"),
        ({"shared": W13}, TypeError, "shared: is a ndarray, must be a pair: of w13 and of w2"),
        ({"shared": (W13, None)}, TypeError, "shared[1]: is a NoneType, must be an array"),
        ({"shared": (W13[0], W2)}, ValueError,
         "shared[0]: shape is (96, 64), must be (S, 2 I, H)"),
        ({"shared": (W13, W2[:2])}, ValueError,
         "shared[0].batch: is 4, must be 2, the experts of shared[1]"),
        ({"shared": (W13[..., :32], W2)}, ValueError, "shared[0].k: is 32, must be 64, the k of x"),
        ({"shared": (W13, W2[..., :32])}, ValueError,
         "shared[0].rows: is 96, must be 64, twice the k of shared[1]"),
        ({"shared": (blockscale.quantize(W13, "fp8_row"), W2), "activations": "bf16",
          "x": blockscale.quantize(X, "nvfp4"), "w13": blockscale.quantize(W13, "nvfp4")},
         ValueError, "shared[0].recipe: is fp8_row with x in nvfp4: no such pair"),
        ({"workspace_limit": 0}, ValueError, "workspace_limit: is 0, must be in 1..2^57"),
        ({"threads": -1}, ValueError, "threads: is -1"),
        ({"x": blockscale.quantize(X, "nvfp4")}, ValueError, "w13.recipe: is f32 with x in nvfp4"),
        ({"w13": blockscale.quantize(W13.reshape(8, 48, 64), "nvfp4")}, ValueError,
         "w13.tensor_scale_batch_stride: is 1, must be 0: gates and ups of an expert share"),
    ],
)  # fmt: skip
def test_what_is_refused(changes: dict[str, Any], kind: type[Exception], message: str) -> None:
    out = np.full((5, 64), 7, np.float32)
    for given in (GIVEN, GIVEN | {"out": out}):
        with pytest.raises(kind, match="^" + re.escape(message)):
            blockscale.moe(**(given | changes))
    assert (out == 7).all()


FP8_WEIGHTS = {
    name: blockscale.quantize(w, "fp8_128x128") for name, w in (("w13", W13), ("w2", W2))
}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weights": None, "activation": "gelu_erf", "w13": W13[:, :48]},
        {"interleave": 1, "limit": 7.0, "alpha": 1.702, "up_shift": 1.0},
        {"activations": "fp8_1x128", "local_expert_offset": 1, "batch_invariant": True}
        | FP8_WEIGHTS,
        {"biases": (np.ones((4, 96), np.float32), np.ones((4, 64), np.float32))},
        {"biases": (None, np.ones((4, 64), np.float16)), "residual": X},
        {"expert_alphas": (np.full(4, 2, np.float32), None)},
        {"expert_map": np.array([3, 2, 1, 0], np.int32)},
        {"x": blockscale.quantize(X, "fp8_1x128")} | FP8_WEIGHTS,
    ],
)
def test_calls_with_out_are_taken_as_they_are(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = GIVEN | options
    y = blockscale.moe(**given)
    monkeypatch.setattr(blockscale._moe, "_operand", None)  # nothing is looked at in Python
    out = np.full(y.shape, np.nan, y.dtype)
    assert blockscale.moe(**given, out=out) is out
    assert np.array_equal(out, y)


def test_residuals_that_overlap_the_result() -> None:
    memory = np.ones((6, 64), np.float32)
    with pytest.raises(ValueError, match="^out: overlaps residual, must not share memory with it"):
        blockscale.moe(*GIVEN.values(), residual=memory[1:], out=memory[:5])
    assert (memory == 1).all()


# --- plans ----------------------------------------------------------------------------------------


def test_plans_of_a_gpu() -> None:
    text = blockscale.describe_moe(64, 7168, 2048, 32, 8, chip="H200")
    assert "32.0 experts are hit" in text and "all: at least " in text
    plan = text[: text.index("if every id")].splitlines()
    steps = ("moe_sort", "quantize_", "grouped_gemm_fp8_", "grouped_gemm_fp8_", "moe_finalize")
    kernels = [line for line in plan if not line.startswith("workspace")]
    assert len(kernels) == len(steps) and all(map(str.startswith, kernels, steps))
    plan = blockscale.describe_moe(
        9, 512, 256, 4, 2, w13="nvfp4", w2="mxfp4", activation="gelu_erf", chip="B200"
    )
    assert "quantize_" not in plan and plan.count("grouped_gemm_plain_") == 2

    def refuses(message: str, *sizes: int, **options: Any) -> None:
        with pytest.raises(ValueError, match="^" + re.escape(message)):
            blockscale.describe_moe(*sizes, **options)

    refuses("top_k: is 17", 9, 512, 256, 4, 17)
    refuses("tokens, hidden, inner, experts: matrices must", 2**30, 2**30, 256, 4, 2)
    refuses("activation: is 'relu'", 9, 512, 256, 4, 2, activation="relu")
    refuses("w2.recipe: is fp8_128x128 with activations in mxfp8_e4m3", 9, 512, 256, 4, 2,
            w13="mxfp4", activations="mxfp8_e4m3")  # fmt: skip
    refuses("interleave: is 64, but the result has 96", 9, 512, 96, 4, 2, interleave=64)
