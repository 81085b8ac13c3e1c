"""gemm: values against float64, every option, and what bad input gets."""

from __future__ import annotations

import math
from typing import Any

import blockscale
import ml_dtypes
import numpy as np
import pytest

PAIRS = [
    ("nvfp4", "nvfp4"),
    ("mxfp4", "mxfp4"),
    ("mxfp8_e4m3", "mxfp4"),
    ("mxfp8_e5m2", "mxfp6_e3m2"),
    ("fp8_1x128", "fp8_128x128"),
    ("fp8_row", "nvfp4"),
    ("fp8_tensor", "fp8_tensor"),
]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def bound(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """docs/numerics.md, with c = 16 of normal inputs, and half an ulp of f32."""
    product = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64).swapaxes(-1, -2)
    return 17 * 2.0**-24 * product


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_pairs(left: str, right: str) -> None:
    a, b = blockscale.quantize(normal(5, 256), left), blockscale.quantize(normal(7, 256), right)
    x, y = blockscale.dequantize(a), blockscale.dequantize(b)
    d = blockscale.gemm(a, b)
    assert d.shape == (5, 7) and d.dtype == np.float32
    assert (np.abs(d - x.astype(np.float64) @ y.T.astype(np.float64)) <= bound(x, y)).all()


@pytest.mark.parametrize("m", [1, 16, 33])
@pytest.mark.parametrize(("n", "k"), [(130, 96), (130, 160), (512, 256)])
@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp4"])
def test_weights_that_other_libraries_get_wrong(recipe: str, n: int, k: int, m: int) -> None:
    """K of odd multiples of 32, shards of N = 512 and K = 256; MX scales 2^24 apart in a row, and
    NVFP4's subnormal ones."""
    x = normal(n, k, seed=1)
    options: dict[str, Any] = {}
    if recipe == "mxfp4":
        x = x * 2.0 ** np.repeat(np.arange(k // 32) % 2 * 24 - 12, 32).astype(np.float32)
    else:
        x, options["tensor_scale"] = x * np.float32(2.0**-8), 1.0
    a, w = normal(m, k).astype(ml_dtypes.bfloat16), blockscale.quantize(x, recipe, **options)
    d = blockscale.gemm(a, w, out_dtype=np.float32)
    a, y = a.astype(np.float64), blockscale.dequantize(w).astype(np.float64)
    assert (np.abs(d - a @ y.T) <= bound(a, y)).all()
    with pytest.raises(ValueError, match="must be a multiple of"):
        blockscale.quantize(normal(n, 200), recipe)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_plain_activations_keep_their_dtype(dtype: type) -> None:
    a = normal(3, 128).astype(dtype)
    w = blockscale.quantize(normal(4, 128), "mxfp8_e4m3")
    d = blockscale.gemm(a, w)
    assert d.dtype == dtype
    exact = a.astype(np.float64) @ blockscale.dequantize(w).T.astype(np.float64)
    assert np.allclose(d.astype(np.float64), exact, rtol=2.0**-8, atol=1e-3)


def test_epilogue_is_exact_on_integers() -> None:
    rng = np.random.default_rng(1)
    a = rng.integers(-4, 5, (6, 64)).astype(np.float32)
    b = rng.integers(-4, 5, (9, 64)).astype(np.float32)
    c = rng.integers(-9, 10, (6, 9)).astype(np.float32)
    bias = rng.integers(-9, 10, 9).astype(np.float32)
    d = blockscale.gemm(a, b, alpha=2.0, beta=-1.0, c=c, bias=bias)
    assert np.array_equal(d, 2 * (a @ b.T) - c + bias)
    gate = rng.integers(-3, 4, (1, 9)).astype(np.float32)
    d = blockscale.gemm(a, b, alpha=2.0, beta=-1.0, c=c, bias=bias, gate=gate)
    assert np.array_equal(d, gate * (2 * (a @ b.T) + bias) - c)
    d = blockscale.gemm(a, b, beta=1.0, c=c, gate=gate[0], out=c.copy())
    assert np.array_equal(d, gate * (a @ b.T) + c)
    assert blockscale.gemm(a, b, beta=1.0, c=c, out=c) is c


class Subclass(np.ndarray):
    """Of numpy's arrays, but not of numpy's own class: a call takes the long way."""


def poisoned(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    return np.full(shape, np.nan, dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("left", ["plain", "mxfp8_e4m3"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_short_way_is_the_long_one(dtype: type, left: str, with_bias: bool) -> None:
    rows = normal(2 * 3, 96).astype(dtype)[::2]  # with a stride
    a = rows if left == "plain" else blockscale.quantize(rows, left)
    b = blockscale.quantize(normal(9, 96, seed=1), "mxfp4")
    bias = normal(9, seed=2).astype(dtype) if with_bias else None
    short, long = poisoned((3, 12), dtype)[:, :9], poisoned((3, 9), dtype)
    gate = normal(9, seed=3) if with_bias else None
    options = {"bias": bias, "gate": gate, "threads": 1}
    given = (0.5, 0.0, None, bias, False, "identity", None, 1, gate, False)
    assert blockscale._native.gemm(a, b, short, given, None)
    short[:] = np.nan
    assert blockscale.gemm(a, b, out=short, alpha=0.5, **options) is short
    out = long.view(Subclass)
    assert not blockscale._native.gemm(a, b, out, given, None)
    blockscale.gemm(a, b, out=out, alpha=0.5, **options)
    assert short.tobytes() == long.tobytes() and np.isfinite(short.astype(np.float32)).all()


def test_short_way_leaves_the_rest() -> None:
    """What it does not take as it is reaches the long way, with its errors."""
    a, b = normal(3, 32), blockscale.quantize(normal(5, 32), "mxfp4")
    out = np.zeros((3, 5), np.float32)
    read_only = out.copy()
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="out"):
        blockscale.gemm(a, b, out=read_only)
    for wrong in (np.empty((5, 3), np.float32), np.empty((1, 3, 5), np.float32)):
        with pytest.raises(ValueError, match=r"out: shape is .*, must be \(3, 5\)"):
            blockscale.gemm(a, b, out=wrong)
    for dtype in (np.float64, np.uint16, ">f4"):
        with pytest.raises(TypeError, match="out: has dtype"):
            blockscale.gemm(a, b, out=out.astype(dtype))
    with pytest.raises(ValueError, match="shares memory|overlaps"):
        blockscale.gemm(a, b, out=a[:, :5])
    for argument in ("bias", "gate"):
        for shape in ((2, 5), (4,)):
            with pytest.raises(ValueError, match=argument):
                blockscale.gemm(a, b, out=out, **{argument: np.ones(shape, np.float32)})
    with pytest.raises(ValueError, match="threads"):
        blockscale.gemm(a, b, out=out, threads=-1)
    expected = blockscale.gemm(a, b)
    assert np.array_equal(blockscale.gemm(np.asfortranarray(a).copy("C"), b, out=out), expected)
    assert np.array_equal(blockscale.gemm(a, b, out=out, alpha=1), expected)


@pytest.mark.parametrize("with_out", [False, True])
def test_fast_accumulation_is_nothing_here(with_out: bool) -> None:
    a = blockscale.quantize(normal(3, 96), "fp8_row")
    b = blockscale.quantize(normal(5, 96, seed=1), "mxfp4")
    out = np.empty((3, 5), np.float32) if with_out else None
    fast = blockscale.gemm(a, b, out=out, fast_accumulation=True)
    assert np.array_equal(fast, blockscale.gemm(a, b))


@pytest.mark.parametrize("with_out", [False, True])
def test_a_bias_of_one_row_is_a_bias(with_out: bool) -> None:
    a, b = normal(3, 32), blockscale.quantize(normal(5, 32), "mxfp4")
    bias = normal(5, seed=2)
    expected = blockscale.gemm(a, b, bias=bias)
    assert not np.array_equal(expected, blockscale.gemm(a, b))
    for row in (bias[None], np.asfortranarray(normal(4, 5))[:1] * 0 + bias):
        assert row.shape == (1, 5)
        out = np.empty((3, 5), np.float32) if with_out else None
        assert np.array_equal(blockscale.gemm(a, b, bias=row, out=out), expected)
    for wrong in (bias[None, None], bias[:4][None], bias[:, None]):
        with pytest.raises(ValueError, match="bias"):
            blockscale.gemm(a, b, bias=wrong, out=np.empty((3, 5), np.float32))


def test_c_and_beta_by_the_short_way() -> None:
    a, b, c = normal(3, 32), blockscale.quantize(normal(5, 32), "mxfp4"), normal(3, 5, seed=3)
    out = np.empty((3, 5), np.float32)
    given = (1.0, 2.0, c, None, False, "identity", None, 0, None, False)
    assert blockscale._native.gemm(a, b, out, given, None)
    assert np.array_equal(out, blockscale.gemm(a, b, beta=2.0, c=c))
    for wrong in (c[:2], c[:, :4], None):
        with pytest.raises(ValueError, match="c"):
            blockscale.gemm(a, b, beta=2.0, c=wrong, out=out)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "transform",
    ["gelu_tanh", "gelu_erf", "silu", "swiglu", blockscale.Swiglu(order="up_first", group=1)],
)
def test_transform_of_a_plain_result(transform: Any, dtype: str) -> None:
    a, b = normal(3, 64), blockscale.quantize(normal(10, 64, seed=1), "mxfp4")
    sums = blockscale.gemm(a, b, bias=normal(10, seed=2))
    got = blockscale.gemm(a, b, bias=normal(10, seed=2), transform=transform, out_dtype=dtype)
    x = sums.astype(np.float64)
    if isinstance(transform, blockscale.Swiglu):
        gate, up = x[:, 1::2], x[:, 0::2]
    else:
        gate, up = x[:, :5], x[:, 5:]
    erf = np.vectorize(math.erf)
    expected = {
        "gelu_tanh": x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
        "gelu_erf": x * (1 + erf(x / np.sqrt(2))) / 2,
        "silu": x / (1 + np.exp(-x)),
    }.get(str(transform), gate / (1 + np.exp(-gate)) * up)
    assert str(got.dtype) == dtype and got.shape == expected.shape
    assert np.abs(got.astype(np.float64) - expected).max() <= 2.0**-7 * np.abs(expected).max()
    out = np.empty_like(got)
    assert blockscale.gemm(a, b, bias=normal(10, seed=2), transform=transform, out=out) is out
    assert out.tobytes() == got.tobytes()


def test_transforms_that_do_not_follow_a_product() -> None:
    a, b = normal(3, 64), blockscale.quantize(normal(10, 64), "mxfp4")
    norm = blockscale.RmsNorm(np.ones(10, np.float32))
    with pytest.raises(ValueError, match="transform: is rms_norm, must be Identity, Gelu, Silu"):
        blockscale.gemm(a, b, transform=norm)
    with pytest.raises(ValueError, match="transform: is 'relu'"):
        blockscale.gemm(a, b, transform="relu")
    with pytest.raises(ValueError, match="must be even"):
        blockscale.gemm(a, b[:9], transform="swiglu")
    with pytest.raises(ValueError, match=r"out: shape is \(3, 10\), must be \(3, 5\)"):
        blockscale.gemm(a, b, transform="swiglu", out=np.empty((3, 10), np.float32))


def test_batches_and_broadcast() -> None:
    a, b = normal(3, 4, 64), normal(5, 64)
    d = blockscale.gemm(blockscale.quantize(a, "mxfp4"), blockscale.quantize(b, "mxfp4"))
    assert d.shape == (3, 4, 5)
    one = blockscale.gemm(blockscale.quantize(a[1], "mxfp4"), blockscale.quantize(b, "mxfp4"))
    assert np.array_equal(d[1], one)


def test_threads_do_not_change_a_bit() -> None:
    a, b = (
        blockscale.quantize(normal(70, 512), "nvfp4"),
        blockscale.quantize(normal(130, 512), "nvfp4"),
    )
    one = blockscale.gemm(a, b, threads=1)
    assert all(np.array_equal(one, blockscale.gemm(a, b, threads=t)) for t in (2, 3, 0))


def w4(rows: int = 8, k: int = 64) -> blockscale.ScaledTensor:
    return blockscale.quantize(normal(rows, k), "mxfp4")


X = normal(4, 64)
BAD = [
    (lambda: blockscale.gemm(w4(), blockscale.quantize(X, "fp8_row")), ValueError, "no such pair"),
    (lambda: blockscale.gemm(X, w4(k=96)), ValueError, "k"),
    (lambda: blockscale.gemm(X, w4(), beta=1.0), ValueError, "c: is missing"),
    (lambda: blockscale.gemm(X, w4(), beta=1.0, c=X), ValueError, "c"),
    (
        lambda: blockscale.gemm(X, w4(), beta=1.0, c=np.ones((len(X) + 1, 8), np.float32)),
        ValueError,
        f"c.rows: is {len(X) + 1}, must be {len(X)}, the rows of out",
    ),
    (lambda: blockscale.gemm(X, w4(), bias=X), ValueError, "bias: shape is"),
    (lambda: blockscale.gemm(X, w4(), bias=X[0]), ValueError, "bias: has 64 elements"),
    (lambda: blockscale.gemm(X, w4(), out=np.empty((4, 9), np.float32)), ValueError, "out: shape"),
    (lambda: blockscale.gemm(X, w4(), out_dtype="int8"), TypeError, "out_dtype: is int8"),
    (lambda: blockscale.gemm("x", w4()), TypeError, "a: is a str"),
    (lambda: blockscale.gemm(X, None), TypeError, "b: is a NoneType"),
    (lambda: blockscale.gemm(X, w4(), out=X[:, :8]), ValueError, "out: overlaps a.values"),
    (
        lambda: blockscale.gemm(normal(2, 4, 64), blockscale.quantize(normal(3, 4, 64), "mxfp4")),
        ValueError,
        "batches",
    ),
]


@pytest.mark.parametrize(("call", "kind", "text"), BAD)
def test_bad_input(call, kind: type, text: str) -> None:
    with pytest.raises(kind, match=text):
        call()


def test_plans_need_no_gpu() -> None:
    plan = blockscale.describe_gemm(128, 4096, 7168)
    assert plan.startswith("gemm_fp8_") and "56 blocks of K" in plan
    assert plan == blockscale.describe_gemm(128, 4096, 7168, "fp8_1x128", "fp8_128x128", batch=1)
    rows = blockscale.describe_gemm(4096, 576, 512, "fp8_row", "fp8_row", batch=3, out_dtype="f32")
    assert rows.startswith("gemm_fp8_") and rows != plan
    assert "no element" in blockscale.describe_gemm(0, 16, 16)
    assert "begin where tensor copies are slow or none" in blockscale.describe_gemm(4, 2, 30)
    for transform in ("swiglu", blockscale.Swiglu("up_first", group=64)):
        plan = blockscale.describe_gemm(4096, 4096, 7168, to="nvfp4", transform=transform)
        assert "_quantized: " in plan and ", then swiglu and nvfp4" in plan
    plan = blockscale.describe_gemm(4096, 4096, 7168, to=blockscale.Recipe.fp8_1x128)
    assert "two tiles" not in plan and ", then fp8_1x128" in plan


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "text"),
    [
        ((1, 2, 32, "mxfp4", "nvfp4"), {}, ValueError, "b.recipe: is nvfp4 with a.recipe mxfp4"),
        ((1, 2, 32, "fp8_row"), {}, ValueError, "no such pair"),
        ((1, 2, 32, "fp9"), {}, ValueError, "a: is 'fp9'"),
        ((1, -2, 32), {}, ValueError, "n: is -2"),
        ((1, 2, 32.0), {}, TypeError, "k: is 32.0"),
        ((2**30, 2**30, 32), {}, ValueError, "2\\^40 bytes"),
        ((1, 2, 32), {"batch": "2"}, TypeError, "batch: is '2'"),
        ((1, 2, 32), {"out_dtype": "int8"}, TypeError, "out_dtype: is int8"),
        ((1, 2, 32), {"to": "fp9"}, ValueError, "to: is 'fp9'"),
        ((1, 2, 32), {"to": "fp8_tensor"}, ValueError, "out.recipe: is fp8_tensor, must be fp8_1x"),
        ((1, 3, 32), {"transform": "swiglu"}, ValueError, "b.rows: is 3, must be 2"),
        ((1, 3, 32), {"to": "fp8_1x128", "transform": "swiglu"}, ValueError, "x.columns: is 3"),
        ((1, 2, 32), {"to": "nvfp4", "transform": "rms_norm"}, ValueError, "transform: is 'rms_"),
        ((1, 2, 32), {"to": "nvfp4", "transform": 3}, TypeError, "transform: is a int"),
    ],
)
def test_plans_refuse(arguments: tuple, options: dict, kind: type, text: str) -> None:
    with pytest.raises(kind, match=text):
        blockscale.describe_gemm(*arguments, **options)
