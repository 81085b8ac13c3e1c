"""The HTML page: text for a newcomer around the plots; no script, nothing fetched."""

from __future__ import annotations

import html
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import __version__
from . import data

TITLE = "What smaller number formats save and cost"

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1c1c1e; background: #fff;
       max-width: 42rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .3rem; }
p { margin: .5rem 0; }
img { display: block; width: 100%; max-width: 38rem; height: auto; margin: .6rem 0; }
.scroll { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .85rem; }
th, td { padding: .25rem 0 .25rem .8rem; text-align: right; overflow-wrap: normal; }
td { white-space: nowrap; }
th { vertical-align: bottom; line-height: 1.2; }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: normal;
                                 min-width: 6.5rem; }
thead th { border-bottom: 2px solid #888; } tbody td { border-bottom: 1px solid #ddd; }
.ruined { color: #b00020; font-weight: 600; }
dt { font-weight: 600; margin-top: .5rem; } dd { margin: 0 0 0 1rem; }
@media (max-width: 30rem) {
  body { padding: .75rem; }
  table { font-size: .75rem; } th, td { padding-left: .3rem; }
  th:first-child, td:first-child { min-width: 5rem; }
}
footer { margin-top: 3rem; color: #555; font-size: .85rem; }
"""

_WORDS = {
    "Weight": "One number of a matrix that the model multiplies with.",
    "Bits per weight": "Storage for one weight, its share of the scales included. f32 takes 32.",
    "Recipe": "A number format with the scales that go with it. mxfp4 and nvfp4 keep a weight in 4 "
    "bits, mxfp6 in 6, mxfp8 and fp8 in 8. A block of weights (16, 32, 128, a row or the whole "
    "matrix) shares one scale, which brings the block into the range of so few bits.",
    "SQNR, in dB": "Signal-to-quantization-noise ratio: how much larger the weights are than the "
    "error that rounding made. Higher is better. At 20 dB the error is a tenth of the weights "
    "(root mean square), at 40 dB a hundredth; 6 dB are one bit.",
    "Average": "On this page always that of all weights together: their squared errors against "
    "their squares, ruined layers left out. It is no mean of the layers' SQNR.",
    "Ruined": "A layer that is NaN or infinite where the original is not, or the other way round "
    "(its SQNR is NaN, or -inf), or that has values where the original has only zeros (-inf).",
}
# Of very many ruined layers, so many are named.
RUINED_SHOWN = 200
# Rows of the table of the worst layers, over all checkpoints; at least one of each.
WORST_SHOWN = 10


def _escape(text: str) -> str:
    return html.escape(text, quote=True)


def _table(
    head: Sequence[str], rows: Sequence[Sequence[str]], ruined: Sequence[bool] | None = None
) -> str:
    """Rows that are `ruined` are red."""
    cells = "".join(f"<th scope='col'>{_escape(h)}</th>" for h in head)
    body = "".join(
        ("<tr class='ruined'>" if red else "<tr>")
        + "".join(f"<td>{_escape(cell)}</td>" for cell in row)
        + "</tr>"
        for row, red in zip(rows, ruined or [False] * len(rows), strict=True)
    )
    return (
        f"<div class='scroll'><table><thead><tr>{cells}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _section(title: str, text: str, uri: str, alternative: str) -> str:
    return (
        f"<h2>{_escape(title)}</h2><p>{_escape(text)}</p>"
        f"<img src='{uri}' alt='{_escape(alternative)}'>"
    )


def _glossary() -> str:
    entries = "".join(f"<dt>{_escape(w)}</dt><dd>{_escape(t)}</dd>" for w, t in _WORDS.items())
    return f"<h2>Words used here</h2><dl>{entries}</dl>"


def _megabytes(count: float) -> str:
    return f"{count / 1e6:.2f}" if count < 1e8 else f"{count / 1e6:.0f}"


def _ruined(candidates: Sequence[data.Candidate]) -> list[str]:
    """What a reader must see before anything else; nothing if all is well."""
    rows = [
        [data.printable(t.name), c.name, f"{t.recipe_a} → {t.recipe_b}", c.why_ruined()[t.name]]
        for c in candidates
        for t in c.ruined
    ]
    if not rows:
        return []
    count = f"{len(rows)} layer{'s are' if len(rows) > 1 else ' is'} ruined"
    text = "NaN or infinity on one side only, or values where the original has only zeros."
    if len(rows) > RUINED_SHOWN:
        text += f" The first {RUINED_SHOWN} are listed."
    rows = rows[:RUINED_SHOWN]
    return [
        f"<h2 class='ruined'>{count}</h2><p>{text}</p>",
        _table(["layer", "checkpoint", "stored as", "SQNR"], rows, [True] * len(rows)),
    ]


def _worst(candidates: Sequence[data.Candidate]) -> list[str]:
    """The layers that lost most, by name, those of each checkpoint together."""
    each = max(1, min(5, WORST_SHOWN // max(1, len(candidates))))
    rows = [
        [
            data.printable(t.name),
            c.name,
            f"{t.recipe_a} → {t.recipe_b}",
            f"{t.sqnr_db:.2f}",
            f"{t.sqnr_db - c.average_sqnr_db:+.2f}",
        ]
        for c in candidates
        for t in c.worst(each)
    ]
    if not rows:
        return []
    text = "blockscale convert --exclude keeps a layer as it is, --map gives it another recipe."
    head = ["layer", "checkpoint", "stored as", "SQNR, dB", "than average"]
    title = "The layers that lost most" if len(rows) > 1 else "The layer that lost most"
    return [f"<h2>{title}</h2><p>{text}</p>", _table(head, rows)]


def _gains(candidate: data.Candidate) -> str:
    from . import plots

    ratios = candidate.gains
    least, most = max(ratios, key=lambda n: ratios[n]), min(ratios, key=lambda n: ratios[n])
    weights = " weighted by how large each input channel is" if candidate.weighted else ""
    count = f"{len(ratios)} layers" if len(ratios) > 1 else "1 layer"
    some = f" Shown are the {plots.LAYERS_SHOWN} that gained least." * (
        len(ratios) > plots.LAYERS_SHOWN
    )
    return _section(
        f"What searched scales gained in {candidate.name}",
        f"Squared errors{weights} of {count}, in percent of what scales from each block's largest "
        f"magnitude (min-max) leave: {100 * ratios[most]:.1f} in {data.printable(most)} (most "
        f"gained) to {100 * ratios[least]:.1f} in {data.printable(least)} (least).{some}",
        plots.gains_of_layers(candidate),
        f"Squared error of each layer against min-max scales in {candidate.name}",
    )


def _sqnr(value: float) -> str:
    return {math.inf: "equal", -math.inf: "ruined"}.get(value, f"{value:.2f}")


def _summary(candidates: Sequence[data.Candidate]) -> str:
    rows = []
    for c in candidates:
        if not c.changed:
            equal = "equal" if c.report.total.status == "equal" else "not compared"
            rows.append([c.name, *["–"] * 3, equal, equal])
            continue
        rows.append(
            [
                c.name,
                f"{c.bits_per_weight:.2f}",
                _megabytes(c.bytes_after),
                f"{c.bytes_before / max(1, c.bytes_after):.2f} ×",
                _sqnr(c.total_sqnr_db),
                _sqnr(min(c.sqnr_db().values(), default=math.inf)),
            ]
        )
    head = ["checkpoint", "bits per weight", "MB", "smaller", "SQNR, dB", "SQNR of worst layer"]
    return _table(head, rows, [bool(c.ruined) for c in candidates])


def _counted(candidates: Sequence[data.Candidate]) -> str:
    """What the table counts, and what it leaves out."""
    most = max(candidates, key=lambda c: len(c.changed))
    count, several = len(most.changed), len(candidates) > 1
    text = f"Counted {'is' if count == 1 else 'are'} only the {count} converted tensor"
    text += "s" * (count != 1) + " (of another recipe or dtype, or with other values"
    text += "; where there are such, those that every checkpoint converted)" if several else ")"
    if most.changed:
        text += f", {_megabytes(most.bytes_before)} MB in the original"
    text += f", of {len(most.report.tensors)} in both. SQNR is their average."
    skipped = sum(t.status == "not_compared" for t in most.report.tensors)
    if skipped:
        text += f" {skipped} could not be compared: their dtypes cannot be read as numbers."
    for names, what in (
        (most.report.only_a, "only in the original"),
        (most.report.only_b, f"only in {most.name}"),
        (most.report.different_shape, "in both but of different shapes"),
    ):
        if names:
            text += f" {len(names)} are {what}, and count nowhere."
    return f"<p>{_escape(text)}</p>"


def _weight_sections(candidates: Sequence[data.Candidate]) -> list[str]:
    from . import plots  # matplotlib is an extra: only a report needs it

    best = " The best are at the top left." if len(candidates) > 1 else ""
    parts = [
        _section(
            "Size against accuracy",
            "Each point is one checkpoint: further left is smaller, further up more accurate. The "
            f"dotted line is what each bit buys where it halves the error.{best}",
            plots.size_against_accuracy(candidates),
            "Bits per weight against SQNR, one point a checkpoint",
        )
    ]
    shown = len(plots.layers_to_show(candidates))
    measured = [c for c in candidates if c.histogram is not None]
    total = len({name for c in candidates for name in c.sqnr_db()})
    some = f" Shown are the {shown} of {total} that lost most." if shown < total else ""
    if len(candidates) == 1:
        text = "SQNR of each layer's weights. Dotted: the average. Orange: 1 dB or more below it."
        if candidates[0].ruined:
            text += " Red: ruined ones."
        uri = plots.sqnr_of_layers(candidates[0])
    else:
        text = (
            "SQNR in dB of each layer's weights; higher is better. Dark cells are layers that lost "
            f"more than their checkpoint's average (black: {plots.loss_span(candidates):.2g} dB), "
            "bright ones less."
        )
        if any(c.ruined for c in candidates):
            text += " Red cells are ruined layers."
        uri = plots.sqnr_by_layer(candidates)
    parts.append(
        _section(
            "Accuracy layer by layer",
            f"{text}{some}",
            uri,
            "SQNR of each layer in each checkpoint",
        )
    )
    if measured:
        parts.append(
            _section(
                "How large the errors are",
                "How many weights (height) have an error of which size (from left to right, on a "
                "logarithmic scale), relative to the root mean square of their tensor's "
                "weights. The orange line is the median: half of the weights err less.",
                plots.error_histograms(measured),
                "Histogram of the errors of single weights in each checkpoint",
            )
        )
    return parts


_EMBEDDING_TEXT = (
    "Errors of weights matter as far as the model's answers change. Here the whole model turned "
    "{sentences} sentences into embeddings (vectors whose cosine says how alike two sentences "
    "are), with weights W and activations A in few bits: W4A8 is 4-bit weights times 8-bit "
    "activations, A16 activations in bf16. The plot shows how far the embeddings moved from those "
    "of the f32 model; 0.01 means a cosine of 0.99 between the two."
)
_EMBEDDING_COLUMNS = (
    "Cosine: with f32's embedding of the same sentence, 1 is equal. Ranking: Spearman's "
    "correlation with f32's ranking of {pairs} sentence pairs by similarity, 1 is the same order. "
    "MB: of the linear layers that ran. Per second: sentences on this CPU."
)


def _embedding_sections(rows: Sequence[dict[str, Any]]) -> list[str]:
    from . import plots

    pairs = int(rows[0]["sentence_pairs"])
    table = _table(
        ["weights and activations", "cosine", "worst", "ranking", "MB", "per second"],
        [
            [
                str(r["name"]),
                f"{r['cosine_mean']:.4f}",
                f"{r['cosine_min']:.4f}",
                f"{r['rank_correlation']:.4f}",
                _megabytes(r["weight_bytes"]),
                f"{r['sentences_per_second']:.0f}",
            ]
            for r in rows
        ],
    )
    quantized = [row for row in rows if row["weight"] != "f32"]
    return [
        _section(
            "What the model makes of it",
            _EMBEDDING_TEXT.format(sentences=2 * pairs),
            plots.embedding_loss(quantized),
            "Loss of cosine of the sentence embeddings by recipe",
        ),
        table,
        f"<p>{_escape(_EMBEDDING_COLUMNS.format(pairs=pairs))}</p>",
    ]


def _threads(bench: dict[str, Any]) -> str:
    return f"on {bench['threads']} thread{'s' * (bench['threads'] != 1)} of this CPU"


def _bench_section(bench: dict[str, Any]) -> str:
    from . import plots

    if "peaks" in bench and ("cases" in bench or "shapes" in bench):
        return _roofline_section(bench)
    cases = bench.get("cases") or [{}]
    if "memcpy_share" not in cases[0] or "transform" not in cases[0]:
        raise ValueError("bench: is no result of `bench quantize` or `bench gemm` on a CPU")
    return _section(
        "How fast quantizing is",
        f"Bytes read and written a second while a {bench['rows']} × {bench['k']} matrix is "
        f"quantized from {cases[0]['dtype']} {_threads(cases[0])}, in percent of what "
        "memcpy copies: nothing that reads and writes as much can be much faster than 100 %.",
        plots.quantize_rates(cases),
        "Rate of quantizing by recipe",
    )


_ROOFLINE_TEXT = (
    "A product reads its operands and writes its result, and multiplies: no faster than memory is "
    "read here and than {threads} of this CPU multipl{ies} f32, pairs of bf16, or bytes. These are "
    "the grey lines, its rooflines; a point is a product, the further right the more rows share "
    "a weight. The last column is the time of what bounds it over its own."
)


def _roofline_section(bench: dict[str, Any]) -> str:
    from . import plots

    parts = []
    for threads, (peaks, found) in data.products(bench).items():
        rows = []
        for product in found:
            seconds, bound = product.bound(peaks)
            rows.append(
                [
                    product.name,
                    " × ".join(map(str, product.shape)),
                    f"{1e6 * product.seconds:.0f}",
                    f"{product.gflops:.0f}",
                    bound,
                    f"{seconds / product.seconds:.2f}",
                ]
            )
        count = "one thread" if threads == 1 else f"{threads} threads"
        parts.append(
            _section(
                f"How fast products are on {count}",
                _ROOFLINE_TEXT.format(threads=count, ies="ies" if threads == 1 else "y"),
                plots.rooflines(found, peaks),
                "GFLOP/s of products over their operations for each byte, under the rooflines",
            )
            + _table(["A × B", "M × N × K", "µs", "GFLOP/s", "bound by", "of the bound"], rows)
        )
    return "".join(parts)


def _body(
    title: str,
    original: Path | None,
    candidates: list[data.Candidate],
    embedding: Sequence[dict[str, Any]],
    bench: Sequence[dict[str, Any]],
) -> str:
    parts = [
        f"<h1>{_escape(title)}</h1>",
        *(_checkpoint_sections(original, candidates) if original else []),
        *(_embedding_sections(embedding) if embedding else []),
        *map(_bench_section, bench),
        f"<footer>Made by blockscale {_escape(__version__)}.</footer>",
    ]
    return "\n".join(parts)


def _checkpoint_sections(original: Path, candidates: list[data.Candidate]) -> list[str]:
    changed = [c for c in candidates if c.sqnr_db()]
    return [
        f"<p>The checkpoint <b>{_escape(data.printable(original.name))}</b> was stored in other "
        "number formats. Fewer bits per weight make it smaller and faster to load, but round "
        "every weight a little. This page shows both sides.</p>",
        *_ruined(candidates),
        _summary(candidates),
        _counted(candidates),
        _glossary(),
        *_worst(changed),
        *(_weight_sections(changed) if changed else []),
        *(_gains(c) for c in changed if c.gains),
    ]


def write_report(
    original: str | os.PathLike[str] | None,
    converted: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    title: str = TITLE,
    embedding: Sequence[dict[str, Any]] = (),
    bench: Sequence[dict[str, Any]] = (),
    conversions: Sequence[Mapping[str, Any]] = (),
    tensors: Sequence[str] = (),
    threads: int = 0,
    overwrite: bool = False,
) -> None:
    """Writes one self-contained HTML file; whole or not at all.

    Args:
        original: the reference checkpoint; None: the page is about `bench` alone.
        converted: checkpoints made from it, at least one.
        output: the file.
        title: heading of the page.
        embedding: rows of `examples/sentence_embedding.py --json`.
        bench: results of `blockscale bench quantize --json` or `bench gemm --json`; or files of
            `./dev bench`, which hold one.
        conversions: JSON of `blockscale convert --scales mse|weighted --json` that made one of
            `converted`, told by its folder's name: the page then shows each layer's gain.
        tensors: patterns of the tensors that the page is about; none: all.
        threads: for comparing; 0: all.
        overwrite: replace a file that exists.

    Raises:
        ImportError: matplotlib is missing (pip install '.[report]' in a checkout brings it).
        FileExistsError: there is such a file, and `overwrite` was not given.
        OSError, ValueError: a checkpoint or the output cannot be read or written.
    """
    path = Path(output)
    _check_output(path, overwrite)
    path = path.resolve()  # a link stays one: the file that it leads to is replaced
    import matplotlib  # noqa: F401  missing: known before minutes of comparing

    candidates: list[data.Candidate] = []
    source = None if original is None else Path(original).resolve()
    if original is not None:
        paths = [Path(c) for c in converted]
        candidates = data.candidates(Path(original), paths, threads, tensors, conversions)
    body = _body(title, source, candidates, embedding, [b.get("results", b) for b in bench])
    page = (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{_escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )
    # Tensor and file names need not be UTF-8; Python keeps such bytes as lone surrogates.
    _write_whole(path, page.encode("utf-8", "replace"), overwrite)


def _check_output(path: Path, overwrite: bool) -> None:
    if path.is_dir():
        raise ValueError(f"{path}: names a folder, not a file")
    if path.is_symlink() and not path.exists():
        raise ValueError(f"{path}: is a link that leads nowhere")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: is no regular file, only a regular file is replaced")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path}: exists; --overwrite replaces it")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent}: there is no such folder")


def _write_whole(path: Path, contents: bytes, overwrite: bool) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        _check_output(path, overwrite)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
