"""Arrays on CUDA devices without a device: what is refused, and with the tests' own driver, which
runs nothing, that a call reaches its launch on the library's stream."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from on_device import (
    FP8,
    SOURCE,
    last_line,
    needs_driver,
    run,
    run_with_driver,
    runs_to_its_end,
)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "blockscale.quantize(Array((2, 32), 'float32'), 'mxfp4', "
            "out=blockscale.quantize(np.ones((2, 32), np.float32), 'mxfp4'))",
            "ValueError: out: is on the CPU, must be on cuda:0 like x",
        ),
        (
            "blockscale.quantize_rows_and_columns(Array((2, 128), 'float32'), 'fp8_1x128', "
            "out=blockscale.quantize_rows_and_columns(np.ones((2, 128), np.float32), 'fp8_1x128'))",
            "ValueError: out[0]: is on the CPU, must be on cuda:0 like x",
        ),
        (
            "blockscale.quantize(np.ones((2, 32), np.float32), 'mxfp4', "
            "transform=blockscale.RmsNorm(Array((32,), 'float32')))",
            "ValueError: transform.weight: is on cuda:0, must be on the CPU like x",
        ),
        (
            "blockscale.quantize(Array((2, 32), 'float32'), 'mxfp4', "
            "transform=blockscale.RmsNorm(Array((32,), 'float32', 1)))",
            "ValueError: transform.weight: is on cuda:1, must be on cuda:0 like x",
        ),
        (
            "blockscale.quantize(Array((2, 32), 'float32'), 'fp8_row', "
            "scales=np.ones((2, 1), np.float32))",
            "ValueError: scales: is on the CPU, must be on cuda:0 like x",
        ),
        (
            "blockscale.ScaledTensor(Array((2, 16), 'uint8'), np.ones((2, 1), 'uint8'), 'mxfp4')",
            "ValueError: scales: is on the CPU, must be on cuda:0 like values",
        ),
        (
            "blockscale.quantize(Array((2, 32), 'int32'), 'mxfp4')",
            "TypeError: x: has dtype int32, must be one of float32, float16, bfloat16",
        ),
        (
            "blockscale.gemm(np.ones((2, 32), np.float32), Array((2, 32), 'float32'))",
            "ValueError: b: is on cuda:0, must be on the CPU like a",
        ),
        (
            "blockscale.gemm(np.ones((2, 32), np.float32), np.ones((2, 32), np.float32), "
            "alpha=Array((1,), 'float32'))",
            "ValueError: alpha: is on cuda:0, must be on the CPU like a",
        ),
        (
            "blockscale.dequantize(blockscale.quantize(np.ones((2, 32), np.float32), 'mxfp4'), "
            "out=Array((2, 32), 'float32'))",
            "ValueError: out: is on cuda:0, must be on the CPU like x",
        ),
    ],
)
def test_arrays_of_one_call_lie_on_one_device(call: str, message: str) -> None:
    result = run(call)
    assert last_line(result.stderr) == message


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("(a, fp8(96, 256, device=1))", "ValueError: b: is on cuda:1, must be on cuda:0 like a"),
        (
            "(a, blockscale.quantize(np.ones((96, 256), np.float32), 'fp8_1x128'))",
            "ValueError: b: is on the CPU, must be on cuda:0 like a",
        ),
        (
            "(a, b, out=np.empty((64, 96), np.float32))",
            "ValueError: out: is on the CPU, must be on cuda:0 like a",
        ),
        (
            "(a, b, out=Array((64, 96), 'float32', 1))",
            "ValueError: out: is on cuda:1, must be on cuda:0 like a",
        ),
        (
            "(a, b, out=Array((64, 97), 'float32'))",
            "ValueError: out: shape is (64, 97), must be (64, 96)",
        ),
        (
            "(a, b, beta=1.0, c=np.ones((64, 96), np.float32))",
            "ValueError: c: is on the CPU, must be on cuda:0 like a",
        ),
        (
            "(a, b, bias=np.ones(96, np.float32))",
            "ValueError: bias: is on the CPU, must be on cuda:0 like a",
        ),
        (
            "(a, b, bias=Array((2, 96), 'float32'))",
            "ValueError: bias: shape is (2, 96), must be (N,) or (1, N)",
        ),
        (
            "(a, b, bias=Array((95,), 'float32'))",
            "ValueError: bias: has 95 elements, must have N = 96",
        ),
        (
            "(a, b, alpha=Array((1,), 'float32', 1))",
            "ValueError: alpha: is on cuda:1, must be on cuda:0 like a",
        ),
        (
            "(a, b, alpha=Array((1,), 'float16'))",
            "TypeError: alpha: has dtype float16, must be float32",
        ),
        (
            "(a, b, alpha=Array((2,), 'float32'))",
            "ValueError: alpha: shape is (2,), must have one element",
        ),
        (
            "(a, b, beta=Array((1,), 'float32'))",
            "TypeError: beta: is an array on a device, must be a number",
        ),
        (
            "(a, fp8(96, 384))",
            "ValueError: b.k: is 384, must be 256, the k of a",
        ),
        (
            "(fp8(64, 256, 'fp8_row'), b)",
            "ValueError: b.recipe: is fp8_128x128 with a.recipe fp8_row: no such pair "
            "(docs/numerics.md lists the pairs)",
        ),
        ("(a, b, out_dtype='bfloat16')", "TypeError: out_dtype: cupy has no bf16"),
    ],
)
def test_gemm_refuses(call: str, message: str) -> None:
    assert last_line(run(FP8 + f"blockscale.gemm{call}").stderr) == message


@needs_driver
def test_gemm_takes_plain_activations(tmp_path: Path) -> None:
    code = "print(blockscale.gemm(Array((64, 256), 'float16'), b).shape)"
    result = run_with_driver(FP8 + code, tmp_path)
    assert last_line(result.stdout) == "(64, 96)", result.stderr


def test_no_driver_is_said_so() -> None:
    code = "blockscale.quantize(Array((2, 32), 'float32'), 'mxfp4')"
    result = run(code, BLOCKSCALE_LIBCUDA="/nowhere/libcuda.so.1")
    assert last_line(result.stderr).startswith("FileNotFoundError: no GPU: ")
    assert "libcuda" in last_line(result.stderr)


@needs_driver
def test_a_call_runs_on_the_stream_of_its_library(tmp_path: Path) -> None:
    code = """
