"""Times blockscale.moe on a GPU, beside the least that a layer of four kernels takes.

Options: [--layers NAME...] [--repeats N]

Weights are random numbers in fp8_128x128, for which x becomes fp8_1x128, or in FP4, beside which it
is bf16 or, where a layer says so, in FP8 with a scale a row; x and y are bf16. Graphs of calls that
name other experts in turn where those of one call may be in a cache, replayed in random order;
medians count. `F` is the larger of chain(bytes), bytes of x, y and the weights of the experts that
have rows, and of what torch's FP8 product takes for as many operations; chain(b) is what reading b
bytes takes and 4.2 us.
`experts` of `of` are here. Of a uniform routing of up to 8 tokens to more experts than are here
each token has one here; of `zipf` (the r-th most wanted expert by r^-1.2) the most wanted one is.
`one hot`: all tokens go to the same 8. Before anything is timed, y of a few tokens is compared with
the layer in f64, in which x and what lies between the products are what is multiplied. `added` is
the same call that may add rows of experts in any order. No file is written where layers are named.
"""

import argparse
import math
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import record
from gemm import at_least, captured, median_microseconds
from grouped_gemm import READ_BEGINS, rates

TOP_K = 8
#: Seconds that a chain of four kernels takes beside reading.
CHAIN = 4.2e-6
#: Of |y - y'| / |y'|, y' being the layer with its quantization.
LARGEST_ERROR = 0.006
#: The same where TOP_K rows are added in bf16: with the sums' roundings, 0.0032, beside it.
LARGEST_ADDED_ERROR = 0.007


class Layer(NamedTuple):
    """As one device has it."""

    hidden: int
    inner: int
    experts: int
    of: int
    weights: str = "fp8_128x128"
    activations: str = "fp8_1x128"  # what is multiplied by the weights


LAYERS = {
    "DeepSeek-V3 EP8": Layer(7168, 2048, 32, 256),
    "DeepSeek-V3 TP8": Layer(7168, 256, 256, 256),
    "Qwen3-30B-A3B": Layer(2048, 768, 128, 128),
    "Qwen3-235B TP8": Layer(4096, 192, 128, 128),
    "Qwen3-235B, NVFP4": Layer(4096, 1536, 128, 128, "nvfp4", "bf16"),
    "Qwen3-235B, MXFP4": Layer(4096, 1536, 128, 128, "mxfp4", "bf16"),
    "Qwen3-235B, MXFP4, FP8": Layer(4096, 1536, 128, 128, "mxfp4", "fp8_row"),
}


class Case(NamedTuple):
    layer: str
    tokens: int
    routing: str = "uniform"


_THREE = list(LAYERS)[:3]
CASES = [
    *(Case(layer, t) for layer in _THREE for t in (1, 4, 8, 64, 512, 4096)),
    *(Case(layer, t, "zipf") for layer in _THREE for t in (64, 512)),
    Case("DeepSeek-V3 EP8", 32768),
    *(Case("DeepSeek-V3 EP8", t, "one hot") for t in (64, 512, 4096)),
    *(Case("Qwen3-235B TP8", t) for t in (1, 8, 64, 512)),
    *(Case(layer, t) for layer in list(LAYERS)[4:] for t in (1, 4, 8, 16, 64, 512, 4096)),
]


def ids_of(case: Case, seed: int) -> list[list[int]]:
    """The experts of each token: all different. Those from `experts` on are not here."""
    layer, chance = LAYERS[case.layer], random.Random(seed)
    if case.routing == "one hot":
        ids = chance.sample(range(layer.experts), TOP_K)
        return [ids] * case.tokens
    if case.routing == "uniform":
        few = layer.of > layer.experts and case.tokens <= 8
        return [_uniform(layer, few, chance) for _ in range(case.tokens)]
    wanted = [(rank + 1) ** -1.2 for rank in range(layer.of)]
    experts = list(range(layer.of))
    chance.shuffle(experts)
    here = chance.randrange(layer.experts)
    at = experts.index(here)
    experts[0], experts[at] = experts[at], experts[0]
    return [_drawn(experts, wanted, chance) for _ in range(case.tokens)]


def _uniform(layer: Layer, few: bool, chance: random.Random) -> list[int]:
    if not few:
        return chance.sample(range(layer.of), TOP_K)
    here = chance.randrange(layer.experts)
    return [here, *chance.sample(range(layer.experts, layer.of), TOP_K - 1)]


def _drawn(experts: list[int], wanted: list[float], chance: random.Random) -> list[int]:
    ids: dict[int, None] = {}
    while len(ids) < TOP_K:
        ids.update(dict.fromkeys(chance.choices(experts, wanted, k=TOP_K)))
    return list(ids)[:TOP_K]


class Work(NamedTuple):
    """The least of a layer."""

    rows: int
    hit: int
    bytes: int
    operations: int


