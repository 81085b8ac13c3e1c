"""What users see of the package's types and errors: Python's words, never the binding's."""

from __future__ import annotations

import enum
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blockscale
import numpy as np
import pytest
from blockscale import _native
from safetensors.numpy import save_file

ENUMS = [e for e in vars(_native).values() if isinstance(e, type) and issubclass(e, enum.Enum)]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("errors") / "model"
    folder.mkdir()
    tensors = {"a.q_proj.weight": normal(32, 64), "a.q_proj.bias": normal(32), "ids": np.arange(3)}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return folder


def test_every_type_has_a_repr(model: Path, tmp_path: Path) -> None:
    (model / "model.gguf").write_bytes(b"12345")
    out = tmp_path / "out"
    report = blockscale.convert(model, out, "nvfp4")
    (model / "model.gguf").unlink()
    compared = blockscale.compare(model, out)
    checkpoint = blockscale.Checkpoint(out)
    weight = next(t for t in compared.tensors if t.converted)
    for value, text in (
        (report, "ConvertReport(1 of 3 tensors converted, plain -> compressed-tensors, 8344 -> "),
        (report.tensors[1], "ConvertedTensor('a.q_proj.weight', f32 -> nvfp4, 8192 -> 1156 bytes)"),
        (report.tensors[0], "ConvertedTensor('a.q_proj.bias', kept: "),
        (report.not_copied[0], "NotCopied('model.gguf', 5 bytes: "),
        (compared, f"CompareReport(1 of 3 tensors converted, SQNR {compared.total.sqnr_db:.2f} dB"),
        (weight, "TensorComparison('a.q_proj.weight', f32 -> nvfp4, SQNR "),
        (compared.tensors[0], "TensorComparison('a.q_proj.bias', f32 -> f32, equal)"),
        (checkpoint, f"Checkpoint({str(out)!r}, compressed_tensors, 3 tensors, 1 quantized)"),
        (checkpoint.info("a.q_proj.weight"), "TensorInfo('a.q_proj.weight', nvfp4, [32, 64], 1156"),
        (checkpoint.info("ids"), "TensorInfo('ids', I64, [3], 24 bytes)"),
        (checkpoint["a.q_proj.weight"], "ScaledTensor(nvfp4, shape=(32, 64), layout=row_major)"),
        (blockscale.Swiglu(), "Swiglu("),
        (blockscale.RmsNorm(normal(32)), "RmsNorm("),
        (blockscale.Modulate(normal(32), normal(32)), "Modulate("),
        (blockscale.Calibrator(), "Calibrator("),
        (blockscale.Recipe.nvfp4, "Recipe.nvfp4"),
    ):
        assert repr(value).startswith(text), repr(value)
    types = [t for t in map(vars(blockscale).get, blockscale.__all__) if inspect.isclass(t)]
    assert all(t.__repr__ is not object.__repr__ for t in types), types


@pytest.mark.parametrize("kind", ENUMS, ids=lambda kind: kind.__name__)
def test_every_member_is_documented(kind: type[enum.Enum]) -> None:
    docs = [member.__doc__ for member in kind]
    assert all(docs) and len(set(docs)) == len(docs), docs
    assert all(doc != kind.__doc__ for doc in docs)


def test_members_docs_say_what_the_tables_say() -> None:
    assert blockscale.Format.e2m1.__doc__ == (
        "4 bits (2 of exponent, 1 of mantissa), largest value 6"
    )
    assert blockscale.Recipe.nvfp4.__doc__ == (
        "e2m1 elements, a ue4m3 scale for 1 x 16, and one f32 for all"
    )
    assert "a f32 scale for 128 x 128" in (blockscale.Recipe.fp8_128x128.__doc__ or "")


class OnlyDlpack:
    """An array that does not say where it is."""

    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("must not be asked")


class NoDevice(OnlyDlpack):
    def __dlpack_device__(self) -> Any:
        return None


