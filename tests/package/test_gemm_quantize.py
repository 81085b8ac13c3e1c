"""gemm_quantize: the bytes of quantize of gemm's f32 result, and what bad input gets."""

from __future__ import annotations

import blockscale
import numpy as np
import pytest


def operands(n: int = 192) -> tuple[blockscale.ScaledTensor, blockscale.ScaledTensor]:
    random = np.random.default_rng(0)
    x, w = (random.standard_normal((rows, 256)).astype(np.float32) for rows in (5, n))
    return blockscale.quantize(x, "fp8_1x128"), blockscale.quantize(w, "fp8_128x128")


def same(x: blockscale.ScaledTensor, y: blockscale.ScaledTensor) -> bool:
    def raw(array: np.ndarray) -> np.ndarray:
        return np.asarray(array).view(np.uint8)

    return (raw(x.values) == raw(y.values)).all() and (raw(x.scales) == raw(y.scales)).all()


@pytest.mark.parametrize(
    "recipe", ["fp8_1x128", "fp8_1x128_ue8m0", "fp8_row", "mxfp8_e4m3", "nvfp4"]
)
@pytest.mark.parametrize(
    "transform", ["identity", "gelu_erf", "swiglu", blockscale.Swiglu(order="up_first", group=1)]
)
def test_is_quantize_of_gemm(recipe: str, transform: object) -> None:
    a, b = operands()
    bias = np.linspace(-1, 1, 192, dtype=np.float32)
    options = {"transform": transform, "tensor_scale": 30.0 if recipe == "nvfp4" else None}
    result = blockscale.gemm_quantize(a, b, recipe, alpha=0.5, bias=bias, **options)
    d = blockscale.gemm(a, b, alpha=0.5, bias=bias)
    assert same(result, blockscale.quantize(d, recipe, **options))


def test_writes_into_out() -> None:
    a, b = operands()
    d = np.ones((5, 192), np.float32)
    out = blockscale.quantize(d, "mxfp8_e4m3", layout="swizzled_128x4")
    result = blockscale.gemm_quantize(a, b, "mxfp8_e4m3", beta=2.0, c=d, out=out)
    assert result is out and out.layout == blockscale.ScaleLayout.swizzled_128x4
    wanted = blockscale.gemm(a, b, beta=2.0, c=d)
    assert same(out, blockscale.quantize(wanted, "mxfp8_e4m3", layout="swizzled_128x4"))


@pytest.mark.parametrize(
    ("recipe", "options", "kind", "text"),
    [
        ("mxfp4", {}, ValueError, "out.recipe: is mxfp4, must be fp8_1x128"),
        ("nvfp4", {}, ValueError, "tensor_scale: is missing"),
        ("fp8_1x128", {"tensor_scale": 2.0}, ValueError, "tensor_scale: is given"),
        ("fp8_1x128", {"scale_mode": "even"}, ValueError, "scale_mode: given for fp8_1x128"),
        ("mxfp8_e4m3", {"amax_floor": 1.0}, ValueError, "amax_floor: given for mxfp8_e4m3"),
        ("mxfp8_e4m3", {"beta": 1.0}, ValueError, "c: is missing"),
        ("mxfp8_e4m3", {"out": np.ones(3)}, TypeError, "out: is a ndarray"),
        (
            "mxfp8_e4m3",
            {"transform": blockscale.RmsNorm(np.ones(192, np.float32))},
            ValueError,
            "transform: is rms_norm, must be Identity, Gelu, Silu or Swiglu",
        ),
    ],
)
def test_bad_input(recipe: str, options: dict, kind: type, text: str) -> None:
    a, b = operands()
    with pytest.raises(kind) as error:
        blockscale.gemm_quantize(a, b, recipe, **options)
    assert str(error.value).startswith(text)
