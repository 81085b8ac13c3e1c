"""Times blockscale.gemm on a GPU in turns with torch's FP8 products, on the shapes of dense models.

Options: [--shapes baseline | users | MxNxK...] [--pair A:B] [--repeats N]

`ours` multiplies A in fp8_1x128 (mn_major scales) by B in fp8_128x128, or another pair of
recipes, into bf16; `chained` is the same with programmatic dependent launch: a call starts before
the one in front of it has ended. `pt` is torch._scaled_mm of the same values with one scale for
each tensor and fast accumulation, which applies no block scales: the practical speed of light.
`blk` is torch._scaled_mm with the same scales, where it takes the shape. `users` are products that
users have beside the dense models' layers: with scales of rows, of 1x128 on both sides, of 192 to
512 rows, and with rows that begin at odd multiples of 16 bytes. All are CUDA graphs of calls on
cold operands (as many sets as are together three times the level-2 cache), replayed in random
order; medians count. What `ours` leaves is compared with a product of the dequantized operands.
Only `baseline` and `users` are recorded.
"""

import argparse
import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import record


class Shape(NamedTuple):
    m: int
    n: int
    k: int


#: N and K of DeepSeek-V3's linear layers.
LAYERS = (
    (2112, 7168),
    (576, 7168),
    (24576, 1536),
    (32768, 512),
    (7168, 16384),
    (4096, 7168),
    (7168, 2048),
)
BASELINE = [Shape(m, n, k) for n, k in LAYERS for m in (1, 64, 128, 4096)]
BASELINE += [Shape(8192, 8192, 8192), Shape(4096, 4096, 4096), Shape(16384, 4096, 7168)]

Pair = tuple[str, str]
BLOCKS: Pair = ("fp8_1x128", "fp8_128x128")
ROWS: Pair = ("fp8_row", "fp8_row")
BOTH_1X128: Pair = ("fp8_1x128", "fp8_1x128")
PAIRS = (BLOCKS, ROWS, BOTH_1X128)


class Group(NamedTuple):
    """Products of users: what is timed against ours, and what is asked of the ratios' mean."""

    pair: Pair
    shapes: tuple[Shape, ...]
    peer: str
    asked: float


def _square(*rows: int) -> tuple[Shape, ...]:
    return tuple(Shape(m, 4096, 4096) for m in rows)


USERS = {
    "fp8_row, M = 128": Group(ROWS, (*_square(128), Shape(128, 8192, 8192)), "pt", 0.95),
    "fp8_row, M = 256": Group(ROWS, (*_square(256), Shape(256, 8192, 8192)), "pt", 0.90),
    "fp8_row, M >= 1024": Group(
        ROWS, (*_square(1024, 2048, 4096, 8192), Shape(8192, 8192, 8192)), "pt", 0.93
    ),
    "fp8_row, 2048 x 13824 x 5120": Group(ROWS, (Shape(2048, 13824, 5120),), "pt", 0.92),
    "fp8_row, 512 x 5120 x 5120": Group(ROWS, (Shape(512, 5120, 5120),), "pt", 0.90),
    "1x128 x 1x128": Group(
        BOTH_1X128, (*_square(64, 256, 1024, 4096), Shape(4096, 7168, 2048)), "blk", 1.0
    ),
    "M = 192 to 512": Group(
        BLOCKS,
        tuple(
            Shape(*s)
            for s in (
                (200, 3072, 12288), (512, 3072, 12288), (200, 13824, 5120), (512, 13824, 5120),
                (333, 8192, 3584), (512, 5120, 5120),
            )
        ),
        "pt",
        0.92,
    ),
    "K = 7184 to 7280": Group(
        BLOCKS,
        tuple(Shape(m, 4096, k) for m in (512, 4096) for k in (7184, 7216, 7248, 7280)),
        "pt",
        0.85,
    ),
    "N = 4176, K = 7184": Group(
        BLOCKS, (Shape(1000, 4176, 7184), Shape(4096, 4176, 7184)), "pt", 0.80
    ),
}  # fmt: skip

