"""hpc-ops' FP8 products of groups and its layers of experts by its names, on any GPU of the package
and on the CPU:

    import blockscale.compat.hpc as hpc

Names, arguments and layouts are those of hpc-ops' public functions. What it has for its own kernels
is taken and changes nothing: `tma_desc`, `task_map_workspace`, `do_gated_gemm`;
`num_seq_per_group_avg` is a hint, and says how its scales of rows are padded. Sizes are any: groups
of any number, K and I of any.

Results are within the bounds of docs/numerics.md of exact ones: between the products of a layer
nothing is rounded to bfloat16 but where hpc-ops' arguments say so. Errors are TypeError and
ValueError that name the argument, before anything is written.
"""

from __future__ import annotations

from typing import Any

import torch

from .._grouped import grouped_gemm
from .._moe import moe, moe_sort
from .._tensor import ScaledTensor

__all__ = [
    "fuse_moe",
    "fuse_moe_blockwise",
    "fuse_moe_blockwise_fp8",
    "fuse_moe_pertensor_fp8",
    "group_gemm_blockwise_fp8",
    "group_gemm_fp8",
    "group_gemm_pertensor_fp8",
]

_LARGEST = 448.0  # of float8_e4m3fn


# ---- Products of groups -------------------------------------------------------------------------


def group_gemm_pertensor_fp8(
    x: torch.Tensor,
    weight: torch.Tensor,
    seqlens: torch.Tensor,
    cu_seqlens: torch.Tensor,
    y_scale: torch.Tensor,
    num_seq_per_group_avg: int = 32,
    output: torch.Tensor | None = None,
    tma_desc: Any = None,  # noqa: ARG001
    task_map_workspace: Any = None,  # noqa: ARG001
) -> torch.Tensor:
    """y_scale[g] * x[r] weight[g]^T for each row r of each group g.

    Args:
        x: float8_e4m3fn [M, K].
        weight: float8_e4m3fn [G, N, K].
        seqlens, cu_seqlens: int32 [G] and [G + 1]: group g has seqlens[g] rows from cu_seqlens[g]
            on.
        y_scale: float32 [G].
        output: bfloat16 [M, N]; None: a new one. Rows that no group has stay as they are, or are 0.

    Raises:
        TypeError, ValueError: operands that do not fit.
    """
    return _grouped(
        *(_without_scales(x, "x"), _without_scales(weight, "weight"), seqlens, cu_seqlens),
        *(y_scale, num_seq_per_group_avg, output),
    )


group_gemm_fp8 = group_gemm_pertensor_fp8


