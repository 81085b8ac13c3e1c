"""ComfyUI's checkpoints, made and dequantized by comfy-kitchen: our values are its values."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import comfy_models
import numpy as np
import pytest
import store
from command import Blockscale
from findings import Findings

SECTION = "What we read"
DIALECTS = {
    "nvfp4": ("compressed-tensors", "modelopt"),
    "mxfp8_e4m3": ("compressed-tensors", "modelopt"),
    "fp8_tensor": ("compressed-tensors",),
    "fp8_tensor_e5m2": (),
}


def values(blockscale: Blockscale, folder: Path, name: str) -> dict[str, np.ndarray]:
    result = blockscale.dequantize(folder, folder.parent / name)
    return {key: stored.array for key, stored in store.read(result).items()}


@pytest.mark.parametrize("described_by", ["header", "tensors"])
@pytest.mark.parametrize(("name", "recipe", "layout", "options"), comfy_models.READ)
def test_comfy_kitchen(
    name: str,
    recipe: str,
    layout: type,
    options: dict[str, object],
    described_by: str,
    blockscale: Blockscale,
    tmp_path: Path,
    findings: Findings,
) -> None:
    folder = tmp_path / "written"
    expected = comfy_models.write(folder, name, layout, options, described_by)
    shown = json.loads(blockscale.run("inspect", folder, "--json"))
    assert shown["dialect"] == "comfy"
    recipes = {t["name"]: t["recipe"] for t in shown["tensors"]}
    assert {recipes[weight] for weight in expected} == {recipe}
    ours = values(blockscale, folder, "read-as-f32")
    for weight, theirs in expected.items():
        assert np.array_equal(ours[weight], theirs), weight
    for dialect in DIALECTS[recipe]:
        result = blockscale.convert(folder, tmp_path / dialect, recipe, "--dialect", dialect)
        again = values(blockscale, result, f"{dialect}-f32")
        for weight, theirs in expected.items():  # tensor scales may be rounded inverses
            np.testing.assert_array_max_ulp(again[weight], theirs, maxulp=2)
    through = "as " + " and ".join(DIALECTS[recipe]) if DIALECTS[recipe] else "not written"
    row = f"comfy-kitchen {metadata.version('comfy-kitchen')} ({name}), `{recipe}`"
    findings.record(SECTION, row, layers=len(expected), values="equal", rewritten=through)


@pytest.mark.parametrize("described_by", ["header", "tensors"])
@pytest.mark.parametrize("kind", comfy_models.INTEGERS, ids=lambda k: f"{k.format}-{k.kind}")
def test_whole_numbers_are_read_by_their_values(
    kind: comfy_models.Integers,
    described_by: str,
    blockscale: Blockscale,
    tmp_path: Path,
    findings: Findings,
) -> None:
    folder = tmp_path / "written"
    shapes = comfy_models.INTEGER_SHAPES
    expected = comfy_models.write(
        folder, kind.format, kind.layout, kind.options, described_by, shapes, kind.words
    )
    shown = json.loads(blockscale.run("inspect", folder, "--json"))
    recipes = {t["name"]: t["recipe"] for t in shown["tensors"]}
    assert {recipes[weight] for weight in expected} == {f"int{kind.bits}"}
    ours = values(blockscale, folder, "read-as-f32")
    for weight, theirs in expected.items():
        if kind.equal:
            assert np.array_equal(ours[weight], theirs), weight
        else:  # sums of a rotation or a product, in another order
            bound = np.abs(theirs).max(axis=1, keepdims=True) * 2.0**-20
            assert (np.abs(ours[weight] - theirs) <= bound).all(), weight
    by = f"comfy-kitchen {metadata.version('comfy-kitchen')} ({kind.format}, {kind.kind})"
    same = "equal" if kind.equal else "within 2^-20 of a row's greatest"
    findings.record(
        SECTION,
        f"{by}, INT{kind.bits}",
        layers=len(expected),
        values=same,
        rewritten="by its values",
    )


def test_a_format_that_is_not_known_is_named(blockscale: Blockscale, tmp_path: Path) -> None:
    for described_by in ("header", "tensors"):
        folder = tmp_path / described_by
        kind = comfy_models.INTEGERS[0]
        comfy_models.write(folder, "int8_of_later", kind.layout, {}, described_by)
        with pytest.raises(AssertionError, match="int8_of_later"):
            blockscale.convert(folder, tmp_path / "out", "bf16")
        assert not (tmp_path / "out").exists()
