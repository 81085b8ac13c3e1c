"""The plots of a report: SVG that reads at the width of a phone, and without seeing colours."""

from __future__ import annotations

import base64
import io
import math
import warnings
from collections.abc import Callable, Sequence
from colorsys import hls_to_rgb
from functools import wraps
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogFormatterMathtext, NullFormatter

from .data import BIN_EDGES, MULTIPLIERS, Candidate, Product, natural_key, short_layer

WIDTH = 4.7  # inches: text of STYLE's size stays legible when the page is 390 pixels wide
STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "text.parse_math": False,  # names of tensors and folders may hold `$`
    "svg.hashsalt": "blockscale",
    "svg.fonttype": "none",  # text stays text: a third of the size
    "font.sans-serif": ["DejaVu Sans", "Arial", "Helvetica", "sans-serif"],
}
# Of Okabe and Ito's palette, told apart in every common form of colour blindness.
BLUE, ORANGE = "#0072b2", "#e69f00"
PALETTE = [BLUE, ORANGE, "#009e73", "#cc79a7", "#56b4e9", "#000000"]
RED = "#b00020"  # of what is ruined, and of nothing else
MARKERS = "osD^v*PX<>"
LAYERS_SHOWN = 60
LOSS_DB = 3.0
LOW_DB = 1.0  # below the average by so much, a layer is highlighted
DB_PER_BIT = 6.02  # what one more bit gains while the error halves: 20 log10(2)


def _styled(**changes: Any) -> Callable[[Callable[..., str]], Callable[..., str]]:
    """Draws with STYLE and `changes` to it."""

    def decorate(plot: Callable[..., str]) -> Callable[..., str]:
        @wraps(plot)
        def styled(*arguments: Any) -> str:
            with plt.rc_context(STYLE | changes):
                return plot(*arguments)

        return styled

    return decorate


def data_uri(figure: Figure) -> str:
    """The figure as a data URI, the same bytes for the same data."""
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            # Powers as matplotlib writes them are mathematical text, which STYLE leaves as it is.
            if isinstance(axis.get_major_formatter(), LogFormatterMathtext):
                axis.set_major_formatter("{x:g}")
                axis.set_minor_formatter(NullFormatter())
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # The browser has fonts for what matplotlib has none.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(
            buffer, format="svg", bbox_inches="tight", pad_inches=0.04, metadata={"Date": None}
        )
    plt.close(figure)
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()


def colours(count: int) -> list[str]:
    """As many colours, none like another or RED: beyond PALETTE, hues but reds, in turns of three
    lightnesses."""
    if count <= len(PALETTE):
        return PALETTE[:count]
    shades = [(0.7, 0.8), (0.25, 0.9), (0.5, 0.75)]  # lightness, saturation
    hues = [0.07 + 0.86 * i / (count - 1) for i in range(count)]
    return [to_hex(hls_to_rgb(hue, *shades[i % 3])) for i, hue in enumerate(hues)]


def percent(value: float) -> str:
    """A share as "0.01 %", "3 %", "100 %"."""
    return f"{100 * value:.3g} %"


