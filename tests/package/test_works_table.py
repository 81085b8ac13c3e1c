"""README.md says what works as the package does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_is_current() -> None:
    command = [sys.executable, ROOT / "tools/works_table.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), "run `./dev python tools/works_table.py`"
