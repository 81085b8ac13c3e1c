"""The quantizer against a second oracle: numpy for the order of operations, ml_dtypes for rounding.

Inputs are random, adversarial, and, where $BLOCKSCALE_MODEL names a safetensors file, the weights
of a real model. The library's bytes come from tests/oracles/quantize_tensor.cpp, built in
$BLOCKSCALE_BUILD.
"""

import os
import pathlib
import subprocess
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

E2M1 = ml_dtypes.float4_e2m1fn
E2M3 = ml_dtypes.float6_e2m3fn
E3M2 = ml_dtypes.float6_e3m2fn
E4M3 = ml_dtypes.float8_e4m3fn
E5M2 = ml_dtypes.float8_e5m2

# Largest value, exponent of it, mantissa bits, storage bits.
FORMATS = {
    E2M1: (6.0, 2, 1, 4),
    E2M3: (7.5, 2, 3, 6),
    E3M2: (28.0, 4, 2, 6),
    E4M3: (448.0, 8, 3, 8),
    E5M2: (57344.0, 15, 2, 8),
}
MX = {"mxfp4": E2M1, "mxfp6_e2m3": E2M3, "mxfp6_e3m2": E3M2, "mxfp8_e4m3": E4M3, "mxfp8_e5m2": E5M2}
FP8_BLOCKS = {
    f"fp8_{rows}x128{kind}": rows for rows in (1, 32, 64, 128) for kind in ("", "_pow2", "_ue8m0")
}
DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
LARGEST = np.finfo(np.float32).max


@dataclass
class Quantized:
    """Codes [rows, k], one in a byte, and the bytes of the scales and of the tensor scale."""

    codes: np.ndarray
    scales: bytes
    bits: int
    tensor_scale: bytes = b""

    def packed(self) -> bytes:
        """Codes in consecutive bits, the first in the lowest."""
        bits = np.unpackbits(self.codes[..., None], axis=-1, count=self.bits, bitorder="little")
        return np.packbits(
            bits.reshape(self.codes.shape[0], -1), axis=-1, bitorder="little"
        ).tobytes()


def encode(x: np.ndarray, element: type) -> np.ndarray:
    """Codes nearest to x, which is f32 or exact in f64; saturating."""
    largest = FORMATS[element][0]
    clipped = np.clip(x, -largest, largest).astype(np.float32)
    return clipped.astype(element).view(np.uint8)


def mx(x: np.ndarray, element: type, mode: str) -> Quantized:
    largest, emax, mantissa_bits, bits = FORMATS[element]
    blocks = x.reshape(x.shape[0], -1, 32).astype(np.float64)
    amax = np.abs(blocks).max(axis=-1)
    safe = np.where(amax == 0, 1, amax)
    exponent = np.frexp(safe)[1] - 1
    if mode == "floor":
        e = exponent - emax
    elif mode == "even":
        e = np.frexp(safe + np.ldexp(1.0, exponent - mantissa_bits - 1))[1] - 1 - emax
    else:
        e = exponent - emax
        e += safe > np.ldexp(largest, e)
    e = np.where(amax == 0, -127, np.maximum(e, -127))
    codes = encode(np.ldexp(blocks, -e[..., None]), element)
    codes = np.where(amax[..., None] == 0, 0, codes).astype(np.uint8)
    return Quantized(codes.reshape(x.shape), (e + 127).astype(np.uint8).tobytes(), bits)


@np.errstate(over="ignore", divide="ignore")  # the rules clamp what overflows
def nvfp4(x: np.ndarray) -> Quantized:
    amax = np.abs(x).max()
    s_tensor = np.float32(1) if amax == 0 else min(np.float32(2688) / amax, LARGEST)
    blocks = x.reshape(x.shape[0], -1, 16)
    wanted = (np.abs(blocks).max(axis=-1) / np.float32(6)) * s_tensor
    scales = np.minimum(wanted, np.float32(448)).astype(E4M3)
    r = np.minimum(s_tensor / scales.astype(np.float32), LARGEST)
    codes = np.where(scales.view(np.uint8)[..., None] == 0, 0, encode(blocks * r[..., None], E2M1))
    return Quantized(
        codes.astype(np.uint8).reshape(x.shape),
        scales.tobytes(),
        4,
        np.float32(s_tensor).tobytes(),
    )