@_styled()
def size_against_accuracy(candidates: Sequence[Candidate]) -> str:
    """Bits a weight against the SQNR of them all; one point a checkpoint, ruined ones at 0."""
    figure, axes = plt.subplots(figsize=(WIDTH, 3.2))
    labels = []
    palette = colours(len(candidates))
    for index, candidate in enumerate(candidates):
        ruined = bool(candidate.ruined)
        axes.plot(
            candidate.bits_per_weight,
            candidate.total_sqnr_db if math.isfinite(candidate.total_sqnr_db) else 0,
            linestyle="none",
            marker="X" if ruined else MARKERS[index % len(MARKERS)],
            color=RED if ruined else palette[index],
            markerfacecolor=RED if ruined else "none",
            markeredgewidth=2,
            markersize=10,
            clip_on=False,
        )
        labels.append(candidate.name + (" (ruined)" if ruined else ""))
    most = 1.1 * max(candidate.bits_per_weight for candidate in candidates)
    lowest, best = axes.dataLim.y0, axes.dataLim.y1
    axes.plot([0, most], [0, DB_PER_BIT * most], color="#888888", linestyle=":")
    axes.set_xlim(0, most)
    axes.set_ylim(min(0, 1.25 * lowest), 1.25 * best if best > 0 else DB_PER_BIT * most)
    axes.set_xlabel("bits per weight, scales included (← smaller)")
    axes.set_ylabel("SQNR, dB (↑ better)")
    legend = figure.legend(
        axes.lines,
        [str(index) for index in range(len(axes.lines))],
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        ncols=2,
        fontsize=9,
        handletextpad=0.2,
    )
    # A label that starts with `_` would be left out: the names are set afterwards.
    for text, label in zip(legend.get_texts(), [*labels, "6 dB a bit"], strict=True):
        text.set_text(label)
    return data_uri(figure)


def layers_to_show(candidates: Sequence[Candidate]) -> list[str]:
    """The changed layers, ruined ones first, in the model's order; of very many the worst."""
    worst: dict[str, float] = {}
    for candidate in candidates:
        for name, sqnr_db in candidate.sqnr_db().items():
            worst[name] = min(sqnr_db, worst.get(name, sqnr_db))
    chosen = sorted(worst, key=lambda name: worst[name])[:LAYERS_SHOWN]
    return sorted(chosen, key=lambda name: (worst[name] > -math.inf, natural_key(name)))


@_styled()
def sqnr_of_layers(candidate: Candidate) -> str:
    """SQNR in dB of each layer of one checkpoint, and their average as a line; those below it by
    LOW_DB highlighted."""
    sqnr_db, why_ruined = candidate.sqnr_db(), candidate.why_ruined()
    layers = layers_to_show([candidate])
    average = candidate.average_sqnr_db
    return _bars(
        [short_layer(name) for name in layers],
        [0 if name in why_ruined else sqnr_db[name] for name in layers],
        "SQNR, dB (→ better)",
        [
            f"ruined: {why_ruined[name]}" if name in why_ruined else f"{sqnr_db[name]:.1f}"
            for name in layers
        ],
        [
            RED if name in why_ruined else ORANGE if sqnr_db[name] <= average - LOW_DB else BLUE
            for name in layers
        ],
        line=average,
    )


@_styled()
def gains_of_layers(candidate: Candidate) -> str:
    """What is left of the squared error of min-max scales in each layer whose scales were searched;
    of very many those that gained least."""
    gains = candidate.gains
    chosen = sorted(sorted(gains, key=lambda name: -gains[name])[:LAYERS_SHOWN], key=natural_key)
    return _bars(
        [short_layer(name) for name in chosen],
        [100 * gains[name] for name in chosen],
        "squared error, in % of that of min-max scales (← better)",
        [f"{100 * gains[name]:.1f}" for name in chosen],
        [BLUE] * len(chosen),
    )


def loss_span(candidates: Sequence[Candidate]) -> float:
    """How far colours of sqnr_by_layer reach: to the layer that is furthest from its checkpoint's
    average, within 0.5 dB and LOSS_DB."""
    differences = [
        abs(value - c.average_sqnr_db)
        for c in candidates
        for value in c.sqnr_db().values()
        if math.isfinite(value)
    ]
    return min(LOSS_DB, max(0.5, *differences, 0.0))