class BadDlpack:
    """An array whose export is no capsule."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **_: Any) -> Any:
        return 3


ODD: list[Any] = [
    *(None, object(), 3, -1, 2**70, 1.5, float("nan"), 10**400, 1j, True, int, print),
    *("", "x", "\0", "\udc80", b"x", "re:(", "*" * 300, "a" * 5000, Path("/no/such")),
    *([], [1], ["\udc80"], [None], [("a",)], [""], (), (1, 2), set(), memoryview(b"abc")),
    *({}, {"a": 1}, {1: "nvfp4"}, {"*": "int4"}, {"\udc80": "nvfp4"}),
    *(np.float32(3), np.zeros(3), np.zeros((2, 2), complex), np.zeros((2, 2), object)),
    *(np.zeros((2, 0), np.float32), np.zeros((2, 2, 2, 2), np.float32), np.zeros((2, 32), ">f4")),
    *(np.zeros((2, 32), "f4,f4"), OnlyDlpack(), NoDevice(), BadDlpack()),
    *(blockscale.Recipe.bf16, blockscale.ScaleLayout.mn_major, blockscale.RmsNorm(normal(5))),
    blockscale.quantize(normal(4, 32), "mxfp4"),
]

INTERNAL = re.compile(
    r"incompatible function arg|bad_cast|std::|filesystem error|nanobind|nb_|_native|"
    r"The following argument types|basic_string|has no len|object is not"
)


def calls(model: Path, out: Path) -> list[tuple[Callable[..., Any], dict[str, Any]]]:
    """Every public function and constructor with arguments that it takes."""
    x, t = normal(4, 128), blockscale.quantize(normal(4, 128), "mxfp4")
    fp8 = blockscale.quantize(normal(4, 128), "fp8_1x128")
    experts, offsets = blockscale.quantize(normal(2, 128, 128), "fp8_1x128"), np.int32([0, 1, 3])
    checkpoint, calibrator = blockscale.Checkpoint(model), blockscale.Calibrator()
    calibrator.observe("a", x)

    def save(**options: Any) -> None:
        calibrator.save(out.parent / "c.safetensors", **options)

    nvfp4 = blockscale.quantize(x, "nvfp4")
    return [
        (
            blockscale.quantize,
            {"x": x, "recipe": "nvfp4", "layout": None, "scale_mode": None, "tensor_scale": None}
            | {"sense": None, "scales": None, "amax_floor": 0.0, "transform": "identity"}
            | {"scale_choice": "amax", "channel_weights": None, "channel_means": None}
            | {"out": None, "threads": 0},
        ),
        (
            blockscale.quantize_rows_and_columns,
            {"x": x, "recipe": "fp8_1x128", "layout": "row_major", "amax_floor": 0.0}
            | {"transform": "identity", "out": None, "threads": 0},
        ),
        (blockscale.dequantize, {"x": t, "out_dtype": "float32", "out": None, "threads": 0}),
        (
            blockscale.gemm,
            {"a": x, "b": t, "alpha": 1.0, "beta": 0.0, "c": None, "bias": None, "out": None}
            | {"out_dtype": None, "batch_invariant": False, "threads": 0},
        ),
        (blockscale.gemm_quantize, {"a": fp8, "b": fp8, "recipe": "fp8_1x128"}),
        (
            blockscale.grouped_gemm_quantize,
            {"a": fp8, "b": experts, "offsets": offsets, "recipe": "fp8_1x128"}
            | {"alpha": 1.0, "bias": None, "index": None, "lengths": None, "out": None},
        ),
        (blockscale.describe, {"shape": (2, 64), "recipe": "mxfp4", "dtype": "bf16"}),
        (blockscale.describe_gemm, {"m": 1, "n": 2, "k": 128, "a": "fp8_1x128", "batch": 1}),
        (
            blockscale.ScaledTensor,
            {"values": nvfp4.values, "scales": nvfp4.scales, "recipe": "nvfp4"}
            | {"layout": "row_major", "tensor_scale": None, "sense": "divisor"},
        ),
        (t.relayout, {"layout": "mn_major"}),
        (t.__getitem__, {"key": slice(1)}),
        (blockscale.Checkpoint, {"path": model}),
        (checkpoint.problem, {"name": "ids"}),
        (checkpoint.info, {"name": "ids"}),
        (checkpoint.__getitem__, {"name": "ids"}),
        (blockscale.inspect, {"path": model}),
        (blockscale.compare, {"a": model, "b": model, "tensors": (), "threads": 0}),
        (
            blockscale.convert,
            {"source": model, "destination": out, "recipe": "nvfp4", "dialect": None}
            | {"include": (), "exclude": (), "map": (), "experts_layout": None}
            | {"activation_scales": None, "scales": "amax", "calibration": None, "scale_mode": None}
            | {"amax_floor": 0.0, "shard_bytes": 10**9, "memory_bytes": 10**9, "threads": 0}
            | {"progress": None, "dry_run": True, "unused_inputs": "drop"},
        ),
        (blockscale.Calibrator, {"model": None, "prefix": "", "resume": None}),
        (
            blockscale.Calibrator().run,
            {"model": callable, "loader": [1], "batches": 1, "progress": False},
        ),
        (calibrator.percentile, {"name": "a", "percent": 99}),
        (save, {"percents": (99,), "percentile": None, "unused": "omit"}),
        (blockscale.Calibrator().observe, {"name": "a", "x": x}),
        (blockscale.Calibrator().wrap, {"name": "a", "layer": print}),
        (blockscale.Swiglu, {"order": "gate_first", "group": None}),
        (blockscale.Modulate, {"scale": normal(32), "shift": normal(32)}),
        (blockscale.RmsNorm, {"weight": normal(32), "epsilon": 1e-6}),
    ]


def test_no_internal_exception_reaches_a_user(model: Path, tmp_path: Path) -> None:
    """Every argument of every call, one at a time, replaced by what nobody expects."""

    def call(function: Callable[..., Any], arguments: dict[str, Any]) -> None:
        if "key" in arguments:  # positional only
            function(arguments["key"])
        else:
            function(**arguments)

    tried = 0
    for function, arguments in calls(model, tmp_path / "out"):
        call(function, arguments)
        for name in arguments:
            for odd in ODD:
                try:
                    call(function, arguments | {name: odd})
                except (TypeError, ValueError, OSError, LookupError) as error:
                    told = f"{function.__qualname__}({name}={odd!r}): {error!r}"
                    assert not INTERNAL.search(str(error)), told
                tried += 1
    assert tried > 4000


def test_files_that_lead_nowhere(model: Path, tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    long = tmp_path / ("n" * 300)
    for bad in (loop, loop / "model", long, long / "model"):
        for call in (
            lambda path: blockscale.Checkpoint(path),
            lambda path: blockscale.compare(model, path),
            lambda path: blockscale.convert(path, tmp_path / "out", "nvfp4"),
            lambda path: blockscale.convert(model, path, "nvfp4"),
            lambda path: blockscale.convert(model, tmp_path / "out", "nvfp4", map=path),
        ):
            with pytest.raises((OSError, ValueError)) as caught:
                call(bad)
            assert not INTERNAL.search(str(caught.value)), caught.value
            assert not (tmp_path / "out").exists()


def test_an_object_with_only_dlpack_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="x: is a OnlyDlpack with __dlpack__ but no __dlpack_dev"):
        blockscale.quantize(OnlyDlpack(), "mxfp4")
    with pytest.raises(TypeError, match="x: its __dlpack_device__ does not give a device"):
        blockscale.quantize(NoDevice(), "mxfp4")


JAX_ON_A_CPU = """
import types, numpy as np, blockscale

