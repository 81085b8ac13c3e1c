"""LightX2V's own code, run in a process of its own (use_lightx2v.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import store
from command import run_program

PROGRAM = Path(__file__).parent / "use_lightx2v.py"


class LightX2V:
    def __init__(self, checkout: Path, folder: Path) -> None:
        self.checkout = checkout
        self._folder = folder
        self._library = folder / "quantizers.so"
        self._loads = 0
        run_program(sys.executable, PROGRAM, "build", checkout, folder)

    @property
    def version(self) -> str:
        """The commit; without git what stands behind the last - of the folder's name: the commit,
        or COMMIT+OTHER where add_scale_to_models.py is another's.
        """
        git = ["git", "-C", self.checkout, "rev-parse", "--short=7", "HEAD"]
        result = subprocess.run(git, capture_output=True, text=True, check=False)
        if result.returncode == 0:
            return result.stdout.strip()
        return self.checkout.name.rpartition("-")[2]

    def run(self, script: str, *arguments: object) -> None:
        """One of its tools/convert."""
        words = ("run", self.checkout, self._library, script, *arguments)
        run_program(sys.executable, PROGRAM, *words)

    def load(self, kind: str, folder: Path, weights: list[str]) -> dict[str, store.Stored]:
        """What its weight class `kind` has in memory of weights of a checkpoint."""
        self._loads += 1
        loaded = self._folder / str(self._loads)
        loaded.mkdir()
        words = ("load", self.checkout, self._library, kind, folder)
        run_program(sys.executable, PROGRAM, *words, loaded / "model.safetensors", *weights)
        return store.read(loaded)
