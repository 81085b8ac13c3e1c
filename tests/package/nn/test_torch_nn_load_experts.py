"""blockscale.nn.load of experts: by name and as stacks, what does not match, transformers' classes;
`./dev test --torch` runs these."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import blockscale
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")

import blockscale.nn  # noqa: E402
import causal_models  # noqa: E402
from blockscale._torch_stacks import gate_of  # noqa: E402
from blockscale.nn import Experts, load  # noqa: E402
from nn_experts import (  # noqa: E402
    NAMES,
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
)
from nn_model import same  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

#: recipe, dialect, activations, and what inputs of experts become.
STORED = [
    ("nvfp4", "compressed_tensors", "none", "bf16"),
    ("nvfp4", "compressed_tensors", "dynamic", "bf16"),
    ("nvfp4", "modelopt", "none", "bf16"),
    ("mxfp4", "compressed_tensors", "dynamic", "bf16"),
    ("mxfp6_e2m3", "compressed_tensors", "dynamic", "mxfp8_e4m3"),
    ("mxfp8_e4m3", "modelopt", "dynamic", "mxfp8_e4m3"),
    ("fp8_row", "compressed_tensors", "dynamic", "fp8_1x128"),
    ("fp8_tensor", "compressed_tensors", "dynamic", "fp8_1x128"),
    ("fp8_128x128", "deepseek", "dynamic", "fp8_1x128"),
    ("fp8_128x128_pow2", "deepseek", "dynamic", "fp8_1x128_pow2"),
    ("fp8_128x128_ue8m0", "deepseek", "dynamic", "fp8_1x128_pow2"),
]
FUSED = [(r, d, a, inputs) for r, d, a, inputs in STORED if d != "compressed_tensors" or "mx" in r]


def convert(state: dict[str, Any], folder: Path, recipe: str, **options: Any) -> Path:
    save_state(state, folder / "plain")
    blockscale.convert(folder / "plain", folder / recipe, recipe, **options)
    return folder / recipe


def check_experts(layer: Any, path: str, checkpoint: Any, names: str) -> None:
    """Its numbers are those of each expert's matrices, and its results follow from them."""
    _, gate, up, down = NAMES[names]
    w13, w2 = (blockscale.dequantize(w) for w in (layer.w13, layer.w2))
    w13 = w13.reshape(E, -1, H).clone()
    if layer.w2_alphas is not None:
        w13[:, len(w13[0]) // 2 :] *= layer.w2_alphas[:, None, None]
    for e in range(E):
        parts = [checkpoint[f"{path}.{e}.{name}.weight"] for name in (gate, up, down)]
        gates, ups, downs = (torch.from_numpy(blockscale.dequantize(part)) for part in parts)
        assert torch.equal(w2[e], downs)
        torch.testing.assert_close(w13[e], torch.cat([gates, ups]), rtol=2e-7, atol=0)
    given = normal(5, H, seed=9), *routes(5)
    assert off_by(layer(*given), layer, *given) <= 1


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize(("recipe", "dialect", "activations", "inputs"), STORED)
def test_experts_by_name(
    tmp_path: Path, recipe: str, dialect: str, activations: str, inputs: str, names: str
) -> None:
    state = by_name(seeded(), names)
    folder = convert(state, tmp_path, recipe, dialect=dialect, activations=activations)
    model = load(on_meta(), folder)
    checkpoint = blockscale.Checkpoint(folder)
    for i, block in enumerate(model.layers):
        layer = block.mlp.experts
        assert type(layer) is Experts and type(block.mlp.gate) is torch.nn.Linear
        assert not layer.training
        assert (layer.w13.recipe.name, layer.activations) == (recipe, inputs)
        assert layer.dialect == dialect and len(layer.w13.values) in (E, 2 * E)
        check_experts(layer, f"layers.{i}.{NAMES[names][0]}.experts", checkpoint, names)
    with torch.no_grad():
        assert torch.isfinite(model(normal(3, H))).all()


@pytest.mark.parametrize(("recipe", "dialect", "activations", "inputs"), FUSED)
def test_experts_as_stacks(
    tmp_path: Path, recipe: str, dialect: str, activations: str, inputs: str
) -> None:
    """The state of what is loaded is what is stored, and a checkpoint."""
    folder = convert(
        seeded().state_dict(),
        tmp_path,
        recipe,
        dialect=dialect,
        activations=activations,
        experts_layout="out_in",
    )
    model, files = load(on_meta(), folder), load_file(folder / "model.safetensors")
    checkpoint, given = blockscale.Checkpoint(folder), (normal(5, H, seed=9), *routes(5))
    for i, block in enumerate(model.layers):
        layer = block.mlp.experts
        assert type(layer) is Experts and layer.activations == inputs
        for name, weight in (("gate_up_proj", layer.w13), ("down_proj", layer.w2)):
            stored = checkpoint[f"layers.{i}.mlp.experts.{name}"]
            assert torch.equal(
                blockscale.dequantize(weight), torch.from_numpy(blockscale.dequantize(stored))
            )
        assert off_by(layer(*given), layer, *given) <= 1
    state = model.state_dict()
    assert state.keys() == files.keys() and all(same(state[n], x) for n, x in files.items())


@pytest.mark.parametrize(
    ("recipe", "dialect"),
    [("nvfp4", "modelopt"), ("nvfp4", "compressed_tensors"), ("fp8_128x128", "deepseek")],
)
def test_a_state_of_experts_by_name_is_a_checkpoint(
    tmp_path: Path, recipe: str, dialect: str
) -> None:
    inner = 128  # gates and ups are whole blocks
    folder = convert(by_name(seeded(inner=inner)), tmp_path, recipe, dialect=dialect)
    model = load(on_meta(inner=inner), folder)
    save_state(model.state_dict(), tmp_path / "saved", (folder / "config.json").read_text())
    again, x = load(on_meta(inner=inner), tmp_path / "saved"), normal(3, H)
    with torch.no_grad():
        assert torch.equal(again(x), model(x))


def test_gates_and_ups_that_blocks_do_not_divide(tmp_path: Path) -> None:
    folder = convert(by_name(seeded(inner=192)), tmp_path, "fp8_128x128")
    layer = load(on_meta(inner=192), folder).layers[0].mlp.experts
    assert layer.w13.shape == (2 * E, 192, H) and layer.w2.shape == (E, H, 192)
    check_experts(layer, "layers.0.mlp.experts", blockscale.Checkpoint(folder), "qwen")


@pytest.mark.parametrize("dialect", ["compressed_tensors", "modelopt"])
def test_gates_and_ups_with_tensor_scales_of_their_own(tmp_path: Path, dialect: str) -> None:
    folder = convert(by_name(seeded()), tmp_path, "nvfp4", dialect=dialect)
    state = load_file(folder / "model.safetensors")
    suffix = "weight_global_scale" if dialect == "compressed_tensors" else "weight_scale_2"
    for e, factor in enumerate((1, 3, 1.25, 0.7)):
        state[f"layers.0.mlp.experts.{e}.up_proj.{suffix}"].mul_(factor)
    save_file(state, folder / "model.safetensors")
    model = load(on_meta(), folder)
    layer, checkpoint = model.layers[0].mlp.experts, blockscale.Checkpoint(folder)
    assert layer.w2_alphas is not None and model.layers[1].mlp.experts.w2_alphas is None
    check_experts(layer, "layers.0.mlp.experts", checkpoint, "qwen")
    # A clamp of ups is no factor.
    model = on_meta()
    experts = model.layers[0].mlp.experts
    experts.limit = 7.0
    experts._apply_gate = lambda x: (
        experts.act_fn(x.chunk(2, -1)[0].clamp(max=7)) * x.chunk(2, -1)[1].clamp(-7, 7)
    )
    with pytest.raises(ValueError, match="gates and ups have different tensor scales, which goes"):
        load(model, folder)


def test_scales_of_whole_matrices(tmp_path: Path) -> None:
    """Gates and ups that share one are one matrix, others are apart."""
    folder = convert(by_name(seeded()), tmp_path, "fp8_tensor", dialect="compressed_tensors")
    state = load_file(folder / "model.safetensors")
    state["layers.1.mlp.experts.2.up_proj.weight_scale"].mul_(1.5)
    save_file(state, folder / "model.safetensors")
    layers, checkpoint = load(on_meta(), folder).layers, blockscale.Checkpoint(folder)
    assert [len(layer.mlp.experts.w13.values) for layer in layers] == [E, 2 * E]
    for i in (0, 1):
        check_experts(layers[i].mlp.experts, f"layers.{i}.mlp.experts", checkpoint, "qwen")


# --- gpt-oss --------------------------------------------------------------------------------------


def gpt_oss(folder: Path) -> Path:
    """MXFP4 blocks and scales [E, out, in], biases in bf16."""
    state = seeded(TurnedExperts).state_dict()
    for name in [name for name in state if name.endswith(("gate_up_proj", "experts.down_proj"))]:
        stack = blockscale.quantize(4 * state.pop(name).mT.contiguous(), "mxfp4")
        values = stack.values.view(torch.uint8)
        state[f"{name}_blocks"] = values.reshape(*values.shape[:2], -1, 16).contiguous()
        state[f"{name}_scales"] = stack.scales.view(torch.uint8)
    config = '{"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}'
    return save_state({n: x.contiguous() for n, x in state.items()}, folder, config)


@pytest.mark.parametrize("recipe", ["mxfp4", "nvfp4"])
def test_experts_of_gpt_oss(tmp_path: Path, recipe: str) -> None:
    folder = gpt_oss(tmp_path / "mxfp4")
    if recipe == "nvfp4":
        blockscale.convert(folder, tmp_path / "nvfp4", "nvfp4", dialect="modelopt")
        folder = tmp_path / "nvfp4"
    model, x = load(on_meta(TurnedExperts), folder), normal(5, H, seed=9)
    layer = model.layers[0].mlp.experts
    assert (layer.limit, layer.alpha, layer.up_shift, layer.interleave) == (7.0, 1.702, 1.0, 1)
    assert layer.w13.recipe.name == layer.w2.recipe.name == recipe
    given = x, *routes(5)
    assert off_by(layer(*given), layer, *given) <= 1
    # The same numbers in the model's own code.
    plain = seeded(TurnedExperts).layers[0].mlp.experts
    with torch.no_grad():
        for name, weight in (("gate_up_proj", layer.w13), ("down_proj", layer.w2)):
            getattr(plain, name).copy_(blockscale.dequantize(weight).mT)
        assert off_by(plain(*given), layer, *given) <= 1
    half = load(on_meta(TurnedExperts).bfloat16(), folder).layers[0].mlp.experts
    assert half.gate_up_proj_bias.dtype == torch.bfloat16
    assert half(x.bfloat16(), *given[1:]).dtype == torch.bfloat16


def test_gates_and_ups_in_turns_in_the_model_and_by_name_in_the_checkpoint(tmp_path: Path) -> None:
    folder = convert(by_name(seeded()), tmp_path, "mxfp4")
    with pytest.raises(ValueError, match="has gates and ups in turns in the model, and the check"):
        load(on_meta(TurnedExperts), folder)


# --- plain ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_plain_experts_become_stacks(tmp_path: Path, dtype: Any, names: str) -> None:
    state = {n: x.to(torch.bfloat16) for n, x in by_name(seeded(), names).items()}
    model = load(on_meta().to(dtype), save_state(state, tmp_path / "plain"))
    want = seeded().to(torch.bfloat16).to(dtype).state_dict()
    assert all(same(x, want[name]) for name, x in model.state_dict().items())
    assert type(model.layers[0].mlp.experts) is GateUpExperts
    assert model.layers[0].mlp.experts.gate_up_proj.requires_grad


def test_plain_experts_become_turned_stacks(tmp_path: Path) -> None:
    state = by_name(seeded())
    state |= {n: x for n, x in seeded(TurnedExperts).state_dict().items() if n.endswith("bias")}
    experts = load(on_meta(TurnedExperts), save_state(state, tmp_path / "m")).layers[0].mlp.experts
    want = seeded().layers[0].mlp.experts
    assert experts.gate_up_proj.shape == (E, H, 2 * I)
    halves = experts.gate_up_proj[..., ::2], experts.gate_up_proj[..., 1::2]
    assert torch.equal(torch.cat(halves, -1).mT, want.gate_up_proj)
    assert torch.equal(experts.down_proj.mT, want.down_proj)


def test_stacks_that_are_stored_plain_stay(tmp_path: Path) -> None:
    folder = save_state(seeded().state_dict(), tmp_path / "plain")
    model, x = load(on_meta(), folder), normal(3, H)
    with torch.no_grad():
        assert torch.equal(model(x), seeded()(x))


# --- what does not match --------------------------------------------------------------------------


def problems_of(model: Any, folder: Path) -> list[str]:
    """Of a load that changes nothing."""
    modules, state = dict(model.named_modules()), dict(model.state_dict())
    with pytest.raises(ValueError) as error:
        load(model, folder)
    assert dict(model.named_modules()) == modules
    after = model.state_dict()
    assert after.keys() == state.keys() and all(same(x, after[n]) for n, x in state.items())
    return str(error.value).splitlines()[1:]


def test_all_that_does_not_match_is_named_and_nothing_changes(tmp_path: Path) -> None:
    exclude = ["*layers.0.mlp.experts.1.*"]
    folder = convert(by_name(seeded()), tmp_path, "fp8_128x128", exclude=exclude)
    state = load_file(folder / "model.safetensors")
    moved = "layers.1.mlp.experts.{}.up_proj.weight"
    for part in ("", "_scale_inv"):
        state[moved.format(4) + part] = state.pop(moved.format(3) + part)
    state["layers.0.mlp.experts.0.gate_proj.bias"] = torch.zeros(I)
    save_file(state, folder / "model.safetensors")
    model = seeded()
    model.layers[1].mlp.experts.scale = torch.nn.Parameter(torch.ones(1))
    plain = ": is plain, and quantized are others of these experts"
    nowhere = ": is in the checkpoint, and nowhere in the model (ignore may name it)"
    assert sorted(problems_of(model, folder)) == [
        "layers.0.mlp.experts.0.gate_proj.bias" + nowhere,
        *(f"layers.0.mlp.experts.1.{n}_proj.weight{plain}" for n in ("down", "gate", "up")),
        f"{moved.format(3)}: is in the model, and nowhere in the checkpoint",
        moved.format(4) + nowhere,
        "layers.1.mlp.experts.gate_up_proj: stands beside scale, which would be lost",
        "layers.1.mlp.experts.scale: is in the model, and nowhere in the checkpoint",
    ]


def test_shapes_and_recipes_that_differ(tmp_path: Path) -> None:
    folder = convert(by_name(seeded()), tmp_path, "mxfp8_e4m3")
    found = problems_of(seeded(inner=96), folder)
    first = "layers.0.mlp.experts.0.gate_proj.weight: shape is (64, 128), in the model (96, 128)"
    assert len(found) == 2 * 3 * E and found[0] == first
    recipes = {"*experts.0.*": "fp8_row"}
    save_state(by_name(seeded()), tmp_path / "again")
    blockscale.convert(tmp_path / "again", tmp_path / "mixed", "mxfp8_e4m3", map=recipes)
    said = "its experts are stored as fp8_row, mxfp8_e4m3, must have one recipe"
    assert problems_of(seeded(), tmp_path / "mixed") == [
        f"layers.{i}.mlp.experts.{name}: {said}"
        for i in (0, 1)
        for name in ("gate_up_proj", "down_proj")
    ]


class GeluExperts(GateUpExperts):
    def __init__(self, inner: int = I) -> None:
        super().__init__(inner)
        self.act_fn = torch.nn.GELU()


class Llama4Experts(GateUpExperts):
    def forward(self, hidden_states: Any) -> Any:
        return hidden_states


class NormedExperts(GateUpExperts):
    def __init__(self, inner: int = I) -> None:
        super().__init__(inner)
        self.post_expert_norm = torch.nn.Identity()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (GeluExperts, "what GeluExperts has between its products is no SwiGLU that moe has"),
        (Llama4Experts, r"Llama4Experts.forward takes (hidden_states), must take hidden states, "),
        (NormedExperts, "stands beside post_expert_norm, which would be lost"),
    ],
)
def test_classes_that_none_can_stand_in_for(tmp_path: Path, kind: Any, text: str) -> None:
    folder = convert(by_name(seeded()), tmp_path, "mxfp4")
    found = problems_of(seeded(kind), folder)
    assert len(found) == 2 and all(text in problem for problem in found)


