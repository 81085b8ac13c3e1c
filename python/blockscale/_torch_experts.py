"""`blockscale.nn.Experts`: the experts of a mixture with quantized weights, as a layer of torch."""

from __future__ import annotations

from typing import Any

import torch

from . import torch as _operators  # noqa: F401 (registers torch.ops.blockscale)
from ._arrays import count, number
from ._moe import _pair, moe
from ._native import Dialect, Recipe
from ._tensor import TRAITS, ScaledTensor, traits_of
from ._torch_layer import Layer, Stored, dialect_of, is_seen, plain_recipe, rows_of

_moe = torch.ops.blockscale.moe.default
#: What experts are numbered by; int32 holds all numbers of the narrow ones.
_NARROW = (torch.uint8, torch.int8, torch.uint16, torch.int16, torch.int32)
_INTEGERS = (*_NARROW, torch.uint32, torch.int64, torch.uint64)
#: What the weights are called in a state_dict: transformers' names.
_PARAMETERS = {
    "w13_": "gate_up_proj",
    "w2_": "down_proj",
    "shared_w13_": "shared_gate_up_proj",
    "shared_w2_": "shared_down_proj",
}


class Experts(Layer):
    """The experts of a mixture with quantized weights, and perhaps quantized inputs, for inference;
    it is called as transformers' experts are, with what a router chose.

    The layer is `torch.ops.blockscale.moe` (docs/python.md): on the CPU or on CUDA, under
    torch.compile(fullgraph=True) and in CUDA graphs. No gradient flows. Where nobody would see the
    operator, `moe` is called.

    `state_dict` has `gate_up_proj` and `down_proj` with the suffixes, dtypes and shapes that
    `dialect` gives stacks (docs/checkpoints.md), scales row by row, `gate_up_proj_bias` and
    `down_proj_bias`; and of what no dialect has, `gate_up_proj_alphas` and `down_proj_alphas`, and
    shared experts as `shared_gate_up_proj` and `shared_down_proj`. `expert_map` is an option as all
    others are, in no state. `.to(dtype)` and its kind cast the biases alone, `.to(device)` moves
    everything.

    Args:
        w13: gates and ups, a ScaledTensor [E, 2 I, H] of any recipe and layout (without SwiGLU
            [E, I, H]); or [2 E, I, H], gates and ups of each expert apart. torch's memory is
            shared, numpy's is copied.
        w2: [E, H, I], likewise.
        activation, gate_first, interleave, limit, alpha, up_shift: what lies between the products,
            as for `moe`.
        activations: what inputs of both products are quantized to: "fp8_1x128", "fp8_1x128_pow2",
            "fp8_1x128_ue8m0", "fp8_row", "mxfp8_e4m3", or "bf16": they are not. None: fp8_1x128
            where both weights are FP8, else bf16.
        biases: a pair of [E, 2 I] (without SwiGLU [E, I]) and [E, H] of f32, f16 or bf16, both of
            one dtype; or None.
        expert_alphas: a pair of float32 [E], or None, which multiply the two products.
        local_expert_offset: id of the first expert, where these are some of a model's.
        expert_map: int32 [ids], on the weights' device: id i is read as expert_map[i], where
            experts lie elsewhere than their numbers say; every other id is dropped.
        shared: a pair (w13, w2), ScaledTensors [S, 2 I', H] and [S, H, I'] in the recipes and
            layouts of `w13` and `w2`, of shared experts: every token goes to each of them with
            weight 1. They have neither alphas nor biases.
        batch_invariant: a token's bits depend neither on how many there are nor on the others. May
            cost time.
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

    expert_map: torch.Tensor | None
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
        local_expert_offset: int = 0,
        expert_map: torch.Tensor | None = None,
        shared: tuple[ScaledTensor, ScaledTensor] | None = None,
        batch_invariant: bool = False,
        dialect: Dialect | str | None = None,
    ) -> None:
        super().__init__()
        columns = "2 I" if activation == "swiglu" else "I"
        self._hold("w13_", w13, "w13", ("E", columns, "H"))
        self._hold("w2_", w2, "w2", ("E", "H", "I"))
        self.num_experts, self.hidden_dim, self.intermediate_dim = w2.shape
        self.activation, self.gate_first = activation, bool(gate_first)
        self.interleave = count(interleave, "interleave")
        self.limit = None if limit is None else number(limit, "limit")
        self.alpha, self.up_shift = number(alpha, "alpha"), number(up_shift, "up_shift")
        self.local_expert_offset = count(local_expert_offset, "local_expert_offset")
        self.batch_invariant = bool(batch_invariant)
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
        self._hold_shared(shared, columns)
        self.register_buffer("expert_map", _as_map(expert_map), persistent=False)
        first, second = _pair(expert_alphas, "expert_alphas")
        self.register_buffer("w13_alphas", self._as_alphas(first, "expert_alphas[0]"))
        self.register_buffer("w2_alphas", self._as_alphas(second, "expert_alphas[1]"))
        inner = self.intermediate_dim * (2 if activation == "swiglu" else 1)
        first, second = _pair(biases, "biases")
        for i, (bias, width) in enumerate(((first, inner), (second, self.hidden_dim))):
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

    @property
    def shared(self) -> tuple[ScaledTensor, ScaledTensor] | None:
        """Both weights of shared experts, views of the layer's memory, where there are some."""
        if "shared_w2_" not in self._forms:
            return None
        return self._held("shared_w13_"), self._held("shared_w2_")

    def extra_repr(self) -> str:
        """Sizes, recipes, layouts, bytes of the weights, activation, inputs and biases; and what
        else was asked for."""
        forms = self._forms["w13_"], self._forms["w2_"]
        recipes, layouts = (
            " and ".join(dict.fromkeys(names))
            for names in ([f.recipe for f in forms], [f.layout for f in forms])
        )
        return (
            f"{self.num_experts} experts, {self.hidden_dim} -> {self.intermediate_dim} -> "
            f"{self.hidden_dim}, {recipes}, {layouts}, {self.nbytes} bytes, "
            f"activation={self.activation}, activations={self.activations}, "
            f"bias={self.gate_up_proj_bias is not None or self.down_proj_bias is not None}"
            f"{self._said_of_options()}"
        )

    def _said_of_options(self) -> str:
        shared = self._forms.get("shared_w2_")
        options = {
            "local_expert_offset": self.local_expert_offset,
            "expert_map": None if self.expert_map is None else f"{len(self.expert_map)} ids",
            "shared": shared and f"{shared.shape[0]} of {shared.shape[2]}",
            "batch_invariant": self.batch_invariant,
        }
        return "".join(f", {name}={said}" for name, said in options.items() if said)

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """What the chosen experts make of each token, times their weights, added up.

        Args:
            hidden_states: [..., H] of f32, f16 or bf16.
            top_k_index: integers [..., top_k], 1 to 16 experts of each token. What names no expert
                that is here is dropped: -1, or, without `local_expert_offset` and `expert_map`, E
                and above.
            top_k_weights: floats [..., top_k].

        Returns:
            [..., H] in the dtype of hidden_states.

        Raises:
            TypeError: another dtype.
            ValueError: shapes that do not go together; hidden_states requires grad while grad mode
                is on; tensors on another device than the layer.
        """
        recipe = plain_recipe(hidden_states, "hidden_states")
        rows = rows_of(hidden_states, self.hidden_dim, "hidden_states")
        ids, weights = _choices(top_k_index, top_k_weights)
        if is_seen(hidden_states):
            y = self._by_operator(rows, ids, weights, recipe)
        else:
            y = self._directly(rows, ids, weights)
        return y.reshape(hidden_states.shape)

    def _directly(
        self, rows: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        buffers, shared = self._buffers, None
        if "shared_w2_" in self._forms:
            shared = self._view("shared_w13_"), self._view("shared_w2_")
        y: torch.Tensor = moe(
            rows,
            self._view("w13_"),
            self._view("w2_"),
            ids,
            weights,
            expert_alphas=(buffers["w13_alphas"], buffers["w2_alphas"]),
            biases=(self._parameters["gate_up_proj_bias"], self._parameters["down_proj_bias"]),
            expert_map=buffers["expert_map"],
            shared=shared,
            **self._options(),
        )
        return y

    def _by_operator(
        self, rows: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, recipe: str
    ) -> torch.Tensor:
        buffers, up, down = self._buffers, self._forms["w13_"], self._forms["w2_"]
        y: torch.Tensor = _moe(
            rows,
            buffers["w13_values"],
            buffers["w2_values"],
            ids,
            weights,
            recipe,
            up.recipe,
            down.recipe,
            w13_scales=buffers["w13_scales"],
            w2_scales=buffers["w2_scales"],
            w13_layout=up.layout,
            w2_layout=down.layout,
            w13_tensor_scale=buffers["w13_tensor_scale"],
            w2_tensor_scale=buffers["w2_tensor_scale"],
            sense=self.sense,
            w13_alphas=buffers["w13_alphas"],
            w2_alphas=buffers["w2_alphas"],
            w13_bias=self._parameters["gate_up_proj_bias"],
            w2_bias=self._parameters["down_proj_bias"],
            expert_map=buffers["expert_map"],
            shared_w13=buffers.get("shared_w13_values"),
            shared_w2=buffers.get("shared_w2_values"),
            shared_w13_scales=buffers.get("shared_w13_scales"),
            shared_w2_scales=buffers.get("shared_w2_scales"),
            shared_w13_tensor_scale=buffers.get("shared_w13_tensor_scale"),
            shared_w2_tensor_scale=buffers.get("shared_w2_tensor_scale"),
            **self._options(),
        )
        return y

    def _options(self) -> dict[str, Any]:
        """Those that the function and the operator have alike."""
        return {
            "activation": self.activation,
            "gate_first": self.gate_first,
            "interleave": self.interleave,
            "limit": self.limit,
            "alpha": self.alpha,
            "up_shift": self.up_shift,
            "activations": self.activations,
            "local_expert_offset": self.local_expert_offset,
            "batch_invariant": self.batch_invariant,
        }

    def _hold_shared(self, shared: Any, columns: str) -> None:
        """Takes the weights of shared experts, which the operator has in the form of the others."""
        if shared is None:
            return
        sizes = (("S", columns, "H"), ("S", "H", "I"))
        for i, weight in enumerate(_pair(shared, "shared")):
            name = ("w13", "w2")[i]
            self._hold(f"shared_{name}_", weight, f"shared[{i}]", sizes[i])
            form, wanted = self._forms[f"shared_{name}_"], self._forms[f"{name}_"]
            if form[:2] != wanted[:2]:
                raise ValueError(
                    f"shared[{i}]: is {form.recipe} in {form.layout}, must be {wanted.recipe} in "
                    f"{wanted.layout} like {name}"
                )
            if TRAITS[weight.recipe].tensor_scale and form.sense != wanted.sense:
                raise ValueError(
                    f"shared[{i}]: has a {form.sense} as tensor scale, {name} a {wanted.sense}"
                )

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
        """Raises what the operator says of the weights, of no token."""
        where = {"device": self._buffers["w2_values"].device, "dtype": torch.float32}
        nothing = torch.empty(0, 1, **where)
        self._by_operator(torch.empty(0, self.hidden_dim, **where), nothing.int(), nothing, "f32")

    def _stored_name(self, weight: str, name: str) -> str:
        parameter = _PARAMETERS[weight]
        if self.dialect == "modelopt":
            return parameter if name == "weight" else f"{parameter}_{name}"
        return parameter + name.removeprefix("weight")

    def _stored(self) -> list[Stored]:
        alphas = [
            Stored(weight + "alphas", parameter + "_alphas", torch.float32, (self.num_experts,))
            for weight, parameter in _PARAMETERS.items()
            if self._buffers.get(weight + "alphas") is not None
        ]
        return super()._stored() + alphas


def _as_map(expert_map: Any) -> torch.Tensor | None:
    if expert_map is None:
        return None
    if not isinstance(expert_map, torch.Tensor) or expert_map.dtype != torch.int32:
        what = getattr(expert_map, "dtype", type(expert_map).__name__)
        raise TypeError(f"expert_map: is {what}, must be a tensor of int32")
    if expert_map.dim() != 1:
        raise ValueError(f"expert_map: shape is {tuple(expert_map.shape)}, must be (ids,)")
    return expert_map.contiguous()


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