#: Groups of shapes that have a geometric mean of their own.
GROUPS: dict[str, Callable[[Shape], bool]] = {
    "all": lambda _: True,
    "M = 1": lambda s: s.m == 1,
    "M = 64": lambda s: s.m == 64,
    "M = 128": lambda s: s.m == 128,
    "M >= 4096": lambda s: s.m >= 4096,
}

#: What is asked of the geometric means of `pt` over `ours`.
ASKED = {"all": 1.09, "M = 1": 1.28, "M = 64": 1.16, "M = 128": 1.05, "M >= 4096": 0.97}


class Case(NamedTuple):
    """A product: recipes, or None for those of the options, and sizes."""

    pair: Pair | None
    shape: Shape


BASELINE_CASES = [Case(BLOCKS, shape) for shape in BASELINE]
USER_CASES = [Case(group.pair, shape) for group in USERS.values() for shape in group.shapes]

MOST_SETS = 64
LEAST_CALLS = 8  # of a graph, so that what it takes to launch one does not count
#: Of |D - D'| / |D'|: bf16 alone makes 2^-9 to 2^-10, a wrong product 1.
LARGEST_ERROR = 2.0**-7


def set_count(shape: Shape, l2_bytes: int) -> int:
    """Sets of operands that are together three times the level-2 cache, at most MOST_SETS."""
    m, n, k = shape
    return max(1, min(MOST_SETS, math.ceil(3 * l2_bytes / (m * k + n * k + 2 * m * n))))


def geometric_means(ratios: dict[Shape, float]) -> dict[str, float]:
    """Of each group that has a shape."""
    means = {}
    for name, contains in GROUPS.items():
        chosen = [ratio for shape, ratio in ratios.items() if contains(shape)]
        if chosen:
            means[name] = statistics.geometric_mean(chosen)
    return means


def means_of_users(cases: list[dict]) -> dict[str, dict[str, float]]:
    """Of each group of USERS, whose cases follow one another: the geometric mean of its peer's time
    over ours, the least ratio, and what is asked of the mean."""
    found, rest = {}, iter(cases)
    for name, group in USERS.items():
        ratios = []
        for case in itertools.islice(rest, len(group.shapes)):
            if (peer := case[f"{group.peer}_microseconds"]) is not None:
                ratios.append(peer / case["ours_microseconds"])
        if ratios:
            mean = statistics.geometric_mean(ratios)
            found[name] = {"mean": mean, "least": min(ratios), "asked": group.asked}
    return found


def table(cases: list[dict]) -> str:
    columns = ("m", "n", "k", "pt", "blk", "ours", "chained")
    columns += ("pt / ours", "blk / ours", "pt / chained")
    lines = ["".join(f"{name:>13}" for name in columns)]
    for case in cases:
        pt, blk, ours, chained = (
            case[f"{name}_microseconds"] for name in ("pt", "blk", "ours", "chained")
        )
        cells = [str(case[name]) for name in ("m", "n", "k")]
        cells += [
            f"{pt:.2f}",
            "-" if blk is None else f"{blk:.2f}",
            f"{ours:.2f}",
            f"{chained:.2f}",
        ]
        cells += [f"{pt / ours:.3f}", "-" if blk is None else f"{blk / ours:.3f}"]
        cells.append(f"{pt / chained:.3f}")
        lines.append("".join(f"{cell:>13}" for cell in cells))
    return "\n".join(lines)


def ratios_of(cases: list[dict], name: str, to: str = "ours") -> dict[Shape, float]:
    """The time of `name` over that of `to`, where there is one."""
    key = f"{name}_microseconds"
    return {
        Shape(case["m"], case["n"], case["k"]): case[key] / case[f"{to}_microseconds"]
        for case in cases
        if case[key] is not None
    }


# --- on the GPU -----------------------------------------------------------------------------------


