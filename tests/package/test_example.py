"""examples/sentence_embedding.py on a small BERT, and the page that `./dev demo` makes of it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import blockscale
import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

ROOT = Path(__file__).parents[2]
WORDS = ["[UNK]", "the", "kettle", "is", "boiling", "a", "dog", "ran", "across", "frozen", "lake"]
WORDS += ["train", "leaves", "at", "six"]
HIDDEN = 256  # of the feed-forward layer


@pytest.fixture(scope="module")
def example() -> ModuleType:
    path = ROOT / "examples" / "sentence_embedding.py"
    spec = importlib.util.spec_from_file_location("sentence_embedding", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def save_model(folder: Path, width: int) -> Path:
    """A BERT of one layer of that width with random weights, and a tokenizer of WORDS."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    layer = "encoder.layer.0"
    shapes = {
        f"{layer}.attention.self.{part}": (width, width) for part in ("query", "key", "value")
    }
    shapes[f"{layer}.attention.output.dense"] = (width, width)
    shapes[f"{layer}.intermediate.dense"] = (HIDDEN, width)
    shapes[f"{layer}.output.dense"] = (width, HIDDEN)
    tensors: dict[str, np.ndarray] = {
        "embeddings.word_embeddings.weight": rng.standard_normal((len(WORDS), width)),
        "embeddings.position_embeddings.weight": rng.standard_normal((32, width)),
        "embeddings.token_type_embeddings.weight": rng.standard_normal((2, width)),
    }
    for name, shape in shapes.items():
        tensors[f"{name}.weight"] = rng.standard_normal(shape) * shape[1] ** -0.5
        tensors[f"{name}.bias"] = rng.standard_normal(shape[0])
    for name in ("embeddings", f"{layer}.attention.output", f"{layer}.output"):
        tensors[f"{name}.LayerNorm.weight"] = 1 + 0.1 * rng.standard_normal(width)
        tensors[f"{name}.LayerNorm.bias"] = rng.standard_normal(width)
    save_file(
        {name: tensor.astype(np.float32) for name, tensor in tensors.items()},
        folder / "model.safetensors",
    )
    config = {"model_type": "bert", "num_hidden_layers": 1, "num_attention_heads": 4}
    config |= {"hidden_size": width, "layer_norm_eps": 1e-12}
    (folder / "config.json").write_text(json.dumps(config))
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("example") / "model", 128)


SENTENCES = (
    ["the kettle is boiling", "a dog ran", "a dog ran across the frozen lake"],
    ["a kettle is boiling", "the train leaves at six", "the dog ran across a lake"],
)


def test_pairs_cover_every_recipe_and_can_be_multiplied(example: ModuleType) -> None:
    pairs = example.pairs()
    assert len({pair.name for pair in pairs}) == len(pairs)
    assert {pair.weight for pair in pairs} == {recipe.name for recipe in blockscale.Recipe}
    four_bits = {p.name.split("-")[1] for p in pairs if p.weight in ("mxfp4", "nvfp4")}
    assert four_bits == {"W4A4", "W4A8", "W4A16"}
    x = np.random.default_rng(0).standard_normal((4, 128), np.float32)
    for pair in pairs:
        a, b = (example.in_recipe(x, recipe) for recipe in (pair.activation, pair.weight))
        product = blockscale.gemm(a, b, out_dtype="float32")
        error = np.linalg.norm(product - x @ x.T) / np.linalg.norm(x @ x.T)
        assert error < 0.2, pair


def test_committed_sentence_pairs(example: ModuleType) -> None:
    left, right = example.read_pairs(ROOT / "examples" / "sentence_pairs.tsv")
    assert len(left) == len(right) >= 200
    assert len(set(zip(left, right, strict=True))) == len(left)
    assert all(left) and all(right)


def test_calibration_sentences_are_not_among_those_of_the_evaluation(example: ModuleType) -> None:
    left, right = example.read_pairs(ROOT / "examples" / "sentence_pairs.tsv")
    text = (ROOT / "examples" / "calibration_sentences.txt").read_text(encoding="utf-8")
    sentences = text.splitlines()
    assert len(set(sentences)) == len(sentences) >= 48 and all(sentences)
    assert not set(sentences) & {*left, *right}


