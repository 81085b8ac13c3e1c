"""The numbers of a report: comparisons and error histograms of each converted checkpoint."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import Checkpoint, CompareReport, ScaledTensor, TensorComparison, compare, dequantize

# |error| / rms(tensor) is counted in these bins, eight to a decade.
BIN_EDGES = np.logspace(-5, 1, 49)
# Of each tensor, evenly spaced rows with about this many values enter the histogram.
HISTOGRAM_VALUES = 1 << 17


@dataclass(frozen=True)
class Histogram:
    """How large the errors of single weights are, in units of their tensor's rms."""

    shares: np.ndarray  # of all finite errors, by BIN_EDGES; what is missing to 1 lies outside
    median: float  # of |error| / rms
    exact: float  # share of values that did not change
    lost: float  # share of all errors that are NaN or infinite


@dataclass(frozen=True)
class Candidate:
    """One checkpoint against the original. Only converted tensors count (`blockscale.compare`)."""

    name: str
    report: CompareReport
    changed: tuple[TensorComparison, ...]  # in the model's order
    histogram: Histogram | None  # None: there is no error to relate to a tensor's rms
    gains: Mapping[str, float]  # of searched scales: squared error over that of min-max scales
    weighted: bool = False  # `gains` are of errors weighted by input channel

    @property
    def ruined(self) -> list[TensorComparison]:
        return [t for t in self.changed if t.status == "ruined"]

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
        return float(8 * self.bytes_after / max(1, weights))

    @property
    def total_sqnr_db(self) -> float:
        """Of all values of the changed tensors together; -infinity if one is ruined."""
        return -math.inf if self.ruined else self.average_sqnr_db

    @property
    def average_sqnr_db(self) -> float:
        """The page's only average: of all values together of the changed tensors that are not
        ruined."""
        whole = [t for t in self.changed if t.status != "ruined"]
        noise, signal = (
            math.fsum(values) for values in ([t.noise for t in whole], [t.signal for t in whole])
        )
        return 10 * math.log10(signal / noise) if noise > 0 else math.inf

    def sqnr_db(self) -> dict[str, float]:
        """SQNR of each changed tensor whose values differ, by name; -infinity of ruined ones."""
        return {
            t.name: -math.inf if t.status == "ruined" else t.sqnr_db
            for t in self.changed
            if t.status != "equal"
        }

    def worst(self, count: int) -> list[TensorComparison]:
        """The changed tensors of the lowest SQNR, ruined ones left out."""
        differing = [t for t in self.changed if t.status == "differs"]
        return sorted(differing, key=lambda t: t.sqnr_db)[:count]

    def why_ruined(self) -> dict[str, str]:
        """What the SQNR of each ruined tensor is: "NaN" or "-inf", as the command line says."""
        return {t.name: "NaN" if math.isnan(t.sqnr_db) else "-inf" for t in self.ruined}


# What products multiply with, as `blockscale bench peaks` names it.
MULTIPLIERS = ("f32", "bf16", "int8", "tiles")


@dataclass(frozen=True)
class Product:
    """A measured product, and what bounds it."""

    name: str  # of the recipes
    shape: tuple[int, int, int]  # M, N, K
    threads: int
    seconds: float  # median
    bytes: int  # of A, B and D
    operations: int
    multiplier: str

    @property
    def intensity(self) -> float:
        return self.operations / self.bytes

    @property
    def gflops(self) -> float:
        return self.operations / self.seconds * 1e-9

    def bound(self, peaks: dict[str, float]) -> tuple[float, str]:
        """Seconds that it takes at least, and why."""
        read = self.bytes / peaks["read_bytes_per_second"]
        multiply = self.operations / peaks[self.multiplier]
        return max((read, "reading"), (multiply, self.multiplier))


def products(bench: dict[str, Any]) -> dict[int, tuple[dict[str, float], list[Product]]]:
    """By the number of threads of any: peaks, and the products of a result of `blockscale bench
    gemm` or `./dev bench gemm --torch`. Those of GPUs have no peaks."""
    found = {int(peaks["threads"]): (peaks, []) for peaks in bench["peaks"]}
    for shape in bench.get("shapes", [bench]):
        for case in shape["cases"]:
            product = Product(
                f"{case['recipe_a']} × {case['recipe_b']}",
                (shape["m"], shape["n"], shape["k"]),
                *(case[key] for key in ("threads", "median_seconds", "bytes", "operations")),
                case["multiplier"],
            )
            found[product.threads][1].append(product)
    return {threads: (peaks, some) for threads, (peaks, some) in found.items() if some}


def printable(name: str) -> str:
    """A name from a file, with what neither HTML nor SVG can show written as an escape."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in name
    )


def short_layer(name: str) -> str:
    """A tensor's name without what the layers of a model have in common."""
    name = re.sub(r"\.weight$", "", printable(name))
    name = re.sub(r"^(model\.|bert\.)?(language_model\.)?(encoder\.)?", "", name)
    return re.sub(r"^(layers?|blocks?|h)\.(?=\d)", "", name)


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sorts layer 2 before layer 10."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts]


