"""core/format.h against ml_dtypes and gfloat: every code, every bf16 and f16 input, every rounding
boundary +-2 ulp and a million random f32.

The tables come from the C++ program tests/oracles/format_tables.cpp in $BLOCKSCALE_BUILD.
"""

import os
import pathlib
import subprocess

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import pytest

ML_DTYPES = {
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
}
GFLOAT = {
    "e2m1": gfloat.formats.format_info_ocp_e2m1,
    "e2m3": gfloat.formats.format_info_ocp_e2m3,
    "e3m2": gfloat.formats.format_info_ocp_e3m2,
    "e4m3": gfloat.formats.format_info_ocp_e4m3,
    "e5m2": gfloat.formats.format_info_ocp_e5m2,
    "f16": gfloat.formats.format_info_binary16,
    "bf16": gfloat.formats.format_info_bfloat16,
}
NARROW = ["e2m1", "e2m3", "e3m2", "e4m3", "e5m2"]
HAS_NO_NAN = {"e2m1", "e2m3", "e3m2"}
NAN = {"e2m1": 0x7, "e2m3": 0x1F, "e3m2": 0x1F, "e4m3": 0x7F, "e5m2": 0x7F}
INFINITY = 0x7F800000  # bits of f32's


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The folder of tables that the C++ program wrote."""
    build = pathlib.Path(os.environ["BLOCKSCALE_BUILD"])
    folder = tmp_path_factory.mktemp("formats")
    subprocess.run([build / "tests_oracles_format_tables", folder], check=True)
    return folder


def words(tables: pathlib.Path, name: str) -> np.ndarray:
    return np.fromfile(tables / name, dtype=np.uint32)


def inputs(tables: pathlib.Path) -> np.ndarray:
    """Bits of the f32 inputs."""
    bits = words(tables, "inputs.u32")
    assert bits.size > 1_100_000
    return bits


def numbers_among(bits: np.ndarray) -> np.ndarray:
    return (bits & 0x7FFFFFFF) <= INFINITY


def assert_same_values(actual_bits: np.ndarray, expected: np.ndarray) -> None:
    """Bit-equal f32 values; a NaN equals any NaN."""
    expected = expected.astype(np.float32)
    both_nan = np.isnan(actual_bits.view(np.float32)) & np.isnan(expected)
    np.testing.assert_array_equal(
        np.where(both_nan, 0, actual_bits), np.where(both_nan, 0, expected.view(np.uint32))
    )


def container(dtype: type) -> type:
    return np.uint8 if np.dtype(dtype).itemsize == 1 else np.uint16


@pytest.mark.parametrize("name", ML_DTYPES)
def test_codes_as_ml_dtypes(tables: pathlib.Path, name: str) -> None:
    actual = words(tables, f"{name}.decode.f32")
    codes = np.arange(actual.size).astype(container(ML_DTYPES[name]))
    assert_same_values(actual, codes.view(ML_DTYPES[name]))


@pytest.mark.parametrize("name", GFLOAT)
def test_codes_as_gfloat(tables: pathlib.Path, name: str) -> None:
    actual = words(tables, f"{name}.decode.f32")
    assert_same_values(actual, gfloat.decode_ndarray(GFLOAT[name], np.arange(actual.size)))


def test_scale_codes(tables: pathlib.Path) -> None:
    ue8m0 = words(tables, "ue8m0.decode.f32")
    codes = np.arange(256, dtype=np.uint8)
    assert_same_values(ue8m0, codes.view(ml_dtypes.float8_e8m0fnu))
    assert_same_values(ue8m0, gfloat.decode_ndarray(gfloat.formats.format_info_ocp_e8m0, codes))
    ue4m3 = words(tables, "ue4m3.decode.f32")
    assert_same_values(ue4m3, (codes & 0x7F).view(ml_dtypes.float8_e4m3fn))


@pytest.mark.parametrize("name", ML_DTYPES)
def test_roundings_as_ml_dtypes(tables: pathlib.Path, name: str) -> None:
    """ml_dtypes does not saturate its FP8 and writes other NaNs, so NaNs are left out here."""
    bits = inputs(tables)
    numbers = numbers_among(bits)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = bits[numbers].view(np.float32).astype(ML_DTYPES[name])
    expected = rounded.view(container(ML_DTYPES[name]))
    np.testing.assert_array_equal(words(tables, f"{name}.propagate.u32")[numbers], expected)


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("name", NARROW)
def test_roundings_as_gfloat(tables: pathlib.Path, name: str, saturate: bool) -> None:
    bits = inputs(tables)
    numbers = numbers_among(bits)
    rounded = gfloat.round_ndarray(
        GFLOAT[name],
        bits[numbers].view(np.float32).astype(np.float64),
        rnd=gfloat.RoundMode.TiesToEven,
        sat=saturate or name in HAS_NO_NAN,
    )
    expected = gfloat.encode_ndarray(GFLOAT[name], rounded)
    actual = words(tables, f"{name}.{'saturate' if saturate else 'propagate'}.u32")[numbers]
    overflowed = np.isnan(rounded)  # e4m3: NaN has no sign in gfloat's code
    np.testing.assert_array_equal(actual[~overflowed], expected[~overflowed])
    assert np.all((actual[overflowed] & 0x7F) == 0x7F)


@pytest.mark.parametrize("name", NARROW)
def test_nan_is_cudas(tables: pathlib.Path, name: str) -> None:
    """CUDA decides where the others differ: one NaN without sign, the largest value without one."""
    nan = ~numbers_among(inputs(tables))
    assert nan.any()
    for mode in ("saturate", "propagate"):
        assert np.all(words(tables, f"{name}.{mode}.u32")[nan] == NAN[name])


def test_ue4m3_is_e4m3_without_sign(tables: pathlib.Path) -> None:
    bits = inputs(tables)
    negative = (bits >> 31 == 1) & numbers_among(bits)
    for mode in ("saturate", "propagate"):
        e4m3, ue4m3 = (words(tables, f"{name}.{mode}.u32") for name in ("e4m3", "ue4m3"))
        np.testing.assert_array_equal(ue4m3, np.where(negative, 0, e4m3))


def test_ue8m0_roundings(tables: pathlib.Path) -> None:
    bits = inputs(tables) & 0x7FFFFFFF
    finite = bits < INFINITY
    magnitude = np.where(finite, bits, 0).view(np.float32).astype(np.float64)
    mantissa, exponent = np.frexp(magnitude)  # mantissa in [0.5, 1)
    for direction, power in (("down", exponent - 1), ("up", exponent - (mantissa == 0.5))):
        expected = np.where(magnitude == 0, 0, np.clip(power + 127, 0, 255))
        expected[~finite] = 255
        propagated = words(tables, f"ue8m0.{direction}.propagate.u32")
        np.testing.assert_array_equal(propagated, expected)
        saturated = words(tables, f"ue8m0.{direction}.saturate.u32")
        np.testing.assert_array_equal(saturated, np.minimum(expected, 254 + (bits > INFINITY)))
