"""torch tensors and its dtypes, both ways; `./dev test --torch` runs these."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
from pathlib import Path

import blockscale
import numpy as np
import pytest
from safetensors.numpy import save_file

torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")

# recipe -> (dtype of values, dtype of scales)
DTYPES = {
    "nvfp4": ("float4_e2m1fn_x2", "float8_e4m3fn"),
    "mxfp4": ("float4_e2m1fn_x2", "float8_e8m0fnu"),
    "mxfp6_e2m3": ("uint8", "float8_e8m0fnu"),
    "mxfp6_e3m2": ("uint8", "float8_e8m0fnu"),
    "mxfp8_e4m3": ("float8_e4m3fn", "float8_e8m0fnu"),
    "mxfp8_e5m2": ("float8_e5m2", "float8_e8m0fnu"),
    "fp8_1x128": ("float8_e4m3fn", "float32"),
    "fp8_128x128_ue8m0": ("float8_e4m3fn", "float8_e8m0fnu"),
    "fp8_tensor_e5m2": ("float8_e5m2", "float32"),
}


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def same(a: torch.Tensor, b: np.ndarray) -> bool:
    """Equal bytes: torch's type and ml_dtypes' are read as unsigned integers."""
    return np.array_equal(a.view(torch.uint8).numpy(), b.view(np.uint8))


@pytest.mark.parametrize("recipe", DTYPES)
def test_quantize_gives_torchs_types_and_numpys_bytes(recipe: str) -> None:
    x = normal(8, 128)
    t = blockscale.quantize(x, recipe)
    assert (str(t.values.dtype), str(t.scales.dtype)) == tuple(f"torch.{n}" for n in DTYPES[recipe])
    expected = blockscale.quantize(x.numpy(), recipe)
    assert same(t.values, expected.values) and same(t.scales, expected.scales)
    if expected.tensor_scale is not None:
        assert torch.equal(t.tensor_scale, torch.from_numpy(expected.tensor_scale))
    y = blockscale.dequantize(t)
    assert isinstance(y, torch.Tensor) and y.dtype == torch.float32
    assert np.array_equal(y.numpy(), blockscale.dequantize(expected))


@pytest.mark.parametrize("recipe", DTYPES)
def test_scaled_tensor_shares_torchs_memory(recipe: str) -> None:
    t = blockscale.quantize(normal(8, 128), recipe)
    values, scales = t.values.clone(), t.scales.clone()
    other = blockscale.ScaledTensor(values, scales, recipe, tensor_scale=t.tensor_scale)
    assert other.values.data_ptr() == values.data_ptr() and other.values.dtype == values.dtype
    assert other.scales.data_ptr() == scales.data_ptr() and other.scales.dtype == scales.dtype
    if t.tensor_scale is not None:
        assert other.tensor_scale.data_ptr() == t.tensor_scale.data_ptr()
    assert torch.equal(blockscale.dequantize(other), blockscale.dequantize(t))


def test_torchs_cast_to_fp8_agrees() -> None:
    x = normal(16, 256)
    t = blockscale.quantize(x, "fp8_row")
    assert torch.equal(t.scales, x.abs().amax(1, keepdim=True) / 448)
    expected = (x / t.scales).to(torch.float8_e4m3fn)
    assert torch.equal(t.values.view(torch.uint8), expected.view(torch.uint8))
    y = t.values.float() * t.scales
    assert torch.equal(blockscale.dequantize(t), y)
    m = blockscale.quantize(x, "mxfp8_e4m3")
    blocks = m.values.float().unflatten(1, (8, 32)) * m.scales.float().unsqueeze(-1)
    assert torch.equal(blockscale.dequantize(m), blocks.flatten(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_gemm_keeps_the_dtype_and_out(dtype: torch.dtype) -> None:
    a, w = normal(3, 128).to(dtype), blockscale.quantize(normal(5, 128, seed=1), "nvfp4")
    bias = normal(5, seed=2).to(dtype)
    d = blockscale.gemm(a, w, bias=bias)
    assert isinstance(d, torch.Tensor) and d.dtype == dtype
    exact = a.double() @ blockscale.dequantize(w).double().T + bias.double()
    assert torch.allclose(d.double(), exact, rtol=2.0**-8, atol=1e-3)
    out = torch.empty(3, 5, dtype=dtype)
    pointer = out.data_ptr()
    assert blockscale.gemm(a, w, bias=bias, out=out) is out and out.data_ptr() == pointer
    assert torch.equal(out, d)
    assert blockscale.gemm(a, w, out_dtype=torch.bfloat16).dtype == torch.bfloat16


def test_dequantize_into_torch() -> None:
    t = blockscale.quantize(normal(4, 64).bfloat16(), "mxfp4")
    assert blockscale.dequantize(t, out_dtype=torch.bfloat16).dtype == torch.bfloat16
    wide = torch.full((4, 80), 9.0)
    assert torch.equal(blockscale.dequantize(t, out=wide[:, :64]), blockscale.dequantize(t))
    assert (wide[:, 64:] == 9.0).all()


def test_batches_and_strides() -> None:
    x = normal(3, 8, 128)[:, ::2, :64]
    t = blockscale.quantize(x, "nvfp4")
    assert t.shape == (3, 4, 64)
    assert same(t.values, blockscale.quantize(x.contiguous().numpy(), "nvfp4").values)


def test_memory_outlives_the_tensor() -> None:
    values = blockscale.quantize(normal(64, 512), "mxfp8_e4m3")
    expected = blockscale.dequantize(values).clone()
    v, s = values.values.clone(), values.scales.clone()
    t = blockscale.ScaledTensor(v, s, "mxfp8_e4m3")
    storage = v.untyped_storage()
    del v, s, values
    gc.collect()
    _ = [torch.rand(64, 512) for _ in range(20)]  # what would reuse freed memory
    assert torch.equal(blockscale.dequantize(t), expected)
    with pytest.raises(RuntimeError, match="resiz"):  # torch keeps it from being freed too early
        storage.resize_(0)


def test_pickle_and_copy() -> None:
    t = blockscale.quantize(normal(4, 64), "nvfp4", layout="swizzled_128x4")
    for other in (pickle.loads(pickle.dumps(t)), copy.deepcopy(t), copy.copy(t)):
        assert other.values.dtype == torch.float4_e2m1fn_x2
        assert torch.equal(blockscale.dequantize(other), blockscale.dequantize(t))


def test_parameters_need_no_grad() -> None:
    layer = torch.nn.Linear(64, 8)
    with pytest.raises(ValueError, match="x: requires grad"):
        blockscale.quantize(layer.weight, "mxfp8_e4m3")
    with pytest.raises(ValueError, match="a: requires grad"):
        blockscale.gemm(normal(2, 64).requires_grad_(), normal(8, 64))
    with pytest.raises(ValueError, match="out: requires grad"):
        blockscale.gemm(normal(2, 64), normal(8, 64), out=torch.empty(2, 8, requires_grad=True))
    detached = blockscale.quantize(layer.weight.detach(), "mxfp8_e4m3")
    with torch.no_grad():
        t = blockscale.quantize(layer.weight, "mxfp8_e4m3")
    assert torch.equal(t.values.view(torch.uint8), detached.values.view(torch.uint8))


def sparse() -> torch.Tensor:
    return normal(4, 64).to_sparse()


BAD = [
    (lambda: torch.empty(4, 64, device="meta"), ValueError, "x: is on meta"),
    (lambda: normal(4, 64).double(), TypeError, "x: has dtype float64"),
    (lambda: normal(4, 64).to(torch.float8_e4m3fn), TypeError, "x: has dtype float8_e4m3fn"),
    (lambda: torch.zeros(4, 64, dtype=torch.int32), TypeError, "x: has dtype int32"),
    (lambda: torch.zeros(4, 64, dtype=torch.complex64), TypeError, "x: has dtype complex64"),
    (lambda: normal(4, 128)[:, ::2], ValueError, "stride of its last dimension is 2"),
    (lambda: normal(64, 4).T, ValueError, "stride of its last dimension is 4"),
    (lambda: normal(64).expand(4, 64), ValueError, "stride of dimension 0 is 0"),
    (lambda: normal(64), ValueError, "x: shape is"),
    (sparse, TypeError, "x: is a torch.sparse_coo tensor"),
]


@pytest.mark.parametrize(("make", "kind", "text"), BAD)
def test_bad_tensors(make, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        blockscale.quantize(make(), "nvfp4")


def test_bad_parts_and_out() -> None:
    t = blockscale.quantize(normal(4, 64), "mxfp8_e4m3")
    with pytest.raises(TypeError, match=r"values: has dtype float8_e5m2, must be uint8"):
        blockscale.ScaledTensor(t.values.view(torch.float8_e5m2), t.scales, "mxfp8_e4m3")
    with pytest.raises(TypeError, match="scales: has dtype float8_e4m3fn"):
        blockscale.ScaledTensor(t.values, t.scales.view(torch.float8_e4m3fn), "mxfp8_e4m3")
    memory = torch.zeros(4 * 64)
    with pytest.raises(ValueError, match="overlap"):
        out = memory.view(torch.uint8)[: 4 * 64].view(4, 64)
        blockscale.quantize(
            memory.view(4, 64), "mxfp8_e4m3", out=blockscale.ScaledTensor(out, t.scales, t.recipe)
        )
    with pytest.raises(TypeError, match="out: has dtype float64"):
        blockscale.dequantize(t, out=torch.empty(4, 64, dtype=torch.float64))


class DLPackOnly:
    """A tensor of which nothing but its DLPack methods is known."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, **options: object) -> object:
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.tensor.__dlpack_device__()


