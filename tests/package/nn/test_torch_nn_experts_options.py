"""blockscale.nn.Experts on one of several devices, with shared experts, and with bits that no other
token changes; `./dev test --torch` runs these."""

from __future__ import annotations

import copy
from typing import Any

import blockscale
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")

import blockscale.nn  # noqa: E402
from blockscale.nn import Experts  # noqa: E402
from nn_experts import E, H, I, normal, routes  # noqa: E402
from nn_model import same  # noqa: E402

ALL, TOP_K = 8, 3  # experts of the model, and of a token


def pair(recipe: str, experts: int = E, inner: int = I, seed: int = 1, **options: Any) -> Any:
    w13 = normal(experts, 2 * inner, H, seed=seed) / H**0.5
    w2 = normal(experts, H, inner, seed=seed + 1) / inner**0.5
    return tuple(blockscale.quantize(w, recipe, **options) for w in (w13, w2))


def inputs(tokens: int = 9) -> tuple[Any, Any, Any]:
    return normal(tokens, H, seed=5), *routes(tokens, experts=ALL, top_k=TOP_K)


def options_of(kind: str, recipe: str) -> dict[str, Any]:
    last = torch.tensor([-1, 3, 3, 0, -1, 9, 2, 1], dtype=torch.int32)
    every = {
        "offset": {"local_expert_offset": 4},
        "map": {"expert_map": last},
        "shared": {"shared": pair(recipe, 2, 128, seed=7)},
        "invariant": {"batch_invariant": True},
    }
    if kind == "all":
        return {name: x for k, given in every.items() if k != "offset" for name, x in given.items()}
    return every[kind]


@pytest.mark.parametrize("kind", ["offset", "map", "shared", "invariant", "all"])
@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp4", "fp8_tensor", "fp8_128x128"])
def test_results_are_those_of_moe(recipe: str, kind: str) -> None:
    options = options_of(kind, recipe)
    layer, (x, ids, weights) = Experts(*pair(recipe), **options), inputs()
    want = blockscale.moe(x, *pair(recipe), ids.int(), weights, **options)
    assert torch.equal(layer(x, ids, weights), want)
    without = Experts(*pair(recipe))(x, ids, weights)
    assert kind == "invariant" or not torch.equal(want, without)


@pytest.mark.parametrize("recipe", ["nvfp4", "fp8_128x128"])
def test_halves_of_the_experts_add_up(recipe: str) -> None:
    """As devices have them, each with the ids that the router gave."""
    whole, (x, ids, weights) = pair(recipe, ALL), inputs()
    halves = [
        Experts(whole[0][part], whole[1][part], local_expert_offset=first)
        for first, part in ((0, slice(0, E)), (E, slice(E, ALL)))
    ]
    want = Experts(*whole)(x, ids, weights)
    torch.testing.assert_close(sum(half(x, ids, weights) for half in halves), want)
    moved = torch.arange(ALL, dtype=torch.int32).roll(3)
    order = torch.argsort(moved)
    turned = [
        blockscale.quantize(w[order].contiguous(), recipe)
        for w in (blockscale.dequantize(each) for each in whole)
    ]
    layer = Experts(*turned, expert_map=moved)
    assert torch.equal(layer(x, ids, weights), Experts(*turned)(x, moved[ids], weights))


def test_shared_experts_of_another_size_are_experts_of_every_token() -> None:
    shared = pair("mxfp4", 2, 128, seed=7)
    layer, (x, ids, weights) = Experts(*pair("mxfp4"), shared=shared), inputs()
    every = torch.arange(2).expand(len(x), 2)
    beside = Experts(*shared)(x, every, torch.ones(len(x), 2))
    want = Experts(*pair("mxfp4"))(x, ids, weights) + beside
    torch.testing.assert_close(layer(x, ids, weights), want)
    none = layer(x, torch.full_like(ids, -1), weights)
    torch.testing.assert_close(none, beside)
    assert layer.nbytes == sum(w.nbytes for w in (layer.w13, layer.w2, *layer.shared))
    assert layer.shared[1].shape == (2, H, 128) and Experts(*shared).shared is None


@pytest.mark.parametrize("activations", ["bf16", "fp8_1x128"])
def test_bits_that_no_other_token_changes(activations: str) -> None:
    options = {"shared": pair("fp8_128x128", 1, 128, seed=7), "activations": activations}
    layer = Experts(*pair("fp8_128x128"), batch_invariant=True, **options)
    x, ids, weights = inputs(130)
    y = layer(x, ids, weights)
    for part in (slice(0, 1), slice(7, 8), slice(3, 40)):
        assert torch.equal(layer(x[part], ids[part], weights[part]), y[part])


