"""Arrays of other libraries, in and out.

Inside the package every array in CPU memory is a numpy array whose bytes the native module can
read: bf16 as uint16, 8-bit and packed formats as uint8. One on a CUDA device stays what it is.
`describe` brings a caller's array into that form without copying; `to_library` gives a result back
as an array of the caller's library.
"""

from __future__ import annotations

import functools
import importlib
import operator
import sys
from typing import Any, TypeAlias

import numpy as np

from . import _native
from ._device import LIBRARIES, Device, Place, require_place
from ._device import device as device_of
from ._native import Format

_CPU_DEVICES = (1, 3)  # DLPack's kDLCPU and kDLCUDAHost
_CUDA_DEVICE = 2
_DEVICE_NAMES = {2: "cuda", 10: "rocm", 13: "cuda managed memory", 8: "metal", 14: "oneapi"}

_PLAIN_FORMATS = {"float32": Format.f32, "float16": Format.f16, "bfloat16": Format.bf16}
_PLAIN_NAMES = {fmt: name for name, fmt in _PLAIN_FORMATS.items()}
_SHORT_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "half": "float16"}
_STORAGE = {Format.f32: np.float32, Format.f16: np.float16, Format.bf16: np.uint16}
# Names of ml_dtypes' and torch's types. Only torch has one for packed FP4, none for packed FP6.
_TYPED = {
    Format.bf16: "bfloat16",
    Format.e4m3: "float8_e4m3fn",
    Format.e5m2: "float8_e5m2",
    Format.ue4m3: "float8_e4m3fn",
    Format.ue8m0: "float8_e8m0fnu",
}
_PACKED_FP4 = "float4_e2m1fn_x2"


#: A caller's array: its memory (numpy's, or on a device the library's own), the name of its dtype,
#: and where it came from.
Described: TypeAlias = tuple[Any, str, Place]


def describe(x: Any, argument: str) -> Described:
    """The memory of any array: numpy (ml_dtypes included), torch, DLPack or the buffer protocol.

    Raises:
        TypeError: `x` is no array, or one whose memory is not plain (sparse, lazy).
        ValueError: it is on another device than the CPU and CUDA's, requires grad, was released, or
            its strides are no whole elements.
    """
    known: Described | None = _native.describe_torch(x, device_of)
    if known is not None:
        return known
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _of_torch(torch, x, argument)
    if isinstance(x, (np.ndarray, np.generic)):
        return _of_numpy(np.asarray(x), argument)
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        return _of_dlpack(x, argument)
    try:
        return _of_numpy(np.asarray(memoryview(x)), argument)
    except TypeError:
        half = hasattr(x, "__dlpack__")
        raise TypeError(
            f"{argument}: is a {type(x).__name__}"
            + (
                " with __dlpack__ but no __dlpack_device__, which says where its memory is"
                if half
                else ", must be an array (numpy, torch, DLPack or the buffer protocol)"
            )
        ) from None
    except ValueError as error:  # a memoryview that was released
        raise ValueError(f"{argument}: {error}") from None


def _of_numpy(x: np.ndarray, argument: str) -> Described:
    name, storage = _numpy_storage(x.dtype)
    if storage is not None:
        x = x.view(storage)
    itemsize = x.dtype.itemsize
    if itemsize > 1 and any(stride % itemsize for stride in x.strides):
        raise ValueError(
            f"{argument}: strides are {x.strides} bytes, must be multiples of the element's "
            f"{itemsize}; copy it first"
        )
    return x, name, "numpy"


@functools.cache
def _numpy_storage(dtype: np.dtype) -> tuple[str, type | None]:
    """Name of a dtype, and the type that its bytes are viewed as if DLPack does not know it."""
    if not dtype.isnative:
        return dtype.str, None
    if dtype.type.__module__.partition(".")[0] == "ml_dtypes":
        return dtype.name, {1: np.uint8, 2: np.uint16}[dtype.itemsize]
    return dtype.name, None


