"""tools/bench/offload.py: what it says of what it has measured."""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/bench"))

import offload  # noqa: E402


def test_lines_say_whether_figures_are_what_is_asked() -> None:
    case = {"blocks": 40, "rows": 4096, "step_ms": 210.0, "work_ms": 160.0, "copies_ms": 200.0}
    good = {"bound": 200 / 210, "memory": 1.0, "synchronizations": 0.0}
    bad = {"bound": 0.89, "memory": 1.5, "synchronizations": 1.0}
    said = offload.lines(case | good)
    assert said[0].startswith("40 blocks, 4096 rows: a step 210.0 ms, its work 160.0 ms")
    assert said[1] == "bound             0.952   at least 0.9: yes"
    assert [line.split()[-1] for line in said[1:]] == ["yes"] * 3
    assert [line.split()[-1] for line in offload.lines(case | bad)[1:]] == ["NO"] * 3
    assert list(good) == list(offload.ASKED)
