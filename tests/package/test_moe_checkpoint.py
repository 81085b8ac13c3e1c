"""examples/moe_checkpoint.py: what it prints, and the checkpoints that it makes."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "moe_checkpoint.py"


def header_of(file: Path) -> dict:
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        return json.loads(opened.read(length))


@pytest.mark.parametrize("devices", [1, 3])
def test_layers_of_real_names(tmp_path: Path, devices: int) -> None:
    options = ["--tokens", "21", "--devices", str(devices), "--folder", str(tmp_path)]
    command = [sys.executable, EXAMPLE, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("DeepSeek-V3: deepseek, 101 tensors; 21 tokens, 8 of 32 experts ")
    assert lines[2].startswith("Qwen3-30B-A3B: deepseek, 97 tensors; 21 tokens, ")
    for line in lines[1::2]:
        assert re.fullmatch(r"  weights of experts are \S+ off, y \d\.\d\de-02", line)

    tensors = header_of(tmp_path / "deepseek_v3" / "model.safetensors")
    mlp = "model.layers.3.mlp"
    assert tensors[f"{mlp}.experts.31.up_proj.weight"]["dtype"] == "F8_E4M3"
    assert tensors[f"{mlp}.experts.0.up_proj.weight_scale_inv"]["shape"] == [2, 7]
    assert tensors[f"{mlp}.shared_experts.down_proj.weight_scale_inv"]["shape"] == [7, 2]
    assert tensors[f"{mlp}.gate.weight"]["dtype"] == "F32"
    assert tensors[f"{mlp}.gate.e_score_correction_bias"]["shape"] == [32]
    tensors = header_of(tmp_path / "qwen3_moe" / "model.safetensors")
    assert tensors["model.layers.0.mlp.experts.5.gate_proj.weight"]["shape"] == [192, 512]
    assert tensors["model.layers.0.mlp.experts.5.gate_proj.weight_scale_inv"]["shape"] == [2, 4]
