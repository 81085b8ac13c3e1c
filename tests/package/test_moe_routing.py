"""Routing and sorting by expert on the CPU, against plain models of them, and what bad input
gets."""

from __future__ import annotations

import math
import re
from typing import Any

import blockscale
import ml_dtypes
import numpy as np
import pytest
from routes import ROUTINGS, TOP_K, E, normal, routes

BF16 = ml_dtypes.bfloat16


# --- routing --------------------------------------------------------------------------------------


def routed(
    logits: np.ndarray,
    top_k: int,
    *,
    score: str = "softmax",
    correction_bias: np.ndarray | None = None,
    groups: int = 1,
    top_groups: int = 1,
    best_of_group: int = 2,
    renormalize: bool = True,
    scale: float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """`route` in float64."""
    x = logits.astype(float)
    exps = np.exp(x - x.max(axis=1, keepdims=True))
    scores = exps / exps.sum(axis=1, keepdims=True) if score == "softmax" else 1 / (1 + np.exp(-x))
    choice = scores + (0 if correction_bias is None else correction_bias)
    by_group = choice.reshape(len(x), groups, -1)
    if groups > 1:
        sums = np.sort(by_group, axis=2)[..., -best_of_group:].sum(axis=2)
        worst = np.argsort(-sums, axis=1, kind="stable")[:, top_groups:]
        np.put_along_axis(by_group, worst[..., None], -np.inf, axis=1)
    ids = np.argsort(-choice, axis=1, kind="stable")[:, :top_k]
    weights = np.take_along_axis(scores, ids, axis=1)
    if renormalize:
        weights /= weights.sum(axis=1, keepdims=True) + 1e-20
    return ids, scale * weights


def test_shared_experts() -> None:
    logits = normal(5, 16)
    ids, weights = blockscale.route(logits, 3)
    with_shared = blockscale.route(logits, 3, shared_experts=2, scale=1.0)
    assert (with_shared[0][:, :3] == ids).all() and (with_shared[1][:, :3] == weights).all()
    assert (with_shared[0][:, 3:] == [16, 17]).all() and (with_shared[1][:, 3:] == 1).all()
    with pytest.raises(ValueError, match=r"shared_experts: is 14, must be beside top_k, in 0..13"):
        blockscale.route(logits, 3, shared_experts=14)
    with pytest.raises(ValueError, match=r"shared_experts: is 2147483647, must be at most 16"):
        blockscale.route(logits, 3, shared_experts=2**31 - 1)


def test_a_map_of_experts() -> None:
    ids = np.array([[0, 3], [2, 1], [7, -1]], np.int32)
    entries = blockscale.moe_sort(ids, 2, expert_map=np.array([1, -1, 0, 1], np.int32))
    assert entries.offsets.tolist() == [0, 1, 3]
    assert entries.token_of_row.tolist() == [1, 0, 0, -1, -1, -1]
    with pytest.raises(TypeError, match="expert_map"):
        blockscale.moe_sort(ids, 2, expert_map=np.zeros(4))


BIAS = normal(32, seed=8) / 4


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"score": "sigmoid", "renormalize": False},
        {"correction_bias": BIAS},
        {"score": "sigmoid", "correction_bias": BIAS, "groups": 8, "top_groups": 4, "scale": 2.5},
        {"groups": 4, "top_groups": 2, "best_of_group": 1},
        {"renormalize": False, "scale": -3.0},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
def test_routes(options: dict[str, Any], dtype: type) -> None:
    # All different in each row, so that nothing hangs on the last bit.
    order = np.argsort(normal(50, 32, seed=9), axis=1)
    logits = (order / 8 - 2).astype(dtype)
    ids, weights = blockscale.route(logits, 5, **options)
    wanted_ids, wanted = routed(logits, 5, **options)
    assert ids.dtype == np.int32 and weights.dtype == np.float32
    assert np.array_equal(ids, wanted_ids)
    assert np.allclose(weights, wanted, rtol=2e-6)
    again = blockscale.route(logits, 5, threads=1, **options)
    assert np.array_equal(again[0], ids) and np.array_equal(again[1], weights)


def test_equal_scores_and_no_tokens() -> None:
    ids, weights = blockscale.route(np.zeros((3, 7), np.float32), 4)
    assert (ids == np.arange(4)).all() and (weights == 0.25).all()
    logits = np.array([[np.nan, 1, 2, np.nan]], np.float32)
    assert blockscale.route(logits, 2, score="sigmoid")[0].tolist() == [[2, 1]]
    for part in blockscale.route(np.zeros((0, 7), np.float32), 4):
        assert part.shape == (0, 4)


