"""quantize and dequantize: bytes against rules written here, arrays of any library, bad input."""

from __future__ import annotations

import array
import copy
import pickle
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import blockscale
import ml_dtypes
import numpy as np
import pytest

QUANTIZED = [r.name for r in blockscale.Recipe if r.name not in ("f32", "f16", "bf16")]
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float64)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def e2m1_values(codes: np.ndarray) -> np.ndarray:
    """Values of packed e2m1 codes, the low nibble first."""
    nibbles = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], -1)
    return np.where(nibbles & 8, -1, 1) * E2M1[nibbles & 7]


def test_mxfp4_bytes_follow_the_rules() -> None:
    x = normal(16, 128)
    blocks = x.reshape(16, 4, 32).astype(np.float64)
    exponents = np.ceil(np.log2(np.abs(blocks).max(axis=-1) / 6.0))  # no amax here is on a boundary
    t = blockscale.quantize(x, "mxfp4")
    assert np.array_equal(t.scales.view(np.uint8), exponents + 127)
    scaled = (blocks / 2.0 ** exponents[..., None]).reshape(16, 128)
    nearest = np.abs(np.abs(scaled)[..., None] - E2M1).min(axis=-1)
    assert np.array_equal(np.abs(e2m1_values(t.values) - scaled), nearest)


def test_fp8_row_is_ml_dtypes_cast_of_the_quotient() -> None:
    x = normal(8, 100)
    t = blockscale.quantize(x, "fp8_row")
    scales = np.abs(x).max(axis=1, keepdims=True) / np.float32(448)
    assert np.array_equal(t.scales, scales)
    assert np.array_equal(
        t.values.view(np.uint8), (x / scales).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    )


@pytest.mark.parametrize("recipe", QUANTIZED)
@pytest.mark.parametrize("shape", [(4, 256), (3, 4, 256)])
def test_values_come_back(recipe: str, shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    t = blockscale.quantize(x, recipe)
    assert t.shape == shape
    y = blockscale.dequantize(t)
    assert y.shape == shape and y.dtype == np.float32
    largest = np.abs(x).max()
    assert np.abs(x - y).max() <= largest / 4  # e2m1: half of the widest gap, 4 to 6
    again = blockscale.quantize(y, recipe)
    assert np.abs(blockscale.dequantize(again) - y).max() <= largest / 16


@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp8_e4m3", "mxfp6_e2m3"])
@pytest.mark.parametrize("layout", [layout.name for layout in blockscale.ScaleLayout])
def test_layouts_hold_the_same_scales(recipe: str, layout: str) -> None:
    x = normal(130, 96)
    expected = blockscale.dequantize(blockscale.quantize(x, recipe))
    t = blockscale.quantize(x, recipe, layout=layout)
    assert t.layout.name == layout
    assert np.array_equal(blockscale.dequantize(t), expected)


def test_swizzled_padding_is_zero() -> None:
    t = blockscale.quantize(np.ones((1, 32), np.float32), "nvfp4", layout="swizzled_128x4")
    scales = t.scales.view(np.uint8).reshape(-1)
    assert np.count_nonzero(scales) == 2 and scales.size == 512


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_input_dtypes_agree(dtype: type) -> None:
    x = normal(8, 64).astype(dtype)
    t = blockscale.quantize(x, "nvfp4")
    wide = blockscale.quantize(x.astype(np.float32), "nvfp4")
    assert np.array_equal(t.values, wide.values)
    assert blockscale.dequantize(t, out_dtype=dtype).dtype == dtype


def test_buffers_and_strided_rows() -> None:
    x = normal(4, 96)
    flat = array.array("f", x[:, :64].ravel().tolist())
    buffer = memoryview(flat).cast("B").cast("f", (4, 64))
    a = blockscale.quantize(buffer, "mxfp8_e4m3")
    b = blockscale.quantize(x[:, :64], "mxfp8_e4m3")
    assert np.array_equal(a.values.view(np.uint8), b.values.view(np.uint8))


def test_given_scales() -> None:
    x = normal(8, 64)
    t = blockscale.quantize(x, "nvfp4", tensor_scale=100.0)
    assert t.tensor_scale.tolist() == [100.0]
    m = blockscale.quantize(x, "nvfp4", tensor_scale=0.01, sense="multiplier")
    assert np.array_equal(m.values, t.values)
    r = blockscale.quantize(x, "fp8_row", scales=np.full((8, 1), 0.25, np.float32))
    assert np.array_equal(r.scales, np.full((8, 1), 0.25, np.float32))
    assert np.array_equal(
        blockscale.dequantize(r), (x / 0.25).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) / 4
    )
    for recipe in ("fp8_row", "fp8_tensor"):
        one = blockscale.quantize(x, recipe, scales=np.full((1, 1), 0.25, np.float32))
        assert (one.scales == 0.25).all() and np.array_equal(one.values, r.values)
        none = blockscale.quantize(x[:0], recipe, scales=np.full((1, 1), 0.25, np.float32))
        assert none.shape == (0, 64)


