"""ScaledTensor: values + scales + layout + recipe + optional tensor scale."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple, TypeVar

import numpy as np

from . import _native
from ._arrays import describe, packed, to_library
from ._device import Device, Place, current, require_place
from ._native import Format, Recipe, ScaleLayout, TensorScaleSense


class RecipeTraits(NamedTuple):
    """A row of the table of recipes (core/recipe.h)."""

    recipe: Recipe
    name: str
    element: Format
    element_bits: int
    scale: Format
    block_rows: int
    block_k: int
    plain: bool
    tensor_scale: bool


TRAITS = {
    recipe: RecipeTraits(recipe, recipe.name, **_native.recipe_traits(recipe)) for recipe in Recipe
}
_TRAITS_BY_NAME = {traits.name: traits for traits in TRAITS.values()}


E = TypeVar("E", bound=Enum)


def enum_member(value: E | str, kind: type[E], argument: str) -> E:
    """A member of `kind` given as itself or by name.

    Raises:
        ValueError: no member has that name.
        TypeError: neither a member nor a name.
    """
    if isinstance(value, kind):
        return value
    if not isinstance(value, str):
        raise TypeError(
            f"{argument}: is a {type(value).__name__}, must be a {kind.__name__} or str"
        )
    try:
        return kind[value]
    except KeyError:
        names = ", ".join(member.name for member in kind)
        raise ValueError(f"{argument}: is {value!r}, must be one of {names}") from None


def traits_of(recipe: Recipe | str, argument: str) -> RecipeTraits:
    """Those of a recipe given as itself or by name. Raises as enum_member."""
    found = _TRAITS_BY_NAME.get(recipe) if type(recipe) is str else None
    return found or TRAITS[enum_member(recipe, Recipe, argument)]


class ScaledTensor:
    """A quantized matrix, or a batch of them: what every operation takes.

    Args:
        values: packed values, [rows, row bytes] or [batch, rows, row bytes]; uint8, or the FP8 or
            FP4 dtype of ml_dtypes or torch.
        scales: the scale grid in `layout`; float32 or one byte each (uint8, float8_e4m3fn,
            float8_e8m0fnu). row_major: [grid rows, grid columns]; mn_major: [grid columns, grid
            rows]; swizzled: rows and columns rounded up to whole tiles. One more leading dimension
            for a batch.
        recipe: a `Recipe` or its name.
        layout: a `ScaleLayout` or its name.
        tensor_scale: NVFP4's f32 factor; a float or an array of 1 or `batch` of them.
        sense: whether `tensor_scale` multiplies or divides values.

    Memory is shared with the arguments, never copied; `values` and `scales` give it back as arrays
    of the caller's library.

    Raises:
        ValueError: an array whose shape or strides do not fit recipe and layout.
        TypeError: an argument of the wrong kind or dtype.

    >>> import numpy as np, blockscale
    >>> t = blockscale.quantize(np.ones((2, 32), np.float32), "mxfp4")
    >>> t.shape, t.values.shape, t.scales.shape
    ((2, 32), (2, 16), (2, 1))
    """

    __slots__ = (
        "_k",
        "_place",
        "_scales",
        "_shape",
        "_tensor_scale",
        "_values",
        "layout",
        "recipe",
        "sense",
    )

    recipe: Recipe
    layout: ScaleLayout
    sense: TensorScaleSense

    def __init__(
        self,
        values: Any,
        scales: Any,
        recipe: Recipe | str,
        *,
        layout: ScaleLayout | str = ScaleLayout.row_major,
        tensor_scale: Any = None,
        sense: TensorScaleSense | str = TensorScaleSense.divisor,
    ) -> None:
        traits = traits_of(recipe, "recipe")
        self.recipe = traits.recipe
        self.layout = enum_member(layout, ScaleLayout, "layout")
        self.sense = enum_member(sense, TensorScaleSense, "sense")
        if traits.plain:
            raise ValueError(f"recipe: {traits.name} has no scales; pass the array itself")
        self._values, _, self._place = packed(values, "values", traits.element)
        if self._values.ndim not in (2, 3):
            raise ValueError(f"values: shape is {self._values.shape}, must have 2 or 3 dimensions")
        self._scales = _as_scales(scales, traits.scale, self._place)
        self._k = self._values.shape[-1] * 8 // traits.element_bits
        self._shape = (*self._values.shape[:-1], self._k)
        self._tensor_scale = _as_factors(
            tensor_scale, traits.tensor_scale, self.shape[:-2], self._place
        )
        with current(self._place):
            stream = self._place.stream() if isinstance(self._place, Device) else None
            _native.check_scaled(self, stream)

    @property
    def values(self) -> Any:
        """Packed values as an array of the caller's library (FP8 dtypes where it has them)."""
        return to_library(self._values, TRAITS[self.recipe].element, self._place)

    @property
    def scales(self) -> Any:
        """Scales as they lie in memory, in the caller's library."""
        return to_library(self._scales, TRAITS[self.recipe].scale, self._place)

    @property
    def tensor_scale(self) -> Any:
        """The stored tensor scale(s), f32 [1] or [batch], or None where the recipe has none."""
        if self._tensor_scale is None:
            return None
        return to_library(self._tensor_scale, Format.f32, self._place)

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, k) or (batch, rows, k), in elements."""
        return self._shape

    @property
    def nbytes(self) -> int:
        """Bytes of values, scales and tensor scales."""
        factors = 0 if self._tensor_scale is None else self._tensor_scale.nbytes
        return int(self._values.nbytes + self._scales.nbytes + factors)

    def __repr__(self) -> str:
        return f"ScaledTensor({self.recipe.name}, shape={self.shape}, layout={self.layout.name})"

    def __getstate__(self) -> dict[str, Any]:
        state = {name: getattr(self, name) for name in self.__slots__}
        for name in ("recipe", "layout", "sense"):
            state[name] = state[name].name
        del state["_shape"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        kinds = {"recipe": Recipe, "layout": ScaleLayout, "sense": TensorScaleSense}
        for name, value in state.items():
            setattr(self, name, kinds[name][value] if name in kinds else value)
        self._shape = (*self._values.shape[:-1], self._k)


def empty(
    shape: tuple[int, ...],
    traits: RecipeTraits,
    layout: ScaleLayout,
    sense: TensorScaleSense,
    place: Place,
) -> ScaledTensor:
    """An uninitialised ScaledTensor of (rows, k) or (batch, rows, k).

    Raises:
        ValueError: a shape or layout that the recipe does not allow.
    """
    *batch, rows, k = shape
    recipe = traits.recipe
    tensor = object.__new__(ScaledTensor)
    tensor.recipe, tensor.layout, tensor.sense = recipe, layout, sense
    tensor._place, tensor._k, tensor._shape = place, k, shape
    make = place.empty if isinstance(place, Device) else np.empty
    tensor._values = make((*batch, rows, _native.row_bytes(recipe, k)), "uint8")
    dtype = "float32" if traits.scale == Format.f32 else "uint8"
    tensor._scales = make((*batch, *_native.scale_shape(recipe, layout, rows, k)), dtype)
    tensor._tensor_scale = None
    if traits.tensor_scale:
        factors = (batch[0] if batch else 1,)
        if isinstance(place, Device) and 0 not in shape:  # else quantizing writes none
            tensor._tensor_scale = place.empty(factors, "float32")
        else:
            tensor._tensor_scale = _full(factors, 1.0, place)
    return tensor


def _full(shape: tuple[int, ...], value: float, place: Place) -> Any:
    """float32 of one value where `place` says."""
    if isinstance(place, Device):
        return place.full(shape, value)
    return np.full(shape, value, np.float32)


def _as_scales(scales: Any, scale_format: Format, place: Place) -> Any:
    if scale_format != Format.f32:
        array, dtype, its_place = packed(scales, "scales", scale_format)
    else:
        array, dtype, its_place = describe(scales, "scales")
        if dtype != "float32":
            raise TypeError(f"scales: has dtype {dtype}, must be float32")
    require_place(its_place, place, "scales", "values")
    return array


def _as_factors(tensor_scale: Any, wanted: bool, batch: tuple[int, ...], place: Place) -> Any:
    if not wanted:
        if tensor_scale is not None:
            raise ValueError("tensor_scale: is given, but the recipe has none")
        return None
    return floats(1.0 if tensor_scale is None else tensor_scale, batch, place, "values")


def floats(tensor_scale: Any, batch: tuple[int, ...], place: Place, first: str = "x") -> Any:
    """A tensor scale as f32 [1] or [batch]; shared with the caller if it is such an array.

    Raises:
        TypeError: neither a number nor an array of float32.
        ValueError: an array of another size, or elsewhere than `first`.
    """
    if isinstance(tensor_scale, (int, float)):
        return _full((1,), tensor_scale, place)
    array, dtype, its_place = describe(tensor_scale, "tensor_scale")
    if dtype != "float32":
        raise TypeError(f"tensor_scale: has dtype {dtype}, must be float32")
    size = int(np.prod(array.shape))
    if array.ndim > 1 or size not in (1, *batch):
        raise ValueError(
            f"tensor_scale: shape is {array.shape}, must be (1,){f' or {batch}' if batch else ''}"
        )
    require_place(its_place, place, "tensor_scale", first)
    return array.reshape(-1)