@_styled(**{"axes.grid": False})
def sqnr_by_layer(candidates: Sequence[Candidate]) -> str:
    """A table of SQNRs in dB, one row a layer, one column a checkpoint.

    Colour is the difference from the column's average, black to yellow over
    loss_span in either direction; red is what is ruined.
    """
    layers = layers_to_show(candidates)
    figure, axes = plt.subplots(figsize=(WIDTH, 0.21 * len(layers) + 0.9))
    average = [c.average_sqnr_db for c in candidates]
    table = [[c.sqnr_db().get(name, math.nan) for c in candidates] for name in layers]
    loss = [[value - mean for value, mean in zip(row, average, strict=True)] for row in table]
    span = loss_span(candidates)
    cells = axes.pcolormesh(loss, cmap="cividis", vmin=-span, vmax=span, edgecolor="white")
    colours = cells.cmap(cells.norm(loss))
    why_ruined = [c.why_ruined() for c in candidates]
    for row, name in enumerate(layers):
        for column, value in enumerate(table[row]):
            why = why_ruined[column].get(name)
            dark = why is not None or loss[row][column] < span / 4
            if why is not None:
                colours[row, column] = to_rgba(RED)
            text = why or ("–" if math.isnan(value) else f"{value:.1f}")
            axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=7.5,
                      color="white" if dark else "black")  # fmt: skip
    cells.set(array=None, facecolor=colours.reshape(-1, 4))
    axes.set_yticks([i + 0.5 for i in range(len(layers))], map(short_layer, layers), fontsize=7.5)
    axes.set_xticks([i + 0.5 for i in range(len(candidates))], [c.name for c in candidates],
                    rotation=50, ha="left", rotation_mode="anchor", fontsize=8)  # fmt: skip
    axes.xaxis.tick_top()
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return data_uri(figure)


@_styled()
def error_histograms(candidates: Sequence[Candidate]) -> str:
    """Errors of single weights, one strip a checkpoint, on one axis."""
    figure, strips = plt.subplots(
        len(candidates), 1, sharex=True, squeeze=False, figsize=(WIDTH, 0.75 * len(candidates) + 1)
    )
    for axes, candidate in zip(strips[:, 0], candidates, strict=True):
        histogram = candidate.histogram
        assert histogram is not None, "only checkpoints with changed values are plotted"
        axes.stairs(histogram.shares, BIN_EDGES, fill=True, color=BLUE)
        if histogram.median > BIN_EDGES[0]:
            axes.axvline(histogram.median, color=ORANGE, linewidth=2)
        axes.set_xscale("log")
        axes.set_xlim(BIN_EDGES[0], 2)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        note = f"{candidate.name}\nmedian {percent(histogram.median)}"
        if histogram.exact >= 0.005:
            note += f"\n{histogram.exact:.0%} exact"
        if histogram.lost > 0:
            note += f"\n{percent(histogram.lost)} NaN or infinite"
        side = {"x": 1, "ha": "right"} if histogram.median < 1e-3 else {"x": 0, "ha": "left"}
        axes.text(s=note, y=0.95, va="top", transform=axes.transAxes, fontsize=8.5, **side)
    last = strips[-1, 0]
    last.xaxis.set_major_formatter(FuncFormatter(lambda value, _: percent(value)))
    last.set_xlabel("error of a weight, in % of its tensor's root mean square (← better)")
    return data_uri(figure)


def _bars(
    names: Sequence[str],
    values: Sequence[float],
    label: str,
    texts: Sequence[str],
    colours: Sequence[str],
    line: float | None = None,
) -> str:
    figure, axes = plt.subplots(figsize=(WIDTH, 0.26 * len(names) + 0.7))
    bars = axes.barh(range(len(names)), values, color=colours, height=0.72)
    shown = axes.bar_label(bars, texts, padding=3, fontsize=8.5)
    axes.set_yticks(range(len(names)), names, fontsize=8.5)
    for text, name, colour in zip(shown, axes.get_yticklabels(), colours, strict=True):
        if colour == RED:
            text.set_color(RED)
            name.set_color(RED)
    if line is not None and math.isfinite(line):
        axes.axvline(line, color="#555555", linestyle=":", label="average")
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(min(0, *values), 1.15 * max(1e-9, *values))
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(label)
    return data_uri(figure)


