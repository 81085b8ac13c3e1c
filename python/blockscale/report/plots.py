"""The plots of a report, each one an SVG that reads well at the width of a phone."""

from __future__ import annotations

import base64
import io
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from .data import BIN_EDGES, Candidate, short_layer

STYLE = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "svg.hashsalt": "blockscale",
}
COLOURS = plt.get_cmap("tab10").colors
MARKERS = "osD^vP*X<>"


def data_uri(figure: Figure) -> str:
    """The figure as a data URI, the same bytes for the same data."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()


def _style(index: int) -> dict[str, Any]:
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}


def _legend_above(axes: Any, columns: int = 2) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.01), ncols=columns, fontsize=10)


def sqnr_by_layer(candidates: list[Candidate]) -> str:
    """Signal to quantisation noise of each layer; one line a checkpoint, upwards is better."""
    layers = candidates[0].layers
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6, max(4.0, 0.19 * len(layers) + 1.5)))
        for index, candidate in enumerate(candidates):
            places = [layers.index(n) for n in candidate.layers if n in layers]
            values = [
                v for n, v in zip(candidate.layers, candidate.layer_sqnr_db, strict=True)
                if n in layers
            ]  # fmt: skip
            axes.plot(values, places, linestyle="none", markersize=5, label=candidate.name,
                      **_style(index))  # fmt: skip
        axes.set_yticks(range(len(layers)), [short_layer(n) for n in layers], fontsize=8)
        axes.set_ylim(len(layers) - 0.5, -0.5)
        axes.set_xlabel("SQNR in dB (further right: closer to the original)")
        _legend_above(axes)
        return data_uri(figure)


def size_against_accuracy(candidates: list[Candidate]) -> str:
    """Bits a weight against SQNR over all quantised tensors."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6, 4.2))
        for index, candidate in enumerate(candidates):
            mean = sum(candidate.layer_sqnr_db) / len(candidate.layer_sqnr_db)
            megabytes = candidate.quantized_bytes / 1e6
            axes.plot(megabytes, mean, linestyle="none", markersize=9, label=candidate.name,
                      **_style(index))  # fmt: skip
        axes.set_xlim(left=0)
        axes.set_xlabel("quantised weights, MB (further left: smaller)")
        axes.set_ylabel("mean SQNR of layers, dB")
        _legend_above(axes)
        return data_uri(figure)


def error_histograms(candidates: list[Candidate]) -> str:
    """Share of weights by the size of their error, in units of the tensor's rms."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6, 4.2))
        for index, candidate in enumerate(candidates):
            axes.stairs(100 * candidate.histogram, BIN_EDGES, label=candidate.name, linewidth=1.6,
                        color=COLOURS[index % len(COLOURS)])  # fmt: skip
        axes.set_xscale("log")
        axes.set_xlabel("error of a weight / rms of its tensor (further left: smaller)")
        axes.set_ylabel("share of weights, %")
        _legend_above(axes)
        return data_uri(figure)


def _bars(names: list[str], values: list[float], label: str, log: bool = False) -> str:
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6, 0.28 * len(names) + 1.0))
        axes.barh(range(len(names)), values, color=COLOURS[0], height=0.7)
        axes.set_yticks(range(len(names)), names, fontsize=9)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
        if log:
            axes.set_xscale("log")
        axes.set_xlabel(label)
        return data_uri(figure)


def embedding_loss(rows: list[dict[str, Any]]) -> str:
    """1 - cosine with f32's sentence embeddings, of each pair of recipes."""
    shown = [row for row in rows if row["weight"] != "f32"]
    loss = [max(1.0 - float(row["cosine_mean"]), 1e-7) for row in shown]
    label = "1 - cosine with f32's embedding (shorter: closer; log scale)"
    return _bars([str(row["name"]) for row in shown], loss, label, log=True)


def quantise_rates(rows: list[dict[str, Any]]) -> str:
    """Speed of quantisation of each recipe as a share of memcpy's."""
    names = [f"{row['recipe']} from {row['dtype']}" for row in rows]
    shares = [float(row["share_of_memcpy"]) for row in rows]
    return _bars(names, shares, "quantising, share of memcpy's rate (bytes read + written)")
