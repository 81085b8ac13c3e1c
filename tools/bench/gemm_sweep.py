"""Times blockscale.gemm on a GPU for any number of rows, and with other scales and orders of sums.

Options: [--repeats N]

The sweep: N and K of dense models' layers, M from 1 to 8192 (powers of two, one more and one less,
and 160 to 640 by 32), in turns with torch._scaled_mm with the same scales, where it takes the
shape; with scales of rows, with 1x128 on both sides, and with K that is no power of two, N = 4096
and M = 1 to 8192 (powers of two, and 160 to 640 by 32). A
cliff is a point slower than 1.3 times its neighbour above in M. The variants: gemm.py's shapes
with A's scales row_major and ue8m0, and batch-invariant, over mn_major f32. Products are
timed as gemm.py does `ours`: alone, cold, in graphs; what `ours` leaves of each shape is compared
with a product of the dequantized operands first.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from typing import TYPE_CHECKING, Any

import gemm
import record
from gemm import BASELINE, BLOCKS, BOTH_1X128, LAYERS, ROWS, Case, Pair, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

POWERS = [1 << i for i in range(14)]
BETWEEN = range(160, 641, 32)
ALL_ROWS = sorted(
    {m + by for m in POWERS for by in (-1, 0, 1) if 1 <= m + by <= 8192} | {48, 96, 1536, *BETWEEN}
)
FEWER_ROWS = sorted({*POWERS, *BETWEEN})
SWEEP = [Case(BLOCKS, Shape(m, n, k)) for n, k in LAYERS for m in ALL_ROWS]
SWEEP += [Case(pair, Shape(m, 4096, 4096)) for pair in (ROWS, BOTH_1X128) for m in FEWER_ROWS]
SWEEP += [Case(BLOCKS, Shape(m, 4096, k)) for k in (2880, 1408, 4304, 7184) for m in FEWER_ROWS]

CLIFF = 1.3
#: What is asked of the geometric means of a variant's time over that of mn_major f32.
ASKED = {"row_major": 1.03, "ue8m0": 1.03, "ue8m0 row_major": 1.03, "batch_invariant": 1.05}
LEAST_CALLS = 4  # of a graph
VARIANTS = ("row_major", "ue8m0", "ue8m0 row_major", "batch_invariant")


def neighbours(cases: list[dict]) -> list[dict]:
    """Each point beside the next one above in M, and its time over that one's."""
    pairs = []

    def layer(case: dict) -> tuple:
        return place_of(case)["pair"], case["n"], case["k"]

    cases = sorted(cases, key=lambda case: (*layer(case), case["m"]))
    for case, above in itertools.pairwise(cases):
        if layer(case) != layer(above):
            continue
        ratio = case["ours_microseconds"] / above["ours_microseconds"]
        pairs.append({**place_of(case), "above": above["m"], "ratio": ratio})
    return pairs


def cliffs(cases: list[dict]) -> list[dict]:
    return [pair for pair in neighbours(cases) if pair["ratio"] > CLIFF]


def slower_than_blk(cases: list[dict]) -> list[dict]:
    """Points that cuBLASLt computes faster with the same scales."""
    return [
        {**place_of(case), "ratio": case["ours_microseconds"] / blk}
        for case in cases
        if (blk := case["blk_microseconds"]) is not None and blk < case["ours_microseconds"]
    ]


def place_of(case: dict) -> dict:
    """Sizes and recipes; records until 2026-11-26 have one pair and do not name it."""
    sizes = {name: case[name] for name in ("m", "n", "k")}
    return {**sizes, "pair": case.get("pair", list(BLOCKS))}


def summary_of_variants(cases: list[dict]) -> dict[str, dict]:
    """Of each variant the time over that of `ours`: geometric mean, and the largest."""
    result = {}
    for name in VARIANTS:
        ratios = [case["over_ours"][name] for case in cases]
        worst = max(cases, key=lambda case: case["over_ours"][name])
        result[name] = {
            "geometric_mean": statistics.geometric_mean(ratios),
            "largest": max(ratios),
            "shape": [worst["m"], worst["n"], worst["k"]],
        }
    return result


