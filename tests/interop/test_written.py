"""What `blockscale convert` writes, as safetensors, compressed-tensors and ModelOpt read it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import cases
import example_model
import numpy as np
import packages
import pytest
import rules
import store
from cases import Case
from command import Blockscale
from findings import Findings

SECTION = "What we write"
DTYPES = {  # of the stored values and scales
    "nvfp4": ("U8", "F8_E4M3"),
    "mxfp4": ("U8", "U8"),
    "mxfp6_e2m3": ("U8", "U8"),
    "mxfp8_e4m3": ("F8_E4M3", "U8"),
    "fp8_128x128_ue8m0": ("F8_E4M3", "F8_E8M0"),
}
FP8_DTYPES = ("F8_E4M3", "F32")

every_case = pytest.mark.parametrize("case", cases.ALL, ids=cases.case_id)
Tensors = dict[str, store.Stored]


def quantized_names(source: Tensors) -> list[str]:
    return [name for name in source if example_model.QUANTIZED.fullmatch(name)]


def shared_amax(source: Tensors, name: str) -> np.float32:
    """The largest magnitude of a weight and of those that engines fuse with it."""
    siblings = example_model.fused_siblings(name)
    return max(np.abs(source[other].array).max() for other in source if siblings.fullmatch(other))


@every_case
def test_bytes_follow_the_rules(
    case: Case, converted: Callable[[Case], Path], source: Tensors, findings: Findings
) -> None:
    written = store.read(converted(case))
    names = quantized_names(source)
    values_dtype, scales_dtype = DTYPES.get(case.recipe, FP8_DTYPES)
    unseen = set(written)
    for name in names:
        weight = source[name].array
        expected = case.expected(case.quantize(weight, shared_amax(source, name)))
        for part, array in expected.items():
            full_name = name.removesuffix("weight") + part
            stored = written[full_name]
            assert stored.array.shape == array.shape, full_name
            assert stored.array.tobytes() == array.tobytes(), full_name
            unseen.discard(full_name)
        layer = name.removesuffix("weight")
        assert written[layer + case.values_name].dtype == values_dtype
        assert written[layer + case.scales_name].dtype == scales_dtype
        if case.tensor_scale_name:
            assert written[layer + case.tensor_scale_name].dtype == "F32"
    for name in set(source) - set(names):
        assert written[name].dtype == source[name].dtype, name
        assert written[name].array.tobytes() == source[name].array.tobytes(), name
        unseen.discard(name)
    assert not unseen, "tensors that no package asks for"
    findings.record(
        SECTION,
        f"`{case.recipe}`, {case.dialect}",
        layers=len(names),
        bytes_against_the_rules="equal",
    )


@every_case
def test_other_files_are_copied(
    case: Case, converted: Callable[[Case], Path], model_folder: Path
) -> None:
    rewritten = {"config.json", "model.safetensors"}
    for file in model_folder.rglob("*"):
        relative = file.relative_to(model_folder)
        if file.is_file() and str(relative) not in rewritten:
            assert (converted(case) / relative).read_bytes() == file.read_bytes(), relative


@pytest.mark.parametrize("case", cases.COMPRESSED_TENSORS, ids=cases.case_id)
def test_config_of_compressed_tensors(case: Case, converted: Callable[[Case], Path]) -> None:
    from compressed_tensors.quantization import QuantizationConfig, QuantizationStatus

    raw = store.config(converted(case))["quantization_config"]
    config = QuantizationConfig.model_validate(raw)
    (group,) = config.config_groups.values()
    assert (config.quant_method, config.format) == ("compressed-tensors", case.format)
    assert config.quantization_status == QuantizationStatus.COMPRESSED
    assert group.format == case.format
    assert group.input_activations is None and group.output_activations is None
    (raw_group,) = raw["config_groups"].values()
    stated = {key: value for key, value in raw_group["weights"].items() if value is not None}
    assert stated | case.weights == stated


PRESETS = {  # of llm-compressor, by recipe and --activations
    ("nvfp4", None): "NVFP4A16",
    ("mxfp4", None): "MXFP4",
    ("mxfp4", "none"): "MXFP4A16",
    ("mxfp8_e4m3", None): "MXFP8",
    ("mxfp8_e4m3", "none"): "MXFP8A16",
    ("mxfp6_e2m3", None): "MXFP6A16",
    ("mxfp6_e2m3", "dynamic"): "MXFP6A8",
    ("fp8_row", None): "FP8_DYNAMIC",
    ("fp8_128x128", None): "FP8_BLOCK",
    ("nvfp4", "static"): "NVFP4",
    ("fp8_tensor", "static"): "FP8",
}


@pytest.mark.parametrize(("recipe", "activations"), PRESETS)
def test_activations_are_those_of_the_presets(
    recipe: str,
    activations: str | None,
    blockscale: Blockscale,
    model_folder: Path,
    source: Tensors,
    tmp_path: Path,
) -> None:
    from compressed_tensors.quantization import QuantizationConfig, preset_name_to_scheme

    options = ["--dialect", "compressed-tensors"]
    if activations is not None:
        options += ["--activations", activations]
    if activations == "static":
        scales = tmp_path / "scales.json"
        scales.write_text(json.dumps(dict.fromkeys(quantized_names(source), 4.0)))
        options += ["--activation-scales", scales]
    folder = blockscale.convert(model_folder, tmp_path / "out", recipe, *options)
    config = QuantizationConfig.model_validate(store.config(folder)["quantization_config"])
    (group,) = config.config_groups.values()
    preset = preset_name_to_scheme(PRESETS[recipe, activations], ["Linear"])
    assert arguments(group.weights) == arguments(preset.weights)
    assert arguments(group.input_activations) == arguments(preset.input_activations)


def arguments(of: object) -> dict | None:
    """Of weights or inputs, without what only a calibration asks."""
    if of is None:
        return None
    unasked = {"observer", "observer_kwargs", "zp_dtype"}
    return {key: value for key, value in of.model_dump().items() if key not in unasked}


@pytest.mark.parametrize("case", cases.ALL, ids=cases.case_id)
def test_kept_layers_are_listed(
    case: Case, blockscale: Blockscale, model_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    options = ("--dialect", case.dialect, "--exclude", "pooler.*")
    blockscale.convert(model_folder, folder, case.recipe, *options)
    config = store.config(folder)["quantization_config"]
    key = "modules_to_not_convert" if case.dialect == "deepseek" else "ignore"
    assert "pooler.dense" in config[key]
    if case.dialect == "modelopt":
        described = json.loads((folder / "hf_quant_config.json").read_text())
        assert "pooler.dense" in described["quantization"]["exclude_modules"]


@pytest.mark.parametrize("case", cases.MODELOPT, ids=cases.case_id)
def test_config_of_modelopt(case: Case, converted: Callable[[Case], Path]) -> None:
    """ModelOpt's own function derives config.json's entry from hf_quant_config.json."""
    from modelopt.torch.export.convert_hf_config import convert_hf_quant_config_format

    described = json.loads((converted(case) / "hf_quant_config.json").read_text())
    quantization = described["quantization"]
    assert quantization["quant_algo"] == "W4A16_NVFP4"
    assert quantization["group_size"] == 16
    assert quantization["kv_cache_quant_algo"] is None
    written = store.config(converted(case))["quantization_config"]
    assert written == convert_hf_quant_config_format(described)


def test_mixed_config_of_modelopt(
    blockscale: Blockscale, model_folder: Path, source: Tensors, tmp_path: Path, findings: Findings
) -> None:
    from modelopt.torch.export.convert_hf_config import convert_hf_quant_config_format

    scales = tmp_path / "scales.json"
    scales.write_text(json.dumps(dict.fromkeys(quantized_names(source), 4.0)))
    options = ["--dialect", "modelopt", "--activation-scales", scales]
    options += ["--map", "*.intermediate.*=fp8_tensor", "--map", "*.value=mxfp8_e4m3"]
    options += ["--map", "*.key=fp8_row"]
    folder = blockscale.convert(model_folder, tmp_path / "out", "nvfp4", *options)
    described = json.loads((folder / "hf_quant_config.json").read_text())
    assert described["quantization"]["quant_algo"] == "MIXED_PRECISION"
    assert len(described["quantization"]["quantized_layers"]) == 37
    written = store.config(folder)["quantization_config"]
    assert written == convert_hf_quant_config_format(described)
    ours = store.read(blockscale.dequantize(folder, tmp_path / "f32"))
    for name in quantized_names(source):
        assert rules.sqnr_db(source[name].array, ours[name].array) > 15, name
    row = "NVFP4, FP8, MXFP8 and FP8 by row in one, modelopt"
    findings.record(SECTION, row, layers=37, bytes_against_the_rules="configuration equal")


@every_case
def test_values_are_ours_and_the_packages(
    case: Case,
    converted: Callable[[Case], Path],
    dequantized: Callable[[Case], Path],
    source: Tensors,
    findings: Findings,
) -> None:
    written, ours = store.read(converted(case)), store.read(dequantized(case))
    names = quantized_names(source)
    theirs = packages.dequantize(case.dialect, converted(case), names)
    for name in names:
        expected = case.dequantize(store.parts(written, name))
        assert ours[name].dtype == "F32"
        assert np.array_equal(ours[name].array, expected), name
        if case.returned_in_bfloat16:
            expected = rules.round_to_bfloat16(expected)
        assert np.array_equal(theirs[name], expected), name
    findings.record(
        SECTION,
        f"`{case.recipe}`, {case.dialect}",
        values_against_the_package="equal",
    )
