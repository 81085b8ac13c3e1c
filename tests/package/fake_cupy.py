"""A cupy whose memory is that of tests/fake_libcuda.cpp: addresses that nobody reads. It records
what it is asked for. Importing it makes it `cupy`."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

STREAM = 0x5000
asked: list[Any] = []  # of __dlpack__, the stream each time
_addresses = itertools.count(1 << 20, 1 << 24)
_kept: list[Any] = []


class _Tensor(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class Array:
    def __init__(self, shape: tuple[int, ...], dtype: Any, device: int = 0) -> None:
        self.shape, self.dtype, self.device = tuple(shape), np.dtype(dtype), device
        self.address = ((device + 1) << 32) + next(_addresses)
        self.assigned: list[Any] = []

    ndim = property(lambda self: len(self.shape))
    nbytes = property(lambda self: int(np.prod(self.shape)) * self.dtype.itemsize)

    def copy(self) -> Array:
        return Array(self.shape, self.dtype, self.device)

    def reshape(self, *_: int) -> Array:
        return Array((int(np.prod(self.shape)),), self.dtype, self.device)

    def __getitem__(self, key: None) -> Array:
        return Array((1, *self.shape), self.dtype, self.device)

    def __setitem__(self, _: Any, value: Any) -> None:
        self.assigned.append(value)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device

    def __dlpack__(self, *, stream: int | None = None) -> object:
        if type(self).__module__ == "cupy" and self.device != _current[-1]:  # as torch does
            raise BufferError(f"is on device {self.device}, current is {_current[-1]}")
        asked.append(stream)
        count = len(self.shape)
        sizes = (ctypes.c_int64 * count)(*self.shape)
        strides = (ctypes.c_int64 * count)(
            *(int(np.prod(self.shape[i + 1 :])) for i in range(count))
        )
        code = 2 if self.dtype.kind == "f" else 1
        tensor = _Tensor(self.address, 2, self.device, count, code, self.dtype.itemsize * 8, 1)
        tensor.shape, tensor.strides = sizes, strides
        _kept.append((tensor, sizes, strides))
        return _new_capsule(ctypes.addressof(tensor), b"dltensor", None)


Array.__module__ = "cupy"
_current = [0]


@contextlib.contextmanager
def _device(ordinal: int) -> Iterator[None]:
    _current.append(ordinal)
    try:
        yield
    finally:
        _current.pop()


def _empty(shape: tuple[int, ...], dtype: Any) -> Array:
    return Array(shape, dtype, _current[-1])


def _full(shape: tuple[int, ...], value: float, dtype: Any) -> Array:
    array = _empty(shape, dtype)
    array.assigned.append(value)
    return array


module = types.ModuleType("cupy")
module.empty, module.full = _empty, _full  # type: ignore[attr-defined]
module.cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
    Device=_device, get_current_stream=lambda: types.SimpleNamespace(ptr=STREAM + _current[-1])
)
sys.modules["cupy"] = module
