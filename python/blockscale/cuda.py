"""What there is for CUDA devices alone. Operations take arrays on a device as they are."""

from __future__ import annotations

from . import _native
from ._arrays import count


def load_kernels(operations: str = "all", *, device: int = 0) -> int:
    """Loads every kernel that calls may launch on a device, with its code, which the driver
    otherwise brings there at a kernel's first launch: that one may wait for work that the device
    has. For servers, before they serve, and before a graph is captured. Kernels that only the
    emulator has run are tried beside plain ones, too, which take the place of those that fail.

    Args:
        operations: "all", or the kernels of "quantize", "dequantize", "gemm", "grouped_gemm" or
            "moe" alone.
        device: the device's ordinal.

    Returns:
        How many kernels they are.

    Raises:
        TypeError: `device` is no integer.
        ValueError: other operations, no such device, or one that there are no kernels for.
        FileNotFoundError: no GPU; or a kernel is in no pack, and NVRTC is not there to compile it
            (with NVRTC that takes seconds each, once).
        RuntimeError: the driver refuses.
    """
    return _native.cuda_load_kernels(operations, count(device, "device"))
