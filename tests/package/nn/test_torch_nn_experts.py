"""blockscale.nn.Experts: results, state, casts, compilation; `./dev test --torch` runs these."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import blockscale
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")

import blockscale.nn  # noqa: E402
from blockscale.nn import Experts  # noqa: E402
from nn_experts import TOP_K, E, H, I, normal, off_by, routes  # noqa: E402
from nn_model import same  # noqa: E402

RECIPES = ["nvfp4", "mxfp4", "mxfp6_e2m3", "mxfp8_e4m3", "fp8_row", "fp8_tensor", "fp8_128x128"]
RECIPES += ["fp8_128x128_ue8m0", "fp8_1x128"]
#: Options of a layer, by what they show.
OPTIONS: dict[str, dict[str, Any]] = {
    "usual": {},
    "gpt_oss": {
        "interleave": 1,
        "limit": 7.0,
        "alpha": 1.702,
        "up_shift": 1.0,
        "biases": (normal(E, 2 * I, seed=6).bfloat16(), normal(E, H, seed=7).bfloat16()),
    },
    "ups_first": {"gate_first": False, "biases": (None, normal(E, H, seed=7))},
    "alphas": {"expert_alphas": (normal(E, seed=4), normal(E, seed=5))},
    "gelu": {"activation": "gelu_tanh"},
    "silu": {"activation": "silu"},
    "linear": {"activation": None, "biases": (normal(E, I, seed=8), None)},
}


def weights_of(recipe: str, rows: int = 2 * I, seed: int = 1, **options: Any) -> tuple[Any, Any]:
    w13 = normal(E, rows, H, seed=seed) / H**0.5
    w2 = normal(E, H, I, seed=seed + 1) / I**0.5
    return tuple(blockscale.quantize(w, recipe, **options) for w in (w13, w2))


def layer_of(recipe: str = "nvfp4", seed: int = 1, **options: Any) -> Any:
    rows = 2 * I if options.get("activation", "swiglu") == "swiglu" else I
    return Experts(*weights_of(recipe, rows, seed), **options)


def inputs(*shape: int, dtype: Any = torch.float32, seed: int = 5) -> tuple[Any, Any, Any]:
    return normal(*shape, H, seed=seed).to(dtype), *routes(*shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("activations", [None, "bf16", "fp8_1x128", "fp8_row", "mxfp8_e4m3"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_results_are_those_of_the_quantized_numbers(
    recipe: str, activations: str | None, dtype: Any
) -> None:
    is_pair = activations != "mxfp8_e4m3" and (activations != "fp8_row" or recipe == "fp8_row")
    if recipe.startswith("fp8") and not is_pair:
        with pytest.raises(ValueError, match=f"activations in {activations}: no such pair"):
            layer_of(recipe, activations=activations)
        return
    layer = layer_of(recipe, activations=activations)
    usual = "fp8_1x128" if recipe.startswith("fp8") else "bf16"
    assert layer.activations == (activations or usual)
    x, ids, weights = inputs(2, 3, dtype=dtype)
    y = layer(x, ids, weights)
    assert y.dtype == dtype and y.shape == x.shape and off_by(y, layer, x, ids, weights) <= 1
    rows = x.reshape(-1, H), layer.w13, layer.w2, ids.reshape(-1, TOP_K).int()
    want = blockscale.moe(*rows, weights.reshape(-1, TOP_K), activations=activations)
    assert torch.equal(y.reshape(-1, H), want)


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp4", "fp8_128x128"])
def test_every_option(recipe: str, kind: str) -> None:
    layer = layer_of(recipe, **OPTIONS[kind])
    x, ids, weights = inputs(7)
    assert off_by(layer(x, ids, weights), layer, x, ids, weights) <= 1


def test_gates_and_ups_apart() -> None:
    up, down = weights_of("fp8_128x128")
    whole = normal(E, 2 * I, H, seed=1) / H**0.5
    apart = blockscale.quantize(whole.reshape(2 * E, I, H), "fp8_128x128")
    assert apart.scales.shape[0] == 2 * E
    layer = Experts(apart, down)
    x, ids, weights = inputs(7)
    y = layer(x, ids, weights)
    assert off_by(y, layer, x, ids, weights) <= 1
    assert not torch.equal(y, Experts(up, down)(x, ids, weights))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0), (2, 1, 3)])
def test_leading_dimensions(shape: tuple[int, ...]) -> None:
    layer = layer_of()
    x, ids, weights = inputs(*shape)
    y = layer(x, ids, weights)
    flat = layer(x.reshape(-1, H), ids.reshape(-1, TOP_K), weights.reshape(-1, TOP_K))
    assert y.shape == x.shape and torch.equal(y.reshape(-1, H), flat)


def test_what_comes_otherwise_than_it_is_needed() -> None:
    layer = layer_of()
    x, ids, weights = inputs(6)
    want = layer(x, ids, weights)
    turned = (t.T.contiguous().T for t in (x, ids, weights))
    assert torch.equal(layer(*turned), want)
    assert torch.equal(layer(x, ids.short(), weights.double()), want)
    half = layer(x, ids, weights.bfloat16())
    assert torch.equal(half, layer(x, ids, weights.bfloat16().float()))
    for none in (-1, E, E + 3, 2**32, -(2**32) + 1):  # no expert, or one of another device
        ids[2] = none
        y = layer(x, ids, weights)
        assert not y[2].any() and torch.equal(y[3:], want[3:])


# --- state ----------------------------------------------------------------------------------------


STATES = {
    ("nvfp4", "compressed_tensors"): ["_packed", "_scale", "_global_scale"],
    ("nvfp4", "modelopt"): ["", "_weight_scale", "_weight_scale_2"],
    ("mxfp4", "compressed_tensors"): ["_packed", "_scale"],
    ("mxfp8_e4m3", "modelopt"): ["", "_weight_scale"],
    ("mxfp8_e4m3", "compressed_tensors"): ["", "_scale"],
    ("fp8_128x128", "deepseek"): ["", "_scale_inv"],
    ("fp8_row", "modelopt"): ["", "_weight_scale"],
    ("mxfp8_e5m2", None): ["", "_scale"],
}


@pytest.mark.parametrize(("recipe", "dialect"), STATES)
def test_a_state_has_the_names_of_stacks(recipe: str, dialect: str | None) -> None:
    sense = {"sense": "multiplier"} if (recipe, dialect) == ("nvfp4", "modelopt") else {}
    options = OPTIONS["gpt_oss"] | OPTIONS["alphas"]
    layer, other = (
        Experts(*weights_of(recipe, seed=seed, **sense), dialect=dialect, **options)
        for seed in (1, 7)
    )
    state = layer.state_dict()
    names = [
        f"{name}{part}"
        for name in ("gate_up_proj", "down_proj")
        for part in STATES[recipe, dialect]
    ]
    names += ["gate_up_proj_alphas", "down_proj_alphas", "gate_up_proj_bias", "down_proj_bias"]
    assert list(state) == names
    x, ids, weights = inputs(3)
    assert not torch.equal(other(x, ids, weights), layer(x, ids, weights))
    other.load_state_dict(state)
    assert torch.equal(other(x, ids, weights), layer(x, ids, weights))


def test_a_dialect_has_the_sense_of_tensor_scales() -> None:
    up, down = weights_of("mxfp8_e4m3")[0], weights_of("nvfp4", sense="multiplier")[1]
    layer = Experts(up, down)
    assert (layer.dialect, layer.sense) == ("modelopt", "multiplier")
    assert "down_proj_weight_scale_2" in layer.state_dict()
    x, ids, weights = inputs(3)
    assert off_by(layer(x, ids, weights), layer, x, ids, weights) <= 1
    with pytest.raises(ValueError, match="whose tensor scales are divisors"):
        Experts(up, down, dialect="compressed_tensors")


def test_scales_of_a_state_are_row_by_row() -> None:
    up, down = weights_of("mxfp4")
    want = Experts(up, down)
    layer = Experts(*(w.relayout("swizzled_128x4") for w in (up, down)))
    x, ids, weights = inputs(3)
    assert torch.equal(layer(x, ids, weights), want(x, ids, weights))
    state = want.state_dict()
    assert all(same(x, state[name]) for name, x in layer.state_dict().items())
    other = Experts(*(w.relayout("swizzled_128x4") for w in weights_of("mxfp4", seed=7)))
    other.load_state_dict(state)
    assert torch.equal(other.w13_scales, layer.w13_scales)


def test_what_a_state_lacks_and_has_too_much_is_named() -> None:
    layer = layer_of()
    state = layer.state_dict()
    state["down_proj_packed"] = state["down_proj_packed"][:1]
    del state["gate_up_proj_scale"]
    with pytest.raises(RuntimeError) as error:
        layer.load_state_dict(state | {"w13_values": layer.w13_values})
    text = str(error.value)
    assert 'Missing key(s) in state_dict: "gate_up_proj_scale"' in text
    assert 'Unexpected key(s) in state_dict: "w13_values"' in text
    assert "down_proj_packed: (dtype, shape) is (torch.uint8, (1, 128, 32)), must be" in text


def test_casts_are_of_the_biases_alone() -> None:
    layer = layer_of("fp8_tensor", **OPTIONS["gpt_oss"], **OPTIONS["alphas"])
    parts = {name: x.clone() for name, x in layer.named_buffers()}
    for cast, dtype in (
        ("half", torch.float16),
        ("double", torch.float16),
        ("float", torch.float32),
    ):
        getattr(layer, cast)()
        assert {bias.dtype for bias in layer.parameters()} == {dtype}
        assert all(same(x, parts[name]) for name, x in layer.named_buffers())
    x, ids, weights = inputs(3)
    assert off_by(layer(x, ids, weights), layer, x, ids, weights) <= 1
    layer.to("meta")
    assert all(x.is_meta for x in layer.state_dict().values())


def test_copies_and_pickles() -> None:
    layer, given = layer_of(**OPTIONS["gpt_oss"]), inputs(3)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(*given), layer(*given)) and repr(other) == repr(layer)
        assert other.w2_values.data_ptr() != layer.w2_values.data_ptr()


@pytest.mark.parametrize(
    ("recipe", "kind", "backend"),
    [
        ("nvfp4", "gpt_oss", "aot_eager"),
        ("fp8_128x128", "alphas", "aot_eager"),
        ("mxfp4", "usual", "inductor"),
    ],
)
def test_compiles_as_one_graph(recipe: str, kind: str, backend: str) -> None:
    layer = layer_of(recipe, **OPTIONS[kind])
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    with torch.no_grad():
        for tokens in (4, 9, 17):  # the second compiles for any number of tokens
            given = inputs(2, tokens, seed=tokens)
            assert torch.equal(compiled(*given), layer(*given))


def test_numbers_of_other_kinds_are_numbers() -> None:
    kinds = {"interleave": np.int64(1), "limit": torch.tensor(2.0), "alpha": np.float32(1.5)}
    layer, given = layer_of(**kinds, up_shift=1), inputs(4)
    assert torch.equal(
        layer(*given), layer_of(interleave=1, limit=2, alpha=1.5, up_shift=1)(*given)
    )
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(*given), layer(*given))


def test_repr_says_what_it_is() -> None:
    layer = layer_of()
    size = E * (2 * I * H + H * I) * 9 // 16 + 2 * E * 4
    assert repr(layer) == (
        f"Experts(4 experts, 128 -> 64 -> 128, nvfp4, row_major, {size} bytes, activation=swiglu, "
        "activations=bf16, bias=False)"
    )
    assert layer.nbytes == layer.w13.nbytes + layer.w2.nbytes
    layer = Experts(weights_of("mxfp8_e4m3")[0], weights_of("mxfp4")[1], activations="mxfp8_e4m3")
    assert ", mxfp8_e4m3 and mxfp4, row_major, " in repr(layer)
    x, ids, weights = inputs(3)
    assert off_by(layer(x, ids, weights), layer, x, ids, weights) <= 1


W13, W2 = weights_of("nvfp4")
ERRORS = [
    (lambda: Experts(normal(4, 4, 4), W2), TypeError, "w13: is a Tensor, must be a ScaledTensor"),
    (lambda: Experts(W13[0], W2), ValueError, r"w13: shape is \(128, 128\), must be \(E, 2 I, H\)"),
    (lambda: Experts(W13, W2[0]), ValueError, r"w2: shape is \(128, 64\), must be \(E, H, I\)"),
    (lambda: Experts(W13[:, :64], W2), ValueError, "w13.rows: is 64, must be 128, twice the k of"),
    (lambda: Experts(W13[:3], W2), ValueError, "w13.batch: is 3, must be 4, the experts of w2"),
    (lambda: Experts(W13, W2, activation="relu"), ValueError, "activation: is 'relu', must be"),
    (lambda: Experts(W13, W2, interleave=2), ValueError, "interleave: is 2, must be 0, 1 or 64"),
    (lambda: Experts(W13, W2, interleave=0.5), TypeError, "interleave: is 0.5, must be an integer"),
    (lambda: Experts(W13, W2, limit="7"), TypeError, "limit: is '7', must be a number"),
    (lambda: Experts(W13, W2, alpha=None), TypeError, "alpha: is None, must be a number"),
    (lambda: Experts(W13, W2, activations="nvfp4"), ValueError, "activations: is nvfp4, must be"),
    (lambda: Experts(W13, W2, activations="int8"), ValueError, "activations: is 'int8', must be"),
    (lambda: Experts(W13, W2, biases=normal(4)), TypeError, "biases: is a Tensor, must be a pair"),
    (
        lambda: Experts(W13, W2, biases=(normal(E, H), normal(E, H + 1))),
        ValueError,
        r"biases\[1\]: shape is \(4, 129\), must be \(4, 128\)",
    ),
    (
        lambda: Experts(W13, W2, biases=(normal(E, H), normal(E, H).half())),
        TypeError,
        r"biases\[1\]: has dtype f16, must be f32 like biases\[0\]",
    ),
    (
        lambda: Experts(W13, W2, biases=(normal(E, H).double(), None)),
        TypeError,
        r"biases\[0\]: is torch.float64, must be a tensor of float32, float16 or bfloat16",
    ),
    (
        lambda: Experts(W13, W2, expert_alphas=(None, normal(E).half())),
        TypeError,
        r"expert_alphas\[1\]: is torch.float16, must be a tensor of float32",
    ),
    (
        lambda: Experts(W13, W2, expert_alphas=(normal(E - 1), None)),
        ValueError,
        r"expert_alphas\[0\]: shape is \(3,\), must be \(4,\)",
    ),
    (lambda: Experts(W13, W2, dialect="deepseek"), ValueError, "deepseek, which stores no nvfp4"),
    (
        lambda: Experts(W13, weights_of("nvfp4", sense="multiplier")[1]),
        ValueError,
        "w2: has a multiplier as tensor scale, w13 a divisor",
    ),
    (
        lambda: layer_of()(normal(3, I), *routes(3)),
        ValueError,
        r"hidden_states: shape is \(3, 64\), its last size must be 128",
    ),
    (
        lambda: layer_of()(normal(3, H).double(), *routes(3)),
        TypeError,
        "hidden_states: has dtype torch.float64, must be float32, float16 or bfloat16",
    ),
    (lambda: layer_of()(normal(3, H).requires_grad_(), *routes(3)), ValueError, "requires grad"),
    (lambda: layer_of()(normal(3, H), *routes(2)), ValueError, r"ids: shape is \(2, 2\), must be"),
    (
        lambda: layer_of()(normal(3, H), routes(3)[0], routes(3)[1].T),
        ValueError,
        r"top_k_weights: shape is \(2, 3\), must be \(3, 2\), that of top_k_index",
    ),
    (
        lambda: layer_of()(normal(3, H), routes(3)[0], normal(3, E).softmax(-1)),
        ValueError,
        r"top_k_weights: shape is \(3, 4\), must be \(3, 2\), that of top_k_index",
    ),
    (
        lambda: layer_of()(normal(3, H), torch.empty(3, 0).int(), normal(3, 0)),
        ValueError,
        r"top_k_index: shape is \(3, 0\), must be \(..., top_k\)",
    ),
    (
        lambda: layer_of()(normal(3, H), routes(3)[1], routes(3)[1]),
        TypeError,
        "top_k_index: has dtype torch.float32, must be integers",
    ),
    (
        lambda: layer_of()(normal(3, H), routes(3)[0] > 0, routes(3)[1]),
        TypeError,
        "top_k_index: has dtype torch.bool, must be integers",
    ),
    (
        lambda: layer_of()(normal(3, H), routes(3)[0], routes(3)[0]),
        TypeError,
        "top_k_weights: has dtype torch.int64, must be floats",
    ),
]


@pytest.mark.parametrize("case", range(len(ERRORS)))
def test_errors(case: int) -> None:
    call, kind, text = ERRORS[case]
    with pytest.raises(kind, match=text):
        call()
