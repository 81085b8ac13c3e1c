"""Runs `blockscale bench ARGUMENTS` and keeps its result, with the machine, commit and command.

Usage: bench_record.py --cli FILE --output FOLDER --commit HASH ARGUMENTS...

The table goes to standard output, the result to FOLDER/DATE-CHIP-bench-ARGUMENTS.json.
"""

import argparse
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

import gpu_bench


def cpu_name() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def machine(cli: list[str]) -> dict:
    """What stands beside the chip's name in a record, as `doctor` says it."""
    done = subprocess.run([*cli, "doctor", "--json"], stdout=subprocess.PIPE, check=True)
    cpu = json.loads(done.stdout)["cpu"]
    return {key: cpu[key] for key in ("logical_cpus", "features", "simd_target")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cli", type=pathlib.Path, required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = pathlib.Path(folder) / "result.json"
        command = [options.cli, "bench", *options.arguments, "--output", result]
        done = subprocess.run(command, check=False)
        if done.returncode != 0 or not result.exists():
            return done.returncode
        results = json.loads(result.read_text(encoding="utf-8"))
    file = gpu_bench.write_report(
        options.output,
        "-".join(["bench", *(re.sub(r"[^A-Za-z0-9_.]+", "", a) for a in options.arguments)]),
        results.get("device", cpu_name()),
        options.commit,
        shlex.join(["./dev", "bench", *options.arguments]),
        results,
        None if "device" in results else machine([str(options.cli)]),
    )
    print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
