"""transformers' experts for `quantize`: stacks in memory, planned by the names that each expert's
matrices have in a checkpoint."""

from __future__ import annotations

from collections.abc import Callable

import torch

from . import _native
from ._native import Dialect
from ._tensor import ScaledTensor
from ._torch_experts import Experts
from ._torch_load_experts import activations_of, paired
from ._torch_stacks import (
    STACKS,
    gate_of,
    halves_of,
    is_gate_first,
    is_transposed,
    stacks_of,
    unreplaced,
)
from ._torch_stored import Place


def experts_in(places: list[Place]) -> list[PlainExperts]:
    """The experts modules whose matrices are [out, in], as checkpoints have them by name."""
    groups = stacks_of(places)
    return [PlainExperts(modules) for modules in groups if not _is_transposed(modules)]


def _is_transposed(modules: dict[str, torch.nn.Module]) -> bool:
    return is_transposed(*(getattr(next(iter(modules.values())), name) for name in STACKS))


class PlainExperts:
    """Experts modules with one pair of stacks, and each expert's matrices as views of these.

    Args:
        modules: of `stacks_of`.
    """

    def __init__(self, modules: dict[str, torch.nn.Module]) -> None:
        self._modules = list({id(module): module for module in modules.values()}.values())
        self._gates = [gate_of(module) for module in self._modules]
        path, first = next(iter(modules.items()))
        up, down = (getattr(first, name) for name in STACKS)
        halves = halves_of(first, up.detach(), self._gates[0])
        #: Which of two matrices is a gate.
        self._gate_at = 0 if is_gate_first(self._gates[0]) else 1
        names = ("up_proj", "gate_proj") if self._gate_at else ("gate_proj", "up_proj")
        self._name = path + STACKS[0]
        #: Each matrix, called as in a checkpoint: of gates and ups, and of downs.
        self._places = tuple(
            [
                Place(f"{path}{e}.{part}.weight", first, stack, matrices[e])
                for e in range(len(down))
                for part, stack, matrices in parts
            ]
            for parts in (
                tuple((name, STACKS[0], half) for name, half in zip(names, halves, strict=True)),
                (("down_proj", STACKS[1], down.detach()),),
            )
        )

    @property
    def places(self) -> list[Place]:
        """All matrices."""
        return [place for places in self._places for place in places]

    def takes(self, place: Place) -> bool:
        """Whether `place` is that of a stack."""
        return place.attribute in STACKS and any(m is place.module for m in self._modules)

    def are_chosen(self, planned: dict[str, _native.PlannedWeight]) -> bool:
        """Whether `Experts` shall take the modules' places.

        Raises:
            ValueError: of some matrices only, or they cannot.
        """
        weights = [planned[place.name] for place in self.places if place.name in planned]
        kept = [weight for weight in weights if not weight.converted]
        if len(kept) == len(weights):
            return False
        problems = [
            f"{weight.name} stays ({weight.reason}), and others of these experts are quantized"
            for weight in kept
        ]
        for module, gate in zip(self._modules, self._gates, strict=True):
            problems += unreplaced(module, self._name, gate, by_name=True)
        inputs = sorted({activations_of(w.inputs, w.recipe.name) for w in weights if w.converted})
        if len(inputs) > 1:
            problems.append(f"{self._name}: inputs are {' and '.join(inputs)}, must be one of them")
        if problems:
            raise ValueError("model: " + "\n".join([*problems, "(exclude may name these experts)"]))
        return True

    def layers(
        self,
        planned: dict[str, _native.PlannedWeight],
        quantized: Callable[[Place], ScaledTensor],
        dialect: Dialect,
    ) -> list[tuple[torch.nn.Module, Experts]]:
        """The modules, and for each an `Experts` in its place."""
        up, down = (_stacked(list(map(quantized, places))) for places in self._places)
        weight = planned[self._places[0][0].name]
        layers = []
        for module, gate in zip(self._modules, self._gates, strict=True):
            assert gate is not None
            layer = Experts(
                paired(up, self._gate_at),
                down,
                **gate,
                activations=activations_of(weight.inputs, weight.recipe.name),
                dialect=dialect,
            )
            layer.take_biases(module)
            layers.append((module, layer.train(module.training)))
        return layers


def _stacked(matrices: list[ScaledTensor]) -> ScaledTensor:
    """Matrices of one shape as a batch."""
    first = matrices[0]
    values, scales = (
        torch.stack([getattr(matrix, part).view(torch.uint8) for matrix in matrices])
        for part in ("values", "scales")
    )
    factor = first.tensor_scale
    return ScaledTensor(
        values,
        scales.view(first.scales.dtype),
        first.recipe,
        tensor_scale=None if factor is None else torch.cat([m.tensor_scale for m in matrices]),
        sense=first.sense,
    )
