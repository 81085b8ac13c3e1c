"""blockscale.nn.Linear: results, state, casts, compilation; `./dev test --torch` runs these."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blockscale
import pytest
from blockscale._tensor import TRAITS

torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")

import blockscale.nn  # noqa: E402
from blockscale.nn import Linear  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

ops = torch.ops.blockscale
RECIPES = [traits.name for traits in TRAITS.values() if not traits.plain]
#: A choice of weights and activations: of every family, and of every kind of inputs.
PAIRS = [
    ("nvfp4", None),
    ("nvfp4", "nvfp4"),
    ("nvfp4", "fp8_row"),
    ("mxfp4", "mxfp8_e4m3"),
    ("mxfp6_e2m3", "mxfp8_e4m3"),
    ("mxfp8_e4m3", "mxfp8_e4m3"),
    ("fp8_row", "fp8_row"),
    ("fp8_tensor", "fp8_tensor"),
    ("fp8_128x128", "fp8_1x128"),
]
#: What static inputs are beside a recipe: its scale for inputs of at most 4.
STATIC = {"nvfp4": 2688 / 4, "fp8_tensor": 4 / 448, "fp8_row": 4 / 448}
NAMES = {
    ("nvfp4", "compressed_tensors"): ["weight_packed", "weight_scale", "weight_global_scale"],
    ("nvfp4", "modelopt"): ["weight", "weight_scale", "weight_scale_2"],
    ("mxfp4", "compressed_tensors"): ["weight_packed", "weight_scale"],
    ("mxfp6_e2m3", "compressed_tensors"): ["weight_packed", "weight_scale"],
    ("mxfp8_e4m3", "modelopt"): ["weight", "weight_scale"],
    ("fp8_tensor", "modelopt"): ["weight", "weight_scale"],
    ("fp8_row", "compressed_tensors"): ["weight", "weight_scale"],
    ("fp8_row", "modelopt"): ["weight", "weight_scale"],
    ("nvfp4", "lightx2v"): ["weight", "weight_scale", "weight_global_scale", "alpha"],
    ("mxfp8_e4m3", "lightx2v"): ["weight", "weight_scale"],
    ("fp8_64x128", "compressed_tensors"): ["weight", "weight_scale"],
    ("fp8_128x128", "deepseek"): ["weight", "weight_scale_inv"],
    ("fp8_128x128_ue8m0", "deepseek"): ["weight", "weight_scale_inv"],
}


def normal(*shape: int, seed: int = 0, dtype: Any = torch.float32) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def plain(outputs: int = 130, inputs: int = 256, seed: int = 1, dtype: Any = torch.float32) -> Any:
    """A torch.nn.Linear of known numbers."""
    layer = torch.nn.Linear(inputs, outputs, dtype=dtype)
    with torch.no_grad():
        layer.weight.copy_(normal(outputs, inputs, seed=seed) / inputs**0.5)
        layer.bias.copy_(normal(outputs, seed=seed + 1))
    return layer


def as_quantized(x: Any, layer: Any) -> Any:
    """`x` [rows, inputs] in f64 with what `layer` makes of it on its way to the product."""
    if layer.activations is None:
        return x.double()
    if layer.input_scale is None:
        t = blockscale.quantize(x, layer.activations)
    elif layer.activations == "nvfp4":
        t = blockscale.quantize(x, "nvfp4", tensor_scale=layer.input_scale, sense=layer.sense)
    else:
        t = blockscale.quantize(x, layer.activations, scales=layer.input_scale.item())
    return blockscale.dequantize(t).double()


def off_by(y: Any, x: Any, layer: Any) -> float:
    """The largest error of `y`, over what numbers of its dtype leave of the sum of magnitudes."""
    rows, w = as_quantized(x.reshape(-1, layer.in_features), layer), layer.weight
    w = blockscale.dequantize(w).double()
    exact, sums = rows @ w.T, rows.abs() @ w.abs().T
    if layer.bias is not None:
        exact, sums = exact + layer.bias.double(), sums + layer.bias.abs().double()
    ulp = torch.finfo(y.dtype).eps * exact.abs() / 2
    allowed = 8 * 2.0**-24 * sums + ulp  # f32 chains of 256, docs/numerics.md
    return float(((y.reshape(exact.shape).double() - exact).abs() / allowed).max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(256,), (1, 256), (3, 256), (2, 3, 256), (2, 1, 2, 256)])
@pytest.mark.parametrize(("recipe", "activations"), PAIRS)
def test_results_are_those_of_the_quantized_numbers(
    recipe: str, activations: str | None, shape: tuple[int, ...], dtype: Any
) -> None:
    layer = Linear.from_float(plain(), recipe, activations=activations)
    x = normal(*shape, seed=5).to(dtype)
    y = layer(x)
    assert y.dtype == dtype and y.shape == (*shape[:-1], 130)
    assert off_by(y, x, layer) <= 1


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_and_every_partner(recipe: str) -> None:
    partners, x = [], normal(4, 256, seed=5)
    for activations in (None, *RECIPES):
        try:
            layer = Linear.from_float(plain(), recipe, activations=activations)
        except ValueError as error:
            assert f"activations: is {activations} beside {recipe}: " in str(error)
            continue
        partners.append(activations)
        assert off_by(layer(x), x, layer) <= 1
    assert None in partners and len(partners) >= 13


@pytest.mark.parametrize("layout", ["row_major", "mn_major", "swizzled_128x4", "swizzled_8x4"])
def test_layouts_change_nothing(layout: str) -> None:
    x = normal(5, 256)
    want = Linear.from_float(plain(), "mxfp4", activations="mxfp4")
    layer = Linear.from_float(plain(), "mxfp4", activations="mxfp4", layout=layout)
    assert torch.equal(layer(x), want(x)) and f", {layout}, " in repr(layer)
    state = layer.state_dict()
    assert state.keys() == want.state_dict().keys()
    assert all(torch.equal(x, want.state_dict()[name]) for name, x in state.items())
    other = Linear.from_float(plain(seed=7), "mxfp4", activations="mxfp4", layout=layout)
    other.load_state_dict(want.state_dict())
    assert torch.equal(other.scales, layer.scales) and torch.equal(other(x), want(x))


@pytest.mark.parametrize("recipe", STATIC)
@pytest.mark.parametrize("rows", [0, 1, 6])
def test_static_inputs(recipe: str, rows: int) -> None:
    layer = Linear.from_float(plain(), recipe, activations=recipe, input_scale=STATIC[recipe])
    x = normal(rows, 256, seed=3).clamp(-4, 4)
    y = layer(x)
    assert y.shape == (rows, 130) and "(static)" in repr(layer)
    if rows:
        assert off_by(y, x, layer) <= 1
    name = "input_global_scale" if recipe == "nvfp4" else "input_scale"
    assert layer.state_dict()[name].item() == pytest.approx(STATIC[recipe])


@pytest.mark.parametrize("shape", [(0, 256), (2, 0, 256), (0, 3, 256)])
@pytest.mark.parametrize(("recipe", "activations"), PAIRS)
def test_nothing_in_nothing_out(
    recipe: str, activations: str | None, shape: tuple[int, ...]
) -> None:
    layer = Linear.from_float(plain(), recipe, activations=activations)
    assert layer(torch.empty(shape)).shape == (*shape[:-1], 130)


def test_inputs_that_are_not_contiguous() -> None:
    layer = Linear.from_float(plain(), "nvfp4", activations="nvfp4")
    x = normal(256, 6, seed=3)
    for view in (x.T, x.T[::2], x.T.reshape(2, 3, 256).transpose(0, 1), normal(4, 512)[:, ::2]):
        assert torch.equal(layer(view), layer(view.contiguous()))
    for row in (normal(1, 256), normal(1, 1, 256)):  # rows that are one in memory
        view = row.expand(*row.shape[:-2], 5, 256)
        assert torch.equal(layer(view), layer(view.contiguous()))
    column = plain()
    column.weight = torch.nn.Parameter(column.weight.detach().T.contiguous().T)
    assert torch.equal(Linear.from_float(column, "nvfp4").values, layer.values)


@pytest.mark.parametrize(("recipe", "dialect"), NAMES)
def test_state_is_the_dialects(recipe: str, dialect: str, tmp_path: Path) -> None:
    static = STATIC.get(recipe)
    inputs = recipe if static is not None else None
    if static is not None and recipe == "nvfp4" and dialect == "modelopt":
        static = 1 / static
    layer = Linear.from_float(
        plain(), recipe, activations=inputs, input_scale=static, dialect=dialect
    )
    state = layer.state_dict()
    names = [name for name in state if not name.startswith("input") and name != "bias"]
    assert names == NAMES[recipe, dialect]
    save_file(
        {f"q_proj.{name}": x.contiguous() for name, x in state.items()}, tmp_path / "m.safetensors"
    )
    other = Linear.from_float(
        plain(seed=9), recipe, activations=inputs, input_scale=static, dialect=dialect
    )
    other.load_state_dict(state)
    x = normal(3, 256, seed=5)
    assert torch.equal(other(x), layer(x))
    stored = blockscale.Checkpoint(tmp_path / "m.safetensors")["q_proj.weight"]
    assert stored.recipe.name == recipe.removesuffix("_ue8m0") or stored.recipe.name == recipe
    assert torch.equal(
        torch.from_numpy(blockscale.dequantize(stored)), blockscale.dequantize(layer.weight)
    )


@pytest.mark.parametrize("recipe", ["mxfp6_e3m2", "mxfp8_e5m2", "fp8_tensor_e5m2"])
def test_state_of_recipes_that_no_dialect_writes(recipe: str) -> None:
    layer, other = (Linear.from_float(plain(seed=seed), recipe) for seed in (1, 7))
    assert list(layer.state_dict()) == ["weight", "weight_scale", "bias"]
    other.load_state_dict(layer.state_dict())
    x = normal(3, 256, seed=5)
    assert torch.equal(other(x), layer(x))


@pytest.mark.parametrize("layout", ["row_major", "swizzled_128x4"])
def test_lightx2vs_scales_are_in_tiles(layout: str) -> None:
    layer, other = (
        Linear.from_float(
            plain(seed=seed), "nvfp4", activations="nvfp4", input_scale=scale, layout=layout,
            dialect="lightx2v",
        )
        for seed, scale in ((1, 640.0), (7, 128.0))
    )  # fmt: skip
    state = layer.state_dict()
    tiles = layer.weight.relayout("swizzled_128x4").scales
    assert state["weight_scale"].dtype == torch.float8_e4m3fn
    assert state["weight_scale"].shape == (256, 16)
    assert torch.equal(state["weight_scale"].view(torch.uint8), tiles.view(torch.uint8))
    assert state["input_global_scale"].shape == state["alpha"].shape == ()
    assert torch.equal(state["alpha"], (1 / (640.0 * layer.tensor_scale)).reshape(()))
    del state["alpha"]  # it follows from the others
    other.load_state_dict(state)
    assert torch.equal(other.state_dict()["alpha"], layer.state_dict()["alpha"])
    x = normal(3, 256, seed=5)
    assert torch.equal(other(x), layer(x))
    shapes = {name: x.shape for name, x in layer.state_dict().items()}
    assert shapes == {name: x.shape for name, x in layer.to("meta").state_dict().items()}


def test_lightx2v_has_no_stacks() -> None:
    stack = blockscale.quantize(normal(2, 16, 64), "nvfp4")
    with pytest.raises(ValueError, match="dialect: is lightx2v; shape: has 3 dimensions"):
        blockscale.nn.Experts(stack, stack, dialect="lightx2v")


def test_what_a_state_lacks_and_has_too_much_is_named() -> None:
    layer = Linear.from_float(plain(), "nvfp4")
    state = layer.state_dict()
    before = {name: x.clone() for name, x in state.items()}
    wrong = dict(state, weight_packed=state["weight_packed"][:1], extra=torch.ones(1))
    del wrong["weight_scale"]
    with pytest.raises(RuntimeError) as error:
        layer.load_state_dict(wrong)
    text = str(error.value)
    assert 'Missing key(s) in state_dict: "weight_scale"' in text
    assert 'Unexpected key(s) in state_dict: "extra"' in text
    assert "weight_packed: (dtype, shape) is (torch.uint8, (1, 128)), must be" in text
    assert all(torch.equal(x, before[name]) for name, x in layer.state_dict().items())
    found = layer.load_state_dict({"bias": torch.zeros(130)}, strict=False)
    assert sorted(found.missing_keys) == ["weight_global_scale", "weight_packed", "weight_scale"]
    assert not layer.bias.any()
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "values"'):
        layer.load_state_dict(dict(layer.state_dict(), values=layer.values))


def test_a_state_without_memory_has_the_dialects_shapes() -> None:
    layer = Linear.from_float(plain(), "nvfp4", layout="swizzled_128x4")
    shapes = {name: x.shape for name, x in layer.state_dict().items()}
    found = layer.to("meta").state_dict()
    assert {name: x.shape for name, x in found.items()} == shapes
    assert all(x.is_meta for x in found.values())


def test_a_state_is_assigned() -> None:
    layer, other = (Linear.from_float(plain(seed=seed), "fp8_row") for seed in (1, 7))
    other.to("meta")
    state = layer.state_dict()
    other.load_state_dict(state, assign=True)
    x = normal(3, 256)
    assert torch.equal(other(x), layer(x))
    assert other.values.data_ptr() == state["weight"].data_ptr()


@pytest.mark.parametrize("recipe", ["nvfp4", "fp8_128x128", "fp8_tensor"])
def test_casts_are_of_the_bias_alone(recipe: str) -> None:
    model = torch.nn.Sequential(Linear.from_float(plain(), recipe), torch.nn.LayerNorm(130))
    layer = model[0]
    parts = {name: x.clone() for name, x in layer.named_buffers()}
    casts: list[tuple[Callable[[Any], Any], Any]] = [
        (lambda m: m.half(), torch.float16),
        (lambda m: m.double(), torch.float16),  # which no bias may be
        (lambda m: m.type(torch.float32), torch.float32),
        (lambda m: m.to(torch.bfloat16), torch.bfloat16),
    ]
    for cast, dtype in casts:
        cast(model)
        assert layer.bias.dtype == dtype
        for name, buffer in layer.named_buffers():
            assert buffer.dtype == parts[name].dtype and torch.equal(buffer, parts[name])
    assert model[1].weight.dtype == torch.bfloat16
    assert model(normal(2, 256, dtype=torch.bfloat16)).dtype == torch.bfloat16
    model.to("meta")
    assert all(x.is_meta for x in layer.state_dict().values())
    model.to_empty(device="cpu")
    assert (
        layer.scales.dtype == parts["scales"].dtype and layer.scales.shape == parts["scales"].shape
    )


def test_copies_and_pickles() -> None:
    layer = Linear.from_float(plain(), "nvfp4", activations="nvfp4", input_scale=700.0)
    x = normal(2, 256)
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    again = torch.load(buffer, weights_only=False)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), again):
        assert torch.equal(other(x), layer(x)) and repr(other) == repr(layer)
        assert other.values.data_ptr() != layer.values.data_ptr()


COMPILED = [(*pair, "aot_eager") for pair in (*PAIRS, *((recipe, "static") for recipe in STATIC))]
COMPILED += [("fp8_128x128", "fp8_1x128", "inductor"), ("fp8_row", "static", "inductor")]


@pytest.mark.parametrize(("recipe", "activations", "backend"), COMPILED)
def test_compiles_as_one_graph(recipe: str, activations: str | None, backend: str) -> None:
    static = STATIC[recipe] if activations == "static" else None
    inputs = recipe if static is not None else activations
    layer = Linear.from_float(plain(), recipe, activations=inputs, input_scale=static)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    with torch.no_grad():
        for rows in (4, 9, 17):  # the second compiles for any number of rows
            x = normal(2, rows, 256, seed=rows)
            assert torch.equal(compiled(x), layer(x))


def test_repr_says_what_it_is() -> None:
    layer = Linear.from_float(plain(64, 128), "nvfp4", activations="nvfp4", layout="mn_major")
    text = "Linear(128 -> 64, nvfp4, mn_major, 4612 bytes, activations=nvfp4, bias=True)"
    assert repr(layer) == text and layer.nbytes == 64 * 64 + 64 * 8 + 4
    assert layer.nbytes == layer.weight.nbytes
    layer = Linear(blockscale.quantize(normal(64, 128), "fp8_row"))
    assert (
        repr(layer)
        == "Linear(128 -> 64, fp8_row, row_major, 8448 bytes, activations=None, bias=False)"
    )


def test_memory_is_torchs_and_numpys_is_copied() -> None:
    t = blockscale.quantize(normal(64, 128), "nvfp4")
    assert Linear(t).values.data_ptr() == t.values.data_ptr()
    other = Linear(blockscale.quantize(normal(64, 128).numpy(), "nvfp4"))
    x = normal(2, 128)
    assert torch.equal(other(x), Linear(t)(x))


W = blockscale.quantize(normal(64, 128), "nvfp4")
ERRORS = [
    (lambda: Linear(normal(4, 4)), TypeError, "weight: is a Tensor, must be a ScaledTensor"),
    (
        lambda: Linear(blockscale.quantize(normal(2, 64, 128), "nvfp4")),
        ValueError,
        r"weight: shape is \(2, 64, 128\), must be \(outputs, inputs\)",
    ),
    (lambda: Linear(W, normal(63)), ValueError, r"bias: shape is \(63,\), must be \(64,\)"),
    (lambda: Linear(W, normal(64).double()), TypeError, "bias: is torch.float64, must be"),
    (lambda: Linear(W, [0.0] * 64), TypeError, "bias: is list, must be a tensor"),
    (lambda: Linear(W, normal(64).to("meta")), ValueError, "bias: is on meta, must be on cpu"),
    (lambda: Linear(W, activations="bf16"), ValueError, "activations: is bf16, must be a recipe"),
    (lambda: Linear(W, activations="int8"), ValueError, "activations: is 'int8', must be one of"),
    (lambda: Linear(W, activations="mxfp4"), ValueError, "activations: is mxfp4 beside nvfp4: "),
    (
        lambda: Linear(W, activations="fp8_tensor", input_scale=1.0),
        ValueError,
        "input_scale: is given with activations = fp8_tensor; beside nvfp4, nvfp4 has one",
    ),
    (
        lambda: Linear.from_float(plain(), "mxfp4", activations="mxfp4", input_scale=1.0),
        ValueError,
        "beside mxfp4, nothing has one",
    ),
    (
        lambda: Linear(W, activations="nvfp4", input_scale=torch.ones(2)),
        ValueError,
        r"input_scale: shape is \(2,\), must have one element",
    ),
    (
        lambda: Linear(W, dialect="deepseek"),
        ValueError,
        "dialect: is deepseek, which stores no nvfp4",
    ),
    (lambda: Linear(W, dialect="gguf"), ValueError, "dialect: is 'gguf', must be one of"),
    (
        lambda: Linear(W, dialect="modelopt"),
        ValueError,
        "whose tensor scales are multipliers; the weight's is a divisor",
    ),
    (
        lambda: Linear.from_float(torch.nn.Identity(), "nvfp4"),
        TypeError,
        "linear: is a Identity, must be a torch.nn.Linear",
    ),
    (lambda: Linear.from_float(plain(8, 40), "nvfp4"), ValueError, "k: is 40, must be a multiple"),
    (
        lambda: Linear(W)(normal(2, 64)),
        ValueError,
        r"x: shape is \(2, 64\), its last size must be 128",
    ),
    (lambda: Linear(W)(normal(2, 128).double()), TypeError, "x: has dtype torch.float64"),
    (
        lambda: Linear(W, activations="nvfp4")(normal(2, 128).double()),
        TypeError,
        "x: has dtype float64",
    ),
    (lambda: Linear(W)(normal(2, 128).requires_grad_()), ValueError, "requires grad"),
]


@pytest.mark.parametrize("case", range(len(ERRORS)))
def test_errors(case: int) -> None:
    call, kind, text = ERRORS[case]
    with pytest.raises(kind, match=text):
        call()


def test_a_gradient_may_be_asked_for_where_none_flows() -> None:
    layer = Linear.from_float(plain(), "fp8_row")
    with torch.no_grad():
        assert layer(normal(2, 256).requires_grad_()).shape == (2, 130)


class Recorded(TorchDispatchMode):
    """What operators there were."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Own(torch.Tensor):
    """A subclass without a behaviour of its own."""


