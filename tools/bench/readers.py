"""What the tables of the pages read out of a record: rows, goals, and a line of figures.

A record is recognised by what its results hold; READERS has one reader for each benchmark.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import command
import gemm
import gemm_sweep
import grouped_gemm
import programs
import weights


class Row(NamedTuple):
    """Ours and a peer's in one unit; the ratio is above 1 where ours is better."""

    shape: str
    ours: float
    peer: float
    ratio: float


class Goal(NamedTuple):
    """Something asked of a case. Cases of one group share a line of the table."""

    group: str
    case: str
    reached: float
    asked: float
    at_least: bool
    unit: str = ""

    @property
    def short(self) -> float:
        """By which share the goal is missed; at most 0 where it holds."""
        ratio = self.asked / self.reached if self.at_least else self.reached / self.asked
        return ratio - 1


class Reader(NamedTuple):
    """`takes` tells by results whether they are of this benchmark. `left_out` counts the goals that
    hold and of which a thinned record keeps nothing else."""

    takes: Callable[[Any], bool]
    peer: str
    unit: str
    rows: Callable[[Any], Iterator[Row]]
    goals: Callable[[Any], Iterator[Goal]]
    figure: Callable[[dict], str]
    left_out: Callable[[Any], int] = lambda _: 0


def reader_of(results: Any) -> Reader:
    (found,) = [reader for reader in READERS if reader.takes(results)]
    return found


def has_cases(*keys: str) -> Callable[[Any], bool]:
    """Whether results have cases, and these keys."""

    def takes(results: Any) -> bool:
        cases = isinstance(results, dict) and results.get("cases")
        return bool(cases) and all(key in cases[0] for key in keys)

    return takes


def has(*keys: str) -> Callable[[Any], bool]:
    return lambda results: isinstance(results, dict) and all(key in results for key in keys)


