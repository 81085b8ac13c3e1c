"""DeepGEMM's FP8 products by its names, on any GPU of the package and on the CPU:

    import blockscale.compat.deep_gemm as deep_gemm

Names, arguments and layouts are those of DeepGEMM's public functions (its API of July 2025, FP32
scales). An operand is a pair (values, scales): values float8_e4m3fn [.., rows, K] whose rows lie
in one piece, scales float32 [.., ceil(rows / g), ceil(K / 128)] with g 1 or 128, as they come from
a quantizer or with rows side by side (`get_mn_major_tma_aligned_tensor`). Nothing asks for
alignment: rows of groups begin anywhere, and sizes are any.

What DeepGEMM has for its own kernels is taken and changes nothing: `compiled_dims`,
`disable_ue8m0_cast`, `expected_m` (a hint). Packed UE8M0 scales, which its kernels for Blackwell
take, are refused, as are operands whose columns lie in one piece (which its kernels for Hopper
refuse too).

Results are within the bounds of docs/numerics.md of exact ones. Errors are TypeError and ValueError
that name the argument, before anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .._grouped import grouped_gemm, k_grouped_gemm, masked_grouped_gemm
from .._ops import gemm, quantize
from .._tensor import ScaledTensor

__all__ = [
    "ceil_div",
    "fp8_gemm_nn",
    "fp8_gemm_nt",
    "fp8_gemm_tn",
    "fp8_gemm_tt",
    "get_mk_alignment_for_contiguous_layout",
    "get_mn_major_tma_aligned_tensor",
    "get_tma_aligned_size",
    "k_grouped_fp8_gemm_nt_contiguous",
    "k_grouped_fp8_gemm_tn_contiguous",
    "m_grouped_fp8_gemm_nn_contiguous",
    "m_grouped_fp8_gemm_nt_contiguous",
    "m_grouped_fp8_gemm_nt_masked",
    "per_block_cast_to_fp8",
    "per_token_cast_to_fp8",
    "set_mk_alignment_for_contiguous_layout",
    "transform_sf_into_required_layout",
]

Pair = tuple[torch.Tensor, torch.Tensor]
_K_BLOCK = 128
_RECIPES = {1: "fp8_1x128", 128: "fp8_128x128"}  # by rows of a block


# ---- Products -----------------------------------------------------------------------------------


def fp8_gemm_nt(
    a: Pair,
    b: Pair,
    d: torch.Tensor,
    c: torch.Tensor | None = None,
    recipe: Sequence[int] | None = None,
    compiled_dims: str = "nk",  # noqa: ARG001
    disable_ue8m0_cast: bool = False,  # noqa: ARG001
) -> None:
    """d = c + a b^T.

    Args:
        a: (values [M, K], scales [M, ceil(K / 128)]).
        b: (values [N, K], scales [ceil(N / 128), ceil(K / 128)]).
        d: [M, N] of bfloat16 or float32.
        c: what is added, of d's shape and dtype; may be `d`.
        recipe: (1, 128, 128), or (1, 1, 128) for scales of each row of `b`.

    Raises:
        TypeError, ValueError: operands that do not fit, or are not as the module asks.
    """
    of_a, of_b = _blocks(recipe, (1, _K_BLOCK))
    left, right = _operand(a, "a", of_a, 2), _operand(b, "b", of_b, 2)
    _require_addend(c, d)
    gemm(left, right, beta=0.0 if c is None else 1.0, c=c, out=d)


def fp8_gemm_nn(a: Pair, b: Pair, d: torch.Tensor, *args: Any, **options: Any) -> None:
    """`fp8_gemm_nt` of a `b` that is given as [K, N]; its columns must lie in one piece."""
    fp8_gemm_nt(a, _transposed(b, "b"), d, *args, **options)


def fp8_gemm_tn(a: Pair, b: Pair, d: torch.Tensor, *args: Any, **options: Any) -> None:
    """`fp8_gemm_nt` of operands that are given as [K, M] and [K, N]; likewise."""
    fp8_gemm_nt(_transposed(a, "a"), _transposed(b, "b"), d, *args, **options)


def fp8_gemm_tt(a: Pair, b: Pair, d: torch.Tensor, *args: Any, **options: Any) -> None:
    """`fp8_gemm_nt` of an `a` that is given as [K, M]; likewise."""
    fp8_gemm_nt(_transposed(a, "a"), b, d, *args, **options)


def m_grouped_fp8_gemm_nt_contiguous(
    a: Pair,
    b: Pair,
    d: torch.Tensor,
    m_indices: torch.Tensor,
    recipe: Sequence[int] | None = None,
    compiled_dims: str = "nk",  # noqa: ARG001
    disable_ue8m0_cast: bool = False,  # noqa: ARG001
) -> None:
    """d[r] = a[r] b[m_indices[r]]^T for each row that has a group.

    Args:
        a: (values [M, K], scales [M, ceil(K / 128)]).
        b: (values [G, N, K], scales [G, ceil(N / 128), ceil(K / 128)]).
        d: [M, N] of bfloat16 or float32. Rows without a group stay as they are.
        m_indices: int32 [M]: the group of each row, -1 in padding. The rows of a group lie side by
            side; padding may stand behind them or nowhere. On a GPU nobody looks whether they do.
        recipe: as for `fp8_gemm_nt`.

    Raises:
        TypeError, ValueError: as `fp8_gemm_nt`; on the CPU also rows of a group that are apart, and
            numbers that name no group.
    """
    of_a, of_b = _blocks(recipe, (1, _K_BLOCK))
    left, right = _operand(a, "a", of_a, 2), _operand(b, "b", of_b, 3)
    starts, lengths = _groups_of_rows(m_indices, left.shape[0], right.shape[0])
    grouped_gemm(left, right, starts, lengths=lengths, out=d)


def m_grouped_fp8_gemm_nn_contiguous(
    a: Pair, b: Pair, d: torch.Tensor, *args: Any, **options: Any
) -> None:
    """`m_grouped_fp8_gemm_nt_contiguous` of a `b` that is given as [G, K, N]; its columns must lie
    in one piece."""
    m_grouped_fp8_gemm_nt_contiguous(a, _transposed(b, "b"), d, *args, **options)


def m_grouped_fp8_gemm_nt_masked(
    a: Pair,
    b: Pair,
    d: torch.Tensor,
    masked_m: torch.Tensor,
    expected_m: int,
    recipe: Sequence[int] | None = None,
    compiled_dims: str = "nk",  # noqa: ARG001
    disable_ue8m0_cast: bool = False,  # noqa: ARG001
) -> None:
    """d[g, :masked_m[g]] = a[g, :masked_m[g]] b[g]^T for each group g.

    Args:
        a: (values [G, M, K], scales [G, M, ceil(K / 128)]).
        b: (values [G, N, K], scales [G, ceil(N / 128), ceil(K / 128)]).
        d: [G, M, N] of bfloat16 or float32. Rows from masked_m[g] on stay as they are.
        masked_m: int32 [G], cut to 0..M.
        expected_m: rows that a group is expected to have: a hint, right whatever it is.
        recipe: as for `fp8_gemm_nt`.

    Raises:
        TypeError, ValueError: as `fp8_gemm_nt`.
    """
    of_a, of_b = _blocks(recipe, (1, _K_BLOCK))
    left, right = _operand(a, "a", of_a, 3), _operand(b, "b", of_b, 3)
    masked_grouped_gemm(left, right, masked_m, out=d, expected_rows=max(int(expected_m), 0))


def k_grouped_fp8_gemm_nt_contiguous(
    a: Pair,
    b: Pair,
    d: torch.Tensor,
    ks: Sequence[int],
    ks_tensor: torch.Tensor,
    c: torch.Tensor | None = None,
    recipe: Sequence[int] = (1, 1, _K_BLOCK),
    compiled_dims: str = "mn",  # noqa: ARG001
) -> None:
    """d[g] = c[g] + a_g b_g^T, where a_g [M, ks[g]] and b_g [N, ks[g]] are gradients' operands.

    Args:
        a: (values, scales): values float8_e4m3fn [sum(ks) * M], a_g one behind the other, each with
            its rows in one piece; scales [M, sum(ks) / 128]. They are copied side by side first.
        b: likewise, of N.
        d: float32 [G, M, N].
        ks: columns of each group, multiples of 128, known to the host; may be 0.
        ks_tensor: int32 [G], the same where `d` is.
        c: what is added, of d's shape and dtype; may be `d`.
        recipe: (1, 1, 128).

    Raises:
        TypeError, ValueError: as `fp8_gemm_nt`.
    """
    if tuple(recipe) != (1, 1, _K_BLOCK):
        raise ValueError(f"recipe: is {tuple(recipe)}, must be (1, 1, {_K_BLOCK})")
    if d.dim() != 3:
        raise ValueError(f"d: shape is {tuple(d.shape)}, must be (G, M, N)")
    groups, m, n = d.shape
    if len(ks) != groups or any(k < 0 or k % _K_BLOCK for k in ks):
        raise ValueError(f"ks: is {list(ks)}, must be {groups} multiples of {_K_BLOCK}")
    if tuple(ks_tensor.shape) != (groups,):
        raise ValueError(f"ks_tensor: shape is {tuple(ks_tensor.shape)}, must be ({groups},)")
    if ks_tensor.device.type == "cpu" and ks_tensor.tolist() != list(ks):
        raise ValueError(f"ks_tensor: is {ks_tensor.tolist()}, must be {list(ks)}, as ks")
    _require_addend(c, d)
    left = _operand(_side_by_side(a, "a", m, ks), "a", 1, 2)
    right = _operand(_side_by_side(b, "b", n, ks), "b", 1, 2)
    ends = torch.zeros(groups + 1, dtype=torch.int32, device=d.device)
    torch.cumsum(ks_tensor, 0, dtype=torch.int32, out=ends[1:])
    is_in_place = c is not None and c.data_ptr() == d.data_ptr()
    k_grouped_gemm(left, right, ends, add=is_in_place, out=d)
    if c is not None and not is_in_place:
        d += c


def k_grouped_fp8_gemm_tn_contiguous(*args: Any, **options: Any) -> None:  # noqa: ARG001
    """Operands [sum(ks), M] and [sum(ks), N], which no FP8 kernel for Hopper reads.

    Raises:
        ValueError: always.
    """
    raise ValueError(
        "a: has its columns in one piece, must have its rows so: k_grouped_fp8_gemm_nt_contiguous"
    )


# ---- Operands -----------------------------------------------------------------------------------


def per_token_cast_to_fp8(x: torch.Tensor, use_ue8m0: bool, gran_k: int = _K_BLOCK) -> Pair:
    """Values and scales of each 128 columns of a row.

    Args:
        x: [M, K] of float32, float16 or bfloat16.
        use_ue8m0: scales are powers of two, in float32.
        gran_k: 128.

    Returns:
        (float8_e4m3fn [M, K], float32 [M, ceil(K / 128)]). Scales are amax / 448, of an amax of at
        least 1e-4.

    Raises:
        TypeError, ValueError: as `blockscale.quantize`.
    """
    return _cast(x, "fp8_1x128", use_ue8m0, gran_k)


def per_block_cast_to_fp8(x: torch.Tensor, use_ue8m0: bool, gran_k: int = _K_BLOCK) -> Pair:
    """As `per_token_cast_to_fp8`, of blocks of 128 rows and columns: scales are
    [ceil(M / 128), ceil(K / 128)]."""
    return _cast(x, "fp8_128x128", use_ue8m0, gran_k)


def transform_sf_into_required_layout(
    sf: torch.Tensor,
    mn: int,
    k: int,
    recipe: Sequence[int],
    num_groups: int | None = None,
    is_sfa: bool | None = None,
    disable_ue8m0_cast: bool = False,  # noqa: ARG001
) -> torch.Tensor:
    """Scales as products here read them fastest: of rows as `get_mn_major_tma_aligned_tensor` lays
    them, of blocks as they are.

    Args:
        sf: float32 [(num_groups,) ceil(mn / g), ceil(k / 128)].
        mn, k: rows and columns of the operand.
        recipe: (g, 128), or three numbers of which `is_sfa` takes the first for True, else the
            second.
        num_groups: of operands of groups.

    Raises:
        TypeError, ValueError: another shape, dtype or recipe.
    """
    if len(recipe) == 3:
        if is_sfa is None:
            raise ValueError("is_sfa: is None, must be said with a recipe of three numbers")
        recipe = (recipe[0] if is_sfa else recipe[1], recipe[2])
    rows = _rows_of_block(recipe, "recipe")
    shape = () if num_groups is None else (num_groups,)
    _require_scales(sf, "sf", (*shape, ceil_div(mn, rows), ceil_div(k, _K_BLOCK)))
    return get_mn_major_tma_aligned_tensor(sf) if rows == 1 else sf


def get_tma_aligned_size(x: int, element_size: int) -> int:
    """`x` elements rounded up to whole 16 bytes."""
    elements = 16 // element_size
    return ceil_div(x, elements) * elements


def get_mn_major_tma_aligned_tensor(sf: torch.Tensor) -> torch.Tensor:
    """Scales [.., rows, columns] whose rows lie side by side, each column at a multiple of 16
    bytes. A copy, unless they lie so already.

    Raises:
        TypeError: anything but float32.
        ValueError: other than two or three dimensions.
    """
    if sf.dim() not in (2, 3):
        raise ValueError(f"sf: shape is {tuple(sf.shape)}, must have 2 or 3 dimensions")
    _require_float32(sf, "sf")
    rows, columns = sf.shape[-2:]
    pitch = get_tma_aligned_size(rows, sf.element_size())
    strides = (columns * pitch, 1, pitch)[-sf.dim() :]
    if sf.stride() == strides and sf.data_ptr() % 16 == 0:
        return sf
    return sf.new_empty((*sf.shape[:-2], columns, pitch))[..., :rows].mT.copy_(sf)


_mk_alignment = 1


def get_mk_alignment_for_contiguous_layout() -> int:
    """Rows that groups of `m_grouped_fp8_gemm_nt_contiguous` must begin at multiples of: 1."""
    return _mk_alignment


def set_mk_alignment_for_contiguous_layout(alignment: int) -> None:
    """What `get_mk_alignment_for_contiguous_layout` says from now on, for callers that pad by it.

    Raises:
        ValueError: below 1.
    """
    global _mk_alignment
    if alignment < 1:
        raise ValueError(f"alignment: is {alignment}, must be at least 1")
    _mk_alignment = int(alignment)


def ceil_div(x: int, y: int) -> int:
    """x / y, rounded up."""
    return (x + y - 1) // y


# ---- What is shared -----------------------------------------------------------------------------


def _cast(x: torch.Tensor, recipe: str, use_ue8m0: bool, gran_k: int) -> Pair:
    if gran_k != _K_BLOCK:
        raise ValueError(f"gran_k: is {gran_k}, must be {_K_BLOCK}")
    least = 1e-4  # of an amax
    t = quantize(x.detach().contiguous(), recipe + ("_pow2" if use_ue8m0 else ""), amax_floor=least)
    return t.values, t.scales


def _rows_of_block(recipe: Sequence[int], argument: str) -> int:
    if len(recipe) == 2 and recipe[0] in _RECIPES and recipe[1] == _K_BLOCK:
        return recipe[0]
    raise ValueError(
        f"{argument}: is {tuple(recipe)}, must be (1, 128) or (128, 128) of an operand"
    )


def _blocks(recipe: Sequence[int] | None, preset: tuple[int, int]) -> tuple[int, int]:
    """Rows of the blocks of `a` and `b`."""
    if recipe is None:
        return preset
    if len(recipe) != 3:
        raise ValueError(f"recipe: is {tuple(recipe)}, must be three numbers")
    rows = [_rows_of_block((rows, recipe[2]), "recipe") for rows in recipe[:2]]
    return rows[0], rows[1]


def _transposed(operand: Pair, argument: str) -> Pair:
    values, scales = _pair(operand, argument)
    for part in (values, scales):
        if part.dim() < 2:
            raise ValueError(
                f"{argument}: shape is {tuple(part.shape)}, must have at least 2 dimensions"
            )
    return values.mT, scales.mT


def _pair(operand: Any, argument: str) -> Pair:
    if (
        isinstance(operand, tuple | list)
        and len(operand) == 2
        and all(isinstance(part, torch.Tensor) for part in operand)
    ):
        values, scales = operand
        if values.dtype != torch.float8_e4m3fn:
            raise TypeError(f"{argument}: has dtype {values.dtype}, must be torch.float8_e4m3fn")
        return values, scales
    raise TypeError(f"{argument}: is a {type(operand).__name__}, must be (values, scales)")


def _require_float32(scales: torch.Tensor, argument: str) -> None:
    if scales.dtype == torch.float32:
        return
    packed = " (packed UE8M0 scales of Blackwell are not taken)" * (scales.dtype == torch.int32)
    raise TypeError(f"{argument}: has dtype {scales.dtype}, must be torch.float32{packed}")


def _require_scales(scales: torch.Tensor, argument: str, shape: tuple[int, ...]) -> None:
    _require_float32(scales, argument)
    if tuple(scales.shape) != shape:
        raise ValueError(f"{argument}: shape is {tuple(scales.shape)}, must be {shape}")


def _operand(operand: Pair, argument: str, block_rows: int, dimensions: int) -> ScaledTensor:
    """A pair as a ScaledTensor of the same memory."""
    values, scales = _pair(operand, argument)
    if values.dim() != dimensions:
        raise ValueError(
            f"{argument}: shape is {tuple(values.shape)}, must have {dimensions} dimensions"
        )
    *batch, rows, k = values.shape
    if values.numel() > 0 and k > 1 and values.stride(-1) != 1:
        raise ValueError(
            f"{argument}: strides are {values.stride()}, its rows must lie in one piece"
            " (kernels for Hopper read no other FP8 operands)"
        )
    grid = (*batch, ceil_div(rows, block_rows), ceil_div(k, _K_BLOCK))
    _require_scales(scales, f"{argument}[1]", grid)
    by_columns = scales.numel() > 0 and scales.stride(-1) != 1 and scales.stride(-2) == 1
    return ScaledTensor(
        values,
        scales.mT if by_columns else scales,
        _RECIPES[block_rows],
        layout="mn_major" if by_columns else "row_major",
    )


def _require_addend(c: torch.Tensor | None, d: torch.Tensor) -> None:
    if c is None:
        return
    if c.dtype != d.dtype or c.shape != d.shape or c.device != d.device:
        raise ValueError(
            f"c: is {c.dtype} of shape {tuple(c.shape)} on {c.device}, must be {d.dtype} of shape "
            f"{tuple(d.shape)} on {d.device}, as d"
        )
    is_d = c.data_ptr() == d.data_ptr() and c.stride() == d.stride()
    if not is_d and _overlap(c, d):
        raise ValueError("c: shares memory with d, must be d itself or apart from it")


def _overlap(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether the memory that tensors of at least one element span has bytes in common."""
    ends = []
    for t in (x, y):
        last = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
        ends.append((t.data_ptr(), t.data_ptr() + (last + 1) * t.element_size()))
    return x.numel() > 0 and max(ends[0][0], ends[1][0]) < min(ends[0][1], ends[1][1])


