"""Writes the tables of docs/performance.md, docs/performance/ and README.md from the records that
they name.

Usage: tables.py [--check]

A block stands between `<!-- KIND FILE... -->` and `<!-- end -->`. KIND is

- `table`: what was measured, on what and by which command, then a row for each case: ours, its
  peer, and the ratio of the two;
- `misses`: of everything that is asked in the records, what does not hold;
- `goals`: how much of it that is;
- `figures`: a line for each record.

Which numbers of a record these are is told by READERS, one for each benchmark. With --check nothing
is written, and the exit code is 1 if a page differs.
"""

from __future__ import annotations

import json
import pathlib
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from typing import NamedTuple

import readers
from readers import Goal, Reader, Row

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = (
    ROOT / "README.md",
    ROOT / "docs/performance.md",
    *sorted((ROOT / "docs/performance").glob("*.md")),
)
BLOCK = re.compile(
    r"(<!-- (table|misses|goals|figures)((?:\s+\w[\w-]*)+)\s+-->\n).*?(<!-- end -->)", re.DOTALL
)
MUCH = 0.05  # by more than which a goal is missed by much


class Record(NamedTuple):
    document: dict
    reader: Reader

    @property
    def results(self) -> dict | list:
        return self.document["results"]


def read(file: str) -> Record:
    document = json.loads((ROOT / file).read_text(encoding="utf-8"))
    return Record(document, readers.reader_of(document["results"]))


def provenance(document: dict) -> str:
    """Chip, driver or instruction set, commit and command."""
    parts = [document["chip"]]
    if "driver" in document:
        parts.append(f"driver {document['driver']}")
    if "simd_target" in document:
        parts.append(f"{document['logical_cpus']} logical CPUs, {document['simd_target']}")
    commit = document["commit"].split()[0]
    commit = commit[:7] if re.fullmatch(r"[0-9a-f]{7,}", commit) else commit
    return f"{', '.join(parts)}, commit {commit}, {document['date']}: `{document['command']}`"


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, 140, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def number(value: float) -> str:
    """Three digits, or all before the point."""
    for digits, least in ((0, 100), (1, 10), (2, 1)):
        if abs(value) >= least:
            return f"{value:.{digits}f}"
    return f"{value:.3f}"


def table(records: list[Record]) -> list[str]:
    text = "; ".join(provenance(record.document) for record in records)
    lines = [*wrapped(f"{text}:"), ""]
    reader = records[0].reader
    rows: list[Row] = [row for record in records for row in record.reader.rows(record.results)]
    head = ("", f"ours, {reader.unit}", f"{reader.peer}, {reader.unit}", "ratio")
    cells = ((r.shape, number(r.ours), number(r.peer), f"{r.ratio:.2f}") for r in rows)
    return lines + markdown(head, cells)


def missed_goals(records: list[Record]) -> tuple[list[Goal], int]:
    """Those that do not hold, and of how many."""
    goals = [goal for record in records for goal in record.reader.goals(record.results)]
    left_out = sum(record.reader.left_out(record.results) for record in records)
    return [goal for goal in goals if goal.short > 0], len(goals) + left_out


def goals(records: list[Record]) -> list[str]:
    missed, of = missed_goals(records)
    if not missed:
        return [f"All {of} goals hold."]
    much = sum(goal.short > MUCH for goal in missed)
    return [f"{len(missed)} of {of} goals are missed, {much} by more than {MUCH:.0%}."]


def misses(records: list[Record]) -> list[str]:
    missed, of = missed_goals(records)
    if not missed:
        return goals(records)
    lines = [f"{len(missed)} of {of} goals are missed:", ""]
    rows = []
    for group in dict.fromkeys(goal.group for goal in missed):
        found: list[Goal] = [goal for goal in missed if goal.group == group]
        worst = max(found, key=lambda goal: goal.short)
        much = sum(goal.short > MUCH for goal in found)
        asked = f"{'at least' if worst.at_least else 'at most'} {number(worst.asked)}"
        rows.append(
            (
                group,
                str(len(found)),
                str(much),
                worst.case,
                number(worst.reached) + worst.unit,
                asked,
            )
        )
    head = ("what", "missed", f"by more than {MUCH:.0%}", "the furthest", "has", "asked")
    return lines + markdown(head, rows)


def figures(records: list[Record]) -> list[str]:
    texts = (f"- {record.reader.figure(record.document)}" for record in records)
    return [line for text in texts for line in wrapped(text, "  ")]


KINDS: dict[str, Callable[[list[Record]], list[str]]] = {
    "table": table,
    "misses": misses,
    "goals": goals,
    "figures": figures,
}


def block(found: re.Match) -> str:
    """What stands where a block was found, from the files that it names."""
    records = [read(f"bench/results/{name}.json") for name in found[3].split()]
    return found[1] + "\n".join(KINDS[found[2]](records)) + "\n" + found[4]


def main() -> int:
    differ = False
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        new = BLOCK.sub(block, text)
        differ |= new != text
        if "--check" not in sys.argv[1:]:
            page.write_text(new, encoding="utf-8")
    return int(differ and "--check" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
