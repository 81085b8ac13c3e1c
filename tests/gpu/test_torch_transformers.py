"""transformers' models on a GPU, from checkpoints that the command line has converted, beside the
same models with dequantized weights in f32. `./dev gpu-test` runs these where there are a GPU and
transformers."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import Any

import pytest
from gpu_torch import torch

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "package" / "nn"))

import blockscale  # noqa: E402
import blockscale.nn  # noqa: E402
import causal_models  # noqa: E402
from nn_model import OfNumbers  # noqa: E402

STORED = [
    ("nvfp4", "compressed-tensors"),
    ("mxfp4", "compressed-tensors"),
    ("fp8_128x128", "deepseek"),
    ("fp8_row", "compressed-tensors"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("transformers")
    for name in (*causal_models.DENSE, *causal_models.MIXTURES):
        causal_models.save(name, folder / name)
    return folder


def convert(source: pathlib.Path, destination: pathlib.Path, *options: str) -> pathlib.Path:
    command = [sys.executable, "-m", "blockscale", "convert", source, destination, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return destination


def loaded(name: str, folder: pathlib.Path, **options: Any) -> Any:
    return blockscale.nn.load(causal_models.model_of(name), folder, "cuda", **options)


def compare(y: Any, want: Any, bound: float) -> None:
    """Logits within `bound` of the largest, greedy tokens equal wherever that decides."""
    off, largest = float((y - want).abs().max()), float(want.abs().max())
    print(f"off by {off / largest:.2e} of the largest logit")
    assert off <= bound * largest
    best = want.topk(2).values
    is_clear = best[..., 0] - best[..., 1] > 2 * bound * largest
    assert int(is_clear.sum()) > is_clear.numel() // 8
    assert torch.equal(y.argmax(-1)[is_clear], want.argmax(-1)[is_clear])


@pytest.mark.parametrize(("recipe", "dialect"), STORED)
@pytest.mark.parametrize("name", [*causal_models.DENSE, *causal_models.MIXTURES])
def test_inputs_as_they_are(
    folder: pathlib.Path, tmp_path: pathlib.Path, name: str, recipe: str, dialect: str
) -> None:
    stored = convert(folder / name, tmp_path / "q", "--recipe", recipe, "--dialect", dialect)
    numbers = convert(stored, tmp_path / "numbers", "--recipe", "f32")
    model, exact = loaded(name, stored, activations="none"), loaded(name, numbers)
    kinds = {type(module) for module in model.modules()}
    assert blockscale.nn.Linear in kinds
    assert (blockscale.nn.Experts in kinds) == (name in causal_models.MIXTURES)
    ids = torch.arange(48, device="cuda").reshape(4, 12)
    with torch.no_grad():
        compare(model(ids).logits, exact(ids).logits, 2.0**-6)


@pytest.mark.parametrize(
    ("recipe", "dialect"), [("fp8_128x128", "deepseek"), ("fp8_row", "compressed-tensors")]
)
@pytest.mark.parametrize("name", causal_models.DENSE)
def test_quantized_inputs(
    folder: pathlib.Path, tmp_path: pathlib.Path, name: str, recipe: str, dialect: str
) -> None:
    """Each layer on its own inputs: in a whole model one code that falls to the other side of an
    edge moves others."""
    stored = convert(folder / name, tmp_path / "q", "--recipe", recipe, "--dialect", dialect)
    model = loaded(name, stored)
    off: list[float] = []

    def measure(layer: Any, inputs: tuple[Any], y: Any) -> None:
        exact = OfNumbers(layer)(inputs[0])
        off.append(float((y - exact).norm() / exact.norm()))

    layers = [m for m in model.modules() if type(m) is blockscale.nn.Linear]
    assert len(layers) == 14 and all(layer.activations for layer in layers)
    for layer in layers:
        layer.register_forward_hook(measure)
    ids = torch.arange(48, device="cuda").reshape(4, 12)
    with torch.no_grad():
        model(ids)
    print(f"layers are off by {max(off):.2e} at most")
    assert len(off) == 14 and max(off) < 2.0**-9  # tensor cores sum 13 bits of 32 products


def test_gpt_oss_as_it_is_stored(tmp_path: pathlib.Path) -> None:
    stored = causal_models.save_gpt_oss(tmp_path / "mxfp4")
    there = loaded("GptOss", stored)
    here = blockscale.nn.load(causal_models.model_of("GptOss"), stored)
    assert {type(layer.mlp.experts) for layer in there.model.layers} == {blockscale.nn.Experts}
    ids = torch.arange(48).reshape(4, 12)
    with torch.no_grad():
        compare(there(ids.cuda()).logits.cpu(), here(ids).logits, 2.0**-6)
