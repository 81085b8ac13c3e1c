"""quantize, dequantize and gemm on CUDA arrays of cupy and jax: the bytes of the CPU, or a product
that is exact, in arrays of their library. `./dev gpu-test` runs these where there is a GPU and the
library."""

from __future__ import annotations

from typing import Any

import blockscale
import numpy as np
import pytest

RECIPES = ["nvfp4", "mxfp4", "mxfp6_e2m3", "mxfp8_e4m3", "fp8_1x128", "fp8_row", "fp8_tensor"]


def library(name: str) -> Any:
    module = pytest.importorskip(name, reason=f"{name} is not installed")
    if name == "cupy":
        if not module.cuda.is_available():
            pytest.skip("cupy sees no GPU")
        return module
    if module.default_backend() != "gpu":
        pytest.skip("jax sees no GPU")
    return module.numpy


def host(x: Any) -> np.ndarray:
    """The bytes of an array, from wherever it is."""
    copied = x.get() if hasattr(x, "get") else np.asarray(x)
    return np.ascontiguousarray(copied).view(np.uint8)


@pytest.mark.parametrize("name", ["cupy", "jax"])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_bytes_are_the_cpus(name: str, recipe: str, dtype: Any) -> None:
    xp = library(name)
    x = np.random.default_rng(0).standard_normal((130, 512)).astype(dtype)
    on_device = blockscale.quantize(xp.asarray(x), recipe)
    on_host = blockscale.quantize(x, recipe)
    assert type(on_device.values).__module__.startswith(("cupy", "jax"))
    for part in ("values", "scales", "tensor_scale"):
        got, want = getattr(on_device, part), getattr(on_host, part)
        if want is None:
            assert got is None
        else:
            assert (host(got).ravel() == host(want).ravel()).all(), part


@pytest.mark.parametrize("name", ["cupy", "jax"])
def test_dequantize_gives_the_librarys_array(name: str) -> None:
    xp = library(name)
    x = np.random.default_rng(1).standard_normal((64, 256)).astype(np.float32)
    on_device = blockscale.dequantize(blockscale.quantize(xp.asarray(x), "mxfp8_e4m3"))
    assert type(on_device).__module__.startswith(("cupy", "jax"))
    on_host = blockscale.dequantize(blockscale.quantize(x, "mxfp8_e4m3"))
    assert (host(on_device) == host(on_host)).all()


@pytest.mark.parametrize("name", ["cupy", "jax"])
def test_gemm_gives_the_librarys_array(name: str) -> None:
    xp = library(name)
    rng = np.random.default_rng(2)
    x, y = (rng.integers(-3, 4, (rows, 256)).astype(np.float32) for rows in (70, 40))
    bias = rng.integers(-9, 10, 40).astype(np.float32)

    def tensor(values: np.ndarray) -> blockscale.ScaledTensor:
        codes = blockscale.quantize(values, "fp8_tensor", scales=1.0).values.view(np.uint8)
        scales = np.ones((len(values), 2), np.float32)
        return blockscale.ScaledTensor(xp.asarray(codes), xp.asarray(scales), "fp8_1x128")

    d = blockscale.gemm(
        tensor(x), tensor(y), alpha=xp.full((1,), 2.0, "float32"), bias=xp.asarray(bias)
    )
    assert type(d).__module__.startswith(("cupy", "jax"))
    assert (host(d).view(np.float32) == 2 * (x @ y.T) + bias).all()
