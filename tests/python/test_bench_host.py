"""tools/bench/host.py: what it does around the GPU."""

from __future__ import annotations

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/bench"))

import host  # noqa: E402


def test_a_line_says_whether_the_time_is_what_is_asked() -> None:
    assert host.line("gemm", 19.5, 20).endswith("19.50 us   at most 20: yes")
    assert host.line("gemm", 20.5, 20).endswith("20.50 us   at most 20: NO")
    assert host.line("torch.neg", 7, None).endswith("7.00 us")


def test_every_round_begins_with_an_empty_stream() -> None:
    calls = []
    took = host.microseconds(lambda: calls.append("call"), lambda: calls.append("wait"))
    assert took > 0
    rounds = calls.count("wait")
    assert rounds == host.ROUNDS + 2
    assert calls == (["wait"] + ["call"] * host.CALLS) * rounds