def test_dlpack_carries_bf16_and_fp8() -> None:
    x = normal(4, 64).bfloat16()
    t = blockscale.quantize(x, "mxfp8_e4m3")
    from_dlpack = blockscale.quantize(DLPackOnly(x), "mxfp8_e4m3")
    assert np.array_equal(from_dlpack._values, t._values)
    values, scales = t.values.clone(), t.scales.clone()
    parts = blockscale.ScaledTensor(DLPackOnly(values), DLPackOnly(scales), "mxfp8_e4m3")
    assert parts._values.ctypes.data == values.data_ptr()
    assert parts._scales.ctypes.data == scales.data_ptr()
    for array, fmt, expected in (
        (t._values, blockscale.Format.e4m3, t.values),
        (t._scales, blockscale.Format.ue8m0, t.scales),
        (np.asarray(x.view(torch.uint16)), blockscale.Format.bf16, x),
    ):
        back = torch.from_dlpack(blockscale._native.export_dlpack(array, fmt))
        assert back.dtype == expected.dtype and back.data_ptr() == array.ctypes.data


def test_checkpoint_weights_multiply_torch_activations(tmp_path: Path) -> None:
    save_file({"layer.weight": normal(16, 64).numpy()}, tmp_path / "model.safetensors")
    blockscale.convert(tmp_path / "model.safetensors", tmp_path / "out.safetensors", "nvfp4")
    weight = blockscale.Checkpoint(tmp_path / "out.safetensors")["layer.weight"]
    d = blockscale.gemm(normal(2, 64), weight)
    assert isinstance(d, torch.Tensor) and d.shape == (2, 16)


