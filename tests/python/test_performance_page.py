"""docs/performance.md: one page, whose tables are those of the results that they name."""

import pathlib
import subprocess
import sys


def test_the_tables_are_those_of_the_results(root: pathlib.Path):
    subprocess.run([sys.executable, root / "tools/bench/tables.py", "--check"], check=True)


def test_it_is_one_page(root: pathlib.Path):
    assert len((root / "docs/performance.md").read_text(encoding="utf-8").splitlines()) <= 100