x = Array((64, 256), 'float16', 1)
t = blockscale.quantize(x, 'nvfp4', layout='swizzled_128x4')
assert t.shape == (64, 256) and t.values.shape == (64, 128) and t.values.device == 1
assert t.scales.shape == (128, 16) and t.tensor_scale.shape == (1,)
assert t.nbytes == 64 * 128 + 128 * 16 + 4
assert set(asked) == {STREAM + 1}, asked
again = blockscale.quantize(x, 'nvfp4', layout='swizzled_128x4', out=t, tensor_scale=2.0)
assert again is t and [given.assigned for given in t._tensor_scale.assigned] == [[2.0]]
made = blockscale.ScaledTensor(t.values, t.scales, 'nvfp4', layout='swizzled_128x4',
                               tensor_scale=t.tensor_scale)
assert made.shape == (64, 256)
y = blockscale.dequantize(t, out_dtype='float16')
assert y.shape == (64, 256) and y.dtype == np.float16 and y.device == 1
norm = blockscale.RmsNorm(Array((256,), 'float32', 1))
pair = blockscale.quantize_rows_and_columns(x, 'fp8_1x128', transform=norm)
assert [t.shape for t in pair] == [(64, 256), (256, 64)]
assert [t.values.device for t in pair] == [1, 1]
assert blockscale.quantize_rows_and_columns(x, 'fp8_1x128', out=pair)[1] is pair[1]
out = Array((64, 256), 'float32', 1)
assert blockscale.dequantize(t, out=out) is out
assert set(asked) == {STREAM + 1}, asked
print('done')
"""
    runs_to_its_end(code, tmp_path)


@needs_driver
def test_gemm_runs_on_the_stream_of_its_library(tmp_path: Path) -> None:
    code = """
