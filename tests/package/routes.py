"""Where tokens go, for tests of mixtures of experts."""

from __future__ import annotations

from typing import Any

import numpy as np

TOKENS, E, TOP_K = 19, 4, 3


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


ROUTINGS = ["uniform", "one expert", "skewed", "half dropped"]


def routes(kind: str = "uniform", offset: int = 0, tokens: int = TOKENS) -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    ids = np.argsort(rng.random((tokens, E)), axis=1)[:, :TOP_K]
    if kind == "one expert":
        ids[:] = E - 1
    elif kind == "skewed":
        ids[rng.random(ids.shape) < 0.8] = 1
    elif kind == "none here":
        ids = np.where(rng.random(ids.shape) < 0.5, -1 - offset, E + ids)
    elif kind == "half dropped":
        ids = np.where(rng.random(ids.shape) < 0.5, rng.choice([-1, E, 2**30], ids.shape), ids)
    weights = rng.random(ids.shape).astype(np.float32)
    return (ids + offset).astype(np.int32), weights
