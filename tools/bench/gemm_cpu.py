"""Times blockscale.gemm on the CPU in turns with torch's bf16 product and with reading memory.

Options: [--shapes NAME | MxNxK...] [--repeats N]

NAME: `baseline`, or its halves: `few` (rows of A) and `many`.

Each row of the table is a product of models' layers, with what it must reach and what is aimed at:
a share of the bandwidth at which as many threads read, or the time of torch's bf16 product over
ours. In each turn everything of a shape runs, in random order, and each ratio is one of times of
the same turn; medians count. Up to 16 rows the weights are cold: each call takes the next of
several sets. All weights lie where numpy puts them, torch's too. Each run is recorded, as gemm-cpu
for `baseline` and gemm-cpu-NAME-SHAPE... for others, with what the CPU could reach (`blockscale
bench peaks`) and how much work each product is, which `python -m blockscale.report --bench FILE`
plots.
"""

import argparse
import concurrent.futures
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import record
from gemm import Shape, at_least, parse_shape

BF16 = ml_dtypes.bfloat16
LAYERS = ((4096, 4096), (14336, 4096), (1536, 384))
ROWS = (1, 4, 16, 256)
BASELINE = [Shape(m, n, k) for n, k in LAYERS for m in ROWS] + [Shape(1024, 4096, 4096)]
SHAPES = {
    "baseline": BASELINE,
    "few": [shape for shape in BASELINE if shape.m < 256],
    "many": [shape for shape in BASELINE if shape.m >= 256],
}

#: A shape's sets of operands are together this large, and what is read for the bandwidth is too.
COLD_BYTES = 512 << 20
MOST_COLD_ROWS = 16
COLD_CALLS = 3
#: Of a shape, in seconds, after LEAST_TURNS turns.
LONGEST = 15
LEAST_TURNS = 9


class Case(NamedTuple):
    """A pair of recipes, what its number is (a share of the `read` bandwidth, `torch`'s time over
    ours, or one thread's over that of `two`), and its limits."""

    a: str
    b: str
    number: str
    must: float
    aim: float
    threads: int = 1

    @property
    def name(self) -> str:
        return f"{self.a}:{self.b}" + (f" on {self.threads} threads" if self.threads > 1 else "")


FP4 = ("mxfp4", "nvfp4")
FP8 = ("fp8_row", "fp8_128x128", "mxfp8_e4m3")


def cases_of(shape: Shape) -> list[Case]:
    """The rows of the table for a shape."""
    m, n, _ = shape
    small = n < 4096  # the layers of a small model
    if m == 1 and small:
        return [Case("bf16", b, "torch", 3.0, 3.0) for b in (*FP4, *FP8)]
    if m == 1:
        one = [Case("bf16", b, "read", 0.70, 0.88) for b in FP4]
        one += [Case("bf16", b, "read", 0.75, 0.90) for b in FP8]
        return one + [Case("bf16", b, "read", 0.75, 0.90, 2) for b in FP4]
    if m <= 4:
        some = [Case("bf16", b, "torch", 2.2, 3.5) for b in (*FP4, *FP8)]
        return some + [Case(b, b, "torch", 2.8, 4.5) for b in FP4]
    if m < 256:
        return [Case("bf16", b, "torch", 1.3, 1.8) for b in FP4]
    less = 0.9 if small else 1.0
    many = [Case("bf16", b, "torch", 0.90 * less, 1.05) for b in FP4]
    many += [Case("mxfp4", "mxfp4", "torch", 1.4 * less, 1.7)]
    many += [Case("nvfp4", "nvfp4", "torch", 1.15 * less, 1.35)]
    pairs = [(x, x) for x in ("fp8_tensor", "fp8_row", "mxfp8_e4m3", "mxfp6_e2m3", "mxfp6_e3m2")]
    pairs.insert(2, ("fp8_1x128", "fp8_128x128"))
    many += [Case(a, b, "torch", 0.85 * less, 1.0) for a, b in pairs]
    if not small:
        two = [("bf16", "mxfp4"), ("mxfp4", "mxfp4"), ("fp8_1x128", "fp8_128x128")]
        many += [Case(a, b, "two", 1.85, 2.0, 2) for a, b in two]
    return many


def normal(generator: np.random.Generator, rows: int, k: int) -> np.ndarray:
    return generator.standard_normal((rows, k), np.float32).astype(BF16)


def in_recipe(x: np.ndarray, recipe: str) -> Any:
    import blockscale

    return x if recipe == "bf16" else blockscale.quantize(x, recipe)