def text_of_points(name: str, points: list[dict], of: int) -> str:
    lines = [f"{name}: {len(points)} of {of}"]
    for point in sorted(points, key=lambda p: -p["ratio"]):
        pair = " x ".join(point["pair"])
        shape = f"{point['m']} x {point['n']} x {point['k']}"
        lines.append(f"  {shape}, {pair}: {point['ratio']:.3f}")
    return "\n".join(lines)


# --- on the GPU -----------------------------------------------------------------------------------


class Pool:
    """Numbers from which operands are cut one behind the other: those of many calls are cold, and
    need not be made for each shape."""

    def __init__(self, device: str, megabytes: int = 512) -> None:
        import blockscale
        import torch

        options = {"dtype": torch.bfloat16, "device": device}
        x = torch.randn(megabytes * 64, 1 << 14, **options)
        codes = blockscale.quantize(x, "fp8_row").values.view(torch.uint8).flatten()
        scales = torch.rand(megabytes << 15, device=device) / 64 + 1 / 128
        powers = torch.randint(118, 122, (megabytes << 13,), dtype=torch.uint8, device=device)
        results = torch.empty(megabytes << 21, dtype=torch.uint8, device=device)
        self.memory = {"codes": codes, "scales": scales.view(torch.uint8), "powers": powers}
        self.memory["results"] = results
        self.restart()

    def restart(self) -> None:
        self.next = dict.fromkeys(self.memory, 0)

    def cut(self, name: str, dtype: Any, *shape: int) -> Any:
        begin = self.next[name]
        end = begin + math.prod(shape) * dtype.itemsize
        if end > len(self.memory[name]):
            raise SystemExit(f"gemm_sweep: the pool has no {shape} of {name} left")
        self.next[name] = (end + 255) // 256 * 256
        return self.memory[name][begin:end].view(dtype).view(shape)


class Operands:
    """Operands of a product, cut from a pool; `others` has A with the scales of VARIANTS, `scales`
    both operands' as torch takes them."""

    def __init__(self, pool: Pool, shape: Shape, pair: Pair = BLOCKS) -> None:
        import torch
        from blockscale import ScaledTensor

        m, n, k = shape
        blocks = math.ceil(k / 128)
        values = pool.cut("codes", torch.float8_e4m3fn, m, k)

        def of_rows(x: Any, rows: int) -> Any:
            return ScaledTensor(x, pool.cut("scales", torch.float32, rows, 1), "fp8_row")

        def a(recipe: str, layout: str) -> Any:
            name, dtype = (
                ("powers", torch.uint8) if "ue8m0" in recipe else ("scales", torch.float32)
            )
            size = (m, blocks) if layout == "row_major" else (blocks, m)
            return ScaledTensor(values, pool.cut(name, dtype, *size), recipe, layout=layout)

        self.a = of_rows(values, m) if pair == ROWS else a("fp8_1x128", "mn_major")
        self.others = {
            "row_major": a("fp8_1x128", "row_major"),
            "ue8m0": a("fp8_1x128_ue8m0", "mn_major"),
            "ue8m0 row_major": a("fp8_1x128_ue8m0", "row_major"),
        }
        b = pool.cut("codes", torch.float8_e4m3fn, n, k)
        if pair == ROWS:
            self.b = of_rows(b, n)
            self.scales = self.a.scales, self.b.scales.t()
        elif pair == BOTH_1X128:
            scales = pool.cut("scales", torch.float32, blocks, n)
            self.b = ScaledTensor(b, scales, "fp8_1x128", layout="mn_major")
            self.scales = self.a.scales.t(), scales
        else:
            scales = pool.cut("scales", torch.float32, math.ceil(n / 128), blocks)
            self.b = ScaledTensor(b, scales, "fp8_128x128")
            self.scales = self.a.scales.t(), scales.t()
        self.d = pool.cut("results", torch.bfloat16, m, n)