class Operands:
    """Operands of a product in memory of their own."""

    def __init__(self, shape: Shape, seed: int, pair: Pair = BLOCKS) -> None:
        import blockscale
        import torch

        m, n, k = shape
        generator = torch.Generator("cuda").manual_seed(seed)

        def normal(rows: int) -> Any:
            options = {"dtype": torch.bfloat16, "device": "cuda", "generator": generator}
            return torch.randn(rows, k, **options)

        of_rows = pair == ROWS
        self.a = blockscale.quantize(normal(m), pair[0], layout=None if of_rows else "mn_major")
        both = pair == BOTH_1X128
        self.b = blockscale.quantize(normal(n), pair[1], layout="mn_major" if both else None)
        # As torch takes them: of A's rows, and of B's columns.
        self.scales = self.a.scales if of_rows else self.a.scales.t(), self.b.scales.t()
        if both:
            self.scales = self.a.scales.t(), self.b.scales
        self.d = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")


def alone(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same call, whose kernels begin when those before them have ended."""
    import blockscale

    def of(x: Any) -> Any:
        blockscale._native.cuda_set_overlap(False)
        try:
            return call(x)
        finally:
            blockscale._native.cuda_set_overlap(True)

    return of


def contenders() -> dict[str, Callable[[Operands], Any]]:
    import blockscale
    import torch

    one = torch.ones((), device="cuda")
    kind = torch.bfloat16

    def pt(x: Operands) -> Any:
        options = {"scale_a": one, "scale_b": one, "out_dtype": kind, "use_fast_accum": True}
        return torch._scaled_mm(x.a.values, x.b.values.t(), out=x.d, **options)

    def blk(x: Operands) -> Any:
        options = {"scale_a": x.scales[0], "scale_b": x.scales[1], "out_dtype": kind}
        return torch._scaled_mm(x.a.values, x.b.values.t(), out=x.d, **options)

    def chained(x: Operands) -> Any:
        return blockscale.gemm(x.a, x.b, out=x.d)

    return {"pt": pt, "blk": blk, "ours": alone(chained), "chained": chained}


def error_of(x: Operands, product: Callable[[Operands], Any]) -> float:
    """|D - D'| / |D'| of the first and the last rows, D' being the product in f32."""
    import blockscale
    import torch

    x.d.fill_(math.nan)
    product(x)
    m = len(x.d)
    rows = torch.tensor(sorted({*range(min(m, 32)), *range(max(m - 32, 0), m)}), device="cuda")
    exact = blockscale.dequantize(x.a)[rows] @ blockscale.dequantize(x.b).t()
    return float((x.d[rows].float() - exact).norm() / exact.norm())


def captured(product: Callable[[Operands], Any], sets: list[Operands], calls: int) -> Any:
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            product(sets[i % len(sets)])
    return graph


def median_microseconds(graphs: dict[str, Any], calls: int, repeats: int) -> dict[str, float]:
    """Of one call of each graph; they are replayed in random order, after two turns that are not
    counted."""
    import torch

    order, chance = list(graphs), random.Random(1)
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(-2, repeats):
        chance.shuffle(order)
        events = {}
        for name in order:
            events[name] = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            events[name][0].record()
            graphs[name].replay()
            events[name][1].record()
        torch.cuda.synchronize()
        for name, (start, stop) in events.items():
            if turn >= 0:
                times[name].append(start.elapsed_time(stop) * 1e3 / calls)
    return {name: statistics.median(samples) for name, samples in times.items()}


def measure_shape(shape: Shape, l2_bytes: int, repeats: int, pair: Pair = BLOCKS) -> dict:
    import blockscale
    import torch

    sets = [Operands(shape, seed, pair) for seed in range(set_count(shape, l2_bytes))]
    calls = len(sets) * math.ceil(LEAST_CALLS / len(sets))
    graphs, refusal = {}, None
    error = math.nan
    for name, product in contenders().items():
        try:
            product(sets[0])  # loads its kernels; what fails, fails outside a capture
            torch.cuda.synchronize()
        except (RuntimeError, ValueError) as problem:
            if name != "blk":
                raise
            refusal = str(problem).splitlines()[0]
            continue
        if name == "ours":
            error = error_of(sets[0], product)
        graphs[name] = captured(product, sets, calls)
    if not error <= LARGEST_ERROR:
        raise SystemExit(f"gemm: {shape}: the error of ours is {error}; nothing to time")
    times = median_microseconds(graphs, calls, repeats)
    return {
        **shape._asdict(),
        "sets": len(sets),
        "calls": calls,
        "pt_microseconds": times["pt"],
        "blk_microseconds": times.get("blk"),
        "blk_refusal": refusal,
        "ours_microseconds": times["ours"],
        "chained_microseconds": times["chained"],
        "pt_over_ours": times["pt"] / times["ours"],
        "pt_over_chained": times["pt"] / times["chained"],
        "error": error,
        "pair": list(pair),
        "plan": blockscale.describe_gemm(*shape, *pair).splitlines()[0],
    }


def parse_shape(text: str) -> Shape:
    try:
        m, n, k = (int(part) for part in text.split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no shape, such as 128x4096x7168") from None
    if min(m, n, k) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' has a size below 1")
    return Shape(m, n, k)


def parse_shapes(text: str) -> list[Case]:
    named = {"baseline": BASELINE_CASES, "users": USER_CASES}
    return named.get(text) or [Case(None, parse_shape(text))]


def parse_pair(text: str) -> Pair:
    left, _, right = text.partition(":")
    if (left, right) not in PAIRS:
        names = ", ".join(":".join(pair) for pair in PAIRS)
        raise argparse.ArgumentTypeError(f"'{text}' is no pair; {names} are measured")
    return left, right


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shapes",
        type=parse_shapes,
        nargs="+",
        default=[BASELINE_CASES],
        metavar="SHAPE",
        help="baseline (the default), users, or MxNxK, for which no file is written",
    )
    parser.add_argument(
        "--pair", type=parse_pair, default=BLOCKS, help="recipes A:B of MxNxK; default: blocks"
    )
    parser.add_argument("--repeats", type=at_least(9), default=15, help="at least 9; default: 15")


def at_least(least: int) -> Callable[[str], int]:
    """For argparse: integers from `least` on."""

    def parse(text: str) -> int:
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"is {value}, must be at least {least}")
        return value

    return parse


