"""The cases of DeepGEMM's tests/test_fp8.py at 48c741af (names, shapes, tolerance), for any device
and with sizes divided where that one is slow. Operands are quantized by the package's functions of
DeepGEMM's names; results are compared with products of what was quantized, as there, and, closer,
with products of what it became."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from blockscale.compat import deep_gemm

#: Of 1 - 2 <x, y> / (<x, x> + <y, y>): what DeepGEMM asks, of products before quantization...
LARGEST_DIFFERENCE = 0.001
#: ... and of exact products of the operands, rounded to bfloat16.
LARGEST_ROUNDING = 2e-6

DENSE_NK = [(2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048)]
GROUPED_NK = [(6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048)]
CONTIGUOUS_GROUPS = [(4, 8192), (8, 4096)]
MASKED_GROUPS = [(1, 1024), (2, 512), (4, 256)]
K_GROUPS = [(4, 4096, 7168, 8192), (8, 4096, 7168, 4096), (16, 4096, 7168, 2048)]


def difference(x: torch.Tensor, y: torch.Tensor) -> float:
    x, y = x.double(), y.double()
    total = (x * x + y * y).sum()
    return 0.0 if total == 0 else float(1 - 2 * (x * y).sum() / total)


def normal(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device=device)


def values_of(pair: Any, block_rows: int) -> torch.Tensor:
    """An operand in float32."""
    values, scales = pair
    rows, k = values.shape[-2:]
    each = scales.repeat_interleave(block_rows, -2)[..., :rows, :]
    return values.float() * each.repeat_interleave(128, -1)[..., :k]


def stacked(x: torch.Tensor, cast: Any) -> Any:
    """A pair of each matrix."""
    pairs = [cast(matrix, use_ue8m0=False) for matrix in x]
    return tuple(torch.stack(parts) for parts in zip(*pairs, strict=True))


def expect_close(d: torch.Tensor, before: torch.Tensor, exact: torch.Tensor) -> None:
    assert difference(d, before) < LARGEST_DIFFERENCE
    assert difference(d, exact) < LARGEST_ROUNDING


def check_dense(
    device: str, m: int, n: int, k: int, *, adds: bool, rows_of_b: int = 128, alias: str = "nt"
) -> None:
    dtype = torch.float32 if adds else torch.bfloat16
    a, b = normal(device, m, k), normal(device, n, k)
    d = torch.randn(m, n, device=device).to(dtype) * 32
    c = d if adds else None
    addend = d.clone() if adds else torch.zeros_like(d)
    cast_b = deep_gemm.per_token_cast_to_fp8 if rows_of_b == 1 else deep_gemm.per_block_cast_to_fp8
    left, right = deep_gemm.per_token_cast_to_fp8(a, use_ue8m0=False), cast_b(b, use_ue8m0=False)
    exact = addend + values_of(left, 1) @ values_of(right, rows_of_b).T
    recipe = (1, rows_of_b, 128)
    if alias == "nn":
        right = (right[0].T, right[1].T)
    getattr(deep_gemm, f"fp8_gemm_{alias}")(left, right, d, c=c, recipe=recipe)
    expect_close(d, addend + a.float() @ b.float().T, exact)


def group_sizes(groups: int, expected: int) -> list[int]:
    return [int(expected * random.uniform(0.7, 1.3)) for _ in range(groups)]


def check_contiguous(
    device: str, groups: int, expected: int, n: int, k: int, alignment: int
) -> None:
    sizes = group_sizes(groups, expected)
    indices: list[int] = []
    for group, size in enumerate(sizes):
        padding = -size % alignment
        indices += [group] * size + [-1] * padding
    m_indices = torch.tensor(indices, dtype=torch.int32, device=device)
    m = len(indices)
    a, b = normal(device, m, k), normal(device, groups, n, k)
    left = deep_gemm.per_token_cast_to_fp8(a, use_ue8m0=False)
    right = stacked(b, deep_gemm.per_block_cast_to_fp8)
    d = torch.full((m, n), 7.0, dtype=torch.bfloat16, device=device)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(left, right, d, m_indices)
    assert (d[m_indices < 0] == 7).all()  # nobody writes padding
    of_a, of_b = values_of(left, 1), values_of(right, 128)
    for group in range(groups):
        rows = m_indices == group
        expect_close(d[rows], a[rows].float() @ b[group].float().T, of_a[rows] @ of_b[group].T)


def check_masked(device: str, groups: int, max_m: int, expected: int, n: int, k: int) -> None:
    a, b = normal(device, groups, max_m, k), normal(device, groups, n, k)
    left = stacked(a, deep_gemm.per_token_cast_to_fp8)
    right = stacked(b, deep_gemm.per_block_cast_to_fp8)
    sizes = [min(size, max_m) for size in group_sizes(groups, expected)]
    masked_m = torch.tensor(sizes, dtype=torch.int32, device=device)
    d = torch.full((groups, max_m, n), 7.0, dtype=torch.bfloat16, device=device)
    deep_gemm.m_grouped_fp8_gemm_nt_masked(left, right, d, masked_m, expected)
    of_a, of_b = values_of(left, 1), values_of(right, 128)
    for group, size in enumerate(sizes):
        before = a[group, :size].float() @ b[group].float().T
        expect_close(d[group, :size], before, of_a[group, :size] @ of_b[group].T)
        assert (d[group, size:] == 7).all()


def check_k_grouped(device: str, groups: int, m: int, n: int, ks: list[int]) -> None:
    """Operands as DeepGEMM's kernel for Hopper reads them: a group's matrix behind another's."""
    c = torch.randn(groups, m, n).to(device) * 32
    a = [normal(device, m, k) for k in ks]
    b = [normal(device, n, k) for k in ks]

    def cast(matrices: list[torch.Tensor]) -> Any:
        pairs = [deep_gemm.per_token_cast_to_fp8(x, use_ue8m0=False) for x in matrices]
        flat = torch.cat([values.view(torch.uint8).flatten() for values, _ in pairs])
        scales = torch.cat([scales for _, scales in pairs], 1)
        return pairs, (flat.view(torch.float8_e4m3fn), scales)

    (pairs_a, left), (pairs_b, right) = cast(a), cast(b)
    d = c.clone()
    ks_tensor = torch.tensor(ks, dtype=torch.int32, device=device)
    deep_gemm.k_grouped_fp8_gemm_nt_contiguous(left, right, d, ks, ks_tensor, c=d)
    for group in range(groups):
        exact = c[group] + values_of(pairs_a[group], 1) @ values_of(pairs_b[group], 1).T
        expect_close(d[group], c[group] + a[group].float() @ b[group].float().T, exact)


def k_sizes(groups: int, expected: int) -> Iterator[list[int]]:
    """As DeepGEMM draws them, and with an empty group."""
    sizes = [max(size // 128, 1) * 128 for size in group_sizes(groups, expected)]
    yield sizes
    yield [*sizes[:-1], 0]
