"""The recorder of every benchmark: runs one, and keeps what it found with where and how.

Usage: record.py NAME --output FOLDER --commit HASH [OPTION...]

NAME is a module beside this one: `programs` (the C++ benchmarks of a GPU build), `command`
(`blockscale bench`), `gemm`, `gemm_sweep`, `weights`, `grouped_gemm`, `moe`, `decode`, `offload`,
`first_calls`, `gemm_cpu`, `host` or `conversion`. Each has `add_options`, which tells its options,
and `measure`, which prints what it finds and yields a `Measurement` for each file to write. That is
FOLDER/DATE-CHIP-NAME.json: date, chip, driver (or what stands for it on a CPU), commit, command,
and what was measured under "results".
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import functools
import importlib
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple, Protocol

NAMES = (
    "programs", "command", "gemm", "gemm_sweep", "weights", "grouped_gemm", "moe", "decode",
    "offload", "first_calls", "gemm_cpu", "host", "conversion",
)  # fmt: skip


class Machine(NamedTuple):
    """What a result was measured on: the chip's name, and what stands beside it in a record."""

    chip: str
    facts: dict


class Measurement(NamedTuple):
    """What one run found. `command` is what to type for it."""

    name: str
    command: str
    results: object
    machine: Machine


class Benchmark(Protocol):
    """A module of NAMES."""

    __doc__: str

    def add_options(self, parser: argparse.ArgumentParser) -> None: ...

    def measure(self, options: argparse.Namespace) -> Iterator[Measurement]:
        """Raises SystemExit where nothing can be measured, or something failed."""


# --- machines -------------------------------------------------------------------------------------


def driver_version() -> str:
    """NVIDIA's driver release, such as 580.159.04, or the CUDA version that the driver is for."""
    try:
        text = pathlib.Path("/proc/driver/nvidia/version").read_text()
        return re.search(r"\d{3,}\.\d+(\.\d+)?", text)[0]
    except (OSError, TypeError):
        version = ctypes.c_int()
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
        return f"for CUDA {version.value // 1000}.{version.value % 1000 // 10}"


@functools.cache
def gpu() -> Machine:
    cuda = ctypes.CDLL("libcuda.so.1")
    name = ctypes.create_string_buffer(256)
    device = ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
        return Machine("unknown", {"driver": driver_version()})
    cuda.cuDeviceGetName(name, len(name), device)
    return Machine(name.value.decode(), {"driver": driver_version()})


def cpu(cli: list[str]) -> Machine:
    """As `blockscale doctor` says it."""
    done = subprocess.run([*cli, "doctor", "--json"], stdout=subprocess.PIPE, check=True)
    facts = json.loads(done.stdout)["cpu"]
    return Machine(
        cpu_name(), {key: facts[key] for key in ("logical_cpus", "features", "simd_target")}
    )


def cpu_name() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


# --- records --------------------------------------------------------------------------------------


def is_flat(value: object) -> bool:
    """Whether a value stands on one line: a number, a text, or a list or an object of such."""
    if isinstance(value, dict):
        return not any(isinstance(v, dict | list) and not is_row(v) for v in value.values())
    return not isinstance(value, list) or is_row(value)


def is_row(value: object) -> bool:
    return isinstance(value, list) and not any(isinstance(v, dict | list) for v in value)


def text_of(value: object, indent: int = 0) -> str:
    """JSON, a case on a line."""
    if is_flat(value) and indent > 0:
        return json.dumps(value)
    begin, end = "{}" if isinstance(value, dict) else "[]"
    if isinstance(value, dict):
        parts = [f"{json.dumps(k)}: {text_of(v, indent + 1)}" for k, v in value.items()]
    else:
        parts = [text_of(v, indent + 1) for v in value]
    inner = ",\n".join(" " * (indent + 1) + part for part in parts)
    return f"{begin}\n{inner}\n{' ' * indent}{end}"


def write(folder: pathlib.Path, commit: str, found: Measurement) -> pathlib.Path:
    """Writes a record; returns its file."""
    chip, facts = found.machine
    record = {
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "chip": chip,
        **facts,
        "commit": commit,
        "command": found.command,
        "results": found.results,
    }
    short_chip = chip.removeprefix("NVIDIA ").split()[0].split("(")[0].lower()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{record['date']}-{short_chip}-{found.name}.json"
    file.write_text(text_of(record) + "\n", encoding="utf-8")
    return file


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in NAMES:
        print(
            f"usage: record.py NAME OPTION...; NAME is one of {', '.join(NAMES)}", file=sys.stderr
        )
        return 2
    benchmark: Benchmark = importlib.import_module(arguments[0])
    parser = argparse.ArgumentParser(
        prog=arguments[0], description=benchmark.__doc__.splitlines()[0]
    )
    parser.add_argument("--output", type=pathlib.Path, required=True, help="folder of the record")
    parser.add_argument("--commit", required=True, help="what is measured")
    benchmark.add_options(parser)
    options = parser.parse_args(arguments[1:])
    for found in benchmark.measure(options):
        print(write(options.output, options.commit, found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
