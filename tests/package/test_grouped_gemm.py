"""Products of groups: values against float64 and against gemm of each group, every option, what
becomes of rows that no group has, and what bad input gets."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import blockscale
import ml_dtypes
import numpy as np
import pytest

PAIRS = [
    ("fp8_1x128", "fp8_128x128"),
    ("fp8_row", "fp8_row"),
    ("fp8_tensor", "fp8_tensor"),
    ("mxfp8_e4m3", "mxfp4"),
    ("mxfp8_e5m2", "mxfp6_e3m2"),
    ("nvfp4", "nvfp4"),
]
OFFSETS = np.array([0, 3, 3, 20, 21], np.int32)  # of 4 groups, one of them empty, and of 24 rows
ROWS, GROUPS, N, K = 24, 4, 40, 256


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def operands(left: str = "mxfp8_e4m3", right: str = "mxfp4") -> tuple[Any, Any]:
    return (
        blockscale.quantize(normal(ROWS, K), left),
        blockscale.quantize(normal(GROUPS, N, K, seed=1), right),
    )


def values(x: Any) -> np.ndarray:
    return (blockscale.dequantize(x) if isinstance(x, blockscale.ScaledTensor) else x).astype(float)


def bound(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """docs/numerics.md, with c = 16 of normal inputs, and half an ulp of f32."""
    return 17 * 2.0**-24 * (np.abs(a) @ np.abs(b).T)


def group_rows(offsets: np.ndarray = OFFSETS) -> list[tuple[int, slice]]:
    return [(g, slice(offsets[g], offsets[g + 1])) for g in range(len(offsets) - 1)]


def integers(*shape: int, seed: int) -> np.ndarray:
    """Whose products f32 holds exactly."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_pairs(left: str, right: str) -> None:
    a, b = operands(left, right)
    x, y = values(a), values(b)
    d = blockscale.grouped_gemm(a, b, OFFSETS)
    assert d.shape == (ROWS, N) and d.dtype == np.float32
    for g, rows in group_rows():
        assert (np.abs(d[rows] - x[rows] @ y[g].T) <= bound(x[rows], y[g])).all()
        assert not (np.abs(d[rows] - x[rows] @ y[g - 1].T) <= bound(x[rows], y[g - 1])).any()
    assert (d[21:] == 0).all()


@pytest.mark.parametrize(("left", "right"), PAIRS)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_bits_are_those_of_each_group_alone(left: str, right: str, threads: int) -> None:
    a, b = operands(left, right)
    d = blockscale.grouped_gemm(a, b, OFFSETS, threads=threads)
    for g, rows in group_rows():
        if rows.start < rows.stop:
            alone = blockscale.gemm(a[rows], b[g])
            assert np.array_equal(d[rows], alone), g


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_plain_activations_keep_their_dtype(dtype: type) -> None:
    a = normal(ROWS, K).astype(dtype)
    b = blockscale.quantize(normal(GROUPS, N, K, seed=1), "mxfp8_e4m3")
    d = blockscale.grouped_gemm(a, b, OFFSETS)
    assert d.dtype == dtype
    for g, rows in group_rows():
        exact = values(a)[rows] @ values(b)[g].T
        assert np.allclose(d[rows].astype(float), exact, rtol=2.0**-8, atol=1e-3)
    assert blockscale.grouped_gemm(a, b, OFFSETS, out_dtype="float16").dtype == np.float16


def test_options_are_exact_on_integers() -> None:
    a, b = integers(ROWS, 64, seed=1), integers(GROUPS, N, 64, seed=2)
    bias = integers(GROUPS, N, seed=3)
    alpha = np.array([1.0, 0.5, -2.0, 4.0], np.float32)
    d = blockscale.grouped_gemm(a, b, OFFSETS, alpha=alpha, bias=bias)
    for g, rows in group_rows():
        assert np.array_equal(d[rows], alpha[g] * (a[rows] @ b[g].T) + bias[g])
    halved = blockscale.grouped_gemm(a, b, OFFSETS, alpha=0.5)
    for g, rows in group_rows():
        assert np.array_equal(halved[rows], 0.5 * (a[rows] @ b[g].T))
    half = bias.astype(np.float16)
    again = blockscale.grouped_gemm(a, b, OFFSETS, alpha=alpha, bias=half)
    assert np.array_equal(again, d)