def test_biases_that_moe_has_not(tmp_path: Path) -> None:
    model = seeded(TurnedExperts)
    experts = model.layers[1].mlp.experts
    experts.down_proj_bias = torch.nn.Parameter(experts.down_proj_bias.double())
    said = "the biases are torch.float32, torch.float64, must be float32, float16 or bfloat16, both"
    assert said in problems_of(model, gpt_oss(tmp_path / "m"))[0]


def test_stacks_of_which_one_is_plain(tmp_path: Path) -> None:
    folder = convert(
        seeded().state_dict(),
        tmp_path,
        "mxfp8_e4m3",
        exclude=["*down_proj"],
        experts_layout="out_in",
    )
    assert problems_of(seeded(), folder) == [
        f"layers.{i}.mlp.experts.down_proj: is plain, and quantized are others of these experts"
        for i in (0, 1)
    ]


@pytest.mark.parametrize("recipe", ["mxfp4", "nvfp4"])
def test_inputs_in_fp8_by_rows_beside_fp4_weights(tmp_path: Path, recipe: str) -> None:
    """W4A8, which no preset has."""
    options = {"dialect": "compressed_tensors", "activations": "dynamic"}
    folder = convert(by_name(seeded()), tmp_path, recipe, **options)
    config = json.loads((folder / "config.json").read_text())
    for group in config["quantization_config"]["config_groups"].values():
        group["input_activations"] = {
            "num_bits": 8,
            "type": "float",
            "strategy": "token",
            "symmetric": True,
            "dynamic": True,
        }
    (folder / "config.json").write_text(json.dumps(config))
    block = load(on_meta(), folder).layers[0]
    assert block.q_proj.activations == block.mlp.experts.activations == "fp8_row"
    checkpoint = blockscale.Checkpoint(folder)
    check_experts(block.mlp.experts, "layers.0.mlp.experts", checkpoint, "qwen")