asked.clear()
a, b = fp8(64, 256, device=1), fp8(96, 256, 'fp8_128x128', device=1)
d = blockscale.gemm(a, b)
assert d.shape == (64, 96) and d.dtype == np.float32 and d.device == 1
assert set(asked) == {STREAM + 1}, asked
out = Array((64, 96), 'float16', 1)
extras = {'alpha': Array((), 'float32', 1), 'bias': Array((96,), 'float16', 1)}
assert blockscale.gemm(a, b, out=out, **extras) is out
assert blockscale.gemm(a, b, beta=0.5, c=out, out=out) is out
stack = fp8(64, 256, device=1, batch=(3,))
assert blockscale.gemm(stack, b, out_dtype='float16').shape == (3, 64, 96)
for kind in ('gelu_tanh', 'silu', 'swiglu', blockscale.Swiglu(group=1)):
    d = blockscale.gemm(a, b, transform=kind, out_dtype='float16')
    assert d.shape == (64, 96 if kind in ('gelu_tanh', 'silu') else 48) and d.device == 1
copied = fp8(64, 1000, 'fp8_row', device=1)  # whose rows begin anywhere: to a workspace
assert blockscale.gemm(copied, copied, batch_invariant=True).shape == (64, 64)
assert set(asked) == {STREAM + 1}, asked
try:
    blockscale.gemm(a, b, beta=1.0, c=Array((64, 97), 'float32', 1))
except ValueError as error:
    assert str(error) == 'c.columns: is 97, must be 96, the rows of b', error
else:
    raise AssertionError('no error')
print('done')
"""
    runs_to_its_end(FP8 + code, tmp_path)


@needs_driver
def test_one_scale_is_given_for_all(tmp_path: Path) -> None:
    code = """
x = Array((64, 256), 'float32')
for recipe, grid in (('fp8_row', (64, 1)), ('fp8_tensor', (1, 1))):
    one = Array((1, 1), 'float32')
    t = blockscale.quantize(x, recipe, scales=one)
    assert t.scales.shape == grid and t.scales.assigned == [one]
print('done')
"""
    runs_to_its_end(code, tmp_path)


TORCH = """
import fake_torch
from fake_torch import Tensor

allocated = []
make = fake_torch.module.empty
fake_torch.module.empty = lambda *sizes, **kind: allocated.append(sizes) or make(*sizes, **kind)


def fp8(rows, k, grid, device=0):
    return blockscale.ScaledTensor(Tensor((rows, k), 'float8_e4m3fn', device),
                                   Tensor(grid, 'float32', device), recipe)
"""


@needs_driver
def test_torch_is_asked_for_no_more_than_a_call_needs(tmp_path: Path) -> None:
    code = """
recipe = 'fp8_1x128'
x = Tensor((64, 256), 'bfloat16', 1)
t = blockscale.quantize(x, recipe)
assert allocated == [(64, 256), (64, 2)], allocated
assert t.values.dtype.name == 'float8_e4m3fn' and t.values.get_device() == 1
assert blockscale.quantize(x, recipe, out=t) is t and len(allocated) == 2
d = blockscale.gemm(t, fp8(96, 256, (96, 2), 1), out_dtype='bfloat16')
assert d.shape == (64, 96) and d.dtype.name == 'bfloat16' and d.get_device() == 1
assert allocated[2:] == [(64, 96)], allocated
assert blockscale.gemm(t, t, out=Tensor((64, 64), 'float32', 1), alpha=Tensor((), 'float32', 1),
                       bias=Tensor((64,), 'bfloat16', 1)).shape == (64, 64)
