"""tools/bench/decode.py: its shapes, and what it makes of what it has measured."""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/bench"))

import decode  # noqa: E402


def test_products_of_a_layer() -> None:
    apart, fused = (decode.shapes(decode.QWEN3_8B, fused) for fused in (False, True))
    assert len(apart) == 7 and len(fused) == 4
    assert apart["k"] == (1024, 4096) and apart["down"] == (4096, 12288)
    assert fused["qkv"] == (6144, 4096) and fused["gate_up"] == (24576, 4096)
    weights = [sum(n * k for n, k in found.values()) for found in (apart, fused)]
    assert weights[0] == weights[1] == 192937984  # Qwen3-8B's 6.95e9 in 36 layers


def test_a_case_stands_on_a_line() -> None:
    times = {"bf16": 5000.0, "fp8_128x128": 2500.0, "fp8_row": 4000.0}
    times |= {"nvfp4": 2000.0, "mxfp4": 1000.0}
    case = {"rows": 64, "fused": True, "microseconds": times}
    line = decode.table([case]).splitlines()[1]
    assert line.startswith("64, fused ")
    assert line.split()[2:7] == ["5000.0", "2500.0", "4000.0", "2000.0", "1000.0"]
    assert line.split()[7:] == ["2.00", "x", "1.25", "x", "2.50", "x", "5.00", "x"]