@pytest.mark.parametrize(("recipe", "inputs"), [("nvfp4", "bf16"), ("fp8_tensor", "fp8_1x128")])
def test_static_inputs(tmp_path: Path, recipe: str, inputs: str) -> None:
    """Which `moe` has not."""
    state = by_name(seeded())
    scales = {n.removesuffix(".weight"): 4.0 for n in state if "experts" in n or "q_proj" in n}
    (tmp_path / "scales.json").write_text(json.dumps(scales))
    options = {"activations": "static", "activation_scales": tmp_path / "scales.json"}
    folder = convert(state, tmp_path, recipe, dialect="modelopt", **options)
    block = load(on_meta(), folder).layers[0]
    assert block.q_proj.input_scale is not None and block.mlp.experts.activations == inputs


def test_a_loaded_model_compiles_as_one_graph(tmp_path: Path) -> None:
    model, x = load(on_meta(), convert(by_name(seeded()), tmp_path, "mxfp4")), normal(6, H)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))


def test_inputs_stay_where_that_is_asked(tmp_path: Path) -> None:
    folder = convert(by_name(seeded()), tmp_path, "fp8_128x128")
    layer = load(on_meta(), folder, activations="none").layers[0].mlp.experts
    assert layer.activations == "bf16"


def test_a_module_in_two_places_and_one_in_training(tmp_path: Path) -> None:
    folder = convert(by_name(seeded()), tmp_path, "mxfp4")
    model = seeded().train()
    model.also = model.layers[0].mlp.experts
    model = load(model, folder)
    assert type(model.also) is Experts and model.also is model.layers[0].mlp.experts
    assert model.also.training
    experts = load(
        seeded().layers[0].mlp, folder, prefix="layers.0.mlp.", ignore=["*layers.1*", "*q_proj*"]
    )
    assert type(experts.experts) is Experts


