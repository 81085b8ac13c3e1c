"""The CPU's work on torch's OpenMP threads; `./dev test --torch` runs these."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")

import blockscale.torch  # noqa: E402

SETUP = """
import os, sys, torch, blockscale.torch
x = torch.randn(1024, 1024)
y = x @ x  # torch's threads are there
a = blockscale.quantize(x, "mxfp8_e4m3")
want = blockscale.gemm(a, a)
"""


def run(code: str) -> str:
    """What a process of its own prints, which ends within a minute."""
    command = [sys.executable, "-c", SETUP + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def test_they_are_shared() -> None:
    assert blockscale._native.share_openmp_threads()


def test_results_do_not_depend_on_their_number() -> None:
    code = """
for threads in (1, 2, 5):
    torch.set_num_threads(threads)
    for asked in (0, 1, 3, 100000):
        assert torch.equal(blockscale.gemm(a, a, threads=asked), want), (threads, asked)
print("equal")
"""
    assert run(code) == "equal"


def test_a_forked_process_has_threads_of_its_own() -> None:
    code = """
child = os.fork()
if child == 0:
    got = blockscale.gemm(a, a)  # and nothing of torch's own, which would wait for its threads
    os._exit(0 if got.numpy().tobytes() == want.numpy().tobytes() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run(code) == "0"