def candidates(
    original: Path,
    converted: list[Path],
    threads: int,
    tensors: Sequence[str] = (),
    conversions: Sequence[Mapping[str, Any]] = (),
) -> list[Candidate]:
    """Compares each checkpoint with the original; the largest ones first.

    `tensors` are patterns of what is compared, `conversions` what convert's --json printed.

    Where some tensors were converted in every checkpoint, only these count, so that sizes compare;
    and the ruined ones.

    Raises:
        FileNotFoundError, OSError, ValueError: as `blockscale.compare`; ValueError also for a
            conversion to none of the checkpoints, or without searched scales.
    """
    made = _conversions(converted, conversions)
    reports = [compare(original, path, threads=threads, tensors=tensors) for path in converted]
    changed = [_changed(report) for report in reports]
    names = [{t.name for t in c} for c in changed if c]
    common = set.intersection(*names) if names else set()
    if common:
        changed = [[t for t in c if t.name in common or t.status == "ruined"] for c in changed]
    found = [
        Candidate(
            name,
            report,
            tuple(c),
            _histogram(original, path, [t.name for t in c]),
            _gains(how, {t.name for t in c}),
            how.get("scales") == "weighted",
        )
        for name, path, report, c, how in zip(
            _names(converted, changed, made), converted, reports, changed, made, strict=True
        )
    ]
    return sorted(found, key=lambda c: -c.bits_per_weight if c.changed else -math.inf)


def _conversions(
    converted: list[Path], conversions: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """What is known of how each checkpoint was made: the conversion to a folder of its name."""
    names = [path.resolve().name for path in converted]
    made: list[Mapping[str, Any]] = [{} for _ in names]
    for conversion in conversions:
        name = Path(str(conversion.get("destination", ""))).name
        if names.count(name) != 1:
            raise ValueError(f"conversion: is to {name!r}, must be to one of {', '.join(names)}")
        if all(tensor.get("error_ratio") is None for tensor in conversion.get("tensors", [])):
            raise ValueError(f"conversion: {name!r} was made without --scales mse or weighted")
        made[names.index(name)] = conversion
    return made


def _gains(conversion: Mapping[str, Any], names: set[str]) -> dict[str, float]:
    ratios = {t["name"]: t["error_ratio"] for t in conversion.get("tensors", [])}
    return {name: float(ratio) for name, ratio in ratios.items() if ratio and name in names}


def _changed(report: CompareReport) -> list[TensorComparison]:
    return sorted((t for t in report.tensors if t.converted), key=lambda t: natural_key(t.name))


def _names(
    converted: list[Path],
    changed: list[list[TensorComparison]],
    made: Sequence[Mapping[str, Any]],
) -> list[str]:
    """Each checkpoint's recipe, and the kind of its scales where they were searched; its folder's
    name or its path where that does not tell it apart."""
    recipes = ["+".join(dict.fromkeys(t.recipe_b for t in c)) for c in changed]
    kinds = [
        recipe and " ".join([recipe, *filter(None, [how.get("scales")])])
        for recipe, how in zip(recipes, made, strict=True)
    ]
    folders = [printable(path.resolve().name) for path in converted]
    for names in (kinds, folders):
        if all(names) and len(set(names)) == len(names):
            return names
    return [printable(str(path)) for path in converted]


def _rows(checkpoint: Checkpoint, name: str) -> np.ndarray | None:
    """Evenly spaced rows of a tensor, HISTOGRAM_VALUES in all or just above, in f64; None of types
    that numpy cannot read."""
    tensor, dtype = checkpoint[name], checkpoint.info(name).dtype
    values = np.atleast_1d(dequantize(tensor) if isinstance(tensor, ScaledTensor) else tensor)
    if values.size == 0 or (dtype.startswith("F8") and values.dtype == np.uint8):
        return None
    rows = values.reshape(-1, values.shape[-1])[:: max(1, values.size // HISTOGRAM_VALUES)]
    if dtype == "BF16" and rows.dtype.itemsize == 2:  # whether ml_dtypes is there or not
        rows = (rows.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return rows.astype(np.float64)


def _rms(values: np.ndarray) -> float:
    """Root mean square of what is finite; scaled, so that squares of f64 do not overflow."""
    finite = np.abs(values[np.isfinite(values)])
    largest = finite.max(initial=0.0)
    return float(largest * np.sqrt(np.mean(np.square(finite / largest)))) if largest > 0 else 0.0


def _histogram(original: Path, converted: Path, names: list[str]) -> Histogram | None:
    before, after = Checkpoint(original), Checkpoint(converted)
    relative = []
    for name in names:
        a, b = _rows(before, name), _rows(after, name)
        if a is None or b is None or (rms := _rms(a)) == 0:
            continue
        with np.errstate(invalid="ignore", over="ignore"):
            equal = (a == b) | (np.isnan(a) & np.isnan(b))
            relative.append(np.where(equal, 0, np.abs(a - b) / rms).ravel())
    errors = np.concatenate([[], *relative])
    finite = errors[np.isfinite(errors)]
    if finite.size == 0:
        return None
    return Histogram(
        shares=np.histogram(finite, BIN_EDGES)[0] / finite.size,
        median=float(np.median(finite)),
        exact=float(np.mean(finite == 0)),
        lost=1 - finite.size / errors.size,
    )