def test_rows_outside_of_groups() -> None:
    a, b = integers(ROWS, 64, seed=1), integers(GROUPS, N, 64, seed=2)
    want = blockscale.grouped_gemm(a, b, OFFSETS)
    assert (want[21:] == 0).all() and (want[:21] != 0).any(axis=1).all()
    out = np.full((ROWS, N + 3), 7, np.float32)[:, :N]  # with a stride
    assert blockscale.grouped_gemm(a, b, OFFSETS, out=out) is out
    assert np.array_equal(out[:21], want[:21]) and (out[21:] == 7).all()
    assert (out.base[:, N:] == 7).all()


def test_lengths_and_groups_in_any_order() -> None:
    a, b = integers(ROWS, 64, seed=1), integers(GROUPS, N, 64, seed=2)
    begins, lengths = np.array([[16, 0, 8, 22], [4, 3, 0, 2]], np.int32)
    d = blockscale.grouped_gemm(a, b, begins, lengths=lengths)
    want = np.zeros_like(d)
    for g, (begin, length) in enumerate(zip(begins, lengths, strict=True)):
        rows = slice(begin, begin + length)
        want[rows] = a[rows] @ b[g].T
    assert np.array_equal(d, want)
    padded = np.append(begins, 24).astype(np.int32)  # as a prefix sum of padded groups has it
    assert np.array_equal(blockscale.grouped_gemm(a, b, padded, lengths=lengths), want)


def test_numbers_that_are_no_rows_are_cut() -> None:
    a, b = integers(ROWS, 64, seed=1), integers(GROUPS, N, 64, seed=2)
    wild = np.array([-5, 3, 3, 20, 2**31 - 1], np.int32)
    tame = np.array([0, 3, 3, 20, 24], np.int32)
    assert np.array_equal(blockscale.grouped_gemm(a, b, wild), blockscale.grouped_gemm(a, b, tame))


def test_rows_are_gathered() -> None:
    a, b = integers(ROWS, 64, seed=1), integers(GROUPS, N, 64, seed=2)
    index = np.array([5, 5, 23, 0, -1, 9, 24, 1], np.int32)  # -1 and 24 are no rows
    offsets = np.array([0, 3, 4, 4, 7], np.int32)
    d = blockscale.grouped_gemm(a, b, offsets, index=index)
    rows = np.where(((index >= 0) & (index < ROWS))[:, None], a[index % ROWS], 0)
    assert d.shape == (8, N) and (d[7] == 0).all()
    for g, of in group_rows(offsets):
        assert np.array_equal(d[of], rows[of] @ b[g].T)


@pytest.mark.parametrize("recipe", ["fp8_1x128", "nvfp4", "mxfp6_e2m3"])
def test_gathered_rows_of_every_kind_of_scale(recipe: str) -> None:
    a, b = operands(recipe, "fp8_128x128" if recipe.startswith("fp8") else recipe)
    index = np.array([7, 1, 1, 20, 3, 23], np.int32)
    offsets = np.array([0, 1, 3, 3, 6], np.int32)
    x, y = values(a)[index], values(b)
    d = blockscale.grouped_gemm(a, b, offsets, index=index)
    for g, rows in group_rows(offsets):
        assert (np.abs(d[rows] - x[rows] @ y[g].T) <= bound(x[rows], y[g])).all()


def test_rows_go_where_they_belong() -> None:
    a, b = integers(ROWS, 64, seed=1), integers(GROUPS, N, 64, seed=2)
    d = blockscale.grouped_gemm(a, b, OFFSETS)
    to = np.random.default_rng(4).permutation(30)[:ROWS].astype(np.int32)
    to[2] = -1  # nowhere, as 30 is
    to[8] = 30
    weights = np.exp2(np.arange(ROWS) % 5 - 2).astype(np.float32)
    want = np.zeros((30, N), np.float32)
    for r in range(21):
        if 0 <= to[r] < 30:
            want[to[r]] = weights[r] * d[r]
    options = {"destinations": to, "weights": weights}
    got = blockscale.grouped_gemm(a, b, OFFSETS, out_rows=30, **options)
    assert np.array_equal(got, want)
    out = np.full((30, N), 7, np.float32)
    blockscale.grouped_gemm(a, b, OFFSETS, out=out, **options)
    reached = [t for t in to[:21] if 0 <= t < 30]
    assert np.array_equal(out[reached], want[reached])
    assert (np.delete(out, reached, axis=0) == 7).all()


