"""The closing tables of `./dev demo`, from what the command line measured.

Usage: demo.py FOLDER REFERENCE NAME... For each NAME, FOLDER holds NAME.compare.json and
NAME.gemm.json, as `blockscale compare --json` and `blockscale gemm --weights --json` print them.
REFERENCE is the original model; it has only the latter. Needs nothing but the standard library.
"""

import json
import math
import pathlib
import statistics
import sys
import textwrap
from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """A linear layer: its weight's quality after conversion, its product's error and time."""

    name: str
    sqnr_db: float  # of the weights; infinite if they are unchanged, -infinity if ruined
    bytes: int
    parameters: int
    gemm_error: float  # ||y - y_f32|| / ||y_f32||
    gemm_seconds: float


@dataclass(frozen=True)
class Result:
    """One checkpoint: all of its bytes, and its linear layers in the model's order."""

    name: str
    bytes: int
    layers: list[Layer]

    def recipe(self) -> str:
        """The name without the dialect."""
        return self.name.split("-")[0]

    def layer_bytes(self) -> int:
        return sum(layer.bytes for layer in self.layers)

    def bits_per_weight(self) -> float:
        return 8 * self.layer_bytes() / sum(layer.parameters for layer in self.layers)

    def gemm_error(self) -> float:
        return math.sqrt(statistics.fmean(layer.gemm_error**2 for layer in self.layers))

    def gemm_milliseconds(self) -> float:
        return 1e3 * sum(layer.gemm_seconds for layer in self.layers)

    def sqnrs(self) -> list[float]:
        return [layer.sqnr_db for layer in self.layers]


def natural_key(name: str) -> list[tuple[int, str]]:
    """Orders layer.2 before layer.10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]


def table(header: list[str], rows: list[list[str]]) -> str:
    """Columns aligned: the first one left, the others right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(cells: list[str]) -> str:
        first, *others = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join([first, *others]).rstrip()

    return "\n".join([line(header), "-" * (sum(widths) + 2 * len(widths) - 2), *map(line, rows)])


def decibels(value: float) -> str:
    return {math.inf: "exact", -math.inf: "ruined"}.get(value, f"{value:.1f}")


def megabytes(count: int) -> str:
    return f"{count / 1e6:.2f}"


def layer_table(results: list[Result]) -> str:
    """One column a recipe: where two dialects have the same one, the last stands for both."""
    columns = {result.recipe(): result.layers for result in results}
    rows = [
        [layer.name, *(decibels(layers[i].sqnr_db) for layers in columns.values())]
        for i, layer in enumerate(results[0].layers)
    ]
    return table(["SQNR in dB", *columns], rows)


def summary_table(original: Result, results: list[Result]) -> str:
    header = ["recipe - dialect", "file MB", "layers MB", "bits/weight", "ratio"]
    header += ["SQNR min", "median", "max dB", "GEMM error", "GEMM ms"]
    rows = []
    for result in [original, *results]:
        sqnrs = result.sqnrs()
        spread = [decibels(f(sqnrs)) for f in (min, statistics.median, max)]
        rows.append(
            [
                result.name,
                megabytes(result.bytes),
                megabytes(result.layer_bytes()),
                f"{result.bits_per_weight():.2f}",
                f"{original.layer_bytes() / result.layer_bytes():.2f} x",
                *spread,
                f"{100 * result.gemm_error():.3g} %",
                f"{result.gemm_milliseconds():.1f}",
            ]
        )
    return table(header, rows)


EXPLANATION = [
    "How to read it. Only the {count} linear layers are converted (embeddings, norms and biases "
    'stay f32), so "file" shrinks less than "layers"; "ratio" is the bytes of the layers in f32 '
    "over those in the recipe, scales included.",
    "SQNR compares each layer's weights with the original ones: higher is better, 6 dB are one bit "
    'of precision. "GEMM error" is how far the layers\' outputs are from those of the f32 weights '
    "(relative, root mean square over the layers), for {rows} rows of random f32 inputs.",
    '"GEMM ms" is the time of all those products on this CPU with {threads} threads: compare it '
    "with the rows of f32 and bf16. GPU products, where these recipes are fast, do not exist yet.",
    "The converted checkpoints stay in {folder}/. To look inside one: ./dev run inspect "
    "{folder}/{name}",
]


# The SQNR of tensors that have none, by their status.
NO_NUMBER = {"equal": math.inf, "ruined": -math.inf}


def load_json(path: pathlib.Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def load_result(folder: pathlib.Path, name: str) -> Result:
    compared = load_json(folder / f"{name}.compare.json")
    tensors = {tensor["name"]: tensor for tensor in compared["tensors"]}
    layers = []
    for product in load_json(folder / f"{name}.gemm.json")["layers"]:
        tensor = tensors[product["name"]]
        layers.append(
            Layer(
                name=product["name"].removesuffix(".weight"),
                sqnr_db=NO_NUMBER.get(tensor["status"], tensor["sqnr_db"]),
                bytes=tensor["bytes_b"],
                parameters=math.prod(tensor["shape"]),
                gemm_error=product["error"],
                gemm_seconds=product["seconds"],
            )
        )
    layers.sort(key=lambda layer: natural_key(layer.name))
    return Result(name, sum(tensor["bytes_b"] for tensor in compared["tensors"]), layers)


def main(arguments: list[str]) -> None:
    folder = pathlib.Path(arguments[0])
    original, *results = [load_result(folder, name) for name in arguments[1:]]
    settings = load_json(folder / f"{original.name}.gemm.json")
    print("\nSQNR of each layer's weights, by recipe:\n")
    print(layer_table(results))
    print("\nWhat each recipe saves and costs:\n")
    print(summary_table(original, results))
    print()
    for paragraph in EXPLANATION:
        text = paragraph.format(
            count=len(original.layers),
            rows=settings["m"],
            threads=settings["threads"],
            folder=folder,
            name=results[-1].name,
        )
        print(textwrap.fill(text, width=100, break_on_hyphens=False))


if __name__ == "__main__":
    main(sys.argv[1:])
