"""Calibrator and experts: what each one sees, under which names, and what reads it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import blockscale
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")

import blockscale.nn  # noqa: E402
import causal_models  # noqa: E402
from blockscale.nn import Experts, load, quantize  # noqa: E402
from nn_experts import (  # noqa: E402
    TOP_K,
    E,
    GateUpExperts,
    H,
    I,
    TurnedExperts,
    by_name,
    normal,
    on_meta,
    routes,
    save_state,
    seeded,
)
from nn_model import same_state  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file  # noqa: E402


def filled(kind: Any = GateUpExperts) -> Any:
    """One module, in whose results no two numbers are equal."""
    experts = kind()
    with torch.no_grad():
        for i, parameter in enumerate(experts.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=i) / 11)
    return experts


def numbers(rows: Any) -> dict[str, Any]:
    """What a file has of rows, in float64."""
    rows = rows.double()
    return {
        "input_absmax": rows.abs().amax(dim=0),
        "input_mean_square": rows.square().mean(dim=0),
        "input_mean": rows.mean(dim=0),
    }


def require(tensors: dict[str, Any], name: str, rows: Any, bound: float = 2.0**-22) -> None:
    """That the file has the numbers of these rows under the name."""
    for kind, want in numbers(rows).items():
        got = tensors[f"{name}.{kind}"].double()
        assert float((got - want).abs().max()) <= bound * float(rows.abs().max()) ** 2 + 2.0**-30


def between(experts: Any, rows: Any, e: int) -> Any:
    """The input of an expert's second product in float64: gpt-oss's where there are biases."""
    matrix = experts.gate_up_proj[e].double()
    if hasattr(experts, "gate_up_proj_bias"):
        x = rows.double() @ matrix + experts.gate_up_proj_bias[e].double()
        gate, up = x[:, ::2].clamp(max=7), x[:, 1::2].clamp(-7, 7)
        return ((up + 1) * gate * torch.sigmoid(1.702 * gate)).detach()
    gate, up = (rows.double() @ matrix.T).chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).detach()


@pytest.mark.parametrize("kind", [GateUpExperts, TurnedExperts])
@pytest.mark.parametrize("leading", [(12,), (3, 4)])
def test_each_expert_has_its_own(tmp_path: Path, kind: Any, leading: tuple[int, ...]) -> None:
    experts, x = filled(kind), 4 * normal(*leading, H, seed=9)
    ids, weights = routes(12)
    ids = torch.where(ids == 2, 0, ids)  # the third one has no token
    calibrator = blockscale.Calibrator(experts, prefix="layers.0.mlp.experts.")
    flat = x.reshape(-1, H)
    with torch.no_grad():
        if leading == (12,):
            experts(x, ids, weights)
        else:  # as a model calls it that does not flatten; by name
            inputs = {"top_k_weights": weights, "top_k_index": ids.reshape(*leading, TOP_K)}
            for hook in experts._forward_pre_hooks.values():
                hook(experts, (), {"hidden_states": x, **inputs})
    calibrator.save(tmp_path / "c.safetensors")
    tensors = load_file(tmp_path / "c.safetensors")
    rows, total = {}, 12 * TOP_K
    for e in (0, 1, 3):
        path, mine = f"layers.0.mlp.experts.{e}", flat[(ids == e).nonzero()[:, 0]]
        rows[e] = len(mine)
        require(tensors, f"{path}.gate_proj", mine)
        require(tensors, f"{path}.up_proj", mine)
        require(tensors, f"{path}.down_proj", between(experts, mine, e), 2.0**-18)
    parts = ("gate_proj", "up_proj", "down_proj")
    unused = [f"layers.0.mlp.experts.2.{part}" for part in parts]
    assert sorted(calibrator.unused) == sorted(unused)
    assert repr(calibrator) == "Calibrator(9 layers, 3 unused)"
    named = {f"layers.0.mlp.experts.{e}.{part}": n for e, n in rows.items() for part in parts}
    assert calibrator.rows == named | dict.fromkeys(unused, 0)
    shares = {name: n / total for name, n in calibrator.rows.items()}
    assert calibrator.shares == shares and sum(shares.values()) == pytest.approx(3)
    with safe_open(tmp_path / "c.safetensors", "pt") as file:
        metadata = file.metadata()
    assert json.loads(metadata["expert_shares"]) == shares
    assert json.loads(metadata["input_rows"]) == calibrator.rows
    assert not any(name.startswith("layers.0.mlp.experts.2.") for name in tensors)


def test_unused_experts_may_have_what_their_layer_has(tmp_path: Path) -> None:
    experts, x = filled(), normal(12, H, seed=9)
    ids, weights = routes(12)
    ids = torch.where(ids == 2, 0, ids)
    with blockscale.Calibrator(experts, prefix="experts.") as calibrator, torch.no_grad():
        experts(x, ids, weights)
    calibrator.save(tmp_path / "c.safetensors", unused="layer")
    tensors = load_file(tmp_path / "c.safetensors")
    for part in ("gate_proj", "up_proj", "down_proj"):
        mine = {e: tensors[f"experts.{e}.{part}.input_absmax"] for e in range(E)}
        assert torch.equal(mine[2], torch.stack([mine[0], mine[1], mine[3]]).amax(dim=0))
    require(tensors, "experts.2.up_proj", x.repeat_interleave(TOP_K, 0))
    assert calibrator.rows["experts.2.up_proj"] == 0 and len(calibrator.unused) == 3


def test_what_names_no_expert_is_left_out() -> None:
    experts, x = filled(), normal(5, H)
    ids = torch.tensor([[0, -1], [E, 3], [2**40, -5], [-1, E], [3, 0]])
    with blockscale.Calibrator(experts) as calibrator:
        for hook in experts._forward_pre_hooks.values():
            hook(experts, (x, ids, torch.ones(5, 2)), {})
            hook(experts, (x[:0], ids[:0], torch.ones(0, 2)), {})
    seen = {name: rows for name, rows in calibrator.rows.items() if rows}
    assert seen == {f"{e}.{part}_proj": 2 for e in (0, 3) for part in ("gate", "up", "down")}


@pytest.mark.parametrize("options", [{}, {"local_expert_offset": 8}, {"expert_map": True}])
def test_quantized_experts(options: dict[str, Any]) -> None:
    """Under the numbers that the router has for them; what lies between is not seen."""
    if options.get("expert_map"):
        options = {"expert_map": torch.tensor([-1, 2, E, 0, 1, 3], dtype=torch.int32)}
    w13, w2 = (blockscale.quantize(normal(E, *s), "mxfp4") for s in ((2 * I, H), (H, I)))
    layer, x = Experts(w13, w2, **options), normal(6, H)
    numbers = {"local_expert_offset": [8, 9, 10, 11], "expert_map": [1, 3, 4, 5]}
    here = next((numbers[key] for key in options), [0, 1, 2, 3])
    ids = torch.tensor([[here[0], here[2]]] * 5 + [[here[2], 99]])
    with blockscale.Calibrator(layer, prefix="experts.") as calibrator:
        layer(x, ids, torch.ones(6, 2))
    want = {f"experts.{e}.{part}": 0 for e in here for part in ("gate_proj", "up_proj")}
    for e, rows in ((here[0], 5), (here[2], 6)):
        want |= {f"experts.{e}.{part}": rows for part in ("gate_proj", "up_proj")}
    assert calibrator.rows == want
    assert calibrator.percentile(f"experts.{here[2]}.up_proj", 100) == float(x.abs().max())


class Unknown(GateUpExperts):
    """Of which only its forward knows what lies between the products."""

    def __init__(self) -> None:
        super().__init__()
        del self.act_fn


class ByPosition(GateUpExperts):
    """Llama 4's: the tokens of each expert, one behind the other."""

    def forward(self, hidden_states: Any) -> Any:  # type: ignore[override]
        return hidden_states


