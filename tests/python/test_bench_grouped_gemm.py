"""tools/bench/grouped_gemm.py: its cases, and what it makes of what it has measured."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/bench"))

import grouped_gemm  # noqa: E402
from grouped_gemm import CASES, Case  # noqa: E402


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_are_what_a_routing_says(case: Case) -> None:
    rows = grouped_gemm.rows_of(case)
    total = case.groups * case.rows
    assert len(rows) == case.groups
    alive = sum(r > 0 for r in rows)
    if case.routing == "alike":
        assert all(0.7 * case.rows - 1 <= r <= 1.3 * case.rows + 1 for r in rows)
    else:
        assert sum(rows) == total
        assert alive == {"one hot": 1, "half empty": case.groups // 2}.get(case.routing, alive)
    even = grouped_gemm.evenly(rows)
    assert sum(even) == sum(rows) and len(even) == alive and max(even) - min(even) <= 1


def test_bytes_are_those_of_groups_that_have_rows() -> None:
    case = Case("decode", 3, 1, 256, 128)
    weights = 256 * 128 + 2 * 4
    assert grouped_gemm.bytes_of(case, [2, 0, 1]) == 2 * weights + 3 * (128 + 4 + 512)


def test_means_are_of_kinds() -> None:
    def measured(kind: str, ratio: float) -> dict:
        numbers = {"ours_microseconds": 2.0, "beside_microseconds": 2 * ratio, "ratio": ratio}
        return Case(kind, 4, 8, 16, 32)._asdict() | numbers

    cases = [measured("prefill", 0.5), measured("prefill", 2.0), measured("gather", 1.2)]
    means = grouped_gemm.means_of(cases)
    assert means["prefill"] == {"mean": 1.0, "worst": 0.5, "asked": 0.94}
    assert means["gather"]["worst"] == 1.2 and set(means) == {"prefill", "gather"}
    assert grouped_gemm.table(cases).splitlines()[1].split()[-2:] == ["0.500", "0.94"]


def test_it_says_what_it_takes() -> None:
    script = ROOT / "tools/bench/record.py"
    command = [sys.executable, script, "grouped_gemm", "--output", "x", "--commit", "y"]
    run = subprocess.run([*command, "--cases", "none"], capture_output=True, text=True, check=False)
    assert run.returncode == 2 and "prefill" in run.stderr
