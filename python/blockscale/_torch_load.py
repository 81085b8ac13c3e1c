"""`blockscale.nn.load`: a model from a checkpoint, with its linear layers and experts quantized as
they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from . import _native
from ._checkpoint import Checkpoint, Path, _globs
from ._native import Activations, TensorInfo
from ._tensor import ScaledTensor
from ._torch_layer import PLAIN, Layer
from ._torch_linear import Linear
from ._torch_load_experts import experts_of
from ._torch_stored import Place, Source, extras_of, plain_mismatch


def places_of(model: torch.nn.Module) -> list[Place]:
    """All of them, those of modules and tensors that stand in several places too."""
    return [
        Place(f"{path}.{name}" if path else name, module, name, tensor)
        for path, module in model.named_modules(remove_duplicate=False)
        for kind in (module._parameters, module._buffers)
        for name, tensor in kind.items()
        if tensor is not None
    ]


def tied(places: list[Place]) -> list[list[Place]]:
    """Those of one tensor together."""
    groups: dict[int, list[Place]] = {}
    for place in places:
        groups.setdefault(id(place.tensor), []).append(place)
    return list(groups.values())


#: Each module that is replaced, by its id, with what takes its place.
Layers: TypeAlias = dict[int, tuple[torch.nn.Module, Layer]]


def replaced(model: torch.nn.Module, layers: Layers) -> torch.nn.Module:
    """`model` with layers in their places; one of them, where that is the whole model."""
    for module in list(model.modules()):
        for name, child in module._modules.items():
            if id(child) in layers:
                module._modules[name] = layers[id(child)][1]
    return layers[id(model)][1] if id(model) in layers else model


def load(
    model: torch.nn.Module,
    checkpoint: Checkpoint | Path,
    device: torch.device | str | None = None,
    *,
    activations: str | None = None,
    prefix: str = "",
    ignore: Sequence[str] = (),
) -> torch.nn.Module:
    """Fill a model from a checkpoint of any dialect; each torch.nn.Linear whose weight is stored
    quantized becomes a `Linear`, and each module with stacks of experts (`gate_up_proj` and
    `down_proj`, transformers' classes) whose experts are, as stacks or by name, an `Experts`.

    Quantized weights are taken as they are stored, byte by byte. Other tensors take the dtype that
    they have in the model; plain experts by name go into its stacks. What is tied in the model (one
    tensor under several names) is stored under one of these names at least, and stays tied. A
    tensor at a time is in host memory beside the result. Nothing in the model changes before all
    names, shapes and dtypes were compared.

    Args:
        model: its parameters may be on the meta device.
        checkpoint: a `Checkpoint`, or the path of a file or a folder.
        device: where everything goes; default: where each tensor is in the model, of those on the
            meta device the CPU.
        activations: None: inputs are quantized as the checkpoint's configuration says
            (`Checkpoint.inputs`); "none": they are not.
        prefix: of the checkpoint's names, before those of the model ("model." for what AutoModel
            makes of a causal language model).
        ignore: patterns, as `include` of `convert`, of names in the checkpoint that the model has
            no place for. One that matches nothing is an error.

    Returns:
        The model, or the layer in its place where it is one. Parameters have requires_grad
        as before, but biases of layers that were replaced, which need none; hooks of these layers
        are gone.

    Raises:
        TypeError: `model` is no torch.nn.Module.
        FileNotFoundError: nothing at `checkpoint`.
        ValueError: what does not match, all of it by name: parameters and buffers that nothing is
            stored for, tensors that have no place, shapes, integers for floats, weights in forms
            that no `ScaledTensor` has, inputs that no recipe describes, experts that no `Experts`
            computes; buffers on the meta device that no checkpoint has.

    >>> import torch, blockscale.nn
    >>> layers = torch.nn.ModuleDict({"q_proj": torch.nn.Linear(128, 64)})
    >>> layers["o_proj"] = torch.nn.Linear(64, 128, bias=False)
    >>> model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([layers])})
    >>> model = blockscale.nn.load(model, "model-nvfp4", ignore=["position_ids"])
    >>> model["layers"][0]["o_proj"]
    Linear(64 -> 128, nvfp4, row_major, 4612 bytes, activations=None, bias=False)
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model: is a {type(model).__name__}, must be a torch.nn.Module")
    if activations not in (None, "none"):
        raise ValueError(f'activations: is {activations!r}, must be None or "none"')
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    loader = _Loader(model, checkpoint, activations, prefix)
    loader.check(_native.matching_weights(list(checkpoint), _globs(ignore, "ignore"), "ignore"))
    return loader.fill(None if device is None else torch.device(device))


