"""Writes the tables of docs/performance.md and README.md from the results that they name.

Usage: performance_table.py [--check]

A table stands between `<!-- table FILE -->` and `<!-- end -->`, FILE being a result of the GPU
quantizers' benchmark. With --check nothing is written, and the exit code is 1 if a page differs.
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = (ROOT / "docs/performance.md", ROOT / "README.md")
TABLE = re.compile(r"(<!-- table (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
INPUTS = ("identity", "swiglu", "rms_norm", "gelu_tanh", "modulate")
RECIPES = ("mxfp4", "nvfp4", "mxfp8_e4m3", "fp8_1x128", "fp8_row", "fp8_128x128")
SIZES = (16, 64)  # MiB


def cases_of(results: object) -> list[dict]:
    """Every case, wherever it stands in the results of a benchmark."""
    if isinstance(results, list):
        return [case for part in results for case in cases_of(part)]
    if not isinstance(results, dict):
        return []
    if "copy_share" in results:
        return [results]
    return [case for part in results.values() for case in cases_of(part)]


def mebibytes(case: dict) -> int:
    """Of x."""
    columns = case["k"] * (2 if case["input"] == "swiglu" else 1)
    return round(case["rows"] * columns * (4 if case["dtype"] == "f32" else 2) / 2**20)


def table(file: str) -> str:
    """The Markdown table of a result."""
    document = json.loads((ROOT / file).read_text(encoding="utf-8"))
    shares = {}
    for case in cases_of(document["results"]):
        key = (case["recipe"], case["input"], mebibytes(case))
        other = case.get("scales_given") or case.get("columns_too")
        if case["dtype"] == "bf16" and case["layout"] == "row_major" and not other:
            # Results of before these fields have what is meant first.
            shares.setdefault(key, case["copy_share"])
    lines = [
        f"{document['chip']}, driver {document['driver']}, commit {document['commit'][:7]}:",
        "",
        "| | " + " | ".join(INPUTS) + " |",
        "|---" * (len(INPUTS) + 1) + "|",
    ]
    for recipe in RECIPES:
        cells = [
            " / ".join(
                f"{shares[recipe, name, size]:.2f}" if (recipe, name, size) in shares else "-"
                for size in SIZES
            )
            for name in INPUTS
        ]
        lines.append(f"| {recipe} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    differ = False
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        new = TABLE.sub(lambda found: found[1] + table(found[2]) + found[3], text)
        differ |= new != text
        if "--check" not in sys.argv[1:]:
            page.write_text(new, encoding="utf-8")
    return int(differ and "--check" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
