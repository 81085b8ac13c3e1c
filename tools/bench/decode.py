"""Times a decode step of a model's linear layers on a GPU, beside torch's in bf16.

Options: [--rows M...] [--repeats N]

36 layers of Qwen3-8B's shapes with random weights: RMS norms, SwiGLU and sums by torch, both times
the same; no attention, whose place the queries take. Inputs are quantized as they come, where
weights are FP8, and bf16 where they are FP4. `apart`: seven products a layer, as transformers has
them; `fused`: four, as engines have them (queries, keys and values in one, gates and ups in one). A
step is one CUDA graph; graphs are replayed in random order, and medians count. Weights are more
than any cache holds. No file is written where rows are named.
"""

import argparse
from collections.abc import Iterator
from typing import Any, NamedTuple

import record
from gemm import at_least, captured, median_microseconds

LAYERS = 36
ROWS = (1, 64)
#: Of weights, and what inputs become.
RECIPES = {"fp8_128x128": "dynamic", "fp8_row": "dynamic", "nvfp4": "none", "mxfp4": "none"}
#: Of |y - y'| / |y'|, y' being bf16's, behind one layer.
LARGEST_ERROR = {"fp8_128x128": 0.1, "fp8_row": 0.1, "nvfp4": 0.2, "mxfp4": 0.3}


class Sizes(NamedTuple):
    """Of a layer: columns of inputs, of queries, of keys and of values, of gates and of ups."""

    hidden: int
    queries: int
    keys: int
    inner: int


QWEN3_8B = Sizes(4096, 4096, 1024, 12288)


def shapes(sizes: Sizes, fused: bool) -> dict[str, tuple[int, int]]:
    """Columns of results and of inputs of a layer's products."""
    hidden, queries, keys, inner = sizes
    heads = {"qkv": queries + 2 * keys} if fused else {"q": queries, "k": keys, "v": keys}
    gates = {"gate_up": 2 * inner} if fused else {"gate": inner, "up": inner}
    first = {name: (columns, hidden) for name, columns in (heads | gates).items()}
    return first | {"o": (hidden, queries), "down": (hidden, inner)}


def decoder(sizes: Sizes, layers: int, fused: bool, device: str) -> Any:
    """A torch.nn.Module of that many layers in bf16, of random weights."""
    import torch
    from torch.nn import Linear, RMSNorm
    from torch.nn.functional import silu

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, (columns, inputs) in shapes(sizes, fused).items():
                setattr(self, name, Linear(inputs, columns, bias=False))
            self.norms = torch.nn.ModuleList([RMSNorm(sizes.hidden), RMSNorm(sizes.hidden)])

        def forward(self, x: Any) -> Any:
            y = self.norms[0](x)
            if fused:
                queries = self.qkv(y)[:, : sizes.queries]
            else:
                queries, _, _ = self.q(y), self.k(y), self.v(y)
            x = x + self.o(queries)
            y = self.norms[1](x)
            gates, ups = self.gate_up(y).chunk(2, 1) if fused else (self.gate(y), self.up(y))
            return x + self.down(silu(gates) * ups)

    torch.manual_seed(0)
    with torch.device(device):
        return torch.nn.Sequential(*(Layer().bfloat16() for _ in range(layers))).eval()


def table(cases: list[dict]) -> str:
    names = ["bf16, us", *(f"{recipe}, us" for recipe in RECIPES), *RECIPES]
    lines = [f"{'rows, products':16}" + "".join(f"{name:>17}" for name in names)]
    for case in cases:
        times = case["microseconds"]
        cells = [f"{times[name]:.1f}" for name in ("bf16", *RECIPES)]
        cells += [f"{times['bf16'] / times[recipe]:.2f} x" for recipe in RECIPES]
        name = f"{case['rows']}, {'fused' if case['fused'] else 'apart'}"
        lines.append(f"{name:16}" + "".join(f"{cell:>17}" for cell in cells))
    return "\n".join(lines)


def models(sizes: Sizes, layers: int, fused: bool, device: str) -> dict[str, Any]:
    """The same numbers in bf16 and in each recipe."""
    import blockscale.nn

    found = {"bf16": decoder(sizes, layers, fused, device)}
    for recipe, activations in RECIPES.items():
        found[recipe] = blockscale.nn.quantize(
            decoder(sizes, layers, fused, device), recipe, include=["*"], activations=activations
        )
    return found


def check(models: dict[str, Any], x: Any) -> None:
    """Compares results of the first layer."""
    exact = models["bf16"][0](x).float()
    for recipe in RECIPES:
        error = float((models[recipe][0](x).float() - exact).norm() / exact.norm())
        if not error <= LARGEST_ERROR[recipe]:
            raise SystemExit(f"decode: {recipe}: the error is {error}; nothing to time")


def measure_case(models: dict[str, Any], rows: int, fused: bool, repeats: int) -> dict:
    import torch

    x = torch.randn(rows, QWEN3_8B.hidden, dtype=torch.bfloat16, device="cuda")
    check(models, x)
    graphs = {}
    for name, model in models.items():
        model(x)  # loads its kernels
        torch.cuda.synchronize()
        graphs[name] = captured(model, [x], 1)
    return {"rows": rows, "fused": fused, "microseconds": median_microseconds(graphs, 1, repeats)}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", nargs="+", type=at_least(1), help="default: 1 and 64")
    parser.add_argument("--repeats", type=at_least(9), default=15, help="at least 9; default: 15")


def measure(options: argparse.Namespace) -> Iterator[record.Measurement]:
    import torch

    print(table([]), flush=True)
    cases = []
    with torch.no_grad():
        for fused in (False, True):
            found = models(QWEN3_8B, LAYERS, fused, "cuda")
            for rows in options.rows or ROWS:
                cases.append(measure_case(found, rows, fused, options.repeats))
                print(table(cases[-1:]).splitlines()[-1], flush=True)
            del found
            torch.cuda.empty_cache()
    if options.rows:
        return
    results = {"torch": torch.__version__, "repeats": options.repeats, "cases": cases}
    yield record.Measurement("decode", "./dev gpu-bench decode", results, record.gpu())
