"""transformers' models on blockscale.nn, and examples/generate.py; `./dev test --torch`."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

import blockscale.nn  # noqa: E402
from blockscale.nn import Linear  # noqa: E402
from nn_model import OfNumbers  # noqa: E402

ROOT = Path(__file__).parents[3]
WORDS = ["[UNK]", "the", "kettle", "is", "boiling", "a", "dog", "ran", "across", "frozen", "lake"]
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {"head_dim": 32, "tie_word_embeddings": False}),
}
#: recipe, dialect, --activations, and what inputs become.
STORED = [
    ("nvfp4", "compressed-tensors", "none", None),
    ("nvfp4", "compressed-tensors", "dynamic", "nvfp4"),
    ("mxfp4", "compressed-tensors", "none", None),
    ("mxfp6_e2m3", "compressed-tensors", "dynamic", "mxfp8_e4m3"),
    ("mxfp8_e4m3", "modelopt", "dynamic", "mxfp8_e4m3"),
    ("fp8_row", "compressed-tensors", "dynamic", "fp8_row"),
    ("fp8_128x128", "deepseek", "dynamic", "fp8_1x128"),
]


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "examples" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of random weights, as transformers stores them."""
    folder = tmp_path_factory.mktemp("transformers")
    for name, (kind, options) in CONFIGS.items():
        config = getattr(transformers, kind)(
            vocab_size=512,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=3,
            num_attention_heads=8,
            num_key_value_heads=4,
            max_position_embeddings=128,
            initializer_range=0.06,  # so that logits are apart
            **options,
        )
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder / name)
    return folder


def convert(source: Path, destination: Path, *options: str) -> Path:
    """By the command line."""
    command = [sys.executable, "-m", "blockscale", "convert", source, destination, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return destination


def linears(model: Any) -> list[Any]:
    return [module for module in model.modules() if type(module) is Linear]


def of_numbers(model: Any) -> Any:
    """With each layer's numbers in f64: weights and inputs as they were quantized."""
    for module in list(model.modules()):
        for name, child in module._modules.items():
            if type(child) is Linear:
                module._modules[name] = OfNumbers(child)
    return model


@pytest.mark.parametrize(("recipe", "dialect", "activations", "inputs"), STORED)
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_greedy_tokens(
    example: ModuleType,
    folder: Path,
    tmp_path: Path,
    name: str,
    recipe: str,
    dialect: str,
    activations: str,
    inputs: str | None,
) -> None:
    options = ["--recipe", recipe, "--dialect", dialect, "--activations", activations]
    stored = convert(folder / name, tmp_path / "stored", *options)
    place = torch.device("cpu"), torch.float32, None
    model = example.load(stored, *place)
    assert [layer.recipe for layer in linears(model)] == [recipe] * 21
    assert {layer.activations for layer in linears(model)} == {inputs}
    ids = torch.randint(0, 512, (16, 8), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        y, exact = model(ids).logits, of_numbers(example.load(stored, *place))(ids).logits

    # Rounding of f32, some 6e-6 of the logits' deviation; but where an input's code falls to the
    # other side of an edge, which it does in some of the 16 sequences, that sequence's logits move.
    bound = 2.0**-14 * float(exact.std())
    close = (y - exact).abs().amax((1, 2)) <= bound
    assert int(close.sum()) >= (16 if inputs is None else 10)
    moved = (y - exact).norm(dim=(1, 2)) / exact.norm(dim=(1, 2))
    assert float(moved.max()) < 0.25
    best = exact.topk(2).values
    is_clear = (best[..., 0] - best[..., 1] > 2 * bound) & close[:, None]
    assert int(is_clear.sum()) > 64
    assert torch.equal(y.argmax(-1)[is_clear], exact.argmax(-1)[is_clear])


def test_generated_tokens_are_the_likeliest(
    example: ModuleType, folder: Path, tmp_path: Path
) -> None:
    stored = convert(folder / "qwen3", tmp_path / "stored", "--recipe", "mxfp8_e4m3")
    model = example.load(stored, torch.device("cpu"), torch.float32, "none")
    prompt = torch.tensor([[3, 1, 4], [3, 1, 4]])
    tokens, seconds = example.generate(model, prompt, 6)
    assert tokens.shape == (2, 6) and len(seconds) == 6 and min(seconds) > 0
    ids = prompt
    for i in range(6):  # without a cache of keys and values
        with torch.no_grad():
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], 1)
        assert torch.equal(ids[:, 3:], tokens[:, : i + 1])


def test_readme_shows_what_works(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(folder / "llama", tmp_path / "model-nvfp4", "--recipe", "nvfp4")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "README.md").read_text()
    (shown,) = re.findall(r"^```python\n(import torch.*?)^```$", page, re.M | re.S)
    names: dict[str, Any] = {}
    exec(shown, names)
    assert len(linears(names["model"])) == 21