def test_out_is_written_and_returned() -> None:
    x = normal(8, 64)
    out = blockscale.quantize(np.zeros_like(x), "nvfp4")
    assert blockscale.quantize(x, "nvfp4", out=out) is out
    assert np.array_equal(out.values, blockscale.quantize(x, "nvfp4").values)
    target = np.empty_like(x)
    assert blockscale.dequantize(out, out=target) is target


def test_views_share_memory_and_survive_their_owner() -> None:
    values, scales = np.zeros((2, 16), np.uint8), np.full((2, 1), 127, np.uint8)
    t = blockscale.ScaledTensor(values, scales, "mxfp4")
    values[0, 0] = 0x02
    assert blockscale.dequantize(t)[0, 0] == 1.0
    assert np.shares_memory(t.values, values)
    del values, scales
    assert blockscale.dequantize(t)[0, 0] == 1.0


def test_pickle_and_copy() -> None:
    t = blockscale.quantize(normal(130, 64), "nvfp4", layout="swizzled_128x4")
    for other in (pickle.loads(pickle.dumps(t)), copy.deepcopy(t), copy.copy(t)):
        assert np.array_equal(blockscale.dequantize(other), blockscale.dequantize(t))
        assert (other.recipe, other.layout, other.sense) == (t.recipe, t.layout, t.sense)


def test_many_threads_give_the_same_bytes() -> None:
    inputs = [normal(64, 512, seed=i) for i in range(16)]
    expected = [blockscale.quantize(x, "nvfp4", threads=1).values for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda x: blockscale.quantize(x, "nvfp4").values, inputs))
    assert all(np.array_equal(a, b) for a, b in zip(results, expected, strict=True))


def test_nan_and_infinity() -> None:
    x = np.ones((1, 64), np.float32)
    x[0, 3], x[0, 40] = np.nan, np.inf
    t = blockscale.quantize(x, "mxfp8_e4m3")
    assert t.scales.view(np.uint8)[0].tolist() == [0xFF, 247]  # 2^120 >= max / 448 > 2^119
    assert not t.values.view(np.uint8)[0, :32].any()


