"""ScaledTensor: slices that share memory, scales in another layout, attributes that stay."""

from __future__ import annotations

import re
from typing import Any

import blockscale
import numpy as np
import pytest
from blockscale import ScaledTensor, _native
from blockscale._tensor import scale_shape, traits_of

LAYOUTS = [layout.name for layout in blockscale.ScaleLayout]
QUANTIZED = [r.name for r in blockscale.Recipe if r.name not in ("f32", "f16", "bf16")]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def layouts_of(recipe: str) -> list[str]:
    """Those that a recipe may have."""
    found = []
    for layout in LAYOUTS:
        try:
            _native.part_shapes(
                blockscale.Recipe[recipe], blockscale.ScaleLayout[layout], (256, 256)
            )
        except ValueError:
            continue
        found.append(layout)
    return found


@pytest.mark.parametrize("recipe", QUANTIZED)
def test_shapes_of_scales_are_those_of_the_library(recipe: str) -> None:
    traits = traits_of(recipe, "recipe")
    for layout in (blockscale.ScaleLayout[name] for name in layouts_of(recipe)):
        for rows, k in ((1, 32), (129, 160), (256, 1024), (0, 32)):
            _, expected = _native.part_shapes(traits.recipe, layout, (rows, k))
            assert scale_shape(traits, layout, rows, k) == expected


def unit(t: ScaledTensor) -> int:
    """Where slices of rows may begin: at multiples of blocks and of tiles of scales."""
    tile = {"swizzled_128x4": 128, "swizzled_8x4": 8}.get(t.layout.name, 1)
    block = re.match(r"fp8_(\d+)x", t.recipe.name)
    return tile * int(block[1] if block else 1)


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("recipe", QUANTIZED)
def test_rows_of_every_recipe_and_layout(recipe: str, batch: tuple[int, ...]) -> None:
    x = normal(*batch, 400, 256)
    for layout in layouts_of(recipe):
        t = blockscale.quantize(x, recipe, layout=layout)
        whole = blockscale.dequantize(t)
        step = unit(t)
        for first, last in ((0, 400), (step, 400), (step, step + 37), (0, 1), (256, 256), (0, 0)):
            rows = t[:, first:last] if batch else t[first:last]
            assert rows.shape == (*batch, last - first, 256)
            assert np.array_equal(blockscale.dequantize(rows), whole[..., first:last, :]), layout
            if last > first:
                assert np.shares_memory(rows.values, t.values)
                assert np.shares_memory(rows.scales, t.scales)
            # a tensor in its own right
            again = ScaledTensor(
                rows.values, rows.scales, recipe, layout=layout,
                tensor_scale=rows.tensor_scale, sense=rows.sense,
            )  # fmt: skip
            assert np.array_equal(blockscale.dequantize(again), whole[..., first:last, :])


@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp8_e4m3", "fp8_tensor", "fp8_row"])
def test_matrices_of_a_batch(recipe: str) -> None:
    x = normal(4, 32, 128) * np.array([1, 10, 100, 1000], np.float32)[:, None, None]
    t = blockscale.quantize(x, recipe)
    whole = blockscale.dequantize(t)
    for i in (0, 3, -1, np.int64(2)):
        assert t[i].shape == (32, 128)
        assert np.array_equal(blockscale.dequantize(t[i]), whole[i])
        assert np.array_equal(blockscale.dequantize(t[i, 8:16]), whole[i, 8:16])
    assert np.array_equal(blockscale.dequantize(t[1:3]), whole[1:3])
    assert np.array_equal(blockscale.dequantize(t[1:, :5]), whole[1:, :5])
    assert t[2:2].shape == (0, 32, 128)
    with pytest.raises(IndexError, match="matrices: is 4, must be from -4 to 3"):
        t[4]


def test_a_product_of_a_slice() -> None:
    x, w = normal(4, 128), blockscale.quantize(normal(64, 128), "nvfp4")
    assert np.array_equal(blockscale.gemm(x, w[16:48]), blockscale.gemm(x, w)[:, 16:48])


@pytest.mark.parametrize(
    ("recipe", "layout", "key", "error", "message"),
    [
        ("mxfp4", "row_major", 3, TypeError, "key: is 3, must be a slice of rows"),
        ("mxfp4", "row_major", (slice(1), slice(1)), TypeError, "must be a slice of rows"),
        ("mxfp4", "row_major", slice(0, 8, 2), ValueError, "rows: step is 2, must be 1"),
        ("mxfp4", "row_major", slice("a"), TypeError, "must be a slice of integers"),
        ("mxfp4", "swizzled_128x4", slice(8, 16), ValueError, "begin at 8, .* multiple of 128"),
        ("nvfp4", "swizzled_8x4", slice(4, 16), ValueError, "begin at 4, .* multiple of 8"),
        ("fp8_128x128", "row_major", slice(64, 99), ValueError, "begin at 64, .* multiple of 128"),
    ],
)
def test_slices_that_cannot_be(
    recipe: str, layout: str, key: Any, error: type[Exception], message: str
) -> None:
    t = blockscale.quantize(normal(256, 256), recipe, layout=layout)
    with pytest.raises(error, match=message):
        t[key]


def test_a_tensor_is_no_sequence() -> None:
    t = blockscale.quantize(normal(4, 32), "mxfp4")
    with pytest.raises(TypeError):
        list(t)


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("recipe", QUANTIZED)
def test_relayout_gives_what_quantize_gives(recipe: str, batch: tuple[int, ...]) -> None:
    x = normal(*batch, 200, 384)
    made = {layout: blockscale.quantize(x, recipe, layout=layout) for layout in layouts_of(recipe)}
    for t in made.values():
        for layout, expected in made.items():
            other = t.relayout(layout)
            assert other.layout.name == layout and other.recipe == t.recipe
            assert np.array_equal(np.asarray(other.scales), np.asarray(expected.scales)), layout
            assert np.shares_memory(other.values, t.values)
            assert np.array_equal(blockscale.dequantize(other), blockscale.dequantize(t))


def test_relayout_of_a_slice_is_packed() -> None:
    t = blockscale.quantize(normal(64, 256), "mxfp4", layout="mn_major")
    assert t[16:48].relayout("mn_major").scales.flags.c_contiguous
    assert np.array_equal(
        blockscale.dequantize(t[16:48].relayout("swizzled_128x4")), blockscale.dequantize(t)[16:48]
    )


def test_relayout_refuses_what_the_recipe_has_not() -> None:
    t = blockscale.quantize(normal(128, 128), "fp8_128x128")
    with pytest.raises(ValueError, match="fp8_128x128"):
        t.relayout("swizzled_128x4")
    with pytest.raises(ValueError, match="layout: is 'columns', must be one of row_major"):
        t.relayout("columns")


@pytest.mark.parametrize("name", ["recipe", "layout", "sense", "shape", "values", "scales"])
def test_attributes_cannot_be_set(name: str) -> None:
    t = blockscale.quantize(normal(4, 32), "mxfp4")
    with pytest.raises(AttributeError):
        setattr(t, name, "nvfp4")
