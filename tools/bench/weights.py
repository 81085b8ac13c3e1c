"""Times products with FP4 weights on a GPU, beside reading these and torch's in bf16.

Options: [--weights RECIPE...] [--rows M...] [--activations RECIPE...] [--repeats N]

The weights are the five of ../shared/baselines.md, as files have them: values packed, scales in
row_major. `read` is the fastest of a few kernels that only read values and scales; `bf16` is
torch's product with the dequantized weight; `ours` begins when the call before it has ended, and
`chained` may begin before, as calls do by default. Graphs, cold weights, medians. Activations are
in bf16 and f16 (`bf16` is torch's product in f16 then), and from LEAST_QUANTIZED rows on, or of the
rows that are named, in other recipes too, beside torch's product of what they dequantize to; `pt`
is torch._scaled_mm of fp8_row's values, and of the weight in e4m3, with one scale for each. No file
is written where weights, rows or activations are named: weights that many rows are multiplied by in
16 bits, MXFP6 and MXFP8 after they have become bf16, are measured then alone.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import record
from gemm import alone, at_least, captured, median_microseconds

#: N x K.
LAYERS = ((7168, 2048), (4096, 7168), (24576, 1536), (8192, 8192), (28672, 4096))
RECIPES = ("nvfp4", "mxfp4")
ROWS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
#: Of weights that kernels of many rows take in 16 bits, and rows of these.
IN_16_BITS = ("bf16", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp8_e4m3", "mxfp8_e5m2")
ROWS_IN_16_BITS = (128, 256, 1024, 4096)
#: Of activations, by those of weights.
ACTIVATIONS = {
    weights: ("bf16", "f16", "fp8_row", "fp8_1x128", "mxfp8_e4m3", weights) for weights in RECIPES
} | dict.fromkeys(IN_16_BITS, ("bf16",))
PLAIN = ("bf16", "f16")
LEAST_QUANTIZED = 1024
#: Time over that of reading: what the geometric mean over the layers may be. With more rows bf16's
#: time over ours: what it has to be.
ASKED = {1: 1.8, 8: 2.2, 16: 2.4, 32: 2.8, 64: 3.0}
ASKED_OF_MANY = 0.90
#: `pt`'s time over ours, and with fast accumulation, of mxfp4 by rows in FP8.
ASKED_OF_PT = {"ours": 0.60, "fast": 0.75}
#: Of |D - D'| / |D'|, D' being the product with dequantized weights in f32.
LARGEST_ERROR = 3e-3
LARGEST_FAST_ERROR = 1e-2
LEAST_CALLS = 8

READ_SOURCE = """
extern "C" __global__ void __launch_bounds__(512) read_bytes(
    const uint4* values, int count, unsigned* never) {
  const int step = gridDim.x * blockDim.x;
  uint4 seen = {0, 0, 0, 0};
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  for (; i + step < count; i += 2 * step) {
    const uint4 a = __ldg(values + i), b = __ldg(values + i + step);
    seen.x ^= a.x ^ b.x, seen.y ^= a.y ^ b.y, seen.z ^= a.z ^ b.z, seen.w ^= a.w ^ b.w;
  }
  if (i < count) seen.x ^= __ldg(values + i).x;
  if ((seen.x ^ seen.y ^ seen.z ^ seen.w) == 0x9e3779b9u && never[0] == 1) never[1] = seen.x;
}
"""
#: Blocks of a multiprocessor that reading is tried with.
READ_BLOCKS = (2, 4, 8)


class Weight:
    """A weight in memory of its own, and what is read of it: values, and scales behind them."""

    def __init__(self, columns: int, k: int, recipe: str, seed: int) -> None:
        import blockscale
        import torch

        generator = torch.Generator("cuda").manual_seed(seed)
        x = torch.randn(columns, k, dtype=torch.bfloat16, device="cuda", generator=generator)
        self.b = x if recipe == "bf16" else blockscale.quantize(x, recipe)
        self.plain = self.numbers().bfloat16()
        self.in_f16 = self.plain.half()
        self.in_fp8 = self.plain.to(torch.float8_e4m3fn)
        parts = (x,) if recipe == "bf16" else (self.b.values, self.b.scales)
        self.bytes = torch.cat([part.view(torch.uint8).flatten() for part in parts])

    def numbers(self) -> Any:
        """In f32."""
        import blockscale
        import torch

        plain = isinstance(self.b, torch.Tensor)
        return self.b.float() if plain else blockscale.dequantize(self.b)


def contenders(a: Any, x: Any, d: Any, recipe: str) -> dict[str, Callable[[Weight], Any]]:
    """Of activations `a`, which are x in bf16 or f16, beside weights in `recipe`."""
    import blockscale
    import torch

    reads = torch.cuda._compile_kernel(READ_SOURCE, "read_bytes")
    never = torch.zeros(2, dtype=torch.int32, device="cuda")
    processors = torch.cuda.get_device_properties(0).multi_processor_count

    def read(blocks: int) -> Callable[[Weight], None]:
        grid = (blocks * processors, 1, 1)
        return lambda w: reads(grid, (512, 1, 1), (w.bytes, w.bytes.numel() // 16, never))

    def chained(w: Weight) -> Any:
        return blockscale.gemm(a, w.b, out=d)

    def bf16(w: Weight) -> Any:
        plain = w.in_f16 if x.dtype == torch.float16 else w.plain
        return torch.matmul(x, plain.t(), out=d)

    one = torch.ones((), device="cuda")
    per_tensor = {"scale_a": one, "scale_b": one, "out_dtype": d.dtype, "use_fast_accum": True}

    def pt(w: Weight) -> Any:
        return torch._scaled_mm(a.values, w.in_fp8.t(), out=d, **per_tensor)

    def fast(w: Weight) -> Any:
        return blockscale.gemm(a, w.b, out=d, fast_accumulation=True)

    found = {f"read {blocks}": read(blocks) for blocks in READ_BLOCKS}
    if not isinstance(a, torch.Tensor) and a.recipe == blockscale.Recipe.fp8_row:
        found["pt"] = pt
        if recipe == "mxfp4":
            found["fast"] = alone(fast)
    return {**found, "bf16": bf16, "ours": alone(chained), "chained": chained}


def products_of(recipe: str, options: argparse.Namespace) -> list[tuple[int, str]]:
    """Rows and the recipe of activations of each product with weights in a recipe."""
    return [
        (m, of_a)
        for of_a in ACTIVATIONS[recipe]
        for m in options.rows or (ROWS if recipe in RECIPES else ROWS_IN_16_BITS)
        if of_a in PLAIN or m >= LEAST_QUANTIZED or options.rows
        if not options.activations or of_a in options.activations
    ]


def measure_layer(
    columns: int, k: int, recipe: str, products: list[tuple[int, str]], repeats: int
) -> list[dict]:
    import blockscale
    import torch

    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    sets = math.ceil(3 * l2_bytes / (columns * k / 2)) + 1
    weights = [Weight(columns, k, recipe, seed) for seed in range(sets)]
    calls = len(weights) * math.ceil(LEAST_CALLS / len(weights))
    cases = []
    for m, of_a in products:
        a = x = torch.randn(m, k, dtype=torch.bfloat16, device="cuda")
        if of_a == "f16":
            a = x = x.half()
        numbers = x.float()
        if of_a not in PLAIN:
            a = blockscale.quantize(x, of_a)
            numbers = blockscale.dequantize(a)
            x = numbers.bfloat16()
        d = torch.full((m, columns), math.nan, dtype=x.dtype, device="cuda")
        works = contenders(a, x, d, recipe)
        exact = numbers @ weights[0].numbers().t()
        errors = {}
        for name, largest in (("ours", LARGEST_ERROR), ("fast", LARGEST_FAST_ERROR)):
            if name not in works:
                continue
            works[name](weights[0])
            errors[name] = float((d.float() - exact).norm() / exact.norm())
            if not errors[name] <= largest:
                of = f"{m} x {columns} x {k}, {of_a} x {recipe}, {name}"
                raise SystemExit(f"weights: {of}: the error is {errors[name]}")
        graphs = {}
        for name, work in works.items():
            work(weights[0])  # loads its kernels
            torch.cuda.synchronize()
            graphs[name] = captured(work, weights, calls)
        times = median_microseconds(graphs, calls, repeats)
        read = min(times.pop(f"read {blocks}") for blocks in READ_BLOCKS)
        cases.append(
            {
                "m": m,
                "n": columns,
                "k": k,
                "recipe": recipe,
                "activations": of_a,
                "read_microseconds": read,
                **{f"{name}_microseconds": time for name, time in times.items()},
                "error": errors["ours"],
                **({"fast_error": errors["fast"]} if "fast" in errors else {}),
                "plan": blockscale.describe_gemm(m, columns, k, of_a, recipe).rstrip(),
            }
        )
    return cases


def recipes_of(case: dict) -> str:
    """Of weights, and of activations where these are not in bf16."""
    of_a = case.get("activations", "bf16")
    return case["recipe"] if of_a == "bf16" else f"{of_a} x {case['recipe']}"


def means_of(cases: list[dict]) -> dict[str, dict[str, float]]:
    """Of each pair of recipes and number of rows: time over reading's, alone and chained, and
    bf16's time over ours, and `pt`'s over ours, with fast accumulation too, where it is there."""
    groups: dict[str, list[dict]] = {}
    for case in cases:
        groups.setdefault(f"{recipes_of(case)}, M = {case['m']}", []).append(case)

    def mean(group: list[dict], above: str, below: str) -> float:
        key = "{}_microseconds".format
        return statistics.geometric_mean(case[key(above)] / case[key(below)] for case in group)

    return {
        name: {
            "over_read": mean(group, "ours", "read"),
            "chained_over_read": mean(group, "chained", "read"),
            "bf16_over_ours": mean(group, "bf16", "ours"),
        }
        | ({"pt_over_ours": mean(group, "pt", "ours")} if "pt_microseconds" in group[0] else {})
        | ({"pt_over_fast": mean(group, "pt", "fast")} if "fast_microseconds" in group[0] else {})
        for name, group in groups.items()
    }


def table(cases: list[dict]) -> str:
    names = ("read", "bf16", "ours", "chained")
    heads = [*(f"{name}, us" for name in names), "ours / read"]
    lines = [f"{'product':36}" + "".join(f"{head:>13}" for head in heads)]
    for case in cases:
        times = [case[f"{name}_microseconds"] for name in names]
        cells = [f"{time:.2f}" for time in times] + [f"{times[2] / times[0]:.2f}"]
        name = f"{case['m']} x {case['n']} x {case['k']} {recipes_of(case)}"
        lines.append(f"{name:36}" + "".join(f"{cell:>13}" for cell in cells))
    return "\n".join(lines)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--weights", nargs="+", choices=list(ACTIVATIONS), help=f"default: {RECIPES}"
    )
    parser.add_argument(
        "--rows",
        nargs="+",
        type=at_least(1),
        help=f"default: {ROWS}; of weights in 16 bits {ROWS_IN_16_BITS}",
    )
    names = sorted({name for names in ACTIVATIONS.values() for name in names})
    parser.add_argument("--activations", nargs="+", choices=names, help="default: all")
    parser.add_argument("--repeats", type=at_least(9), default=15, help="at least 9; default: 15")


def measure(options: argparse.Namespace) -> Iterator[record.Measurement]:
    import torch

    print(table([]), flush=True)
    cases = []
    for recipe in options.weights or RECIPES:
        for columns, k in LAYERS:
            products = products_of(recipe, options)
            found = measure_layer(columns, k, recipe, products, options.repeats)
            print("\n".join(table(found).splitlines()[1:]), flush=True)
            cases += found
            torch.cuda.empty_cache()
    means = means_of(cases)
    for name, ratios in means.items():
        print(name + ": " + ", ".join(f"{key} {ratio:.2f}" for key, ratio in ratios.items()))
    if options.weights or options.rows or options.activations:
        return
    results = {"torch": torch.__version__, "repeats": options.repeats, "means": means}
    results |= {"asked": {str(m): asked for m, asked in ASKED.items()}}
    results |= {"asked_of_pt": ASKED_OF_PT}
    results |= {"asked_of_many": ASKED_OF_MANY, "cases": cases}
    yield record.Measurement("weights", "./dev gpu-bench weights", results, record.gpu())