def test_rows_are_added() -> None:
    a, b = integers(ROWS, 64, seed=1), integers(GROUPS, N, 64, seed=2)
    d = blockscale.grouped_gemm(a, b, OFFSETS)
    to = (np.arange(ROWS) % 4).astype(np.int32)
    want = np.zeros((5, N), np.float32)
    np.add.at(want, to[:21], 0.5 * d[:21])
    options = {"destinations": to, "weights": np.full(ROWS, 0.5, np.float32), "add": True}
    assert np.array_equal(blockscale.grouped_gemm(a, b, OFFSETS, out_rows=5, **options), want)
    out = np.ones((5, N), np.float32)
    blockscale.grouped_gemm(a, b, OFFSETS, out=out, **options)
    assert np.array_equal(out, want + 1)
    half = a.astype(np.float16)  # of which results are f16, but for sums
    assert blockscale.grouped_gemm(half, b, OFFSETS, out_rows=5, **options).dtype == np.float32


@pytest.mark.parametrize("transform", ["gelu_tanh", "silu", "swiglu", blockscale.Swiglu(group=1)])
@pytest.mark.parametrize("moves", [False, True])
def test_transforms_are_those_of_gemm(transform: Any, moves: bool) -> None:
    a, b = operands()
    bias = normal(GROUPS, N, seed=2)
    options: dict[str, Any] = {"bias": bias, "transform": transform, "out_dtype": "float16"}
    to = np.arange(ROWS, dtype=np.int32)[::-1].copy()
    if moves:
        d = blockscale.grouped_gemm(a, b, OFFSETS, destinations=to, out_rows=ROWS, **options)[::-1]
    else:
        d = blockscale.grouped_gemm(a, b, OFFSETS, **options)
    assert d.shape == (ROWS, N if transform in ("gelu_tanh", "silu") else N // 2)
    for g, rows in group_rows():
        if rows.start < rows.stop:
            alone = blockscale.gemm(a[rows], b[g], **(options | {"bias": bias[g]}))
            assert np.array_equal(d[rows], alone)


def parts(x: blockscale.ScaledTensor) -> tuple[np.ndarray, np.ndarray]:
    """Values and scales, row_major, as bytes."""
    values, scales = (np.asarray(part).view(np.uint8) for part in (x.values, x.scales))
    return values, scales.reshape(values.shape[0], -1)


@pytest.mark.parametrize(
    "recipe", ["fp8_1x128", "fp8_1x128_ue8m0", "fp8_row", "mxfp8_e4m3", "nvfp4"]
)
@pytest.mark.parametrize("transform", ["identity", "swiglu", blockscale.Swiglu(group=1)])
@pytest.mark.parametrize("is_gathered", [False, True])
def test_quantized_results_are_quantize_of_the_product(
    recipe: str, transform: Any, is_gathered: bool
) -> None:
    a = blockscale.quantize(normal(ROWS, K), "fp8_1x128")
    b = blockscale.quantize(normal(GROUPS, 192, K, seed=1), "fp8_128x128")
    index = np.random.default_rng(4).integers(-1, ROWS + 1, 30).astype(np.int32)
    product: dict[str, Any] = {"index": index} if is_gathered else {}
    product |= {"alpha": np.array([1.0, 0.5, -2.0, 3.0], np.float32)}
    product |= {"bias": normal(GROUPS, 192, seed=2)}
    result = {"transform": transform, "tensor_scale": 30.0 if recipe == "nvfp4" else None}
    wanted = blockscale.quantize(
        blockscale.grouped_gemm(a, b, OFFSETS, **product), recipe, **result
    )
    made = blockscale.grouped_gemm_quantize(a, b, OFFSETS, recipe, **product, **result)
    assert made.shape == wanted.shape == (30 if is_gathered else ROWS, wanted.shape[1])
    before = blockscale.quantize(normal(*made.shape, seed=3), recipe)
    out = blockscale.quantize(normal(*made.shape, seed=3), recipe)
    more = product | result | {"out": out}
    assert blockscale.grouped_gemm_quantize(a, b, OFFSETS, recipe, **more) is out
    for want, was, into, new in zip(
        parts(wanted), parts(before), parts(out), parts(made), strict=True
    ):
        assert np.array_equal(new[:21], want[:21]) and (new[21:] == 0).all()
        assert np.array_equal(into[:21], want[:21]) and np.array_equal(into[21:], was[21:])
        assert (want[:21] != was[:21]).any() and was[21:].any()


def test_quantized_results_in_other_layouts_and_groups_apart() -> None:
    a = blockscale.quantize(normal(ROWS, K), "mxfp8_e4m3")
    b = blockscale.quantize(normal(GROUPS, 160, K, seed=1), "mxfp4")
    begins, lengths = np.array([[16, 0, 8, 22], [4, 3, 0, 2]], np.int32)
    d = blockscale.grouped_gemm(a, b, begins, lengths=lengths, transform="gelu_erf")
    options: dict[str, Any] = {"layout": "swizzled_128x4", "scale_mode": "even"}
    got = blockscale.grouped_gemm_quantize(
        a, b, begins, "mxfp8_e4m3", lengths=lengths, transform="gelu_erf", threads=2, **options
    )
    want = blockscale.quantize(d, "mxfp8_e4m3", **options)
    assert got.layout == want.layout and got.recipe == want.recipe
    assert np.array_equal(blockscale.dequantize(got), blockscale.dequantize(want))
    floors = [
        blockscale.grouped_gemm_quantize(a, b, OFFSETS, "fp8_1x128", amax_floor=floor).scales
        for floor in (0.0, 1e6)
    ]
    assert (floors[0][:21] < floors[1][:21]).all() and (floors[1][21:] == 0).all()


def test_what_quantized_results_refuse() -> None:
    b = np.ones((4, 64, 64), np.float32)

    def refuses(kind: type[Exception], message: str, recipe: str = "mxfp8_e4m3", **o: Any) -> None:
        offsets = o.pop("offsets", OFFSETS)
        with pytest.raises(kind, match="^" + re.escape(message)):
            blockscale.grouped_gemm_quantize(A, b, offsets, recipe, **o)

    refuses(TypeError, "offsets: is missing", offsets=None)
    refuses(ValueError, "out.recipe: is mxfp4, must be fp8_1x128", "mxfp4")
    refuses(ValueError, "tensor_scale: is missing, must be given for nvfp4", "nvfp4")
    refuses(ValueError, "scale_mode: given for fp8_1x128", "fp8_1x128", scale_mode="even")
    refuses(ValueError, "recipe: f32 is a plain format", "f32")
    weight = np.ones(64, np.float32)
    refuses(ValueError, "transform: is rms_norm, must be Identity, Gelu, Silu or Swiglu",
            transform=blockscale.RmsNorm(weight))  # fmt: skip
    out = blockscale.quantize(np.ones((23, 64), np.float32), "mxfp8_e4m3")
    refuses(ValueError, "out: (shape, recipe, layout) is ((23, 64), 'mxfp8_e4m3'", out=out)
    refuses(TypeError, "out: is a ndarray, must be a ScaledTensor", out=A)


@pytest.mark.parametrize("counts", [[3, 0, 6, 1], [-1, 99, 2, 6]])
def test_masked_groups(counts: list[int]) -> None:
    a, b = integers(GROUPS, 6, 64, seed=1), integers(GROUPS, N, 64, seed=2)
    alpha, bias = np.array([1, 2, 4, 8], np.float32), integers(GROUPS, N, seed=3)
    numbers = np.array(counts, np.int32)
    d = blockscale.masked_grouped_gemm(a, b, numbers, alpha=alpha, bias=bias)
    out = np.full((GROUPS, 6, N), 7, np.float32)
    assert blockscale.masked_grouped_gemm(a, b, numbers, alpha=alpha, bias=bias, out=out) is out
    for g, count in enumerate(np.clip(counts, 0, 6)):
        want = alpha[g] * (a[g, :count] @ b[g].T) + bias[g]
        assert np.array_equal(d[g, :count], want) and (d[g, count:] == 0).all()
        assert np.array_equal(out[g, :count], want) and (out[g, count:] == 7).all()


@pytest.mark.parametrize("invariant", [True, False])
@pytest.mark.parametrize("kind", ["plain", "quantized", "masked"])
def test_batch_invariant(invariant: bool, kind: str) -> None:
    """Of one group: each row alone has the bits that it has among all, or some row has not."""
    rows, k = 150, 512
    a, b = normal(rows, k), blockscale.quantize(normal(1, N, k, seed=1), "nvfp4")

    def product(a: np.ndarray) -> np.ndarray:
        ends, options = np.array([0, len(a)], np.int32), {"batch_invariant": invariant}
        if kind == "masked":
            return blockscale.masked_grouped_gemm(a[None], b, ends[1:], **options)[0]
        if kind == "plain":
            return blockscale.grouped_gemm(a, b, ends, **options)
        q = blockscale.grouped_gemm_quantize(a, b, ends, "fp8_1x128", **options)
        return np.concatenate([q.values.view(np.uint8), q.scales.view(np.uint8)], axis=1)

    alone = np.concatenate([product(a[r : r + 1]) for r in range(rows)])
    assert np.array_equal(product(a), alone) == invariant


@pytest.mark.parametrize("expected", [1, 7, 2**40])
def test_expected_rows_are_a_hint(expected: int) -> None:
    a, b = operands()
    hint = {"expected_rows": expected}
    d = blockscale.grouped_gemm(a, b, OFFSETS)
    assert np.array_equal(blockscale.grouped_gemm(a, b, OFFSETS, **hint), d)
    q, want = (
        blockscale.grouped_gemm_quantize(a, b, OFFSETS, "fp8_1x128", **given)
        for given in (hint, {})
    )
    assert all(np.array_equal(got, part) for got, part in zip(parts(q), parts(want), strict=True))
    x, counts = normal(GROUPS, 5, K), np.array([5, 0, 3, 1], np.int32)
    masked = blockscale.masked_grouped_gemm(x, b, counts, **hint)
    assert np.array_equal(masked, blockscale.masked_grouped_gemm(x, b, counts))


@pytest.mark.parametrize("recipe", ["f32", "mxfp8_e4m3", "fp8_row"])
def test_groups_of_k(recipe: str) -> None:
    a, b = normal(9, 160), normal(14, 160, seed=1)
    if recipe != "f32":
        a, b = blockscale.quantize(a, recipe), blockscale.quantize(b, recipe)
    x, y = values(a), values(b)
    offsets = np.array([0, 5, 5, 101, 150], np.int32)  # within blocks
    d = blockscale.k_grouped_gemm(a, b, offsets, alpha=2.0)
    assert d.shape == (4, 9, 14) and d.dtype == np.float32
    out = np.ones((4, 9, 14), np.float32)
    assert blockscale.k_grouped_gemm(a, b, offsets, alpha=2.0, add=True, out=out) is out
    for g, k in group_rows(offsets):
        exact, allowed = 2 * x[:, k] @ y[:, k].T, 2 * bound(x[:, k], y[:, k])
        assert (np.abs(d[g] - exact) <= allowed).all()
        assert (np.abs(out[g] - 1 - exact) <= allowed + 2.0**-20).all()
    assert (d[1] == 0).all() and (out[1] == 1).all()
    blockscale.k_grouped_gemm(a, b, offsets, out=out)
    assert (out[1] == 0).all()


def test_torch_in_torch_out() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")
    a, b = operands()
    left, right = (
        blockscale.quantize(torch.from_numpy(x), r)
        for x, r in ((normal(ROWS, K), "mxfp8_e4m3"), (normal(GROUPS, N, K, seed=1), "mxfp4"))
    )
    offsets = torch.from_numpy(OFFSETS)
    d = blockscale.grouped_gemm(left, right, offsets, out_dtype=torch.float32)
    assert torch.equal(d, torch.from_numpy(blockscale.grouped_gemm(a, b, OFFSETS)))
    with pytest.raises(TypeError, match=r"must be int32; convert it with \.to\(torch\.int32\)"):
        blockscale.grouped_gemm(left, right, offsets.long())


def test_nothing_to_do() -> None:
    b = integers(GROUPS, N, 64, seed=2)
    empty = np.zeros(GROUPS + 1, np.int32)
    nothing = np.zeros((0, 64), np.float32)
    assert blockscale.grouped_gemm(nothing, b, empty).shape == (0, N)
    index = np.zeros(0, np.int32)
    assert blockscale.grouped_gemm(np.ones((3, 64), np.float32), b, empty, index=index).shape == (
        0, N,
    )  # fmt: skip
    assert blockscale.k_grouped_gemm(nothing, nothing, empty).shape == (4, 0, 0)


A, B = np.ones((24, 64), np.float32), np.ones((4, 40, 64), np.float32)
INDEX = np.zeros(7, np.int32)
SHARED = np.ones((24, 40), np.float32)


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "message"),
    [
        ((A, B, OFFSETS.astype(np.int64)), {}, TypeError,
         'offsets: has dtype int64, must be int32; convert it with .astype("int32")'),
        ((A, B, [0, 1]), {}, TypeError, "offsets: is a list, must be an array"),
        ((A, B, None), {}, TypeError, "offsets: is missing; groups with rows of their own"),
        ((A, B, OFFSETS[:-1]), {}, ValueError,
         "offsets: has 4 elements, must have 5, one more than there are groups"),
        ((A, B, OFFSETS[None]), {}, ValueError, "offsets: must have one dimension"),
        ((A, B, np.repeat(OFFSETS, 2)[::2]), {}, ValueError,
         "offsets: its elements must be contiguous; copy it first"),
        ((A, B[0], OFFSETS), {}, ValueError, "b: shape is (40, 64), must be (G, N, K)"),
        ((A[None], B, OFFSETS), {}, ValueError, "a: shape is (1, 24, 64), must be (M, K)"),
        ((A[:, :32], B, OFFSETS), {}, ValueError, "b.k: is 64, must be 32, the k of a"),
        ((A, B[:0], np.zeros(1, np.int32)), {}, ValueError, "b.batch: is 0"),
        ((A, B, OFFSETS), {"lengths": OFFSETS}, ValueError,
         "lengths: has 5 elements, must have 4, one for each group of b"),
        ((A, B, OFFSETS), {"alpha": np.ones(3, np.float32)}, ValueError,
         "alpha: has 3 elements, must have 4, one for each group of b"),
        ((A, B, OFFSETS), {"alpha": np.ones(4)}, TypeError,
         "alpha: has dtype float64, must be float32"),
        ((A, B, OFFSETS), {"alpha": "2"}, TypeError, "alpha: is '2', must be a number"),
        ((A, B, OFFSETS), {"bias": np.ones(40, np.float32)}, ValueError, "bias: shape is (40)"),
        ((A, B, OFFSETS), {"bias": np.ones((4, 39), np.float32)}, ValueError,
         "bias: must be (groups, N) = (4, 40), the rows of b"),
        ((A, B, OFFSETS), {"bias": np.ones((4, 80), np.float32)[:, ::2]}, ValueError,
         "bias: stride of its last dimension"),
        ((A, B, OFFSETS), {"bias": np.ones((4, 50), np.float32)[:, :40]}, ValueError,
         "bias: must be contiguous"),
        ((A, B, OFFSETS), {"index": INDEX.astype(np.uint32)}, TypeError,
         "index: has dtype uint32, must be int32"),
        ((A, B, OFFSETS), {"weights": np.ones(24, np.float32)}, ValueError,
         "weights: is given, must not be without destinations"),
        ((A, B, OFFSETS), {"add": True}, ValueError,
         "add: is given, must not be without destinations"),
        ((A, B, OFFSETS), {"destinations": INDEX}, ValueError,
         "out: is missing; with destinations give it, or out_rows"),
        ((A, B, OFFSETS), {"destinations": INDEX, "out_rows": 3}, ValueError,
         "destinations: has 7 elements, must have 24, one for each row of the product"),
        ((A, B, OFFSETS), {"out_rows": 3}, ValueError, "out_rows: is given, goes with destin"),
        ((A, B, OFFSETS), {"out": np.ones((23, 40), np.float32)}, ValueError,
         "out: shape is (23, 40), must be (24, 40)"),
        ((A, B, OFFSETS), {"out": np.broadcast_to(np.float32(1), (24, 40))}, ValueError,
         "out: is read-only"),
        ((A, B, OFFSETS), {"out": A[:, :40]}, ValueError, "out: overlaps a.values"),
        ((A, B, OFFSETS), {"out": SHARED, "alpha": SHARED.reshape(-1)[:4]}, ValueError,
         "out: overlaps alpha, must not share memory with it"),
        ((A, B, OFFSETS), {"transform": "rms_norm"}, ValueError, "transform: is 'rms_norm'"),
        ((A, B[:, :39], OFFSETS), {"transform": "swiglu"}, ValueError, "must be even"),
        ((A, B, OFFSETS), {"threads": -1}, ValueError, "threads: is -1"),
        ((A, B, OFFSETS), {"expected_rows": -1}, ValueError, "expected_rows: is -1, must be"),
        ((A, B, OFFSETS), {"expected_rows": 1.5}, TypeError, "expected_rows: is 1.5, must be"),
        ((A, B, OFFSETS), {"out_dtype": "float64"}, TypeError, "out_dtype: is float64"),
        ((A, blockscale.quantize(B, "nvfp4"), OFFSETS), {"alpha": np.ones(2)}, TypeError, "alpha"),
        ((blockscale.quantize(A, "nvfp4"), blockscale.quantize(B, "mxfp4"), OFFSETS), {},
         ValueError, "b.recipe: is mxfp4 with a.recipe nvfp4: no such pair"),
    ],
)  # fmt: skip
def test_what_is_refused(
    arguments: Any, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match="^" + re.escape(message) if ": " in message else message):
        blockscale.grouped_gemm(*arguments, **options)