def fp8(x: np.ndarray, element: type, block: tuple[int, int], kind: str) -> Quantized:
    """kind: f32, pow2 (stored in f32) or ue8m0."""
    rows, k = x.shape
    down, right = -(-rows // block[0]), -(-k // block[1])
    padded = np.zeros((down * block[0], right * block[1]), np.float32)
    padded[:rows, :k] = x
    blocks = padded.reshape(down, block[0], right, block[1])
    amax = np.abs(blocks).max(axis=(1, 3))
    scale = np.maximum(amax / np.float32(FORMATS[element][0]), np.float32(2.0**-126))
    scale = np.where(amax == 0, np.float32(1), scale)
    if kind != "f32":
        fraction, exponent = np.frexp(scale.astype(np.float64))
        exponent = np.where(fraction == 0.5, exponent - 1, exponent)
        scale = np.ldexp(1.0, exponent).astype(np.float32)
    scaled = blocks / scale[:, None, :, None]
    if kind != "f32":
        scaled = np.ldexp(blocks.astype(np.float64), -exponent[:, None, :, None])
    codes = encode(scaled, element).reshape(padded.shape)[:rows, :k]
    stored = (exponent + 127).astype(np.uint8) if kind == "ue8m0" else scale
    return Quantized(np.ascontiguousarray(codes), stored.tobytes(), 8)


def oracle(x: np.ndarray, recipe: str, mode: str) -> Quantized:
    x = np.clip(x.astype(np.float32), -LARGEST, LARGEST)  # Inf counts as the largest finite
    if recipe in MX:
        return mx(x, MX[recipe], mode)
    if recipe == "nvfp4":
        return nvfp4(x)
    if recipe in FP8_BLOCKS:
        kind = (
            "pow2" if recipe.endswith("_pow2") else "ue8m0" if recipe.endswith("_ue8m0") else "f32"
        )
        return fp8(x, E4M3, (FP8_BLOCKS[recipe], 128), kind)
    element = E5M2 if recipe.endswith("e5m2") else E4M3
    return fp8(x, element, (1, x.shape[1]) if recipe == "fp8_row" else x.shape, "f32")


def library(x: np.ndarray, recipe: str, mode: str, folder: pathlib.Path) -> bytes:
    names = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
    program = pathlib.Path(os.environ["BLOCKSCALE_BUILD"]) / "tests_oracles_quantize_tensor"
    x.tofile(folder / "in")
    command = [
        program,
        recipe,
        mode,
        names[x.dtype],
        *map(str, x.shape),
        folder / "in",
        folder / "out",
    ]
    subprocess.run(command, check=True)
    return (folder / "out").read_bytes()


def check(x: np.ndarray, recipe: str, mode: str, folder: pathlib.Path) -> None:
    expected = oracle(x, recipe, mode)
    got = library(x, recipe, mode, folder)
    values = expected.packed()
    assert got[: len(values)] == values
    assert got[len(values) :] == expected.scales + expected.tensor_scale


def inputs(kind: str, shape: tuple[int, int]) -> np.ndarray:
    random = np.random.default_rng(sum(map(ord, kind)))
    x = random.standard_normal(shape)
    if kind == "huge":
        x = np.ldexp(np.sign(x), 127) * random.uniform(1, 1.99, shape)
    elif kind == "tiny":
        x = x * 2.0**-130
    elif kind == "outlier":
        x[:, ::32] *= 1e5
    elif kind == "zeros":
        x[:, : shape[1] // 2] = 0
    elif kind == "binades":
        x = np.ldexp(x, random.integers(-30, 30, shape))
    return x.astype(np.float32)


RECIPES = [*MX, "nvfp4", *FP8_BLOCKS, "fp8_row", "fp8_tensor", "fp8_tensor_e5m2"]


@pytest.mark.parametrize("kind", ["normal", "huge", "tiny", "outlier", "zeros", "binades"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_bytes(recipe: str, kind: str, tmp_path: pathlib.Path) -> None:
    for dtype in DTYPES.values():
        if kind in ("huge", "tiny") and dtype is np.float16:
            continue  # outside of its range
        with np.errstate(over="ignore"):  # f16: to infinity
            x = inputs(kind, (131, 224)).astype(dtype)
        for mode in ("floor", "ceil", "even") if recipe in MX else ("ceil",):
            check(x, recipe, mode, tmp_path)


def test_real_weights(tmp_path: pathlib.Path) -> None:
    model = os.environ.get("BLOCKSCALE_MODEL")
    if model is None:
        pytest.skip("BLOCKSCALE_MODEL names no safetensors file")
    weights = {n: w for n, w in load_file(model).items() if w.ndim == 2 and w.shape[1] % 32 == 0}
    assert weights
    for name in sorted(weights, key=lambda n: weights[n].size)[-6:]:
        for dtype in (np.float32, ml_dtypes.bfloat16):
            for recipe in RECIPES:
                check(weights[name].astype(dtype), recipe, "ceil", tmp_path)
