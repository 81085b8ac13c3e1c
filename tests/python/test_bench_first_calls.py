"""tools/bench/first_calls.py: what it makes of what its processes have printed."""

from __future__ import annotations

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/bench"))

import first_calls  # noqa: E402


def test_a_case_is_the_median_of_its_processes() -> None:
    found = [{"kernels": 7, "load": load, "first": load / 10} for load in (0.3, 0.1, 0.2)]
    case = first_calls.measure_case("gemm", "busy", found)
    assert case["kernels"] == 7 and case["operations"] == "gemm" and case["state"] == "busy"
    assert case["load_microseconds"] == pytest.approx(200000)
    assert case["first_microseconds"] == pytest.approx(20000)
    assert first_calls.text_of(case) == (
        "busy, load_kernels: gemm (7 kernels): load 200000 us, first 20000 us"
    )


def test_nothing_is_loaded_beforehand_in_some() -> None:
    case = first_calls.measure_case("none", "idle", [{"first": 0.002}])
    assert case["kernels"] == 0 and case["first_microseconds"] == 2000
    assert "load_microseconds" not in case
