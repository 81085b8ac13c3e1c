"""tools/bench/moe.py: its cases, and what it makes of what it has measured."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/bench"))

import moe  # noqa: E402
from moe import CASES, LAYERS, Case, Layer  # noqa: E402


@pytest.mark.parametrize("case", CASES, ids=str)
def test_ids_are_what_a_routing_says(case: Case) -> None:
    layer, ids = LAYERS[case.layer], moe.ids_of(case, 1)
    assert len(ids) == case.tokens
    assert all(len(set(token)) == 8 and 0 <= min(token) <= max(token) < layer.of for token in ids)
    work = moe.work_of(layer, ids)
    average = 8 * case.tokens * layer.experts / layer.of
    if case.routing == "one hot":
        assert (work.rows, work.hit) == (8 * case.tokens, 8)
    elif case.routing == "uniform" and case.tokens <= 8:
        assert work.rows == average
    elif case.routing == "uniform":
        assert 0.7 * average < work.rows < 1.3 * average
    else:
        counts = {e: sum(e in token for token in ids) for e in range(layer.of)}
        most = max(counts, key=counts.__getitem__)
        assert counts[most] > 0.5 * case.tokens and most < layer.experts


def test_cases_are_each_other_than_the_rest() -> None:
    assert len(set(CASES)) == len(CASES) == 3 * 8 + 1 + 3 + 4 + 3 * 7
    assert {case.layer for case in CASES} == set(LAYERS)


def test_the_least_of_a_layer() -> None:
    layer = Layer(256, 192, 2, 4)
    work = moe.work_of(layer, [[0, 2], [0, 3], [3, 2]])
    weights = 256 * 3 * 192 + 4 * (3 * 2 + 2 * 2)
    assert work == (2, 1, weights + 2 * 2 * 3 * 256, 2 * 6 * 256 * 192)


def test_weights_in_fp4() -> None:
    bits = {"nvfp4": 4 + 8 / 16, "mxfp4": 4 + 8 / 32}
    for weights, of_each in bits.items():
        layer = Layer(256, 192, 2, 4, weights)
        work = moe.work_of(layer, [[0, 2], [0, 3], [3, 2]])
        assert work.bytes == 256 * 3 * 192 * of_each / 8 + 2 * 2 * 3 * 256
    activations = {layer.weights: set() for layer in LAYERS.values()}
    for layer in LAYERS.values():
        activations[layer.weights].add(layer.activations)
    assert activations["fp8_128x128"] == {"fp8_1x128"} and activations["nvfp4"] == {"bf16"}
    assert activations["mxfp4"] == {"bf16", "fp8_row"}


def test_floors_are_those_that_were_measured() -> None:
    """With an H100's rates: 20.0 us of one expert, 452 us of all 32 with 512 tokens."""
    layer = LAYERS["DeepSeek-V3 EP8"]
    one = moe.work_of(layer, moe.ids_of(Case("DeepSeek-V3 EP8", 1), 1))
    assert moe.floor_seconds(one, 3.19e12, 1277e12) == pytest.approx(20.0e-6, rel=0.01)
    many = moe.work_of(layer, moe.ids_of(Case("DeepSeek-V3 EP8", 512), 1))
    assert moe.floor_seconds(many, 3.19e12, 1277e12) == pytest.approx(452e-6, rel=0.01)
    assert moe.floor_seconds(many, 3.19e12, 1e12) == many.operations / 1e12


def test_a_case_stands_on_a_line() -> None:
    case = Case("Qwen3-30B-A3B", 64, "zipf")._asdict()
    numbers = {"rows": 512.0, "hit": 87.0, "error": 0.0055}
    numbers |= {"floor_microseconds": 100.0, "ours_microseconds": 125.0}
    numbers["added_microseconds"] = 110.0
    line = moe.table([case | numbers]).splitlines()[1]
    assert line.startswith("Qwen3-30B-A3B, 64, zipf ")
    assert line.split()[-5:] == ["100.0", "125.0", "0.800", "0.00550", "110.0"]


def test_it_says_what_it_takes() -> None:
    script = ROOT / "tools/bench/record.py"
    command = [sys.executable, script, "moe", "--output", "x", "--commit", "y"]
    run = subprocess.run(
        [*command, "--layers", "none"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 2 and "Qwen3-235B TP8" in run.stderr