BAD = [
    (lambda x: blockscale.quantize(x, "fp9"), ValueError, "recipe: is 'fp9'"),
    (lambda x: blockscale.quantize(x, 7), TypeError, "recipe: is a int"),
    (lambda x: blockscale.quantize(x, "bf16"), ValueError, "plain format"),
    (lambda x: blockscale.quantize(x.tolist(), "nvfp4"), TypeError, "x: is a list"),
    (lambda x: blockscale.quantize(x.astype(np.float64), "nvfp4"), TypeError, "float64"),
    (lambda x: blockscale.quantize(x[0], "nvfp4"), ValueError, "shape is"),
    (lambda x: blockscale.quantize(x[:, :31], "nvfp4"), ValueError, "multiple of 16"),
    (lambda x: blockscale.quantize(x.T, "nvfp4"), ValueError, "stride of its last dimension"),
    (lambda x: blockscale.quantize(x[::-1], "nvfp4"), ValueError, "stride of dimension 0"),
    (lambda x: blockscale.quantize(x, "fp8_row", layout="swizzled_8x4"), ValueError, "swizzled"),
    (lambda x: blockscale.quantize(x, "mxfp4", layout="diagonal"), ValueError, "layout: is"),
    (lambda x: blockscale.quantize(x, "mxfp4", scale_mode="up"), ValueError, "scale_mode: is"),
    (lambda x: blockscale.quantize(x, "mxfp4", tensor_scale=1.0), ValueError, "mxfp4 has none"),
    (lambda x: blockscale.quantize(x, "nvfp4", tensor_scale=-1.0), ValueError, "tensor_scale"),
    (lambda x: blockscale.quantize(x, "mxfp4", scales=x), ValueError, "takes its own"),
    (lambda x: blockscale.quantize(x, "nvfp4", threads=-1), ValueError, "threads"),
    (lambda x: blockscale.quantize(x, "nvfp4", scale_mode="ceil"), ValueError, "scale_mode: given"),
    (lambda x: blockscale.quantize(x, "mxfp4", amax_floor=1), ValueError, "amax_floor: given for"),
    (lambda x: blockscale.quantize(x, "fp8_row", amax_floor=-1), ValueError, "^amax_floor: is -1"),
    (lambda x: blockscale.quantize(x, "nvfp4", out=x), TypeError, "out: is a ndarray"),
    (lambda x: blockscale.dequantize(x), TypeError, "x: is a ndarray"),
    (lambda x: blockscale.ScaledTensor(x, x, "nvfp4"), TypeError, "values: has dtype float32"),
]


@pytest.mark.parametrize(("call", "kind", "text"), BAD)
def test_bad_input(call, kind: type, text: str) -> None:
    with pytest.raises(kind, match=text):
        call(normal(32, 64))


def test_bad_out() -> None:
    x = normal(4, 64)
    good = blockscale.quantize(x, "nvfp4")
    with pytest.raises(ValueError, match="out: "):
        blockscale.quantize(x, "mxfp4", out=good)
    locked = np.empty((4, 64), np.float32)
    locked.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        blockscale.dequantize(good, out=locked)
    with pytest.raises(ValueError, match="out: shape is"):
        blockscale.dequantize(good, out=np.empty((4, 32), np.float32))
    values = np.zeros((4, 32), np.uint8)
    values.flags.writeable = False
    frozen = blockscale.ScaledTensor(values, np.zeros((4, 4), np.uint8), "nvfp4")
    with pytest.raises(ValueError, match="values: is read-only"):
        blockscale.quantize(x, "nvfp4", out=frozen)


def test_out_must_not_overlap_the_input() -> None:
    memory = np.zeros(4 * 64 * 4, np.uint8)
    x = memory.view(np.float32).reshape(4, 64)
    out = blockscale.ScaledTensor(memory[:128].reshape(4, 32), np.zeros((4, 4), np.uint8), "nvfp4")
    with pytest.raises(ValueError, match="overlap"):
        blockscale.quantize(x, "nvfp4", out=out)


def test_a_refused_call_writes_nothing() -> None:
    memory = np.zeros(8 * 64 * 4 + 8 * 64, np.uint8)
    x, values = memory[: 8 * 64 * 4].view(np.float32).reshape(8, 64), memory[-8 * 64 - 4 : -4]
    scales = np.full((8, 1), 5.0, np.float32)
    out = blockscale.ScaledTensor(values.reshape(8, 64), scales, "fp8_row")
    with pytest.raises(ValueError, match="overlap"):
        blockscale.quantize(x, "fp8_row", scales=0.5, out=out)
    assert (scales == 5.0).all() and not memory.any()