def _of_torch(torch: Any, x: Any, argument: str) -> Described:
    """A torch tensor's memory: numpy does not know its newest dtypes, its integer views it does."""
    on_device = x.is_cuda
    if not on_device and x.device.type != "cpu":
        raise ValueError(_refuse_device(argument, str(x.device)))
    if x.layout is not torch.strided:
        raise TypeError(f"{argument}: is a {x.layout} tensor, must be strided")
    if x.requires_grad:
        if torch.is_grad_enabled():
            raise ValueError(
                f"{argument}: requires grad, and no gradient flows through blockscale; "
                "pass .detach(), or call under torch.no_grad()"
            )
        x = x.detach()
    if x.is_neg():  # conjugates are complex, and refused as such
        raise TypeError(f"{argument}: is a lazy view; call .resolve_neg() first")
    dtype = _torch_name(x.dtype)
    if on_device:
        return x, dtype, device_of("torch", x.get_device())
    if x.dtype not in (torch.float32, torch.float16):
        x = x.view({1: torch.uint8, 2: torch.uint16}.get(x.element_size(), x.dtype))
    return x.numpy(), dtype, "torch"


@functools.cache
def _torch_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _of_dlpack(x: Any, argument: str) -> Described:
    device, index = _dlpack_device(x, argument)
    library = type(x).__module__.partition(".")[0]
    library = "jax" if library == "jaxlib" else library
    if device == _CUDA_DEVICE and library in LIBRARIES:
        return x, str(getattr(x.dtype, "name", x.dtype)), device_of(library, index)
    if device not in _CPU_DEVICES:
        name = _DEVICE_NAMES.get(device, f"device type {device}")
        raise ValueError(_refuse_device(argument, f"{name}:{index}"))
    array, dtype = _native.import_dlpack(argument, x)
    return array, dtype, library


def _refuse_device(argument: str, device: str) -> str:
    return (
        f"{argument}: is on {device}; arrays in CPU memory are taken, and on CUDA devices those of "
        f"{', '.join(LIBRARIES)}"
    )


def _dlpack_device(x: Any, argument: str) -> tuple[int, int]:
    """DLPack's type of device, and which one."""
    try:
        kind, index = x.__dlpack_device__()
        return int(kind), int(index)
    except (TypeError, ValueError):
        raise TypeError(f"{argument}: its __dlpack_device__ does not give a device") from None


def is_on_device(x: Any, argument: str) -> bool:
    """Whether `x` is an array in the memory of a CUDA device."""
    return hasattr(x, "__dlpack_device__") and _dlpack_device(x, argument)[0] == _CUDA_DEVICE


def number(value: Any, argument: str) -> float:
    """A float, or anything that Python can make one of.

    Raises:
        TypeError: it cannot.
        ValueError: an integer beyond floats.
    """
    if type(value) is float:
        return value
    try:
        return float(value if hasattr(value, "__float__") else operator.index(value))
    except OverflowError:
        raise ValueError(f"{argument}: is too large a number") from None
    except (TypeError, ValueError, RuntimeError):
        shape = getattr(value, "shape", None)
        what = repr(value) if shape is None else f"an array of shape {tuple(shape)}"
        raise TypeError(f"{argument}: is {what}, must be a number") from None


def count(value: Any, argument: str, limit: int = 2**31) -> int:
    """An integer from 0 on, less than `limit`.

    Raises:
        TypeError: no integer.
        ValueError: out of range.
    """
    if value == 0 and type(value) is int:
        return 0
    try:
        result = operator.index(value)
    except TypeError:
        raise TypeError(f"{argument}: is {value!r}, must be an integer") from None
    if not 0 <= result < limit:
        raise ValueError(f"{argument}: is {result}, must be from 0 to {limit - 1}")
    return result


def plain(x: Any, argument: str) -> tuple[Any, Format, Place]:
    """`describe` for f32, f16 and bf16: (array, format, place).

    Raises:
        TypeError: any other dtype.
    """
    array, dtype, place = describe(x, argument)
    fmt = _PLAIN_FORMATS.get(dtype)
    if fmt is None:
        raise TypeError(
            f"{argument}: has dtype {dtype}, must be one of {', '.join(_PLAIN_FORMATS)}"
        )
    return array, fmt, place


def packed(x: Any, argument: str, fmt: Format) -> Described:
    """`describe` for values or scales of an 8-bit or packed format: uint8, int8 or its own dtype.

    Raises:
        TypeError: any other dtype.
    """
    array, dtype, place = describe(x, argument)
    own = _PACKED_FP4 if fmt == Format.e2m1 else _TYPED.get(fmt)
    if dtype not in ("uint8", "int8", own):
        raise TypeError(
            f"{argument}: has dtype {dtype}, must be uint8{f' or {own}' if own else ''}"
        )
    return array if isinstance(place, Device) else array.view(np.uint8), dtype, place


