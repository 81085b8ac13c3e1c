"""ScaledTensor: values + scales + layout + recipe + optional tensor scale."""

from __future__ import annotations

import operator
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import numpy as np

from . import _native
from ._arrays import describe, number, packed, to_library
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
# Members of enums are looked up by a function of Python.
_F32, _DIVISOR = Format.f32, TensorScaleSense.divisor
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
    name = recipe._name_ if type(recipe) is Recipe else recipe  # members of enums hash in Python
    found = _TRAITS_BY_NAME.get(name) if type(name) is str else None
    return found or TRAITS[enum_member(recipe, Recipe, argument)]


def scale_shape(traits: RecipeTraits, layout: ScaleLayout, rows: Any, k: Any) -> tuple[Any, Any]:
    """What `_native.part_shapes` says of the scales of a matrix, of sizes that need be no numbers
    yet, as torch.compile has them."""
    tile_rows, tile_k = _native.scale_tile(layout)
    grid_rows = _ceil(rows, traits.block_rows or rows or 1)
    columns = _ceil(k, traits.block_k or k or 1)
    grid_rows = _ceil(grid_rows, tile_rows) * tile_rows
    columns = _ceil(columns, tile_k) * tile_k
    return (columns, grid_rows) if layout == ScaleLayout.mn_major else (grid_rows, columns)


