"""blockscale.nn.quantize: the bytes, the choice and the errors of convert; `./dev test --torch`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import blockscale
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")

import blockscale.nn  # noqa: E402
from blockscale.nn import Linear, load, quantize  # noqa: E402
from nn_model import Model, calibrated, linears, on_meta, same_state, save, seeded  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

#: recipe, dialect and options; "scales" and "channels" are of a calibration.
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("nvfp4", "compressed_tensors", {}),
    ("nvfp4", "compressed_tensors", {"activations": "dynamic"}),
    ("nvfp4", "compressed_tensors", {"activation_scales": True}),
    ("nvfp4", "modelopt", {"activation_scales": True}),
    ("nvfp4", "compressed_tensors", {"scales": "mse"}),
    ("nvfp4", "compressed_tensors", {"scales": "weighted", "calibration": True}),
    ("mxfp4", "compressed_tensors", {}),
    ("mxfp4", "compressed_tensors", {"scale_mode": "ceil", "activations": "none"}),
    ("mxfp4", "compressed_tensors", {"scales": "weighted", "calibration": True}),
    ("mxfp6_e2m3", "compressed_tensors", {}),
    ("mxfp8_e4m3", "compressed_tensors", {}),
    ("mxfp8_e4m3", "modelopt", {}),
    ("fp8_tensor", "compressed_tensors", {}),
    ("fp8_tensor", "modelopt", {"activation_scales": True}),
    ("fp8_row", "compressed_tensors", {"activations": "static", "activation_scales": True}),
    ("fp8_64x128", "compressed_tensors", {"amax_floor": 3.0}),
    ("fp8_128x128", "deepseek", {}),
    ("fp8_128x128_ue8m0", "deepseek", {}),
]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(seeded(), tmp_path_factory.mktemp("nn") / "plain")


@pytest.mark.parametrize(("recipe", "dialect", "options"), CASES)
def test_the_result_is_what_convert_stores_and_load_loads(
    source: Path, tmp_path: Path, recipe: str, dialect: str, options: dict[str, Any]
) -> None:
    calibrator = calibrated(seeded())
    calibrator.save(tmp_path / "inputs.safetensors")
    given = {key: calibrator if value is True else value for key, value in options.items()}
    on_disk = {
        key: tmp_path / "inputs.safetensors" if value is True else value
        for key, value in options.items()
    }
    blockscale.convert(source, tmp_path / "out", recipe, dialect=dialect, **on_disk)
    want = load(on_meta(), tmp_path / "out")
    model = seeded()
    assert quantize(model, recipe, dialect=dialect, **given) is model
    assert len(linears(model)) == 6 and all(type(x) is Linear for x in linears(model).values())
    assert same_state(model, want) and repr(model) == repr(want)
    assert model.lm_head.weight is model.embed_tokens.weight
    if options.get("activation_scales"):
        assert all(layer.input_scale is not None for layer in linears(model).values())
        again = quantize(seeded(), recipe, dialect=dialect, **on_disk)  # a file does as well
        assert same_state(again, model)
    ids = torch.arange(10)[None]
    with torch.no_grad():
        assert torch.equal(model(ids), want(ids))
        exact = seeded()(ids)
        assert float((model(ids) - exact).norm() / exact.norm()) < 0.2


@pytest.mark.parametrize("dialect", ["modelopt", "compressed_tensors"])
def test_codes_come_from_the_tensor_scale_that_is_stored(tmp_path: Path, dialect: str) -> None:
    """Whose inverse is another number; in bf16 many quotients are halfway between two codes."""
    model, options = seeded().bfloat16(), {"dialect": dialect, "activations": "none"}
    weight = torch.randn(256, 128, generator=torch.Generator().manual_seed(7))
    model.layers[0].o_proj.weight = torch.nn.Parameter(weight.bfloat16())
    blockscale.convert(save(model, tmp_path / "in"), tmp_path / "out", "nvfp4", **options)
    want = load(on_meta().bfloat16(), tmp_path / "out")
    assert same_state(quantize(model, "nvfp4", **options), want)


@pytest.mark.parametrize("recipe", ["nvfp4", "fp8_tensor"])
def test_members_without_numbers_take_the_others_scale(tmp_path: Path, recipe: str) -> None:
    model = seeded()
    with torch.no_grad():
        model.layers[0].k_proj.weight.zero_()
        model.layers[1].q_proj.weight.zero_()
    blockscale.convert(save(model, tmp_path / "in"), tmp_path / "out", recipe)
    assert same_state(quantize(model, recipe), load(on_meta(), tmp_path / "out"))


@pytest.mark.parametrize(
    "options",
    [
        {"include": ["*q_proj*", "lm_head"]},
        {"exclude": ["layers.0.*"]},
        {"include": ["re:.*_proj"], "exclude": ["*.k_proj"]},
    ],
)
def test_patterns_choose_as_in_convert(tmp_path: Path, options: dict[str, list[str]]) -> None:
    model = seeded()
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    report = blockscale.convert(
        tmp_path / "model.safetensors", tmp_path / "no", "mxfp4", dry_run=True, **options
    )
    chosen = {t.name.removesuffix(".weight") for t in report.tensors if t.converted}
    quantize(model, "mxfp4", **options)
    assert {name for name, m in model.named_modules() if type(m) is Linear} == chosen
    assert chosen


def test_a_second_call_has_another_recipe() -> None:
    model = quantize(seeded(), "fp8_row", include=["*.o_proj"])
    first = model.layers[0].o_proj
    quantize(model, "nvfp4")
    assert model.layers[0].o_proj is first
    assert {name[-6:]: x.recipe for name, x in linears(model).items()} == {
        "o_proj": "fp8_row",
        "q_proj": "nvfp4",
        "k_proj": "nvfp4",
    }
    with pytest.raises(ValueError, match="source: holds no tensor to convert to mxfp4"):
        quantize(model, "mxfp4")


class Config:
    """As transformers' PretrainedConfig."""

    def __init__(self, **words: Any) -> None:
        self.words = words

    def to_dict(self) -> dict[str, Any]:
        return self.words


