"""transformers' experts for `load`: two stacks of matrices in the model, and in a checkpoint two
stacks or three matrices of each expert."""

from __future__ import annotations

import inspect
import math
from itertools import product
from typing import Any

import numpy as np
import torch

from ._native import Activations, TensorInfo
from ._tensor import TRAITS, ScaledTensor
from ._torch_experts import Experts
from ._torch_layer import PLAIN
from ._torch_stored import Place, Source, copy_into, extras_of, plain_mismatch

_STACKS = ("gate_up_proj", "down_proj")
_BIASES = ("gate_up_proj_bias", "down_proj_bias")
#: Of an expert's matrices: gate, up and down.
_NAMES = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
#: What `moe` quantizes inputs to.
_ACTIVATIONS = ("fp8_1x128", "fp8_1x128_pow2", "fp8_1x128_ue8m0", "mxfp8_e4m3")


def experts_of(places: list[Place], source: Source) -> list[StoredExperts]:
    """The experts modules that a checkpoint has quantized, or expert by expert."""
    found: dict[int, StoredExperts] = {}
    for place in places:
        if place.attribute != _STACKS[0] or not _is_experts(place.module):
            continue
        path = place.name.removesuffix(_STACKS[0])
        stored = StoredExperts(path, place.module, source)
        if stored.stored and id(place.module) not in found:
            found[id(place.module)] = stored
    return list(found.values())


def _is_experts(module: torch.nn.Module) -> bool:
    up, down = (module._parameters.get(name) for name in _STACKS)
    if up is None or down is None or up.dim() != 3 or down.dim() != 3:
        return False
    return _is_transposed(up, down) or up.shape == (len(down), 2 * down.shape[2], down.shape[1])


def _is_transposed(up: torch.Tensor, down: torch.Tensor) -> bool:
    """Whether the matrices are [in, out], as gpt-oss has them: a product without transposing."""
    return bool(up.shape == (len(down), down.shape[2], 2 * down.shape[1]))


