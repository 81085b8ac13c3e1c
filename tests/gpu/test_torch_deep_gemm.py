"""blockscale.compat.deep_gemm on a GPU: DeepGEMM's own cases as they are, and a graph that is
replayed with other groups. `./dev gpu-test` runs these where there is a GPU."""

from __future__ import annotations

import pathlib
import random
import sys

import pytest
from gpu_torch import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "package/compat"))

import deep_gemm_cases as cases  # noqa: E402
from blockscale.compat import deep_gemm  # noqa: E402


@pytest.fixture(autouse=True)
def seed() -> None:
    random.seed(0)
    torch.manual_seed(0)


@pytest.mark.parametrize(("n", "k"), cases.DENSE_NK)
@pytest.mark.parametrize("m", [1, 128, 4096])
def test_gemm(m: int, n: int, k: int) -> None:
    cases.check_dense("cuda", m, n, k, adds=False)


def test_gemm_that_adds() -> None:
    cases.check_dense("cuda", 2112, 7168, 4096, adds=True, rows_of_b=1)


@pytest.mark.parametrize("alignment", [1, 128])
@pytest.mark.parametrize(("groups", "expected"), cases.CONTIGUOUS_GROUPS)
@pytest.mark.parametrize(("n", "k"), cases.GROUPED_NK)
def test_m_grouped_gemm_contiguous(
    groups: int, expected: int, n: int, k: int, alignment: int
) -> None:
    cases.check_contiguous("cuda", groups, expected, n, k, alignment)


@pytest.mark.parametrize(("groups", "expected"), cases.MASKED_GROUPS)
@pytest.mark.parametrize(("n", "k"), cases.GROUPED_NK)
def test_m_grouped_gemm_masked(groups: int, expected: int, n: int, k: int) -> None:
    cases.check_masked("cuda", groups, 4096, expected, n, k)


@pytest.mark.parametrize(("groups", "m", "n", "k"), cases.K_GROUPS)
def test_k_grouped_gemm_contiguous(groups: int, m: int, n: int, k: int) -> None:
    for ks in cases.k_sizes(groups, k):
        cases.check_k_grouped("cuda", groups, m, n, ks)


def test_a_graph_may_have_other_groups() -> None:
    a = deep_gemm.per_token_cast_to_fp8(cases.normal("cuda", 6, 256), use_ue8m0=False)
    b = cases.stacked(cases.normal("cuda", 3, 64, 256), deep_gemm.per_block_cast_to_fp8)
    m_indices = torch.tensor([0, 0, 1, 1, 2, 2], dtype=torch.int32, device="cuda")
    d = torch.zeros(6, 64, dtype=torch.bfloat16, device="cuda")
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, b, d, m_indices)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, b, d, m_indices)
    m_indices.copy_(torch.tensor([2, -1, 0, 0, 0, 1]))
    d.zero_()
    graph.replay()
    expected = torch.zeros_like(d)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, b, expected, m_indices)
    assert d.equal(expected)
    assert (d[1] == 0).all()
