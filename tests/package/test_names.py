"""What the C++ headers and the Python package both name, members of enums and fields of transforms,
has the same name in both."""

from __future__ import annotations

import dataclasses
import enum
import pathlib
import re

import pytest
from blockscale import Modulate, RmsNorm, SortedEntries, Swiglu, _moe, _native, _transform

ROOT = pathlib.Path(__file__).resolve().parents[2]
#: Enums of the headers and of Python.
ENUMS = {
    name: getattr(_native, name)
    for name in (
        "Activations",
        "Dialect",
        "ExpertsLayout",
        "Format",
        "MxScaleMode",
        "Recipe",
        "ScaleChoice",
        "ScaleLayout",
        "TensorScaleSense",
        "UnusedInputs",
    )
}


def body(kind: str, name: str) -> str:
    """What stands between the braces of a C++ type, without comments."""
    folders = ("include/blockscale", "core")
    headers = [header for folder in folders for header in sorted((ROOT / folder).glob("*.h"))]
    text = "\n".join(header.read_text(encoding="utf-8") for header in headers)
    text = re.sub(r" *//.*", "", text)
    found = re.search(
        rf"\b{kind} {name}\b[^{{;]*\{{(.*?)(?:^| )\}};", text, re.DOTALL | re.MULTILINE
    )
    assert found is not None, f"{kind} {name}"
    return found[1]


def members(name: str) -> list[str]:
    return re.findall(r"\w+", body("enum class", name))


def fields(name: str) -> list[str]:
    return re.findall(r"(\w+)(?: = [^;]*)?;", body("struct", name))


@pytest.mark.parametrize("name", ENUMS)
def test_enums_have_the_same_members(name: str) -> None:
    assert members(name) == [member.name for member in ENUMS[name]]


def test_no_other_enum_is_bound() -> None:
    bound = [e for e in vars(_native).values() if isinstance(e, type) and issubclass(e, enum.Enum)]
    assert set(bound) == set(ENUMS.values())


@pytest.mark.parametrize("transform", [Swiglu, Modulate, RmsNorm])
def test_transforms_have_the_same_fields(transform: type) -> None:
    assert fields(transform.__name__) == [f.name for f in dataclasses.fields(transform)]


def test_names_of_transforms() -> None:
    assert list(_transform._ORDERS) == members("GateOrder")
    gelu = [f"gelu_{form}" for form in members("GeluForm")]
    assert [name for name in _native.input_transforms if name.startswith("gelu")] == gelu
    assert members("InputTransform") == list(_native.input_transforms)


def test_names_of_routing() -> None:
    assert list(_moe._SCORES) == members("RouterScore")
    assert fields("MoeSortArguments")[-len(SortedEntries._fields) :] == list(SortedEntries._fields)