def test_what_routing_refuses() -> None:
    x = np.zeros((3, 12), np.float32)

    def refuses(kind: type[Exception], message: str, *arguments: Any, **options: Any) -> None:
        with pytest.raises(kind, match="^" + re.escape(message)):
            blockscale.route(*arguments, **options)

    refuses(TypeError, "logits: is a list, must be an array", [[1.0]], 1)
    refuses(TypeError, "logits: has dtype float64", x.astype(float), 1)
    refuses(ValueError, "logits: shape is (12,), must be (T, experts)", x[0], 1)
    refuses(ValueError, "top_k: is 13, must be at most 12, the experts", x, 13)
    refuses(ValueError, "top_k: is 0, must be at most", x, 0, groups=4)
    refuses(ValueError, "top_k: is 0, must be in 1..16", np.zeros((3, 40), np.float32), 0)
    refuses(ValueError, "top_k: is 17, must be in 1..16", np.zeros((3, 40), np.float32), 17)
    refuses(TypeError, "top_k: is 1.5, must be an integer", x, 1.5)
    refuses(ValueError, "score: is 'relu', must be softmax or sigmoid", x, 1, score="relu")
    refuses(TypeError, "correction_bias: has dtype float64, must be float32", x, 1,
            correction_bias=np.zeros(12))  # fmt: skip
    refuses(ValueError, "correction_bias: has 11 elements, must have 12, one for each expert", x, 1,
            correction_bias=np.zeros(11, np.float32))  # fmt: skip
    refuses(ValueError, "groups: is 5, must be a divisor of the 12 experts", x, 1, groups=5)
    refuses(ValueError, "groups: is 0, must be in 1..32", x, 1, groups=0)
    refuses(ValueError, "top_groups: is 5, must be in 1..4", x, 1, groups=4, top_groups=5)
    refuses(ValueError, "best_of_group: is 3, must be in 1..2", x, 1, best_of_group=3)
    refuses(ValueError, "best_of_group: is 2, must be 1", x, 1, groups=12)
    refuses(ValueError, "top_k: is 4, must be at most the experts", x, 4, groups=4)
    refuses(ValueError, "scale: is not finite", x, 1, scale=math.inf)
    refuses(TypeError, "scale: is 'a', must be a number", x, 1, scale="a")
    refuses(ValueError, "threads: is -1", x, 1, threads=-1)


# --- sorting --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*ROUTINGS, "none here"])
@pytest.mark.parametrize("tile", [1, 8, 16, 128])
@pytest.mark.parametrize("offset", [0, 5])
def test_entries_are_sorted(kind: str, tile: int, offset: int) -> None:
    ids, _ = routes(kind, offset)
    got = blockscale.moe_sort(ids, E, local_expert_offset=offset, tile=tile)
    flat = ids.ravel() - offset
    rows, limits, experts, offsets = [], [], [], [0]
    for e in range(E):
        entries = np.flatnonzero(flat == e).tolist()
        begin = len(rows)
        rows += entries + [-1] * (-len(entries) % tile)
        tiles = range(begin, len(rows), tile)
        experts += [e] * len(tiles)
        limits += [min(first + tile, begin + len(entries)) for first in tiles]
        offsets.append(len(rows))
    assert got.offsets.tolist() == offsets
    assert len(got.entry_of_row) == len(got.token_of_row)
    assert got.entry_of_row.tolist()[: len(rows)] == rows
    assert got.token_of_row.tolist()[: len(rows)] == [e // TOP_K if e >= 0 else -1 for e in rows]
    assert (got.entry_of_row[len(rows) :] == -1).all()
    assert (got.token_of_row[len(rows) :] == -1).all()
    row_of = {entry: row for row, entry in enumerate(rows) if entry >= 0}
    assert got.row_of_entry.shape == ids.shape
    assert got.row_of_entry.ravel().tolist() == [row_of.get(i, -1) for i in range(ids.size)]
    assert {p.dtype for p in got if p is not None} == {np.dtype(np.int32)}
    if tile == 1:
        assert len(got.entry_of_row) == ids.size and got[4:] == (None,) * 4
        return
    count = len(experts)
    assert len(got.expert_of_tile) == len(got.entry_of_row) // tile
    assert got.expert_of_tile.tolist()[:count] == experts
    assert got.row_limit_of_tile.tolist()[:count] == limits
    assert (got.expert_of_tile[count:] == -1).all() and (got.row_limit_of_tile[count:] == 0).all()
    assert got.padded_rows.tolist() == [len(rows)] and got.tiles.tolist() == [count]


def test_sorting_nothing() -> None:
    got = blockscale.moe_sort(np.zeros((0, 2), np.int32), 3, tile=8)
    assert got.offsets.tolist() == [0] * 4 and got.row_of_entry.shape == (0, 2)
    assert got.padded_rows.tolist() == got.tiles.tolist() == [0] and len(got.entry_of_row) == 0


def test_what_sorting_refuses() -> None:
    ids = np.zeros((3, 2), np.int32)

    def refuses(kind: type[Exception], message: str, *arguments: Any, **options: Any) -> None:
        with pytest.raises(kind, match="^" + re.escape(message)):
            blockscale.moe_sort(*arguments, **options)

    refuses(TypeError, 'ids: has dtype int64, must be int32; convert it with .astype("int32")',
            ids.astype(np.int64), 3)  # fmt: skip
    refuses(ValueError, "ids: shape is (6,), must be (T, top_k)", ids.ravel(), 3)
    refuses(ValueError, "ids: its elements must be contiguous; copy it first", ids[:, :1], 3)
    refuses(ValueError, "ids: is 17, must be in 1..16", np.zeros((3, 17), np.int32), 3)
    refuses(ValueError, "experts: is 0, must be in 1..1024", ids, 0)
    refuses(ValueError, "experts: is 1025, must be in 1..1024", ids, 1025)
    refuses(TypeError, "experts: is 'a', must be an integer", ids, "a")
    refuses(ValueError, "tile: is 7, must be 1 or in 8..256", ids, 3, tile=7)
    refuses(ValueError, "local_expert_offset: is -1", ids, 3, local_expert_offset=-1)
    refuses(ValueError, "local_expert_offset: is 2147483647, must be in 0..", ids, 3,
            local_expert_offset=2**31 - 1)  # fmt: skip
    refuses(ValueError, "threads: is -1", ids, 3, threads=-1)