def test_out_brings_its_layout_and_sense() -> None:
    x = normal(4, 64)
    out = blockscale.quantize(x * 2, "nvfp4", layout="swizzled_128x4", sense="multiplier")
    expected = blockscale.quantize(x, "nvfp4", layout="swizzled_128x4", sense="multiplier")
    blockscale.quantize(x, "nvfp4", out=out)
    assert np.array_equal(out.scales.view(np.uint8), expected.scales.view(np.uint8))
    assert np.array_equal(out.tensor_scale, expected.tensor_scale)


ROWS = np.zeros((4, 64), [("value", "<f4"), ("flag", "u1")])
VALUES, SCALES = np.zeros((4, 32), np.uint8), np.zeros((4, 4), np.uint8)
BAD_ARRAYS = [
    (normal(4, 64).astype(">f4"), TypeError, "x: has dtype >f4"),
    (normal(4, 128)[:, ::2], ValueError, "stride of its last dimension is 2"),
    (normal(64, 4).T, ValueError, "stride of its last dimension is 4"),
    (normal(4, 64)[::-1], ValueError, "stride of dimension 0 is -64"),
    (ROWS["value"], ValueError, "strides are .* bytes, must be multiples"),
    (np.zeros(4 * 64 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(4, 64), ValueError, "align"),
    (np.float32(1), ValueError, "shape is"),
    (bytearray(256), TypeError, "x: has dtype uint8"),
]


@pytest.mark.parametrize(("x", "kind", "text"), BAD_ARRAYS)
def test_bad_arrays(x, kind: type, text: str) -> None:
    with pytest.raises(kind, match=text):
        blockscale.quantize(x, "nvfp4")
    if kind is ValueError:
        with pytest.raises(kind, match=text):
            blockscale.gemm(x, blockscale.quantize(normal(8, 64), "nvfp4"))


BAD_PARTS = [
    (VALUES.view(ml_dtypes.float4_e2m1fn), SCALES, TypeError, "values: has dtype float4_e2m1fn"),
    (VALUES.view(ml_dtypes.float8_e5m2), SCALES, TypeError, "values: has dtype float8_e5m2"),
    (VALUES, SCALES.view(ml_dtypes.float8_e8m0fnu), TypeError, "scales: has dtype float8_e8m0fnu"),
    (VALUES, SCALES.astype(np.float32), TypeError, "scales: has dtype float32"),
    (VALUES, SCALES[:, :3], ValueError, "scales: shape is"),
    (VALUES[0], SCALES, ValueError, "values: shape is"),
    (VALUES[:, ::2], SCALES, ValueError, "values: must be bytes whose last dimension"),
    (VALUES[:, :31], SCALES, ValueError, "multiple of"),
]


@pytest.mark.parametrize(("values", "scales", "kind", "text"), BAD_PARTS)
def test_bad_parts(values, scales, kind: type, text: str) -> None:
    with pytest.raises(kind, match=text):
        blockscale.ScaledTensor(values, scales, "nvfp4")


def wide(array: np.ndarray) -> np.ndarray:
    """The same in every other column or element of a larger array."""
    larger = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    larger[..., : array.shape[-1]] = array
    return larger[..., : array.shape[-1]]


def test_strides_that_a_view_cannot_say_are_refused() -> None:
    t = blockscale.quantize(normal(256, 64), "nvfp4", layout="swizzled_128x4")
    scales = t.scales.view(np.uint8)
    apart = wide(scales)
    repeated = np.broadcast_to(scales[:1], scales.shape)
    for bad, text in [
        (apart, "scales: stride of its rows is 8 elements, must be 4 in swizzled_128x4"),
        (scales[::-1], "scales: stride of dimension 0 is -4"),
        (repeated, "scales: stride of dimension 0 is 0"),
    ]:
        with pytest.raises(ValueError, match=text):
            blockscale.ScaledTensor(t.values, bad, "nvfp4", layout="swizzled_128x4")
    batch = blockscale.quantize(normal(3, 4, 64), "nvfp4")
    factors = np.repeat(batch.tensor_scale, 2)
    for bad in (factors[::2], factors[::-1][:3], np.broadcast_to(factors[:1], 3)):
        with pytest.raises(ValueError, match="tensor_scale: its elements must be contiguous"):
            blockscale.ScaledTensor(batch.values, batch.scales, "nvfp4", tensor_scale=bad)
    gap = blockscale.quantize(normal(256, 64), "nvfp4")
    same = blockscale.ScaledTensor(
        gap.values, wide(gap.scales.view(np.uint8)), "nvfp4", tensor_scale=gap.tensor_scale
    )
    assert np.array_equal(blockscale.dequantize(same), blockscale.dequantize(gap))


@pytest.mark.parametrize("shape", [(0, 64), (4, 0), (0, 4, 64), (2, 0, 64)])
@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp4", "fp8_row", "fp8_128x128", "fp8_tensor"])
def test_empty_matrices(shape: tuple[int, ...], recipe: str) -> None:
    t = blockscale.quantize(np.zeros(shape, np.float32), recipe)
    assert t.shape == shape and blockscale.dequantize(t).shape == shape


@pytest.mark.parametrize(
    ("recipe", "shape", "scales"),
    [
        ("nvfp4", (0, 256), (0, 16)),
        ("nvfp4", (64, 0), (64, 0)),
        ("mxfp4", (0, 256), (0, 8)),
        ("mxfp8_e4m3", (64, 0), (64, 0)),
        ("fp8_128x128", (0, 256), (0, 2)),
        ("fp8_128x128", (300, 0), (3, 0)),
        ("fp8_row", (64, 0), (64, 0)),
        ("fp8_row", (0, 256), (0, 1)),
        ("fp8_tensor", (0, 256), (0, 1)),
        ("nvfp4", (2, 0, 64), (2, 0, 4)),
        ("nvfp4", (0, 0), (0, 0)),
    ],
)
def test_scales_of_empty_matrices_have_the_grid_of_the_other_side(
    recipe: str, shape: tuple[int, ...], scales: tuple[int, ...]
) -> None:
    t = blockscale.quantize(np.zeros(shape, np.float32), recipe)
    assert t.scales.shape == scales and t.shape == shape
    again = blockscale.ScaledTensor(t.values, t.scales, recipe, tensor_scale=t.tensor_scale)
    assert blockscale.dequantize(again).shape == shape
    turned = t.relayout("mn_major") if recipe == "fp8_128x128" else t
    assert turned.relayout("row_major").scales.shape == scales


def test_bad_tensor_scale() -> None:
    with pytest.raises(ValueError, match="tensor_scale: shape is"):
        blockscale.ScaledTensor(VALUES, SCALES, "nvfp4", tensor_scale=np.ones(3, np.float32))
    with pytest.raises(TypeError, match="tensor_scale: has dtype float64"):
        blockscale.ScaledTensor(VALUES, SCALES, "nvfp4", tensor_scale=np.ones(1))
    with pytest.raises(ValueError, match="the recipe has none"):
        blockscale.ScaledTensor(VALUES, SCALES[:, :2], "mxfp4", tensor_scale=1.0)


def test_owners_cannot_free_what_a_tensor_uses() -> None:
    memory = bytearray(4 * 32)
    t = blockscale.ScaledTensor(memoryview(memory).cast("B", (4, 32)), SCALES, "nvfp4")
    with pytest.raises(BufferError):
        memory.clear()
    del t
    memory.clear()
    view = memoryview(bytearray(256))
    view.release()
    with pytest.raises(ValueError, match="x: .*released"):
        blockscale.quantize(view, "nvfp4")


class DLPackOnly:
    """An array of a library of its own that speaks nothing but DLPack; counts its exports."""

    __module__ = "tests_package_other_library"

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: object) -> object:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_dlpack_arrays_come_back_in_their_library(monkeypatch: pytest.MonkeyPatch) -> None:
    library = types.ModuleType(DLPackOnly.__module__)
    library.from_dlpack = lambda x: DLPackOnly(np.from_dlpack(x))
    monkeypatch.setitem(sys.modules, library.__name__, library)
    x = normal(4, 64)
    t = blockscale.quantize(DLPackOnly(x), "nvfp4")
    y = blockscale.dequantize(t)
    assert isinstance(y, DLPackOnly) and isinstance(t.values, DLPackOnly)
    expected = blockscale.quantize(x, "nvfp4")
    assert np.array_equal(t.values.array, expected.values)
    assert np.array_equal(y.array, blockscale.dequantize(expected))
    assert np.shares_memory(t.values.array, t._values)
    out = DLPackOnly(np.empty_like(x))
    assert blockscale.dequantize(t, out=out) is out
    assert np.array_equal(out.array, y.array)
    locked = np.empty_like(x)
    locked.flags.writeable = False
    with pytest.raises(ValueError, match="out: is read-only"):
        blockscale.dequantize(t, out=DLPackOnly(locked))
    with pytest.raises(TypeError, match="x: has dtype float64"):
        blockscale.quantize(DLPackOnly(x.astype(np.float64)), "nvfp4")


