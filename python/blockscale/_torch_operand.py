"""Operands of the operators of torch (torch.py), which take tensors and the names of recipes."""

from __future__ import annotations

import torch

from ._arrays import format_of
from ._tensor import ScaledTensor, traits_of


def operand_of(
    argument: str,
    values: torch.Tensor,
    scales: torch.Tensor | None,
    recipe: str,
    layout: str,
    tensor_scale: torch.Tensor | None,
    sense: str,
) -> torch.Tensor | ScaledTensor:
    """What the package takes.

    Raises:
        TypeError, ValueError: parts that do not fit together; errors name them as operators do.
    """
    traits = traits_of(recipe, f"{argument}_recipe")
    if traits.plain:
        if format_of(values.dtype, argument) != traits.element:
            raise TypeError(f"{argument}: has dtype {values.dtype}, must be {traits.name}")
        return values
    if scales is None:
        raise ValueError(f"{argument}_scales: are missing, {traits.name} has some")
    try:
        return ScaledTensor(
            values, scales, traits.recipe, layout=layout, tensor_scale=tensor_scale, sense=sense
        )
    except (TypeError, ValueError) as error:
        raise type(error)(f"{argument}.{error}") from None