@pytest.mark.parametrize("limit", [None, 7.0, 100.0, math.inf])
def test_what_lies_between_products_is_tried(limit: float | None) -> None:
    experts = TurnedExperts()
    usual = {"gate_first": True, "interleave": 0, "limit": None, "alpha": 1.0, "up_shift": 0.0}
    turned = usual | {"interleave": 1, "limit": 7.0, "alpha": 1.702, "up_shift": 1.0}
    assert gate_of(experts) == turned
    experts, want = GateUpExperts(), None if limit == math.inf else limit
    if limit is not None:
        experts.swiglu_limit = limit
        experts._apply_gate = lambda x: (
            torch.nn.functional.silu(x.chunk(2, -1)[0].clamp(max=limit))
            * x.chunk(2, -1)[1].clamp(-limit, limit)
        )
    assert gate_of(experts) == usual | {"limit": want}


# --- transformers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "dialect"),
    [("nvfp4", "modelopt"), ("mxfp4", "compressed_tensors"), ("fp8_128x128", "deepseek")],
)
@pytest.mark.parametrize("name", causal_models.MIXTURES)
def test_models_of_transformers(tmp_path: Path, name: str, recipe: str, dialect: str) -> None:
    """Against the same model with dequantized weights; inputs stay, so that bf16 between the
    products is all that differs."""
    pytest.importorskip("transformers", minversion="5")
    causal_models.save(name, tmp_path / "plain")
    blockscale.convert(tmp_path / "plain", tmp_path / "q", recipe, dialect=dialect)
    blockscale.convert(tmp_path / "q", tmp_path / "numbers", "f32")
    model = load(causal_models.model_of(name), tmp_path / "q", activations="none")
    exact = load(causal_models.model_of(name), tmp_path / "numbers")
    assert any(type(module) is Experts for module in model.modules())
    with torch.no_grad():
        y, want = (m(torch.arange(24).reshape(2, 12)).logits for m in (model, exact))
    assert float((y - want).abs().max() / want.abs().max()) <= 2.0**-6


