"""blockscale.nn.load: dialects, ties, what does not match, memory; `./dev test --torch`."""

from __future__ import annotations

import doctest
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import blockscale
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")

import blockscale.nn  # noqa: E402
from blockscale.nn import Linear, load  # noqa: E402
from nn_model import (  # noqa: E402
    VOCABULARY,
    Model,
    OfNumbers,
    calibrated,
    linears,
    on_meta,
    same,
    save,
    seeded,
)
from safetensors.torch import load_file, save_file  # noqa: E402

#: recipe, dialect, activations: and what the layers' inputs become.
STORED = [
    ("nvfp4", "compressed_tensors", "none", None),
    ("nvfp4", "compressed_tensors", "dynamic", "nvfp4"),
    ("nvfp4", "compressed_tensors", "static", "nvfp4"),
    ("nvfp4", "modelopt", "static", "nvfp4"),
    ("mxfp4", "compressed_tensors", "dynamic", "mxfp4"),
    ("mxfp6_e2m3", "compressed_tensors", "dynamic", "mxfp8_e4m3"),
    ("mxfp8_e4m3", "modelopt", "dynamic", "mxfp8_e4m3"),
    ("fp8_row", "compressed_tensors", "dynamic", "fp8_row"),
    ("fp8_row", "compressed_tensors", "static", "fp8_row"),
    ("fp8_row", "modelopt", "dynamic", "fp8_row"),
    ("fp8_tensor", "compressed_tensors", "dynamic", "fp8_1x128"),
    ("fp8_tensor", "modelopt", "static", "fp8_tensor"),
    ("fp8_64x128", "compressed_tensors", "dynamic", "fp8_1x128"),
    ("fp8_128x128", "deepseek", "dynamic", "fp8_1x128"),
    ("fp8_128x128_pow2", "deepseek", "dynamic", "fp8_1x128_pow2"),
    ("fp8_128x128_ue8m0", "deepseek", "dynamic", "fp8_1x128_pow2"),
]
IDS = torch.arange(12).reshape(2, 6)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(seeded(), tmp_path_factory.mktemp("nn") / "plain")


@pytest.fixture(scope="module")
def nvfp4(source: Path) -> Path:
    blockscale.convert(source, source.parent / "nvfp4", "nvfp4")
    return source.parent / "nvfp4"


def converted(
    source: Path, folder: Path, recipe: str, dialect: str, activations: str, **options: Any
) -> Path:
    if activations == "static":
        calibrated(seeded()).save(folder / "scales.safetensors")
        options["activation_scales"] = folder / "scales.safetensors"
    blockscale.convert(
        source, folder / "model", recipe, dialect=dialect, activations=activations, **options
    )
    return folder / "model"


@pytest.mark.parametrize(("recipe", "dialect", "activations", "inputs"), STORED)
def test_every_dialect(
    source: Path, tmp_path: Path, recipe: str, dialect: str, activations: str, inputs: str | None
) -> None:
    folder = converted(source, tmp_path, recipe, dialect, activations)
    model = load(on_meta(), folder)
    checkpoint = blockscale.Checkpoint(folder)
    for name, layer in linears(model).items():
        assert type(layer) is Linear and not layer.training
        assert (layer.activations, layer.dialect) == (inputs, dialect)
        assert (layer.input_scale is not None) == (activations == "static")
        stored = checkpoint[f"{name}.weight"]
        assert layer.recipe == stored.recipe.name
        numbers = torch.from_numpy(blockscale.dequantize(stored))
        assert torch.equal(blockscale.dequantize(layer.weight), numbers)
    assert type(model.lm_head) is torch.nn.Linear
    assert model.lm_head.weight is model.embed_tokens.weight
    assert model.embed_tokens.weight.requires_grad
    assert model.steps.tolist() == [0, 1, 2]

    # Its state is the checkpoint's, tensor by tensor; what is tied stands twice.
    state, files = model.state_dict(), load_file(folder / "model.safetensors")
    assert state.keys() == {*files, "lm_head.weight"}
    assert all(same(state[name], tensor) for name, tensor in files.items())

    # Logits are those of the same numbers in f64, within 2^-18 of the largest: each layer's error
    # is at most 8 x 2^-24 of its sum of magnitudes, and there are six. Inputs that are quantized
    # may be at the edge between two codes and take the other: in one token of twelve, within 2^-6.
    exact = load(on_meta(), folder)
    for layer in exact.layers:
        for name in ("q_proj", "k_proj", "o_proj"):
            setattr(layer, name, OfNumbers(getattr(layer, name)))
    with torch.no_grad():
        y, want = model(IDS), exact(IDS)
    errors = (y - want).abs().amax(-1).flatten() / want.abs().max()
    assert int((errors > 2.0**-18).sum()) <= (inputs is not None) and float(errors.max()) <= 2.0**-6


