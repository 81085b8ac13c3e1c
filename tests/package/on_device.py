"""Calls on arrays of a CUDA device without a device, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2]
DRIVERS = sorted((SOURCE / "build").glob("release/**/*fake_libcuda.so"))
NVRTC = sorted(Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/*/lib/libnvrtc.so.*"))


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Python with the fake cupy, in a process of its own: a driver is opened once."""
    setup = (
        "import sys, numpy as np\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import fake_cupy, blockscale\n"
        "from fake_cupy import Array, asked, STREAM\n"
    )
    return subprocess.run(
        [sys.executable, "-c", setup + code],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
    )


def run_with_driver(
    code: str, tmp_path: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """`run` with the tests' own driver; kernels that no pack beside the package has are compiled,
    and kept in `tmp_path`."""
    return run(
        code,
        BLOCKSCALE_LIBCUDA=str(DRIVERS[0]),
        BLOCKSCALE_NVRTC=str(NVRTC[0]),
        BLOCKSCALE_CACHE=str(tmp_path),
        **variables,
    )


def runs_to_its_end(code: str, tmp_path: Path, **variables: str) -> None:
    """`run_with_driver` of code that prints "done" and nothing else."""
    result = run_with_driver(code, tmp_path, **variables)
    assert result.stdout.strip() == "done", result.stderr


needs_driver = pytest.mark.skipif(
    not DRIVERS or not NVRTC,
    reason="the fake driver is not built, or nvidia-cuda-nvrtc not installed: ./dev test release",
)


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else ""


FP8 = """
def fp8(rows, k, recipe='fp8_1x128', device=0, batch=()):
    grid = {'fp8_1x128': (rows, -(-k // 128)), 'fp8_128x128': (-(-rows // 128), -(-k // 128)),
            'fp8_row': (rows, 1), 'fp8_tensor': (1, 1)}[recipe]
    return blockscale.ScaledTensor(Array((*batch, rows, k), 'uint8', device),
                                   Array((*batch, *grid), 'float32', device), recipe)


a, b = fp8(64, 256), fp8(96, 256, 'fp8_128x128')
"""
