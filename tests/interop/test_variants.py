"""Mixed recipes, calibrated activations, shards, decoders and mixtures of experts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import cases
import example_model
import numpy as np
import pytest
import small_models
import store
import torch
from cases import Case
from command import Blockscale
from findings import Findings, in_words
from transformers import AutoModelForCausalLM

SECTION = "Other forms, loaded and run by transformers"
Tensors = dict[str, store.Stored]
NVFP4 = cases.find("nvfp4", "compressed-tensors")
MXFP8 = cases.find("mxfp8_e4m3", "compressed-tensors")


def test_mixed_recipes(
    blockscale: Blockscale,
    model_folder: Path,
    tmp_path: Path,
    reference: np.ndarray,
    findings: Findings,
) -> None:
    options = ("--dialect", "compressed-tensors", "--map", "*.intermediate.*=mxfp8_e4m3")
    options += ("--activations", "none")
    folder = blockscale.convert(model_folder, tmp_path / "mixed", "nvfp4", *options)
    assert store.config(folder)["quantization_config"]["format"] == "mixed-precision"
    model, report = example_model.load(folder, torch.bfloat16)
    assert not any(report.values()), report
    cosines = example_model.cosines(reference, example_model.embed(model, model_folder))
    stored = store.read(folder)
    for name, parameter in model.named_parameters():
        if example_model.QUANTIZED.fullmatch(name):
            case = MXFP8 if "intermediate" in name else NVFP4
            expected = case.dequantize_as_loaded(store.parts(stored, name))
            assert np.array_equal(parameter.detach().float().numpy(), expected), name
    row = "all-MiniLM-L6-v2, `nvfp4` with `mxfp8_e4m3` by `--map`"
    findings.record(SECTION, row, result=f"weights equal, cosine {in_words(cosines)}")


@pytest.fixture(scope="module")
def input_maxima(model_folder: Path) -> dict[str, float]:
    """Of every converted layer, the largest magnitude that it sees at its input in f32."""
    model, _ = example_model.load(model_folder, torch.float32)
    maxima: dict[str, float] = {}

    def watch(name: str) -> Callable[[torch.nn.Module, tuple[torch.Tensor]], None]:
        def hook(_: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
            maxima[name] = max(maxima.get(name, 0.0), inputs[0].abs().max().item())

        return hook

    for name, module in model.named_modules():
        if example_model.QUANTIZED.fullmatch(f"{name}.weight"):
            module.register_forward_pre_hook(watch(f"{name}.weight"))
    example_model.embed(model, model_folder)
    return maxima


def convert_calibrated(
    blockscale: Blockscale, source: Path, work: Path, maxima: dict[str, float], dialect: str
) -> Path:
    file = work / "maxima.json"
    file.write_text(json.dumps(maxima))
    options = ("--dialect", dialect, "--activation-scales", file)
    return blockscale.convert(source, work / "calibrated", "nvfp4", *options)


def test_calibrated_activations(
    blockscale: Blockscale,
    model_folder: Path,
    tmp_path: Path,
    input_maxima: dict[str, float],
    reference: np.ndarray,
    findings: Findings,
) -> None:
    """compressed-tensors' W4A4, whose activations the package itself quantizes as it runs."""
    folder = convert_calibrated(
        blockscale, model_folder, tmp_path, input_maxima, "compressed-tensors"
    )
    (group,) = store.config(folder)["quantization_config"]["config_groups"].values()
    inputs = group["input_activations"]
    assert (inputs["dynamic"], inputs["strategy"]) == ("local", "tensor_group")
    stored = store.read(folder)
    for name, maximum in input_maxima.items():
        scale = stored[name.removesuffix("weight") + "input_global_scale"]
        assert scale.dtype == "F32" and scale.array.shape == (1,)
        assert scale.array[0] == np.float32(2688) / np.float32(maximum)
    model, report = example_model.load(folder, torch.bfloat16)
    assert not any(report.values()), report
    cosines = example_model.cosines(reference, example_model.embed(model, model_folder))
    assert cosines.min() > 0.8  # it runs in 4 bits on both sides, and on the right scales
    row = "all-MiniLM-L6-v2, `nvfp4` with calibrated 4-bit activations"
    findings.record(SECTION, row, result=f"runs, cosine {in_words(cosines)}")


def test_calibrated_activations_of_modelopt(
    blockscale: Blockscale, model_folder: Path, tmp_path: Path, input_maxima: dict[str, float]
) -> None:
    folder = convert_calibrated(blockscale, model_folder, tmp_path, input_maxima, "modelopt")
    described = json.loads((folder / "hf_quant_config.json").read_text())
    assert described["quantization"]["quant_algo"] == "NVFP4"
    stored = store.read(folder)
    for name, maximum in input_maxima.items():
        scale = stored[name.removesuffix("weight") + "input_scale"]
        assert scale.dtype == "F32" and scale.array.shape == ()
        assert scale.array == np.float32(maximum) / np.float32(2688)


def test_shards(
    blockscale: Blockscale,
    model_folder: Path,
    tmp_path: Path,
    converted: Callable[[Case], Path],
    findings: Findings,
) -> None:
    options = ("--dialect", NVFP4.dialect, "--shard-size", "5MB")
    folder = blockscale.convert(model_folder, tmp_path / "sharded", NVFP4.recipe, *options)
    files = sorted(folder.glob("model-*.safetensors"))
    assert len(files) > 2
    whole, sharded = store.read(converted(NVFP4)), store.read(folder)
    assert set(whole) == set(sharded)
    for name, tensor in whole.items():
        assert sharded[name].array.tobytes() == tensor.array.tobytes(), name
    _, report = example_model.load(folder, torch.bfloat16)
    assert not any(report.values()), report
    findings.record(
        SECTION, "all-MiniLM-L6-v2, `nvfp4` in shards", result=f"{len(files)} shards, tensors equal"
    )


SMALL = [
    ("llama", "nvfp4", "compressed-tensors"),
    ("llama", "mxfp4", "compressed-tensors"),
    ("llama", "mxfp6_e2m3", "compressed-tensors"),
    ("llama", "mxfp8_e4m3", "compressed-tensors"),
    ("llama", "fp8_128x128", "deepseek"),
    ("llama", "fp8_128x128_ue8m0", "deepseek"),
    ("mixture_of_experts", "mxfp4", "compressed-tensors"),
    ("mixture_of_experts", "fp8_128x128", "deepseek"),
]


def logits(folder: Path) -> np.ndarray:
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, output_loading_info=True
    )
    assert not any(report.values()), report
    with torch.inference_mode():
        return model.eval()(small_models.token_ids()).logits.float().numpy()


@pytest.mark.parametrize(("kind", "recipe", "dialect"), SMALL)
def test_small_models(
    kind: str, recipe: str, dialect: str, blockscale: Blockscale, tmp_path: Path, findings: Findings
) -> None:
    """A bf16 model's logits are those of the weights that we say it has, bit for bit."""
    small_models.save(kind, tmp_path / "source")
    options = ["--dialect", dialect]
    if dialect == "compressed-tensors":
        options += ["--activations", "none"]
    folder = blockscale.convert(tmp_path / "source", tmp_path / "small", recipe, *options)
    plain = blockscale.dequantize(folder, tmp_path / "plain", "bf16")
    loaded = logits(folder)
    assert np.array_equal(loaded, logits(plain))
    assert not np.array_equal(loaded, logits(tmp_path / "source"))
    row = f"small random {kind.replace('_', ' ')}, `{recipe}`, {dialect}"
    findings.record(SECTION, row, result="logits equal")