def group_gemm_blockwise_fp8(
    x: torch.Tensor,
    weight: torch.Tensor,
    seqlens: torch.Tensor,
    cu_seqlens: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    num_seq_per_group_avg: int = 32,
    output: torch.Tensor | None = None,
    tma_desc: Any = None,  # noqa: ARG001
    task_map_workspace: Any = None,  # noqa: ARG001
) -> torch.Tensor:
    """x[r] weight[g]^T for each row r of each group g, with scales of 1x128 and 128x128.

    Args:
        x, weight, seqlens, cu_seqlens, output: as for `group_gemm_pertensor_fp8`.
        x_scale: float32 [ceil(K / 128), at least as many as follow]: a column a row, those of each
            group behind the ones before, padded to whole tiles of 8, 16, 32 or 48 rows, by the
            first of these that num_seq_per_group_avg does not exceed, or else of 64: as hpc-ops'
            reformat_x_scale leaves them. (Groups of whole tiles without gaps: a column a row of x.)
        w_scale: float32 [G, ceil(N / 128), ceil(K / 128)] or more columns, which are not read.

    Raises:
        TypeError, ValueError: as for `group_gemm_pertensor_fp8`.
    """
    if x.dim() != 2:
        raise ValueError(f"x: shape is {tuple(x.shape)}, must be (M, K)")
    columns, least = _columns_of_rows(seqlens, cu_seqlens, x.shape[0], num_seq_per_group_avg)
    k_blocks = -(-x.shape[1] // 128)
    if x_scale.dim() != 2 or x_scale.shape[0] != k_blocks or x_scale.shape[1] < least:
        raise ValueError(
            f"x_scale: shape is {tuple(x_scale.shape)}, must be ({k_blocks}, at least {least})"
        )
    x_scale = x_scale.index_select(1, columns.clamp(max=max(x_scale.shape[1] - 1, 0)))
    left = ScaledTensor(x, x_scale, "fp8_1x128", layout="mn_major")
    right = _by_blocks(weight, w_scale, "w_scale")
    return _grouped(left, right, seqlens, cu_seqlens, 1.0, num_seq_per_group_avg, output)


# ---- Layers of experts --------------------------------------------------------------------------


def fuse_moe_blockwise(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    gate_up_weight: torch.Tensor,
    gate_up_weight_scale: torch.Tensor,
    down_weight: torch.Tensor,
    down_weight_scale: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_scale: torch.Tensor,
    rank_ep: int,
    num_expert_total: int,
    shared_output: torch.Tensor | None = None,
    output: torch.Tensor | None = None,
) -> torch.Tensor:
    """`blockscale.moe`: SwiGLU between the products, gates first, requantized in blocks of 128.

    Args:
        x: float8_e4m3fn [T, H].
        x_scale: float32 [T, ceil(H / 128)].
        gate_up_weight: float8_e4m3fn [E, 2 I, H], of the experts here.
        gate_up_weight_scale: float32 [E, ceil(2 I / 128), ceil(H / 128)] or more columns.
        down_weight, down_weight_scale: likewise, of [E, H, I].
        topk_ids: int32 [T, top_k], of all experts.
        topk_scale: float32 [T, top_k].
        rank_ep: the experts here are those from rank_ep * E on.
        num_expert_total: how many there are everywhere: a hint.
        shared_output: bfloat16 [T, H] that is added.
        output: bfloat16 [T, H]; None: a new one.

    Raises:
        TypeError, ValueError: as `blockscale.moe`.
    """
    experts = gate_up_weight.shape[0]
    return moe(
        ScaledTensor(x, x_scale, "fp8_1x128"),
        _by_blocks(gate_up_weight, gate_up_weight_scale, "gate_up_weight_scale"),
        _by_blocks(down_weight, down_weight_scale, "down_weight_scale"),
        *(topk_ids, topk_scale),
        local_expert_offset=rank_ep * experts,
        all_experts=max(num_expert_total, experts),
        residual=shared_output,
        out=output if output is not None else torch.empty_like(x, dtype=torch.bfloat16),
    )


fuse_moe_blockwise_fp8 = fuse_moe_blockwise


def fuse_moe(
    x: torch.Tensor,
    gate_up_weight: torch.Tensor,
    down_weight: torch.Tensor,
    gate_up_scale: torch.Tensor,
    down_scale: torch.Tensor,
    act_and_mul_scale: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_scale: torch.Tensor,
    rank_ep: int,
    num_expert_total: int,  # noqa: ARG001
    use_bf16_mul: bool = True,
    shared_output: torch.Tensor | None = None,
    output: torch.Tensor | None = None,
    do_gated_gemm: bool = False,  # noqa: ARG001
) -> torch.Tensor:
    """A layer with one scale for all that goes into the second product: products of groups, and
    torch between them.

    Args:
        x: float8_e4m3fn [T, H].
        gate_up_weight: float8_e4m3fn [E, 2 I, H], of the experts here.
        down_weight: float8_e4m3fn [E, H, I].
        gate_up_scale, down_scale: float32 [E], factors of the products.
        act_and_mul_scale: float32 [1]: silu(gate) * up times it goes into the second product.
        topk_ids, topk_scale, rank_ep, shared_output, output: as for `fuse_moe_blockwise`.
        use_bf16_mul: silu(gate) and up are rounded to bfloat16 before they are multiplied.

    Raises:
        TypeError, ValueError: as `blockscale.grouped_gemm` and `blockscale.moe_sort`.
    """
    experts = gate_up_weight.shape[0]
    of_y = (x.shape[0], down_weight.shape[-2])
    for argument, given, shape in (
        ("topk_scale", topk_scale, tuple(topk_ids.shape)),
        ("shared_output", shared_output, of_y),
        ("output", output, of_y),
    ):
        if given is not None and tuple(given.shape) != shape:
            raise ValueError(f"{argument}: shape is {tuple(given.shape)}, must be {shape}")
    if act_and_mul_scale.numel() != 1:
        raise ValueError(
            f"act_and_mul_scale: shape is {tuple(act_and_mul_scale.shape)}, must be (1,)"
        )
    entries = moe_sort(topk_ids, experts, local_expert_offset=rank_ep * experts)
    bf16 = torch.bfloat16
    left, right = _without_scales(x, "x"), _without_scales(gate_up_weight, "gate_up_weight")
    gate_up = grouped_gemm(
        *(left, right, entries.offsets),
        alpha=gate_up_scale,
        index=entries.token_of_row,
        out_dtype=bf16,
    )
    gate, up = gate_up.float().chunk(2, 1)
    gate = torch.nn.functional.silu(gate)
    inner = (gate.to(bf16) * up.to(bf16)).float() if use_bf16_mul else gate * up
    inner = (inner * act_and_mul_scale).clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn)
    left, right = _without_scales(inner, "x"), _without_scales(down_weight, "down_weight")
    down = grouped_gemm(left, right, entries.offsets, alpha=down_scale, out_dtype=bf16)
    # Behind the last row a row of zeros, for entries that no expert here has.
    down = torch.nn.functional.pad(down, (0, 0, 0, 1))
    is_here = entries.row_of_entry >= 0
    rows = torch.where(is_here, entries.row_of_entry, down.shape[0] - 1).long()
    weights = torch.where(is_here, topk_scale, 0.0)
    sums = (down[rows].float() * weights[..., None]).sum(1)
    if shared_output is not None:
        sums += shared_output
    return sums.to(bf16) if output is None else output.copy_(sums)