def matrix_bytes(recipe: str, n: int, k: int) -> int:
    """Of codes and scales."""
    if recipe in ("nvfp4", "mxfp4"):
        return n * k // 2 + n * k // (16 if recipe == "nvfp4" else 32)
    return n * k + 4 * math.ceil(n / 128) * math.ceil(k / 128)


def work_of(layer: Layer, ids: list[list[int]]) -> Work:
    here = [e for token in ids for e in token if e < layer.experts]
    of_matrix = [(2 * layer.inner, layer.hidden), (layer.hidden, layer.inner)]
    weights = sum(matrix_bytes(layer.weights, n, k) for n, k in of_matrix)
    x_and_y = 2 * 2 * len(ids) * layer.hidden
    hit, rows = len(set(here)), len(here)
    return Work(rows, hit, hit * weights + x_and_y, rows * 6 * layer.hidden * layer.inner)


def floor_seconds(work: Work, read: float, operations: float) -> float:
    """F, of bytes and operations a second."""
    return max(READ_BEGINS + work.bytes / read + CHAIN, work.operations / operations)


def table(cases: list[dict]) -> str:
    columns = ("rows", "experts", "F, us", "ours, us", "F / ours", "error", "added, us")
    lines = [f"{'case':36}" + "".join(f"{name:>12}" for name in columns)]
    for case in cases:
        name = f"{case['layer']}, {case['tokens']}"
        if case["routing"] != "uniform":
            name += f", {case['routing']}"
        floor, ours = case["floor_microseconds"], case["ours_microseconds"]
        cells = [str(case["rows"]), str(case["hit"]), f"{floor:.1f}", f"{ours:.1f}"]
        cells += [f"{floor / ours:.3f}", f"{case['error']:.5f}"]
        cells += [f"{case['added_microseconds']:.1f}"]
        lines.append(f"{name:36}" + "".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines)


# --- on the GPU -----------------------------------------------------------------------------------


class Weights:
    """Of a layer, in memory. Where no block of scales divides I, gates and ups are apart."""

    def __init__(self, layer: Layer) -> None:
        generator = _generator(1)
        apart = layer.weights == "fp8_128x128" and layer.inner % 128 != 0
        shape = (2 * layer.experts, layer.inner) if apart else (layer.experts, 2 * layer.inner)
        self.recipe = layer.weights
        self.w13 = self._quantized((*shape, layer.hidden), generator)
        self.w2 = self._quantized((layer.experts, layer.hidden, layer.inner), generator)

    def _quantized(self, shape: tuple[int, int, int], generator: Any) -> Any:
        import blockscale

        x = _normal(shape, generator)
        return blockscale.quantize(x.mul_(shape[-1] ** -0.5), self.recipe)

    def gates_and_ups(self, expert: int) -> Any:
        """[2 I, H] in f32."""
        import blockscale
        import torch

        if self.w13.shape[0] == self.w2.shape[0]:
            return blockscale.dequantize(self.w13[expert])
        pair = [blockscale.dequantize(self.w13[2 * expert + i]) for i in range(2)]
        return torch.cat(pair)


def _generator(seed: int) -> Any:
    import torch

    return torch.Generator("cuda").manual_seed(seed)


def _normal(shape: tuple[int, ...], generator: Any) -> Any:
    import torch

    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda", generator=generator)


class Call:
    """Tokens and where they go, in memory of their own."""

    def __init__(self, case: Case, weights: Weights, seed: int) -> None:
        import torch

        self.layer, self.of = LAYERS[case.layer], weights
        self.x = _normal((case.tokens, self.layer.hidden), _generator(seed))
        self.y = torch.empty_like(self.x)
        ids = ids_of(case, seed)
        self.work = work_of(self.layer, ids)
        self.ids = torch.tensor(ids, dtype=torch.int32, device="cuda")
        self.weights = torch.rand(self.ids.shape, device="cuda", generator=_generator(seed)) + 0.1
        self.weights /= self.weights.sum(dim=1, keepdim=True)

    def __call__(self, *, deterministic: bool = True) -> None:
        import blockscale

        w, options = self.of, {"all_experts": self.layer.of, "out": self.y}
        options["activations"] = self.layer.activations
        options["deterministic"] = deterministic
        blockscale.moe(self.x, w.w13, w.w2, self.ids, self.weights, **options)

    def error(self, *, deterministic: bool = True, most: int = 8) -> float:
        """|y - y'| / |y'| of evenly spaced tokens."""
        import torch

        self.y.fill_(math.nan)
        self(deterministic=deterministic)
        tokens = torch.arange(0, len(self.x), math.ceil(len(self.x) / most), device="cuda")
        exact = torch.zeros(len(tokens), self.layer.hidden, dtype=torch.float64, device="cuda")
        x = self._multiplied(self.x[tokens])
        for expert in set(self.ids[tokens].flatten().tolist()) & set(range(self.layer.experts)):
            rows, choices = (self.ids[tokens] == expert).nonzero(as_tuple=True)
            y = self._expert(x[rows], expert)
            exact[rows] += self.weights[tokens[rows], choices, None].double() * y.double()
        return float((self.y[tokens].double() - exact).norm() / exact.norm())

    def _expert(self, x: Any, expert: int) -> Any:
        import blockscale
        import torch

        sums = x.double() @ self.of.gates_and_ups(expert).double().t()
        gate, up = sums.chunk(2, dim=1)
        inner = self._multiplied((torch.nn.functional.silu(gate) * up).float())
        y = inner.double() @ blockscale.dequantize(self.of.w2[expert]).double().t()
        return y.to(torch.bfloat16)

    def _multiplied(self, x: Any) -> Any:
        """What the layer multiplies in place of x, in f32."""
        import blockscale
        import torch

        if self.layer.activations == "bf16":
            return x.to(torch.bfloat16).float()
        return blockscale.dequantize(blockscale.quantize(x, self.layer.activations))