def _groups_of_rows(
    m_indices: torch.Tensor, rows: int, groups: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the rows of each group begin, [groups + 1], and how many there are, [groups], found
    where they are: nothing is read back from a GPU."""
    if m_indices.dtype != torch.int32 or tuple(m_indices.shape) != (rows,):
        raise ValueError(
            f"m_indices: is {m_indices.dtype} of shape {tuple(m_indices.shape)}, must be "
            f"torch.int32 of shape ({rows},)"
        )
    has_group = (m_indices >= 0) & (m_indices < groups)
    group = torch.where(has_group, m_indices, groups).long()  # behind the last: none
    row = torch.arange(rows, dtype=torch.int32, device=m_indices.device)
    starts = torch.full((groups + 1,), rows, dtype=torch.int32, device=m_indices.device)
    starts.scatter_reduce_(0, group, row, "amin")
    lengths = torch.zeros_like(starts).scatter_add_(0, group, torch.ones_like(row))[:groups]
    if m_indices.device.type == "cpu":
        _check_groups_of_rows(m_indices, groups, group, starts, lengths)
    return starts, lengths


def _check_groups_of_rows(
    m_indices: torch.Tensor,
    groups: int,
    group: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
) -> None:
    if m_indices.numel() > 0 and m_indices.max() >= groups:
        raise ValueError(f"m_indices: has {m_indices.max()}, must be below {groups}, the groups")
    row = torch.arange(m_indices.numel(), dtype=torch.int32)
    ends = torch.zeros_like(starts).scatter_reduce_(0, group, row + 1, "amax")[:groups]
    apart = (lengths > 0) & (ends - starts[:groups] != lengths)
    if apart.any():
        first = int(apart.nonzero()[0])
        raise ValueError(f"m_indices: rows of group {first} are apart, must lie side by side")


def _side_by_side(operand: Pair, argument: str, rows: int, ks: Sequence[int]) -> Pair:
    """Values [rows, k] that lie one behind the other, as one [rows, sum(ks)]."""
    values, scales = _pair(operand, argument)
    if values.dim() != 1 or values.numel() != rows * sum(ks):
        raise ValueError(
            f"{argument}: shape is {tuple(values.shape)}, must be ({rows * sum(ks)},)"
            f", {rows} rows of {list(ks)} columns"
        )
    bytes_of_groups = values.view(torch.uint8).split([rows * k for k in ks])
    parts = [part.view(rows, k) for part, k in zip(bytes_of_groups, ks, strict=True)]
    return torch.cat(parts, 1).view(values.dtype), scales
