"""Arrays in the memory of a CUDA device: made by the caller's library, used on its stream."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from . import _native

#: Libraries whose current stream is known.
LIBRARIES = ("torch", "cupy", "jax")


class Device(NamedTuple):
    """A CUDA device as a library sees it: what `describe` gives in place of the library's name."""

    library: str
    ordinal: int

    def __str__(self) -> str:
        return f"cuda:{self.ordinal}"

    @property
    def immutable(self) -> bool:
        """Whether the library's arrays must never change. What `__dlpack__` gives of one on a
        device does not tell."""
        return self.library == "jax"

    def _module(self) -> Any:
        return importlib.import_module("jax.numpy" if self.library == "jax" else self.library)

    def current(self) -> contextlib.AbstractContextManager[Any]:
        """Makes it the library's current device: torch exports tensors of no other one, and cupy
        allocates and computes there. jax has none."""
        scope: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if self.library == "torch":
            scope = self._module().cuda.device(self.ordinal)
        elif self.library == "cupy":
            scope = self._module().cuda.Device(self.ordinal)
        return scope

    def stream(self) -> int:
        """The CUstream that the library runs on now. jax has none to tell: the legacy stream."""
        if self.library == "torch":
            return int(self._module().cuda.current_stream(self.ordinal).cuda_stream)
        if self.library == "cupy":
            with self.current():
                return int(self._module().cuda.get_current_stream().ptr)
        return 1

    def full(self, shape: tuple[int, ...], value: float, dtype: str = "float32") -> Any:
        """A new array there."""
        module = self._module()
        if self.library == "torch":
            return module.full(shape, value, dtype=getattr(module, dtype), device=str(self))
        if self.library == "cupy":
            with self.current():
                return module.full(shape, value, dtype)
        return module.full(shape, value, dtype, device=self._jax_device()).block_until_ready()

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        """A new array there, of arbitrary contents. In jax nobody else has seen it yet, so that the
        library may write it."""
        module = self._module()
        if self.library == "torch":
            return module.empty(shape, dtype=getattr(module, dtype), device=str(self))
        if self.library == "cupy":
            with self.current():
                return module.empty(shape, dtype)
        return module.empty(shape, dtype, device=self._jax_device()).block_until_ready()

    def workspace(self, size: int) -> Any:
        """`size` bytes there; None where no byte is needed."""
        return self.empty((size,), "uint8") if size > 0 else None

    def typed(self, array: Any, dtype: str) -> Any:
        """Bytes as another dtype of one byte or a packed one; as they are if it has none such."""
        if self.library == "torch":
            module = self._module()
            return array.view(getattr(module, dtype)) if hasattr(module, dtype) else array
        if self.library == "jax":  # jax.numpy has an attribute for each dtype that it takes
            return array.view(dtype) if hasattr(self._module(), dtype) else array
        return array

    @contextlib.contextmanager
    def queued(self) -> Iterator[int]:
        """The stream for the work of the body, whose device is current; at its end, also by an
        error, which may come when some kernels are queued, the library may use what they do."""
        with self.current():
            stream = self.stream()
            try:
                yield stream
            finally:
                self.finish(stream)

    def finish(self, stream: int) -> None:
        """Lets the library use what was done on `stream`. torch and cupy run on that themselves;
        jax cannot be told of a stream, so the call waits."""
        if self.library == "jax":
            _native.cuda_synchronize(self.ordinal, stream)

    def _jax_device(self) -> Any:
        devices = importlib.import_module("jax").devices("cuda")
        return next(d for d in devices if d.local_hardware_id == self.ordinal)


#: Where an array is: the name of a library for CPU memory, or a Device.
Place = str | Device


def current(place: Place) -> contextlib.AbstractContextManager[Any]:
    """Device.current, where there is a device."""
    return place.current() if isinstance(place, Device) else contextlib.nullcontext()


def require_place(place: Place, wanted: Place, argument: str, first: str = "x") -> None:
    """Checks that an argument lies where the first one does.

    Raises:
        ValueError: it does not.
    """
    here, there = (str(p) if isinstance(p, Device) else "the CPU" for p in (place, wanted))
    if here != there:
        raise ValueError(f"{argument}: is on {here}, must be on {there} like {first}")


def require_writable(array: Any, place: Place, argument: str) -> None:
    """Checks that an array of the caller's may be written.

    Raises:
        ValueError: it may not.
    """
    immutable = place.immutable if isinstance(place, Device) else not array.flags.writeable
    if immutable:
        raise ValueError(f"{argument}: is read-only, must be writable")
