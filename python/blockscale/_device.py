"""Arrays in the memory of a CUDA device: made by the caller's library, used on its stream."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable
from typing import Any

from . import _native


class Device:
    """A CUDA device as a library sees it: what `describe` gives in place of the library's name.
    Made by `device`, once for each."""

    library: str
    #: Whether the library's arrays must never change. What `__dlpack__` gives of one on a device
    #: does not tell.
    immutable = False

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self._text = f"cuda:{ordinal}"

    def __str__(self) -> str:
        return self._text

    def __reduce__(self) -> Any:
        return device, (self.library, self.ordinal)

    @functools.cached_property
    def _module(self) -> Any:
        return importlib.import_module(self.library)

    def current(self) -> contextlib.AbstractContextManager[Any]:
        """Makes it the library's current device, where the library's arrays ask for that."""
        return contextlib.nullcontext()

    def stream(self) -> int:
        """The CUstream that the library runs on now."""
        raise NotImplementedError

    def full(self, shape: tuple[int, ...], value: float, dtype: str = "float32") -> Any:
        """A new array there."""
        raise NotImplementedError

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        """A new array there, of arbitrary contents."""
        raise NotImplementedError

    def workspace(self, size: int) -> Any:
        """`size` bytes there."""
        return self.empty((size,), "uint8")

    def typed(self, array: Any, _dtype: str) -> Any:
        """Bytes as another dtype of one byte or a packed one; as they are if it has none such."""
        return array

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        """`full`, of 0."""
        return self.full(shape, 0.0, dtype)

    def queue(self, operation: Callable[..., Any], *call: Any) -> None:
        """Queues an operation on the library's stream; its workspace is the library's, too, and
        back in its hands when this returns: what the library does next comes after the work."""
        with self.current():
            operation(*call, (self.ordinal, self.stream(), self.workspace))


class _Torch(Device):
    """torch's stream orders what its memory is used for, and the native module needs no scope."""

    library = "torch"

    @functools.cached_property
    def _device(self) -> Any:
        return self._module.device("cuda", self.ordinal)

    @functools.cached_property
    def _raw_stream(self) -> Callable[[int], int]:
        # torch.cuda.current_stream makes an object: 20 times as slow.
        raw: Callable[[int], int] | None
        raw = getattr(self._module._C, "_cuda_getCurrentRawStream", None)
        return raw or (lambda ordinal: int(self._module.cuda.current_stream(ordinal).cuda_stream))

    def stream(self) -> int:
        return self._raw_stream(self.ordinal)

    def full(self, shape: tuple[int, ...], value: float, dtype: str = "float32") -> Any:
        module = self._module
        return module.full(shape, value, dtype=getattr(module, dtype), device=self._device)

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        module = self._module
        # Of sizes one by one: from a tuple it takes torch half as long again.
        return module.empty(*shape, dtype=getattr(module, dtype), device=self._device)

    def typed(self, array: Any, dtype: str) -> Any:
        return array.view(getattr(self._module, dtype)) if hasattr(self._module, dtype) else array

    def queue(self, operation: Callable[..., Any], *call: Any) -> None:
        ordinal = self.ordinal
        operation(*call, (ordinal, self._raw_stream(ordinal), self.workspace))


class _Cupy(Device):
    """cupy allocates, computes and tells its stream on the current device."""

    library = "cupy"

    def current(self) -> contextlib.AbstractContextManager[Any]:
        scope: contextlib.AbstractContextManager[Any] = self._module.cuda.Device(self.ordinal)
        return scope

    def stream(self) -> int:
        with self.current():
            return int(self._module.cuda.get_current_stream().ptr)

    def full(self, shape: tuple[int, ...], value: float, dtype: str = "float32") -> Any:
        with self.current():
            return self._module.full(shape, value, dtype)

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        with self.current():
            return self._module.empty(shape, dtype)


class _Jax(Device):
    """jax has no stream to tell, and cannot be told of one: work is queued on the legacy one, and a
    call waits for it, also where an error comes when some kernels are queued."""

    library = "jax"
    immutable = True

    @functools.cached_property
    def _module(self) -> Any:
        return importlib.import_module("jax.numpy")

    @functools.cached_property
    def _device(self) -> Any:
        devices = importlib.import_module("jax").devices("cuda")
        return next(d for d in devices if d.local_hardware_id == self.ordinal)

    def stream(self) -> int:
        return 1

    def full(self, shape: tuple[int, ...], value: float, dtype: str = "float32") -> Any:
        return self._module.full(shape, value, dtype, device=self._device).block_until_ready()

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        # Nobody else has seen it yet, so that the library may write it.
        return self._module.empty(shape, dtype, device=self._device).block_until_ready()

    def typed(self, array: Any, dtype: str) -> Any:
        # jax.numpy has an attribute for each dtype that it takes.
        return array.view(dtype) if hasattr(self._module, dtype) else array

    def queue(self, operation: Callable[..., Any], *call: Any) -> None:
        workspaces: list[Any] = []  # keeps them until the kernels are done with them

        def workspace(size: int) -> Any:
            workspaces.append(self.workspace(size))
            return workspaces[-1]

        try:
            operation(*call, (self.ordinal, self.stream(), workspace))
        finally:
            _native.cuda_synchronize(self.ordinal, self.stream())


_LIBRARIES: dict[str, type[Device]] = {kind.library: kind for kind in (_Torch, _Cupy, _Jax)}
#: Libraries whose current stream is known.
LIBRARIES = tuple(_LIBRARIES)


@functools.cache
def device(library: str, ordinal: int) -> Device:
    """The Device of one of LIBRARIES."""
    return _LIBRARIES[library](ordinal)


#: Where an array is: the name of a library for CPU memory, or a Device.
Place = str | Device


#: What the native module is told of where work is done, but on a device.
ON_CPU = ()


def run(place: Place, operation: Callable[..., Any], *call: Any) -> None:
    """An operation of the native module where its arrays lie."""
    if isinstance(place, Device):
        place.queue(operation, *call)
    else:
        operation(*call, ON_CPU)


def current(place: Place) -> contextlib.AbstractContextManager[Any]:
    """Device.current, where there is a device."""
    return place.current() if isinstance(place, Device) else contextlib.nullcontext()


def require_place(place: Place, wanted: Place, argument: str, first: str = "x") -> None:
    """Checks that an argument lies where the first one does.

    Raises:
        ValueError: it does not.
    """
    if place is wanted:
        return
    here, there = (str(p) if isinstance(p, Device) else "the CPU" for p in (place, wanted))
    if here != there:
        raise ValueError(f"{argument}: is on {here}, must be on {there} like {first}")


def require_writable(array: Any, place: Place, argument: str) -> None:
    """Checks that an array of the caller's may be written.

    Raises:
        ValueError: it may not.
    """
    on_device = isinstance(place, Device)
    if place.immutable if on_device else place == "jax":
        raise ValueError(f"{argument}: is an array of jax, which never change; must be writable")
    if not on_device and not array.flags.writeable:
        raise ValueError(f"{argument}: is read-only, must be writable")