def _ceil(value: Any, divisor: int) -> Any:
    return (value + divisor - 1) // divisor


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
        "_layout",
        "_place",
        "_recipe",
        "_scales",
        "_sense",
        "_shape",
        "_tensor_scale",
        "_values",
    )

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
        self._recipe = traits.recipe
        self._layout = enum_member(layout, ScaleLayout, "layout")
        self._sense = enum_member(sense, TensorScaleSense, "sense")
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
    def recipe(self) -> Recipe:
        """Elements, scales and blocks."""
        return self._recipe

    @property
    def layout(self) -> ScaleLayout:
        """Where the scales lie."""
        return self._layout

    @property
    def sense(self) -> TensorScaleSense:
        """Whether the tensor scale multiplies or divides values."""
        return self._sense

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

    def relayout(self, layout: ScaleLayout | str) -> ScaledTensor:
        """The same values with scales in another layout: new scales, packed, padding 0; the rest is
        shared.

        Args:
            layout: a `ScaleLayout` or its name.

        Raises:
            ValueError: the recipe has no such layout, or the tensor is on a CUDA device.

        >>> import numpy as np, blockscale
        >>> t = blockscale.quantize(np.ones((2, 32), np.float32), "mxfp4")
        >>> t.relayout("swizzled_128x4").scales.shape
        (128, 4)
        """
        wanted = enum_member(layout, ScaleLayout, "layout")
        if isinstance(self._place, Device):
            raise ValueError(f"relayout: is on {self._place}, must be in CPU memory")
        _, grids = _native.part_shapes(self._recipe, wanted, self._shape)
        scales = np.zeros(grids, self._scales.dtype)
        _native.relayout(self, wanted, scales)
        return self._with(self._values, scales, self._tensor_scale, wanted)

    def __getitem__(self, key: Any) -> ScaledTensor:
        """Rows, or matrices of a batch: a view of the same memory.

        `t[a:b]` are rows of a matrix; of a batch, `t[i]` is a matrix, `t[i:j]` are matrices and
        `t[i, a:b]` or `t[:, a:b]` rows of one or of each.

        Raises:
            TypeError: anything but slices of rows, and integers or slices of matrices.
            ValueError: a step, or rows that begin within a block or a tile of scales.
            IndexError: no such matrix.

        >>> import numpy as np, blockscale
        >>> blockscale.quantize(np.ones((8, 32), np.float32), "mxfp4")[2:5].shape
        (3, 32)
        """
        keys = key if isinstance(key, tuple) else (key,)
        if len(self._shape) == 2:
            keys = (slice(None), *keys)
        matrices, rows = (*keys, slice(None), slice(None))[:2]
        if len(keys) > 2 or not isinstance(rows, slice):
            raise TypeError(f"key: is {key!r}, must be a slice of rows, or of matrices and of rows")
        values, scales, factors = self._values, self._scales, self._tensor_scale
        if len(self._shape) == 3 and matrices != slice(None):
            picked = _matrices(matrices, self._shape[0])
            values, scales = values[picked], scales[picked]
            if factors is not None and factors.shape[0] != 1:
                one = isinstance(picked, int)
                factors = factors[picked : picked + 1] if one else factors[picked]
        values, scales = self._rows(rows, values, scales)
        return self._with(values, scales, factors, self._layout)

    def _rows(self, rows: slice, values: Any, scales: Any) -> tuple[Any, Any]:
        """Those of `values` and `scales`."""
        first, last = _bounds(rows, self._shape[-2], "rows")
        if (first, last) == (0, self._shape[-2]):
            return values, scales
        in_columns = self._layout == ScaleLayout.mn_major
        if first == last:
            return values[..., :0, :], scales[..., :0] if in_columns else scales[..., :0, :]
        block = TRAITS[self._recipe].block_rows
        tile = _native.scale_tile(self._layout)[0]
        unit = block * tile  # 0: one scale for all rows
        if unit and first % unit:
            raise ValueError(
                f"rows: begin at {first}, must begin at a multiple of {unit} in {self._recipe.name}"
                f" with scales in {self._layout.name}"
            )
        if unit:
            end = -(-last // unit) * tile
            grid = slice(first // block, end)
            scales = scales[..., grid] if in_columns else scales[..., grid, :]
        return values[..., first:last, :], scales

    def _with(self, values: Any, scales: Any, factors: Any, layout: ScaleLayout) -> ScaledTensor:
        """Of these parts, which fit together."""
        tensor = object.__new__(ScaledTensor)
        tensor._recipe, tensor._layout, tensor._sense = self._recipe, layout, self._sense
        tensor._values, tensor._scales, tensor._tensor_scale = values, scales, factors
        tensor._place, tensor._k = self._place, self._k
        tensor._shape = (*values.shape[:-1], self._k)
        return tensor

    def __repr__(self) -> str:
        return f"ScaledTensor({self.recipe.name}, shape={self.shape}, layout={self.layout.name})"

    def __getstate__(self) -> dict[str, Any]:
        state = {name: getattr(self, name) for name in self.__slots__}
        for name in ("_recipe", "_layout", "_sense"):
            state[name] = state[name].name
        del state["_shape"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        kinds = {"_recipe": Recipe, "_layout": ScaleLayout, "_sense": TensorScaleSense}
        for name, value in state.items():
            setattr(self, name, kinds[name][value] if name in kinds else value)
        self._shape = (*self._values.shape[:-1], self._k)


def _bounds(key: slice, size: int, what: str) -> tuple[int, int]:
    """The first index of a slice, and the one after the last."""
    if key.step not in (None, 1):
        raise ValueError(f"{what}: step is {key.step}, must be 1")
    try:
        first, last, _ = key.indices(size)
    except TypeError:
        raise TypeError(f"{what}: is {key!r}, must be a slice of integers") from None
    return first, max(first, last)


def _matrices(key: Any, batch: int) -> Any:
    """An index or slice of matrices, checked."""
    if isinstance(key, slice):
        return slice(*_bounds(key, batch, "matrices"))
    try:
        index = operator.index(key)
    except TypeError:
        raise TypeError(f"matrices: is {key!r}, must be an integer or a slice") from None
    if not -batch <= index < batch:
        raise IndexError(f"matrices: is {index}, must be from {-batch} to {batch - 1}")
    return index % batch


def empty(
    shape: tuple[int, ...],
    traits: RecipeTraits,
    layout: ScaleLayout,
    sense: TensorScaleSense,
    place: Place,
    is_zero: bool = False,
) -> ScaledTensor:
    """An uninitialised ScaledTensor of (rows, k) or (batch, rows, k), or one of zeros.

    Raises:
        ValueError: a shape or layout that the recipe does not allow.
    """
    recipe = traits.recipe
    values, scales = _native.part_shapes(recipe, layout, shape)
    tensor = object.__new__(ScaledTensor)
    tensor._recipe, tensor._layout, tensor._sense = recipe, layout, sense
    tensor._place, tensor._k, tensor._shape = place, shape[-1], shape
    on_device = isinstance(place, Device)
    if is_zero:
        make = place.zeros if on_device else np.zeros
    else:
        make = place.empty if on_device else np.empty
    tensor._values = make(values, "uint8")
    tensor._scales = make(scales, "float32" if traits.scale is _F32 else "uint8")
    tensor._tensor_scale = None
    if traits.tensor_scale:
        factors = (shape[0] if len(shape) == 3 else 1,)
        if on_device and 0 not in shape:  # else quantizing writes none
            tensor._tensor_scale = place.empty(factors, "float32")
        else:
            tensor._tensor_scale = _full(factors, 1.0, place)
    return tensor


def empty_default(
    shape: tuple[int, ...], recipe: Recipe, layout: ScaleLayout, place: Place
) -> ScaledTensor:
    """`empty` with a divisor for a tensor scale."""
    return empty(shape, traits_of(recipe, "recipe"), layout, _DIVISOR, place)


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
        ValueError: an array of another size, or elsewhere than `first`; an integer beyond floats.
    """
    if isinstance(tensor_scale, (int, float)):
        return _full((1,), number(tensor_scale, "tensor_scale"), place)
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