DRIVERS = sorted(
    (Path(__file__).resolve().parents[2] / "build").glob("release/**/*fake_libcuda.so")
)
NVRTC = sorted(Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/*/lib/libnvrtc.so.*"))
#: Tensors that say they are CUDA's, at addresses that the tests' driver knows as device 0's.
ON_DEVICE = """
import ctypes, mmap, torch, blockscale
from blockscale import _device

BASE, SIZE, FIXED = 1 << 32, 1 << 20, 0x10
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | FIXED
assert libc.mmap(ctypes.c_void_p(BASE), ctypes.c_size_t(SIZE), 3, flags, -1, 0) == BASE
memory = torch.frombuffer((ctypes.c_ubyte * SIZE).from_address(BASE), dtype=torch.uint8)
used = 0


class Tensor(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl
    is_cuda = True
    get_device = lambda self: 0

    def __dlpack__(self, **options):
        raise AssertionError('the slow way')


# DLPack's table of torch's C functions, in which `tensor_from_object` says what Tensor does.
Function = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
name, python = b'dlpack_exchange_api', ctypes.pythonapi
python.PyCapsule_GetPointer.restype = ctypes.c_void_p
python.PyCapsule_GetPointer.argtypes = ctypes.py_object, ctypes.c_char_p
python.PyCapsule_New.restype = ctypes.py_object
python.PyCapsule_New.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
table = python.PyCapsule_GetPointer(torch.Tensor.__dlpack_c_exchange_api__, name)
words = (ctypes.c_uint64 * 8).from_buffer_copy((ctypes.c_uint64 * 8).from_address(table))
original = Function(words[5])


def tensor_from_object(tensor, description):
    status = original(tensor, description)
    ctypes.c_int32.from_address(description + 8).value = 2  # kDLCUDA
    return status


callback = Function(tensor_from_object)
words[1], words[5] = 0, ctypes.cast(callback, ctypes.c_void_p).value
Tensor.__dlpack_c_exchange_api__ = python.PyCapsule_New(ctypes.addressof(words), name, None)


def empty(self, shape, dtype):
    global used
    dtype = getattr(torch, dtype)
    count = torch.Size(shape).numel() * dtype.itemsize
    part = memory[used : used + count].view(dtype).view(shape)
    used += -(-count // 256) * 256
    return on_device(part)


def on_device(part):
    return torch.Tensor._make_subclass(Tensor, part)


_device._Torch.empty, _device._Torch._raw_stream = empty, staticmethod(lambda ordinal: 0x5000)
device = _device.device('torch', 0)
"""


needs_table = pytest.mark.skipif(
    not DRIVERS or not NVRTC or not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"),
    reason="no fake driver (./dev test release), no NVRTC, or a torch older than 2.10",
)


def assert_done(code: str, tmp_path: Path) -> None:
    """Runs it behind ON_DEVICE, with the fake driver, in a process of its own."""
    result = subprocess.run(
        [sys.executable, "-c", ON_DEVICE + code + "\nprint('done')"],
        capture_output=True,
        text=True,
        env=os.environ
        | {
            "BLOCKSCALE_LIBCUDA": str(DRIVERS[0]),
            "BLOCKSCALE_NVRTC": str(NVRTC[0]),
            "BLOCKSCALE_CACHE": str(tmp_path),
        },
    )
    assert result.stdout.strip() == "done", result.stderr


@needs_table
def test_tensors_on_a_device_are_not_asked_slowly(tmp_path: Path) -> None:
    code = """
x = device.empty((130, 256), 'bfloat16')
a = blockscale.quantize(on_device(x[:64]), 'fp8_1x128')
b = blockscale.quantize(on_device(x[2:, :]), 'fp8_128x128')
assert a.shape == (64, 256)
out = device.empty((64, 256), 'float32')
blockscale.gemm(a, b, out=on_device(out[:, :128]), bias=device.empty((128,), 'float16'))
try:
    blockscale.gemm(a, b, out=on_device(out[:, ::2]))
except ValueError as error:
    assert 'out: stride of its last dimension is 2' in str(error), error
else:
    raise AssertionError('no error')
"""
    assert_done(code, tmp_path)


@needs_table
def test_usual_calls_are_made_without_python(tmp_path: Path) -> None:
    code = """
from blockscale import Recipe, ScaleLayout, _ops
looks = []
plain = _ops.plain
_ops.plain = lambda x, argument: looks.append(argument) or plain(x, argument)
x, stack = device.empty((64, 256), 'bfloat16'), device.empty((3, 64, 256), 'float32')
for recipe in 'nvfp4', Recipe.nvfp4:
    t = blockscale.quantize(x, recipe, layout='swizzled_128x4')
    assert t.shape == (64, 256) and type(t.shape) is tuple and t.recipe is Recipe.nvfp4
    assert t.layout is ScaleLayout.swizzled_128x4 and t.scales.shape == (128, 16)
    assert blockscale.quantize(x, recipe, out=t) is t
batch = blockscale.quantize(stack, 'fp8_1x128', layout=ScaleLayout.mn_major, amax_floor=1e-4)
assert batch.shape == (3, 64, 256) and batch.values.shape == (3, 64, 256)
assert batch.scales.shape == (3, 2, 64) and batch.layout is ScaleLayout.mn_major
a, b = (blockscale.quantize(x, recipe) for recipe in ('fp8_1x128', 'fp8_128x128'))
out, bias = device.empty((64, 64), 'bfloat16'), device.empty((64,), 'float32')
assert blockscale.gemm(a, b, out=out) is out
assert blockscale.gemm(a, b, out=out, alpha=0.5, bias=bias, batch_invariant=True) is out
assert blockscale.gemm(a, b, out=out, beta=1.0, c=out, bias=bias) is out
assert looks == [], looks
blockscale.quantize(x, 'mxfp4', scale_mode='even')
assert looks == ['x'], looks
"""
    assert_done(code, tmp_path)


@needs_table
def test_usual_calls_are_refused_as_others_are(tmp_path: Path) -> None:
    t = "out: (shape, recipe, layout) is ((64, 256), 'fp8_row', 'row_major'), must be "
    cases = {
        "quantize(x[:32], 'fp8_row', out=t)": t + "((32, 256), 'fp8_row', 'row_major')",
        "quantize(x[None], 'fp8_row', out=t)": t + "((1, 64, 256), 'fp8_row', 'row_major')",
        "quantize(x, 'fp8_1x128', out=t)": t + "((64, 256), 'fp8_1x128', 'row_major')",
        "quantize(x, 'fp8_row', layout='mn_major', out=t)": t
        + ("((64, 256), 'fp8_row', 'mn_major')"),
        "quantize(x, 'fp8_row', out=of_cpu)": "out: is on the CPU, must be on cuda:0 like x",
        "quantize(x, 'mxfp4', amax_floor=1.0)": (
            "amax_floor: given for mxfp4, only FP8 recipes have one"
        ),
        "quantize(x, 'bf16')": "recipe: bf16 is a plain format, nothing to quantize to",
        "quantize(x, 'mxfp4', threads=-1)": "threads: is -1, must be from 0 to 2147483647",
        "quantize(x[:, :200], 'mxfp4')": "values.k: is 200, must be a multiple of 32 for mxfp4",
        "quantize(x[0], 'mxfp4')": (
            "x: shape is (256,), must be (rows, columns) or (batch, rows, columns)"
        ),
        "quantize(x[:, ::2], 'fp8_1x128')": (
            "x: stride of its last dimension is 2 elements, must be 1; copy it first"
        ),
        "quantize(x, 'fp8_row', layout='nowhere')": (
            "layout: is 'nowhere', must be one of row_major, mn_major, swizzled_128x4, swizzled_8x4"
        ),
        "quantize(on_device(x).requires_grad_(), 'mxfp4')": (
            "x: requires grad, and no gradient flows through blockscale; pass .detach(), or "
            "call under torch.no_grad()"
        ),
        "gemm(a, b, out=device.empty((64, 95), 'float32'))": (
            "out: shape is (64, 95), must be (64, 96)"
        ),
        "gemm(a, b, out=device.empty((1, 64, 96), 'float32'))": (
            "out: shape is (1, 64, 96), must be (64, 96)"
        ),
        "gemm(a, b, out=torch.empty(64, 96))": "out: is on the CPU, must be on cuda:0 like a",
        "gemm(a, b, out=d, bias=torch.empty(96))": "bias: is on the CPU, must be on cuda:0 like a",
        "gemm(a, b, out=d, bias=device.empty((95,), 'float32'))": (
            "bias: has 95 elements, must have N = 96"
        ),
        "gemm(a, b, out=d, beta=2.0)": "c: is missing, must be given with beta = 2.0",
        "gemm(a, b, out=d, threads=-1)": "threads: is -1, must be from 0 to 2147483647",
        "gemm(of_cpu, b, out=d)": "b: is on cuda:0, must be on the CPU like a",
    }
    code = f"""
gemm = blockscale.gemm


def quantize(x, *arguments, **options):
    x = x if type(x) is Tensor else on_device(x)
    return blockscale.quantize(x, *arguments, **options)


def fp8_row(rows):
    return blockscale.ScaledTensor(
        device.empty((rows, 256), 'uint8'), device.empty((rows, 1), 'float32'), 'fp8_row'
    )


x, d = device.empty((64, 256), 'bfloat16'), device.empty((64, 96), 'float16')
a = t = fp8_row(64)
b = fp8_row(96)
of_cpu = blockscale.quantize(torch.zeros(64, 256), 'fp8_row')
for call, message in {cases!r}.items():
    try:
        eval(call)
    except ValueError as error:
        assert str(error) == message, (call, error)
    else:
        raise AssertionError(call)
"""
    assert_done(code, tmp_path)
