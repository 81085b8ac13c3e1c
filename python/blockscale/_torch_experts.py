"""`blockscale.nn.Experts`: the experts of a mixture with quantized weights, as a layer of torch."""

from __future__ import annotations

from typing import Any

import torch

from . import torch as _operators  # noqa: F401 (registers torch.ops.blockscale)
from ._moe import _pair
from ._native import Dialect, Recipe
from ._tensor import TRAITS, ScaledTensor, traits_of
from ._torch_layer import Layer, Stored, dialect_of, plain_recipe, rows_of

_moe = torch.ops.blockscale.moe.default
#: What experts are numbered by; int32 holds all numbers of the narrow ones.
_NARROW = (torch.uint8, torch.int8, torch.uint16, torch.int16, torch.int32)
_INTEGERS = (*_NARROW, torch.uint32, torch.int64, torch.uint64)
#: What the weights are called in a state_dict: transformers' names.
_PARAMETERS = {"w13_": "gate_up_proj", "w2_": "down_proj"}


class Experts(Layer):
    """The experts of a mixture with quantized weights, and perhaps quantized inputs, for inference;
    it is called as transformers' experts are, with what a router chose.

    The layer is `torch.ops.blockscale.moe` (docs/python.md): on the CPU or on CUDA, under
    torch.compile(fullgraph=True) and in CUDA graphs. No gradient flows.

    `state_dict` has `gate_up_proj` and `down_proj` with the suffixes, dtypes and shapes that
    `dialect` gives stacks (docs/checkpoints.md), scales row by row, `gate_up_proj_bias` and
    `down_proj_bias`, and of alphas, which no dialect has, `gate_up_proj_alphas` and
    `down_proj_alphas`. `.to(dtype)` and its kind cast the biases alone, `.to(device)` moves
    everything.

    Args:
        w13: gates and ups, a ScaledTensor [E, 2 I, H] of any recipe and layout (without SwiGLU
            [E, I, H]); or [2 E, I, H], gates and ups of each expert apart. torch's memory is
            shared, numpy's is copied.
        w2: [E, H, I], likewise.
        activation, gate_first, interleave, limit, alpha, up_shift: what lies between the products,
            as for `moe`.
        activations: what inputs of both products are quantized to: "fp8_1x128", "fp8_1x128_pow2",
            "fp8_1x128_ue8m0", "mxfp8_e4m3", or "bf16": they are not. None: fp8_1x128 where both
            weights are FP8, else bf16.
        biases: a pair of [E, 2 I] (without SwiGLU [E, I]) and [E, H] of f32, f16 or bf16, both of
            one dtype; or None.
        expert_alphas: a pair of float32 [E], or None, which multiply the two products.
        dialect: whose names `state_dict` has; default: that of w13's recipe, or of a tensor
            scale's sense.

    Raises:
        TypeError: an argument of the wrong kind or dtype.
        ValueError: shapes, recipes or a dialect that do not go together; arrays on different
            devices.

    >>> import torch, blockscale.nn
    >>> w13 = blockscale.quantize(torch.randn(4, 2 * 64, 128), "nvfp4")
    >>> w2 = blockscale.quantize(torch.randn(4, 128, 64), "nvfp4")
    >>> experts = blockscale.nn.Experts(w13, w2)
    >>> ids, weights = torch.tensor([[3, 0], [1, 2]]), torch.full((2, 2), 0.5)
    >>> experts(torch.randn(2, 128), ids, weights).shape
    torch.Size([2, 128])
    """

    gate_up_proj_bias: torch.nn.Parameter | None
    down_proj_bias: torch.nn.Parameter | None

    def __init__(
        self,
        w13: ScaledTensor,
        w2: ScaledTensor,
        *,
        activation: str | None = "swiglu",
        gate_first: bool = True,
        interleave: int = 0,
        limit: float | None = None,
        alpha: float = 1.0,
        up_shift: float = 0.0,
        activations: Recipe | str | None = None,
        biases: tuple[torch.Tensor | None, torch.Tensor | None] | None = None,
        expert_alphas: tuple[torch.Tensor | None, torch.Tensor | None] | None = None,
        dialect: Dialect | str | None = None,
    ) -> None:
        super().__init__()
        self._hold("w13_", w13, "w13", ("E", "2 I" if activation == "swiglu" else "I", "H"))
        self._hold("w2_", w2, "w2", ("E", "H", "I"))
        self.num_experts, self.hidden_dim, self.intermediate_dim = w2.shape
        self.activation, self.gate_first, self.interleave = activation, gate_first, interleave
        self.limit, self.alpha, self.up_shift = limit, alpha, up_shift
        forms = up, down = self._forms["w13_"], self._forms["w2_"]
        if activations is None:
            is_fp8 = all(form.recipe.startswith("fp8_") for form in forms)
            activations = "fp8_1x128" if is_fp8 else "bf16"
        self.activations = traits_of(activations, "activations").name
        scaled = [weight for weight in (w13, w2) if TRAITS[weight.recipe].tensor_scale]
        if len({weight.sense for weight in scaled}) > 1:
            raise ValueError(f"w2: has a {down.sense} as tensor scale, w13 a {up.sense}")
        leading = (scaled or [w13])[0]  # its sense is moe's, and says which dialects there are
        self.sense = leading.sense.name
        self.dialect = dialect_of(leading, dialect)
        if dialect is not None:
            for weight in (w13, w2):
                dialect_of(weight, dialect)
        first, second = _pair(expert_alphas, "expert_alphas")
        self.register_buffer("w13_alphas", self._as_alphas(first, "expert_alphas[0]"))
        self.register_buffer("w2_alphas", self._as_alphas(second, "expert_alphas[1]"))
        columns = self.intermediate_dim * (2 if activation == "swiglu" else 1)
        first, second = _pair(biases, "biases")
        for i, (bias, width) in enumerate(((first, columns), (second, self.hidden_dim))):
            name = ("gate_up_proj_bias", "down_proj_bias")[i]
            self._register_bias(name, bias, f"biases[{i}]", (self.num_experts, width))
        self._require_layer()

    @property
    def w13(self) -> ScaledTensor:
        """Gates and ups, a view of the layer's memory."""
        return self._held("w13_")

    @property
    def w2(self) -> ScaledTensor:
        """The second product's weights, a view of the layer's memory."""
        return self._held("w2_")

    def extra_repr(self) -> str:
        """Sizes, recipes, layouts, bytes of the weights, activation, inputs and biases."""
        forms = self._forms.values()
        recipes, layouts = (
            " and ".join(dict.fromkeys(names))
            for names in ([f.recipe for f in forms], [f.layout for f in forms])
        )
        return (
            f"{self.num_experts} experts, {self.hidden_dim} -> {self.intermediate_dim} -> "
            f"{self.hidden_dim}, {recipes}, {layouts}, {self.nbytes} bytes, "
            f"activation={self.activation}, activations={self.activations}, "
            f"bias={self.gate_up_proj_bias is not None or self.down_proj_bias is not None}"
        )

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """What the chosen experts make of each token, times their weights, added up.

        Args:
            hidden_states: [..., H] of f32, f16 or bf16.
            top_k_index: integers [..., top_k], 1 to 16 experts of each token. What names no expert
                is dropped: -1, or E and above.
            top_k_weights: floats [..., top_k].

        Returns:
            [..., H] in the dtype of hidden_states.

        Raises:
            TypeError: another dtype.
            ValueError: shapes that do not go together; hidden_states requires grad while grad mode
                is on; tensors on another device than the layer.
        """
        recipe, buffers = plain_recipe(hidden_states, "hidden_states"), self._buffers
        (up, up_layout, _, _), (down, down_layout, _, _) = self._forms.values()
        rows = rows_of(hidden_states, self.hidden_dim, "hidden_states")
        ids, weights = _choices(top_k_index, top_k_weights)
        y = _moe(
            rows,
            buffers["w13_values"],
            buffers["w2_values"],
            ids,
            weights,
            recipe,
            up,
            down,
            w13_scales=buffers["w13_scales"],
            w2_scales=buffers["w2_scales"],
            w13_layout=up_layout,
            w2_layout=down_layout,
            w13_tensor_scale=buffers["w13_tensor_scale"],
            w2_tensor_scale=buffers["w2_tensor_scale"],
            sense=self.sense,
            activation=self.activation,
            gate_first=self.gate_first,
            interleave=self.interleave,
            limit=self.limit,
            alpha=self.alpha,
            up_shift=self.up_shift,
            activations=self.activations,
            w13_alphas=buffers["w13_alphas"],
            w2_alphas=buffers["w2_alphas"],
            w13_bias=self._parameters["gate_up_proj_bias"],
            w2_bias=self._parameters["down_proj_bias"],
        )
        return y.reshape(hidden_states.shape)

    def _as_alphas(self, alphas: Any, argument: str) -> torch.Tensor | None:
        if alphas is None:
            return None
        if not isinstance(alphas, torch.Tensor) or alphas.dtype != torch.float32:
            what = getattr(alphas, "dtype", type(alphas).__name__)
            raise TypeError(f"{argument}: is {what}, must be a tensor of float32")
        if alphas.shape != (self.num_experts,):
            shape = tuple(alphas.shape)
            raise ValueError(f"{argument}: shape is {shape}, must be ({self.num_experts},)")
        return alphas.detach()

    def _require_layer(self) -> None:
        """Raises what `moe` says of the weights, of no token."""
        where = {"device": self._buffers["w2_values"].device, "dtype": torch.float32}
        nothing = torch.empty(0, 1, **where)
        self(torch.empty(0, self.hidden_dim, **where), nothing.int(), nothing)

    def _stored_name(self, weight: str, name: str) -> str:
        parameter = _PARAMETERS[weight]
        if self.dialect == "modelopt":
            return parameter if name == "weight" else f"{parameter}_{name}"
        return parameter + name.removeprefix("weight")

    def _stored(self) -> list[Stored]:
        alphas = [
            Stored(weight + "alphas", parameter + "_alphas", torch.float32, (self.num_experts,))
            for weight, parameter in _PARAMETERS.items()
            if self._buffers[weight + "alphas"] is not None
        ]
        return super()._stored() + alphas


def _choices(index: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What a router chose, int32 and float32 [tokens, top_k].

    Raises:
        TypeError, ValueError: they are no choices, or not as many.
    """
    if index.dtype not in _INTEGERS:
        raise TypeError(f"top_k_index: has dtype {index.dtype}, must be integers")
    if not weights.is_floating_point():
        raise TypeError(f"top_k_weights: has dtype {weights.dtype}, must be floats")
    shape = index.shape
    if not shape or not shape[-1]:
        raise ValueError(f"top_k_index: shape is {tuple(shape)}, must be (..., top_k)")
    if weights.shape[-1:] != shape[-1:] or weights.numel() != index.numel():
        raise ValueError(
            f"top_k_weights: shape is {tuple(weights.shape)}, must be {tuple(shape)}, that of "
            "top_k_index"
        )
    if index.dtype not in _NARROW:  # what is beyond int32 names no expert, whatever its low bits do
        index = index.long().clamp(-1, torch.iinfo(torch.int32).max)
    ids, factors = (t.reshape(-1, shape[-1]) for t in (index, weights))
    return ids.to(torch.int32).contiguous(), factors.to(torch.float32).contiguous()