def test_a_state_that_is_saved_is_a_checkpoint(nvfp4: Path, tmp_path: Path) -> None:
    model = load(on_meta(), nvfp4)
    state = model.state_dict()
    del state["lm_head.weight"]
    save_file(state, tmp_path / "model.safetensors")
    shutil.copy(nvfp4 / "config.json", tmp_path)
    again = load(on_meta(), tmp_path)
    with torch.no_grad():
        assert torch.equal(again(IDS), model(IDS))
    other = load(on_meta(), nvfp4)
    other.layers[0].q_proj.values.zero_()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(other(IDS), model(IDS))


def test_scales_stay_where_they_lie(tmp_path: Path) -> None:
    """LightX2V's NVFP4, in tiles of 128 x 4, and so its state."""
    t = blockscale.quantize(torch.randn(130, 256), "nvfp4", layout="swizzled_128x4")
    stored = {"weight": t.values.view(torch.uint8), "weight_scale": t.scales}
    stored |= {"weight_global_scale": t.tensor_scale, "input_absmax": torch.tensor([4.0])}
    save_file({f"a.{name}": x for name, x in stored.items()}, tmp_path / "m.safetensors")
    layer = torch.nn.Linear(256, 130, bias=False, device="meta")
    layer = load(layer, tmp_path / "m.safetensors", prefix="a.")
    assert (layer.layout, layer.activations, layer.dialect) == (
        "swizzled_128x4",
        "nvfp4",
        "lightx2v",
    )
    assert layer.input_scale.item() == 2688 / 4
    assert same(layer.weight.scales, t.scales) and same(layer.weight.values, t.values)
    state = layer.state_dict()
    assert same(state["weight_scale"], t.scales)
    assert state["input_global_scale"].item() == 2688 / 4
    assert torch.equal(state["alpha"], 1 / (2688 / 4 * torch.as_tensor(t.tensor_scale)).reshape(()))


def test_an_alpha_in_the_place_of_a_tensor_scale(tmp_path: Path) -> None:
    """Then the tensor scale is a multiplier, which LightX2V's names do not have."""
    t = blockscale.quantize(torch.randn(130, 256), "nvfp4", layout="swizzled_128x4")
    stored = {"weight": t.values.view(torch.uint8), "weight_scale": t.scales}
    stored |= {"input_global_scale": torch.tensor(64.0), "alpha": torch.tensor(0.25)}
    save_file({f"a.{name}": x for name, x in stored.items()}, tmp_path / "m.safetensors")
    layer = torch.nn.Linear(256, 130, bias=False, device="meta")
    layer = load(layer, tmp_path / "m.safetensors", prefix="a.")
    assert (layer.dialect, layer.tensor_scale.item()) == ("modelopt", 16.0)


def test_a_layer_of_torch_that_reads_its_weights() -> None:  # docs/nn.md
    encoder = torch.nn.TransformerEncoderLayer(64, 2, 128, batch_first=True).eval()
    encoder.linear1 = Linear.from_float(encoder.linear1, "mxfp4")
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            assert encoder(torch.randn(2, 3, 64)).shape == (2, 3, 64)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_a_default_device_changes_nothing(nvfp4: Path) -> None:
    with torch.device("meta"):
        model = load(on_meta(), nvfp4)
    assert all(not x.is_meta for x in model.state_dict().values())


