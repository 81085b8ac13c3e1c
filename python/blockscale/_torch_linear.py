"""`blockscale.nn.Linear`: a linear layer of torch with a quantized weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from . import _native
from . import torch as _operators  # noqa: F401 (registers torch.ops.blockscale)
from ._native import Activations, Dialect, Recipe, ScaleLayout, TensorScaleSense
from ._ops import quantize as quantize_tensor
from ._tensor import TRAITS, RecipeTraits, ScaledTensor, enum_member, traits_of

_quantize = torch.ops.blockscale.quantize.default
_gemm = torch.ops.blockscale.gemm.default

#: What inputs and biases may be, and the recipe of each.
PLAIN = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
#: Recipes of inputs that take a scale which was stored, and its shape.
_STATIC = {"nvfp4": (1,), "fp8_tensor": (1, 1), "fp8_row": (1, 1)}
_DTYPES = {
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F32": torch.float32,
}


class _Stored(NamedTuple):
    """How a part of the layer stands in a state_dict."""

    part: str  # the buffer's name
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class Linear(torch.nn.Module):
    """x w^T + bias with a quantized weight, and perhaps quantized inputs, for inference.

    The products are those of `torch.ops.blockscale.gemm`: on the CPU or on CUDA, as they are, under
    torch.compile(fullgraph=True) and in CUDA graphs. No gradient flows.

    `state_dict` has the names, dtypes and shapes of `dialect` (docs/checkpoints.md): codes and
    scales row by row. Recipes that no dialect writes (mxfp6_e3m2, mxfp8_e5m2, fp8_tensor_e5m2) have
    `weight` and `weight_scale`, which are no checkpoint. `.to(dtype)` and its kind cast the bias
    alone, `.to(device)` moves everything.

    Args:
        weight: a ScaledTensor [outputs, inputs] of any recipe and layout; torch's memory is shared,
            numpy's is copied.
        bias: [outputs] of f32, f16 or bf16.
        activations: what inputs are quantized to as they come, a recipe that has a product with
            the weight's (docs/numerics.md, "Pairs"); None: they stay as they are.
        input_scale: of static activations, a number or float32 of one element: of nvfp4 the tensor
            scale, in the sense of the weight's; of fp8_tensor and fp8_row the scale. `activations`
            is the weight's recipe then.
        dialect: whose names `state_dict` has; default: the recipe's own, whose sense the weight's
            tensor scale must have.

    Raises:
        TypeError: an argument of the wrong kind or dtype.
        ValueError: a shape, a recipe or a dialect that does not go with the weight; arrays on
            different devices.

    >>> import torch, blockscale.nn
    >>> layer = blockscale.nn.Linear.from_float(torch.nn.Linear(64, 32), "mxfp4")
    >>> layer(torch.ones(2, 3, 64)).shape
    torch.Size([2, 3, 32])
    >>> sorted(layer.state_dict())
    ['bias', 'weight_packed', 'weight_scale']
    """

    values: torch.Tensor
    scales: torch.Tensor
    tensor_scale: torch.Tensor | None
    input_scale: torch.Tensor | None
    bias: torch.nn.Parameter | None

    def __init__(
        self,
        weight: ScaledTensor,
        bias: torch.Tensor | None = None,
        *,
        activations: Recipe | str | None = None,
        input_scale: torch.Tensor | float | None = None,
        dialect: Dialect | str | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(weight, ScaledTensor):
            raise TypeError(f"weight: is a {type(weight).__name__}, must be a ScaledTensor")
        if len(weight.shape) != 2:
            raise ValueError(f"weight: shape is {weight.shape}, must be (outputs, inputs)")
        traits = TRAITS[weight.recipe]
        self.out_features, self.in_features = weight.shape
        self.recipe, self.layout = traits.name, weight.layout.name
        self.sense = weight.sense.name
        self.register_buffer("values", _bytes(weight.values))
        self.register_buffer("scales", _bytes(weight.scales))
        factor = weight.tensor_scale
        self.register_buffer("tensor_scale", None if factor is None else _bytes(factor))
        self.activations = _activations(activations)
        scale = None if input_scale is None else self._static(input_scale)
        self.register_buffer("input_scale", scale)
        self.register_parameter("bias", self.as_bias(bias))
        self.dialect = _dialect_of(traits, weight.sense, dialect)
        self._require_product()

    @classmethod
    def from_float(
        cls,
        linear: torch.nn.Linear,
        recipe: Recipe | str,
        *,
        activations: Recipe | str | None = None,
        input_scale: torch.Tensor | float | None = None,
        layout: ScaleLayout | str = ScaleLayout.row_major,
        dialect: Dialect | str | None = None,
    ) -> Linear:
        """`linear` with its weight quantized by `blockscale.quantize`; the bias is shared.

        Args:
            linear: of f32, f16 or bf16.
            recipe, layout: of the weight.
            activations, input_scale, dialect: as for `Linear`.

        Raises:
            TypeError: `linear` is no torch.nn.Linear.
            ValueError: the recipe cannot divide its inputs, and as for `Linear`.

        >>> import torch, blockscale.nn
        >>> blockscale.nn.Linear.from_float(torch.nn.Linear(64, 32), "nvfp4", activations="nvfp4")
        Linear(64 -> 32, nvfp4, row_major, 1156 bytes, activations=nvfp4, bias=True)
        """
        if not isinstance(linear, torch.nn.Linear):
            raise TypeError(f"linear: is a {type(linear).__name__}, must be a torch.nn.Linear")
        sense = _sense(traits_of(recipe, "recipe"), dialect)
        weight = quantize_tensor(
            linear.weight.detach().contiguous(), recipe, layout=layout, sense=sense
        )
        return cls(
            weight,
            linear.bias,
            activations=activations,
            input_scale=input_scale,
            dialect=dialect,
        )

    @property
    def weight(self) -> ScaledTensor:
        """The weight, a view of the layer's memory."""
        return ScaledTensor(
            self.values,
            self.scales,
            self.recipe,
            layout=self.layout,
            tensor_scale=self.tensor_scale,
            sense=self.sense,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and tensor scale."""
        parts = (self.values, self.scales, self.tensor_scale)
        return sum(part.nbytes for part in parts if part is not None)

    def extra_repr(self) -> str:
        """Sizes, recipe, layout, bytes of the weight, activations and whether there is a bias."""
        static = " (static)" if self.input_scale is not None else ""
        return (
            f"{self.in_features} -> {self.out_features}, {self.recipe}, {self.layout}, "
            f"{self.nbytes} bytes, activations={self.activations}{static}, "
            f"bias={self.bias is not None}"
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., inputs] of f32, f16 or bf16 -> [..., outputs] in x's dtype.

        Raises:
            TypeError: another dtype.
            ValueError: another number of inputs; x requires grad while grad mode is on; x is on
                another device than the layer.
        """
        shape, buffers = x.shape, self._buffers
        if shape[-1] != self.in_features:
            raise ValueError(
                f"x: shape is {tuple(shape)}, its last size must be {self.in_features}"
            )
        rows = x if len(shape) == 2 else x.reshape(-1, self.in_features)
        overlaps = rows.shape[0] > 1 and rows.stride(0) < self.in_features
        if overlaps or rows.stride(1) != 1:
            rows = rows.contiguous()
        recipe, scales, factor = self.activations, None, None
        if recipe is None:
            recipe = PLAIN.get(x.dtype)
            if recipe is None:
                raise TypeError(f"x: has dtype {x.dtype}, must be float32, float16 or bfloat16")
        else:
            rows, scales, factor = self._quantized(rows, recipe)
        y = _gemm(
            rows,
            buffers["values"],
            recipe,
            self.recipe,
            a_scales=scales,
            b_scales=buffers["scales"],
            b_layout=self.layout,
            a_tensor_scale=factor,
            b_tensor_scale=buffers["tensor_scale"],
            sense=self.sense,
            bias=self._parameters["bias"],
            out_dtype=x.dtype,
        )
        return y if len(shape) == 2 else y.reshape(*shape[:-1], self.out_features)

    def _quantized(
        self, rows: torch.Tensor, recipe: str
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Values, scales and tensor scale of the inputs."""
        scale = self._buffers["input_scale"]
        if recipe == "nvfp4":
            values, scales, own = _quantize(rows, recipe, tensor_scale=scale, sense=self.sense)
            return values, scales, own if scale is None else scale
        values, scales, _ = _quantize(rows, recipe, scales=scale)
        return values, scales, None

    def _static(self, scale: torch.Tensor | float) -> torch.Tensor:
        """The scale of static inputs, in the shape that `_quantized` needs."""
        usual = _native.input_recipe(Recipe[self.recipe], Activations.calibrated).name
        if usual not in _STATIC or self.activations != usual:
            allowed = usual if usual in _STATIC else "nothing"
            raise ValueError(
                f"input_scale: is given with activations = {self.activations}; beside "
                f"{self.recipe}, {allowed} has one"
            )
        scale = torch.as_tensor(scale, dtype=torch.float32, device=self.values.device)
        if scale.numel() != 1:
            raise ValueError(f"input_scale: shape is {tuple(scale.shape)}, must have one element")
        return scale.detach().reshape(_STATIC[usual])

    def as_bias(self, bias: torch.Tensor | None) -> torch.nn.Parameter | None:
        """A bias for this layer, of the same memory.

        Raises:
            TypeError, ValueError: as for `Linear`.
        """
        if bias is None:
            return None
        if not isinstance(bias, torch.Tensor) or bias.dtype not in PLAIN:
            what = getattr(bias, "dtype", type(bias).__name__)
            raise TypeError(f"bias: is {what}, must be a tensor of float32, float16 or bfloat16")
        if bias.shape != (self.out_features,):
            raise ValueError(f"bias: shape is {tuple(bias.shape)}, must be ({self.out_features},)")
        if bias.device != self.values.device:
            raise ValueError(
                f"bias: is on {bias.device}, must be on {self.values.device} like weight"
            )
        return torch.nn.Parameter(bias.detach(), requires_grad=False)

    def _require_product(self) -> None:
        """Raises ValueError naming `activations` where they have no product with the weight."""
        x = torch.empty(1, self.in_features, dtype=torch.bfloat16, device="meta")
        meta = {name: t.to("meta") for name, t in (*self.named_buffers(), *self.named_parameters())}
        try:
            torch.func.functional_call(self, meta, (x,))
        except ValueError as error:
            raise ValueError(
                f"activations: is {self.activations} beside {self.recipe}: {error}"
            ) from None

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Linear:
        """Casts are of the bias alone, and to what a bias may be: bytes are what `fn` sees of all
        else, and where it makes numbers of them it says a device only."""

        def moved(t: torch.Tensor) -> torch.Tensor:
            if t is self._parameters["bias"]:
                cast = fn(t)
                return cast if cast.dtype in PLAIN else t.to(cast.device)
            old = t.view(torch.uint8)
            new = fn(old)
            return (new if new.dtype == torch.uint8 else old.to(new.device)).view(t.dtype)

        return super()._apply(moved, recurse)

    def _stored(self) -> list[_Stored]:
        """Every part but the bias, as it stands in a state_dict."""
        shape = (self.out_features, self.in_features)
        inputs = Activations.none if self.input_scale is None else Activations.calibrated
        recipe, dialect = Recipe[self.recipe], Dialect[self.dialect]
        if _native.dialect_can_say(dialect, recipe):
            parts = _native.stored_parts(dialect, recipe, shape, inputs)
            return [_Stored(part, name, _DTYPES[d], tuple(s)) for part, name, d, s in parts]
        values, scales = _native.part_shapes(recipe, ScaleLayout.row_major, shape)
        stored = [
            _Stored("values", "weight", torch.uint8, tuple(values)),
            _Stored("scales", "weight_scale", self.scales.dtype, tuple(scales)),
        ]
        if self.input_scale is not None:
            stored.append(_Stored("input_scale", "input_scale", torch.float32, (1,)))
        return stored

    def _relaid(self, scales: torch.Tensor, come: str, go: str) -> torch.Tensor:
        """Scales in layout `come`, in layout `go`."""
        if come == go:
            return scales
        if scales.is_meta:
            shape = (self.out_features, self.in_features)
            _, grid = _native.part_shapes(Recipe[self.recipe], ScaleLayout[go], shape)
            return scales.new_empty(grid)
        values = torch.empty(self.values.shape, dtype=torch.uint8, device="cpu")
        factor = None if self.tensor_scale is None else 1.0
        laid = ScaledTensor(values, scales.cpu(), self.recipe, layout=come, tensor_scale=factor)
        return _bytes(laid.relayout(go).scales).to(scales.device)

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        for part, name, dtype, shape in self._stored():
            tensor = getattr(self, part)
            if part == "scales":
                tensor = self._relaid(tensor, self.layout, "row_major")
            destination[prefix + name] = tensor.view(dtype).reshape(shape)
        if self.bias is not None:
            destination[prefix + "bias"] = self.bias if keep_vars else self.bias.detach()

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
        names: dict[str, str] = {}
        known = {stored.name for stored in self._stored()}
        for part in self._buffers.keys() - known:  # the layer's own names, which no state has
            if own.pop(prefix + part, None) is not None and strict:
                unexpected_keys.append(prefix + part)
        for stored in self._stored():
            key = prefix + stored.name
            names[prefix + stored.part] = key
            tensor = own.pop(key, None)
            if tensor is None:
                continue
            found, wanted = (tensor.dtype, tuple(tensor.shape)), (stored.dtype, stored.shape)
            if found == wanted:
                own[prefix + stored.part] = self._taken(stored.part, tensor)
            else:
                error_msgs.append(f"{key}: (dtype, shape) is {found}, must be {wanted}")
                own[prefix + stored.part] = getattr(self, stored.part)
        missing: list[str] = []
        super()._load_from_state_dict(
            own, prefix, local_metadata, strict, missing, unexpected_keys, error_msgs
        )
        missing_keys += [names.get(key, key) for key in missing]

    def _taken(self, part: str, tensor: torch.Tensor) -> torch.Tensor:
        """A part of a state_dict as the layer holds it."""
        mine = getattr(self, part)
        if part != "scales":
            return tensor.contiguous().reshape(-1).view(mine.dtype).reshape(mine.shape)
        _, grid = _native.part_shapes(
            Recipe[self.recipe], ScaleLayout.row_major, (self.out_features, self.in_features)
        )
        scales = tensor.contiguous().reshape(-1).view(mine.dtype).reshape(grid)
        return self._relaid(scales, "row_major", self.layout)


def _bytes(x: Any) -> torch.Tensor:
    """A part of a ScaledTensor as torch's, of float32 or uint8."""
    if not isinstance(x, torch.Tensor):
        x = torch.from_numpy(x.view("uint8" if x.dtype.itemsize == 1 else "float32").copy())
    return x if x.dtype == torch.float32 else x.view(torch.uint8)


def _activations(activations: Recipe | str | None) -> str | None:
    """The name of a recipe that quantizes."""
    if activations is None:
        return None
    traits = traits_of(activations, "activations")
    if traits.plain:
        raise ValueError(
            f"activations: is {traits.name}, must be a recipe with scales, or None: inputs stay"
        )
    return traits.name


def _dialect_of(
    traits: RecipeTraits, sense: TensorScaleSense, dialect: Dialect | str | None
) -> str:
    """The dialect that is given, or one that stores tensor scales in this sense.

    Raises:
        ValueError: it has not this recipe, or stores the inverse of the tensor scale.
    """
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
    return asked.name


def _sense(traits: RecipeTraits, dialect: Dialect | str | None) -> TensorScaleSense:
    """Of the tensor scale of a weight that shall be in `dialect`."""
    if dialect is None or not traits.tensor_scale:
        return TensorScaleSense.divisor
    return _native.dialect_sense(enum_member(dialect, Dialect, "dialect"))
