"""route, moe_sort and moe as operators of torch (torch.py): schemas, what they call, and the shapes
of what comes of it."""

from __future__ import annotations

from typing import Any

import torch

from . import _moe
from ._tensor import traits_of
from ._torch_operand import operand_of

_LAYER = f"""Tensor x, Tensor w13, Tensor w2, Tensor ids, Tensor? weights, str x_recipe,
    str w13_recipe, str w2_recipe, *, Tensor? x_scales=None, Tensor? w13_scales=None,
    Tensor? w2_scales=None, str x_layout="row_major", str w13_layout="row_major",
    str w2_layout="row_major", Tensor? x_tensor_scale=None, Tensor? w13_tensor_scale=None,
    Tensor? w2_tensor_scale=None, str sense="divisor", str? activation="swiglu",
    bool gate_first=True, int interleave=0, float? limit=None, float alpha=1.0,
    float up_shift=0.0, str? activations=None, Tensor? w13_alphas=None,
    Tensor? w2_alphas=None, Tensor? w13_bias=None, Tensor? w2_bias=None,
    int local_expert_offset=0, Tensor? expert_map=None, int all_experts=0,
    bool weights_on_input=False, Tensor? shared_w13=None, Tensor? shared_w2=None,
    Tensor? shared_w13_scales=None, Tensor? shared_w2_scales=None,
    Tensor? shared_w13_tensor_scale=None, Tensor? shared_w2_tensor_scale=None,
    Tensor? residual=None, bool batch_invariant=False,
    bool deterministic=True, int workspace_limit={_moe.WORKSPACE_LIMIT}"""

SCHEMAS = (
    """route(Tensor logits, int top_k, *, str score="softmax", Tensor? correction_bias=None,
    int groups=1, int top_groups=1, int best_of_group=2, bool renormalize=True,
    float scale=1.0, int shared_experts=0) -> (Tensor ids, Tensor weights)""",
    """moe_sort(Tensor ids, int experts, *, int local_expert_offset=0, Tensor? expert_map=None,
    int tile=1) -> (
    Tensor offsets, Tensor row_of_entry, Tensor entry_of_row, Tensor token_of_row,
    Tensor expert_of_tile, Tensor row_limit_of_tile, Tensor padded_rows, Tensor tiles)""",
    f"moe({_LAYER}) -> Tensor",
    f"moe_out({_LAYER}, Tensor(a!) out) -> ()",
)
#: Of a tensor that may be quantized: its parts beside the values, and what is usual.
_PARTS_OF_OPERAND = (("scales", None), ("layout", "row_major"), ("tensor_scale", None))


def route_shapes(
    logits: torch.Tensor, top_k: int, *, shared_experts: int = 0, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (logits.shape[0], top_k + shared_experts)
    return (
        logits.new_empty(shape, dtype=torch.int32),
        logits.new_empty(shape, dtype=torch.float32),
    )


def moe_sort(ids: torch.Tensor, experts: int, **options: Any) -> tuple[torch.Tensor, ...]:
    return tuple(
        ids.new_empty(0) if x is None else x for x in _moe.moe_sort(ids, experts, **options)
    )


def moe_sort_shapes(
    ids: torch.Tensor, experts: int, *, tile: int = 1, **_: Any
) -> tuple[torch.Tensor, ...]:
    tokens, top_k = ids.shape
    # What moe_sort_rows of the native module says, of sizes that need be no numbers yet.
    entries = tokens * top_k
    rows = (entries + torch.sym_min(experts, entries) * (tile - 1)) // tile * tile
    tiles, one = (0, 0) if tile == 1 else (rows // tile, 1)
    shapes = ((experts + 1,), (tokens, top_k), (rows,), (rows,), (tiles,), (tiles,), (one,), (one,))
    return tuple(ids.new_empty(shape) for shape in shapes)


def moe(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor | None,
    *recipes: str,
    sense: str = "divisor",
    w13_alphas: torch.Tensor | None = None,
    w2_alphas: torch.Tensor | None = None,
    w13_bias: torch.Tensor | None = None,
    w2_bias: torch.Tensor | None = None,
    shared_w13: torch.Tensor | None = None,
    shared_w2: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor:
    tensors = {"x": x, "w13": w13, "w2": w2}
    parts = {
        name: [options.pop(f"{name}_{part}", default) for part, default in _PARTS_OF_OPERAND]
        for name in tensors
    }
    operands = [
        operand_of(name, tensors[name], parts[name][0], recipe, *parts[name][1:], sense)
        for name, recipe in zip(tensors, recipes, strict=True)
    ]
    shared = []
    for i, own in ((1, shared_w13), (2, shared_w2)):  # in the form of w13 and w2
        form = list(tensors)[i]
        scales, scale = (
            options.pop(f"shared_{form}_{part}", None) for part in ("scales", "tensor_scale")
        )
        layout = parts[form][1]
        shared.append(
            None
            if own is None
            else operand_of(f"shared_{form}", own, scales, recipes[i], layout, scale, sense)
        )
    if any(own is not None for own in shared):
        options["shared"] = tuple(shared)
    pairs = {"expert_alphas": (w13_alphas, w2_alphas), "biases": (w13_bias, w2_bias)}
    result: torch.Tensor = _moe.moe(*operands, ids, weights, **pairs, **options)
    return result


def moe_shape(
    x: torch.Tensor,
    _w13: torch.Tensor,
    w2: torch.Tensor,
    _ids: torch.Tensor,
    _weights: torch.Tensor | None,
    x_recipe: str,
    *_: str,
    **_options: Any,
) -> torch.Tensor:
    dtype = x.dtype if traits_of(x_recipe, "x_recipe").plain else torch.bfloat16
    return x.new_empty((x.shape[0], w2.shape[1]), dtype=dtype)
