"""The closing tables of `./dev demo`, from what the command line measured.

Usage: demo.py FOLDER REFERENCE NAME... For each NAME, FOLDER holds NAME.compare.json, and
NAME.gemm-M.json for M = 1 and 128, as `blockscale compare --json` and `blockscale gemm --weights
--json` print them. REFERENCE is the original model, and one NAME's recipe is bf16: these two are
what the others' times are compared with. FOLDER also has embedding.json, of
examples/sentence_embedding.py. Needs nothing but the standard library.
"""

import json
import math
import pathlib
import statistics
import sys
import textwrap
from dataclasses import dataclass

ROWS = (1, 128)  # of activations: one token, and many


@dataclass(frozen=True)
class Layer:
    """A linear layer: its weight's quality after conversion, its product's error with most rows."""

    name: str
    sqnr_db: float  # of the weights; infinite if they are unchanged, -infinity if ruined
    bytes: int
    parameters: int
    gemm_error: float  # ||y - y_f32|| / ||y_f32||


@dataclass(frozen=True)
class Result:
    """One checkpoint: all of its bytes, its linear layers in the model's order, and the seconds
    that all of their products take by the number of rows."""

    name: str
    bytes: int
    layers: list[Layer]
    gemm_seconds: dict[int, float]

    def recipe(self) -> str:
        """The name without the dialect."""
        return self.name.split("-")[0]

    def layer_bytes(self) -> int:
        return sum(layer.bytes for layer in self.layers)

    def bits_per_weight(self) -> float:
        return 8 * self.layer_bytes() / sum(layer.parameters for layer in self.layers)

    def gemm_error(self) -> float:
        return math.sqrt(statistics.fmean(layer.gemm_error**2 for layer in self.layers))

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
    header += ["SQNR min", "median", "max dB", "GEMM error"]
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
            ]
        )
    return table(header, rows)


def faster(base: float, value: float) -> str:
    """How many times as fast as what takes `base` is what takes `value`."""
    return f"{base / value:.2f}"


def speed_table(original: Result, results: list[Result]) -> str:
    """Products of all layers in each recipe, next to the original's and to bf16's."""
    bf16 = next(result for result in results if result.recipe() == "bf16")
    bases = (original, bf16)
    header = ["recipe - dialect"]
    for m in ROWS:
        header += [f"M = {m}, ms", *(f"x {base.recipe()}" for base in bases)]
    rows = []
    for result in [original, *results]:
        cells = [result.name]
        for m, seconds in result.gemm_seconds.items():
            cells.append(f"{1e3 * seconds:.2f}")
            cells += [faster(base.gemm_seconds[m], seconds) for base in bases]
        rows.append(cells)
    return table(header, rows)


def sentences_table(rows: list[dict]) -> str:
    """The whole model by its weights' and activations' recipes."""
    seconds = {row["name"]: 1 / row["sentences_per_second"] for row in rows}
    bases = ("f32", "bf16")
    return table(
        ["weights and activations", "sentences/s", *(f"x {base}" for base in bases)],
        [
            [name, f"{1 / own:.0f}", *(faster(seconds[base], own) for base in bases)]
            for name, own in seconds.items()
        ],
    )


EXPLANATION = [
    "How to read it. Only the {count} linear layers are converted (embeddings, norms and biases "
    'stay f32), so "file" shrinks less than "layers"; "ratio" is the bytes of the layers in f32 '
    "over those in the recipe, scales included.",
    "SQNR compares each layer's weights with the original ones: higher is better, 6 dB are one bit "
    'of precision. "GEMM error" is how far the layers\' outputs are from those of the f32 weights '
    "(relative, root mean square over the layers), for {rows} rows of random inputs.",
    "Times are of the products of all layers on this CPU with {threads} threads, M rows of "
    'activations in bf16 (f32 with f32 weights), caches warm; "x f32" and "x bf16": so many times '
    "as fast as this library's own f32 and bf16. Sentences go through the whole model, of which "
    "attention, normalization and quantizing activations take the same time or longer.",
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
    products = {m: load_json(folder / f"{name}.gemm-{m}.json")["layers"] for m in ROWS}
    layers = []
    for product in products[ROWS[-1]]:
        tensor = tensors[product["name"]]
        layers.append(
            Layer(
                name=product["name"].removesuffix(".weight"),
                sqnr_db=NO_NUMBER.get(tensor["status"], tensor["sqnr_db"]),
                bytes=tensor["bytes_b"],
                parameters=math.prod(tensor["shape"]),
                gemm_error=product["error"],
            )
        )
    layers.sort(key=lambda layer: natural_key(layer.name))
    seconds = {m: sum(layer["seconds"] for layer in products[m]) for m in ROWS}
    return Result(name, sum(tensor["bytes_b"] for tensor in compared["tensors"]), layers, seconds)


def main(arguments: list[str]) -> None:
    folder = pathlib.Path(arguments[0])
    original, *results = [load_result(folder, name) for name in arguments[1:]]
    settings = load_json(folder / f"{original.name}.gemm-{ROWS[-1]}.json")
    print("\nSQNR of each layer's weights, by recipe:\n")
    print(layer_table(results))
    print("\nWhat each recipe saves and costs:\n")
    print(summary_table(original, results))
    print("\nHow fast the layers' products are:\n")
    print(speed_table(original, results))
    print("\nHow fast the model is:\n")
    print(sentences_table(load_json(folder / "embedding.json")))
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