def fuse_moe_pertensor_fp8(
    x: torch.Tensor,
    gate_up_weight: torch.Tensor,
    down_weight: torch.Tensor,
    gate_up_scale: torch.Tensor,
    down_scale: torch.Tensor,
    act_and_mul_scale: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_scale: torch.Tensor,
    rank_ep: int,
    num_expert_total: int,
    use_bf16_mul: bool = True,
    shared_output: torch.Tensor | None = None,
    do_gated_gemm: bool = False,  # noqa: ARG001
) -> torch.Tensor:
    """`fuse_moe` into a new tensor."""
    return fuse_moe(
        *(x, gate_up_weight, down_weight, gate_up_scale, down_scale, act_and_mul_scale),
        *(topk_ids, topk_scale, rank_ep, num_expert_total, use_bf16_mul, shared_output),
    )


# ---- What is shared -----------------------------------------------------------------------------


def _without_scales(values: torch.Tensor, argument: str) -> ScaledTensor:
    """Codes as they are: of scale 1."""
    if values.dtype != torch.float8_e4m3fn:
        raise TypeError(f"{argument}: has dtype {values.dtype}, must be torch.float8_e4m3fn")
    shape = (*values.shape[:-2], min(values.shape[-2], 1), 1)
    one = torch.ones(shape, dtype=torch.float32, device=values.device)
    return ScaledTensor(values, one, "fp8_tensor")


def _by_blocks(weight: torch.Tensor, scales: torch.Tensor, argument: str) -> ScaledTensor:
    """Weights of experts with scales of blocks, whose rows may be padded."""
    columns = -(-weight.shape[-1] // 128)
    if scales.dim() != weight.dim() or scales.shape[-1] < columns:
        raise ValueError(
            f"{argument}: shape is {tuple(scales.shape)}, must have {weight.dim()} dimensions, and "
            f"at least {columns} columns for {tuple(weight.shape)}"
        )
    return ScaledTensor(weight, scales[..., :columns], "fp8_128x128")


def _grouped(
    x: ScaledTensor,
    weight: ScaledTensor,
    seqlens: torch.Tensor,
    cu_seqlens: torch.Tensor,
    alpha: Any,
    expected_rows: int,
    output: torch.Tensor | None,
) -> torch.Tensor:
    return grouped_gemm(
        *(x, weight, cu_seqlens),
        lengths=seqlens,
        alpha=alpha,
        out=output,
        out_dtype=None if output is not None else torch.bfloat16,
        expected_rows=max(int(expected_rows), 0),
    )


def _columns_of_rows(
    seqlens: torch.Tensor, cu_seqlens: torch.Tensor, rows: int, average: int
) -> tuple[torch.Tensor, int]:
    """Where the scales of each row are, among those that each group has padded to whole tiles; and
    how many there must be, where that is known without waiting for a GPU: on a GPU one, if any."""
    tile = next((tile for tile in (8, 16, 32, 48) if average <= tile), 64)
    padded = (seqlens + tile - 1) // tile * tile
    first = padded.cumsum(0) - padded  # of each group
    row = torch.arange(rows, dtype=torch.int32, device=seqlens.device)
    starts = cu_seqlens[: seqlens.shape[0]].contiguous()
    group = (torch.searchsorted(starts, row, right=True) - 1).clamp(min=0)
    columns = (first[group] + row - starts[group]).clamp(min=0)
    return columns, int(padded.sum()) if padded.device.type == "cpu" else min(rows, 1)
