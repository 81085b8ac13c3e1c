"""The numbers of a report: comparisons and error histograms of each converted checkpoint."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import Checkpoint, CompareReport, ScaledTensor, TensorComparison, compare, dequantize

# |error| / rms(tensor) is counted in these bins, eight to a decade.
BIN_EDGES = np.logspace(-5, 1, 49)
# Of each tensor, evenly spaced rows with about this many values enter the histogram.
HISTOGRAM_VALUES = 1 << 17


@dataclass(frozen=True)
class Histogram:
    """How large the errors of single weights are, in units of their tensor's rms."""

    shares: np.ndarray  # of all values, by BIN_EDGES; what is missing to 1 lies outside
    median: float  # of |error| / rms
    exact: float  # share of values that did not change


@dataclass(frozen=True)
class Candidate:
    """One checkpoint against the original. Only tensors whose values or recipe changed count."""

    name: str
    report: CompareReport
    changed: tuple[TensorComparison, ...]  # in the model's order
    histogram: Histogram | None  # None: no value changed

    @property
    def bytes_before(self) -> int:
        return sum(t.bytes_a for t in self.changed)

    @property
    def bytes_after(self) -> int:
        return sum(t.bytes_b for t in self.changed)

    @property
    def bits_per_weight(self) -> float:
        """Of the changed tensors, scales included."""
        weights = sum(math.prod(t.shape) for t in self.changed)
        return float(8 * self.bytes_after / weights)

    def sqnr_db(self) -> dict[str, float]:
        """SQNR of each changed tensor whose values differ, by name."""
        return {t.name: t.sqnr_db for t in self.changed if math.isfinite(t.sqnr_db)}


def short_layer(name: str) -> str:
    """A tensor's name without what the layers of a model have in common."""
    name = re.sub(r"\.weight$", "", name)
    name = re.sub(r"^(model\.|bert\.)?(language_model\.)?(encoder\.)?", "", name)
    return re.sub(r"^(layers?|blocks?|h)\.(?=\d)", "", name)


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sorts layer 2 before layer 10."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts]


def candidates(original: Path, converted: list[Path], threads: int) -> list[Candidate]:
    """Compares each checkpoint with the original; the largest ones first.

    Where some tensors changed in every checkpoint, only these count, so that sizes compare.

    Raises:
        FileNotFoundError, OSError, ValueError: as `blockscale.compare`.
    """
    reports = [compare(original, path, threads=threads) for path in converted]
    changed = [_changed(report) for report in reports]
    names = [{t.name for t in c} for c in changed if c]
    common = set.intersection(*names) if names else set()
    if common:
        changed = [[t for t in c if t.name in common] for c in changed]
    found = [
        Candidate(name, report, tuple(c), _histogram(original, path, [t.name for t in c]))
        for name, path, report, c in zip(
            _names(converted, changed), converted, reports, changed, strict=True
        )
    ]
    return sorted(found, key=lambda c: -c.bits_per_weight if c.changed else -math.inf)


def _changed(report: CompareReport) -> list[TensorComparison]:
    changed = [t for t in report.tensors if t.recipe_a != t.recipe_b or t.sqnr_db != math.inf]
    return sorted(changed, key=lambda t: natural_key(t.name))


def _names(converted: list[Path], changed: list[list[TensorComparison]]) -> list[str]:
    """Each checkpoint's recipe; its folder's name or its path where that does not tell it apart."""
    recipes = ["+".join(dict.fromkeys(t.recipe_b for t in c)) for c in changed]
    folders = [path.resolve().name for path in converted]
    for names in (recipes, folders):
        if all(names) and len(set(names)) == len(names):
            return names
    return [str(path) for path in converted]


def _rows(tensor: ScaledTensor | np.ndarray) -> np.ndarray:
    """Evenly spaced rows of a tensor, HISTOGRAM_VALUES in all or just above, in f32."""
    values = dequantize(tensor) if isinstance(tensor, ScaledTensor) else tensor
    values = values.reshape(-1, values.shape[-1]) if values.ndim > 1 else values.reshape(1, -1)
    step = max(1, values.size // HISTOGRAM_VALUES)
    return values[::step].astype(np.float32)


def _histogram(original: Path, converted: Path, names: list[str]) -> Histogram | None:
    before, after = Checkpoint(original), Checkpoint(converted)
    relative = []
    for name in names:
        a, b = _rows(before[name]), _rows(after[name])
        rms = float(np.sqrt(np.mean(np.square(a, dtype=np.float64))))
        if rms > 0:
            relative.append(np.abs(a - b).ravel() / np.float32(rms))
    if not relative:
        return None
    errors = np.concatenate(relative)
    return Histogram(
        shares=np.histogram(errors, BIN_EDGES)[0] / errors.size,
        median=float(np.median(errors)),
        exact=float(np.mean(errors == 0)),
    )
