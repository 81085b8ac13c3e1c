"""tools/bench/gemm.py: what it does around the GPU."""

from __future__ import annotations

import argparse
import math
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/bench"))

import gemm  # noqa: E402
from gemm import BASELINE, Shape  # noqa: E402

MIB = 1 << 20


def case(shape: Shape, pt: float, ours: float, blk: float | None = None) -> dict:
    times = {"pt": pt, "blk": blk, "ours": ours, "chained": ours / 2}
    return shape._asdict() | {f"{name}_microseconds": time for name, time in times.items()}


def test_the_baseline_has_31_shapes() -> None:
    assert len(BASELINE) == len(set(BASELINE)) == 31
    assert [sum(map(contains, BASELINE)) for contains in gemm.GROUPS.values()] == [
        31,
        7,
        7,
        7,
        10,
    ]


def test_users_have_groups_of_their_own() -> None:
    cases = [case(c.shape, 3.0, 2.0, 1.0) for c in gemm.USER_CASES]
    means = gemm.means_of_users(cases)
    assert list(means) == list(gemm.USERS)
    for name, found in means.items():
        ratio = 0.5 if gemm.USERS[name].peer == "blk" else 1.5
        assert found["mean"] == pytest.approx(ratio) and found["least"] == ratio
        assert found["asked"] == gemm.USERS[name].asked
    cases[-1]["pt_microseconds"] = 2.0
    assert gemm.means_of_users(cases)["N = 4176, K = 7184"]["least"] == 1


def test_shapes_and_pairs_are_parsed() -> None:
    assert gemm.parse_shapes("users") == gemm.USER_CASES
    assert gemm.parse_shapes("baseline") == gemm.BASELINE_CASES
    assert gemm.parse_shapes("1x2x3") == [gemm.Case(None, Shape(1, 2, 3))]
    assert gemm.parse_pair("fp8_row:fp8_row") == gemm.ROWS
    with pytest.raises(argparse.ArgumentTypeError, match="'nvfp4' is no pair"):
        gemm.parse_pair("nvfp4")


@pytest.mark.parametrize("shape", BASELINE, ids=str)
def test_sets_are_colder_than_the_cache(shape: Shape) -> None:
    sets = gemm.set_count(shape, 50 * MIB)
    m, n, k = shape
    size = m * k + n * k + 2 * m * n
    assert 1 <= sets <= 64
    assert sets * size >= 150 * MIB or sets == 64
    assert sets == 1 or (sets - 1) * size < 150 * MIB


def test_means_are_of_the_groups_that_have_shapes() -> None:
    cases = [
        case(Shape(1, 576, 7168), 8, 4),
        case(Shape(1, 4096, 7168), 8, 16, 32),
        case(Shape(4096, 4096, 4096), 90, 10, 40),
    ]
    means = gemm.geometric_means(gemm.ratios_of(cases, "pt"))
    assert list(means) == ["all", "M = 1", "M >= 4096"]
    assert math.isclose(means["all"], 9 ** (1 / 3))
    assert math.isclose(means["M = 1"], 1) and math.isclose(means["M >= 4096"], 9)
    assert list(gemm.ratios_of(cases, "blk").values()) == [2, 4]


def test_the_table_has_a_line_for_each_case() -> None:
    cases = [
        case(Shape(1, 576, 7168), 7.8, 10.4),
        case(Shape(16384, 24576, 16384), 12345.6, 10000, 15000),
    ]
    lines = gemm.table(cases).splitlines()
    times, ratios = ["7.80", "-", "10.40", "5.20"], ["0.750", "-", "1.500"]
    assert lines[1].split() == ["1", "576", "7168", *times, *ratios]
    times, ratios = ["12345.60", "15000.00", "10000.00", "5000.00"], ["1.235", "1.500", "2.469"]
    assert lines[2].split()[3:] == [*times, *ratios]
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shapes", "128x4096"], "'128x4096' is no shape, such as 128x4096x7168"),
        (["--shapes", "0x1x1"], "'0x1x1' has a size below 1"),
        (["--repeats", "8"], "--repeats: is 8, must be at least 9"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], message: str) -> None:
    program = ROOT / "tools/bench/record.py"
    command = [sys.executable, program, "gemm", "--output", ".", "--commit", "c"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and message in done.stderr
