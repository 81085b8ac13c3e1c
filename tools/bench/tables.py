"""Writes the tables of docs/performance.md and README.md from the results that they name.

Usage: tables.py [--check]

A table stands between `<!-- table FILE -->` and `<!-- end -->`, FILE being a result of the GPU
quantizers' benchmark, and between `<!-- misses FILE -->` and `<!-- end -->` what falls short of the
limits that the result has. With --check nothing is written, and the exit code is 1 if a page
differs.
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = (ROOT / "docs/performance.md", ROOT / "README.md")
BLOCK = re.compile(r"(<!-- (table|misses) (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
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


def table(document: dict) -> str:
    """The Markdown table of a result: shares of the copy."""
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


def over(case: dict) -> float:
    """How much more than its limit a case takes, as a share of that."""
    return case["microseconds"] / case["allowed_microseconds"] - 1


def misses(document: dict) -> str:
    """The Markdown table of what falls short of the limits by more than 5 %."""
    cases = cases_of(document["results"])
    short = [case for case in cases if over(case) > 0.05]
    lines = [
        f"{len(cases)} cases; {sum(not case['holds'] for case in cases)} miss their limit, "
        f"{len(short)} by more than 5 %:",
        "",
        "| | by more than 5 % | the worst | its share of the copy |",
        "|---|---|---|---|",
    ]
    for line in ("unfused", "fused", "rest"):
        group = [case for case in cases if case["line"] == line]
        for name in dict.fromkeys(case["input"] for case in group):
            found = [case for case in short if case["line"] == line and case["input"] == name]
            if not found:
                continue
            worst = max(found, key=over)
            mib = worst["input_bytes"] / 2**20
            lines.append(
                f"| {line}: {name} | {len(found)} of {sum(c['input'] == name for c in group)} | "
                f"{worst['recipe']} {worst['dtype']} {worst['layout']} {mib:g} MiB: "
                f"{over(worst):.0%} | {worst['copy_share']:.2f} |"
            )
    return "\n".join(lines) + "\n"


def block(found: re.Match) -> str:
    """What stands where a block was found, from the file that it names."""
    document = json.loads((ROOT / found[3]).read_text(encoding="utf-8"))
    return found[1] + {"table": table, "misses": misses}[found[2]](document) + found[4]


def main() -> int:
    differ = False
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        new = BLOCK.sub(block, text)
        differ |= new != text
        if "--check" not in sys.argv[1:]:
            page.write_text(new, encoding="utf-8")
    return int(differ and "--check" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