@pytest.mark.parametrize(("recipe", "activations"), [("nvfp4", "nvfp4"), ("fp8_row", None)])
def test_who_looks_sees_the_operators(recipe: str, activations: str | None) -> None:
    layer = Linear.from_float(plain(), recipe, activations=activations)
    x = normal(2, 3, layer.in_features)
    want = layer(x)
    with Recorded() as seen:
        assert torch.equal(layer(x), want)
    products = [name for name in seen.names if name.startswith("blockscale.")]
    assert products == ["blockscale.quantize.default"] * (activations is not None) + [
        "blockscale.gemm.default"
    ]
    assert torch.equal(layer(x.as_subclass(Own)), want)
    traced = make_fx(layer)(x)
    assert torch.equal(traced(x), want)
    assert any("gemm" in str(node.target) for node in traced.graph.nodes)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert layer(mode.from_tensor(x)).shape == want.shape


def test_nobody_looks_and_no_operator_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Linear.from_float(plain(), "nvfp4", activations="nvfp4")
    x = normal(3, layer.in_features)
    want = layer(x)
    for name in ("_gemm", "_quantize"):
        monkeypatch.setattr(f"blockscale._torch_linear.{name}", None)
    assert torch.equal(layer(x), want)
    with pytest.raises(TypeError), Recorded():
        layer(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("recipe", "activations"), PAIRS)