def test_what_sums_refuse() -> None:
    to = np.zeros(24, np.int32)
    out = np.zeros((3, 41), np.float16)[:, :40]
    with pytest.raises(ValueError, match="^out: is f16 whose rows do not begin and end at"):
        blockscale.grouped_gemm(A, B, OFFSETS, destinations=to, add=True, out=out)
    with pytest.raises(ValueError, match="^transform: is given, must not be with `add`$"):
        blockscale.grouped_gemm(
            A, B, OFFSETS, destinations=to, add=True, out_rows=3, transform="gelu_erf"
        )


def test_what_masked_groups_and_groups_of_k_refuse() -> None:
    a = np.ones((4, 6, 64), np.float32)
    counts = np.ones(4, np.int32)

    def refuses(kind: type[Exception], message: str, call: Any, *arguments: Any, **o: Any) -> None:
        with pytest.raises(kind, match="^" + re.escape(message)):
            call(*arguments, **o)

    masked, of_k = blockscale.masked_grouped_gemm, blockscale.k_grouped_gemm
    refuses(ValueError, "counts: has 3 elements, must have 4", masked, a, B, counts[:3])
    refuses(TypeError, "counts: has dtype int64, must be int32", masked, a, B, counts.astype(int))
    refuses(TypeError, "counts: is missing", masked, a, B, None)
    refuses(ValueError, "a: shape is (6, 64), must be (G, rows, K)", masked, a[0], B, counts)
    refuses(
        ValueError,
        "a.batch: is 3, must be 4, the groups, which are masked (without",
        masked,
        a[:3],
        B,
        counts,
    )
    refuses(ValueError, "out: shape is (4, 6), must be (4, 6, 40)", masked, a, B, counts,
            out=np.ones((4, 6), np.float32))  # fmt: skip
    offsets = np.array([0, 64], np.int32)
    refuses(ValueError, "a: shape is (4, 6, 64), must be (M, K)", of_k, a, A, offsets)
    refuses(ValueError, "b.k: is 32, must be 64", of_k, A, A[:, :32], offsets)
    refuses(TypeError, "offsets: has dtype float32, must be int32", of_k, A, A, A[0])
    refuses(ValueError, "offsets: must have one dimension", of_k, A, A, offsets[None],
            out=np.ones((0, 24, 24), np.float32))  # fmt: skip
    refuses(ValueError, "out: shape is (2, 24, 24), must be (1, 24, 24)", of_k, A, A, offsets,
            out=np.ones((2, 24, 24), np.float32))  # fmt: skip
    refuses(ValueError, "out.dtype: is f16, must be f32", of_k, A, A, offsets,
            out=np.ones((1, 24, 24), np.float16))  # fmt: skip
    refuses(ValueError, "out.batch: is 0", of_k, A, A, offsets[:1])