class Array:
    '''A jax array in CPU memory, whose memory any exporter would let be written.'''
    def __init__(self, array): self.array = array
    def __dlpack_device__(self): return (1, 0)
    def __dlpack__(self, **_): return self.array.__dlpack__()
    dtype = property(lambda self: self.array.dtype)
Array.__module__ = 'jaxlib._jax'

t = blockscale.quantize(np.ones((2, 32), np.float32), 'mxfp4')
out = Array(np.zeros((2, 32), np.float32))
scaled = blockscale.ScaledTensor(Array(np.zeros((2, 16), np.uint8)),
                                 Array(np.zeros((2, 1), np.uint8)), 'mxfp4')
"""


@pytest.mark.parametrize(
    "call",
    [
        "blockscale.dequantize(t, out=out)",
        "blockscale.gemm(np.ones((2, 32), np.float32), t, out=Array(np.zeros((2, 2), np.float32)))",
        "blockscale.quantize(np.ones((2, 32), np.float32), 'mxfp4', out=scaled)",
    ],
)
def test_jax_arrays_in_cpu_memory_are_never_written(call: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", JAX_ON_A_CPU + call],
        capture_output=True,
        text=True,
        env=os.environ,
        check=False,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert re.match(
        r"ValueError: out(\.values)?: is an array of jax, which never change; must be writable",
        last,
    ), last
