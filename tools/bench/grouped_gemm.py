"""Times blockscale.grouped_gemm on a GPU, beside torch's dense FP8 product and reading.

Options: [--cases NAME...] [--repeats N]

Operands are random numbers in fp8_1x128 (mn_major scales) and fp8_128x128, results bf16, all graphs
of calls on cold operands, replayed in random order; medians count. `prefill`: torch's product with
one scale a tensor over ours. `middle`: the larger of what a copy of all bytes and that product
take, over ours. `decode`: what reading all bytes takes, over ours. `skew`: the time of as many rows
shared out alike among as many groups that have some, over ours. `gather`: ours of gathered rows
over ours of the same rows in place. `masked`: ours of 6 groups of 32 over ours of those 6 alone.
Rows of a group are between 0.7 and 1.3 of the average. No file is written where cases are named.
"""

import argparse
import math
import random
import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import record
from gemm import at_least, captured, median_microseconds

LAYERS = ((6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048))


class Case(NamedTuple):
    kind: str
    groups: int
    rows: int  # of a group on average
    n: int
    k: int
    routing: str = "alike"


def _of(kind: str, sizes: tuple[tuple[int, int], ...], layers: tuple = LAYERS) -> list[Case]:
    return [Case(kind, groups, rows, n, k) for groups, rows in sizes for n, k in layers]


CASES = [
    *_of("prefill", ((4, 8192), (8, 4096))),
    *_of("middle", ((32, 192),)),
    *_of("decode", ((32, 20),)),
    *_of("decode", ((6, 20),), (LAYERS[0], LAYERS[3])),
    *_of("decode", ((128, 30),), LAYERS[2:]),
    *(Case("skew", 32, rows, 4096, 4096, r)
      for rows in (20, 192) for r in ("zipf", "one hot", "half empty")),
    Case("gather", 32, 192, 4096, 4096),
    Case("gather", 8, 4096, 4096, 4096),
    Case("masked", 32, 20, 4096, 4096),
]  # fmt: skip

#: What is asked of each kind's ratios: at least, or of the last two at most.
ASKED = {
    "prefill": 0.94,
    "middle": 0.80,
    "decode": 0.90,
    "skew": 0.83,
    "gather": 1.08,
    "masked": 1.1,
}
#: Seconds that a kernel takes beside reading.
READ_BEGINS = 2.0e-6


