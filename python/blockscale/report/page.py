"""The HTML page: text for a newcomer around the plots; no script, nothing fetched."""

from __future__ import annotations

import html
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import __version__
from . import data

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1c1c1e; background: #fff;
       max-width: 46rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
img { width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .3rem .7rem .3rem 0; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 2px solid #888; } tbody td { border-bottom: 1px solid #ddd; }
footer { margin-top: 3rem; color: #666; font-size: .85rem; }
"""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(f"<th scope='col'>{html.escape(h)}</th>" for h in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f"<div class='scroll'><table><thead><tr>{cells}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _section(title: str, text: str, uri: str, alternative: str) -> str:
    return (
        f"<h2>{html.escape(title)}</h2><p>{html.escape(text)}</p>"
        f"<img src='{uri}' alt='{html.escape(alternative, quote=True)}'>"
    )


def _summary(candidates: list[data.Candidate]) -> str:
    rows = []
    for c in candidates:
        ordered = sorted(c.layer_sqnr_db)
        rows.append(
            [
                c.name,
                ", ".join(c.recipes),
                f"{c.original_bytes / 1e6:.1f}",
                f"{c.quantized_bytes / 1e6:.1f}",
                f"{c.ratio:.2f} x",
                f"{ordered[0]:.1f}",
                f"{ordered[len(ordered) // 2]:.1f}",
            ]
        )
    head = ["checkpoint", "recipe", "before MB", "after MB", "smaller", "worst dB", "median dB"]
    return _table(head, rows)


def _embedding_table(rows: list[dict[str, Any]]) -> str:
    return _table(
        ["weights-activations", "cosine", "worst", "ranking", "weights MB", "sentences/s"],
        [
            [
                str(r["name"]),
                f"{r['cosine_mean']:.5f}",
                f"{r['cosine_min']:.5f}",
                f"{r['rank_correlation']:.5f}",
                f"{r['weight_bytes'] / 1e6:.2f}",
                f"{r['sentences_per_second']:.0f}",
            ]
            for r in rows
        ],
    )


def _body(
    title: str,
    original: Path,
    candidates: list[data.Candidate],
    embedding: list[dict[str, Any]],
    bench: list[dict[str, Any]],
) -> str:
    from . import plots  # matplotlib is an extra: only a report needs it

    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>The linear layers of <b>{html.escape(original.name)}</b> were stored in smaller "
        "number formats. Each small block of weights shares a scale, so a weight needs only 4 to "
        "8 bits. The table counts the layers that were converted; everything else was kept as it "
        "was.</p>",
        _summary(candidates),
        "<p><b>dB</b> is the signal-to-quantisation-noise ratio (SQNR): how much larger the "
        "weights are than the error that rounding them made. 20 dB means that the error is a "
        "tenth of the weights (root mean square), 40 dB a hundredth; higher is better.</p>",
        _section(
            "Size against accuracy",
            "Each point is one converted checkpoint. Left is smaller, up is more accurate.",
            plots.size_against_accuracy(candidates),
            "Scatter plot of megabytes against SQNR",
        ),
        _section(
            "Accuracy layer by layer",
            "SQNR of each converted layer. A layer far to the left of the others suffers most, "
            "and is a candidate to be kept in a larger format (--map or --exclude).",
            plots.sqnr_by_layer(candidates),
            "SQNR of each layer",
        ),
        _section(
            "How large the errors are",
            "Weights by the size of their error, relative to the typical (root mean square) "
            "weight of their tensor. Exact weights are not drawn.",
            plots.error_histograms(candidates),
            "Histogram of errors",
        ),
    ]
    if embedding:
        parts.append(
            _section(
                "What the model makes of it",
                "The whole model was run on pairs of sentences with weights and activations in "
                "these formats (W4A8: 4-bit weights, 8-bit activations). The cosine says how "
                "close each sentence's embedding stays to the one computed in f32 (1 is equal), "
                "the ranking how well the order of the pairs' similarities is kept (Spearman's "
                "correlation).",
                plots.embedding_loss(embedding),
                "Loss of cosine by recipe",
            )
        )
        parts.append(_embedding_table(embedding))
    if bench:
        parts.append(
            _section(
                "How fast quantising is",
                "Bytes read and written a second, relative to copying memory on the same machine.",
                plots.quantise_rates(bench),
                "Speed of quantisation by recipe",
            )
        )
    parts.append(f"<footer>Made by blockscale {html.escape(__version__)}.</footer>")
    return "\n".join(parts)


def write_report(
    original: str | os.PathLike[str],
    converted: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    title: str = "What block scaling costs and saves",
    embedding: list[dict[str, Any]] | None = None,
    bench: list[dict[str, Any]] | None = None,
    threads: int = 0,
) -> None:
    """Writes one self-contained HTML file; whole or not at all.

    Args:
        original: the reference checkpoint.
        converted: checkpoints made from it.
        output: the file.
        title: heading of the page.
        embedding: rows of `examples/sentence_embedding.py --json`.
        bench: rows of `blockscale bench quantize --json`.
        threads: for comparing; 0: all.

    Raises:
        ImportError: matplotlib is missing (pip install 'blockscale[report]').
        OSError, ValueError: a checkpoint or the output cannot be read or written.
    """
    candidates = [data.candidate(Path(original), Path(path), threads) for path in converted]
    body = _body(title, Path(original).resolve(), candidates, embedding or [], bench or [])
    page = (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )
    _write_whole(Path(output), page)


def _write_whole(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
