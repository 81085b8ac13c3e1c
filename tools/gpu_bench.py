"""Runs the GPU benchmarks of a build and writes what they print, each to a JSON file of its own.

Usage: gpu_bench.py --build FOLDER --output FOLDER --commit HASH [--only NAME]

A benchmark is a program `*_gpu_bench` that prints one JSON object. The file, DATE-CHIP-NAME.json,
has that under "results", with the date, the chip, the driver, the commit and the command.
"""

import argparse
import ctypes
import datetime
import json
import pathlib
import re
import subprocess
import sys

NO_GPU = 77


def driver_version() -> str:
    """NVIDIA's driver release, such as 580.159.04, or the CUDA version that the driver is for."""
    try:
        text = pathlib.Path("/proc/driver/nvidia/version").read_text()
        return re.search(r"\d{3,}\.\d+(\.\d+)?", text)[0]
    except (OSError, TypeError):
        version = ctypes.c_int()
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
        return f"for CUDA {version.value // 1000}.{version.value % 1000 // 10}"


def chip_name() -> str:
    cuda = ctypes.CDLL("libcuda.so.1")
    name = ctypes.create_string_buffer(256)
    device = ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
        return "unknown"
    cuda.cuDeviceGetName(name, len(name), device)
    return name.value.decode()


def write_report(
    folder: pathlib.Path,
    name: str,
    chip: str,
    commit: str,
    command: str,
    results: object,
    machine: dict | None = None,
) -> pathlib.Path:
    """Writes DATE-CHIP-NAME.json; returns it. `machine`: what stands in place of the driver."""
    report = {
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "chip": chip,
        **({"driver": driver_version()} if machine is None else machine),
        "commit": commit,
        "command": command,
        "results": results,
    }
    short_chip = chip.removeprefix("NVIDIA ").split()[0].split("(")[0].lower()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{report['date']}-{short_chip}-{name}.json"
    file.write_text(json.dumps(report, indent=1) + "\n")
    return file


def run(program: pathlib.Path, options: argparse.Namespace, chip: str) -> bool:
    done = subprocess.run([program], stdout=subprocess.PIPE, text=True, check=False)
    name = program.name.removesuffix("_gpu_bench").replace("_", "-")
    if done.returncode == NO_GPU:
        print(f"{name}: no GPU")
        return False
    if done.returncode != 0:
        print(f"{name}: failed with {done.returncode}")
        return False
    try:
        results = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        print(f"{name}: what it printed is no JSON ({error}): {done.stdout[:200]!r}")
        return False
    command = f"./dev gpu-bench --only {program.name}"
    file = write_report(options.output, name, chip, options.commit, command, results)
    print(f"{name}: {file}")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--only", default="", help="part of a program's name")
    options = parser.parse_args()
    programs = [
        path
        for path in sorted(options.build.glob("*_gpu_bench"))
        if options.only in path.name and (options.only or "_tune_" not in path.name)
    ]
    if not programs:
        print(f"no benchmark in {options.build} has {options.only!r} in its name")
        return 1
    chip = chip_name()
    succeeded = [run(program, options, chip) for program in programs]
    return 0 if all(succeeded) else 1


if __name__ == "__main__":
    sys.exit(main())