@_styled()
def embedding_loss(rows: Sequence[dict[str, Any]]) -> str:
    """1 - cosine with f32's sentence embeddings: mean as a dot, worst sentence as a line's end."""
    figure, axes = plt.subplots(figsize=(WIDTH, 0.24 * len(rows) + 1))
    for place, row in enumerate(rows):
        lost = [1.0 - float(row[key]) for key in ("cosine_mean", "cosine_min")]
        if any(map(math.isnan, lost)):
            axes.text(0.5, place, "ruined: NaN", color=RED, fontsize=8.5, ha="center", va="center",
                      transform=axes.get_yaxis_transform())  # fmt: skip
            continue
        mean, worst = (max(value, 1e-7) for value in lost)
        axes.plot([mean, worst], [place, place], color=BLUE, linewidth=1.5)
        axes.plot(worst, place, marker="|", color=BLUE, markersize=9)
        axes.plot(mean, place, marker="o", color=ORANGE, markersize=7)
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [str(row["name"]) for row in rows], fontsize=8.5)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("1 − cosine with f32's embedding (← better, log scale)")
    handles = [
        plt.Line2D([], [], marker="o", linestyle="none", color=ORANGE, label="mean"),
        plt.Line2D([], [], marker="|", markersize=9, color=BLUE, label="worst sentence"),
    ]
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=9)
    return data_uri(figure)


@_styled()
def quantize_rates(cases: Sequence[dict[str, Any]]) -> str:
    """Bytes read and written a second by quantizing, relative to memcpy's."""
    shares = [float(case["memcpy_share"]) for case in cases]
    names = [str(case["recipe"]) for case in cases]
    label = "rate of quantizing, in % of memcpy's (→ better)"
    return _bars(
        names,
        [100 * s for s in shares],
        label,
        [f"{100 * s:.0f} %" for s in shares],
        [BLUE] * len(names),
    )


@_styled()
def rooflines(points: Sequence[Product], peaks: dict[str, float]) -> str:
    """GFLOP/s of products over the operations that each byte of them takes, under the rooflines.

    `peaks`: bytes a second that are read, and operations a second by multiplier (0: there is none).
    """
    figure, axes = plt.subplots(figsize=(WIDTH, 3.6))
    read = peaks["read_bytes_per_second"]
    roofs = {name: peaks[name] for name in MULTIPLIERS if peaks.get(name)}
    intensities = [point.intensity for point in points]
    left, right = min(intensities) / 2, max([2 * rate / read for rate in roofs.values()])
    right = max(right, 2 * max(intensities))
    for name, rate in roofs.items():
        ridge = rate / read
        axes.plot([left, ridge, right], [left * read * 1e-9, rate * 1e-9, rate * 1e-9],
                  color="#888888", linewidth=1, zorder=1)  # fmt: skip
        axes.annotate(f"{name} {rate * 1e-9:.0f}", (right, rate * 1e-9), fontsize=8, ha="right",
                      va="bottom")  # fmt: skip
    axes.annotate(f"{read * 1e-9:.0f} GB/s", (left * 1.1, left * read * 1.5e-9), fontsize=8)
    groups: dict[str, list[Product]] = {}
    for point in points:
        groups.setdefault(point.name, []).append(point)
    for index, (group, colour) in enumerate(
        zip(groups.values(), colours(len(groups)), strict=True)
    ):
        axes.plot(
            [point.intensity for point in group],
            [point.gflops for point in group],
            linestyle="none",
            marker=MARKERS[index % len(MARKERS)],
            color=colour,
            markerfacecolor="none",
            markersize=7,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations for each byte of A, B and D")
    axes.set_ylabel("GFLOP/s (↑ better)")
    figure.legend(
        axes.lines[len(roofs) :],
        list(groups),
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        ncols=2,
        fontsize=8.5,
        handletextpad=0.2,
    )
    return data_uri(figure)