def test_compiled_models_are_one_graph(example: ModuleType, folder: Path, tmp_path: Path) -> None:
    stored = convert(folder / "llama", tmp_path / "stored", "--recipe", "fp8_128x128")
    model = example.load(stored, torch.device("cpu"), torch.float32, None)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    ids = torch.tensor([[3, 1, 4, 1]])
    with torch.no_grad():
        y, again = model(ids).logits, compiled(ids).logits
    torch.testing.assert_close(again, y)


@pytest.mark.parametrize("activations", [None, "none"])
@pytest.mark.parametrize("recipe", ["mxfp8_e4m3", "fp8_row"])
def test_real_weights(tmp_path: Path, recipe: str, activations: str | None) -> None:
    weights = os.environ.get("BLOCKSCALE_MODEL")
    if not weights:
        pytest.skip("BLOCKSCALE_MODEL names no all-MiniLM-L6-v2")
    source = Path(weights).parent
    options = ["--recipe", recipe, "--activations", activations or "dynamic"]
    stored = convert(source, tmp_path / "stored", *options)
    plain = transformers.AutoModel.from_pretrained(source).eval()
    model = transformers.AutoModel.from_config(plain.config).eval()
    model = blockscale.nn.load(model, stored)
    layers = linears(model)
    assert len(layers) == 37
    assert {layer.activations for layer in layers} == {None if activations else recipe}
    off: list[float] = []

    def compare(layer: Any, inputs: tuple[Any], y: Any) -> None:
        exact = OfNumbers(layer)(inputs[0])
        off.append(float((y - exact).norm() / exact.norm()))

    hooks = [layer.register_forward_hook(compare) for layer in layers]
    ids = torch.randint(1000, 20000, (4, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        want, y = (m(input_ids=ids).last_hidden_state for m in (plain, model))
        for hook in hooks:
            hook.remove()
        exact = of_numbers(model)(input_ids=ids).last_hidden_state
    # Inputs that are quantized make noise of each difference: one code that falls to the other side
    # of an edge moves others. Each layer for itself is as exact.
    assert len(off) == 37 and max(off) < 2.0**-20
    assert float((y - exact).norm() / exact.norm()) < (2.0**-18 if activations else 0.15)
    assert 0.01 < float((y - want).norm() / want.norm()) < 0.15


def run_example(*arguments: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "examples" / "generate.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_example_prints_text_and_rates(folder: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder / "llama")
    stored = convert(folder / "llama", tmp_path / "stored", "--recipe", "fp8_128x128")
    report = tmp_path / "report.json"
    options = ["--beside", folder / "llama", "--sequences", 2, "--new-tokens", 4, "--json", report]
    done = run_example(stored, "--prompt", "the dog ran", *options)
    assert done.returncode == 0, done.stderr
    results = json.loads(report.read_text())
    assert [result["layers"] for result in results] == [{"fp8_128x128": 21}, {}]
    assert results[0]["weight_bytes"] < results[1]["weight_bytes"]
    assert all(r["tokens_per_second"] > 0 and r["memory_bytes"] > 1e6 for r in results)
    assert [list(map(len, result["tokens"])) for result in results] == [[4, 4], [4, 4]]
    lines = done.stdout.splitlines()
    assert lines[0] == f"{stored}: 21 layers in fp8_128x128"
    assert lines[1] == lines[2] and lines[3].endswith(" MB at most")
    assert lines[-1].startswith("the first ") and "of 8 new tokens are the same" in lines[-1]

    tokens = run_example(stored, "--tokens", "1,6,7", "--new-tokens", 4, "--sequences", 2)
    line = "  " + " ".join(map(str, results[0]["tokens"][0]))  # of the same prompt
    assert tokens.stdout.splitlines()[1:3] == [line, line]


def test_the_example_runs_mixtures(tmp_path: Path) -> None:
    config = transformers.Qwen3MoeConfig(
        vocab_size=64, hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, head_dim=32, num_experts=4, moe_intermediate_size=128,
        num_experts_per_tok=2,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "plain")
    stored = convert(tmp_path / "plain", tmp_path / "stored", "--recipe", "fp8_128x128")
    done = run_example(stored, "--tokens", "1,2,3", "--new-tokens", 2)
    assert done.stdout.splitlines()[0] == f"{stored}: 10 layers in fp8_128x128", done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--tokens", "1,512"], "--tokens: is [1, 512], must be ids below 512"),
        (["--tokens", "1,-2"], "argument --tokens: invalid"),
        (["--tokens", "1", "--new-tokens", "0"], "--new-tokens: is 0, must be 1 or more"),
        ([], "one of the arguments --prompt --tokens is required"),
    ],
)
def test_the_example_says_what_is_wrong(folder: Path, arguments: list[str], text: str) -> None:
    done = run_example(folder / "llama", *arguments)
    assert done.returncode == 2 and text in done.stderr
