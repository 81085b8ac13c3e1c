"""What compressed-tensors, llm-compressor and ModelOpt write, read by us."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import cases
import numpy as np
import packages
import pytest
import rules
import small_models
import store
import torch
from cases import Case
from command import Blockscale, run_program
from findings import Findings
from produce_with_compressed_tensors import produce

HERE = Path(__file__).parent
SECTION = "What we read"
NOTE = """\
*Values* are our dequantization to f32, against the rules and against the producing package's own.
*Rewritten* is the same recipe and dialect again: every tensor comes out byte for byte; or, with
*as*, the same recipe in a dialect whose package reads the same values (of `nvfp4` to 2 units in the
last place of f32, as a tensor scale may become its inverse). AWQ's factors are what ModelOpt's own
search finds; of that, its form in torch stands in for a CUDA kernel, which rounds to NVFP4 and
back."""
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


#: ModelOpt's other weights that we read: its configuration, our recipe, and whether we write it.
MODELOPT_OTHERS = [
    ("FP8_DEFAULT_CFG", "fp8_tensor", True),
    ("FP8_PER_CHANNEL_PER_TOKEN_CFG", "fp8_row", True),
    ("FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG", "fp8_128x128", False),
    ("MXFP8_DEFAULT_CFG", "mxfp8_e4m3", True),
    ("MXFP4_DEFAULT_CFG", "mxfp4", False),
    ("W4A8_MXFP4_FP8_CFG", "mxfp4", False),
]


def modelopt_values(recipe: str, codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    if recipe == "mxfp4":
        decoded = rules.E2M1.decode(rules.unpack4(codes))
    else:
        decoded = rules.E4M3.decode(codes)
    if scales.dtype == np.uint8:
        factors = rules.decode_exponents(scales)
    elif recipe == "fp8_row":
        factors = scales.reshape(-1, 1)
    else:
        factors = scales.reshape(scales.shape[::2] or (1, 1))  # [r, 1, c, 1] of blocks
    return decoded * rules.expand_scales(factors, decoded.shape)


@pytest.mark.parametrize(("config", "recipe", "written"), MODELOPT_OTHERS)
def test_modelopt_fp8_and_mx(
    config: str,
    recipe: str,
    written: bool,
    blockscale: Blockscale,
    tmp_path: Path,
    findings: Findings,
) -> None:
    """Values, every part through compressed-tensors and back, and our own bytes of the recipe."""
    folder = tmp_path / "written"
    run_program(sys.executable, HERE / "produce_with_modelopt.py", "llama", config, folder)
    stored = store.read(folder)
    ours = store.read(blockscale.dequantize(folder, tmp_path / "f32"))
    names = [n.removesuffix("_scale") for n in stored if n.endswith(".weight_scale")]
    assert len(names) == 14
    for name in names:
        expected = modelopt_values(recipe, stored[name].array, stored[name + "_scale"].array)
        assert np.array_equal(ours[name].array, expected), name
    version = findings.versions["nvidia-modelopt"]
    row = f"ModelOpt {version} ({config}), `{recipe}`, llama, bf16"
    rewritten = "not written"
    if written:
        options = ("--dialect", "compressed-tensors")
        between = blockscale.convert(folder, tmp_path / "between", recipe, *options)
        again = blockscale.convert(between, tmp_path / "again", recipe, "--dialect", "modelopt")
        assert_equal_tensors(store.read(again), stored)
        assert described(again) == described(folder)
        rewritten = "equal, through compressed-tensors too"
    findings.record(SECTION, row, layers=len(names), values="equal", rewritten=rewritten)


def assert_equal_tensors(a: dict[str, store.Stored], b: dict[str, store.Stored]) -> None:
    assert set(a) == set(b)
    for name, tensor in a.items():
        assert (tensor.dtype, tensor.array.shape) == (b[name].dtype, b[name].array.shape), name
        assert tensor.array.tobytes() == b[name].array.tobytes(), name


def described(folder: Path) -> tuple[dict, dict]:
    """What both files say of the quantization, without what says nothing."""
    hf = json.loads((folder / "hf_quant_config.json").read_text())
    return store.config(folder)["quantization_config"], hf


@pytest.mark.parametrize(("config", "recipe"), [("MXFP8_DEFAULT_CFG", "mxfp8_e4m3")])
def test_scales_are_rounded_as_modelopt_does(
    config: str, recipe: str, blockscale: Blockscale, tmp_path: Path
) -> None:
    run_program(sys.executable, HERE / "produce_with_modelopt.py", "llama", config, tmp_path / "mo")
    small_models.save("llama", tmp_path / "source")
    options = ("--dialect", "modelopt")
    folder = blockscale.convert(tmp_path / "source", tmp_path / "ours", recipe, *options)
    assert_equal_tensors(store.read(folder), store.read(tmp_path / "mo"))


def test_gpt_oss(blockscale: Blockscale, tmp_path: Path, findings: Findings) -> None:
    """Plain stacks are those that transformers itself unfolds; NVFP4 has the same values."""
    from safetensors.torch import save_file
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    generator = torch.Generator().manual_seed(5)
    tensors = {}
    for name, shape in (("gate_up_proj", (4, 128, 2, 16)), ("down_proj", (4, 64, 2, 16))):
        blocks = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        scales = torch.randint(112, 129, shape[:3], dtype=torch.uint8, generator=generator)
        tensors |= {f"experts.{name}_blocks": blocks, f"experts.{name}_scales": scales}
    folder = tmp_path / "source"
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    config = {"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}
    (folder / "config.json").write_text(json.dumps(config))
    plain = store.read(blockscale.dequantize(folder, tmp_path / "bf16", "bf16"))
    nvfp4 = blockscale.convert(folder, tmp_path / "nvfp4", "nvfp4", "--dialect", "modelopt")
    unfolded = store.read(blockscale.dequantize(nvfp4, tmp_path / "f32"))
    for name in ("experts.gate_up_proj", "experts.down_proj"):
        theirs = convert_moe_packed_tensors(tensors[name + "_blocks"], tensors[name + "_scales"])
        assert np.array_equal(plain[name].array, store.as_array(theirs)), name
        assert np.array_equal(unfolded[name].array.swapaxes(1, 2), store.as_array(theirs)), name
    row = "gpt-oss's experts, random, `mxfp4`, as transformers unfolds them"
    findings.record(SECTION, row, layers=2, values="equal", rewritten="as `nvfp4` equal too")


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
def llm_compressor(llm_compressor_python: Path, work: Path) -> Path:
    """The folder of what llm-compressor wrote."""
    folder = work / "llm-compressor"
    run_program(
        llm_compressor_python, HERE / "produce_with_llm_compressor.py", folder, *LLM_COMPRESSOR
    )
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
