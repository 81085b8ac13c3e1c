"""Whether this machine has an NVIDIA GPU: exit code 0, or 77 if it has no driver or the driver says
that there is no device. Anything else that the driver says is an error, printed, with exit code 1.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

NO_GPU = 77
CUDA_ERROR_NO_DEVICE = 100


def open_driver() -> ctypes.CDLL | None:
    """The driver that the library would open; None if there is no such file.

    Raises:
        OSError: there is one, but it cannot be loaded.
    """
    name = os.environ.get("BLOCKSCALE_LIBCUDA") or "libcuda.so.1"
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        # Of a file that it has found, or of another that this needs, the loader says where, which.
        is_path = "/" in name
        if not Path(name).exists() if is_path else str(error).startswith(f"{name}: "):
            return None
        raise


def explain(driver: ctypes.CDLL, function: str, error: int) -> str:
    name, text = ctypes.c_char_p(), ctypes.c_char_p()
    driver.cuGetErrorName(error, ctypes.byref(name))
    driver.cuGetErrorString(error, ctypes.byref(text))
    words = [(part.value or b"unknown").decode() for part in (name, text)]
    return f"{function} failed with error {error} ({words[0]}): {words[1]}"


def main() -> int:
    try:
        driver = open_driver()
    except OSError as error:
        print(f"the NVIDIA driver cannot be loaded: {error}", file=sys.stderr)
        return 1
    if driver is None:
        return NO_GPU
    count = ctypes.c_int()
    for function, argument in (("cuInit", 0), ("cuDeviceGetCount", ctypes.byref(count))):
        error = getattr(driver, function)(argument)
        if error == CUDA_ERROR_NO_DEVICE:
            return NO_GPU
        if error != 0:
            print(f"the NVIDIA driver: {explain(driver, function, error)}", file=sys.stderr)
            return 1
    return 0 if count.value > 0 else NO_GPU


if __name__ == "__main__":
    sys.exit(main())
