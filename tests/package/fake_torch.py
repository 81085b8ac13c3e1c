"""A torch, from before it had DLPack's table of C functions, of fake_cupy's arrays: it has what the
package asks of tensors on a device, and no `__dlpack__`. Importing it makes it `torch`."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
from fake_cupy import STREAM, Array

strided = object()
grad = types.SimpleNamespace(enabled=True)


class dtype:  # noqa: N801
    def __init__(self, name: str, storage: str) -> None:
        self.name, self.storage = name, storage

    def __str__(self) -> str:
        return f"torch.{self.name}"


_DTYPES = {name: dtype(name, name) for name in ("float32", "float16", "uint8")}
_DTYPES["bfloat16"] = dtype("bfloat16", "uint16")
_DTYPES["float8_e4m3fn"] = dtype("float8_e4m3fn", "uint8")


class _Memory(Array):
    """Of any device, whichever is current."""


class Tensor:
    is_cuda, requires_grad, layout = True, False, strided

    def __init__(self, shape: tuple[int, ...], kind: Any = "float32", device: int = 0) -> None:
        self.dtype = _DTYPES[kind] if isinstance(kind, str) else kind
        self.memory = _Memory(shape, np.dtype(self.dtype.storage), device)

    shape = property(lambda self: self.memory.shape)
    ndim = property(lambda self: self.memory.ndim)
    nbytes = property(lambda self: self.memory.nbytes)

    def get_device(self) -> int:
        return self.memory.device

    def element_size(self) -> int:
        return self.memory.dtype.itemsize

    def is_neg(self) -> bool:
        return False

    def detach(self) -> Tensor:
        return self

    def view(self, kind: dtype) -> Tensor:
        tensor = object.__new__(Tensor)
        tensor.dtype, tensor.memory = kind, self.memory
        return tensor

    def reshape(self, *_: int) -> Tensor:
        return Tensor((int(np.prod(self.shape)),), self.dtype, self.get_device())

    def __getitem__(self, _: None) -> Tensor:
        return Tensor((1, *self.shape), self.dtype, self.get_device())

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.get_device()


def _empty(*shape: int, dtype: dtype, device: int) -> Tensor:
    return Tensor(shape, dtype, device)


module = types.ModuleType("torch")
module.__dict__.update(
    _DTYPES,
    Tensor=Tensor,
    strided=strided,
    is_grad_enabled=lambda: grad.enabled,
    device=lambda _, ordinal: ordinal,
    empty=_empty,
    full=lambda shape, _, **options: _empty(*shape, **options),
    utils=types.SimpleNamespace(
        dlpack=types.SimpleNamespace(to_dlpack=lambda x: x.memory.__dlpack__())
    ),
    _C=types.SimpleNamespace(_cuda_getCurrentRawStream=lambda ordinal: STREAM + ordinal),
)
Tensor.__module__ = "torch"
sys.modules["torch"] = module
