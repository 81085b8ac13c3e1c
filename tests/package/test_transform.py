"""Fused inputs of quantize, and quantize_rows_and_columns: values against numpy in f64, bytes
against calls of `quantize` that the fused ones must equal, bad input."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import blockscale
import ml_dtypes
import numpy as np
import pytest
from blockscale import Modulate, RmsNorm, Swiglu

ERF = np.vectorize(math.erf)


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def exact(x: np.ndarray, transform: Any) -> np.ndarray:
    """The formulas in f64."""
    x = x.astype(np.float64)
    if transform == "gelu_tanh":
        return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2
    if transform == "gelu_erf":
        return x * (1 + ERF(x / np.sqrt(2))) / 2
    if transform == "silu":
        return x / (1 + np.exp(-x))
    if transform == "swiglu":
        transform = Swiglu()
    if isinstance(transform, Swiglu):
        k = x.shape[-1] // 2
        group = transform.group or k
        halves = x.reshape(*x.shape[:-1], k // group, 2, group)
        gate, up = halves[..., 0, :], halves[..., 1, :]
        if transform.order == "up_first":
            gate, up = up, gate
        return (gate / (1 + np.exp(-gate)) * up).reshape(*x.shape[:-1], k)
    if isinstance(transform, Modulate):
        scale, shift = (np.asarray(a, np.float64) for a in (transform.scale, transform.shift))
        return x * (1 + scale) + shift
    if isinstance(transform, RmsNorm):
        mean = np.mean(x**2, axis=-1, keepdims=True)
        return x / np.sqrt(mean + transform.epsilon) * np.asarray(transform.weight, np.float64)
    raise AssertionError(transform)


TRANSFORMS = [
    "gelu_tanh",
    "gelu_erf",
    "silu",
    "swiglu",
    Swiglu(order="up_first"),
    Swiglu(group=1),
    Swiglu("up_first", 64),
    Modulate(normal(256, seed=1), normal(256, seed=2)),
    RmsNorm(normal(256, seed=3), epsilon=1e-5),
]


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_fused_values_are_the_formulas(transform: Any, dtype: Any) -> None:
    gated = transform == "swiglu" or isinstance(transform, Swiglu)
    x = normal(2, 5, 512 if gated else 256, dtype=dtype)
    want = exact(x, transform)
    t = blockscale.quantize(x, "mxfp8_e4m3", transform=transform)
    assert t.shape == want.shape == (2, 5, 256)
    got = blockscale.dequantize(t)
    # Half an ulp of e4m3 at worst, of the element or, below the block's range, of the scale.
    block = np.abs(want).reshape(2, 5, 8, 32).max(axis=-1, keepdims=True).repeat(32, axis=-1)
    allowed = np.maximum(np.abs(want) * 2.0**-4, block.reshape(want.shape) * 2.0**-16) * 1.01
    assert (np.abs(got - want) <= allowed).all()


def test_modulation_belongs_to_runs_of_rows() -> None:
    x = normal(6, 128)
    scale, shift = normal(3, 128, seed=1), normal(3, 128, seed=2)
    t = blockscale.quantize(x, "fp8_1x128", transform=Modulate(scale, shift))
    for group in range(3):
        one = Modulate(scale[group], shift[group])
        part = blockscale.quantize(x[2 * group : 2 * group + 2], "fp8_1x128", transform=one)
        assert np.array_equal(t.values[2 * group : 2 * group + 2], part.values)
    batched = blockscale.quantize(
        x.reshape(3, 2, 128), "fp8_1x128", transform=Modulate(scale[:, None], shift[:, None])
    )
    assert np.array_equal(batched.values.reshape(6, 128), t.values)


def test_operands_may_have_a_dtype_of_their_own() -> None:
    x = normal(4, 64, dtype=ml_dtypes.bfloat16)
    scale = normal(64, seed=1).astype(np.float16)
    shift = normal(64, seed=2).astype(ml_dtypes.bfloat16)
    mixed = blockscale.quantize(x, "nvfp4", transform=Modulate(scale, shift))
    wide = Modulate(scale.astype(np.float32), shift.astype(np.float32))
    same = blockscale.quantize(x.astype(np.float32), "nvfp4", transform=wide)
    assert np.array_equal(mixed.values, same.values)
    assert np.array_equal(mixed.tensor_scale, same.tensor_scale)


def test_identity_is_the_default() -> None:
    x = normal(3, 64)
    plain, named = (
        blockscale.quantize(x, "mxfp4"),
        blockscale.quantize(x, "mxfp4", transform="identity"),
    )
    assert np.array_equal(plain.values, named.values)


def test_out_has_the_shape_of_the_result() -> None:
    x = normal(4, 128)
    out = blockscale.quantize(np.zeros((4, 64), np.float32), "mxfp4")
    assert blockscale.quantize(x, "mxfp4", transform="swiglu", out=out) is out
    assert np.array_equal(out.values, blockscale.quantize(x, "mxfp4", transform="swiglu").values)
    with pytest.raises(ValueError, match=r"out: \(shape, recipe, layout\) is \(\(4, 64\)"):
        blockscale.quantize(x, "mxfp4", out=out)


def test_given_scales_meet_a_fused_input() -> None:
    x = normal(4, 64)
    t = blockscale.quantize(x, "fp8_row", transform="gelu_erf", scales=0.25)
    assert (t.scales == 0.25).all()
    assert np.abs(blockscale.dequantize(t) - exact(x, "gelu_erf")).max() < 0.1


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: 3, TypeError, "transform: is a int, must be a name"),
        (lambda: "relu", ValueError, "transform: is 'relu', must be identity"),
        (lambda: "modulate", ValueError, r"pass Modulate\(scale, shift\)"),
        (lambda: "rms_norm", ValueError, r"pass RmsNorm\(weight\)"),
        (lambda: Swiglu(order="both"), ValueError, "transform.order: is 'both'"),
        (lambda: Swiglu(group=2), ValueError, "transform.group: is 2, must be None, 1 or 64"),
        (lambda: Swiglu(group="x"), ValueError, "transform.group: is 'x'"),  # type: ignore[arg-type]
        (lambda: Swiglu(group=64), ValueError, "transform.group: is 64, but the result has 32"),
        (lambda: Modulate(normal(64), "x"), TypeError, "transform.shift: is a str"),
        (
            lambda: Modulate(normal(63), normal(64)),
            ValueError,
            "transform.scale.columns: is 63, must be 64",
        ),
        (
            lambda: Modulate(normal(3, 64), normal(3, 64)),
            ValueError,
            "transform.scale.rows: is 3, must be a divisor of x's 4 rows",
        ),
        (
            lambda: Modulate(normal(2, 64), normal(64)),
            ValueError,
            "transform.shift.rows: is 1, must be 2",
        ),
        (lambda: Modulate(normal(2, 2, 64), 0), ValueError, "transform.scale: shape is"),
        (
            lambda: RmsNorm(normal(64).astype(np.float64)),
            TypeError,
            "transform.weight: has dtype float64",
        ),
        (lambda: RmsNorm(normal(2, 64)), ValueError, "transform.weight.rows: is 2, must be 1"),
        (lambda: RmsNorm(normal(64), 0.0), ValueError, "transform.epsilon: is 0, must be finite"),
        (lambda: RmsNorm(normal(64), "x"), TypeError, "transform.epsilon: is 'x'"),  # type: ignore[arg-type]
    ],
)
def test_bad_transforms_are_refused(
    make: Callable[[], Any], kind: type[Exception], message: str
) -> None:
    x = normal(4, 64)
    outs = [blockscale.quantize(np.ones((4, k), np.float32), "mxfp4") for k in (64, 32)]
    before = [np.array(out.values) for out in outs]
    with pytest.raises(kind, match=message):
        transform = make()
        out = outs[isinstance(transform, Swiglu)]
        blockscale.quantize(x, "mxfp4", transform=transform, out=out)
    for out, values in zip(outs, before, strict=True):
        assert np.array_equal(out.values, values)


def test_swiglu_wants_an_even_number_of_columns() -> None:
    with pytest.raises(ValueError, match="x: has 63 columns, must be even"):
        blockscale.quantize(normal(2, 63), "fp8_row", transform="swiglu")


@pytest.mark.parametrize("recipe", ["fp8_1x128", "fp8_1x128_pow2", "fp8_1x128_ue8m0"])
@pytest.mark.parametrize("shape", [(130, 300), (2, 5, 257)])
@pytest.mark.parametrize("transform", ["identity", "gelu_tanh", RmsNorm(np.ones(1, np.float32))])
def test_rows_and_columns(recipe: str, shape: tuple[int, ...], transform: Any) -> None:
    if isinstance(transform, RmsNorm):
        transform = RmsNorm(normal(shape[-1]))
    x = normal(*shape)
    rows, columns = blockscale.quantize_rows_and_columns(x, recipe, transform=transform, threads=2)
    want = blockscale.quantize(x, recipe, transform=transform)
    assert np.array_equal(rows.values.view(np.uint8), want.values.view(np.uint8))
    assert np.array_equal(rows.scales, want.scales)
    assert columns.shape == (*shape[:-2], shape[-1], shape[-2])
    if transform == "identity":
        turned = blockscale.quantize(np.ascontiguousarray(np.swapaxes(x, -1, -2)), recipe)
        assert np.array_equal(columns.values.view(np.uint8), turned.values.view(np.uint8))
        assert np.array_equal(columns.scales, turned.scales)
    else:
        back = np.swapaxes(blockscale.dequantize(columns), -1, -2)
        want_values = blockscale.dequantize(rows)
        assert np.abs(back - want_values).max() <= np.abs(want_values).max() / 4
        assert np.mean(np.abs(back - want_values)) < 0.05 * np.mean(np.abs(want_values))


def test_rows_and_columns_write_into_a_pair() -> None:
    x = normal(4, 128)
    first = blockscale.quantize_rows_and_columns(x, "fp8_1x128", layout="mn_major")
    again = blockscale.quantize_rows_and_columns(-x, "fp8_1x128", layout="mn_major", out=first)
    assert again[0] is first[0] and again[1] is first[1]
    assert np.array_equal(
        blockscale.dequantize(first[0]), -blockscale.dequantize(blockscale.quantize(x, "fp8_1x128"))
    )


def test_rows_and_columns_refuse() -> None:
    x = normal(4, 128)
    call = blockscale.quantize_rows_and_columns
    rows, columns = call(x, "fp8_1x128")
    with pytest.raises(ValueError, match="recipe: is mxfp4, must be one of fp8_1x128"):
        call(x, "mxfp4")
    with pytest.raises(TypeError, match="out: is .*, must be a pair of ScaledTensors"):
        call(x, "fp8_1x128", out=rows)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"out\[1\]: \(shape, recipe, layout\) is \(\(4, 128\)"):
        call(x, "fp8_1x128", out=(rows, rows))
    with pytest.raises(ValueError, match=r"out\[0\]"):
        call(x, "fp8_1x128", out=(columns, columns))
    with pytest.raises(ValueError, match="^amax_floor: is -1"):
        call(x, "fp8_1x128", amax_floor=-1.0)