def measure(options: argparse.Namespace) -> Iterator[record.Measurement]:
    import torch

    properties = torch.cuda.get_device_properties(0)
    cases = []
    with torch.no_grad():
        for case in [case for cases in options.shapes for case in cases]:
            pair = case.pair or options.pair
            cases.append(measure_shape(case.shape, properties.L2_cache_size, options.repeats, pair))
            torch.cuda.empty_cache()
            print(table(cases[-1:]).splitlines()[-1], flush=True)
    means = {
        f"{name}_over_{to}": geometric_means(ratios_of(cases, name, to))
        for name, to in (("pt", "ours"), ("blk", "ours"), ("pt", "chained"))
    }
    print(f"\n{properties.name}, torch {torch.__version__}; microseconds\n{table(cases)}")
    for name, values in means.items():
        text = ", ".join(f"{group} {mean:.3f}" for group, mean in values.items())
        print(f"{name}, geometric means: {text or '-'}")
    if options.shapes not in ([BASELINE_CASES], [USER_CASES]):
        return
    results = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "l2_bytes": properties.L2_cache_size,
        "repeats": options.repeats,
    }
    name, command = "gemm-baseline", "./dev gpu-bench gemm"
    if options.shapes == [BASELINE_CASES]:
        results |= {"asked": ASKED, "geometric_means": means}
    else:
        name, command = "gemm-users", command + " --shapes users"
        results["users"] = means_of_users(cases)
        for group, found in results["users"].items():
            print(f"{group}: mean {found['mean']:.3f}, least {found['least']:.3f}")
    results["shapes"] = cases
    yield record.Measurement(name, command, results, record.gpu())