def copy_of(operand: Any) -> Any:
    import blockscale

    if isinstance(operand, np.ndarray):
        return operand.copy()
    return blockscale.ScaledTensor(
        operand.values.copy(),
        operand.scales.copy(),
        operand.recipe,
        layout=operand.layout,
        tensor_scale=operand.tensor_scale,
        sense=operand.sense,
    )


def bytes_of(operand: Any) -> int:
    """Of values and scales."""
    if isinstance(operand, np.ndarray):
        return operand.nbytes
    return operand.values.nbytes + operand.scales.nbytes


class Product:
    """Calls of one product, each on the next set of operands."""

    def __init__(self, call: Callable[[Any], Any], sets: list[Any]) -> None:
        self.call, self.sets, self.count = call, sets, 0

    def __call__(self) -> None:
        self.count += 1
        self.call(self.sets[self.count % len(self.sets)])


def our_product(a: Any, sets: list[Any], out: np.ndarray, threads: int) -> Product:
    import blockscale

    return Product(lambda b: blockscale.gemm(a, b, out=out, threads=threads), sets)


def torch_product(a: np.ndarray, sets: list[Any], out: np.ndarray) -> Product:
    """torch's product of the same memory, on one thread."""
    import torch

    def tensor(x: np.ndarray) -> Any:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)

    torch.set_num_threads(1)
    left, result = tensor(a), tensor(out)
    weights = [tensor(b).t() for b in sets]
    return Product(lambda b: torch.mm(left, b, out=result), weights)