def variants() -> dict[str, Callable[[Operands], Any]]:
    """`ours` with other operands, or batch-invariant; each alone, as that is."""
    import blockscale

    made: dict[str, Callable[[Operands], Any]] = {
        name: lambda x, name=name: blockscale.gemm(x.others[name], x.b, out=x.d)
        for name in VARIANTS[:-1]
    }
    made[VARIANTS[-1]] = lambda x: blockscale.gemm(x.a, x.b, out=x.d, batch_invariant=True)
    return {name: gemm.alone(call) for name, call in made.items()}


def measure_shape(
    pool: Pool, case: Case, products: dict[str, Callable[[Operands], Any]], options: Any
) -> dict:
    """Microseconds of each product that takes the shape; `ours` must."""
    import torch

    pool.restart()
    pair, shape = case
    sets = [Operands(pool, shape, pair) for _ in range(gemm.set_count(shape, options.l2_bytes))]
    calls = len(sets) * math.ceil(LEAST_CALLS / len(sets))
    graphs = {}
    for name, product in products.items():
        try:
            product(sets[0])
            torch.cuda.synchronize()
        except (RuntimeError, ValueError):
            if name != "blk":
                raise
            continue
        graphs[name] = gemm.captured(product, sets, calls)
    error = gemm.error_of(sets[0], products["ours"])
    if not error <= gemm.LARGEST_ERROR:
        raise SystemExit(f"gemm_sweep: {shape}: the error of ours is {error}")
    times = gemm.median_microseconds(graphs, calls, options.repeats)
    return {**shape._asdict(), "pair": list(pair), "error": error, "microseconds": times}


def sweep(pool: Pool, options: Any) -> list[dict]:
    contenders = gemm.contenders()
    products = {name: contenders[name] for name in ("ours", "blk")}
    cases = []
    for point in SWEEP:
        case = measure_shape(pool, point, products, options)
        times = case.pop("microseconds")
        cases.append(
            {**case, **{f"{name}_microseconds": times.get(name) for name in ("ours", "blk")}}
        )
        if point.shape.m == ALL_ROWS[-1]:
            print(f"N = {case['n']}, K = {case['k']}, {point.pair}", flush=True)
    return cases


def measure_variants(pool: Pool, options: Any) -> list[dict]:
    products = {"ours": gemm.contenders()["ours"], **variants()}
    cases = []
    for shape in BASELINE:
        case = measure_shape(pool, Case(BLOCKS, shape), products, options)
        times = case["microseconds"]
        case["over_ours"] = {name: times[name] / times["ours"] for name in VARIANTS}
        cases.append(case)
    return cases


def add_options(parser: argparse.ArgumentParser) -> None:
    repeats = gemm.at_least(5)
    parser.add_argument("--repeats", type=repeats, default=9, help="at least 5; default: 9")


def measure(options: argparse.Namespace) -> Iterator[record.Measurement]:
    import torch

    properties = torch.cuda.get_device_properties(0)
    options.l2_bytes = properties.L2_cache_size
    with torch.no_grad():
        pool = Pool("cuda")
        points, others = sweep(pool, options), measure_variants(pool, options)
    results = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "repeats": options.repeats,
        "asked": ASKED,
        "cliffs": cliffs(points),
        "slower_than_blk": slower_than_blk(points),
        "variants": summary_of_variants(others),
        "sweep": points,
        "shapes": others,
    }
    taken = sum(case["blk_microseconds"] is not None for case in points)
    pairs = len(neighbours(points))
    print(text_of_points(f"slower than {CLIFF} x the neighbour above", results["cliffs"], pairs))
    print(text_of_points("slower than cuBLASLt's blocks", results["slower_than_blk"], taken))
    for name, found in results["variants"].items():
        mean, largest, shape = found["geometric_mean"], found["largest"], found["shape"]
        print(f"{name} over mn_major f32: {mean:.3f}, at most {largest:.3f} at {shape}")
    yield record.Measurement("gemm-sweep", "./dev gpu-bench gemm_sweep", results, record.gpu())