@pytest.mark.parametrize(
    ("offsets", "options", "message"),
    [
        ([0, 3, 2, 20, 24], {}, "offsets: descends from 3 to 2 at the end of group 1"),
        ([0, 3, 3, 20, 25], {}, "offsets: is 25 for group 4, must be in 0..24"),
        ([-1, 3, 3, 20, 24], {}, "offsets: is -1 for group 0, must be in 0..24"),
        ([0, 3, 3, 20], {"lengths": [4, 0, 17, 5]}, "lengths: is 5 for group 3, must be in 0..4"),
        ([0, 3, 3, 20], {"lengths": [4, 0, 17, 4]}, "lengths: gives row 3 to groups 0 and 2"),
        (
            [0, 1, 2, 3, 4],
            {"index": [0, 23, 24, 1]},
            "index: is 24 for row 2, must be less than 24",
        ),
        (
            [0, 1, 2, 3, 4],
            {"index": [0, 0, 0, 0], "destinations": [4, 5, -1, 1], "out_rows": 5},
            "destinations: is 5 for row 1, must be less than 5, the rows of out",
        ),
        (None, {"lengths": [0, 7, 0, 0]}, "lengths: is 7 for group 1, must be in 0..6"),
    ],
)
def test_groups_are_checked(offsets: Any, options: dict[str, Any], message: str) -> None:
    numbers = None if offsets is None else np.array(offsets, np.int32)
    given = {
        name: value if isinstance(value, int) else np.array(value, np.int32)
        for name, value in options.items()
    }
    a = A.reshape(4, 6, 64) if offsets is None else A
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        blockscale.check_groups(a, B, numbers, **given)
    blockscale.check_groups(A, B, OFFSETS)