class Reader:
    """Reads COLD_BYTES; numpy's largest of f32 is as fast as any loop that was tried."""

    memory = None

    def __init__(self, threads: int) -> None:
        if Reader.memory is None:
            Reader.memory = np.ones(COLD_BYTES // 4, np.float32)
        self.parts = np.array_split(Reader.memory, threads)
        self.pool = concurrent.futures.ThreadPoolExecutor(threads)

    def __call__(self) -> None:
        if len(self.parts) == 1:
            self.parts[0].max()
        else:
            list(self.pool.map(np.max, self.parts))


def contenders(shape: Shape, cases: list[Case]) -> tuple[dict[str, Callable[[], None]], dict]:
    """What is timed, by name, and the bytes of each case's weights."""
    m, n, k = shape
    generator = np.random.default_rng(1)
    a, b = normal(generator, m, k), normal(generator, n, k)
    quantized = {name: in_recipe(b, name) for name in {"bf16", *(case.b for case in cases)}}
    sizes = {name: bytes_of(weights) for name, weights in quantized.items()}
    turn = sum(sizes.values())
    count = -(-COLD_BYTES // turn) if m <= MOST_COLD_ROWS else 1
    sets = {name: [copy_of(x) for _ in range(count)] for name, x in quantized.items()}
    left = {name: in_recipe(a, name) for name in {"bf16", *(case.a for case in cases)}}
    out = np.empty((m, n), BF16)
    result: dict[str, Callable[[], None]] = {"torch": torch_product(a, sets["bf16"], out)}
    for case in cases:
        result[case.name] = our_product(left[case.a], sets[case.b], out, case.threads)
        if case.number == "read":
            result.setdefault(f"read {case.threads}", Reader(case.threads))
    return result, sizes


def times_of(
    run: dict[str, Callable[[], None]], repeats: int, calls: int
) -> dict[str, list[float]]:
    """Seconds of each turn of each, after two turns that are not counted. A turn is the median of
    `calls` calls, after one that finds its code and the interpreter in the caches again.
    """
    order, chance = list(run), random.Random(1)
    times: dict[str, list[float]] = {name: [] for name in run}
    end = time.perf_counter() + LONGEST
    for turn in range(-2, repeats):
        if turn >= LEAST_TURNS and time.perf_counter() > end:
            break
        chance.shuffle(order)
        for name in order:
            seconds = []
            for call in range(-1, calls):
                start = time.perf_counter()
                run[name]()
                if call >= 0:
                    seconds.append(time.perf_counter() - start)
            if turn >= 0:
                times[name].append(statistics.median(seconds))
    return times


def number_of(case: Case, times: dict[str, list[float]], weight_bytes: int) -> list[float]:
    """What the case's limits are about, of each turn."""
    ours = times[case.name]
    if case.number == "read":
        reads = times[f"read {case.threads}"]
        return [
            weight_bytes / own * read / COLD_BYTES for own, read in zip(ours, reads, strict=True)
        ]
    other = "torch" if case.number == "torch" else case.name.split(" on ")[0]
    return [theirs / own for theirs, own in zip(times[other], ours, strict=True)]


def command_line(*arguments: str) -> dict:
    """What `blockscale ARGUMENTS --json` prints."""
    command = [sys.executable, "-m", "blockscale", *arguments, "--json"]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def peaks() -> list[dict]:
    """What one thread reads and multiplies at most, and what two do."""
    return [command_line("bench", "peaks", "--threads", str(threads)) for threads in (1, 2)]


def work_of(shape: Shape, cases: list[Case]) -> list[dict]:
    """Bytes and operations of each case, and what it multiplies with."""
    sizes = [
        part for pair in zip(("-m", "-n", "-k"), map(str, shape), strict=True) for part in pair
    ]
    pairs = [part for case in cases for part in ("--pair", f"{case.a}:{case.b}")]
    planned = command_line("bench", "gemm", "--plan", *sizes, *pairs)["cases"]
    return [{key: row[key] for key in ("bytes", "operations", "multiplier")} for row in planned]


def quartiles(values: list[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]]


def measure_shape(shape: Shape, repeats: int) -> dict:
    cases = cases_of(shape)
    run, sizes = contenders(shape, cases)
    times = times_of(run, repeats, COLD_CALLS if shape.m <= MOST_COLD_ROWS else 1)
    flops = 2 * shape.m * shape.n * shape.k
    rows = []
    for case, work in zip(cases, work_of(shape, cases), strict=True):
        seconds = times[case.name]
        numbers = number_of(case, times, sizes[case.b])
        median = statistics.median(numbers)
        rows.append(
            {
                "recipe_a": case.a,
                "recipe_b": case.b,
                "threads": case.threads,
                "median_seconds": statistics.median(seconds),
                "quartile_seconds": quartiles(seconds),
                **work,
                "gflops": flops / statistics.median(seconds) * 1e-9,
                "weight_bytes": sizes[case.b],
                "number": case.number,
                "median": median,
                "quartiles": quartiles(numbers),
                "must": case.must,
                "aim": case.aim,
                "holds": median >= case.must,
            }
        )
    bandwidth = {
        name.split()[1]: COLD_BYTES / statistics.median(times[name])
        for name in times
        if name.startswith("read")
    }
    return {
        **shape._asdict(),
        "torch_median_seconds": statistics.median(times["torch"]),
        "read_bytes_per_second": bandwidth,
        "cases": rows,
    }


def table(result: dict) -> str:
    shape = f"{result['m']} x {result['n']} x {result['k']}"
    base = 2 * result["m"] * result["n"] * result["k"] / result["torch_median_seconds"] * 1e-9
    read = ", ".join(
        f"{threads} reads {rate * 1e-9:.1f} GB/s"
        for threads, rate in result["read_bytes_per_second"].items()
    )
    lines = [f"{shape}: torch {base:.1f} GFLOP/s" + (f"; {read}" if read else "")]
    for row in result["cases"]:
        low, high = row["quartiles"]
        lines.append(
            f"  {row['recipe_a'] + ':' + row['recipe_b']:<26}{row['threads']} thr"
            f"{row['gflops']:>8.1f} GFLOP/s  {row['number']:>5} {row['median']:.2f}"
            f" ({low:.2f} to {high:.2f}), must {row['must']:.2f}, aim {row['aim']:.2f}"
            + ("" if row["holds"] else "  MISSES")
        )
    return "\n".join(lines)


def parse_shapes(text: str) -> tuple[str, list[Shape]]:
    return text, SHAPES.get(text) or [parse_shape(text)]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shapes",
        type=parse_shapes,
        nargs="+",
        default=[parse_shapes("baseline")],
        metavar="SHAPE",
        help="baseline (the default), few or many (rows of A), or MxNxK",
    )
    repeats = at_least(LEAST_TURNS)
    parser.add_argument("--repeats", type=repeats, default=25, help="at least 9; default: 25")


def measure(options: argparse.Namespace) -> Iterator[record.Measurement]:
    import torch

    asked = [text for text, _ in options.shapes]
    wanted = [shape for _, shapes_of in options.shapes for shape in shapes_of]
    shapes = []
    for shape in wanted:
        shapes.append(measure_shape(shape, options.repeats))
        print(table(shapes[-1]), flush=True)
    results = {"torch": torch.__version__, "repeats": options.repeats, "peaks": peaks()}
    results["shapes"] = shapes
    yield record.Measurement(
        "-".join(["gemm-cpu", *(name for name in asked if name != "baseline")]),
        f"./dev bench gemm --torch --shapes {' '.join(asked)} --repeats {options.repeats}",
        results,
        record.cpu([sys.executable, "-m", "blockscale"]),
    )