@pytest.mark.parametrize("recipe", ["mxfp4", "nvfp4"])
def test_the_model_of_gpt_oss(tmp_path: Path, recipe: str) -> None:
    """As it is stored, and converted."""
    pytest.importorskip("transformers", minversion="5")
    stored = causal_models.save_gpt_oss(tmp_path / "mxfp4")
    if recipe == "nvfp4":
        blockscale.convert(stored, tmp_path / "nvfp4", "nvfp4", dialect="modelopt")
        stored = tmp_path / "nvfp4"
    model = load(causal_models.model_of("GptOss"), stored, activations="none")
    exact = causal_models.model_of("GptOss")
    for layer, plain in zip(model.model.layers, exact.model.layers, strict=True):
        assert type(layer.mlp.experts) is Experts
        with torch.no_grad():
            for name in ("gate_up_proj", "down_proj"):
                weight = layer.mlp.experts.w13 if name == "gate_up_proj" else layer.mlp.experts.w2
                assert weight.recipe.name == recipe
                getattr(plain.mlp.experts, name).copy_(blockscale.dequantize(weight).mT)
    with torch.no_grad():
        y, want = (m(torch.arange(24).reshape(2, 12)).logits for m in (model, exact))
    if recipe == "mxfp4":  # nvfp4 has quantized the other layers, too
        assert float((y - want).abs().max() / want.abs().max()) <= 2.0**-6
    assert float((y - want).norm() / want.norm()) < 0.25
