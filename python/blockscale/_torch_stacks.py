"""Modules with two stacks of matrices, as transformers 5 has experts: how the stacks lie, what lies
between their products, and whether an `Experts` can stand in for one."""

from __future__ import annotations

import inspect
import math
from itertools import product
from typing import Any

import torch

from ._torch_layer import PLAIN
from ._torch_stored import Place, extras_of

STACKS = ("gate_up_proj", "down_proj")
BIASES = ("gate_up_proj_bias", "down_proj_bias")


def stacks_of(places: list[Place]) -> list[dict[str, torch.nn.Module]]:
    """The modules that have stacks, by their paths, with a dot behind where there is one; those
    together that have one pair of stacks, or are one module in several places."""
    tied: dict[tuple[int, int], dict[str, torch.nn.Module]] = {}
    for place in places:
        if place.attribute == STACKS[0] and is_experts(place.module):
            stacks = id(place.tensor), id(place.module.down_proj)
            tied.setdefault(stacks, {})[place.name.removesuffix(STACKS[0])] = place.module
    return list(tied.values())


def is_experts(module: torch.nn.Module) -> bool:
    """Whether it has two stacks of matrices that fit together."""
    up, down = (module._parameters.get(name) for name in STACKS)
    if up is None or down is None or up.dim() != 3 or down.dim() != 3:
        return False
    return is_transposed(up, down) or up.shape == (len(down), 2 * down.shape[2], down.shape[1])


def is_transposed(up: torch.Tensor, down: torch.Tensor) -> bool:
    """Whether the matrices are [in, out], as gpt-oss has them: a product without transposing."""
    return bool(up.shape == (len(down), down.shape[2], 2 * down.shape[1]))


def halves_of(
    module: torch.nn.Module, stack: torch.Tensor, gate: dict[str, Any] | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gates and ups [E, out, in] of a stack [E, 2 out, in], in the order of memory, as views.

    Args:
        module: whose stack it is; its `is_concatenated` counts where `gate` is None.
        stack: transposed where the module has it so.
        gate: its `gate_of`.
    """
    turned = not getattr(module, "is_concatenated", True) if gate is None else gate["interleave"]
    return (stack[:, ::2], stack[:, 1::2]) if turned else stack.chunk(2, dim=1)


def is_gate_first(gate: dict[str, Any] | None) -> bool:
    """Of a `gate_of`, whether gates come before ups; where it says nothing, they do."""
    return gate is None or gate["gate_first"]


def unreplaced(
    module: torch.nn.Module, name: str, gate: dict[str, Any] | None, by_name: bool
) -> list[str]:
    """Why no `Experts` can stand in for a module.

    Args:
        module: that `is_experts`.
        name: of its gates and ups.
        gate: its `gate_of`.
        by_name: whether gates and ups stand apart where they come from.
    """
    problems = []
    if extras := extras_of(module, *STACKS, *BIASES, "act_fn") or _tensors_of_activation(module):
        problems.append(f"{name}: stands beside {extras}, which would be lost")
    arguments = list(inspect.signature(module.forward).parameters)
    if len(arguments) != 3:
        problems.append(
            f"{name}: {type(module).__name__}.forward takes ({', '.join(arguments)}), must take "
            "hidden states, experts and weights of each token"
        )
    if gate is None:
        problems.append(
            f"{name}: what {type(module).__name__} has between its products is no SwiGLU that moe "
            "has"
        )
    elif by_name and gate["interleave"]:
        problems.append(
            f"{name}: has gates and ups in turns in the model, and the checkpoint has them by name"
        )
    biases = [bias for bias in (getattr(module, bias, None) for bias in BIASES) if bias is not None]
    up, down = (getattr(module, stack) for stack in STACKS)
    outputs = 2 if is_transposed(up, down) else 1  # that dimension
    for bias, stack in zip(BIASES, (up, down), strict=True):
        shape, given = (len(stack), stack.shape[outputs]), getattr(module, bias, None)
        if given is not None and given.shape != shape:
            problems.append(f"{name}: {bias} has shape {tuple(given.shape)}, must be {shape}")
    dtypes = {bias.dtype for bias in biases}
    if len(dtypes) > 1 or not dtypes <= PLAIN.keys():
        said = ", ".join(sorted(map(str, dtypes)))
        problems.append(
            f"{name}: the biases are {said}, must be float32, float16 or bfloat16, both one of them"
        )
    return problems


def _tensors_of_activation(module: torch.nn.Module) -> str:
    """Slopes that were learned, say: `gate_of` would try what they are before they are loaded."""
    activation = module._modules.get("act_fn")
    if activation is None:
        return ""
    named = (*activation.named_parameters(), *activation.named_buffers())
    return ", ".join(f"act_fn.{name}" for name, _ in named)


def gate_of(module: torch.nn.Module) -> dict[str, Any] | None:
    """The options of `Experts` that do what an experts module does between its products; None
    where none do. It is tried, since only its code says it: with the clamp and the slope that it
    has as attributes, on numbers from 2^-6 to far beyond each clamp that activations reach."""
    limits = [None, *_numbers(module, "limit", "swiglu_limit")]
    alphas = [1.0, *_numbers(module, "alpha", "swiglu_alpha")]
    largest = math.log2(4 * max([2.0**13, *limits[1:]]))
    half = torch.logspace(-6, largest, 48, base=2, dtype=torch.float32, device="cpu")
    x = torch.cat([-half, half])
    tried = torch.cartesian_prod(x, x).T.reshape(1, -1)
    want = _gated(module, tried)
    if want is None:
        return None
    orders = product((0, 1), (True, False))
    for limit, alpha, shift, order in product(limits, alphas, (0.0, 1.0), orders):
        interleave, gate_first = order
        halves = (tried[:, ::2], tried[:, 1::2]) if interleave else tried.chunk(2, dim=-1)
        gate, up = halves if gate_first else halves[::-1]
        if limit is not None:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        ours = gate * torch.sigmoid(alpha * gate) * (up + shift)
        if want.shape == ours.shape and torch.allclose(ours, want, rtol=1e-4, atol=1e-5):
            return {
                "gate_first": gate_first,
                "interleave": interleave,
                "limit": limit,
                "alpha": alpha,
                "up_shift": shift,
            }
    return None


def _gated(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor | None:
    """What the module's code makes of a result of the first product; None where it takes none."""
    try:
        with torch.no_grad():
            return gated(module, x).float()
    except Exception:  # anybody's code, with numbers that it was not written for
        return None


def gated(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What the module's code makes of a result of the first product."""
    if hasattr(module, "_apply_gate"):
        return module._apply_gate(x)
    gate, up = x.chunk(2, dim=-1)
    return module.act_fn(gate) * up


def is_gated(module: torch.nn.Module) -> bool:
    """Whether `gated` has a result for a module that `is_experts`, on its device."""
    up, down = (getattr(module, name) for name in STACKS)
    columns = up.shape[2 if is_transposed(up, down) else 1]
    return _gated(module, torch.zeros(1, columns, dtype=up.dtype, device=up.device)) is not None


def _numbers(module: torch.nn.Module, *names: str) -> list[float]:
    """Those of its attributes that are finite numbers."""
    given = (getattr(module, name, None) for name in names)
    return [x for x in given if isinstance(x, (int, float)) and math.isfinite(x)]
