"""What layers of torch with quantized weights have in common: the memory of weights, casts, and how
they stand in a state_dict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch

from . import _native
from ._native import Activations, Dialect, Recipe, ScaleLayout, TensorScaleSense
from ._tensor import TRAITS, RecipeTraits, ScaledTensor, enum_member

#: What inputs and biases may be, and the recipe of each.
PLAIN = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
_DTYPES = {
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F32": torch.float32,
}


class Stored(NamedTuple):
    """How a buffer of a layer stands in a state_dict."""

    buffer: str
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    #: Of scales.
    layout: str = "row_major"


class _Form(NamedTuple):
    """What the buffers of a weight do not say."""

    recipe: str
    layout: str
    sense: str
    shape: tuple[int, ...]


class Layer(torch.nn.Module):
    """A layer of one or more ScaledTensors and of biases, for inference.

    A weight called `name` has the buffers `name`values, `name`scales and `name`tensor_scale, the
    latter None where its recipe has none. Parameters are biases, and nothing else is cast.
    """

    dialect: str

    def __init__(self) -> None:
        super().__init__()
        self._forms: dict[str, _Form] = {}
        self._bias_shapes: dict[str, tuple[int, ...]] = {}
        self._views: dict[str, tuple[tuple[torch.Tensor | None, ...], ScaledTensor]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and tensor scales."""
        return sum(part.nbytes for name in self._forms for part in self._parts(name).values())

    def _hold(self, name: str, weight: Any, argument: str, sizes: tuple[str, ...]) -> None:
        """Takes a weight, of as many dimensions as `sizes`."""
        if not isinstance(weight, ScaledTensor):
            raise TypeError(f"{argument}: is a {type(weight).__name__}, must be a ScaledTensor")
        if len(weight.shape) != len(sizes):
            raise ValueError(f"{argument}: shape is {weight.shape}, must be ({', '.join(sizes)})")
        self._forms[name] = _Form(
            TRAITS[weight.recipe].name, weight.layout.name, weight.sense.name, weight.shape
        )
        self.register_buffer(name + "values", _bytes(weight.values))
        self.register_buffer(name + "scales", _bytes(weight.scales))
        factor = weight.tensor_scale
        self.register_buffer(name + "tensor_scale", None if factor is None else _bytes(factor))

    def _held(self, name: str) -> ScaledTensor:
        """A weight, a view of the layer's memory."""
        form, parts = self._forms[name], self._parts(name)
        return ScaledTensor(
            parts["values"],
            parts["scales"],
            form.recipe,
            layout=form.layout,
            tensor_scale=parts.get("tensor_scale"),
            sense=form.sense,
        )

    def _view(self, name: str) -> ScaledTensor:
        """As `_held`; made anew only when the buffers are others."""
        buffers, known = self._buffers, self._views.get(name)
        if known is not None:
            (values, scales, factor), view = known
            if (
                values is buffers[name + "values"]
                and scales is buffers[name + "scales"]
                and factor is buffers[name + "tensor_scale"]
            ):
                return view
        parts = tuple(buffers[name + part] for part in ("values", "scales", "tensor_scale"))
        view = self._held(name)
        self._views[name] = (parts, view)
        return view

    def forget_views(self) -> None:
        """Lets go of weights that were made of other buffers, and of their memory."""
        self._views.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_views": {}}

    def _parts(self, name: str) -> dict[str, torch.Tensor]:
        parts = {part: getattr(self, name + part) for part in ("values", "scales", "tensor_scale")}
        return {part: tensor for part, tensor in parts.items() if tensor is not None}

    def _register_bias(self, name: str, bias: Any, argument: str, shape: tuple[int, ...]) -> None:
        self._bias_shapes[name] = shape
        self.register_parameter(name, self._as_bias(name, bias, argument))

    def take_biases(self, module: torch.nn.Module) -> None:
        """The biases of `module`, by the names that they have here; their memory is shared.

        Raises:
            TypeError, ValueError: as for the layer itself.
        """
        for name in self._bias_shapes:
            setattr(self, name, self._as_bias(name, getattr(module, name, None), name))

    def _as_bias(self, name: str, bias: Any, argument: str) -> torch.nn.Parameter | None:
        if bias is None:
            return None
        if not isinstance(bias, torch.Tensor) or bias.dtype not in PLAIN:
            what = getattr(bias, "dtype", type(bias).__name__)
            raise TypeError(
                f"{argument}: is {what}, must be a tensor of float32, float16 or bfloat16"
            )
        shape = self._bias_shapes[name]
        if bias.shape != shape:
            raise ValueError(f"{argument}: shape is {tuple(bias.shape)}, must be {shape}")
        device = self._parts(next(iter(self._forms)))["values"].device
        if bias.device != device:
            raise ValueError(
                f"{argument}: is on {bias.device}, must be on {device} like the weight"
            )
        return torch.nn.Parameter(bias.detach(), requires_grad=False)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """Casts are of biases alone, and to what a bias may be: bytes are what `fn` sees of all
        else, and where it makes numbers of them it says a device only."""

        def moved(t: torch.Tensor) -> torch.Tensor:
            if any(t is bias for bias in self._parameters.values()):
                cast = fn(t)
                return cast if cast.dtype in PLAIN else t.to(cast.device)
            old = t.view(torch.uint8)
            new = fn(old)
            return (new if new.dtype == torch.uint8 else old.to(new.device)).view(t.dtype)

        return super()._apply(moved, recurse)

    def _inputs(self) -> Activations:
        """Whether a scale of inputs stands beside the weights in a state_dict."""
        return Activations.none

    def _derived(self) -> dict[str, torch.Tensor]:
        """What follows from buffers and stands beside them in a state_dict, by its name there."""
        return {}

    def _stored_name(self, weight: str, name: str) -> str:
        """In a state_dict, of what a dialect calls `name` beside a weight."""
        return weight + name

    def _stored(self) -> list[Stored]:
        """Every buffer, as it stands in a state_dict."""
        return [stored for name in self._forms for stored in self._stored_weight(name)]

    def _stored_weight(self, weight: str) -> list[Stored]:
        form, inputs = self._forms[weight], self._inputs()
        recipe, dialect = Recipe[form.recipe], Dialect[self.dialect]
        row_major = ScaleLayout.row_major
        parts: list[tuple[str, str, torch.dtype, Any, ScaleLayout]]
        if _native.dialect_can_say(dialect, recipe):
            said = _native.stored_parts(dialect, recipe, form.shape, inputs)
            parts = [
                (part, name, _DTYPES[dtype], shape, layout)
                for part, name, dtype, shape, layout in said
                if part != "alpha"  # which `_derived` has
            ]
        else:
            values, scales = _native.part_shapes(recipe, row_major, form.shape)
            scale_dtype = getattr(self, weight + "scales").dtype
            parts = [
                ("values", "weight", torch.uint8, values, row_major),
                ("scales", "weight_scale", scale_dtype, scales, row_major),
            ]
            if inputs != Activations.none:
                parts.append(("input_scale", "input_scale", torch.float32, (1,), row_major))
        factor = getattr(self, weight + "tensor_scale")
        return [
            Stored(
                weight + part,
                self._stored_name(weight, name),
                dtype,
                tuple(factor.shape if part == "tensor_scale" and len(factor) > 1 else shape),
                layout.name,
            )
            for part, name, dtype, shape, layout in parts
        ]

    def _relaid(self, weight: str, scales: torch.Tensor, come: str, go: str) -> torch.Tensor:
        """Scales of a weight in layout `come`, in layout `go`."""
        if come == go:
            return scales
        form = self._forms[weight]
        if scales.is_meta:
            _, grid = _native.part_shapes(Recipe[form.recipe], ScaleLayout[go], form.shape)
            return scales.new_empty(grid)
        parts = self._parts(weight)
        values = torch.empty(parts["values"].shape, dtype=torch.uint8, device="cpu")
        factor = 1.0 if "tensor_scale" in parts else None
        laid = ScaledTensor(values, scales.cpu(), form.recipe, layout=come, tensor_scale=factor)
        return _bytes(laid.relayout(go).scales).to(scales.device)

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        for buffer, name, dtype, shape, layout in self._stored():
            tensor, weight = getattr(self, buffer), buffer.removesuffix("scales")
            if weight != buffer:
                tensor = self._relaid(weight, tensor, self._forms[weight].layout, layout)
            destination[prefix + name] = tensor.view(dtype).reshape(shape)
        for name, tensor in self._derived().items():
            destination[prefix + name] = tensor
        for name, bias in self._parameters.items():
            if bias is not None:
                destination[prefix + name] = bias if keep_vars else bias.detach()

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        own = {key: x for key, x in state_dict.items() if key.startswith(prefix)}
        for name in self._derived():
            own.pop(prefix + name, None)
        names: dict[str, str] = {}
        known = {stored.name for stored in self._stored()}
        for part in self._buffers.keys() - known:  # the layer's own names, which no state has
            if own.pop(prefix + part, None) is not None and strict:
                unexpected_keys.append(prefix + part)
        for stored in self._stored():
            key = prefix + stored.name
            names[prefix + stored.buffer] = key
            tensor = own.pop(key, None)
            if tensor is None:
                continue
            found, wanted = (tensor.dtype, tuple(tensor.shape)), (stored.dtype, stored.shape)
            if found == wanted:
                own[prefix + stored.buffer] = self._taken(stored, tensor)
            else:
                error_msgs.append(f"{key}: (dtype, shape) is {found}, must be {wanted}")
                own[prefix + stored.buffer] = getattr(self, stored.buffer)
        missing: list[str] = []
        super()._load_from_state_dict(
            own, prefix, local_metadata, strict, missing, unexpected_keys, error_msgs
        )
        missing_keys += [names.get(key, key) for key in missing]

    def _taken(self, stored: Stored, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of a state_dict as the layer holds it."""
        mine, weight = getattr(self, stored.buffer), stored.buffer.removesuffix("scales")
        tensor = tensor.contiguous().reshape(-1).view(mine.dtype)
        if weight == stored.buffer:
            return tensor.reshape(mine.shape)
        form = self._forms[weight]
        _, grid = _native.part_shapes(Recipe[form.recipe], ScaleLayout[stored.layout], form.shape)
        return self._relaid(weight, tensor.reshape(grid), stored.layout, form.layout)


def is_seen(x: torch.Tensor) -> bool:
    """Whether somebody sees the operators of torch that `x` goes through: a compiler or a tracer, a
    mode, a subclass of Tensor, a transform of torch.func; or whether there is nothing behind them
    to call, as of tensors without memory.
    """
    return (
        type(x) is not torch.Tensor
        or x.device.type not in ("cpu", "cuda")
        or torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def rows_of(x: torch.Tensor, columns: int, argument: str) -> torch.Tensor:
    """x [..., columns] as [rows, columns], each row contiguous and apart from the others.

    Raises:
        ValueError: it has another number of columns.
    """
    shape = x.shape
    if shape[-1] != columns:
        raise ValueError(f"{argument}: shape is {tuple(shape)}, its last size must be {columns}")
    rows = x if len(shape) == 2 else x.reshape(-1, columns)
    overlaps = rows.shape[0] > 1 and rows.stride(0) < columns
    return rows.contiguous() if overlaps or rows.stride(1) != 1 else rows


def plain_recipe(x: torch.Tensor, argument: str) -> str:
    """That of x's dtype.

    Raises:
        TypeError: it is not float32, float16 or bfloat16.
    """
    recipe = PLAIN.get(x.dtype)
    if recipe is None:
        raise TypeError(f"{argument}: has dtype {x.dtype}, must be float32, float16 or bfloat16")
    return recipe


def _bytes(x: Any) -> torch.Tensor:
    """A part of a ScaledTensor as torch's, of float32 or uint8."""
    if not isinstance(x, torch.Tensor):
        x = torch.from_numpy(x.view("uint8" if x.dtype.itemsize == 1 else "float32").copy())
    return x if x.dtype == torch.float32 else x.view(torch.uint8)


def dialect_of(weight: ScaledTensor, dialect: Dialect | str | None) -> str:
    """The dialect that is given, or one that stores tensor scales in the sense of the weight's.

    Raises:
        ValueError: it has not this recipe, or no stacks, or stores the inverse of the tensor scale.
    """
    traits, sense = TRAITS[weight.recipe], weight.sense
    if dialect is None:
        usual = _native.default_dialect(traits.recipe)
        if not traits.tensor_scale or _native.dialect_sense(usual) == sense:
            return usual.name
        return Dialect.modelopt.name
    asked = enum_member(dialect, Dialect, "dialect")
    if not _native.dialect_can_say(asked, traits.recipe):
        raise ValueError(f"dialect: is {asked.name}, which stores no {traits.name}")
    if traits.tensor_scale and _native.dialect_sense(asked) != sense:
        raise ValueError(
            f"dialect: is {asked.name}, whose tensor scales are "
            f"{_native.dialect_sense(asked).name}s; the weight's is a {sense.name}"
        )
    if not traits.plain:
        try:
            _native.stored_parts(asked, traits.recipe, weight.shape, Activations.none)
        except ValueError as error:
            raise ValueError(f"dialect: is {asked.name}; {error}") from None
    return asked.name


def sense_in(traits: RecipeTraits, dialect: Dialect | str | None) -> TensorScaleSense:
    """Of the tensor scale of a weight that shall be in `dialect`."""
    if dialect is None or not traits.tensor_scale:
        return TensorScaleSense.divisor
    return _native.dialect_sense(enum_member(dialect, Dialect, "dialect"))
