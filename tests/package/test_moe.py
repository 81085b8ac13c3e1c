"""A mixture-of-experts layer on the CPU against one in float64: every option."""

from __future__ import annotations

import math
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
    ("mxfp4", "fp8_row", "fp8_row"),
    ("fp8_row", "fp8_row", "fp8_row"),
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
