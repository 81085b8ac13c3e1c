"""torch.ops.blockscale on CUDA tensors: the package's bits, torch.compile, graphs, FP8 tensors of
torch. `./dev gpu-test` runs these where there is a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import blockscale
import blockscale.torch
import pytest
from gpu_torch import normal, torch

ops = torch.ops.blockscale
RECIPES = ("fp8_1x128", "fp8_128x128")


def weight_of(x: Any) -> tuple[Any, Any]:
    return ops.quantize(x, RECIPES[1])[:2]


def weight(n: int, k: int) -> tuple[Any, Any]:
    return weight_of(normal(n, k, seed=1).cuda())


def linear(x: Any, values: Any, scales: Any) -> Any:
    a, a_scales, _ = ops.quantize(x, RECIPES[0])
    return ops.gemm(a, values, *RECIPES, a_scales=a_scales, b_scales=scales)


def test_bits_are_the_packages() -> None:
    x = normal(64, 512).cuda()
    a, b = blockscale.quantize(x, RECIPES[0]), blockscale.quantize(x, RECIPES[1])
    want = blockscale.gemm(a, b, out_dtype=torch.bfloat16)
    values, scales = weight_of(x)
    assert torch.equal(linear(x, values, scales), want)
    out = torch.empty_like(want)
    options = {"a_scales": a.scales, "b_scales": b.scales}
    ops.gemm_out(a.values, b.values, *RECIPES, out=out, **options)
    assert torch.equal(out, want)
    y = ops.dequantize(values, scales, RECIPES[1], out_dtype=torch.bfloat16)
    assert torch.equal(y, blockscale.dequantize(b, out_dtype=torch.bfloat16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "transform",
    [
        "gelu_tanh",
        "gelu_erf",
        "silu",
        "swiglu",
        blockscale.Swiglu("up_first", 1),
        blockscale.Swiglu(group=64),
    ],
)
def test_transforms_of_products(transform: Any, dtype: Any) -> None:
    bias = normal(256, seed=2)
    for left, right in (RECIPES, ("nvfp4", "nvfp4")):
        x, w = normal(70, 512), normal(256, 512, seed=1) / 16
        a, b = blockscale.quantize(x, left), blockscale.quantize(w, right)
        there = blockscale.quantize(x.cuda(), left), blockscale.quantize(w.cuda(), right)
        options = {"transform": transform, "out_dtype": dtype}
        want = blockscale.gemm(a, b, bias=bias, **options)
        got = blockscale.gemm(*there, bias=bias.cuda(), **options)
        assert got.dtype == dtype and got.shape == want.shape
        largest = want.double().abs().max()
        assert (got.cpu().double() - want.double()).abs().max() <= 2.0**-7 * largest
        if not isinstance(transform, str):
            continue
        parts = {
            "a_scales": there[0].scales,
            "b_scales": there[1].scales,
            "a_tensor_scale": there[0].tensor_scale,
            "b_tensor_scale": there[1].tensor_scale,
        }
        operands = (there[0].values, there[1].values, left, right)
        by_operator = ops.gemm(*operands, bias=bias.cuda(), **parts, **options)
        assert torch.equal(by_operator, got)


def test_fp8_of_torch_goes_straight_in() -> None:
    a = (normal(96, 512).cuda() * 8).to(torch.float8_e4m3fn)
    b = (normal(128, 512, seed=1).cuda() * 8).to(torch.float8_e4m3fn)
    scales = torch.full((1, 1), 0.25, device="cuda"), torch.full((1, 1), 0.5, device="cuda")
    d = ops.gemm(a, b, "fp8_tensor", "fp8_tensor", a_scales=scales[0], b_scales=scales[1],
                 out_dtype=torch.float32)  # fmt: skip
    exact = a.double() @ b.double().mT / 8
    assert ((d.double() - exact).abs() <= 2.0**-10 * (a.double().abs() @ b.double().abs().mT)).all()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compile_takes_an_mlp_whole(mode: str) -> None:
    up, up_scales = weight_of(normal(512, 512, seed=1).cuda())
    values, scales = weight(256, 256)

    def mlp(x: Any) -> Any:
        a, a_scales, _ = ops.quantize(x, RECIPES[0])
        options = {"a_scales": a_scales, "b_scales": up_scales, "transform": "swiglu"}
        h, h_scales = ops.gemm_quantize(a, up, *RECIPES, RECIPES[0], **options)
        return ops.gemm(h, values, *RECIPES, a_scales=h_scales, b_scales=scales)

    torch._dynamo.reset()
    compiled = torch.compile(mlp, fullgraph=True, mode=mode, dynamic=False)
    for seed in range(4):
        x = normal(32, 512, seed=seed).cuda()
        a, b = (
            blockscale.quantize(x, RECIPES[0]),
            blockscale.ScaledTensor(up, up_scales, RECIPES[1]),
        )
        h = blockscale.gemm_quantize(a, b, RECIPES[0], transform="swiglu")
        down = blockscale.ScaledTensor(values, scales, RECIPES[1])
        want = blockscale.gemm(h, down, out_dtype=torch.bfloat16)
        assert torch.equal(compiled(x).clone(), want)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compile_takes_a_layer_whole(mode: str) -> None:
    values, scales = weight(256, 512)
    torch._dynamo.reset()
    layer = torch.compile(linear, fullgraph=True, mode=mode, dynamic=False)
    for seed in range(4):  # reduce-overhead captures a graph at the second call, and replays it
        x = normal(32, 512, seed=seed).cuda()
        assert torch.equal(layer(x, values, scales).clone(), linear(x, values, scales))


def test_a_graph_captures_them() -> None:
    values, scales = weight(256, 512)
    x = normal(32, 512).cuda()
    linear(x, values, scales)  # loads the kernels
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = linear(x, values, scales)
    fresh = normal(32, 512, seed=7).cuda()
    x.copy_(fresh)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, linear(fresh, values, scales))


def test_operands_elsewhere_are_refused() -> None:
    values, scales = weight(256, 512)
    a, a_scales, _ = ops.quantize(normal(32, 512).cuda(), RECIPES[0])
    with pytest.raises(ValueError, match=r"b\.scales: is on the CPU, must be on cuda:0"):
        ops.gemm(a, values, *RECIPES, a_scales=a_scales, b_scales=scales.cpu())


@pytest.mark.parametrize("recipe", ["fp8_128x128", "nvfp4"])
def test_the_example_of_a_layer(recipe: str) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "fp8_linear.py"
    command = [sys.executable, example, "--device", "cuda", "--recipe", recipe]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "us in a graph" in done.stdout
