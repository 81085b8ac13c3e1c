"""`blockscale.nn.quantize`: the linear layers and experts of a model in memory, chosen as by
`convert`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Any, TypeAlias

import numpy as np
import torch

from . import _native
from ._calibrator import Calibrator
from ._checkpoint import Path, choice_options
from ._native import (
    Activations,
    Dialect,
    ExpertsLayout,
    MxScaleMode,
    Recipe,
    ScaleChoice,
    TensorScaleSense,
)
from ._ops import quantize as quantize_tensor
from ._tensor import ScaledTensor, traits_of
from ._torch_layer import PLAIN, Layer
from ._torch_linear import Linear
from ._torch_load import Layers, places_of, replaced, tied
from ._torch_quantize_experts import PlainExperts, experts_in
from ._torch_stored import DTYPES, Place, extras_of

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def quantize(
    model: torch.nn.Module,
    recipe: Recipe | str,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    activations: Activations | str | None = None,
    activation_scales: Calibrator | Path | None = None,
    calibration: Calibrator | Path | None = None,
    scales: ScaleChoice | str = "amax",
    scale_mode: MxScaleMode | str | None = None,
    amax_floor: float = 0.0,
    dialect: Dialect | str | None = None,
) -> torch.nn.Module:
    """Quantize the linear layers and experts of a model in memory: each torch.nn.Linear that
    `convert` would choose becomes a `Linear`, and each module with stacks of experts
    (`gate_up_proj` and `down_proj`, transformers' classes) an `Experts`, with the bytes that
    `convert` would store and inputs as it would say.

    Args:
        model: a torch module; where it has a `config` with `to_dict` (transformers), that says what
            config.json says to `convert`. A `Linear` or `Experts` in it stays, so that a second
            call may have another recipe for what the first one left. Both the old and the new
            weights are in memory until the end.
        recipe: that a dialect writes.
        include, exclude, activations, scales, scale_mode, amax_floor, dialect: as for `convert`.
            Experts go by the names that their matrices have in checkpoints,
            `experts.3.gate_proj.weight` with `up_proj` and `down_proj`. Stacks of matrices
            [in, out] (gpt-oss) stay as they are, as by `convert`, and so do those of other modules.
        activation_scales, calibration: as for `convert`, a file or the `Calibrator` itself.

    Returns:
        The model, or the layer in its place where it is one. Hooks of layers that were
        replaced are gone. Nothing changes where an error is raised.

    Raises:
        TypeError: `model` is no torch.nn.Module.
        ValueError: as `convert`; also a plain recipe, weights that hold NaN or infinity, are on
            the meta device or in 8 bits, layers with more than a weight and a bias, experts that
            no `Experts` computes or that are chosen in part, and patterns of `include` that reach
            what is neither a weight of a torch.nn.Linear nor an expert's.

    >>> import torch, blockscale.nn
    >>> model = torch.nn.ModuleDict({"q_proj": torch.nn.Linear(128, 64)})
    >>> model["lm_head"] = torch.nn.Linear(64, 1000)
    >>> blockscale.nn.quantize(model, "fp8_row")
    ModuleDict(
      (q_proj): Linear(128 -> 64, fp8_row, row_major, 8448 bytes, activations=fp8_row, bias=True)
      (lm_head): Linear(in_features=64, out_features=1000, bias=True)
    )
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model: is a {type(model).__name__}, must be a torch.nn.Module")
    if traits_of(recipe, "recipe").plain:
        raise ValueError(f"recipe: is {traits_of(recipe, 'recipe').name}, use model.to(dtype)")
    with tempfile.TemporaryDirectory() as folder:
        options = choice_options(
            recipe,
            dialect=dialect,
            include=include,
            exclude=exclude,
            activation_scales=_file(activation_scales, FilePath(folder) / "scales.safetensors"),
            activations=activations,
            scales=scales,
            calibration=_file(calibration, FilePath(folder) / "calibration.safetensors"),
            scale_mode=scale_mode,
            amax_floor=amax_floor,
        )
        plain = [place for place in places_of(model) if not isinstance(place.module, Layer)]
        experts = experts_in(plain)
        plain = [place for place in plain if not any(e.takes(place) for e in experts)]
        places = {group[0].name: group for group in tied(plain)}
        places |= {place.name: [place] for each in experts for place in each.places}
        tensors = [
            (name, _NAMES[group[0].tensor.dtype], list(group[0].tensor.shape))
            for name, group in places.items()
            if group[0].is_stored and group[0].tensor.dtype in _NAMES
        ]
        planned = {w.name: w for w in _planned(tensors, _config_of(model), options)}
    chosen = _chosen(planned, places, experts)
    scale_of_group = _shared_scales(chosen, options)

    def quantized(place: Place) -> ScaledTensor:
        weight = planned[place.name]
        return _quantized(weight, place.tensor, options, scale_of_group.get(weight.group))

    layers: Layers = {}
    for each in experts:
        if each.places[0].name in chosen:
            found = each.layers(planned, quantized, _dialect(options))
            layers |= {id(module): (module, layer) for module, layer in found}
    for weight, group in chosen.values():
        if not group[0].is_weight:
            continue
        matrix = quantized(group[0])
        for place in group:
            layer = _layer(weight, matrix, place.module, options)
            layers[id(place.module)] = place.module, layer.train(place.module.training)
    return replaced(model, layers)


def _planned(
    tensors: list[tuple[str, str, list[int]]], config: str, options: _native.ConvertOptions
) -> list[_native.PlannedWeight]:
    """What `convert` would do. Stacks that it would ask about stay here, however they lie."""
    try:
        return _native.plan_weights(tensors, config, options)
    except ValueError as error:
        if not str(error).startswith("experts_layout"):
            raise
    options.experts_layout = ExpertsLayout.in_out
    return _native.plan_weights(tensors, config, options)


#: By name, what becomes quantized, and its places.
_Chosen: TypeAlias = dict[str, tuple[_native.PlannedWeight, list[Place]]]


def _chosen(
    planned: dict[str, _native.PlannedWeight],
    places: dict[str, list[Place]],
    experts: list[PlainExperts],
) -> _Chosen:
    """What of that which `convert` would choose layers can take.

    Raises:
        ValueError: as `quantize`.
    """
    of_experts = {place.name for each in experts for place in each.places}
    names = {place.name for each in experts if each.are_chosen(planned) for place in each.places}
    names |= {
        weight.name
        for weight in planned.values()
        if weight.name not in of_experts and _is_linear(weight, places[weight.name])
    }
    chosen = {name: (planned[name], places[name]) for name in planned if name in names}
    for name, (_, group) in chosen.items():
        _require_numbers(name, group[0].tensor)
    return chosen


def _file(source: Calibrator | Path | None, path: FilePath) -> Path | None:
    """What `convert` reads; of a `Calibrator`, what it writes there."""
    if not isinstance(source, Calibrator):
        return source
    source.save(path)
    return path


def _config_of(model: torch.nn.Module) -> str:
    """Its config.json, "" where it has none."""
    config = getattr(model, "config", None)
    return json.dumps(config.to_dict(), default=str) if hasattr(config, "to_dict") else ""


def _is_linear(weight: _native.PlannedWeight, group: list[Place]) -> bool:
    """Whether a `Linear` takes the weight in all its places.

    Raises:
        ValueError: it was asked for by name and cannot; or its layer has more than a weight and a
            bias.
    """
    others = [place for place in group if not place.is_weight]
    if others:
        stays = weight.reason.startswith("experts_layout")  # but was not asked to
        if weight.rule.startswith("include") and (weight.converted or stays):
            raise ValueError(
                f"include: reaches {weight.name}, in the model the {others[0].attribute} of a "
                f"{type(others[0].module).__name__}; in memory the weights of torch.nn.Linear are "
                "quantized, and experts as transformers has them, [E, out, in]"
            )
        return False
    if not weight.converted:
        return False
    for place in group:
        if extras := extras_of(place.module, "weight", "bias"):
            raise ValueError(f"model: {weight.name} stands beside {extras}, which would be lost")
    return True


def _require_numbers(name: str, tensor: torch.Tensor) -> None:
    """Raises ValueError where a weight has none, or such as no recipe has."""
    if tensor.dtype not in PLAIN:
        raise ValueError(f"model: {name} is {tensor.dtype}, must be float32, float16 or bfloat16")
    if tensor.is_meta:
        raise ValueError(f"model: {name} is on the meta device, which has no numbers")
    if not bool(torch.isfinite(tensor).all()):
        raise ValueError(f"model: {name} holds NaN or infinity")


def _shared_scales(chosen: _Chosen, options: _native.ConvertOptions) -> dict[int, torch.Tensor]:
    """By group, the scale of a whole tensor that weights which engines fuse have in common: that of
    the largest magnitude in any of them."""
    members: dict[int, list[tuple[_native.PlannedWeight, torch.Tensor]]] = {}
    for weight, group in chosen.values():
        if weight.group >= 0:
            members.setdefault(weight.group, []).append((weight, group[0].tensor))
    scales: dict[int, torch.Tensor] = {}
    for number, tensors in members.items():
        if len(tensors) < 2:
            continue
        amaxes = [
            float(tensor.detach().abs().amax()) if tensor.numel() else 0 for _, tensor in tensors
        ]
        weight, tensor = tensors[amaxes.index(max(amaxes))]
        own = _quantized(weight, tensor, options, None)
        scales[number] = own.scales if own.tensor_scale is None else own.tensor_scale
    return scales


def _quantized(
    weight: _native.PlannedWeight,
    tensor: torch.Tensor,
    options: _native.ConvertOptions,
    scale: torch.Tensor | None,
) -> ScaledTensor:
    """`tensor` as `convert` would store it; `scale`: of the whole tensor, where it is given."""
    traits = traits_of(weight.recipe, "recipe")
    tensor, scale = tensor.detach().contiguous(), None if scale is None else scale.to(tensor.device)
    how: dict[str, Any] = {"amax_floor": options.amax_floor}
    if traits.tensor_scale:
        sense = _native.dialect_sense(_dialect(options))
        if scale is None and sense == TensorScaleSense.multiplier:  # codes come from what is stored
            scale = quantize_tensor(tensor, traits.recipe, sense=sense).tensor_scale
        how |= {"tensor_scale": scale, "sense": sense}
    elif scale is not None:
        how["scales"] = scale
    if options.scales != ScaleChoice.amax:
        how["scale_choice"] = options.scales
        if weight.channel_weights:
            how["channel_weights"] = np.array(weight.channel_weights, np.float32)
        if weight.channel_means:
            how["channel_means"] = np.array(weight.channel_means, np.float32)
    elif traits.name.startswith("mx"):
        how["scale_mode"] = weight.scale_mode
    return quantize_tensor(tensor, traits.recipe, **how)


def _dialect(options: _native.ConvertOptions) -> Dialect:
    return options.dialect or _native.default_dialect(options.recipe)


def _layer(
    weight: _native.PlannedWeight,
    quantized: ScaledTensor,
    module: torch.nn.Module,
    options: _native.ConvertOptions,
) -> Linear:
    inputs = weight.inputs
    return Linear(
        quantized,
        module.bias,
        activations=None if inputs.activations == Activations.none else inputs.recipe,
        input_scale=inputs.scales[0] if inputs.scales else None,
        dialect=_dialect(options),
    )
