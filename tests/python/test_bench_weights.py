"""tools/bench/weights.py: what it makes of what it has measured."""

from __future__ import annotations

import argparse
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/bench"))

import weights  # noqa: E402


def case(n: int, recipe: str, read: float, ours: float) -> dict:
    times = {"read": read, "bf16": 12.0, "ours": ours, "chained": ours / 2}
    shape = {"m": 1, "n": n, "k": 2048, "recipe": recipe}
    return shape | {f"{name}_microseconds": time for name, time in times.items()}


def test_means_are_geometric_and_of_each_recipe() -> None:
    cases = [case(7168, "nvfp4", 2, 4), case(4096, "nvfp4", 1, 8), case(4096, "mxfp4", 2, 3)]
    found = weights.means_of(cases)
    assert list(found) == ["nvfp4, M = 1", "mxfp4, M = 1"]
    assert found["nvfp4, M = 1"] == pytest.approx(
        {"over_read": 4, "chained_over_read": 2, "bf16_over_ours": (3 * 1.5) ** 0.5}
    )


def test_activations_in_other_recipes_are_apart() -> None:
    quantized = case(7168, "nvfp4", 2, 4) | {"activations": "fp8_row"}
    plain = case(7168, "nvfp4", 2, 4) | {"activations": "bf16"}
    assert list(weights.means_of([quantized, plain])) == [
        "fp8_row x nvfp4, M = 1",
        "nvfp4, M = 1",
    ]
    quantized = ("fp8_row", "fp8_1x128", "mxfp8_e4m3", "mxfp4")
    options = argparse.Namespace(rows=[16, 1024], activations=None)
    products = weights.products_of("mxfp4", options)
    assert products == [(m, name) for name in ("bf16", "f16", *quantized) for m in (16, 1024)]
    options.activations = ["mxfp4"]
    assert weights.products_of("mxfp4", options) == [(16, "mxfp4"), (1024, "mxfp4")]
    assert weights.products_of("nvfp4", options) == []
    options.rows = None
    assert weights.products_of("mxfp4", options) == [(1024, "mxfp4"), (4096, "mxfp4")]


def test_weights_in_16_bits_are_multiplied_by_many_rows() -> None:
    options = argparse.Namespace(rows=None, activations=None)
    products = [(m, "bf16") for m in weights.ROWS_IN_16_BITS]
    assert min(weights.ROWS_IN_16_BITS) >= 128
    for recipe in weights.IN_16_BITS:
        assert weights.products_of(recipe, options) == products


def test_a_case_is_a_line_of_the_table() -> None:
    head, line = weights.table([case(7168, "nvfp4", 2, 3)]).splitlines()
    assert head.split()[0] == "product" and head.endswith("ours / read")
    assert line.split()[:6] == ["1", "x", "7168", "x", "2048", "nvfp4"]
    assert line.split()[6:] == ["2.00", "12.00", "3.00", "1.50", "1.50"]