def rows_of(case: Case, seed: int = 1) -> list[int]:
    """Of each group."""
    chance = random.Random(seed)
    total = case.groups * case.rows
    if case.routing == "alike":
        return [max(1, round(case.rows * chance.uniform(0.7, 1.3))) for _ in range(case.groups)]
    if case.routing == "one hot":
        return [total if g == case.groups // 2 else 0 for g in range(case.groups)]
    if case.routing == "half empty":
        return [2 * case.rows * (g % 2) for g in range(case.groups)]
    weights = [(g + 1) ** -1.2 for g in range(case.groups)]
    chance.shuffle(weights)
    rows = [0] * case.groups
    for g in chance.choices(range(case.groups), weights, k=total):
        rows[g] += 1
    return rows


def evenly(rows: list[int]) -> list[int]:
    """As many rows, shared out alike among as many groups that have some."""
    alive = sum(r > 0 for r in rows)
    share, rest = divmod(sum(rows), alive)
    return [share + (g < rest) for g in range(alive)]


def bytes_of(case: Case, rows: list[int]) -> int:
    """Of all that is read and written, each once."""
    alive, m = sum(r > 0 for r in rows), sum(rows)
    weights = alive * (case.n * case.k + case.n * case.k // 128**2 * 4)
    return weights + m * case.k + m * case.k // 128 * 4 + 2 * m * case.n


def name_of(case: dict) -> str:
    name = f"{case['kind']} {case['groups']} x {case['rows']}, {case['n']} x {case['k']}"
    return name if case["routing"] == "alike" else f"{name}, {case['routing']}"


def table(cases: list[dict]) -> str:
    lines = [f"{'case':40}{'floor, us':>12}{'ours, us':>12}{'ratio':>8}{'asked':>8}"]
    for case in cases:
        name = name_of(case)
        numbers = f"{case['beside_microseconds']:12.2f}{case['ours_microseconds']:12.2f}"
        lines.append(f"{name:40}{numbers}{case['ratio']:8.3f}{ASKED[case['kind']]:8.2f}")
    return "\n".join(lines)


def means_of(cases: list[dict]) -> dict[str, dict[str, float]]:
    found = {}
    for kind, asked in ASKED.items():
        ratios = [case["ratio"] for case in cases if case["kind"] == kind]
        if ratios:
            worst = max(ratios) if kind in ("gather", "masked") else min(ratios)
            mean = statistics.geometric_mean(ratios)
            found[kind] = {"mean": mean, "worst": worst, "asked": asked}
    return found


# --- on the GPU -----------------------------------------------------------------------------------


class Operands:
    """Of a product of groups, in memory of their own."""

    def __init__(self, case: Case, rows: list[int], seed: int) -> None:
        import blockscale
        import torch

        generator = torch.Generator("cuda").manual_seed(seed)
        options = {"dtype": torch.bfloat16, "device": "cuda", "generator": generator}
        m, groups = sum(rows), len(rows)
        self.a = blockscale.quantize(
            torch.randn(m, case.k, **options), "fp8_1x128", layout="mn_major"
        )
        self.b = blockscale.quantize(torch.randn(groups, case.n, case.k, **options), "fp8_128x128")
        ends = torch.tensor([0, *rows], device="cuda").cumsum(0)
        self.offsets = ends.to(torch.int32)
        self.index = torch.randperm(m, device="cuda", generator=generator).to(torch.int32)
        self.d = torch.empty(m, case.n, dtype=torch.bfloat16, device="cuda")
        self.one = torch.ones((), device="cuda")

    def grouped(self) -> None:
        import blockscale

        blockscale.grouped_gemm(self.a, self.b, self.offsets, out=self.d)

    def gathered(self) -> None:
        import blockscale

        blockscale.grouped_gemm(self.a, self.b, self.offsets, index=self.index, out=self.d)

    def dense(self) -> None:
        import torch

        options = {"scale_a": self.one, "scale_b": self.one, "out_dtype": torch.bfloat16}
        b = self.b.values[0].t()
        torch._scaled_mm(self.a.values, b, out=self.d, use_fast_accum=True, **options)

    def error(self) -> float:
        """|D - D'| / |D'| of first rows of a few groups, D' being the product in f32."""
        import blockscale
        import torch

        self.d.fill_(math.nan)
        self.grouped()
        a, b = blockscale.dequantize(self.a), blockscale.dequantize(self.b)
        ends = self.offsets.tolist()
        wrong = whole = 0.0
        alive = [g for g in range(len(ends) - 1) if ends[g] < ends[g + 1]]
        for g in alive[:: max(1, len(alive) // 4)]:
            rows = slice(ends[g], min(ends[g + 1], ends[g] + 32))
            exact = a[rows] @ b[g].t()
            wrong += float((self.d[rows].float() - exact).square().sum())
            whole += float(exact.square().sum())
        torch.cuda.synchronize()
        return math.sqrt(wrong / whole)


class Masked(Operands):
    """Of which `alive` groups have all of `case.rows` rows, and the others none."""

    def __init__(self, case: Case, alive: int, groups: int, seed: int) -> None:
        import blockscale
        import torch

        super().__init__(case, [case.rows] * groups, seed)
        options = {"dtype": torch.bfloat16, "device": "cuda"}
        x = torch.randn(groups, case.rows, case.k, **options)
        self.a = blockscale.quantize(x, "fp8_1x128")
        counts = [0] * groups
        for i in range(alive):
            counts[i * groups // alive] = case.rows
        self.counts = torch.tensor(counts, dtype=torch.int32, device="cuda")
        self.d = torch.empty(groups, case.rows, case.n, dtype=torch.bfloat16, device="cuda")

    def grouped(self) -> None:
        import blockscale

        blockscale.masked_grouped_gemm(self.a, self.b, self.counts, out=self.d)


def rates() -> tuple[float, float]:
    """Bytes a second that a kernel reads, and that one copies, read and written."""
    import torch

    x = torch.zeros(1 << 28, dtype=torch.int32, device="cuda")
    y = torch.empty_like(x)

    def graph(work: Callable[[Any], Any]) -> Any:
        work(None)
        return captured(work, [None], 1)

    times = median_microseconds(
        {"read": graph(lambda _: x.amax()), "copy": graph(lambda _: y.copy_(x))}, 1, 15
    )
    return 4e6 * x.numel() / times["read"], 8e6 * x.numel() / times["copy"]


def set_count(case: Case, rows: list[int], l2_bytes: int) -> int:
    return max(1, min(32, math.ceil(3 * l2_bytes / bytes_of(case, rows))))


def times_of(works: dict[str, list[Callable[[], None]]], repeats: int) -> dict[str, float]:
    """Microseconds of a call; each work is the same call on operands of their own."""
    graphs, calls = {}, max(8, *(len(work) for work in works.values()))
    for name, work in works.items():
        work[0]()
        graphs[name] = captured(lambda call: call(), work, calls)
    return median_microseconds(graphs, calls, repeats)


def measure_case(case: Case, repeats: int, l2_bytes: int, read: float, copy: float) -> dict:
    rows = rows_of(case)
    count = set_count(case, rows, l2_bytes)

    def sets(of_rows: list[int]) -> list[Operands]:
        return [Operands(case, of_rows, seed) for seed in range(count)]

    if case.kind == "masked":
        alone = [Masked(case, 6, 6, seed) for seed in range(count)]
        ours = [Masked(case, 6, 32, seed) for seed in range(count)]
        works = {"ours": [x.grouped for x in ours], "beside": [x.grouped for x in alone]}
        times, error = times_of(works, repeats), 0.0
    else:
        own = sets(rows)
        error = own[0].error()
        if not error < 2.0**-7:
            raise SystemExit(f"grouped_gemm: {case}: the error is {error}; nothing to time")
        works = {"ours": [x.grouped for x in own]}
        if case.kind in ("prefill", "middle"):
            works["beside"] = [x.dense for x in own]
        elif case.kind == "skew":
            works["beside"] = [x.grouped for x in sets(evenly(rows))]
        elif case.kind == "gather":
            works = {"ours": [x.gathered for x in own], "beside": [x.grouped for x in own]}
        times = times_of(works, repeats)
    size = bytes_of(case, rows)
    if case.kind == "decode":
        times["beside"] = 1e6 * (READ_BEGINS + size / read)
    if case.kind == "middle":
        times["beside"] = max(times["beside"], 1e6 * size / copy)
    ratio = times["beside"] / times["ours"]
    return {
        **case._asdict(),
        "bytes": size,
        "ours_microseconds": times["ours"],
        "beside_microseconds": times["beside"],
        "ratio": 1 / ratio if case.kind in ("gather", "masked") else ratio,
        "error": error,
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", nargs="+", choices=list(ASKED), help="default: all of them")
    parser.add_argument("--repeats", type=at_least(9), default=15, help="at least 9; default: 15")


def measure(options: argparse.Namespace) -> Iterator[record.Measurement]:
    import torch

    properties = torch.cuda.get_device_properties(0)
    read, copy = rates()
    cases = []
    for case in CASES:
        if options.cases and case.kind not in options.cases:
            continue
        cases.append(measure_case(case, options.repeats, properties.L2_cache_size, read, copy))
        torch.cuda.empty_cache()
        print(table(cases[-1:]).splitlines()[-1], flush=True)
    means = means_of(cases)
    print(f"\n{properties.name}: reads {read / 1e12:.2f}, copies {copy / 1e12:.2f} TB/s")
    for kind, found in means.items():
        print(", ".join([kind, *(f"{name} {value:.3f}" for name, value in found.items())]))
    if options.cases:
        return
    results = {
        "torch": torch.__version__,
        "read_bytes_per_second": read,
        "copy_bytes_per_second": copy,
        "repeats": options.repeats,
        "means": means,
        "cases": cases,
    }
    yield record.Measurement("grouped-gemm", "./dev gpu-bench grouped_gemm", results, record.gpu())
