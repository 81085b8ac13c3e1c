"""What compressed-tensors, llm-compressor and ModelOpt write, read by us."""

from __future__ import annotations

import sys
from pathlib import Path

import cases
import numpy as np
import packages
import pytest
import rules
import small_models
import store
from cases import Case
from command import Blockscale, run_program
from findings import Findings
from produce_with_compressed_tensors import produce

HERE = Path(__file__).parent
SECTION = "What we read"
NOTE = """\
*Values* are our dequantization to f32, against the rules and against the producing package's own.
*Rewritten* is the same recipe and dialect again: every tensor comes out byte for byte."""
LLM_COMPRESSOR = {  # its names of our recipes
    "NVFP4A16": "nvfp4",
    "MXFP4A16": "mxfp4",
    "MXFP8A16": "mxfp8_e4m3",
    "FP8_DYNAMIC": "fp8_row",
    "FP8_BLOCK": "fp8_128x128",
}
MODELOPT = ["NVFP4_DEFAULT_CFG", "W4A16_NVFP4_CFG"]


def weights_of(case: Case, tensors: dict[str, store.Stored]) -> list[str]:
    suffix = "." + case.scales_name
    return [n.removesuffix(case.scales_name) + "weight" for n in tensors if n.endswith(suffix)]


def assert_read(blockscale: Blockscale, case: Case, folder: Path, work: Path) -> int:
    """Our values of a checkpoint are the rules' and the package's. Returns the layers compared."""
    stored = store.read(folder)
    weights = weights_of(case, stored)
    ours = store.read(blockscale.dequantize(folder, work / "f32"))
    theirs = packages.dequantize(case.dialect, folder, weights)
    for name in weights:
        expected = case.dequantize(store.parts(stored, name))
        assert np.array_equal(ours[name].array, expected), name
        if case.returned_in_bfloat16:
            expected = rules.round_to_bfloat16(expected)
        scales = stored[name.removesuffix("weight") + case.scales_name]
        if scales.dtype == "BF16":  # then compressed-tensors multiplies in bf16
            expected = rules.round_to_bfloat16(expected)
        assert np.array_equal(theirs[name], expected), name
    layers = {name.removesuffix("weight") for name in weights}
    for name, tensor in stored.items():
        if name.rpartition(".")[0] + "." not in layers:
            expected = tensor.array
            assert np.array_equal(ours[name].array, expected), name
    compared = blockscale.compare(folder, work / "f32")
    assert not compared["only_a"] and not compared["only_b"] and not compared["different_shape"]
    assert all(tensor["status"] == "equal" for tensor in compared["tensors"])
    return len(weights)


def assert_rewritten(blockscale: Blockscale, case: Case, folder: Path, work: Path) -> None:
    options = ("--dialect", case.dialect)
    again = blockscale.convert(folder, work / "again", case.recipe, *options)
    stored, rewritten = store.read(folder), store.read(again)
    assert set(stored) == set(rewritten)
    for name, tensor in stored.items():
        assert rewritten[name].dtype == tensor.dtype, name
        assert rewritten[name].array.tobytes() == tensor.array.tobytes(), name


@pytest.mark.parametrize("case", cases.COMPRESSED_TENSORS, ids=cases.case_id)
def test_compressed_tensors(
    case: Case, blockscale: Blockscale, model_folder: Path, tmp_path: Path, findings: Findings
) -> None:
    folder = tmp_path / "written"
    produce(case, model_folder, folder)
    layers = assert_read(blockscale, case, folder, tmp_path)
    assert layers == 36  # the pooler is ignored
    assert_rewritten(blockscale, case, folder, tmp_path)
    version = findings.versions["compressed-tensors"]
    record(findings, f"compressed-tensors {version}", "all-MiniLM-L6-v2, f32", case, layers)


def record(findings: Findings, producer: str, model: str, case: Case, layers: int) -> None:
    row = f"{producer}, `{case.recipe}`, {model.replace('_', ' ')}"
    findings.record(SECTION, row, layers=layers, values="equal", rewritten="equal")
    findings.note(SECTION, NOTE)


@pytest.mark.parametrize("kind", small_models.KINDS)
@pytest.mark.parametrize("config", MODELOPT)
def test_modelopt(
    kind: str, config: str, blockscale: Blockscale, tmp_path: Path, findings: Findings
) -> None:
    folder = tmp_path / "written"
    run_program(sys.executable, HERE / "produce_with_modelopt.py", kind, config, folder)
    case = cases.find("nvfp4", "modelopt")
    layers = assert_read(blockscale, case, folder, tmp_path)
    version = findings.versions["nvidia-modelopt"]
    record(findings, f"ModelOpt {version} ({config})", kind + ", bf16", case, layers)
    assert_rewritten(blockscale, case, folder, tmp_path)
    assert_same_as_their_converter(blockscale, folder, tmp_path)


def assert_same_as_their_converter(blockscale: Blockscale, folder: Path, work: Path) -> None:
    """ModelOpt's NVFP4 to compressed-tensors', by us and by compressed-tensors itself."""
    from compressed_tensors.entrypoints.convert.converters import ModelOptNvfp4Converter
    from safetensors.torch import load_file

    options = ("--dialect", "compressed-tensors")
    ours = store.read(blockscale.convert(folder, work / "ours", "nvfp4", *options))
    theirs = ModelOptNvfp4Converter(targets=["re:.*"]).process(
        load_file(folder / "model.safetensors")
    )
    assert set(ours) == set(theirs)
    for name, tensor in theirs.items():
        expected = store.as_array(tensor)
        assert ours[name].array.tobytes() == expected.tobytes(), name


@pytest.fixture(scope="session")
def llm_compressor(pytestconfig: pytest.Config, work: Path) -> Path:
    """The folder of what llm-compressor wrote."""
    python = pytestconfig.getoption("--llm-compressor-python")
    if python is None:
        pytest.skip("no environment with llm-compressor")
    folder = work / "llm-compressor"
    run_program(python, HERE / "produce_with_llm_compressor.py", folder, *LLM_COMPRESSOR)
    return folder


@pytest.mark.parametrize("kind", small_models.KINDS)
@pytest.mark.parametrize("scheme", LLM_COMPRESSOR)
def test_llm_compressor(
    kind: str,
    scheme: str,
    llm_compressor: Path,
    blockscale: Blockscale,
    tmp_path: Path,
    findings: Findings,
) -> None:
    case = cases.find(LLM_COMPRESSOR[scheme], "compressed-tensors")
    folder = llm_compressor / f"{kind}-{scheme}"
    layers = assert_read(blockscale, case, folder, tmp_path)
    assert_rewritten(blockscale, case, folder, tmp_path)
    record(findings, f"llm-compressor ({scheme})", kind + ", bf16", case, layers)