def test_dtypes_are_the_models(source: Path, nvfp4: Path) -> None:
    model = load(on_meta().to(torch.bfloat16), nvfp4)
    assert model.embed_tokens.weight.dtype == torch.bfloat16
    assert model.layers[0].q_proj.bias.dtype == torch.bfloat16
    assert model.steps.dtype == torch.int64
    want = seeded().embed_tokens.weight.to(torch.bfloat16)
    assert torch.equal(model.embed_tokens.weight, want)
    model.factor = model.factor.to(torch.bfloat16)
    with torch.no_grad():
        assert model(IDS).dtype == torch.bfloat16
    plain = load(on_meta(), source)  # nothing is quantized there
    with torch.no_grad():
        assert torch.equal(plain(IDS), seeded()(IDS))


def test_a_model_in_memory_and_inputs_as_they_are(source: Path, tmp_path: Path) -> None:
    folder = converted(source, tmp_path, "mxfp8_e4m3", "compressed_tensors", "dynamic")
    model = load(Model().train(), blockscale.Checkpoint(folder), "cpu", activations="none")
    layer = model.layers[1].o_proj
    assert type(layer) is Linear and layer.activations is None and layer.training
    assert linears(load(Model(), folder))["layers.1.o_proj"].activations == "mxfp8_e4m3"


def test_a_prefix_and_what_is_left_out(nvfp4: Path) -> None:
    blocks = on_meta().layers
    with pytest.raises(ValueError, match="embed_tokens.weight: is in the checkpoint, and nowhere"):
        load(blocks, nvfp4, prefix="layers.")
    load(blocks, nvfp4, prefix="layers.", ignore=["embed_tokens*", "re:steps"])
    assert type(blocks[1].q_proj) is Linear
    with pytest.raises(ValueError, match='ignore: "nothing"'):
        load(on_meta(), nvfp4, ignore=["nothing"])


def test_a_model_that_is_one_layer(nvfp4: Path, tmp_path: Path) -> None:
    state = load_file(nvfp4 / "model.safetensors")
    own = {name.split(".")[-1]: x for name, x in state.items() if "layers.0.q_proj" in name}
    save_file({f"a.{name}": x for name, x in own.items()}, tmp_path / "a.safetensors")
    layer = load(torch.nn.Linear(256, 128), tmp_path / "a.safetensors", prefix="a.")
    assert type(layer) is Linear and layer.bias is not None


def test_tied_layers(nvfp4: Path, tmp_path: Path) -> None:
    state = load_file(nvfp4 / "model.safetensors")
    own = {name.split(".")[-1]: x for name, x in state.items() if "layers.0.k_proj" in name}
    save_file({f"a.{name}": x for name, x in own.items()}, tmp_path / "a.safetensors")

    def model(*names: str) -> Any:
        layers = {name: torch.nn.Linear(256, 128, bias=False) for name in names}
        for layer in layers.values():
            layer.weight = layers["a"].weight
        return torch.nn.ModuleDict(layers)

    # One weight in two layers, and one layer in two places.
    tied = load(model("a", "b"), tmp_path / "a.safetensors")
    assert type(tied["b"]) is Linear and tied["a"].values.data_ptr() == tied["b"].values.data_ptr()
    shared = model("a")
    shared["c"] = shared["a"]
    shared = load(shared, tmp_path / "a.safetensors")
    assert type(shared["c"]) is Linear and shared["c"] is shared["a"]


def test_a_tied_head_that_is_stored_quantized(source: Path, tmp_path: Path) -> None:
    state = load_file(source / "model.safetensors")
    state["lm_head.weight"] = state["embed_tokens.weight"].clone()
    (tmp_path / "plain").mkdir()
    save_file(state, tmp_path / "plain/model.safetensors")
    chosen = ["*_proj", "lm_head"]
    blockscale.convert(tmp_path / "plain", tmp_path / "out", "mxfp8_e4m3", include=chosen)
    model = load(on_meta(), tmp_path / "out")
    assert type(model.lm_head) is Linear
    assert torch.equal(model.embed_tokens.weight, seeded().embed_tokens.weight)
    state = load_file(tmp_path / "out/model.safetensors")
    del state["embed_tokens.weight"]
    save_file(state, tmp_path / "out/model.safetensors")
    with pytest.raises(ValueError, match="embed_tokens.weight: is in the model, and nowhere in"):
        load(on_meta(), tmp_path / "out")


