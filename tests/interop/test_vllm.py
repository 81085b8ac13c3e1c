"""vLLM's own code reads what we write, and we read what it quantizes; layer by layer, on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import example_model
import numpy as np
import pytest
import store
from command import Blockscale, run_program
from findings import Findings
from test_read import HERE
from test_read_others import assert_values, dequantized, in_other_dialects, record

SECTION = "What we write, loaded by vLLM"
WRITTEN = [
    ("fp8_128x128", "deepseek"),
    ("fp8_128x128_pow2", "deepseek"),
    ("fp8_128x128_ue8m0", "deepseek"),
    ("mxfp8_e4m3", "compressed-tensors"),
    ("nvfp4", "modelopt"),
]


@pytest.fixture(scope="session")
def weights(source: dict[str, store.Stored]) -> list[str]:
    return [name for name in source if example_model.QUANTIZED.fullmatch(name)]


def read_with_vllm(
    python: Path, folder: Path, work: Path, weights: list[str]
) -> tuple[str, str, dict[str, np.ndarray]]:
    """vLLM's version, the class that loads the layers, and their values in f32."""
    values = work / "vllm"
    values.mkdir()
    file = values / "model.safetensors"
    printed = run_program(python, HERE / "use_vllm.py", "read", folder, file, *weights)
    version, loader = printed.splitlines()[-1].split()
    return version, loader, {name: tensor.array for name, tensor in store.read(values).items()}


@pytest.mark.parametrize(("recipe", "dialect"), WRITTEN)
def test_vllm_reads_what_we_write(
    recipe: str,
    dialect: str,
    blockscale: Blockscale,
    vllm_python: Path,
    model_folder: Path,
    weights: list[str],
    tmp_path: Path,
    findings: Findings,
) -> None:
    options = ["--dialect", dialect]
    if recipe == "nvfp4":
        # Its emulation quantizes inputs too. With this scale the identity matrix, by which vLLM
        # asks a layer for its values, is exact in 4 bits.
        scales = tmp_path / "scales.json"
        scales.write_text(json.dumps(dict.fromkeys(weights, 1.0)))
        options += ["--activation-scales", scales]
    folder = blockscale.convert(model_folder, tmp_path / "written", recipe, *options)
    version, loader, theirs = read_with_vllm(vllm_python, folder, tmp_path, weights)
    assert len(theirs) == len(weights) == 37
    assert_values(dequantized(blockscale, folder, tmp_path), theirs)
    row = f"`{recipe}`, {dialect}"
    findings.record(SECTION, row, layers=len(weights), loaded_by=f"`{loader}`", values="equal")
    findings.note(
        SECTION,
        f"vLLM {version} reads the configuration, chooses the class, "
        "makes its parameters from it,\n"
        "loads every stored tensor of a layer and says what the weights are, "
        "each layer by itself.\n"
        "Its kernels need a GPU: its own emulation stands in for MXFP8 and NVFP4, "
        "its form in torch\n"
        "for the kernel that rounds FP8 weights once more, and blocks are not multiplied. So the\n"
        "weights are what is checked, and no product of quantized inputs.",
    )


@pytest.mark.parametrize("scheme", ["dynamic", "static"])
def test_we_read_what_vllm_quantizes(
    scheme: str,
    blockscale: Blockscale,
    vllm_python: Path,
    model_folder: Path,
    weights: list[str],
    tmp_path: Path,
    findings: Findings,
) -> None:
    folder = tmp_path / "written"
    script = HERE / "use_vllm.py"
    run_program(vllm_python, script, "quantize", model_folder, folder, scheme, *weights)
    version, loader, theirs = read_with_vllm(vllm_python, folder, tmp_path, weights)
    assert (len(theirs), loader) == (37, "Fp8LinearMethod")
    assert_values(dequantized(blockscale, folder, tmp_path), theirs)
    written = in_other_dialects(blockscale, folder, "fp8_tensor", theirs, tmp_path)
    row = f"vLLM {version} (fp8, {scheme} inputs), `fp8_tensor`, all-MiniLM-L6-v2, f32"
    record(findings, row, len(weights), written)
