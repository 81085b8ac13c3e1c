"""The command line under test."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path


def run_program(*command: object) -> str:
    """Its standard output; a failure shows the end of its standard error."""
    words = [str(word) for word in command]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        errors = result.stderr[-2000:]
        raise AssertionError(f"{' '.join(words)} exited {result.returncode}: {errors}")
    return result.stdout


class Blockscale:
    def __init__(self, binary: Path) -> None:
        self.binary = binary

    def run(self, *arguments: object) -> str:
        return run_program(self.binary, *arguments)

    def convert(self, source: Path, destination: Path, recipe: str, *more: object) -> Path:
        """The destination, which the command creates."""
        self.run("convert", source, destination, "--recipe", recipe, *more)
        return destination

    def dequantize(self, source: Path, destination: Path, recipe: str = "f32") -> Path:
        return self.convert(source, destination, recipe, "--dialect", "plain")

    def compare(self, a: Path, b: Path) -> dict:
        return json.loads(self.run("compare", a, b, "--json"))