assert len(allocated) == 3, allocated
blockscale.quantize(x, 'nvfp4')  # values, scales, the tensor scale and a workspace
assert allocated[3:6] == [(64, 128), (64, 16), (1,)] and len(allocated) == 7, allocated
y = blockscale.dequantize(t, out_dtype='float16')
assert y.shape == (64, 256) and y.dtype.name == 'float16'
assert set(asked) == {None}, asked  # no stream was made to wait for another
print('done')
"""
    runs_to_its_end(TORCH + code, tmp_path)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "blockscale.quantize(Tensor((2, 32)), 'mxfp4', "
            "out=blockscale.quantize(np.ones((2, 32), np.float32), 'mxfp4'))",
            "ValueError: out: is on the CPU, must be on cuda:0 like x",
        ),
        (
            "blockscale.quantize(Tensor((2, 32), 'uint8'), 'mxfp4')",
            "TypeError: x: has dtype uint8, must be one of float32, float16, bfloat16",
        ),
        (
            "Tensor.requires_grad = True\nblockscale.quantize(Tensor((2, 32)), 'mxfp4')",
            "ValueError: x: requires grad, and no gradient flows through blockscale; pass "
            ".detach(), or call under torch.no_grad()",
        ),
        (
            "Tensor.layout = 'torch.sparse_coo'\nblockscale.quantize(Tensor((2, 32)), 'mxfp4')",
            "TypeError: x: is a torch.sparse_coo tensor, must be strided",
        ),
        (
            "Tensor.is_neg = lambda self: True\nblockscale.quantize(Tensor((2, 32)), 'mxfp4')",
            "TypeError: x: is a lazy view; call .resolve_neg() first",
        ),
        (
            "Tensor.is_cuda, Tensor.device = False, type('', (), dict(type='xpu', "
            "__str__=lambda _: 'xpu:0'))()\nblockscale.quantize(Tensor((2, 32)), 'mxfp4')",
            "ValueError: x: is on xpu:0; arrays in CPU memory are taken, and on CUDA devices those "
            "of torch, cupy, jax",
        ),
    ],
)
def test_tensors_of_torch_are_refused(call: str, message: str) -> None:
    assert last_line(run(TORCH + call).stderr) == message


JAX = """
import fake_jax, weakref
from blockscale import _device, _native

workspaces, alive = [], []  # of each call: whether its workspace lived when the call had waited
make, wait = _device.Device.workspace, _native.cuda_synchronize


def workspace(self, size):
    array = make(self, size)
    workspaces.append(weakref.ref(array))
    return array


def synchronize(*device_and_stream):
    wait(*device_and_stream)
    alive.append(bool(workspaces) and workspaces[-1]() is not None)


_device.Device.workspace, _native.cuda_synchronize = workspace, synchronize
x = Array((64, 256), 'float16')
norm = blockscale.RmsNorm(Array((256,), 'float32'))
"""


@needs_driver
def test_jax_keeps_the_workspace_until_the_work_is_done(tmp_path: Path) -> None:
    code = """
blockscale.quantize(x, 'nvfp4')
blockscale.quantize_rows_and_columns(x, 'fp8_1x128', transform=norm)
assert blockscale.moe_sort(Array((20, 2), 'int32'), 4, tile=8).tiles.shape == (1,)
assert alive == [True] * 3, alive
assert [ref() for ref in workspaces] == [None] * 3  # and no longer


def fail(*call):
    if call[-1] is None:  # the call as it was given
        return None
    _, _, make_workspace = call[-1]
    workspace = make_workspace(64)
    raise RuntimeError('halfway')


_native.quantize = _native.dequantize = fail
t = blockscale.ScaledTensor(Array((2, 16), 'uint8'), Array((2, 1), 'uint8'), 'mxfp4')
for call in (lambda: blockscale.quantize(x, 'nvfp4'), lambda: blockscale.dequantize(t)):
    try:
        call()
    except RuntimeError as error:
        assert str(error) == 'halfway'
    else:
        raise AssertionError('no error')