def format_of(dtype: Any, argument: str) -> Format:
    """f32, f16 or bf16 from a dtype of numpy, ml_dtypes or torch, or from its name.

    Raises:
        TypeError: any other dtype.
    """
    if isinstance(dtype, Format) and dtype in _STORAGE:
        return dtype
    name = str(getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype)
    name = name.removeprefix("torch.")
    fmt = _PLAIN_FORMATS.get(_SHORT_NAMES.get(name, name))
    if fmt is None:
        raise TypeError(f"{argument}: is {name}, must be one of {', '.join(_PLAIN_FORMATS)}")
    return fmt


def empty(shape: tuple[int, ...], fmt: Format, place: Place) -> Any:
    """Memory for a plain result, in the form that the native module writes."""
    if isinstance(place, Device):
        return place.empty(shape, _PLAIN_NAMES[fmt])
    return np.empty(shape, _STORAGE[fmt])


def zeros(shape: tuple[int, ...], fmt: Format, place: Place) -> Any:
    """`empty`, of zeros."""
    if isinstance(place, Device):
        return place.zeros(shape, _PLAIN_NAMES[fmt])
    return np.zeros(shape, _STORAGE[fmt])


def new_numbers(shape: tuple[int, ...], dtype: str, place: Place) -> Any:
    """`empty`, of "int32" or "float32"."""
    return place.empty(shape, dtype) if isinstance(place, Device) else np.empty(shape, dtype)


def numbers(x: Any, argument: str, dtype: str, place: Place, first: str = "a") -> Any:
    """The memory of an array of `dtype`, which lies where `first` does.

    Raises:
        TypeError: any other dtype.
        ValueError: it lies elsewhere.
    """
    array, its_place = numbers_anywhere(x, argument, dtype)
    require_place(its_place, place, argument, first)
    return array


def numbers_anywhere(x: Any, argument: str, dtype: str) -> tuple[Any, Place]:
    """The memory of an array of `dtype`, and where it lies.

    Raises:
        TypeError: any other dtype.
    """
    array, its_dtype, its_place = describe(x, argument)
    if its_dtype != dtype:
        is_torch = (its_place.library if isinstance(its_place, Device) else its_place) == "torch"
        convert = f".to(torch.{dtype})" if is_torch else f'.astype("{dtype}")'
        raise TypeError(
            f"{argument}: has dtype {its_dtype}, must be {dtype}; convert it with {convert}"
        )
    return array, its_place


@functools.cache
def _ml_dtype(fmt: Format) -> Any:
    """ml_dtypes' type of a format; None where it has none or is not installed."""
    if fmt not in _TYPED:
        return None
    try:
        return getattr(importlib.import_module("ml_dtypes"), _TYPED[fmt])
    except ImportError:
        return None


def require_type(fmt: Format, place: Place, argument: str) -> None:
    """Checks, before any work, that a library has arrays of a plain format.

    Raises:
        TypeError: bf16 for numpy without ml_dtypes, or for cupy.
    """
    if fmt == Format.bf16 and isinstance(place, Device) and place.library == "cupy":
        raise TypeError(f"{argument}: cupy has no bf16")
    if fmt == Format.bf16 and place == "numpy" and _ml_dtype(fmt) is None:
        raise TypeError(f"{argument}: bf16 arrays of numpy need ml_dtypes: pip install ml_dtypes")


def type_name(fmt: Format) -> str | None:
    """What torch and ml_dtypes, where they have it, call the type of a format; None for plain bytes
    and for types of numpy."""
    return _PACKED_FP4 if fmt == Format.e2m1 else _TYPED.get(fmt)


def to_library(array: Any, fmt: Format | None, place: Place) -> Any:
    """`array` as one of its library, typed as `fmt` where that has the type (None: as it is); never
    copied (but by jax on a device, whose views are copies)."""
    name = None if fmt is None else type_name(fmt)
    if isinstance(place, Device):
        return array if fmt in _STORAGE or name is None else place.typed(array, name)
    if place == "numpy":
        typed = None if fmt is None else _ml_dtype(fmt)
        return array if typed is None else array.view(typed)
    if place == "torch":
        torch = importlib.import_module("torch")
        tensor = torch.from_numpy(array) if array.flags.writeable else torch.asarray(array)
        return tensor.view(getattr(torch, name)) if name and hasattr(torch, name) else tensor
    module = importlib.import_module("jax.dlpack" if place == "jax" else place)
    return module.from_dlpack(array if fmt is None else _native.export_dlpack(array, fmt))
