"""The tables of README.md and of the pages on performance, and what tools/bench makes them of."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/bench"))

import readers  # noqa: E402
import tables  # noqa: E402
from readers import Goal, Reader, Row  # noqa: E402

LONGEST_LINE = 160


def test_the_tables_are_those_of_the_records() -> None:
    subprocess.run([sys.executable, ROOT / "tools/bench/tables.py", "--check"], check=True)


@pytest.mark.parametrize("page", tables.PAGES[1:], ids=lambda page: page.name)
def test_every_number_of_a_table_is_generated(page: pathlib.Path) -> None:
    """Outside of blocks a page has no table."""
    text = tables.BLOCK.sub("", page.read_text())
    assert not [line for line in text.splitlines() if line.startswith("|")]
    assert not re.search(r"\d\.\d", text), "a figure that is typed"


@pytest.mark.parametrize(
    "page",
    [ROOT / "CONTRIBUTING.md", *tables.PAGES, *sorted((ROOT / "docs").glob("*.md"))],
    ids=lambda page: page.name,
)
def test_lines_of_pages_are_short(page: pathlib.Path) -> None:
    lines = enumerate(page.read_text().splitlines(), 1)
    long = [i for i, line in lines if len(line) > LONGEST_LINE and not line.startswith("|")]
    assert not long


def reader(rows: list[Row], goals: list[Goal], left_out: int = 0) -> Reader:
    return Reader(
        takes=lambda _: True,
        peer="peer",
        unit="us",
        rows=lambda _: iter(rows),
        goals=lambda _: iter(goals),
        figure=lambda document: f"{document['chip']} is fast. " * 12,
        left_out=lambda _: left_out,
    )


def record(rows: list[Row] = (), goals: list[Goal] = (), left_out: int = 0) -> tables.Record:
    document = {"chip": "NVIDIA H200", "driver": "1.2", "commit": "0123456789ab"}
    document |= {"date": "2026-01-01", "command": "./dev gpu-bench", "results": {}}
    return tables.Record(document, reader(rows, goals, left_out))


def test_a_table_says_what_was_measured_where() -> None:
    lines = tables.table([record([Row("1 x 2", 0.1234, 123.4, 1000.0), Row("b", 3, 12.34, 4.113)])])
    where = "NVIDIA H200, driver 1.2, commit 0123456, 2026-01-01: `./dev gpu-bench`:"
    assert lines == [
        where,
        "",
        "|  | ours, us | peer, us | ratio |",
        "|---|---|---|---|",
        "| 1 x 2 | 0.123 | 123 | 1000.00 |",
        "| b | 3.00 | 12.3 | 4.11 |",
    ]


def test_misses_are_goals_that_do_not_hold() -> None:
    goals = [
        Goal("fast", "a", 2.0, 2.0, at_least=True),
        Goal("fast", "b", 1.95, 2.0, at_least=True),
        Goal("fast", "c", 1.5, 2.0, at_least=True),
        Goal("short", "d", 12.0, 10.0, at_least=False, unit=" us"),
    ]
    assert [round(goal.short, 3) for goal in goals] == [0, 0.026, 0.333, 0.2]
    lines = tables.misses([record(goals=goals, left_out=6)])
    assert lines[0] == "3 of 10 goals are missed:"
    assert lines[4:] == [
        "| fast | 2 | 1 | c | 1.50 | at least 2.00 |",
        "| short | 1 | 1 | d | 12.0 us | at most 10.0 |",
    ]
    assert tables.misses([record(goals=goals[:1], left_out=1)]) == ["All 2 goals hold."]
    short = tables.goals([record(goals=goals, left_out=6)])
    assert short == ["3 of 10 goals are missed, 2 by more than 5%."]
    assert tables.goals([record(goals=goals[:1])]) == ["All 1 goals hold."]


def test_figures_are_a_wrapped_line_each() -> None:
    lines = tables.figures([record(), record()])
    assert [line[:2] for line in lines] == ["- ", "  ", "- ", "  "]
    assert max(map(len, lines)) <= 140


def test_each_record_that_is_shown_has_one_reader() -> None:
    named = set()
    for page in tables.PAGES:
        for found in tables.BLOCK.finditer(page.read_text()):
            named.update(found[3].split())
    assert len(named) >= 9
    kinds = {name: tables.read(f"bench/results/{name}.json").reader for name in named}
    assert len(set(kinds.values())) == len(readers.READERS)


def test_thinned_quantizer_cases_count() -> None:
    case = {"line": "rest", "input": "identity", "recipe": "mxfp4", "dtype": "bf16", "rows": 1}
    case |= {"layout": "row_major", "k": 32, "input_bytes": 1 << 20, "copy_share": 0.5}
    case |= {"microseconds": 2.0, "allowed_microseconds": 1.0, "copy_microseconds": 1.0}
    results = {"cases": [case], "left_out": 9}
    found = readers.reader_of(results)
    assert found.left_out(results) == 9
    (goal,) = found.goals(results)
    assert (goal.case, goal.short) == ("mxfp4 bf16 row_major 1 MiB", 1.0)


def test_each_record_is_named_on_a_page() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    files = {file.stem for file in (ROOT / "bench/results").glob("*.json")}
    assert not {name for name in files if name not in text}