def test_one_native_call_has_the_bits_of_the_operators(
    recipe: str, activations: str | None, dtype: Any
) -> None:
    layer = Linear.from_float(plain(), recipe, activations=activations)
    for shape in ((1, 256), (3, 256), (2, 1, 3, 256), (256,)):
        x = normal(*shape, dtype=dtype)
        y = x.new_empty((*shape[:-1], 130))
        assert layer._at_once(x, y)
        with Recorded():
            assert torch.equal(layer(x), y)
        assert torch.equal(layer(x), y)
    wide = normal(6, 512, dtype=dtype)
    for x in (wide[::2, :256], wide[:, :256].view(2, 3, 256)):
        assert layer._at_once(x, x.new_empty((*x.shape[:-1], 130)))
        assert torch.equal(layer(x), layer(x.contiguous()))
    # What is not taken as it is goes the other way.
    for x in (wide[:, ::2], wide[:0, :256], wide.view(2, 3, 512).transpose(0, 1)[..., :256]):
        assert not layer._at_once(x, x.new_empty((*x.shape[:-1], 130)))
        assert torch.equal(layer(x), layer(x.contiguous()))


@pytest.mark.parametrize(("recipe", "is_taken"), [("nvfp4", 1), ("fp8_tensor", 1), ("fp8_row", 0)])
def test_one_native_call_takes_static_inputs(recipe: str, is_taken: bool) -> None:
    scale = STATIC[recipe]
    layer = Linear.from_float(plain(), recipe, activations=recipe, input_scale=scale)
    before = layer.input_scale.clone()
    x, y = normal(5, 256), torch.empty(5, 130)
    assert layer._at_once(x, y) == is_taken
    assert torch.equal(layer.input_scale, before)
    with Recorded():
        want = layer(x)
    assert torch.equal(layer(x), want)


def test_other_buffers_are_seen() -> None:
    layer, other = (Linear.from_float(plain(seed=seed), "mxfp4") for seed in (1, 5))
    x = normal(3, layer.in_features)
    before = layer(x)
    layer.values = other.values  # another tensor in its place
    layer.scales, layer.bias = other.scales, other.bias
    assert not torch.equal(layer(x), before)
    assert torch.equal(layer(x), other(x))
    again = Linear.from_float(plain(seed=1), "mxfp4")
    layer = Linear.from_float(plain(seed=5), "mxfp4")
    layer(x)
    layer.load_state_dict(again.state_dict())  # into the same memory
    assert torch.equal(layer(x), before)
