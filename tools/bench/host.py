"""CPU time of calls from Python on CUDA tensors of torch, around kernels of a few microseconds.

At most 20 us is asked of quantize, gemm and moe with `out`, 30 with results that are allocated; 10
is aimed at; of nn.Linear 15 more than of the calls that it makes, `quantize, gemm`, 5 are aimed at.
A case runs a hundred times from an empty stream, which holds more launches than these make; the
median of rounds counts. torch.neg and the same calls as operators stand beside them.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import record

CALLS = 100
ROUNDS = 25


class Case(NamedTuple):
    name: str
    call: Callable[[], Any]
    limit: float | None  # microseconds; None: stands beside the others


def cases() -> list[Case]:
    import blockscale
    import blockscale.nn
    import blockscale.torch
    import torch

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    m, n, k = 16, 512, 512
    x, bias = normal(m, k), normal(n)
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    a, b = blockscale.quantize(x, "fp8_1x128"), blockscale.quantize(normal(n, k), "fp8_128x128")
    recipes = ("fp8_1x128", "fp8_128x128")
    tensors = (a.values, b.values, *recipes)
    scales = {"a_scales": a.scales, "b_scales": b.scales}
    ops = torch.ops.blockscale
    linear = blockscale.nn.Linear(b, activations="fp8_1x128")

    def quantize_and_gemm() -> None:
        values, scales, _ = ops.quantize(x, "fp8_1x128")
        ops.gemm(values, b.values, *recipes, a_scales=scales, b_scales=b.scales)

    def functions() -> None:
        blockscale.gemm(blockscale.quantize(x, "fp8_1x128"), b, out_dtype=torch.bfloat16)

    found = [
        Case("gemm, out", lambda: blockscale.gemm(a, b, out=out), 20),
        Case("gemm, out, bias", lambda: blockscale.gemm(a, b, out=out, bias=bias), 20),
        Case("gemm", lambda: blockscale.gemm(a, b, out_dtype=torch.bfloat16), 30),
    ]
    for recipe in ("fp8_1x128", "mxfp8_e4m3", "nvfp4"):
        t = blockscale.quantize(x, recipe)
        found += [
            Case(
                f"quantize {recipe}, out", lambda t=t: blockscale.quantize(x, t.recipe, out=t), 20
            ),
            Case(f"quantize {recipe}", lambda r=recipe: blockscale.quantize(x, r), 30),
        ]
    experts, top_k, y = 8, 2, torch.empty_like(x)
    w13 = blockscale.quantize(normal(experts, 2 * n, k), "fp8_128x128")
    w2 = blockscale.quantize(normal(experts, k, n), "fp8_128x128")
    ids = torch.randint(experts, (m, top_k), device="cuda", dtype=torch.int32)
    weights = torch.rand(m, top_k, device="cuda")
    layer = (x, w13, w2, ids, weights)
    return [
        *found,
        Case("moe, out", lambda: blockscale.moe(*layer, out=y), 20),
        Case("dequantize, out", lambda: blockscale.dequantize(a, out=x), None),
        Case("ops.quantize fp8_1x128", lambda: ops.quantize(x, "fp8_1x128"), None),
        Case("ops.gemm_out", lambda: ops.gemm_out(*tensors, out=out, **scales), None),
        Case("ops.gemm", lambda: ops.gemm(*tensors, **scales), None),
        Case("ops.quantize, ops.gemm", quantize_and_gemm, None),
        Case("quantize, gemm", functions, None),
        Case("nn.Linear", lambda: linear(x), None),
        Case("nn.Linear, 3 dimensions", lambda: linear(x[None]), None),
        Case("torch.neg", lambda: torch.neg(x), None),
        Case("torch.empty", lambda: torch.empty((m, n), device="cuda"), None),
    ]


def microseconds(call: Callable[[], Any], synchronize: Callable[[], None]) -> float:
    """CPU time of a call, the median over rounds."""
    times = []
    for _ in range(ROUNDS + 2):  # two that are not counted
        synchronize()
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - begin) / CALLS * 1e6)
    return statistics.median(times[2:])


def line(name: str, took: float, limit: float | None) -> str:
    asked = "" if limit is None else f"   at most {limit:.0f}: {'yes' if took <= limit else 'NO'}"
    return f"{name:26} {took:7.2f} us{asked}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """It has none."""


def measure(options: argparse.Namespace) -> Iterator[record.Measurement]:  # noqa: ARG001
    import torch

    results = []
    with torch.no_grad():
        for case in cases():
            took = microseconds(case.call, torch.cuda.synchronize)
            results.append({"case": case.name, "microseconds": took, "limit": case.limit})
            print(line(case.name, took, case.limit), flush=True)
    report = {"torch": torch.__version__, "calls": CALLS, "rounds": ROUNDS, "cases": results}
    yield record.Measurement("python-host", "./dev gpu-bench host", report, record.gpu())
