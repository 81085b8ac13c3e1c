"""Sums over the inputs of a layer: what a calibration keeps of them, in memory of a fixed size."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

#: Magnitudes are counted by their exponent and the first 6 bits of their fraction, from 2^-32 to
#: below 2^32; what is smaller counts in the first bin, what is larger in the last one.
FRACTION_BITS = 6
_LOWEST, _OCTAVES = -32, 64
BINS = _OCTAVES << FRACTION_BITS
#: Number of the first bin among those of all floats, f32 or f64, by the bias of their exponents.
FIRST_BIN_F32, _FIRST_BIN_F64 = ((bias + _LOWEST) << FRACTION_BITS for bias in (127, 1023))


def _upper_edges() -> np.ndarray:
    bins = np.arange(1, BINS + 1)
    fractions = 1 + (bins % (1 << FRACTION_BITS)) / (1 << FRACTION_BITS)
    edges = np.ldexp(fractions, (bins >> FRACTION_BITS) + _LOWEST)
    edges[-1] = math.inf
    return edges


#: What all magnitudes of a bin are below, float64 [BINS].
_EDGES = _upper_edges()


class Inputs:
    """Sums over rows that a layer has seen, in host memory.

    Args:
        rows: how many.
        absmax, squares, sums: by channel, float64 [channels].
        histogram: how many magnitudes lie in each bin, int64 [BINS].
    """

    def __init__(
        self,
        rows: int,
        absmax: np.ndarray,
        squares: np.ndarray,
        sums: np.ndarray,
        histogram: np.ndarray,
    ) -> None:
        self.rows = rows
        self.absmax, self.squares, self.sums, self.histogram = absmax, squares, sums, histogram

    @classmethod
    def of(cls, rows: np.ndarray) -> Inputs:
        """Those of some rows: f16, f32 or f64 [rows, channels], finite, and one at least."""
        magnitudes = np.abs(rows)
        return cls(
            len(rows),
            magnitudes.max(axis=0).astype(np.float64),
            np.square(rows, dtype=np.float64).sum(axis=0),
            rows.sum(axis=0, dtype=np.float64),
            _counted(magnitudes),
        )

    @property
    def channels(self) -> int:
        return len(self.absmax)

    def plus(self, more: Inputs) -> Inputs:
        """Of these rows and more; both stay."""
        return Inputs(
            self.rows + more.rows,
            np.maximum(self.absmax, more.absmax),
            self.squares + more.squares,
            self.sums + more.sums,
            self.histogram + more.histogram,
        )

    def beside(self, other: Any) -> Any:
        """The same sums where those of `other` are."""
        return self if isinstance(other, Inputs) else other.taken(self)

    def on_host(self) -> Inputs:
        return self

    def percentile(self, percent: float) -> float:
        """The least magnitude that at least `percent` of all are not above, or up to 1/64 more,
        but no more than the largest; of one below 2^-32, up to 65/64 2^-32."""
        counts = self.histogram.cumsum()
        rank = max(1, math.ceil(counts[-1] * (percent / 100)))
        return min(float(_EDGES[np.searchsorted(counts, rank)]), float(self.absmax.max()))


def _counted(magnitudes: np.ndarray) -> np.ndarray:
    if magnitudes.dtype == np.float64:
        codes, first = magnitudes.view(np.int64) >> (52 - FRACTION_BITS), _FIRST_BIN_F64
    else:
        bits = magnitudes.astype(np.float32, copy=False).view(np.int32)
        codes, first = bits >> (23 - FRACTION_BITS), FIRST_BIN_F32
    counts = np.bincount(codes.reshape(-1), minlength=first + BINS).astype(np.int64, copy=False)
    counts[first] += counts[:first].sum()
    counts[first + BINS - 1] += counts[first + BINS :].sum()
    return counts[first : first + BINS].copy()