def test_plain_twins_must_be_equal(source: Path, tmp_path: Path) -> None:
    state = load_file(source / "model.safetensors")
    state["lm_head.weight"] = state["embed_tokens.weight"].clone()
    save_file(state, tmp_path / "m.safetensors")
    load(on_meta(), tmp_path / "m.safetensors")
    state["lm_head.weight"][0, 0] += 1
    save_file(state, tmp_path / "n.safetensors")
    with pytest.raises(ValueError, match="lm_head.weight: is one tensor with embed_tokens.weight"):
        load(on_meta(), tmp_path / "n.safetensors")


def test_all_that_does_not_match_is_named_and_nothing_changes(nvfp4: Path) -> None:
    model = seeded()
    model.extra = torch.nn.Parameter(torch.zeros(2))
    model.embed_tokens = torch.nn.Embedding(VOCABULARY + 1, 256)
    model.layers[0].q_proj = torch.nn.Linear(128, 128)
    model.layers[0].k_proj = torch.nn.Bilinear(1, 256, 128, bias=False)
    model.layers[0].k_proj.weight = torch.nn.Parameter(torch.zeros(128, 256))
    del model.layers[1].o_proj
    model.steps = model.steps.float()
    modules, state = dict(model.named_modules()), dict(model.state_dict())
    with pytest.raises(ValueError) as error:
        load(model, nvfp4)
    assert sorted(str(error.value).splitlines()[1:]) == [
        "embed_tokens.weight: shape is (40, 256), in the model (41, 256)",
        "extra: is in the model, and nowhere in the checkpoint",
        "layers.0.k_proj.weight: is nvfp4, and in the model the weight of a Bilinear, not the "
        "weight of a torch.nn.Linear",
        "layers.0.q_proj.weight: shape is (128, 256), in the model (128, 128)",
        "layers.1.o_proj.bias: is in the checkpoint, and nowhere in the model (ignore may name it)",
        "layers.1.o_proj.weight: is in the checkpoint, and nowhere in the model (ignore may name "
        "it)",
        "lm_head.weight: is in the model, and nowhere in the checkpoint",
        "steps: has dtype I64, in the model torch.float32",
    ]
    assert dict(model.named_modules()) == modules
    assert all(
        x is y or torch.equal(x, y)
        for x, y in zip(model.state_dict().values(), state.values(), strict=True)
    )


def test_layers_that_none_can_stand_in_for(nvfp4: Path) -> None:
    model = seeded()
    model.layers[0].q_proj.bias = torch.nn.Parameter(torch.zeros(128, dtype=torch.float64))
    model.layers[1].k_proj.register_buffer("mask", torch.ones(1), persistent=False)
    model.layers[1].o_proj.forward = lambda x: x
    modules = dict(model.named_modules())
    with pytest.raises(ValueError) as error:
        load(model, nvfp4)
    assert sorted(str(error.value).splitlines()[1:]) == [
        "layers.0.q_proj.weight: the bias is torch.float64, must be float32, float16 or bfloat16",
        "layers.1.k_proj.weight: stands beside mask, which would be lost",
        "layers.1.o_proj.weight: stands beside a forward of its own, which would be lost",
    ]
    assert dict(model.named_modules()) == modules


def test_buffers_that_no_checkpoint_has(nvfp4: Path) -> None:
    model = on_meta()
    model.factor = model.factor.to("meta")
    with pytest.raises(ValueError, match="factor: is a buffer on the meta device that no state"):
        load(model, nvfp4)


def test_buffers_that_an_elder_checkpoint_has(nvfp4: Path, tmp_path: Path) -> None:
    state = load_file(nvfp4 / "model.safetensors")
    save_file({**state, "factor": torch.full((1,), 0.25)}, tmp_path / "m.safetensors")
    model = on_meta()
    model.factor = model.factor.to("meta")
    assert load(model, tmp_path / "m.safetensors").factor.item() == 0.25
    assert "factor" not in model.state_dict()


