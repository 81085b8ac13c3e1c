"""blockscale.compat.lightx2v on a GPU: what the CPU gives, in sizes of LightX2V's models, and that
nothing waits. `./dev gpu-test` runs these where there is a GPU, and tests/package's beside them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from gpu_torch import normal, torch

from blockscale.compat import lightx2v  # isort: skip (where there is no torch, gpu_torch says so first)

GLOBAL = torch.tensor([2688 / 5.5])
SHAPES = [(1, 1536, 1536), (257, 1536, 8960)]  # of Wan 1.3B


def quantized(kind: str, x: Any) -> Any:
    function = getattr(lightx2v, f"scaled_{kind}_quant")
    return function(x, GLOBAL.to(x.device)) if kind == "nvfp4" else function(x)


def same(a: Any, b: Any) -> bool:
    return a.cpu().view(torch.uint8).equal(b.cpu().view(torch.uint8))


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4", "mxfp6", "mxfp8"])
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_quantizers(m: int, n: int, k: int, kind: str) -> None:  # noqa: ARG001
    x = normal(m, k)
    (values, scales), (of_cpu, scales_of_cpu) = quantized(kind, x.cuda()), quantized(kind, x)
    assert same(values, of_cpu)
    assert same(scales, scales_of_cpu)


def in_its_bytes(x: Any, factor: Any) -> Any:
    return lightx2v.scaled_nvfp4_quant(x, factor, lightx2v_bytes=True)


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_its_own_bytes(m: int, n: int, k: int) -> None:  # noqa: ARG001
    x = normal(m, k)
    on_cpu, on_gpu = in_its_bytes(x, GLOBAL), in_its_bytes(x.cuda(), GLOBAL.cuda())
    assert all(map(same, on_gpu, on_cpu))


def test_its_own_bytes_wait_for_nothing() -> None:
    x, factor = normal(130, 512).cuda(), GLOBAL.cuda()
    expected = in_its_bytes(x, factor)  # kernels are loaded here
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = in_its_bytes(x, factor)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = in_its_bytes(x, factor)
    graph.replay()
    assert all(map(same, results, expected))
    assert all(map(same, captured, expected))


def test_reciprocals_of_scales_are_rounded() -> None:
    path = Path(__file__).resolve().parents[2] / "tools/record_rcp.py"
    spec = importlib.util.spec_from_file_location("record_rcp", path)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    recorded, rounded = program.record()
    assert recorded.equal(rounded)


@pytest.mark.parametrize("kinds", ["nvfp4", "mxfp4", "mxfp8", "mxfp8 mxfp6"])
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_products(m: int, n: int, k: int, kinds: str) -> None:
    of_a, of_b = kinds.split()[0], kinds.split()[-1]
    name = "mxfp6_mxfp8" if " " in kinds else of_a
    multiply = getattr(lightx2v, f"cutlass_scaled_{name}_mm")
    results = []
    for place in ("cpu", "cuda"):
        (a, a_scales), (b, b_scales) = (
            quantized(of_a, normal(m, k).to(place)),
            quantized(of_b, normal(n, k, seed=1).to(place)),
        )
        alpha = 1 / GLOBAL**2 if kinds == "nvfp4" else torch.ones(1)
        bias = normal(1, n, seed=2).to(place)
        results.append(multiply(a, b, a_scales, b_scales, alpha.to(place), bias).cpu().double())
    assert (results[1] - results[0]).norm() <= 2**-8 * results[0].norm()


def test_nothing_waits() -> None:
    x, w, bias = normal(130, 512).cuda(), normal(256, 512, seed=1).cuda(), normal(256).cuda()
    factor, alpha, gate = GLOBAL.cuda(), torch.ones(1).cuda(), normal(256).cuda()
    weight = lightx2v.MM_WEIGHT_REGISTER["nvfp4"]("a.0.weight", None, create_cuda_buffer=True)
    weight.set_config({"weight_auto_quant": True})
    state = {"a.0.weight": w, "a.0.input_absmax": torch.tensor(5.5)}
    weight.load(state)
    holder = lightx2v.MM_WEIGHT_REGISTER["nvfp4"]("a.0.weight", None)
    holder.set_config({"weight_auto_quant": True})
    holder.load({name: tensor.cpu() for name, tensor in state.items()})
    pinned = holder.state_dict()

    def everything() -> list[Any]:
        results = []
        for kind in ("nvfp4", "mxfp4", "mxfp8"):
            function = getattr(lightx2v, f"scaled_{kind}_quant")
            more = (factor,) if kind == "nvfp4" else ()
            (a, a_scales), (b, b_scales) = function(x, *more), function(w, *more)
            multiply = getattr(lightx2v, f"cutlass_scaled_{kind}_mm")
            results.append(multiply(a, b, a_scales, b_scales, alpha, bias))
        residual = torch.zeros(130, 256, dtype=torch.bfloat16, device="cuda")
        given = (a, b, a_scales, b_scales, alpha, residual, gate, bias)
        results.append(lightx2v.cutlass_scaled_mxfp8_mm_residual_gate(*given))
        results.append(lightx2v.scaled_mxfp8_modulate_quant(x, x[0], x[1])[0])
        weight.load_state_dict(pinned, 0)
        results.append(weight.apply(x))
        return results

    expected = everything()  # kernels are loaded here
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = everything()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = everything()
    graph.replay()
    for first, second, third in zip(expected, results, captured, strict=True):
        assert first.equal(second)
        assert first.equal(third)