def test_results_compare_with_f32(example: ModuleType, model: Path, tmp_path: Path) -> None:
    inputs = example.calibrate(
        model, ["a lake is frozen", "the train ran"], tmp_path / "c.safetensors"
    )
    squares = {name: x for name, x in inputs.items() if name.endswith(".input_mean_square")}
    assert len(squares) == 6 and all((square > 0).all() for square in squares.values())
    results, reference = example.evaluate(model, SENTENCES, example.pairs(), 1, inputs)
    assert [r.name for r in results] == [p.name for p in example.pairs()]
    assert np.linalg.norm(reference, axis=1) == pytest.approx(1.0, abs=1e-6)
    by_name = {r.name: r for r in results}
    f32 = by_name["f32"]
    assert f32.cosine_min == pytest.approx(1.0, abs=1e-6) and f32.rank_correlation == 1.0
    parameters = 4 * 128 * 128 + 2 * 128 * HIDDEN
    assert f32.weight_bytes == 4 * parameters and by_name["bf16"].weight_bytes == 2 * parameters
    assert by_name["mxfp4-W4A4"].weight_bytes == parameters * 17 // 32
    assert all(r.layers_kept == 0 and r.sentence_pairs == 3 for r in results)
    assert all(r.cosine_min <= r.cosine_mean <= 1.000001 for r in results)
    losses = [1 - by_name[f"mxfp4-{kind}"].cosine_mean for kind in ("W4A4", "W4A8", "W4A16")]
    assert losses[0] > losses[1] > 0 and losses[2] > 0
    assert losses[0] > 1 - by_name["mxfp8_e4m3-W8A8"].cosine_mean > 1 - by_name["bf16"].cosine_mean


def test_weights_that_a_recipe_cannot_divide_stay_and_are_counted(
    example: ModuleType, tmp_path: Path
) -> None:
    narrow = save_model(tmp_path / "narrow", 72)  # 72 is no multiple of 32 or 16, 256 is
    chosen = [p for p in example.pairs() if p.name in ("mxfp4-W4A4", "fp8_128x128-W8A8")]
    _, fp8, mxfp4 = example.evaluate(narrow, SENTENCES, chosen, 1)[0]
    assert (fp8.layers_kept, mxfp4.layers_kept) == (0, 5)
    kept = 4 * (4 * 72 * 72 + HIDDEN * 72)
    assert mxfp4.weight_bytes == kept + 72 * HIDDEN * 17 // 32


def test_unknown_pair_is_an_error(model: Path) -> None:
    command = [sys.executable, ROOT / "examples" / "sentence_embedding.py", model, "--only", "int4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "unknown int4" in done.stderr


def test_demo_makes_a_page(model: Path) -> None:
    """The function of tools/dev/demo.sh, with the command line and the example as they are."""
    demo = model.parent
    for name in ("bf16-plain", "nvfp4-compressed-tensors", "nvfp4-modelopt"):
        recipe, _, dialect = name.partition("-")
        blockscale.convert(model, demo / name, recipe, dialect=dialect)
    script = (
        "set -euo pipefail; source tools/dev/demo.sh; demo=$1; demo_sentence_pairs=4; shift; "
        'write_demo_report "$@"'
    )
    names = ["bf16-plain", "nvfp4-compressed-tensors", "nvfp4-modelopt"]
    subprocess.run(["bash", "-c", script, "-", demo, *names], cwd=ROOT, check=True)
    page = (demo / "report.html").read_text()
    for heading in (
        "Size against accuracy",
        "Accuracy layer by layer",
        "How large the errors are",
        "What the model makes of it",
        "How fast quantizing is",
        "How fast products are on one thread",
        "What searched scales gained in nvfp4 mse",
        "What searched scales gained in mxfp4 mse",
    ):
        assert f"<h2>{heading}</h2>" in page
    assert "8 sentences" in page and "nvfp4-W4A16" in page
    assert page.count("<tr><td>nvfp4</td>") == 1  # the second dialect has the same values