def test_numbers_may_be_numpys() -> None:
    a, b = normal(2, 32), normal(3, 32)
    d = blockscale.gemm(a, b, alpha=np.float32(2), threads=np.int64(1))
    assert np.array_equal(d, 2 * blockscale.gemm(a, b))
    given = blockscale.quantize(a, "fp8_row", scales=np.float32(0.5))
    assert np.array_equal(given.scales, np.full((2, 1), 0.5, np.float32))
    with pytest.raises(TypeError, match="alpha: is 'x', must be a number"):
        blockscale.gemm(a, b, alpha="x")
    with pytest.raises(ValueError, match="threads: is -1"):
        blockscale.quantize(a, "mxfp4", threads=-1)


class OnAnotherDevice:
    """An array as DLPack describes one in the memory of a GPU."""

    dtype = "float32"

    def __dlpack__(self, **_: object) -> object:
        raise AssertionError("must not be asked for")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


def test_device_arrays_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="x: is on cuda:0"):
        blockscale.quantize(OnAnotherDevice(), "nvfp4")


def test_describe_says_which_kernels_there_are():
    plan = blockscale.describe((4096, 8192), "nvfp4", dtype="f16", transform="rms_norm")
    kernels = [line.split(":")[0] for line in plan.splitlines()]
    assert kernels[:2] == [
        "quantize_amax_f16_rms_norm",
        "quantize_blocks_nvfp4_e2m1_16_f16_rms_norm",
    ]
    assert plan.splitlines()[-1].startswith("workspace ")
    assert "read once" in blockscale.describe((16, 4096), "fp8_row", layout="mn_major")
    assert "2 rounds a row" in blockscale.describe((16, 32768), "fp8_row")


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (((4096,), "mxfp4"), {}, "shape"),
        (((0, 4096), "mxfp4"), {}, "elements"),
        (((1, 4096), "bf16"), {}, "recipe"),
        (((1, 4096), "fp8_1x128"), {"layout": "swizzled_128x4"}, "layout"),
        (((1, 4096), "mxfp4"), {"transform": "relu"}, "transform"),
        (((1, 4096), "mxfp4"), {"dtype": "e4m3"}, "dtype"),
    ],
)
def test_describe_refuses_what_has_no_plan(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        blockscale.describe(*arguments, **options)
