"""blockscale.compat.hpc on a GPU: what the CPU gives, in hpc-ops' own sizes where that one is fast
enough. `./dev gpu-test` runs these where there is a GPU."""

from __future__ import annotations

from typing import Any

import pytest
from gpu_torch import torch

from blockscale.compat import hpc  # isort: skip (where there is no torch, gpu_torch says so first)

FP8 = torch.float8_e4m3fn


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(41)


def on_gpu(given: Any) -> Any:
    return [x.cuda() if isinstance(x, torch.Tensor) else x for x in given]


def expect_the_cpus(function: Any, given: Any, largest: float, **options: Any) -> None:
    cpu, gpu = function(*given, **options), function(*on_gpu(given), **options).cpu()
    assert (gpu.double() - cpu.double()).norm() <= largest * cpu.double().norm()


def groups_of(groups: int, rows: int) -> tuple[Any, Any]:
    seqlens = torch.full((groups,), rows, dtype=torch.int32)
    return seqlens, torch.nn.functional.pad(seqlens.cumsum(0), (1, 0)).int()


@pytest.mark.parametrize("rows", [8, 64, 128])
def test_group_gemm_pertensor(rows: int) -> None:
    x, w = torch.randn(8 * rows, 7168).to(FP8), torch.randn(8, 512, 7168).to(FP8)
    expect_the_cpus(hpc.group_gemm_pertensor_fp8, (x, w, *groups_of(8, rows), torch.rand(8)), 2**-8)


def test_group_gemm_blockwise() -> None:
    groups, rows, tile, n, k = 32, 30, 32, 1024, 4096
    x, w = torch.randn(groups * rows, k).to(FP8), torch.randn(groups, n, k).to(FP8)
    scales = torch.rand(k // 128, groups * tile), torch.rand(groups, n // 128, k // 128)
    given = (x, w, *groups_of(groups, rows), *scales)
    expect_the_cpus(hpc.group_gemm_blockwise_fp8, given, 2**-8, num_seq_per_group_avg=rows)


@pytest.mark.parametrize("tokens", [1, 4, 128])
@pytest.mark.parametrize("is_pertensor", [False, True])
def test_fuse_moe(tokens: int, is_pertensor: bool) -> None:
    experts, hidden, inner, top_k = 32, 512, 256, 8
    ids = torch.multinomial(torch.ones(tokens, 2 * experts), top_k).int()
    weights = torch.rand(tokens, top_k)
    x = (torch.randn(tokens, hidden) / 100).to(FP8)
    w13, w2 = (
        torch.randn(experts, 2 * inner, hidden).to(FP8),
        torch.randn(experts, hidden, inner).to(FP8),
    )
    routing = (ids, weights, 1, 2 * experts)
    if is_pertensor:
        scales = torch.rand(experts), torch.rand(experts), torch.tensor([2.0])
        expect_the_cpus(hpc.fuse_moe_pertensor_fp8, (x, w13, w2, *scales, *routing), 0.02)
        return
    up_scale = torch.rand(experts, 2 * inner // 128, hidden // 128) * 0.02
    down_scale = torch.rand(experts, hidden // 128, inner // 128) * 0.02
    given = (x, torch.rand(tokens, hidden // 128), w13, up_scale, w2, down_scale, *routing)
    expect_the_cpus(hpc.fuse_moe_blockwise_fp8, given, 0.006)