def multiply_rates() -> tuple[float, float]:
    """Operations a second of torch's products of 8192^3 in FP8 and in bf16."""
    import torch
    from grouped_gemm import Case as Product
    from grouped_gemm import Operands

    size = 8192
    product = Operands(Product("prefill", 1, size, size, size), [size], 1)
    product.dense()
    torch.cuda.synchronize()
    a, b, d = (_normal((size, size), _generator(seed)) for seed in range(3))
    graphs = {
        "pt": captured(lambda x: x.dense(), [product], 8),
        "bf16": captured(lambda to: torch.matmul(a, b.t(), out=to), [d], 8),
    }
    times = median_microseconds(graphs, 8, 15)
    return 2e6 * size**3 / times["pt"], 2e6 * size**3 / times["bf16"]


def measure_case(
    case: Case, weights: Weights, repeats: int, l2_bytes: int, read: float, operations: float
) -> dict:
    import torch

    first = Call(case, weights, 1)
    count = max(1, min(32, math.ceil(3 * l2_bytes / first.work.bytes)))
    calls = [first, *(Call(case, weights, seed) for seed in range(2, count + 1))]
    error, added_error = first.error(), first.error(deterministic=False)
    if not (error <= LARGEST_ERROR and added_error <= LARGEST_ADDED_ERROR):
        raise SystemExit(f"moe: {case}: the errors are {error}, {added_error}; nothing to time")
    in_graph = count * math.ceil(8 / count)
    floors = [floor_seconds(call.work, read, operations) for call in calls]
    graphs = {
        "ours": captured(lambda call: call(), calls, in_graph),
        "added": captured(lambda call: call(deterministic=False), calls, in_graph),
    }
    times = median_microseconds(graphs, in_graph, repeats)
    ours = times["ours"]
    torch.cuda.synchronize()
    floor = 1e6 * sum(floors) / count
    return {
        **case._asdict(),
        **LAYERS[case.layer]._asdict(),
        "rows": sum(call.work.rows for call in calls) / count,
        "hit": sum(call.work.hit for call in calls) / count,
        "bytes": sum(call.work.bytes for call in calls) / count,
        "operations": sum(call.work.operations for call in calls) / count,
        "calls": count,
        "floor_microseconds": floor,
        "ours_microseconds": ours,
        "added_microseconds": times["added"],
        "ratio": floor / ours,
        "error": error,
        "added_error": added_error,
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--layers", nargs="+", choices=list(LAYERS), help="default: all of them")
    parser.add_argument("--repeats", type=at_least(9), default=15, help="at least 9; default: 15")


def measure(options: argparse.Namespace) -> Iterator[record.Measurement]:
    import torch

    properties = torch.cuda.get_device_properties(0)
    read, _ = rates()
    operations, in_bf16 = multiply_rates()
    print(
        f"{properties.name}: reads {read / 1e12:.2f} TB/s, {operations / 1e12:.0f} TFLOP/s in FP8, "
        f"{in_bf16 / 1e12:.0f} in bf16"
    )
    print(table([]), flush=True)
    cases = []
    for name, layer in LAYERS.items():
        if options.layers and name not in options.layers:
            continue
        weights = Weights(layer)
        for case in CASES:
            if case.layer != name:
                continue
            found = measure_case(
                case, weights, options.repeats, properties.L2_cache_size, read, operations
            )
            cases.append(found)
            print(table([found]).splitlines()[-1], flush=True)
        del weights
        torch.cuda.empty_cache()
    if options.layers:
        return
    results = {
        "torch": torch.__version__,
        "read_bytes_per_second": read,
        "operations_per_second": operations,
        "bf16_operations_per_second": in_bf16,
        "repeats": options.repeats,
        "cases": cases,
    }
    yield record.Measurement("moe", "./dev gpu-bench moe", results, record.gpu())