def test_the_models_configuration_counts() -> None:
    def model(**words: Any) -> Any:
        blocks = [torch.nn.ModuleDict({"head": torch.nn.Linear(64, 64)}) for _ in range(2)]
        model = torch.nn.ModuleDict({"blocks": torch.nn.ModuleList(blocks)})
        model["proj"] = torch.nn.Linear(64, 64)
        model.config = Config(**words)
        return model

    # A `head` in every block is a linear layer, if its rows are not the vocabulary.
    few, many = (quantize(model(vocab_size=n), "mxfp4") for n in (64, 1000))
    assert type(few["blocks"][0]["head"]) is torch.nn.Linear and type(few["proj"]) is Linear
    assert type(many["blocks"][0]["head"]) is Linear


class Experts(torch.nn.Module):
    """A stack of experts beside a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = torch.nn.Module()
        self.experts.up_proj = torch.nn.Parameter(torch.randn(2, 64, 64))
        self.o_proj = torch.nn.Linear(64, 64)
        self.config = Config(model_type="mixtral")


def test_what_is_no_linear_layer_stays() -> None:
    model = quantize(Experts(), "mxfp4")
    assert type(model.o_proj) is Linear and model.experts.up_proj.dtype == torch.float32
    with pytest.raises(ValueError, match=r"include: reaches experts\.up_proj, in the model the up"):
        quantize(Experts(), "mxfp4", include=["*up_proj"])
    attention = torch.nn.MultiheadAttention(64, 2)  # reads its projections' weights by itself
    with pytest.raises(ValueError, match=r"out_proj\.weight, in the model the weight of a NonDyn"):
        quantize(attention, "mxfp4", include=["out_proj"])


def test_one_layer_tied_layers_and_modes() -> None:
    layer = quantize(torch.nn.Linear(64, 64), "fp8_row", include=["weight"])
    assert type(layer) is Linear and layer.training
    pair = torch.nn.ModuleDict({"a_proj": torch.nn.Linear(64, 64)}).eval()
    pair["b_proj"] = torch.nn.Linear(64, 64)
    pair["b_proj"].weight = pair["a_proj"].weight
    pair["c_proj"] = pair["a_proj"]
    quantize(pair, "fp8_row")
    assert type(pair["b_proj"]) is Linear and pair["c_proj"] is pair["a_proj"]
    assert pair["a_proj"].values.data_ptr() == pair["b_proj"].values.data_ptr()
    assert not pair["a_proj"].training and pair["b_proj"].training


def nonfinite() -> Any:
    model = seeded()
    with torch.no_grad():
        model.layers[1].o_proj.weight[3, 4] = float("inf")
    return model


def beside() -> Any:
    model = seeded()
    model.layers[1].o_proj.mask = torch.nn.Parameter(torch.ones(1))
    return model


def in_8_bits() -> Any:
    layers = torch.nn.Module()
    layers.layers = seeded().layers
    for layer in layers.layers:
        layer.k_proj.weight = torch.nn.Parameter(
            layer.k_proj.weight.to(torch.float8_e5m2), requires_grad=False
        )
    return layers


ERRORS: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (lambda: 3, {}, TypeError, "model: is a int, must be a torch.nn.Module"),
    (Model, {"recipe": "bf16"}, ValueError, r"recipe: is bf16, use model\.to\(dtype\)"),
    (Model, {"recipe": "int4"}, ValueError, "recipe: is 'int4', must be one of"),
    (Model, {"recipe": "mxfp8_e5m2"}, ValueError, "recipe: mxfp8_e5m2 cannot be said in"),
    (Model, {"dialect": "deepseek"}, ValueError, "recipe: nvfp4 cannot be said in deepseek"),
    (Model, {"include": ["nothing"]}, ValueError, 'include: "nothing"'),
    (Model, {"include": ["embed_tokens"]}, ValueError, "embed_tokens.weight.*an embedding"),
    (Model, {"activations": "static"}, ValueError, "activations: is static, but"),
    (Model, {"activations": "some"}, ValueError, 'activations: "some" is none of'),
    (Model, {"scales": "weighted"}, ValueError, "calibration"),
    (Model, {"calibration": "missing"}, ValueError, "calibration"),
    (Model, {"activation_scales": "missing"}, FileNotFoundError, "missing"),
    (on_meta, {}, ValueError, "is on the meta device, which has no numbers"),
    (beside, {}, ValueError, r"model: layers\.1\.o_proj\.weight stands beside mask, which would"),
    (
        in_8_bits,
        {},
        ValueError,
        r"layers\.0\.k_proj\.weight is torch\.float8_e5m2, must be float32",
    ),
    (nonfinite, {}, ValueError, r"model: layers\.1\.o_proj\.weight holds NaN or infinity"),
]


@pytest.mark.parametrize("case", range(len(ERRORS)))
def test_errors_change_nothing(case: int) -> None:
    make, options, kind, text = ERRORS[case]
    model = make()
    modules = dict(model.named_modules()) if isinstance(model, torch.nn.Module) else {}
    with pytest.raises(kind, match=text):
        quantize(model, **{"recipe": "nvfp4", **options})
    assert not modules or dict(model.named_modules()) == modules


def test_the_page_shows_what_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    save_file({"q_proj.weight": torch.ones(64, 64)}, tmp_path / "model/model.safetensors")
    monkeypatch.chdir(tmp_path)
    blockscale.convert("model", "model-nvfp4", "nvfp4")
    page = (Path(__file__).resolve().parents[3] / "docs/nn.md").read_text()
    first, second, third, *more = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    (fourth,) = [block for block in more if "Offload(" in block]
    names: dict[str, Any] = {}
    exec(first, names)
    assert names["y"].shape == (2, 3, 512)
    (shown,) = re.findall(r"\(0\): (Linear.*), \.\.\.$", first, re.M)
    assert repr(names["model"][0]).startswith(shown)
    exec(second, names)
    assert type(names["model"]["q_proj"]) is Linear
    exec(third, names)
    (shown,) = re.findall(r"experts.state_dict\(\)  # (.*)$", third, re.M)
    assert ", ".join(names["experts"].state_dict()) == shown
    assert names["y"].shape == (2, 3, 256)
    exec(fourth, names)
    assert f"OffloadMemory(device={names['offload'].memory().device}, host" in fourth
    assert names["y"].shape == (4, 256)
    assert torch.equal(names["offload"][5].values, names["blocks"][5].values)
