"""Runs the GPU benchmarks of a build, one record each.

Options: --build FOLDER [--only NAME]

A benchmark is a program `*_gpu_bench` that prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
from collections.abc import Iterator

import record

NO_GPU = 77
#: The time of a product with bf16 results over that with quantized ones, from 4096 rows on
#: (ops/gemm/bench/gemm_gpu_bench.cpp).
ASKED_OF_QUANTIZED_RESULTS = 0.926


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--only", default="", help="part of a program's name")


def run(program: pathlib.Path) -> record.Measurement | str:
    """What a program found, or why nothing."""
    done = subprocess.run([program], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == NO_GPU:
        return "no GPU"
    if done.returncode != 0:
        return f"failed with {done.returncode}"
    try:
        results = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        return f"what it printed is no JSON ({error}): {done.stdout[:200]!r}"
    name = program.name.removesuffix("_gpu_bench").replace("_", "-")
    command = f"./dev gpu-bench --only {program.name}"
    return record.Measurement(name, command, results, record.gpu())


def measure(options: argparse.Namespace) -> Iterator[record.Measurement]:
    programs = [
        path
        for path in sorted(options.build.glob("*_gpu_bench"))
        if options.only in path.name and (options.only or "_tune_" not in path.name)
    ]
    if not programs:
        raise SystemExit(f"no benchmark in {options.build} has {options.only!r} in its name")
    failures = []
    for program in programs:
        found = run(program)
        if isinstance(found, str):
            failures.append(f"{program.name}: {found}")
            print(failures[-1], flush=True)
        else:
            yield found
    if failures:
        raise SystemExit(1)
