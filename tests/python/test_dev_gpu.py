"""`./dev gpu-test` and `./dev gpu-bench` on a machine without a GPU."""

import ctypes
import pathlib
import subprocess

import pytest

NO_GPU = 77


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    "command", [["gpu-test"], ["gpu-test", "--sanitizer", "memcheck"], ["gpu-bench"]], ids=" ".join
)
def test_without_a_gpu_they_say_so(root: pathlib.Path, command: list[str]):
    if has_driver():
        pytest.skip("there is an NVIDIA driver")
    done = subprocess.run([root / "dev", *command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (NO_GPU, "no GPU\n"), done.stderr
