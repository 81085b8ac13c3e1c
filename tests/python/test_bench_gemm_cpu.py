"""tools/bench/gemm_cpu.py: which products it times, and what it makes of times."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/bench"))

import gemm_cpu  # noqa: E402
from gemm import Shape  # noqa: E402
from gemm_cpu import BASELINE, Case, cases_of, number_of  # noqa: E402


def test_every_shape_of_the_baseline_has_rows_of_the_table() -> None:
    assert len(BASELINE) == len(set(BASELINE)) == 13
    halves = gemm_cpu.SHAPES["few"] + gemm_cpu.SHAPES["many"]
    assert sorted(halves) == sorted(BASELINE)
    for shape in BASELINE:
        cases = cases_of(shape)
        assert len({case.name for case in cases}) == len(cases) > 1
        assert all(0 < case.must <= case.aim for case in cases)


def test_limits_are_those_of_the_shape() -> None:
    musts = {case.name: case.must for case in cases_of(Shape(256, 4096, 4096))}
    small = {case.name: case.must for case in cases_of(Shape(256, 1536, 384))}
    assert musts["nvfp4:nvfp4"] == 1.15 and musts["fp8_1x128:fp8_128x128"] == 0.85
    assert small["nvfp4:nvfp4"] == pytest.approx(0.9 * 1.15)
    assert "mxfp4:mxfp4 on 2 threads" in musts and "mxfp4:mxfp4 on 2 threads" not in small


def test_numbers_are_ratios_of_times_of_one_turn() -> None:
    times = {
        "torch": [6.0, 8.0],
        "bf16:mxfp4": [2.0, 4.0],
        "bf16:mxfp4 on 2 threads": [1.0, 2.0],
        "read 2": [0.5, 0.25],
    }
    torch = Case("bf16", "mxfp4", "torch", 1, 1)
    two = Case("bf16", "mxfp4", "two", 1, 1, 2)
    read = Case("bf16", "mxfp4", "read", 1, 1, 2)
    assert number_of(torch, times, 1) == [3, 2]
    assert number_of(two, times, 1) == [2, 2]
    assert number_of(read, times, gemm_cpu.COLD_BYTES) == [0.5, 0.125]


def test_the_table_says_what_misses() -> None:
    row = {"recipe_a": "bf16", "recipe_b": "mxfp4", "threads": 1, "gflops": 40.0, "number": "read"}
    row |= {"median": 0.5, "quartiles": [0.4, 0.6], "must": 0.7, "aim": 0.88}
    shape = {"m": 1, "n": 4096, "k": 4096, "torch_median_seconds": 2e-3}
    cases = [row | {"holds": False}, row | {"holds": True}]
    result = shape | {"read_bytes_per_second": {"1": 25e9}, "cases": cases}
    lines = gemm_cpu.table(result).splitlines()
    assert lines[0] == "1 x 4096 x 4096: torch 16.8 GFLOP/s; 1 reads 25.0 GB/s"
    assert [line.endswith("MISSES") for line in lines] == [False, True, False]


def test_quartiles() -> None:
    assert gemm_cpu.quartiles([4.0, 1.0, 3.0, 2.0, 5.0]) == [2.0, 4.0]


def test_wrong_arguments_are_refused() -> None:
    program = ROOT / "tools/bench/record.py"
    command = [sys.executable, program, "gemm_cpu", "--output", ".", "--commit", "c"]
    command += ["--repeats", "8"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--repeats: is 8, must be at least 9" in done.stderr
