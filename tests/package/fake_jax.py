"""A jax of fake_cupy's arrays. Importing it makes it `jax`, and them arrays of jax."""

from __future__ import annotations

import sys
import types
from typing import Any

from fake_cupy import Array

Array.__module__ = "jaxlib"
Array.block_until_ready = lambda self: self  # type: ignore[attr-defined]
_device = types.SimpleNamespace(local_hardware_id=0)


def _empty(shape: tuple[int, ...], dtype: Any, device: Any) -> Array:
    assert device is _device
    return Array(shape, dtype)


def _full(shape: tuple[int, ...], value: float, dtype: Any, device: Any) -> Array:
    array = _empty(shape, dtype, device)
    array.assigned.append(value)
    return array


jax, numpy = types.ModuleType("jax"), types.ModuleType("jax.numpy")
jax.devices = lambda _: [_device]  # type: ignore[attr-defined]
jax.numpy, numpy.empty, numpy.full = numpy, _empty, _full  # type: ignore[attr-defined]
sys.modules["jax"], sys.modules["jax.numpy"] = jax, numpy
