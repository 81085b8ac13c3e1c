"""The numbers of a report: comparisons and error histograms of each converted checkpoint."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import Checkpoint, CompareReport, ScaledTensor, compare, dequantize

# Errors are counted in these bins of |error| / rms(tensor): half-decades from 1e-6 to 10.
BIN_EDGES = np.logspace(-6, 1, 57)
ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Candidate:
    """One converted checkpoint against the original. Only tensors that changed are counted."""

    name: str
    report: CompareReport
    recipes: tuple[str, ...]
    layers: tuple[str, ...]
    layer_sqnr_db: tuple[float, ...]
    quantized_bytes: int
    original_bytes: int
    histogram: np.ndarray  # share of values in each bin; the rest is smaller (zero included)

    @property
    def ratio(self) -> float:
        """How many times smaller the converted tensors became."""
        return self.original_bytes / self.quantized_bytes if self.quantized_bytes else 1.0


def short_layer(name: str) -> str:
    """A tensor's name without what all of them share."""
    name = re.sub(r"\.weight$", "", name)
    return re.sub(r"^(model\.|bert\.)?(encoder\.)?(layers?\.)", "", name)


def natural_key(name: str) -> list[tuple[int, int | str]]:
    """Sorts layer 2 before layer 10."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name)]


def candidate(original: Path, converted: Path, threads: int) -> Candidate:
    """Compares two checkpoints.

    Raises:
        FileNotFoundError, ValueError: as `blockscale.compare`; also when nothing was quantised.
    """
    report = compare(original, converted, threads=threads)
    after = Checkpoint(converted)
    quantized = [t for t in report.tensors if after.info(t.name).quantized]
    quantized.sort(key=lambda t: natural_key(t.name))
    if not quantized:
        raise ValueError(f"{converted}: has no quantised tensor to report on")
    return Candidate(
        name=Path(converted).name,
        report=report,
        recipes=tuple(sorted({t.recipe_b for t in quantized})),
        layers=tuple(t.name for t in quantized),
        layer_sqnr_db=tuple(t.sqnr_db for t in quantized),
        quantized_bytes=sum(t.bytes_b for t in quantized),
        original_bytes=sum(t.bytes_a for t in quantized),
        histogram=_error_histogram(Checkpoint(original), after, [t.name for t in quantized]),
    )


def _values(tensor: ScaledTensor | np.ndarray) -> np.ndarray:
    values = dequantize(tensor) if isinstance(tensor, ScaledTensor) else tensor
    return np.asarray(values).astype(np.float32, copy=False)


def _error_histogram(before: Checkpoint, after: Checkpoint, names: list[str]) -> np.ndarray:
    counts = np.zeros(len(BIN_EDGES) - 1, np.int64)
    total = 0
    for name in names:
        a = _values(before[name]).reshape(before[name].shape[0], -1)
        b = _values(after[name]).reshape(a.shape)
        rms = float(np.sqrt(np.mean(np.square(a, dtype=np.float64))))
        total += a.size
        if rms == 0.0:
            continue
        for row in range(0, a.shape[0], ROWS_AT_ONCE):
            piece = slice(row, row + ROWS_AT_ONCE)
            error = np.abs(a[piece] - b[piece]) / rms
            counts += np.histogram(error, BIN_EDGES)[0]
    return counts / max(total, 1)