def span(values: list[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def shape_of(case: dict) -> str:
    return f"{case['m']} x {case['n']} x {case['k']}"


def chip_of(document: dict) -> str:
    """Without its maker's name for a GPU, and without what a board adds."""
    return " ".join(
        document["chip"].removeprefix("NVIDIA ").split()[: 1 if "driver" in document else 2]
    )


def no_goals(_: Any) -> Iterator[Goal]:
    return iter(())


def no_rows(_: Any) -> Iterator[Row]:
    return iter(())


# --- quantizers on a GPU (ops/quantize/bench/quantize_gpu_bench.cpp) ------------------------------

INPUTS = ("identity", "swiglu", "rms_norm", "gelu_tanh", "modulate")
RECIPES = ("mxfp4", "nvfp4", "mxfp8_e4m3", "fp8_1x128", "fp8_row", "fp8_128x128")
TABLE_MIB = 64


def mebibytes(case: dict) -> float:
    return case["input_bytes"] / 2**20


def in_the_table(case: dict) -> bool:
    """bf16, scales in row_major, nothing given, one result."""
    plain = not case.get("scales_given") and not case.get("columns_too")
    usual = case["dtype"] == "bf16" and case["layout"] == "row_major"
    return plain and usual and mebibytes(case) == TABLE_MIB


def quantizer_rows(results: dict) -> Iterator[Row]:
    found = {}
    for case in filter(in_the_table, results["cases"]):
        # Records of before `scales_given` have what is meant first.
        found.setdefault((case["recipe"], case["input"]), case)
    for recipe in RECIPES:
        for name in INPUTS:
            if case := found.get((recipe, name)):
                shape = recipe if name == "identity" else f"{recipe} of {name}"
                times = case["microseconds"], case["copy_microseconds"]
                yield Row(shape, *times, times[1] / times[0])


def quantizer_goals(results: dict) -> Iterator[Goal]:
    for case in results["cases"]:
        if "allowed_microseconds" in case:
            text = f"{case['recipe']} {case['dtype']} {case['layout']} {mebibytes(case):g} MiB"
            limits = case["microseconds"], case["allowed_microseconds"]
            yield Goal(f"{case['line']}: {case['input']}", text, *limits, False, " us")


def quantizer_figure(document: dict) -> str:
    ratios = {True: [], False: []}
    for row in quantizer_rows(document["results"]):
        ratios[" of " in row.shape].append(row.ratio)
    return (
        f"Quantizers on an {chip_of(document)}: {span(ratios[False])} of the rate of a copy that "
        f"moves as many bytes, {span(ratios[True])} with SwiGLU, RMSNorm, GELU or modulation fused."
    )


# --- products on a GPU ----------------------------------------------------------------------------


def product_rows(results: dict) -> Iterator[Row]:
    for case in results["shapes"]:
        ours, peer = case["ours_microseconds"], case["pt_microseconds"]
        yield Row(shape_of(case), ours, peer, peer / ours)


def product_goals(results: dict) -> Iterator[Goal]:
    means = results["geometric_means"]["pt_over_ours"]
    for name, asked in results.get("asked", gemm.ASKED).items():
        group = f"speed over cuBLASLt's, {name}"
        yield Goal(group, "the mean", means[name], asked, at_least=True)


def product_figure(document: dict) -> str:
    means = document["results"]["geometric_means"]
    over = means["pt_over_ours"]
    return (
        f"FP8 products on an {chip_of(document)}, scales of 1x128 and 128x128: {over['all']:.2f} x "
        f"cuBLASLt without block scales (M = 1: {over['M = 1']:.2f}, M >= 4096: "
        f"{over['M >= 4096']:.2f}), {means['blk_over_ours']['all']:.2f} x cuBLASLt with them."
    )


def user_rows(results: dict) -> Iterator[Row]:
    for case, row in zip(results["shapes"], product_rows(results), strict=True):
        yield row._replace(shape=f"{row.shape}, {' x '.join(case['pair'])}")


def user_goals(results: dict) -> Iterator[Goal]:
    for name, group in results["users"].items():
        peer = "with block scales " if gemm.USERS[name].peer == "blk" else ""
        text = f"the mean; the least {group['least']:.2f}"
        yield Goal(
            f"speed over cuBLASLt's {peer}at {name}", text, group["mean"], group["asked"], True
        )


def user_figure(document: dict) -> str:
    means = [group["mean"] for group in document["results"]["users"].values()]
    return f"Other FP8 products on an {chip_of(document)}: {span(means)} x cuBLASLt."


def sweep_goals(results: dict) -> Iterator[Goal]:
    for name, found in results["variants"].items():
        asked = results.get("asked", gemm_sweep.ASKED)[name]
        shape = " x ".join(map(str, found["shape"]))
        text = f"{found['largest']:.2f} at {shape}"
        mean = found["geometric_mean"]
        yield Goal(f"{name}: mean time over that of mn_major f32", text, mean, asked, False)
    for pair in gemm_sweep.neighbours(results["sweep"]):
        group, ratio = "time over that of the next point above in M", pair["ratio"]
        yield Goal(group, shape_of(pair), ratio, gemm_sweep.CLIFF, False)
    for case in results["sweep"]:
        if case["blk_microseconds"] is not None:
            ratio = case["ours_microseconds"] / case["blk_microseconds"]
            yield Goal("time over cuBLASLt's with block scales", shape_of(case), ratio, 1, False)


def sweep_figure(document: dict) -> str:
    goals = list(sweep_goals(document["results"]))
    points = [goal for goal in goals if "cuBLASLt" in goal.group]
    slower = sum(goal.short > 0 for goal in points)
    return (
        f"FP8 products of 1 to 8192 rows on an {chip_of(document)}: of {len(points)} that cuBLASLt "
        f"computes with block scales, {len(points) - slower} are at least as fast."
    )


def quantized_rows(results: dict) -> Iterator[Row]:
    for case in results["shapes"]:
        for result in case.get("quantized", ()):
            if "," not in result["result"]:  # nothing fused
                shape = f"{shape_of(case)} to {result['result']}"
                yield Row(shape, result["us"], case["us"], case["us"] / result["us"])


def quantized_goals(results: dict) -> Iterator[Goal]:
    for row in quantized_rows(results):
        shape, _, recipe = row.shape.partition(" to ")
        if int(shape.split()[0]) >= 4096:
            group = f"speed with results in {recipe}, over bf16"
            yield Goal(group, shape, row.ratio, programs.ASKED_OF_QUANTIZED_RESULTS, at_least=True)


def quantized_figure(document: dict) -> str:
    ratios = [row.ratio for row in quantized_rows(document["results"])]
    return (
        f"Results quantized for the next product on an {chip_of(document)}: {span(ratios)} of the "
        "speed with bf16 results."
    )


def weight_rows(results: dict) -> Iterator[Row]:
    """Of each pair of recipes and number of rows the geometric means over the weights."""
    groups: dict[str, list[dict]] = {}
    for case in results["cases"]:
        groups.setdefault(f"{case['m']} rows, {weights.recipes_of(case)}", []).append(case)
    for name, cases in groups.items():

        def mean(key: str, cases: list[dict] = cases) -> float:
            return statistics.geometric_mean(case[f"{key}_microseconds"] for case in cases)

        bf16 = mean("bf16")
        yield Row(name, mean("ours"), bf16, bf16 / mean("ours"))
        if "fast_microseconds" in cases[0]:
            yield Row(f"{name}, fast accumulation", mean("fast"), bf16, bf16 / mean("fast"))


def weight_goals(results: dict) -> Iterator[Goal]:
    for name, found in results["means"].items():
        asked = results["asked"].get(name.rpartition(" ")[2])
        if asked is not None:
            yield Goal("time over reading's", name, found["over_read"], asked, at_least=False)
        else:
            least = results["asked_of_many"]
            yield Goal("bf16's time over ours", name, found["bf16_over_ours"], least, at_least=True)
        if "pt_over_fast" in found:
            for key, what in (("ours", "ours"), ("fast", "ours with fast accumulation")):
                least = results.get("asked_of_pt", weights.ASKED_OF_PT)[key]
                has = found[f"pt_over_{key}"]
                yield Goal(f"pt's time over {what}", name, has, least, at_least=True)


def weight_figure(document: dict) -> str:
    results = document["results"]

    def found(key: str, *, few: bool) -> str:
        means = [(name, mean) for name, mean in results["means"].items() if " x " not in name]
        return span([mean[key] for name, mean in means if (int(name.split()[-1]) <= 16) == few])

    return (
        f"Rows in bf16 by FP4 weights on an {chip_of(document)}: 1 to 16 rows "
        f"{found('bf16_over_ours', few=True)} x torch's bf16 and {found('over_read', few=True)} "
        f"times what reading the weights takes, 32 to 4096 {found('bf16_over_ours', few=False)} x "
        "torch's."
    )


def grouped_rows(results: dict) -> Iterator[Row]:
    for case in results["cases"]:
        ours, beside = case["ours_microseconds"], case["beside_microseconds"]
        yield Row(grouped_gemm.name_of(case), ours, beside, beside / ours)


def grouped_goals(results: dict) -> Iterator[Goal]:
    for kind, found in results["means"].items():
        text = f"the mean; the worst {found['worst']:.2f}"
        at_least = kind not in ("gather", "masked")
        yield Goal(f"products of groups: {kind}", text, found["mean"], found["asked"], at_least)


def grouped_figure(document: dict) -> str:
    means = document["results"]["means"]
    return (
        f"FP8 products of groups on an {chip_of(document)}: {means['decode']['mean']:.2f} of the "
        f"rate of reading in decode, {means['prefill']['mean']:.2f} of cuBLASLt's in prefill."
    )


def moe_rows(results: dict) -> Iterator[Row]:
    for case in results["cases"]:
        routing = "" if case["routing"] == "uniform" else f", {case['routing']}"
        ours, floor = case["ours_microseconds"], case["floor_microseconds"]
        yield Row(f"{case['layer']}, {case['tokens']}{routing}", ours, floor, case["ratio"])


def moe_figure(document: dict) -> str:
    cases = document["results"]["cases"]
    in_fp8 = [case for case in cases if case.get("weights", "fp8_128x128").startswith("fp8")]
    ratios = [row.ratio for row in moe_rows({"cases": in_fp8})]
    return (
        f"Layers of experts in FP8 on an {chip_of(document)}: {span(ratios)} of the speed that "
        "reading and multiplying alone would have."
    )


def launch_rows(results: dict) -> Iterator[Row]:
    for case in results["launch"]:
        ours, bare = case["blockscale_us"], case["bare_us"]
        yield Row(f"launch, {case['case']}", ours, bare, bare / ours)


def launch_figure(document: dict) -> str:
    above = [case["above_bare_us"] for case in document["results"]["launch"]]
    return f"A launch costs {span(above)} us more than a bare one on an {chip_of(document)}."


def host_rows(results: dict) -> Iterator[Row]:
    for case in results["cases"]:
        if case["limit"] is not None:
            ours = case["microseconds"]
            yield Row(case["case"], ours, case["limit"], case["limit"] / ours)


def host_goals(results: dict) -> Iterator[Goal]:
    for row in host_rows(results):
        yield Goal("CPU time of a call from Python", row.shape, row.ours, row.peer, False, " us")


def host_figure(document: dict) -> str:
    times = {row.shape: row.ours for row in host_rows(document["results"])}
    return (
        f"A call from Python on CUDA tensors costs the CPU {times['gemm, out']:.1f} us with `out`, "
        f"{times['gemm']:.0f} with a result that is allocated."
    )


# --- on the CPU -----------------------------------------------------------------------------------

TABLE_LAYER = (4096, 4096)
TABLE_ROWS = 256  # at most
CPU_RECIPES = ("fp8_tensor", *RECIPES, "mxfp6_e2m3")


def cpu_products(results: dict) -> Iterator[tuple[dict, dict]]:
    """Each shape with each of its cases."""
    for shape in results["shapes"]:
        for case in shape["cases"]:
            yield shape, case


def pair_of(case: dict) -> str:
    return f"{case['recipe_a']} x {case['recipe_b']}"


def milliseconds_of_peer(shape: dict, case: dict) -> float:
    if case["number"] == "read":
        rate = shape["read_bytes_per_second"][str(case["threads"])]
        return case["weight_bytes"] / rate * 1e3
    return shape["torch_median_seconds"] * 1e3


def cpu_product_rows(results: dict) -> Iterator[Row]:
    """One layer, one thread."""
    for shape, case in cpu_products(results):
        usual = (shape["n"], shape["k"]) == TABLE_LAYER and shape["m"] <= TABLE_ROWS
        if usual and case["threads"] == 1:
            text = f"{shape_of(shape)}, {pair_of(case)}"
            text += ", of reading" if case["number"] == "read" else ""
            peer = milliseconds_of_peer(shape, case)
            yield Row(text, case["median_seconds"] * 1e3, peer, case["median"])


OF_NUMBER = {
    "read": "share of reading",
    "torch": "speed over torch's",
    "two": "two threads over one",
}


def cpu_product_goals(results: dict) -> Iterator[Goal]:
    for shape, case in cpu_products(results):
        group = f"{pair_of(case)}: {OF_NUMBER[case['number']]}"
        yield Goal(group, shape_of(shape), case["median"], case["must"], at_least=True)


def cpu_product_figure(document: dict) -> str:
    """Of FP4 weights and bf16 activations."""
    found: dict[int, list[float]] = {}
    for shape, case in cpu_products(document["results"]):
        plain = case["threads"] == 1 and case["recipe_a"] == "bf16" and "fp4" in case["recipe_b"]
        if plain and (shape["n"], shape["k"]) == TABLE_LAYER and shape["m"] <= TABLE_ROWS:
            found.setdefault(shape["m"], []).append(case["median"])
    speeds = ", ".join(f"{span(found[m])} x at {m} rows" for m in sorted(found) if m > 1)
    return (
        f"FP4 weights on one thread of an {chip_of(document)}: against torch's bf16 {speeds}; at "
        f"one row {span(found[1])} of the rate of reading."
    )


def cpu_quantizer_rows(results: dict) -> Iterator[Row]:
    """Without variants of a recipe."""
    return (row for row in all_cpu_quantizer_rows(results) if row.shape.split()[1] in CPU_RECIPES)


def all_cpu_quantizer_rows(results: dict) -> Iterator[Row]:
    name = "quantize" if "transform" in results["cases"][0] else "dequantize"
    direction = "from" if name == "quantize" else "to"
    for case in results["cases"]:
        share = case["memcpy_share"]
        milliseconds = case["seconds"] * 1e3
        yield Row(
            f"{name} {case['recipe']} {direction} {case['dtype']}",
            milliseconds,
            milliseconds * share,
            share,
        )


def cpu_quantizer_goals(results: dict) -> Iterator[Goal]:
    for row in all_cpu_quantizer_rows(results):
        group = f"{row.shape.split()[0]}: share of memcpy's rate"
        yield Goal(group, row.shape, row.ratio, command.ASKED_OF_MEMCPY, at_least=True)


def cpu_quantizer_figure(document: dict) -> str:
    rows = [row for row in cpu_quantizer_rows(document["results"]) if row.shape.endswith("bf16")]
    name = "Quantizing from" if rows[0].shape.startswith("quantize") else "Dequantizing to"
    return (
        f"{name} bf16 on one thread of an {chip_of(document)}: "
        f"{span([row.ratio for row in rows])} of memcpy's rate."
    )


def conversion_rows(results: list[dict]) -> Iterator[Row]:
    for case in results:
        limits = {key: case[f"{key}_gb_per_second"] for key in ("quantizer", "disk")}
        slower = min(limits, key=lambda key: limits[key])
        text = f"{case['recipe']}, limited by the {slower}"
        yield Row(text, case["conversion_gb_per_second"], limits[slower], case["share_of_slower"])


def conversion_figure(document: dict) -> str:
    cases = document["results"]
    rates = [case["conversion_gb_per_second"] for case in cases]
    memory = max(case["peak_anonymous_mib"] for case in cases)
    return (
        f"Converting a checkpoint: {span(rates)} GB/s of input with {cases[0]['threads']} threads, "
        f"holding at most {memory:.0f} MiB."
    )


def is_conversion(results: Any) -> bool:
    return isinstance(results, list) and "share_of_slower" in results[0]


def is_of_quantized_results(results: Any) -> bool:
    return has("shapes")(results) and any("quantized" in case for case in results["shapes"])


READERS = (
    Reader(
        has_cases("copy_share"),
        "copy",
        "us",
        quantizer_rows,
        quantizer_goals,
        quantizer_figure,
        lambda results: results.get("left_out", 0),
    ),
    Reader(has("geometric_means"), "cuBLASLt", "us", product_rows, product_goals, product_figure),
    Reader(has("users"), "cuBLASLt", "us", user_rows, user_goals, user_figure),
    Reader(has("sweep"), "", "us", no_rows, sweep_goals, sweep_figure),
    Reader(
        is_of_quantized_results, "bf16", "us", quantized_rows, quantized_goals, quantized_figure
    ),
    Reader(
        has_cases("read_microseconds"), "torch bf16", "us", weight_rows, weight_goals, weight_figure
    ),
    Reader(has_cases("groups"), "beside", "us", grouped_rows, grouped_goals, grouped_figure),
    Reader(has_cases("floor_microseconds"), "least", "us", moe_rows, no_goals, moe_figure),
    Reader(has("launch"), "bare", "us", launch_rows, no_goals, launch_figure),
    Reader(has_cases("limit"), "asked", "us", host_rows, host_goals, host_figure),
    Reader(
        has("shapes", "peaks"),
        "torch or reading",
        "ms",
        cpu_product_rows,
        cpu_product_goals,
        cpu_product_figure,
    ),
    Reader(
        has_cases("memcpy_share"),
        "memcpy",
        "ms",
        cpu_quantizer_rows,
        cpu_quantizer_goals,
        cpu_quantizer_figure,
    ),
    Reader(is_conversion, "limit", "GB/s", conversion_rows, no_goals, conversion_figure),
)