class StoredExperts:
    """An experts module, and what is stored for its stacks.

    Args:
        path: of the module in the model, with a dot behind it where it has one.
        module: that `_is_experts`.
        source: the checkpoint.
    """

    def __init__(self, path: str, module: torch.nn.Module, source: Source) -> None:
        self.path, self.module, self._source = path, module, source
        stacks = [path + name for name in _STACKS]
        self._up, self._down = (
            Place(path + name, module, name, getattr(module, name)) for name in _STACKS
        )
        self._is_transposed = _is_transposed(self._up.tensor, self._down.tensor)
        self.experts, *sizes = self._down.tensor.shape
        self.hidden, self.inner = reversed(sizes) if self._is_transposed else sizes
        names: tuple[list[str], list[str]] = ([], [])
        for gate, up, down in _NAMES:
            of_each = self._of_each(gate, up), self._of_each(down)
            if any(source.info(name) is not None for some in of_each for name in some):
                names = of_each
        self._is_stack = not names[0]
        if self._is_stack and any(i is not None and i.quantized for i in map(source.info, stacks)):
            names = [self._up.name], [self._down.name]
        self.names = names
        #: Of gates and ups, and of downs: what is stored.
        self._infos = [
            [info for name in some if (info := source.info(name)) is not None] for some in names
        ]
        #: Their names in the checkpoint.
        self.stored = [info.name for infos in self._infos for info in infos]
        #: Whether `Experts` take the module's place.
        self.quantized = any(info.quantized for infos in self._infos for info in infos)
        self._gate = gate_of(module) if self.quantized else None

    def _of_each(self, *matrices: str) -> list[str]:
        return [f"{self.path}{e}.{m}.weight" for e in range(self.experts) for m in matrices]

    def takes(self, place: Place) -> bool:
        """Whether `place` is filled here."""
        return place.module is self.module and place.attribute in _STACKS

    def problems(self) -> list[str]:
        """What does not match."""
        problems = [
            f"{name}: is in the model, and nowhere in the checkpoint"
            for names in self.names
            for name in names
            if self._source.info(name) is None
        ]
        places = (self._up, self._down)
        for place, infos, shape in zip(places, self._infos, self._shapes(), strict=True):
            for info in infos:
                problems += self._mismatch(info, place, shape)
            recipes = list(dict.fromkeys(info.recipe.name for info in infos if info.quantized))
            if len(recipes) > 1:
                problems.append(
                    f"{place.name}: its experts are stored as {', '.join(recipes)}, must have one "
                    "recipe"
                )
        if self.quantized:
            problems += self._unreplaced()
        # What follows reads weights that fit.
        return problems or (self._unlike_experts() if self.quantized else [])

    def _shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of what is stored for gates and ups, and for downs."""
        up, down = (self.inner, self.hidden), (self.hidden, self.inner)
        if self._is_stack:
            return (self.experts, 2 * self.inner, self.hidden), (self.experts, *down)
        return up, down

    def _mismatch(self, info: TensorInfo, place: Place, shape: tuple[int, ...]) -> list[str]:
        if tuple(info.shape) != shape and not info.form:
            return [f"{info.name}: shape is {tuple(info.shape)}, in the model {shape}"]
        if info.quantized:
            return self._source.problems(info)
        if self.quantized:
            return [f"{info.name}: is plain, and quantized are others of these experts"]
        return plain_mismatch(place, info)

    def _unreplaced(self) -> list[str]:
        """Why no `Experts` can stand in for the module."""
        module, problems = self.module, []
        if extras := extras_of(module, *_STACKS, *_BIASES, "act_fn"):
            problems.append(f"{self._up.name}: stands beside {extras}, which would be lost")
        arguments = list(inspect.signature(module.forward).parameters)
        if len(arguments) != 3:
            problems.append(
                f"{self._up.name}: {type(module).__name__}.forward takes ({', '.join(arguments)}), "
                "must take hidden states, experts and weights of each token"
            )
        if self._gate is None:
            problems.append(
                f"{self._up.name}: what {type(module).__name__} has between its products is no "
                "SwiGLU that moe has"
            )
        elif self._gate["interleave"] and not self._is_stack:
            problems.append(
                f"{self._up.name}: has gates and ups in turns in the model, and the checkpoint has "
                "them by name"
            )
        dtypes = {bias.dtype for bias in self._biases()}
        if len(dtypes) > 1 or not dtypes <= PLAIN.keys():
            said = ", ".join(sorted(map(str, dtypes)))
            problems.append(
                f"{self._up.name}: the biases are {said}, must be float32, float16 or bfloat16, "
                "both one of them"
            )
        return problems

    def _biases(self) -> list[torch.Tensor]:
        biases = (getattr(self.module, name, None) for name in _BIASES)
        return [bias for bias in biases if bias is not None]

    def _unlike_experts(self) -> list[str]:
        """Why the weights are no operands of one `moe`."""
        inputs = sorted({self._activations(i) for infos in self._infos for i in infos})
        if len(inputs) > 1:
            return [f"{self._up.name}: inputs are {' and '.join(inputs)}, must be one of them"]
        ratios = self._up_over_gate()
        if ratios is None or self._scales_ups():
            return []
        return [
            f"{self._up.name}: gates and ups have different tensor scales, which goes with neither "
            "limits nor biases; convert the checkpoint with share_tensor_scales"
        ]

    def _scales_ups(self) -> bool:
        """Whether a factor of ups is one of the result, up to downs' bias."""
        has_bias = getattr(self.module, _BIASES[0], None) is not None
        gate = self._gate
        return not has_bias and gate is not None and gate["limit"] is None and not gate["up_shift"]

    def _activations(self, info: TensorInfo) -> str:
        """What inputs of a weight become: what the configuration says, or finer."""
        inputs = self._source.inputs.get(info.name)
        if inputs is None or inputs.activations == Activations.none:
            return "bf16"
        name = TRAITS[inputs.recipe].name
        if name in _ACTIVATIONS:
            return name
        return "fp8_1x128" if info.recipe.name.startswith("fp8_") else "bf16"

    def _up_over_gate(self) -> torch.Tensor | None:
        """Of each expert what ups are multiplied by over what gates are; None where that is 1."""
        up, _ = self._infos
        if self._is_stack or not TRAITS[up[0].recipe].tensor_scale:
            return None
        weights = [self._source.checkpoint[info.name] for info in up]
        factors = torch.tensor([float(weight.tensor_scale[0]) for weight in weights])
        ratios = factors[1::2] / factors[0::2]
        if bool((ratios == 1).all()):
            return None
        return 1 / ratios if weights[0].sense.name == "divisor" else ratios

    def layer(self, device: torch.device | None) -> Experts:
        """`Experts` of what is stored, without biases."""
        up, down = self._infos
        where = self._up.device(device), self._down.device(device)
        assert self._gate is not None
        if self._is_stack:
            w13, w2 = self._source.weight(up[0], where[0]), self._source.weight(down[0], where[1])
            ratios = None
        else:
            w13, w2 = _paired(self._stacked(up, where[0])), self._stacked(down, where[1])
            ratios = self._up_over_gate()
        dialects = {self._source.dialect(weight.recipe) for weight in (w13, w2)}
        return Experts(
            w13,
            w2,
            **self._gate,
            activations=self._activations(up[0]),
            expert_alphas=None if ratios is None else (None, ratios.to(where[1])),
            dialect=dialects.pop() if len(dialects) == 1 else None,
        ).train(self.module.training)

    def _stacked(self, infos: list[TensorInfo], device: torch.device) -> ScaledTensor:
        """Matrices of one shape as a batch, one behind the other in memory."""
        parts: dict[str, torch.Tensor] = {}
        for i, info in enumerate(infos):
            matrix = self._source.checkpoint[info.name].relayout("row_major")
            for part in ("values", "scales", "tensor_scale"):
                stored = getattr(matrix, part)
                if stored is None:
                    continue
                if i == 0:
                    dtype = torch.float32 if stored.dtype == np.float32 else torch.uint8
                    shape = (len(infos), *stored.shape)
                    parts[part] = torch.empty(shape, dtype=dtype, device=device)
                copy_into(parts[part][i], stored)
        factors = parts.pop("tensor_scale", None)
        return ScaledTensor(
            **parts,
            recipe=matrix.recipe,
            tensor_scale=None if factors is None else factors.flatten(),
            sense=matrix.sense,
        )

    def fill(self, device: torch.device | None) -> None:
        """The module's stacks from plain matrices."""
        is_concatenated = getattr(self.module, "is_concatenated", True)
        for place, infos in zip((self._up, self._down), self._infos, strict=True):
            old = place.tensor
            stack = torch.empty(old.shape, dtype=old.dtype, device=place.device(device))
            matrices = stack.mT if self._is_transposed else stack  # [E, out, in]
            if place is self._up:  # [E, 2, I, H]
                sizes = (2, -1) if is_concatenated else (-1, 2)
                matrices = matrices.unflatten(1, sizes)
                matrices = matrices if is_concatenated else matrices.transpose(1, 2)
            for i, info in enumerate(infos):
                each = len(infos) // self.experts
                one = matrices[i // each]
                (one if each == 1 else one[i % each]).copy_(self._source.plain(info, stack.device))
            place.put(torch.nn.Parameter(stack, requires_grad=old.requires_grad))


def _paired(weight: ScaledTensor) -> ScaledTensor:
    """Gates and ups in turns, [2 E, I, H], as [E, 2 I, H], a view of the same memory; or as they
    are, where no block of scales divides I."""
    traits, (matrices, inner, _) = TRAITS[weight.recipe], weight.shape
    values, scales, factors = weight.values, weight.scales, weight.tensor_scale
    values = values.reshape(matrices // 2, 2 * inner, -1)
    if traits.block_rows:
        if inner % traits.block_rows:
            return weight
        scales = scales.reshape(matrices // 2, -1, scales.shape[-1])
    elif bool((scales[0::2] == scales[1::2]).all()):
        scales = scales[0::2].contiguous()
    else:
        return weight
    if factors is not None:
        factors = factors[0::2].contiguous()  # `_up_over_gate` has the others
    return ScaledTensor(values, scales, weight.recipe, tensor_scale=factors, sense=weight.sense)


def gate_of(module: torch.nn.Module) -> dict[str, Any] | None:
    """The options of `Experts` that do what an experts module does between its products; None
    where none do. It is tried, since only its code says it: with the clamp and the slope that it
    has as attributes."""
    limits = [None, *_numbers(module, "limit", "swiglu_limit")]
    alphas = [1.0, *_numbers(module, "alpha", "swiglu_alpha")]
    largest = 4 * max([8.0, *limits[1:]])
    x = largest * torch.linspace(-1, 1, 96, dtype=torch.float32, device="cpu") ** 3
    tried = torch.cartesian_prod(x, x).T.reshape(1, -1)
    with torch.no_grad():
        if hasattr(module, "_apply_gate"):
            want = module._apply_gate(tried)
        elif hasattr(module, "act_fn"):
            gate, up = tried.chunk(2, dim=-1)
            want = module.act_fn(gate) * up
        else:
            return None
    for limit, alpha, shift, interleave in product(limits, alphas, (0.0, 1.0), (0, 1)):
        gate, up = (tried[:, ::2], tried[:, 1::2]) if interleave else tried.chunk(2, dim=-1)
        if limit is not None:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        ours = gate * torch.sigmoid(alpha * gate) * (up + shift)
        if want.shape == ours.shape and torch.allclose(ours, want.float(), rtol=1e-4, atol=1e-5):
            return {"interleave": interleave, "limit": limit, "alpha": alpha, "up_shift": shift}
    return None


def _numbers(module: torch.nn.Module, *names: str) -> list[float]:
    """Those of its attributes that are finite numbers."""
    given = (getattr(module, name, None) for name in names)
    return [x for x in given if isinstance(x, (int, float)) and math.isfinite(x)]
