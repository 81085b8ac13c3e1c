"""`blockscale.nn.Linear`: a linear layer of torch with a quantized weight."""

from __future__ import annotations

import torch

from . import _native
from . import torch as _operators  # noqa: F401 (registers torch.ops.blockscale)
from ._native import Activations, Dialect, Recipe, ScaleLayout, TensorScaleSense
from ._ops import quantize as quantize_tensor
from ._tensor import ScaledTensor, traits_of
from ._torch_layer import Layer, dialect_of, is_seen, plain_recipe, rows_of, sense_in

_quantize = torch.ops.blockscale.quantize.default
_gemm = torch.ops.blockscale.gemm.default

_RECIPES = {recipe.name: recipe for recipe in Recipe}
_SENSES = {sense.name: sense for sense in TensorScaleSense}
#: Recipes of inputs that take a scale which was stored, and its shape.
_STATIC = {"nvfp4": (1,), "fp8_tensor": (1, 1), "fp8_row": (1, 1)}


class Linear(Layer):
    """x w^T + bias with a quantized weight, and perhaps quantized inputs, for inference.

    The products are those of `torch.ops.blockscale.gemm`: on the CPU or on CUDA, as they are, under
    torch.compile(fullgraph=True) and in CUDA graphs. No gradient flows. Where nobody would see the
    operators (no tracer, no mode of torch), one call of the native module does what they do, which
    takes less time.

    `state_dict` has the names, dtypes and shapes of `dialect` (docs/checkpoints.md): codes and
    scales row by row; of lightx2v scales in tiles, and `alpha` beside a static input scale. Recipes
    that no dialect writes by default (mxfp6_e3m2, mxfp8_e5m2, fp8_tensor_e5m2) have `weight` and
    `weight_scale`, which are no checkpoint. `.to(dtype)` and its kind cast the bias alone,
    `.to(device)` moves everything.

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
        self._hold("", weight, "weight", ("outputs", "inputs"))
        self.recipe, self.layout, self.sense, shape = self._forms[""]
        self.out_features, self.in_features = shape
        self.activations = _activations(activations)
        scale = None if input_scale is None else self._static(input_scale)
        self.register_buffer("input_scale", scale)
        self._register_bias("bias", bias, "bias", (self.out_features,))
        self.dialect = dialect_of(weight, dialect)
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
        sense = sense_in(traits_of(recipe, "recipe"), dialect)
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
        return self._held("")

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
        if self._may_be_at_once() and not is_seen(x):
            y = x.new_empty((*x.shape[:-1], self.out_features))
            if self._at_once(x, y):
                return y
            del y  # its memory is for the result
        y = self._by_operators(rows_of(x, self.in_features, "x"))
        return y if x.dim() == 2 else y.view(*x.shape[:-1], self.out_features)

    def _may_be_at_once(self) -> bool:
        """A stored scale of rows would have to be written for each of them."""
        return self.activations != "fp8_row" or self._buffers["input_scale"] is None

    def _at_once(self, x: torch.Tensor, y: torch.Tensor) -> bool:
        """Whether the native module took the call as it is, and y is the result."""
        recipe = self.activations
        return _native.linear(
            x,
            self._view(""),
            self._parameters["bias"],
            y,
            None if recipe is None else _RECIPES[recipe],
            _SENSES[self.sense],
            self._buffers["input_scale"],
        )

    def _by_operators(self, rows: torch.Tensor) -> torch.Tensor:
        buffers = self._buffers
        recipe, scales, factor = self.activations, None, None
        if recipe is None:
            recipe, codes = plain_recipe(rows, "x"), rows
        else:
            codes, scales, factor = self._quantized(rows, recipe)
        return _gemm(
            codes,
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
            out_dtype=rows.dtype,
        )

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

    def _derived(self) -> dict[str, torch.Tensor]:
        of_inputs, of_weight = self.input_scale, self.tensor_scale
        if self.dialect != "lightx2v" or of_inputs is None or of_weight is None:
            return {}
        return {"alpha": (1.0 / (of_inputs * of_weight)).reshape(())}

    def _inputs(self) -> Activations:
        return Activations.none if self.input_scale is None else Activations.calibrated


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
