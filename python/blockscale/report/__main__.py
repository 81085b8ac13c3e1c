"""Command line of the report; see the package's docstring."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def _read_json(path: Path | None) -> list[dict[str, Any]]:
    if path is None:
        return []
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: is no JSON: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path}: must hold a list of objects")
    return rows


def main() -> int:
    """Writes the report; 0, or 1 with one line on stderr."""
    parser = argparse.ArgumentParser(
        prog="blockscale report", description="An HTML page that compares checkpoints."
    )
    parser.add_argument("original", type=Path, help="the reference checkpoint")
    parser.add_argument("converted", type=Path, nargs="+", help="checkpoints to compare with it")
    parser.add_argument("--output", type=Path, required=True, help="the HTML file")
    parser.add_argument("--title", default="What block scaling costs and saves")
    parser.add_argument("--embedding", type=Path, help="JSON of examples/sentence_embedding.py")
    parser.add_argument("--bench", type=Path, help="JSON rows of `blockscale bench quantize`")
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    try:
        from . import write_report

        write_report(
            arguments.original,
            arguments.converted,
            arguments.output,
            title=arguments.title,
            embedding=_read_json(arguments.embedding),
            bench=_read_json(arguments.bench),
            threads=arguments.threads,
        )
    except ImportError as error:
        print(
            f"blockscale report: {error}; plots need it: pip install 'blockscale[report]'",
            file=sys.stderr,
        )
        return 1
    except (OSError, ValueError) as error:
        print(f"blockscale report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
