"""blockscale.nn.load of experts whose modules are not as transformers' usual ones: other orders,
activations, ties and scales; `./dev test --torch` runs these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import blockscale
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")

import blockscale.nn  # noqa: E402
from blockscale._torch_stacks import gate_of  # noqa: E402
from blockscale.nn import Experts, load  # noqa: E402
from nn_experts import (  # noqa: E402
    E,
    GateUpExperts,
    H,
    I,
    by_name,
    normal,
    off_by,
    on_meta,
    routes,
    save_state,
    seeded,
    tied,
)
from nn_model import same  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

silu = torch.nn.functional.silu


class Gated(GateUpExperts):
    """Experts whose code says what lies between the products."""

    def expert(self, x: Any, e: int) -> Any:
        return self.down_proj[e] @ self._apply_gate(self.gate_up_proj[e] @ x)


class UpsFirst(Gated):
    def _apply_gate(self, x: Any) -> Any:
        up, gate = x.chunk(2, -1)
        return silu(gate) * up


class InTurns(Gated):
    """Which no attribute says."""

    def _apply_gate(self, x: Any) -> Any:
        return silu(x[..., ::2]) * x[..., 1::2]


class HiddenLimit(Gated):
    """A clamp of which no attribute knows, far above what is usual."""

    def _apply_gate(self, x: Any) -> Any:
        gate, up = x.chunk(2, -1)
        return silu(gate.clamp(max=100)) * up.clamp(-100, 100)


class Softcapped(Gated):
    def _apply_gate(self, x: Any) -> Any:
        gate, up = x.chunk(2, -1)
        return silu(gate) * 2000 * torch.tanh(up / 2000)


class Choosy(Gated):
    """Code that takes no numbers of other sizes."""

    def _apply_gate(self, x: Any) -> Any:
        assert x.shape[-1] == 2 * I
        gate, up = x.chunk(2, -1)
        return silu(gate) * up


class Slope(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.beta = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: Any) -> Any:
        return x * torch.sigmoid(self.beta * x)


class LearnedSlope(GateUpExperts):
    def __init__(self, inner: int = I) -> None:
        super().__init__(inner)
        self.act_fn = Slope()


def convert(state: dict[str, Any], folder: Path, recipe: str, **options: Any) -> Path:
    save_state(state, folder / "plain")
    blockscale.convert(folder / "plain", folder / recipe, recipe, **options)
    return folder / recipe


def in_order(state: dict[str, Any], kind: type[Gated]) -> dict[str, Any]:
    """A state with gates and ups as `kind` has them."""
    for name, x in state.items():
        if name.endswith("gate_up_proj"):
            gates, ups = x.chunk(2, dim=1)
            pair = (ups, gates) if kind is UpsFirst else (gates, ups)
            joined = torch.cat(pair, 1) if kind is UpsFirst else torch.stack(pair, 2).flatten(1, 2)
            state[name] = joined.contiguous()
    return state


# --- what lies between the products ---------------------------------------------------------------


@pytest.mark.parametrize("kind", [UpsFirst, InTurns])
def test_plain_experts_by_name_go_where_the_code_has_them(tmp_path: Path, kind: Any) -> None:
    model = load(on_meta(kind), save_state(by_name(seeded()), tmp_path / "m"))
    x = normal(3, H)
    with torch.no_grad():
        torch.testing.assert_close(model(x), seeded()(x))


@pytest.mark.parametrize("kind", [UpsFirst, InTurns])
def test_quantized_stacks_in_other_orders(tmp_path: Path, kind: Any) -> None:
    state = in_order(seeded().state_dict(), kind)
    layer = experts_of(kind, convert(state, tmp_path, "mxfp4", experts_layout="out_in"))
    given = normal(5, H, seed=9), *routes(5)
    assert off_by(layer(*given), layer, *given) <= 1
    usual = convert(by_name(seeded()), tmp_path / "usual", "mxfp4")
    assert torch.equal(layer(*given), experts_of(GateUpExperts, usual)(*given))


def experts_of(kind: Any, folder: Path) -> Any:
    layer = load(on_meta(kind), folder).layers[0].mlp.experts
    assert type(layer) is Experts
    return layer


@pytest.mark.parametrize(
    ("recipe", "inner"), [("mxfp4", 64), ("nvfp4", 64), ("fp8_128x128", 64), ("fp8_128x128", 128)]
)
@pytest.mark.parametrize("kind", [GateUpExperts, UpsFirst])
def test_a_state_is_a_checkpoint_in_the_models_order(
    tmp_path: Path, kind: Any, recipe: str, inner: int
) -> None:
    """Also where gates and ups are apart, since no block divides them."""
    folder = convert(by_name(seeded(inner=inner)), tmp_path, recipe)
    model, usual = load(on_meta(kind, inner), folder), load(on_meta(inner=inner), folder)
    given = normal(5, H, seed=9), *routes(5)
    for block, want in zip(model.layers, usual.layers, strict=True):
        assert block.mlp.experts.gate_first == (kind is GateUpExperts)
        assert torch.equal(block.mlp.experts(*given), want.mlp.experts(*given))
    config = (folder / "config.json").read_text()
    again = load(on_meta(kind, inner), save_state(model.state_dict(), tmp_path / "saved", config))
    with torch.no_grad():
        assert torch.equal(again(given[0]), model(given[0]))


@pytest.mark.parametrize("kind", [GateUpExperts, UpsFirst])
def test_ups_with_tensor_scales_of_their_own(tmp_path: Path, kind: Any) -> None:
    folder = convert(by_name(seeded()), tmp_path, "nvfp4")
    state = load_file(folder / "model.safetensors")
    for e, factor in enumerate((1, 3, 1.25, 0.7)):
        state[f"layers.0.mlp.experts.{e}.up_proj.weight_global_scale"].mul_(factor)
    save_file(state, folder / "model.safetensors")
    layer, usual = experts_of(kind, folder), experts_of(GateUpExperts, folder)
    torch.set_default_dtype(torch.float64)  # that of a model, say, and not that of scales
    try:
        assert same(experts_of(kind, folder).w2_alphas, layer.w2_alphas)
    finally:
        torch.set_default_dtype(torch.float32)
    given = normal(5, H, seed=9), *routes(5)
    assert layer.w2_alphas is not None and torch.equal(layer(*given), usual(*given))


def test_gates_and_ups_in_turns_have_no_names(tmp_path: Path) -> None:
    folder = convert(by_name(seeded()), tmp_path, "mxfp4")
    with pytest.raises(ValueError, match="has gates and ups in turns in the model, and the check"):
        load(on_meta(InTurns), folder)


@pytest.mark.parametrize("kind", [HiddenLimit, Softcapped, Choosy])
def test_what_no_option_does_is_an_error(tmp_path: Path, kind: Any) -> None:
    assert gate_of(kind()) is None
    folder = convert(by_name(seeded()), tmp_path, "mxfp4")
    with pytest.raises(ValueError, match=f"what {kind.__name__} has between its products is no Sw"):
        load(on_meta(kind), folder)


@pytest.mark.parametrize("make", [lambda: LearnedSlope(), lambda: LearnedSlope().to("meta")])
def test_a_slope_that_was_learned_is_not_lost(tmp_path: Path, make: Any) -> None:
    state = by_name(seeded())
    state |= {f"layers.{i}.mlp.experts.act_fn.beta": torch.full((1,), 1.7) for i in (0, 1)}
    model = seeded()
    for layer in model.layers:
        layer.mlp.experts = make()
    with pytest.raises(ValueError, match=r"stands beside act_fn\.beta, which would be lost"):
        load(model, convert(state, tmp_path, "mxfp4"))


@pytest.mark.parametrize("bias", ["gate_up_proj_bias", "down_proj_bias"])
def test_biases_that_experts_share(tmp_path: Path, bias: str) -> None:
    """Are found before anything changes."""
    model, size = seeded(), 2 * I if bias == "gate_up_proj_bias" else H
    experts = model.layers[1].mlp.experts
    setattr(experts, bias, torch.nn.Parameter(torch.zeros(size)))
    state = by_name(seeded()) | {f"layers.1.mlp.experts.{bias}": torch.ones(size)}
    with pytest.raises(ValueError, match=rf"{bias} has shape \({size},\), must be \(4, {size}\)"):
        load(model, convert(state, tmp_path, "mxfp4"))
    assert model.layers[1].mlp.experts is experts and not getattr(experts, bias).any()


# --- ties -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["module", "stacks"])
@pytest.mark.parametrize("names", ["first", "second", "both"])
@pytest.mark.parametrize("recipe", ["mxfp4", "plain"])
def test_what_is_one_in_the_model_stays_one(
    tmp_path: Path, kind: str, names: str, recipe: str
) -> None:
    state = by_name(seeded())
    for name in [name for name in state if "layers.0.mlp.experts" in name]:
        state[name.replace("layers.0", "layers.1")] = state[name].clone()
    gone = {"first": "layers.1.mlp.experts", "second": "layers.0.mlp.experts"}
    state = {name: x for name, x in state.items() if gone.get(names, "none") not in name}
    if recipe == "plain":
        folder = save_state(state, tmp_path / "plain")
    else:
        folder = convert(state, tmp_path, recipe)
    model = load(tied(kind), folder)
    first, second = (layer.mlp.experts for layer in model.layers)
    assert (first is second) == (kind == "module")
    want = load(seeded(), convert(by_name(seeded()), tmp_path / "want", "mxfp4"))
    if recipe == "plain":
        assert first.gate_up_proj is second.gate_up_proj and first.down_proj is second.down_proj
        assert torch.equal(first.down_proj, seeded().layers[0].mlp.experts.down_proj)
    else:
        assert first.w2_values.data_ptr() == second.w2_values.data_ptr()
        given = normal(5, H, seed=9), *routes(5)
        assert torch.equal(second(*given), want.layers[0].mlp.experts(*given))


@pytest.mark.parametrize("recipe", ["mxfp4", "plain"])
def test_what_is_one_in_the_model_and_two_in_the_checkpoint(tmp_path: Path, recipe: str) -> None:
    state = by_name(seeded())
    folder = save_state(state, tmp_path / "m")
    if recipe != "plain":
        folder = convert(state, tmp_path, recipe)
    said = (
        r"layers\.1\.mlp\.experts\.0\.gate_proj\.weight: is one tensor with "
        r"layers\.0\.mlp\.experts\.0\.gate_proj\.weight in the model, and of other experts"
    )
    with pytest.raises(ValueError, match=said):
        load(tied("stacks"), folder)


# --- scales ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["compressed_tensors", "modelopt"])
def test_tensor_scales_whose_quotient_is_no_number(tmp_path: Path, dialect: str) -> None:
    folder = convert(by_name(seeded()), tmp_path, "nvfp4", dialect=dialect)
    state = load_file(folder / "model.safetensors")
    suffix = "weight_global_scale" if dialect == "compressed_tensors" else "weight_scale_2"
    state[f"layers.0.mlp.experts.1.gate_proj.{suffix}"].fill_(1e-30)
    state[f"layers.0.mlp.experts.1.up_proj.{suffix}"].fill_(1e30)
    save_file(state, folder / "model.safetensors")
    with pytest.raises(ValueError, match="different tensor scales, whose quotient no float32 hold"):
        load(on_meta(), folder)


@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp4", "fp8_tensor", "fp8_row", "fp8_128x128"])
def test_experts_of_zeros(tmp_path: Path, recipe: str) -> None:
    model = seeded()
    experts = model.layers[0].mlp.experts
    with torch.no_grad():
        experts.gate_up_proj[0] = 0  # all of an expert's,
        experts.down_proj[0] = 0
        experts.gate_up_proj[1, :I] = 0  # its gates,
        experts.gate_up_proj[2, I:] = 0  # its ups
    layer = load(on_meta(), convert(by_name(model), tmp_path, recipe)).layers[0].mlp.experts
    x, weights = normal(E, H, seed=9), torch.ones(E, 1)
    y = layer(x, torch.arange(E)[:, None], weights)
    assert not y[:3].any() and bool(torch.isfinite(y).all()) and bool(y[3].any())
    assert off_by(y, layer, x, torch.arange(E)[:, None], weights) <= 1