def test_forms_and_scales_that_mean_nothing(nvfp4: Path, tmp_path: Path) -> None:
    layer = torch.nn.ModuleDict({"a": torch.nn.Linear(256, 128, bias=False, device="meta")})
    state = {
        "a.weight": torch.zeros(128, 256, dtype=torch.int8),
        "a.weight_scale": torch.ones(1),
        "a.comfy_quant": torch.tensor(list(b'{"format": "int8_tensorwise"}'), dtype=torch.uint8),
    }
    save_file(state, tmp_path / "int8.safetensors")
    with pytest.raises(ValueError, match="a.weight: is stored as int8; convert the checkpoint"):
        load(layer, tmp_path / "int8.safetensors")
    state = load_file(nvfp4 / "model.safetensors")
    state["layers.0.q_proj.weight_global_scale"].fill_(float("nan"))
    save_file(state, tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="layers.0.q_proj.weight_global_scale is nan"):
        load(on_meta(), tmp_path / "m.safetensors")
    assert layer["a"].weight.is_meta


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"model": 3}, TypeError, "model: is a int, must be a torch.nn.Module"),
        ({"checkpoint": "missing"}, FileNotFoundError, "missing"),
        ({"activations": "dynamic"}, ValueError, "activations: is 'dynamic', must be None"),
        ({"ignore": "a"}, TypeError, "ignore: is 'a', must be a list of patterns"),
    ],
)
def test_errors(nvfp4: Path, arguments: dict[str, Any], kind: type, text: str) -> None:
    given = {"model": on_meta(), "checkpoint": nvfp4, **arguments}
    with pytest.raises(kind, match=text):
        load(**given)


MEMORY = """
import sys, threading, time
import torch, blockscale.nn

LAYERS, ROWS, INPUTS = 12, 4096, 4096
with torch.device("meta"):
    if sys.argv[2] == "linear":
        layers = [torch.nn.Linear(INPUTS, ROWS, bias=False) for _ in range(LAYERS)]
    else:
        from nn_experts import GateUpExperts
        layers = [GateUpExperts(ROWS, INPUTS, LAYERS // 3)]
    model = torch.nn.Sequential(*layers)
checkpoint = blockscale.Checkpoint(sys.argv[1])

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) * 1024

peak, done = 0, False
def watch():
    global peak
    while not done:
        peak = max(peak, anonymous())
        time.sleep(0.0005)

before = anonymous()
watcher = threading.Thread(target=watch)
watcher.start()
model = blockscale.nn.load(model, checkpoint)
done = True
watcher.join()
size = sum(x.nbytes for x in model.state_dict().values())
print(peak - before, anonymous() - before, size)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc: no resident memory")
@pytest.mark.parametrize("kind", ["linear", "experts"])
def test_a_model_on_meta_takes_one_tensor_beyond_itself(tmp_path: Path, kind: str) -> None:
    layer = Linear(blockscale.quantize(torch.randn(4096, 4096), "fp8_row"))
    state = layer.state_dict()
    names = [str(i) for i in range(12)]
    if kind == "experts":
        names = [f"0.{e}.{name}_proj" for e in range(4) for name in ("gate", "up", "down")]
    tensors = {f"{name}.{part}": x.clone() for name in names for part, x in state.items()}
    save_file(tensors, tmp_path / "m.safetensors")
    run = [sys.executable, "-c", MEMORY, str(tmp_path / "m.safetensors"), kind]
    where = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent)])}
    text = subprocess.run(run, capture_output=True, text=True, check=True, env=where).stdout
    peak, after, result = map(int, text.split())
    assert result > 12 * 2**24 and after > 0.9 * result  # it is all there, and in memory of ours
    assert peak <= result + 2**24 + 2**22  # 4 MiB of Python's own


@pytest.mark.parametrize("name", ["linear", "experts", "load", "quantize", "offload"])
def test_examples_in_docstrings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    tensors = {"q_proj.weight": torch.ones(64, 128), "q_proj.bias": torch.ones(64)}
    tensors |= {"o_proj.weight": torch.ones(128, 64)}
    tensors = {f"layers.0.{key}": x for key, x in tensors.items()}
    tensors["position_ids"] = torch.arange(8)
    save_file(tensors, tmp_path / "model/model.safetensors")
    blockscale.convert(tmp_path / "model", tmp_path / "model-nvfp4", "nvfp4")
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(sys.modules[f"blockscale._torch_{name}"])
    assert result.attempted > 0 and result.failed == 0


def test_everything_public_is_documented() -> None:
    for name in blockscale.nn.__all__:
        doc = getattr(blockscale.nn, name).__doc__
        assert ">>>" in doc and "Raises:" in doc, name
