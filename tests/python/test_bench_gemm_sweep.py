"""tools/bench/gemm_sweep.py: what it makes of what it has measured."""

from __future__ import annotations

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/bench"))

import gemm_sweep  # noqa: E402


def case(m: int, n: int, ours: float, blk: float | None = None) -> dict:
    times = {"ours_microseconds": ours, "blk_microseconds": blk}
    return {"m": m, "n": n, "k": 512, "pair": ["fp8_row", "fp8_row"], **times}


def test_the_sweep_has_the_rows_that_are_asked_for() -> None:
    rows = gemm_sweep.ALL_ROWS
    assert {1, 2, 3, 4, 5, 48, 96, 127, 128, 129, 192, 1536, 8191, 8192} <= set(rows)
    assert set(range(160, 641, 32)) <= set(rows)
    assert (rows[0], rows[-1], len(rows)) == (1, 8192, 54)
    assert len(set(gemm_sweep.SWEEP)) == 7 * len(rows) + 6 * len(gemm_sweep.FEWER_ROWS)
    ks = {c.shape.k for c in gemm_sweep.SWEEP}
    assert {2880, 1408, 4304, 7184} <= ks
    assert {c.pair for c in gemm_sweep.SWEEP} == set(gemm_sweep.gemm.PAIRS)


def test_cliffs_are_points_above_their_neighbour() -> None:
    cases = [case(2, 64, 13.1), case(1, 64, 20), case(3, 64, 10), case(3, 128, 1), case(4, 128, 1)]
    pairs = gemm_sweep.neighbours(cases)
    assert [(p["m"], p["n"], p["above"]) for p in pairs] == [(1, 64, 2), (2, 64, 3), (3, 128, 4)]
    found = gemm_sweep.cliffs(cases)
    assert [(p["m"], round(p["ratio"], 3)) for p in found] == [(1, 1.527), (2, 1.31)]


def test_points_slower_than_cublas_are_those_it_takes() -> None:
    cases = [case(1, 64, 10, 9), case(2, 64, 10, 11), case(3, 64, 10)]
    (point,) = gemm_sweep.slower_than_blk(cases)
    assert (point["m"], round(point["ratio"], 3)) == (1, 1.111)
    text = gemm_sweep.text_of_points("slower", [point], 2)
    assert text == "slower: 1 of 2\n  1 x 64 x 512, fp8_row x fp8_row: 1.111"


def test_variants_have_a_mean_and_a_worst_shape() -> None:
    def over(m: int, ratio: float) -> dict:
        ratios = dict.fromkeys(gemm_sweep.VARIANTS, 1.0) | {"ue8m0": ratio}
        return {"m": m, "n": 64, "k": 512, "over_ours": ratios}

    found = gemm_sweep.summary_of_variants([over(1, 2.0), over(2, 8.0)])
    assert list(found) == list(gemm_sweep.VARIANTS)
    assert found["ue8m0"] == {"geometric_mean": 4.0, "largest": 8.0, "shape": [2, 64, 512]}
    assert found["row_major"]["geometric_mean"] == 1


def test_too_few_repeats_are_refused() -> None:
    program = ROOT / "tools/bench/record.py"
    command = [sys.executable, program, "gemm_sweep", "--output", ".", "--commit", "c"]
    command += ["--repeats", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--repeats: is 4, must be at least 5" in done.stderr