class _Loader:
    def __init__(
        self, model: torch.nn.Module, checkpoint: Checkpoint, activations: str | None, prefix: str
    ) -> None:
        self._model, self._checkpoint = model, checkpoint
        self._source = Source(checkpoint, prefix, with_inputs=activations is None)
        places = places_of(model)
        self._experts = experts_of(places, self._source)
        self._groups = tied(
            [place for place in places if not any(e.takes(place) for e in self._experts)]
        )

    def check(self, ignored: list[str]) -> None:
        """Raises ValueError naming all that does not match."""
        problems: list[str] = []
        taken = {name for experts in self._experts for name in experts.stored}
        for experts in self._experts:
            problems += experts.problems()
        for group in self._groups:
            for place in group:
                if (info := self._info(place)) is not None:
                    taken.add(info.name)
                    problems += self._mismatch(place, info)
            weights, others = self._divided(group)
            problems += [problem for place in weights for problem in _unreplaced(place)]
            problems += self._unlike(others)
        problems += [
            f"{name}: is in the checkpoint, and nowhere in the model (ignore may name it)"
            for name in self._checkpoint
            if name not in taken and name not in ignored
        ]
        if problems:
            raise ValueError(f"{self._checkpoint!r} does not match:\n" + "\n".join(problems))

    def _info(self, place: Place) -> TensorInfo | None:
        """Of what is stored for it under its own name."""
        return self._source.info(place.name)

    def _divided(self, group: list[Place]) -> tuple[list[Place], list[Place]]:
        """Of one tensor's places those that a quantized weight takes, and the others."""
        infos = [self._info(place) for place in group]
        if not any(info is not None and info.quantized for info in infos):
            return [], group
        takes = [
            place.is_weight and (info is None or info.quantized)
            for place, info in zip(group, infos, strict=True)
        ]
        places = list(zip(group, takes, strict=True))
        return [place for place, take in places if take], [p for p, take in places if not take]

    def _mismatch(self, place: Place, info: TensorInfo) -> list[str]:
        """Why what is stored for `place` cannot go there."""
        shapes = tuple(info.shape), tuple(place.tensor.shape)
        if shapes[0] != shapes[1]:
            return [f"{info.name}: shape is {shapes[0]}, in the model {shapes[1]}"]
        if not info.quantized:
            return plain_mismatch(place, info)
        if not place.is_weight:
            return [
                f"{info.name}: is {info.recipe.name}, and in the model the {place.attribute} of a "
                f"{type(place.module).__name__}, not the weight of a torch.nn.Linear"
            ]
        return self._source.problems(info)

    def _unlike(self, group: list[Place]) -> list[str]:
        """Whether the places of one plain tensor find one in the checkpoint."""
        infos = [info for place in group if (info := self._info(place)) is not None]
        if any(info.quantized for info in infos):
            return []  # a mismatch already
        if group and not infos:
            return _unfilled(group[0])
        return [
            f"{info.name}: is one tensor with {infos[0].name} in the model, and another in the "
            "checkpoint"
            for info in infos[1:]
            if not self._source.is_same(infos[0], info)
        ]

    def fill(self, device: torch.device | None) -> torch.nn.Module:
        """The model, filled; it changes once all quantized layers are there."""
        layers: Layers = {}
        plain: list[tuple[TensorInfo, list[Place]]] = []
        for group in self._groups:
            weights, others = self._divided(group)
            stored = next((info for p in weights if (info := self._info(p)) is not None), None)
            found: dict[tuple[str, torch.device], ScaledTensor] = {}  # what is tied is there once
            for place in weights:
                if id(place.module) in layers:
                    continue  # a module that stands in several places
                info, target = self._info(place) or stored, place.device(device)
                if (info.name, target) not in found:
                    found[info.name, target] = self._source.weight(info, target)
                layer = self._layer(info, found[info.name, target])
                layers[id(place.module)] = place.module, layer.train(place.module.training)
            info = next(filter(None, map(self._info, others)), None)
            if info is not None:
                plain.append((info, others))
        for experts in self._experts:
            if experts.quantized:
                layers |= {id(m): (m, layer) for m, layer in experts.layers(device)}
        for experts in self._experts:
            if not experts.quantized:
                experts.fill(device)
        for info, group in plain:
            tensor = self._plain(info, group[0].tensor, group[0].device(device))
            for place in group:
                place.put(tensor)
        for module, layer in layers.values():
            layer.take_biases(module)
        model = replaced(self._model, layers)
        return model if device is None else model.to(device)

    def _layer(self, info: TensorInfo, weight: ScaledTensor) -> Linear:
        """A layer of a weight, without a bias."""
        inputs = self._source.inputs.get(info.name)
        quantized = inputs is not None and inputs.activations != Activations.none
        return Linear(
            weight,
            activations=inputs.recipe if quantized else None,
            input_scale=inputs.scales[0] if quantized and inputs.scales else None,
            dialect=self._source.dialect(weight),
        )

    def _plain(self, info: TensorInfo, old: torch.Tensor, device: torch.device) -> torch.Tensor:
        """What is stored, in the dtype of `old`, and a parameter where that is one."""
        tensor = self._source.plain(info, device).to(old.dtype)
        if not isinstance(old, torch.nn.Parameter):
            return tensor
        return torch.nn.Parameter(tensor, requires_grad=old.requires_grad)


def _unfilled(place: Place) -> list[str]:
    """Why it is an error that nothing is stored for `place`."""
    if place.is_stored:
        return [f"{place.name}: is in the model, and nowhere in the checkpoint"]
    if not place.tensor.is_meta:
        return []
    return [
        f"{place.name}: is a buffer on the meta device that no state_dict has; make the model with "
        "such buffers elsewhere (accelerate's init_empty_weights does)"
    ]


def _unreplaced(place: Place) -> list[str]:
    """Why no `Linear` can stand in for the layer of a weight."""
    if extras := extras_of(place.module, "weight", "bias"):
        return [f"{place.name}: stands beside {extras}, which would be lost"]
    bias = place.module.bias
    if bias is None or bias.dtype in PLAIN:
        return []
    return [f"{place.name}: the bias is {bias.dtype}, must be float32, float16 or bfloat16"]