def test_plans_of_a_gpu() -> None:
    plan = blockscale.describe_grouped_gemm(32, 640, 4096, 7168, chip="H100")
    assert plan.startswith("grouped_gemm_fp8_") and plan.endswith("workspace 0 bytes\n")
    plan = blockscale.describe_grouped_gemm(
        8, 64, 512, 512, "mxfp8_e4m3", "mxfp4", transform="swiglu", chip="B200"
    )
    assert plan.startswith("grouped_gemm_plain_") and len(plan.splitlines()) == 4
    with pytest.raises(ValueError, match="^groups, rows, n, k: matrices must have at most 2"):
        blockscale.describe_grouped_gemm(2**20, 640, 4096, 7168)
    with pytest.raises(ValueError, match="no such pair"):
        blockscale.describe_grouped_gemm(2, 640, 4096, 7168, "nvfp4", "mxfp4")


@pytest.mark.parametrize("recipe", ["fp8", "mxfp4", "nvfp4"])
def test_the_example_of_experts(recipe: str) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "mixture_of_experts.py"
    sizes = ["--tokens", "21", "--experts", "7", "--top", "3", "--width", "256", "--hidden", "128"]
    command = [sys.executable, example, *sizes, "--recipe", recipe]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    first, groups, one_by_one = done.stdout.splitlines()
    assert re.fullmatch(r"21 tokens, 3 of 7 experts each: \d+ to \d+ rows an expert", first)
    assert groups.startswith("in groups  error ") and one_by_one.startswith("one by one error ")