assert alive == [True] * 5, alive
print('done')
"""
    runs_to_its_end(JAX + code, tmp_path)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "blockscale.quantize(x, 'mxfp4', out=t)",
            "out.values: is an array of jax, which never change; must be writable",
        ),
        (
            "blockscale.quantize_rows_and_columns(x, 'fp8_1x128', out=(rows, columns))",
            "out[0].values: is an array of jax, which never change; must be writable",
        ),
        (
            "blockscale.dequantize(t, out=Array((64, 256), 'float32'))",
            "out: is an array of jax, which never change; must be writable",
        ),
        (
            "blockscale.gemm(rows, rows, out=Array((64, 64), 'float32'))",
            "out: is an array of jax, which never change; must be writable",
        ),
        (
            "blockscale.quantize(x, 'fp8_row', scales=1.0)",
            "scales: cannot be given on a device of jax; use torch or cupy",
        ),
    ],
)
def test_jax_arrays_are_never_written(call: str, message: str) -> None:
    made = """
def tensor(rows, columns, scales, recipe):
    return blockscale.ScaledTensor(Array((rows, columns), 'uint8'), scales, recipe)


t = tensor(64, 128, Array((64, 8), 'uint8'), 'mxfp4')
rows = tensor(64, 256, Array((64, 2), 'float32'), 'fp8_1x128')
columns = tensor(256, 64, Array((256, 1), 'float32'), 'fp8_1x128')
"""
    assert last_line(run(JAX + made + call).stderr) == f"ValueError: {message}"


def test_other_libraries_on_a_device_are_refused() -> None:
    code = """
Array.__module__ = 'somelib'
blockscale.quantize(Array((2, 32), 'float32'), 'mxfp4')
"""
    assert last_line(run(code).stderr) == (
        "ValueError: x: is on cuda:0; arrays in CPU memory are taken, and on CUDA devices those of "
        "torch, cupy, jax"
    )


def test_the_tests_on_a_gpu_fail_where_torch_does_not_see_it() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only"]
    command.append(str(SOURCE / "tests/gpu/test_torch_quantize.py"))

    def collect(required: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"BLOCKSCALE_REQUIRE_GPU": required, "CUDA_VISIBLE_DEVICES": ""}
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    assert collect("").returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    required = collect("1")
    assert required.returncode == pytest.ExitCode.INTERRUPTED, required.stdout
    assert "and BLOCKSCALE_REQUIRE_GPU is set" in required.stdout


@needs_driver
def test_kernels_are_loaded_beforehand(tmp_path: Path) -> None:
    code = (
        "import blockscale.cuda\n"
        "count = blockscale.cuda.load_kernels('dequantize')\n"
        "x = blockscale.ScaledTensor(Array((2, 16), 'uint8'), Array((2, 1), 'uint8'), 'mxfp4')\n"
        "blockscale.dequantize(x)\n"
        "print(count, count == blockscale.cuda.load_kernels('dequantize', device=1))\n"
    )
    result = run_with_driver(code, tmp_path)
    assert result.returncode == 0, result.stderr
    count, same = last_line(result.stdout).split()
    assert int(count) > 4 and same == "True"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "'sort'",
            "ValueError: operations: is 'sort', must be 'all', 'quantize', 'dequantize', 'gemm', "
            "'grouped_gemm' or 'moe'",
        ),
        ("device=-1", "ValueError: device: is -1, must be from 0 to 2147483647"),
        ("device='cuda'", "TypeError: device: is 'cuda', must be an integer"),
        ("", "FileNotFoundError: no GPU"),
        ("'moe'", "FileNotFoundError: no GPU"),
    ],
)
def test_what_is_not_loaded(arguments: str, message: str) -> None:
    result = run(
        f"import blockscale.cuda\nblockscale.cuda.load_kernels({arguments})",
        BLOCKSCALE_LIBCUDA="/none/libcuda.so.1",
    )
    assert last_line(result.stderr).startswith(message)
