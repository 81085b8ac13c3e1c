"""transformers' experts for `load`: two stacks of matrices in the model, and in a checkpoint two
stacks or three matrices of each expert."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch

from ._native import Activations, TensorInfo, WeightInputs
from ._tensor import TRAITS, ScaledTensor
from ._torch_experts import Experts
from ._torch_stacks import (
    BIASES,
    STACKS,
    gate_of,
    halves_of,
    is_gate_first,
    is_transposed,
    stacks_of,
    unreplaced,
)
from ._torch_stored import Place, Source, copy_into, plain_mismatch

#: Of an expert's matrices: gate, up and down.
_NAMES = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
#: What inputs become where that is said of them; all else becomes something finer.
_ACTIVATIONS = ("fp8_1x128", "fp8_1x128_pow2", "fp8_1x128_ue8m0", "mxfp8_e4m3")


#: Of gates and ups, and of downs.
_Names: TypeAlias = tuple[list[str], list[str]]


def experts_of(places: list[Place], source: Source) -> list[StoredExperts]:
    """The experts modules that a checkpoint has quantized, or expert by expert."""
    found = [StoredExperts(modules, source) for modules in stacks_of(places)]
    return [experts for experts in found if experts.stored]


class StoredExperts:
    """An experts module, and what is stored for its stacks.

    Args:
        modules: of `stacks_of`.
        source: the checkpoint.
    """

    def __init__(self, modules: dict[str, torch.nn.Module], source: Source) -> None:
        self._source = source
        self._modules = list({id(module): module for module in modules.values()}.values())
        self._gates = [gate_of(module) for module in self._modules]
        #: Which of two matrices is a gate.
        self._gate_at = 0 if is_gate_first(self._gates[0]) else 1
        first = self._modules[0]
        up, down = (getattr(first, name) for name in STACKS)
        self._is_transposed = is_transposed(up, down)
        self.experts, *sizes = down.shape
        self.hidden, self.inner = reversed(sizes) if self._is_transposed else sizes
        found = {path: names for path in modules if (names := self._names_in(path))[0]}
        path, self._names = next(iter(found.items()), (next(iter(modules)), ([], [])))
        self._others = list(found.values())[1:]
        self._up, self._down = (
            Place(path + name, first, name, stack)
            for name, stack in zip(STACKS, (up, down), strict=True)
        )
        self._is_stack = self._names[0] == [self._up.name]
        #: Of gates and ups, and of downs: what is stored.
        self._infos = self._infos_of(self._names)
        #: Their names in the checkpoint.
        self.stored = [
            info.name
            for names in (self._names, *self._others)
            for infos in self._infos_of(names)
            for info in infos
        ]
        #: Whether `Experts` take the module's place.
        self.quantized = any(info.quantized for infos in self._infos for info in infos)

    def _names_in(self, path: str) -> _Names:
        """What the weights are called in the checkpoint, if they are stored for this path and no
        plain stacks."""

        def of_each(*matrices: str) -> list[str]:
            return [f"{path}{e}.{m}.weight" for e in range(self.experts) for m in matrices]

        stacks = [path + name for name in STACKS]
        for gate, up, down in _NAMES:
            names = of_each(*((up, gate) if self._gate_at else (gate, up))), of_each(down)
            if any(self._source.info(name) is not None for some in names for name in some):
                return names
        if any(info is not None and info.quantized for info in map(self._source.info, stacks)):
            return [stacks[0]], [stacks[1]]
        return [], []

    def _infos_of(self, names: _Names) -> list[list[TensorInfo]]:
        return [
            [info for name in some if (info := self._source.info(name)) is not None]
            for some in names
        ]

    def takes(self, place: Place) -> bool:
        """Whether `place` is filled here."""
        return place.attribute in STACKS and any(m is place.module for m in self._modules)

    def problems(self) -> list[str]:
        """What does not match."""
        problems = [
            f"{name}: is in the model, and nowhere in the checkpoint"
            for names in self._names
            for name in names
            if self._source.info(name) is None
        ]
        places = (self._up, self._down)
        for place, infos, shapes in zip(places, self._infos, self._shapes(), strict=True):
            for info in infos:
                problems += self._mismatch(info, place, shapes)
            recipes = list(dict.fromkeys(info.recipe.name for info in infos if info.quantized))
            if len(recipes) > 1:
                problems.append(
                    f"{place.name}: its experts are stored as {', '.join(recipes)}, must have one "
                    "recipe"
                )
        for names in self._others:
            problems += self._unlike(names)
        if self.quantized:
            for module, gate in zip(self._modules, self._gates, strict=True):
                problems += unreplaced(module, self._up.name, gate, by_name=not self._is_stack)
        # What follows reads weights that fit.
        return problems or (self._unlike_experts() if self.quantized else [])

    def _unlike(self, names: _Names) -> list[str]:
        """What is another tensor under other names of the stacks."""
        infos, others = (
            [info for some in self._infos_of(each) for info in some]
            for each in (self._names, names)
        )
        if len(infos) == len(others) and all(map(self._source.is_same, infos, others)):
            return []
        return [
            f"{names[0][0]}: is one tensor with {self._names[0][0]} in the model, and of other "
            "experts in the checkpoint"
        ]

    def _shapes(self) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """That may be stored for gates and ups, and for downs."""
        up, down = (self.inner, self.hidden), (self.hidden, self.inner)
        if not self._is_stack:
            return [up], [down]
        whole, apart = (self.experts, 2 * self.inner, self.hidden), (2 * self.experts, *up)
        is_turned = any(gate is not None and gate["interleave"] for gate in self._gates)
        return [whole] if is_turned else [whole, apart], [(self.experts, *down)]

    def _mismatch(self, info: TensorInfo, place: Place, shapes: list[tuple[int, ...]]) -> list[str]:
        if tuple(info.shape) not in shapes and not info.form:
            return [f"{info.name}: shape is {tuple(info.shape)}, in the model {shapes[0]}"]
        if info.quantized:
            return self._source.problems(info)
        if self.quantized:
            return [f"{info.name}: is plain, and quantized are others of these experts"]
        return plain_mismatch(place, info)

    def _unlike_experts(self) -> list[str]:
        """Why the weights are no operands of one `moe`."""
        inputs = sorted({self._activations(i) for infos in self._infos for i in infos})
        if len(inputs) > 1:
            return [f"{self._up.name}: inputs are {' and '.join(inputs)}, must be one of them"]
        ratios = self._up_over_gate()
        if ratios is None:
            return []
        if not all(map(self._scales_ups, self._modules, self._gates)):
            problem = "which goes with neither limits nor biases"
        elif bool((ratios < torch.finfo(torch.float32).tiny).any() | ratios.isinf().any()):
            problem = "whose quotient no float32 holds"
        else:
            return []
        return [
            f"{self._up.name}: gates and ups have different tensor scales, {problem}; convert the "
            "checkpoint with share_tensor_scales"
        ]

    def _scales_ups(self, module: torch.nn.Module, gate: dict[str, Any] | None) -> bool:
        """Whether a factor of ups is one of the result, up to downs' bias."""
        has_bias = getattr(module, BIASES[0], None) is not None
        return not has_bias and gate is not None and gate["limit"] is None and not gate["up_shift"]

    def _activations(self, info: TensorInfo) -> str:
        return activations_of(self._source.inputs.get(info.name), info.recipe.name)

    def _up_over_gate(self) -> torch.Tensor | None:
        """Of each expert what ups are multiplied by over what gates are; None where that is 1."""
        up, _ = self._infos
        if self._is_stack or not TRAITS[up[0].recipe].tensor_scale:
            return None
        factors = []
        for info in up:
            weight = self._source.checkpoint[info.name]
            factors.append(float(weight.tensor_scale[0]))
        pairs = torch.tensor(factors, dtype=torch.float32, device="cpu").reshape(-1, 2)
        ratios = pairs[:, 1 - self._gate_at] / pairs[:, self._gate_at]
        if bool((ratios == 1).all()):
            return None
        return 1 / ratios if weight.sense.name == "divisor" else ratios

    def layers(self, device: torch.device | None) -> list[tuple[torch.nn.Module, Experts]]:
        """The modules, and for each an `Experts` of what is stored, without biases."""
        up, down = self._infos
        where = self._up.device(device), self._down.device(device)
        if self._is_stack:
            w13, w2 = self._source.weight(up[0], where[0]), self._source.weight(down[0], where[1])
            ratios = None
        else:
            w13 = paired(self._stacked(up, where[0]), self._gate_at)
            w2, ratios = self._stacked(down, where[1]), self._up_over_gate()
        dialects = {self._source.dialect(weight) for weight in (w13, w2)}
        dialect = dialects.pop() if len(dialects) == 1 else None
        layers = []
        for module, gate in zip(self._modules, self._gates, strict=True):
            assert gate is not None
            layer = Experts(
                w13,
                w2,
                **gate,
                activations=self._activations(up[0]),
                expert_alphas=None if ratios is None else (None, ratios.to(where[1])),
                dialect=dialect,
            )
            layers.append((module, layer.train(module.training)))
        return layers

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
        """The modules' stacks from plain matrices."""
        for place, infos in zip((self._up, self._down), self._infos, strict=True):
            old = place.tensor
            stack = torch.empty(old.shape, dtype=old.dtype, device=place.device(device))
            matrices = (stack.mT if self._is_transposed else stack,)  # [E, out, in]
            if place is self._up:
                matrices = halves_of(self._modules[0], matrices[0], self._gates[0])
            for i, info in enumerate(infos):
                expert, half = divmod(i, len(matrices))
                matrices[half][expert].copy_(self._source.plain(info, stack.device))
            filled = torch.nn.Parameter(stack, requires_grad=old.requires_grad)
            for module in self._modules:
                module._parameters[place.attribute] = filled


def activations_of(inputs: WeightInputs | None, recipe: str) -> str:
    """What inputs of experts become: what is said of a weight's inputs, or finer."""
    if inputs is None or inputs.activations == Activations.none:
        return "bf16"
    name = TRAITS[inputs.recipe].name
    if recipe.startswith("fp8_"):
        return name if name in _ACTIVATIONS else "fp8_1x128"
    return name if name in _ACTIVATIONS or name == "fp8_row" else "bf16"


def paired(weight: ScaledTensor, gate_at: int) -> ScaledTensor:
    """Gates and ups in turns, [2 E, I, H], as [E, 2 I, H], a view of the same memory, with the
    tensor scales of gates; or as they are, where no block of scales divides I."""
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
        factors = factors[gate_at::2].contiguous()  # whoever pairs has the others
    return ScaledTensor(values, scales, weight.recipe, tensor_scale=factors, sense=weight.sense)
