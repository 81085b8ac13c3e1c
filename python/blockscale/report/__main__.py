"""Command line of the report; see the package's docstring.

Exit codes are the command line's (docs/cli.md), and an error is one line that starts with PREFIX:
`blockscale compare --html` runs this program and passes both on.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from .page import TITLE, write_report

PREFIX = "blockscale report: error: "

# In this order: FileNotFoundError and FileExistsError are OSErrors.
EXIT_CODES: list[tuple[type[BaseException], int]] = [
    (ImportError, 5),
    (FileNotFoundError, 5),
    (FileExistsError, 6),
    (OSError, 8),
    (ValueError, 3),
    (KeyboardInterrupt, 130),
    (MemoryError, 1),
]


def _read_json(path: Path, kind: type) -> Any:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: is no JSON: {error}") from None
    if not isinstance(value, kind):
        raise ValueError(f"{path}: holds a {type(value).__name__}, must hold a {kind.__name__}")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m blockscale.report",
        description="Writes an HTML page that compares checkpoints, or is about --bench alone.",
    )
    parser.add_argument("original", type=Path, nargs="?", help="the reference checkpoint")
    parser.add_argument("converted", type=Path, nargs="*", help="checkpoints to compare with it")
    parser.add_argument("--output", type=Path, required=True, help="the HTML file")
    parser.add_argument("--overwrite", action="store_true", help="replace a file that exists")
    parser.add_argument("--title", default=TITLE)
    parser.add_argument("--embedding", type=Path, help="JSON of examples/sentence_embedding.py")
    parser.add_argument(
        "--bench",
        type=Path,
        action="append",
        default=[],
        help="JSON of `blockscale bench quantize` or `bench gemm`, or a file of `./dev bench`; "
        "repeatable",
    )
    parser.add_argument(
        "--conversion",
        type=Path,
        action="append",
        default=[],
        help="JSON of `blockscale convert --scales mse|weighted --json`; repeatable",
    )
    parser.add_argument(
        "--tensor", action="append", default=[], help="pattern of tensors to compare; repeatable"
    )
    parser.add_argument("--threads", type=int, default=0, help="0: all of the machine's")
    return parser


def _arguments() -> argparse.Namespace:
    parser = _parser()
    arguments = parser.parse_args()
    if not (arguments.converted if arguments.original else arguments.bench):
        parser.error("give ORIGINAL and CONVERTED, or --bench")
    return arguments


def _message(error: BaseException) -> str:
    if isinstance(error, ImportError):
        return f"plots need matplotlib ({error}); pip install matplotlib brings it"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return " ".join(str(error).split()) or type(error).__name__


def main() -> int:
    """Writes the report; 0, or an exit code of docs/cli.md with one line on stderr."""
    arguments = _arguments()
    try:
        write_report(
            arguments.original,
            arguments.converted,
            arguments.output,
            title=arguments.title,
            embedding=_read_json(arguments.embedding, list) if arguments.embedding else [],
            bench=[_read_json(path, dict) for path in arguments.bench],
            conversions=[_read_json(path, dict) for path in arguments.conversion],
            tensors=arguments.tensor,
            threads=arguments.threads,
            overwrite=arguments.overwrite,
        )
    except tuple(kind for kind, _ in EXIT_CODES) as error:
        print(PREFIX + _message(error), file=sys.stderr)
        return next(code for kind, code in EXIT_CODES if isinstance(error, kind))
    return 0


if __name__ == "__main__":
    sys.exit(main())
