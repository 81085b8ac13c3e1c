"""blockscale.compat.deep_gemm on the CPU: DeepGEMM's own cases in smaller sizes, its layouts, and
what is refused. tests/gpu/test_torch_deep_gemm.py has the sizes as they are."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")

import deep_gemm_cases as cases  # noqa: E402
from blockscale.compat import deep_gemm  # noqa: E402


@pytest.fixture(autouse=True)
def seed() -> None:
    random.seed(0)
    torch.manual_seed(0)


@pytest.mark.parametrize(("n", "k"), cases.DENSE_NK)
@pytest.mark.parametrize("m", [1, 16])
def test_gemm(m: int, n: int, k: int) -> None:
    for alias in ("nt", "nn"):
        cases.check_dense("cpu", m, n // 8, k // 4, adds=False, alias=alias)


@pytest.mark.parametrize("rows_of_b", [1, 128])
def test_gemm_that_adds(rows_of_b: int) -> None:
    cases.check_dense("cpu", 200, 300, 520, adds=True, rows_of_b=rows_of_b)


@pytest.mark.parametrize("alignment", [1, 128])
@pytest.mark.parametrize(("groups", "expected"), cases.CONTIGUOUS_GROUPS)
def test_m_grouped_gemm_contiguous(groups: int, expected: int, alignment: int) -> None:
    for n, k in cases.GROUPED_NK:
        cases.check_contiguous("cpu", groups, expected // 128, n // 16, k // 8, alignment)


@pytest.mark.parametrize(("groups", "expected"), cases.MASKED_GROUPS)
def test_m_grouped_gemm_masked(groups: int, expected: int) -> None:
    for n, k in cases.GROUPED_NK:
        cases.check_masked("cpu", groups, 64, expected // 16, n // 16, k // 8)


@pytest.mark.parametrize(("groups", "m", "n", "k"), cases.K_GROUPS)
def test_k_grouped_gemm_contiguous(groups: int, m: int, n: int, k: int) -> None:
    for ks in cases.k_sizes(groups, k // 16):
        cases.check_k_grouped("cpu", groups, m // 32, n // 32, ks)


def pair(m: int = 5, k: int = 256) -> Any:
    return deep_gemm.per_token_cast_to_fp8(cases.normal("cpu", m, k), use_ue8m0=False)


def block_pair(n: int = 130, k: int = 256) -> Any:
    return deep_gemm.per_block_cast_to_fp8(cases.normal("cpu", n, k), use_ue8m0=False)


def result(*shape: int) -> Any:
    return torch.full(shape, 7.0, dtype=torch.bfloat16)


def test_scales_may_lie_by_columns() -> None:
    a, b = pair(), block_pair()
    expected, d = result(5, 130), result(5, 130)
    deep_gemm.fp8_gemm_nt(a, b, expected)
    aligned = deep_gemm.get_mn_major_tma_aligned_tensor(a[1])
    assert aligned.stride() == (1, 8)
    assert aligned.equal(a[1])
    assert deep_gemm.get_mn_major_tma_aligned_tensor(aligned) is aligned
    deep_gemm.fp8_gemm_nt((a[0], aligned), b, d)
    assert d.equal(expected)
    groups = torch.stack([a[1], a[1]])
    assert deep_gemm.get_mn_major_tma_aligned_tensor(groups).stride() == (16, 1, 8)


def test_scales_are_cast_as_there() -> None:
    x = cases.normal("cpu", 3, 300)
    x[1] = 0
    values, scales = deep_gemm.per_token_cast_to_fp8(x, use_ue8m0=False)
    amax = torch.nn.functional.pad(x, (0, 84)).view(3, 3, 128).abs().amax(2).float()
    assert scales.equal(amax.clamp(1e-4) / 448)
    assert (values.float()[1] == 0).all()
    _, rounded = deep_gemm.per_block_cast_to_fp8(x, use_ue8m0=True)
    assert rounded.shape == (1, 3)
    assert rounded.log2().frac().eq(0).all()
    assert (rounded >= amax.amax(0) / 448).all()
    assert (rounded < amax.amax(0) / 448 * 2).all()


def test_scales_in_the_required_layout() -> None:
    a, b = pair(), block_pair()
    transform = deep_gemm.transform_sf_into_required_layout
    assert transform(a[1], 5, 256, (1, 128)).stride() == (1, 8)
    assert transform(a[1], 5, 256, (1, 128, 128), is_sfa=True).equal(a[1])
    assert transform(b[1], 130, 256, (1, 128, 128), is_sfa=False) is b[1]
    with pytest.raises(ValueError, match=r"is_sfa: is None"):
        transform(a[1], 5, 256, (1, 128, 128))
    with pytest.raises(ValueError, match=r"sf: shape is \(5, 2\), must be \(6, 2\)"):
        transform(a[1], 6, 256, (1, 128))
    with pytest.raises(ValueError, match=r"recipe: is \(1, 32\), must be \(1, 128\) or"):
        transform(a[1], 5, 256, (1, 32))


def test_alignment_is_what_was_said() -> None:
    assert deep_gemm.get_mk_alignment_for_contiguous_layout() == 1
    deep_gemm.set_mk_alignment_for_contiguous_layout(128)
    assert deep_gemm.get_mk_alignment_for_contiguous_layout() == 128
    with pytest.raises(ValueError, match="alignment: is 0"):
        deep_gemm.set_mk_alignment_for_contiguous_layout(0)
    deep_gemm.set_mk_alignment_for_contiguous_layout(1)
    assert deep_gemm.get_tma_aligned_size(5, 4) == 8
    assert deep_gemm.ceil_div(257, 128) == 3


def test_empty_groups_and_rows() -> None:
    b = cases.stacked(cases.normal("cpu", 3, 20, 128), deep_gemm.per_block_cast_to_fp8)
    none = torch.zeros(0, dtype=torch.int32)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(pair(0, 128), b, result(0, 20), none)
    d = result(2, 20)
    padding = torch.tensor([-1, -1], dtype=torch.int32)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(pair(2, 128), b, d, padding)
    assert (d == 7).all()
    # Groups in any order.
    a, d = pair(4, 128), result(4, 20)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, b, d, torch.tensor([2, 0, 0, -1]).int())
    for row, group in enumerate((2, 0, 0)):
        one = result(1, 20)
        deep_gemm.fp8_gemm_nt(
            (a[0][row : row + 1], a[1][row : row + 1]), (b[0][group], b[1][group]), one
        )
        assert cases.difference(d[row : row + 1], one) < cases.LARGEST_ROUNDING
    assert (d[3] == 7).all()


def refuses(error: type[Exception], match: str, function: Any, *args: Any, **options: Any) -> None:
    d = next(x for x in args if isinstance(x, torch.Tensor) and x.dtype == torch.bfloat16)
    with pytest.raises(error, match=match):
        function(*args, **options)
    assert (d == 7).all()  # nothing is written


def test_what_is_no_operand_is_refused() -> None:
    a, b, d = pair(), block_pair(), result(5, 130)
    nt = deep_gemm.fp8_gemm_nt
    refuses(TypeError, r"a: is a Tensor, must be \(values, scales\)", nt, a[0], b, d)
    refuses(TypeError, r"a: has dtype torch.float32", nt, (a[0].float(), a[1]), b, d)
    packed = (a[0], a[1].int())
    refuses(TypeError, r"a\[1\]: has dtype torch.int32.*packed UE8M0", nt, packed, b, d)
    refuses(ValueError, r"a\[1\]: shape is \(4, 2\), must be \(5, 2\)", nt, (a[0], a[1][:4]), b, d)
    refuses(
        ValueError,
        r"b\[1\]: shape is \(2, 2\), must be \(130, 2\)",
        nt,
        a,
        b,
        d,
        recipe=(1, 1, 128),
    )
    refuses(ValueError, r"recipe: is \(1, 32\)", nt, a, b, d, recipe=(1, 128, 32))
    refuses(ValueError, r"c: is torch.float32 of shape \(5, 130\)", nt, a, b, d, c=d.float())
    refuses(ValueError, r"a: shape is", nt, (a[0][None], a[1][None]), b, d)
    by_columns = (a[0].view(torch.uint8).T.contiguous().T.view(a[0].dtype), a[1])
    refuses(
        ValueError, r"a: strides are \(1, 5\), its rows must lie in one piece", nt, by_columns, b, d
    )
    refuses(ValueError, r"a: strides are", deep_gemm.fp8_gemm_tn, a, b, d)
    refuses(ValueError, r"a: strides are", deep_gemm.fp8_gemm_tt, a, b, d)


def test_what_are_no_groups_is_refused() -> None:
    a = pair(4, 128)
    b = cases.stacked(cases.normal("cpu", 3, 20, 128), deep_gemm.per_block_cast_to_fp8)
    d = result(4, 20)
    contiguous = deep_gemm.m_grouped_fp8_gemm_nt_contiguous
    long = torch.zeros(4, dtype=torch.int64)
    refuses(ValueError, r"m_indices: is torch.int64 of shape \(4,\)", contiguous, a, b, d, long)
    apart = torch.tensor([0, 1, 0, 1]).int()
    refuses(ValueError, r"m_indices: rows of group 0 are apart", contiguous, a, b, d, apart)
    beyond = torch.tensor([0, 3, 3, 3]).int()
    refuses(ValueError, r"m_indices: has 3, must be below 3", contiguous, a, b, d, beyond)
    refuses(ValueError, r"a: has its columns", deep_gemm.k_grouped_fp8_gemm_tn_contiguous, d)
    k_grouped = deep_gemm.k_grouped_fp8_gemm_nt_contiguous
    flat = (a[0].flatten(), a[1])
    d3, ks = torch.zeros(1, 4, 4), torch.tensor([128]).int()
    with pytest.raises(ValueError, match=r"ks: is \[100\], must be 1 multiples of 128"):
        k_grouped(flat, flat, d3, [100], ks)
    with pytest.raises(ValueError, match=r"a: shape is \(512,\), must be \(1024,\)"):
        k_grouped(flat, flat, d3, [256], ks * 2)
    with pytest.raises(ValueError, match=r"recipe: is \(1, 128, 128\)"):
        k_grouped(flat, flat, d3, [128], ks, recipe=(1, 128, 128))
    with pytest.raises(ValueError, match=r"ks_tensor: is \[128\], must be \[256\]"):
        k_grouped(flat, flat, d3, [256], ks)
    with pytest.raises(TypeError, match=r"a: has dtype torch.bfloat16"):
        k_grouped((flat[0].bfloat16(), flat[1]), flat, d3, [128], ks)
    narrow = torch.full((1, 4, 4), 7.0, dtype=torch.bfloat16)
    with pytest.raises((TypeError, ValueError), match=r"out.*f32|float32"):
        k_grouped(flat, flat, narrow, [128], ks, c=narrow.clone())
    assert (narrow == 7).all()
    turned = torch.zeros(1, 4, 4)
    for c in (turned.transpose(1, 2), torch.zeros(2, 4, 4)[:1]):
        apart = c.data_ptr() != turned.data_ptr()
        if apart:
            k_grouped(flat, flat, turned, [128], ks, c=c)
            continue
        with pytest.raises(ValueError, match="c: shares memory with d"):
            k_grouped(flat, flat, turned, [128], ks, c=c)


def test_what_is_added_may_lie_apart() -> None:
    """The same as in place, in one rounding more."""
    a, b = pair(6, 128), pair(4, 128)
    left, right = (a[0].flatten(), a[1]), (b[0].flatten(), b[1])
    c, ks = torch.randn(1, 6, 4), torch.tensor([128]).int()
    there, d = c.clone(), torch.full((1, 6, 4), float("nan"))
    deep_gemm.k_grouped_fp8_gemm_nt_contiguous(left, right, there, [128], ks, c=there)
    deep_gemm.k_grouped_fp8_gemm_nt_contiguous(left, right, d, [128], ks, c=c)
    torch.testing.assert_close(d, there)


def test_what_is_cast_may_lie_anyhow() -> None:
    x = cases.normal("cpu", 256, 130).requires_grad_()
    for cast in (deep_gemm.per_token_cast_to_fp8, deep_gemm.per_block_cast_to_fp8):
        values, scales = cast(x.T, use_ue8m0=False)
        expected = cast(x.T.detach().contiguous(), use_ue8m0=False)
        assert values.view(torch.uint8).equal(expected[0].view(torch.uint8))
        assert scales.equal(expected[1])
