"""blockscale.nn.quantize of stacks of experts: the bytes, the choice and the errors of convert and
load; `./dev test --torch` runs these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import blockscale
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")

import blockscale.nn  # noqa: E402
from blockscale.nn import Experts, Linear, load, quantize  # noqa: E402
from nn_experts import (  # noqa: E402
    E,
    GateUpExperts,
    H,
    I,
    TurnedExperts,
    by_name,
    normal,
    off_by,
    on_meta,
    routes,
    save_state,
    seeded,
    tied,
)
from nn_model import same, same_state  # noqa: E402

#: recipe, dialect, options, and the inner size of an expert.
CASES: list[tuple[str, str, dict[str, Any], int]] = [
    ("nvfp4", "compressed_tensors", {}, 64),
    ("nvfp4", "modelopt", {"activations": "none"}, 64),
    ("nvfp4", "compressed_tensors", {"activations": "dynamic", "scales": "mse"}, 64),
    ("mxfp4", "compressed_tensors", {"scale_mode": "ceil"}, 64),
    ("mxfp6_e2m3", "compressed_tensors", {"activations": "dynamic"}, 64),
    ("mxfp8_e4m3", "modelopt", {}, 64),
    ("fp8_tensor", "compressed_tensors", {}, 64),
    ("fp8_row", "modelopt", {}, 64),
    ("fp8_64x128", "compressed_tensors", {"amax_floor": 3.0}, 64),
    ("fp8_128x128", "deepseek", {}, 128),
    ("fp8_128x128", "deepseek", {}, 192),  # gates and ups apart
    ("fp8_128x128_ue8m0", "deepseek", {}, 64),
]


def uneven(kind: Any = GateUpExperts, inner: int = I) -> Any:
    """Gates and ups of other magnitudes in each expert, and some of zeros."""
    model = seeded(kind, inner)
    experts = model.layers[0].mlp.experts
    with torch.no_grad():
        experts.gate_up_proj[1, :inner] *= 3
        experts.gate_up_proj[2, inner:] *= 5
        experts.gate_up_proj[3, :inner] = 0
        experts.down_proj[0] = 0
    return model


def stored(model: Any, folder: Path, recipe: str, **options: Any) -> Path:
    save_state(by_name(model), folder / "plain")
    blockscale.convert(folder / "plain", folder / recipe, recipe, **options)
    return folder / recipe


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("recipe", "dialect", "options", "inner"), CASES)
def test_the_result_is_what_convert_stores_and_load_loads(
    tmp_path: Path, recipe: str, dialect: str, options: dict[str, Any], inner: int, dtype: Any
) -> None:
    model = uneven(inner=inner).to(dtype)
    folder = stored(model, tmp_path, recipe, dialect=dialect, **options)
    want = load(on_meta(inner=inner).to(dtype), folder)
    assert quantize(model, recipe, dialect=dialect, **options) is model
    layer, wanted = model.layers[0].mlp.experts, want.layers[0].mlp.experts
    assert type(layer) is Experts and type(model.layers[0].q_proj) is Linear
    assert same_state(model, want) and repr(model) == repr(want)
    assert (layer.w13.shape, layer.activations) == (wanted.w13.shape, wanted.activations)
    assert not layer.training
    given = normal(5, H, seed=9).to(dtype), *routes(5)
    assert torch.equal(layer(*given), wanted(*given))
    assert off_by(layer(*given), layer, *given) <= 1


SIZES = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 64}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64}
MODELS = {
    "Mixtral": {"num_local_experts": 4},
    "Qwen3Moe": {"num_experts": 4, "moe_intermediate_size": 64, "head_dim": 32},
    "Olmoe": {"num_experts": 4},
    "GptOss": {"num_local_experts": 4, "head_dim": 32},
}


@pytest.mark.parametrize(
    ("recipe", "dialect"),
    [("nvfp4", "modelopt"), ("mxfp4", "compressed_tensors"), ("fp8_128x128", "deepseek")],
)
@pytest.mark.parametrize("name", MODELS)
def test_models_of_transformers(tmp_path: Path, name: str, recipe: str, dialect: str) -> None:
    """Saved, converted and loaded they are the same as quantized in memory."""
    transformers = pytest.importorskip("transformers", minversion="5")
    config = getattr(transformers, f"{name}Config")(**SIZES, **MODELS[name], num_experts_per_tok=2)
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    model.save_pretrained(tmp_path / "plain")
    blockscale.convert(tmp_path / "plain", tmp_path / "q", recipe, dialect=dialect)
    want = load(type(model)(config).eval(), tmp_path / "q")
    quantize(model, recipe, dialect=dialect)
    found = [module for module in model.modules() if type(module) is Experts]
    assert len(found) == (0 if name == "GptOss" else 2)  # whose stacks are [E, in, out]
    assert same_state(model, want) and repr(model) == repr(want)
    with torch.no_grad():
        y, wanted = (m(torch.arange(24).reshape(2, 12)).logits for m in (model, want))
    assert torch.equal(y, wanted)


@pytest.mark.parametrize("recipe", ["nvfp4", "fp8_tensor"])
def test_static_inputs(tmp_path: Path, recipe: str) -> None:
    """Which `moe` has not."""
    names = [n.removesuffix(".weight") for n in by_name(seeded()) if "expert" in n or "q_proj" in n]
    (tmp_path / "scales.json").write_text(json.dumps(dict.fromkeys(names, 4.0)))
    options = {"dialect": "modelopt", "activation_scales": tmp_path / "scales.json"}
    model = quantize(seeded(), recipe, **options)
    assert same_state(model, load(on_meta(), stored(seeded(), tmp_path, recipe, **options)))
    assert model.layers[0].q_proj.input_scale is not None


def test_experts_that_a_calibration_did_not_reach_are_asked_for_or_excluded() -> None:
    calibrator = calibrated_of(seeded())
    options = {"scales": "weighted", "calibration": calibrator}
    with pytest.raises(ValueError, match="experts"):
        quantize(seeded(), "nvfp4", **options)
    model = quantize(seeded(), "nvfp4", **options, exclude=["*.experts.*"])
    assert type(model.layers[0].q_proj) is Linear
    assert type(model.layers[0].mlp.experts) is GateUpExperts


def calibrated_of(model: Any) -> blockscale.Calibrator:
    with blockscale.Calibrator(model) as calibrator, torch.no_grad():
        model(normal(3, H))
    return calibrator


# --- orders and ties ------------------------------------------------------------------------------


class InTurns(GateUpExperts):
    def _apply_gate(self, x: Any) -> Any:
        return torch.nn.functional.silu(x[..., ::2]) * x[..., 1::2]


class UpsFirst(GateUpExperts):
    def _apply_gate(self, x: Any) -> Any:
        up, gate = x.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up


@pytest.mark.parametrize("recipe", ["nvfp4", "fp8_128x128", "mxfp4"])
def test_ups_that_come_first(tmp_path: Path, recipe: str) -> None:
    model = load(on_meta(UpsFirst), save_state(by_name(uneven()), tmp_path / "plain"))
    want = load(on_meta(UpsFirst), stored(uneven(), tmp_path / "stored", recipe))
    assert same_state(quantize(model, recipe), want) and repr(model) == repr(want)
    given = normal(5, H, seed=9), *routes(5)
    usual = quantize(uneven(), recipe).layers[0].mlp.experts
    assert torch.equal(model.layers[0].mlp.experts(*given), usual(*given))


def test_biases() -> None:
    class Biased(GateUpExperts):
        def __init__(self) -> None:
            super().__init__()
            self.gate_up_proj_bias = torch.nn.Parameter(normal(E, 2 * I, seed=4))
            self.down_proj_bias = torch.nn.Parameter(normal(E, H, seed=5))

    experts = Biased()
    with torch.no_grad():
        experts.gate_up_proj.copy_(normal(E, 2 * I, H, seed=1) / 11)
        experts.down_proj.copy_(normal(E, H, I, seed=2) / 8)
    layer, given = quantize(experts, "mxfp4"), (normal(5, H, seed=9), *routes(5))
    assert type(layer) is Experts and layer.training  # one layer that is the whole model
    assert torch.equal(layer.down_proj_bias, experts.down_proj_bias)
    assert off_by(layer(*given), layer, *given) <= 1


@pytest.mark.parametrize("kind", ["module", "stacks"])
def test_what_is_one_stays_one(kind: str) -> None:
    model = tied(kind)
    quantize(model, "nvfp4")
    first, second = (layer.mlp.experts for layer in model.layers)
    assert type(first) is type(second) is Experts and (first is second) == (kind == "module")
    assert first.w2_values.data_ptr() == second.w2_values.data_ptr()


def test_a_second_call_has_another_recipe() -> None:
    model = quantize(seeded(), "fp8_row", include=["*.experts.*"])
    first = model.layers[0].mlp.experts
    assert first.w13.recipe.name == "fp8_row" and type(model.layers[0].q_proj) is torch.nn.Linear
    quantize(model, "nvfp4")
    assert model.layers[0].mlp.experts is first and type(model.layers[0].q_proj) is Linear


# --- what stays, and errors -----------------------------------------------------------------------


def test_stacks_that_lie_the_other_way_round_stay() -> None:
    model = quantize(seeded(TurnedExperts), "mxfp4")
    assert type(model.layers[0].mlp.experts) is TurnedExperts
    want = seeded(TurnedExperts).state_dict()
    for name, x in model.layers[0].mlp.experts.state_dict().items():
        assert same(x, want[f"layers.0.mlp.experts.{name}"])
    with pytest.raises(
        ValueError, match=r"include: reaches layers\.0\.mlp\.experts\.down_proj, in"
    ):
        quantize(seeded(TurnedExperts), "mxfp4", include=["*experts.*"])


class GeluExperts(GateUpExperts):
    def __init__(self, inner: int = I) -> None:
        super().__init__(inner)
        self.act_fn = torch.nn.GELU()


def changed(change: Any) -> Any:
    model = seeded()
    with torch.no_grad():
        change(model.layers[1].mlp.experts)
    return model


def nonfinite(experts: Any) -> None:
    experts.gate_up_proj[3, I + 2, 5] = float("nan")


def beside(experts: Any) -> None:
    experts.scale = torch.nn.Parameter(torch.ones(1))


ERRORS: list[tuple[Any, dict[str, Any], str]] = [
    (lambda: seeded(InTurns), {}, r"experts\.gate_up_proj: has gates and ups in turns in the mod"),
    (
        lambda: seeded(GeluExperts),
        {},
        r"model: layers\.0\.mlp\.experts\.gate_up_proj: what GeluE[^(]*\(exclude may name these",
    ),
    (lambda: changed(beside), {}, r"layers\.1\.mlp\.experts\.gate_up_proj: stands beside scale, w"),
    (lambda: changed(nonfinite), {}, r"experts\.3\.up_proj\.weight holds NaN or infinity"),
    (on_meta, {"include": ["*.experts.*"]}, "is on the meta device, which has no numbers"),
    (
        seeded,
        {"exclude": ["*.experts.2.*"]},
        r"experts\.2\.down_proj\.weight stays \(excluded\), and others of these experts are quant",
    ),
    (seeded, {"include": ["*gate_up_proj"]}, "include"),
    (
        lambda: seeded(inner=72),
        {},
        r"experts\.0\.down_proj\.weight stays \(k = 72 is no multiple of 16.*\), and others of the",
    ),
]


@pytest.mark.parametrize("case", range(len(ERRORS)))
def test_errors_change_nothing(case: int) -> None:
    make, options, text = ERRORS[case]
    model = make()
    modules = dict(model.named_modules())
    with pytest.raises(ValueError, match=text):
        quantize(model, "nvfp4", **options)
    assert dict(model.named_modules()) == modules


@pytest.mark.parametrize("dtype", [torch.float64, torch.float8_e4m3fnuz])
def test_numbers_that_convert_does_not_quantize_stay(dtype: Any) -> None:
    model = seeded().requires_grad_(False)
    model.layers[1].mlp.experts.to(dtype)
    quantize(model, "nvfp4")
    assert [type(layer.mlp.experts) for layer in model.layers] == [Experts, GateUpExperts]


def test_experts_that_none_can_stand_in_for_may_be_excluded() -> None:
    model = quantize(seeded(GeluExperts), "nvfp4", exclude=["*.experts.*"])
    assert type(model.layers[0].mlp.experts) is GeluExperts
    assert type(model.layers[0].q_proj) is Linear