@pytest.mark.parametrize(
    ("recipe", "dialect"),
    [("nvfp4", "compressed_tensors"), ("nvfp4", "modelopt"), ("fp8_128x128", "deepseek")],
)
def test_a_state_has_shared_experts_and_no_options(recipe: str, dialect: str) -> None:
    sense = {"sense": "multiplier"} if (recipe, dialect) == ("nvfp4", "modelopt") else {}
    layer, other = (
        Experts(
            *pair(recipe, seed=seed, **sense),
            shared=pair(recipe, 2, 128, seed=seed + 5, **sense),
            expert_map=torch.arange(ALL, dtype=torch.int32) - E,
            local_expert_offset=0,
            dialect=dialect,
        )
        for seed in (1, 3)
    )
    state, given = layer.state_dict(), inputs()
    usual = Experts(*pair(recipe, **sense), dialect=dialect).state_dict()
    assert state.keys() == {*usual, *("shared_" + name for name in usual)}
    assert not torch.equal(other(*given), layer(*given))
    other.load_state_dict(state)
    assert torch.equal(other(*given), layer(*given))
    with pytest.raises(RuntimeError, match='Unexpected key.*"expert_map"'):
        other.load_state_dict(state | {"expert_map": layer.expert_map})
    with pytest.raises(RuntimeError, match='Unexpected key.*"shared_gate_up_proj'):
        Experts(*pair(recipe, **sense), dialect=dialect).load_state_dict(state)


def test_casts_moves_and_copies() -> None:
    layer, given = Experts(*pair("mxfp4"), **options_of("all", "mxfp4")), inputs()
    want = layer(*given)
    buffers = {name: x.clone() for name, x in layer.named_buffers()}
    assert {"expert_map", "shared_w13_values", "shared_w2_scales"} <= buffers.keys()
    layer.half()
    assert all(same(x, buffers[name]) for name, x in layer.named_buffers())
    assert torch.equal(copy.deepcopy(layer)(*given), want)
    layer.to("meta")
    assert layer.expert_map.is_meta and layer.shared_w13_values.is_meta
    assert layer.expert_map.dtype == torch.int32


@pytest.mark.parametrize("kind", ["offset", "all"])
def test_compiles_as_one_graph(kind: str) -> None:
    layer = Experts(*pair("fp8_128x128"), **options_of(kind, "fp8_128x128"))
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for tokens in (4, 9, 17):
            given = inputs(tokens)
            assert torch.equal(compiled(*given), layer(*given))


def test_repr_says_the_options() -> None:
    options = options_of("all", "mxfp4") | {"local_expert_offset": 0}
    assert repr(Experts(*pair("mxfp4"), **options)).endswith(
        "bias=False, expert_map=8 ids, shared=2 of 128, batch_invariant=True)"
    )
    layer = Experts(*pair("mxfp4"), local_expert_offset=4)
    assert repr(layer).endswith("bias=False, local_expert_offset=4)")


W13, W2 = pair("nvfp4")
SHARED = pair("nvfp4", 2, 128)
IDS = torch.arange(ALL, dtype=torch.int32)
ERRORS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"local_expert_offset": 1.5}, TypeError, "local_expert_offset: is 1.5, must be an integer"),
    ({"local_expert_offset": -1}, ValueError, "local_expert_offset: is -1, must be from 0 to"),
    ({"local_expert_offset": 2**31 - 1}, ValueError, "local_expert_offset: is 2147483647, must"),
    ({"expert_map": [0, 1]}, TypeError, "expert_map: is list, must be a tensor of int32"),
    ({"expert_map": IDS.long()}, TypeError, "expert_map: is torch.int64, must be a tensor of int"),
    ({"expert_map": IDS[None]}, ValueError, r"expert_map: shape is \(1, 8\), must be \(ids,\)"),
    ({"expert_map": IDS.to("meta")}, ValueError, "expert_map: is on meta, must be on cpu"),
    ({"shared": SHARED[0]}, TypeError, "shared: is a ScaledTensor, must be a pair"),
    ({"shared": (SHARED[0], None)}, TypeError, r"shared\[1\]: is a NoneType, must be a ScaledT"),
    ({"shared": (SHARED[0][0], SHARED[1])}, ValueError, r"shared\[0\]: shape is \(256, 128\), mus"),
    ({"shared": pair("mxfp4", 2)}, ValueError, r"shared\[0\]: is mxfp4 in row_major, must be nvfp"),
    (
        {"shared": (SHARED[0], SHARED[1].relayout("swizzled_128x4"))},
        ValueError,
        r"shared\[1\]: is nvfp4 in swizzled_128x4, must be nvfp4 in row_major like w2",
    ),
    (
        {"shared": pair("nvfp4", 2, sense="multiplier")},
        ValueError,
        r"shared\[0\]: has a multiplier as tensor scale, w13 a divisor",
    ),
    ({"shared": pair("nvfp4", 17)}, ValueError, r"shared\[1\].batch: is 17, must be in 1..16"),
    (
        {"shared": (SHARED[0], pair("nvfp4", 3, 128)[1])},
        ValueError,
        r"shared\[0\].batch: is 2, must be 3, the experts of shared\[1\]",
    ),
    (
        {"shared": (SHARED[0], pair("nvfp4", 2, 64)[1])},
        ValueError,
        r"shared\[0\].rows: is 256, must be 128, twice the k of shared\[1\]",
    ),
]


@pytest.mark.parametrize("case", range(len(ERRORS)))
def test_errors(case: int) -> None:
    options, kind, text = ERRORS[case]
    with pytest.raises(kind, match=text):
        Experts(W13, W2, **options)
