"""Runs `blockscale bench ARGUMENTS`, whose table goes to standard output, and records its result.

Options: --cli FILE ARGUMENTS...
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator

import record

#: The share of memcpy's rate (bytes read and written) that is asked of the CPU's quantizers, and of
#: dequantizing.
ASKED_OF_MEMCPY = 0.40


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cli", type=pathlib.Path, required=True)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)


def measure(options: argparse.Namespace) -> Iterator[record.Measurement]:
    with tempfile.TemporaryDirectory() as folder:
        result = pathlib.Path(folder) / "result.json"
        command = [options.cli, "bench", *options.arguments, "--output", result]
        done = subprocess.run(command, check=False)
        if done.returncode != 0 or not result.exists():
            raise SystemExit(done.returncode)
        results = json.loads(result.read_text(encoding="utf-8"))
    yield record.Measurement(
        "-".join(["bench", *(re.sub(r"[^A-Za-z0-9_.]+", "", a) for a in options.arguments)]),
        shlex.join(["./dev", "bench", *options.arguments]),
        results,
        record.gpu()._replace(chip=results["device"])
        if "device" in results
        else record.cpu([str(options.cli)]),
    )
