"""Arrays of other libraries, in and out.

Inside the package every array in CPU memory is a numpy array whose bytes the native module can
read: bf16 as uint16, 8-bit and packed formats as uint8. `describe` brings a caller's array into
that form without copying; `to_library` gives a result back as an array of the caller's library.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from ._native import Format

_CPU_DEVICES = (1, 3)  # DLPack's kDLCPU and kDLCUDAHost
_DEVICE_NAMES = {2: "cuda", 10: "rocm", 13: "cuda managed memory", 8: "metal", 14: "oneapi"}

_PLAIN_FORMATS = {"float32": Format.f32, "float16": Format.f16, "bfloat16": Format.bf16}
_STORAGE = {Format.f32: np.float32, Format.f16: np.float16, Format.bf16: np.uint16}
_ML_DTYPES = {
    Format.bf16: "bfloat16",
    Format.e4m3: "float8_e4m3fn",
    Format.e5m2: "float8_e5m2",
    Format.ue4m3: "float8_e4m3fn",
    Format.ue8m0: "float8_e8m0fnu",
}
_TORCH_DTYPES = _ML_DTYPES | {Format.e2m1: "float4_e2m1fn_x2"}


class Described(NamedTuple):
    """A caller's array: its bytes as numpy, the name of its dtype, and where it came from."""

    array: np.ndarray
    dtype: str
    library: str


def library_of(x: Any) -> str:
    """Name of the module that an array's type comes from: "numpy", "torch", "jaxlib", ..."""
    name = type(x).__module__.partition(".")[0]
    return "jax" if name == "jaxlib" else name


def _require_cpu(x: Any, argument: str) -> None:
    device, index = x.__dlpack_device__()
    if int(device) not in _CPU_DEVICES:
        name = f"{_DEVICE_NAMES.get(int(device), f'device type {int(device)}')}:{index}"
        raise ValueError(
            f"{argument}: is on {name}, and this build computes on the CPU; move it there first"
        )


def _bytes_of_torch(x: Any, argument: str) -> np.ndarray:
    """A torch tensor's memory: DLPack cannot carry its newest dtypes, its integer views can."""
    torch = sys.modules["torch"]
    _require_cpu(x, argument)
    if x.layout != torch.strided:
        raise TypeError(f"{argument}: is a {x.layout} tensor, must be strided")
    x = x.detach()
    if x.is_conj() or x.is_neg():
        raise TypeError(f"{argument}: is a lazy view; call .resolve_conj().resolve_neg() first")
    if x.dtype not in (torch.float32, torch.float16):
        x = x.view({1: torch.uint8, 2: torch.uint16}.get(x.element_size(), x.dtype))
    return x.numpy()


def describe(x: Any, argument: str) -> Described:
    """The memory of any array: numpy (ml_dtypes included), torch, DLPack or the buffer protocol.

    Raises:
        TypeError: `x` is no array.
        ValueError: `x` is on a device that this build does not compute on.
    """
    library = library_of(x)
    if library == "torch" and hasattr(x, "__dlpack_device__"):
        dtype = str(x.dtype).removeprefix("torch.")
        return Described(_bytes_of_torch(x, argument), dtype, library)
    if isinstance(x, (np.ndarray, np.generic)):
        x, library = np.asarray(x), "numpy"
    elif hasattr(x, "__dlpack__"):
        _require_cpu(x, argument)
        dtype = str(x.dtype).rpartition(".")[2]
        try:
            return Described(np.from_dlpack(x), dtype, library)
        except (BufferError, RuntimeError, TypeError):
            x = np.asarray(x)
    else:
        try:
            x, library = np.asarray(memoryview(x)), "numpy"
        except TypeError:
            raise TypeError(
                f"{argument}: is a {type(x).__name__}, must be an array "
                "(numpy, torch, DLPack or the buffer protocol)"
            ) from None
    dtype = x.dtype.name
    if x.dtype.kind == "V" or x.dtype.type.__module__.startswith("ml_dtypes"):
        x = x.view({1: np.uint8, 2: np.uint16}[x.dtype.itemsize])
    return Described(x, dtype, library)


def plain(x: Any, argument: str) -> tuple[np.ndarray, Format, str]:
    """`describe` for f32, f16 and bf16: (array, format, library).

    Raises:
        TypeError: any other dtype.
    """
    array, dtype, library = describe(x, argument)
    if dtype not in _PLAIN_FORMATS:
        raise TypeError(
            f"{argument}: has dtype {dtype}, must be one of {', '.join(_PLAIN_FORMATS)}"
        )
    return array, _PLAIN_FORMATS[dtype], library


def format_of(dtype: Any, argument: str) -> Format:
    """f32, f16 or bf16 from a dtype of numpy, ml_dtypes or torch, or from its name.

    Raises:
        TypeError: any other dtype.
    """
    if isinstance(dtype, Format) and dtype in _STORAGE:
        return dtype
    name = str(getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype)
    name = name.removeprefix("torch.")
    short = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "half": "float16"}
    name = short.get(name, name)
    if name not in _PLAIN_FORMATS:
        raise TypeError(f"{argument}: is {name}, must be one of {', '.join(_PLAIN_FORMATS)}")
    return _PLAIN_FORMATS[name]


def empty(shape: tuple[int, ...], fmt: Format) -> np.ndarray:
    """Memory for a plain result, in the form that the native module writes."""
    return np.empty(shape, _STORAGE[fmt])


def _ml_dtypes() -> ModuleType | None:
    try:
        return importlib.import_module("ml_dtypes")
    except ImportError:
        return None


def to_library(array: np.ndarray, fmt: Format, library: str) -> Any:
    """`array` as one of `library`, typed as `fmt` where that library has the type; never copied.

    Raises:
        TypeError: a bf16 result for numpy without ml_dtypes.
    """
    if library == "torch":
        torch = importlib.import_module("torch")
        tensor = torch.from_numpy(array) if array.flags.writeable else torch.asarray(array)
        name = _TORCH_DTYPES.get(fmt)
        return tensor.view(getattr(torch, name)) if name and hasattr(torch, name) else tensor
    typed = array
    if fmt in _ML_DTYPES:
        ml_dtypes = _ml_dtypes()
        if ml_dtypes is not None:
            typed = array.view(getattr(ml_dtypes, _ML_DTYPES[fmt]))
        elif fmt == Format.bf16:
            raise TypeError("bf16 arrays of numpy need ml_dtypes: pip install ml_dtypes")
    if library in ("numpy", "builtins", "array"):
        return typed
    module = importlib.import_module("jax.dlpack" if library == "jax" else library)
    return module.from_dlpack(typed if typed.dtype.kind == "f" else array)
