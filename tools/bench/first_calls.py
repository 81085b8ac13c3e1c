"""Times the first calls of a process on a GPU, with and without blockscale.cuda.load_kernels.

Each case runs in processes of its own, in turns, and its medians count: load_kernels, where it is
called; the first gemm, until it returns and until its result is there; a second one. Idle: nothing
else runs. Busy: another stream multiplies for a tenth of a second, and the driver makes the first
launch of a kernel wait for that.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING

import record

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What is loaded beforehand, and what the device does meanwhile.
CASES = (("none", "idle"), ("gemm", "idle"), ("all", "idle"), ("none", "busy"), ("gemm", "busy"))
PROCESSES = 3

#: Of an operation's name and whether the device is busy: prints microseconds.
PROGRAM = """
import json, sys, time
import torch, blockscale, blockscale.cuda
operations, is_busy = sys.argv[1], sys.argv[2] == "busy"
x = torch.ones(64, 512, dtype=torch.bfloat16, device="cuda")
w = torch.ones(512, 512, dtype=torch.bfloat16, device="cuda")
a, b = blockscale.quantize(x, "fp8_1x128"), blockscale.quantize(w, "fp8_128x128")
d = torch.empty(64, 512, dtype=torch.bfloat16, device="cuda")
large = torch.ones(8192, 8192, dtype=torch.bfloat16, device="cuda")
other = torch.cuda.Stream()
torch.mm(large, large)
torch.cuda.synchronize()
found = {}
if operations != "none":
    begin = time.perf_counter()
    found["kernels"] = blockscale.cuda.load_kernels(operations)
    found["load"] = time.perf_counter() - begin
for name in ("first", "second"):
    torch.cuda.synchronize()
    if is_busy:
        with torch.cuda.stream(other):
            for _ in range(80):
                torch.mm(large, large)
    begin = time.perf_counter()
    blockscale.gemm(a, b, out=d)
    found[name] = time.perf_counter() - begin
    torch.cuda.current_stream().synchronize()
    found[name + "_done"] = time.perf_counter() - begin
print(json.dumps(found))
"""


def run(operations: str, state: str) -> dict:
    command = [sys.executable, "-c", PROGRAM, operations, state]
    output = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def measure_case(operations: str, state: str, found: list[dict]) -> dict:
    times = {
        f"{name}_microseconds": statistics.median(process[name] for process in found) * 1e6
        for name in found[0]
        if name != "kernels"
    }
    kernels = found[0].get("kernels", 0)
    return {"operations": operations, "state": state, "kernels": kernels, **times}


def text_of(case: dict) -> str:
    times = [f"{name.removesuffix('_microseconds')} {time:.0f} us" for name, time in case.items()
             if name.endswith("_microseconds")]  # fmt: skip
    return f"{case['state']}, load_kernels: {case['operations']} ({case['kernels']} kernels): " + (
        ", ".join(times)
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """It has none."""


def measure(options: argparse.Namespace) -> Iterator[record.Measurement]:  # noqa: ARG001
    import torch

    turns = [[run(*case) for case in CASES] for _ in range(PROCESSES)]
    found = [
        measure_case(*case, list(of))
        for case, of in zip(CASES, zip(*turns, strict=True), strict=True)
    ]
    for case in found:
        print(text_of(case), flush=True)
    results = {"torch": torch.__version__, "processes": PROCESSES, "cases": found}
    yield record.Measurement("first-calls", "./dev gpu-bench first_calls", results, record.gpu())