def test_what_cannot_be_seen() -> None:
    with blockscale.Calibrator(Unknown()) as calibrator:
        assert [name for name in calibrator.unused if "down" in name] == []
        assert len(calibrator.unused) == 2 * E
    with blockscale.Calibrator(filled().to(torch.float8_e4m3fn)) as calibrator:
        assert len(calibrator.unused) == 2 * E
    with pytest.raises(ValueError, match=r"model: has no torch\.nn\.Linear and no experts"):
        blockscale.Calibrator(ByPosition())


# --- what reads it --------------------------------------------------------------------------------


def calibrated(model: Any, state: Path | None = None, pieces: int = 1) -> blockscale.Calibrator:
    """In so many processes, where there is a state."""
    loader = [normal(7, H, seed=seed) for seed in range(20, 24)]
    for piece in range(1, pieces + 1):
        with blockscale.Calibrator(model, resume=state) as calibrator:
            calibrator.run(model, loader, batches=len(loader) * piece // pieces, progress=False)
    return calibrator


def test_experts_in_pieces(tmp_path: Path) -> None:
    files = []
    for pieces in (1, 2, 4):
        calibrator = calibrated(seeded(), tmp_path / f"state-{pieces}", pieces)
        files.append(tmp_path / f"{pieces}.safetensors")
        calibrator.save(files[-1])
    assert len({file.read_bytes() for file in files}) == 1
    assert len(calibrator.names) == 2 * (2 + 3 * E) and not calibrator.unused
    again = blockscale.Calibrator(resume=tmp_path / "state-4")  # without a model
    assert again.shares == calibrator.shares and again.rows == calibrator.rows


@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp4"])
def test_experts_by_weighted_errors(tmp_path: Path, recipe: str) -> None:
    calibrator = calibrated(seeded())
    calibrator.save(tmp_path / "c.safetensors")
    options = {"scales": "weighted", "calibration": tmp_path / "c.safetensors"}
    source = save_state(by_name(seeded()), tmp_path / "in")
    blockscale.convert(source, tmp_path / "out", recipe, **options)
    want = load(on_meta(), tmp_path / "out")
    for calibration in (calibrator, tmp_path / "c.safetensors"):
        model = quantize(seeded(), recipe, **options | {"calibration": calibration})
        assert same_state(model, want)
    assert not same_state(want, quantize(seeded(), recipe))


@pytest.mark.parametrize(
    ("recipe", "dialect", "scale"),
    [
        ("nvfp4", "compressed-tensors", "input_global_scale"),
        ("nvfp4", "modelopt", "input_scale"),
        ("fp8_tensor", "modelopt", "input_scale"),
        ("fp8_row", "compressed-tensors", "input_scale"),
    ],
)
def test_static_scales_of_experts(tmp_path: Path, recipe: str, dialect: str, scale: str) -> None:
    source = save_state(by_name(seeded()), tmp_path / "in")
    calibrator = calibrated(seeded())
    calibrator.save(tmp_path / "c.safetensors", percentile=99.9)
    options = {"dialect": dialect, "activations": "static"}
    blockscale.convert(
        source, tmp_path / "out", recipe, **options, activation_scales=tmp_path / "c.safetensors"
    )
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    largest = 2688 if recipe == "nvfp4" else 448
    for name in (n for n in calibrator.names if "experts" in n):
        stored = float(tensors[f"{name}.{scale}"])
        stored = largest / stored if scale == "input_global_scale" else largest * stored
        assert stored == pytest.approx(calibrator.percentile(name, 99.9), rel=1e-6)


def test_names_of_the_checkpoint(tmp_path: Path) -> None:
    """Mixtral's, whose experts have other ones than in the model."""
    parts = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2", "mlp": "block_sparse_moe"}

    def rename(name: str) -> str:
        return ".".join(parts.get(part, part) for part in name.split("."))

    calibrator = calibrated(seeded())
    calibrator.save(tmp_path / "c.safetensors", rename=rename)
    source = save_state(by_name(seeded(), "mixtral"), tmp_path / "in")
    scales = {"activation_scales": tmp_path / "c.safetensors"}
    blockscale.convert(source, tmp_path / "out", "nvfp4", **scales)
    name = "layers.1.block_sparse_moe.experts.3.w2"
    stored = load_file(tmp_path / "out" / "model.safetensors")[f"{name}.input_global_scale"]
    largest = calibrator.percentile("layers.1.mlp.experts.3.down_proj", 100)
    assert float(stored) == pytest.approx(2688 / largest, rel=1e-6)
    with safe_open(tmp_path / "c.safetensors", "pt") as file:
        metadata = {key: json.loads(text) for key, text in file.metadata().items()}
    assert name in metadata["input_rows"] and name in metadata["expert_shares"]
    assert name in metadata["input_percentiles"]["of"]


def test_experts_without_a_token_are_asked_for(tmp_path: Path) -> None:
    model, source = seeded(), save_state(by_name(seeded()), tmp_path / "in")
    with torch.no_grad():
        for layer in model.layers:
            layer.mlp.gate.weight[1] = 0  # whose score is then among the middle ones
    with blockscale.Calibrator(model) as calibrator, torch.no_grad():
        model(normal(1, H))
    assert 0 < len(calibrator.unused) < 3 * 2 * E
    for unused in ("omit", "layer"):
        calibrator.save(tmp_path / f"{unused}.safetensors", unused=unused)
    scales = {"activation_scales": tmp_path / "omit.safetensors", "activations": "static"}
    with pytest.raises(ValueError, match=r'has no entry "layers\.0\.mlp\.experts\.'):
        blockscale.convert(source, tmp_path / "out", "nvfp4", **scales)
    scales["activation_scales"] = tmp_path / "layer.safetensors"
    blockscale.convert(source, tmp_path / "out", "nvfp4", **scales)


@pytest.mark.parametrize("name", [*causal_models.MIXTURES, "GptOss"])
def test_models_of_transformers(tmp_path: Path, name: str) -> None:
    pytest.importorskip("transformers", minversion="5")
    model, ids = causal_models.model_of(name), torch.arange(24).reshape(2, 12)
    modules = {path: m for path, m in model.named_modules() if hasattr(m, "gate_up_proj")}
    modules = {path: m for path, m in modules.items() if hasattr(m.gate_up_proj, "shape")}
    given: dict[str, Any] = {}
    for path, module in modules.items():
        module.register_forward_pre_hook(
            lambda _, arguments, path=path: given.update({path: arguments})
        )
    with blockscale.Calibrator(model) as calibrator:
        assert calibrator.run(model, [{"input_ids": ids}], progress=False) == 1
    calibrator.save(tmp_path / "c.safetensors")
    tensors = load_file(tmp_path / "c.safetensors")
    assert given.keys() == modules.keys() != set()
    for path, (hidden, chosen, _) in given.items():
        for e in range(len(modules[path].down_proj)):
            mine = hidden[(chosen == e).nonzero()[:, 0]]
            name = f"{path}.{e}"
            assert calibrator.rows[f"{name}.gate_proj"] == len(mine)
            if len(mine):
                require(tensors, f"{name}.up_proj", mine)
                require(tensors, f"{name}.down_proj", between(modules[path], mine, e), 2.0**-16)
        ups = {n: rows for n, rows in calibrator.rows.items() if n.startswith(path + ".")}
        assert sum(ups.values()) == 3 * 2 * 24  # three layers an expert, two experts a token


def test_the_page_shows_what_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/nn.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n([^`]*Calibrator[^`]*)^```$", page, re.M)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(block, names)
    layer = names["model"][0]
    scale = float(layer.input_scale)
    assert scale == pytest.approx(2688 / names["calibrator"].percentile("0", 99.9), rel=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "inputs.safetensors",
        "inputs.state",
    ]
