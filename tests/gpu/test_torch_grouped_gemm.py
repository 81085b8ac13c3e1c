"""Products of groups of CUDA tensors of torch: against float64 and against gemm of each group,
every option, graphs, torch.compile, the command line. `./dev gpu-test` runs these where there is a
GPU."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import blockscale
import pytest
from gpu_torch import normal, torch

CLI = os.environ.get("BLOCKSCALE_CLI")

import blockscale.torch  # noqa: E402 (where there is no torch, gpu_torch says so first)

ops = torch.ops.blockscale
#: docs/numerics.md, "Error bound": what is usual of each kernel, cancelling and of one sign, in
#: units of 2^-24.
FP8_KERNELS, PLAIN_KERNELS = (16000, 104000), (8, 28)
USUAL = {
    ("fp8_1x128", "fp8_128x128"): FP8_KERNELS,
    ("fp8_row", "fp8_row"): FP8_KERNELS,
    ("fp8_tensor", "fp8_tensor"): FP8_KERNELS,
    ("mxfp8_e4m3", "mxfp4"): PLAIN_KERNELS,
    ("nvfp4", "nvfp4"): PLAIN_KERNELS,
}
HALF_ULP = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
#: Rows of groups: empty ones, a tile and more, one row.
LENGTHS = [[3, 0, 17, 1], [150, 0, 0, 64], [0, 0, 0, 0], [1, 1, 1, 1], [65, 128, 129, 300]]
GROUPS, N, K = 4, 200, 512


def int32(numbers: Any) -> Any:
    return torch.tensor(numbers, dtype=torch.int32, device="cuda")


def offsets_of(lengths: list[int]) -> list[int]:
    return [sum(lengths[:g]) for g in range(len(lengths) + 1)]


def operands(rows: int, left: str, right: str) -> tuple[Any, Any]:
    a = normal(rows, K, dtype=torch.float32).cuda()
    b = normal(GROUPS, N, K, seed=1, dtype=torch.float32).cuda()
    return blockscale.quantize(a, left), blockscale.quantize(b, right)


def usual_error(usual: tuple[int, int], exact: Any, magnitude: Any) -> Any:
    """Of elements `exact`, whose terms have `magnitude` together."""
    return 2.0**-24 * (usual[0] * magnitude + usual[1] * exact.abs())


def assert_close(d: Any, x: Any, y: Any, usual: tuple[int, int]) -> None:
    """d is x y^T within the bound."""
    exact = x.double() @ y.double().mT
    allowed = usual_error(usual, exact, x.double().abs() @ y.double().abs().mT)
    allowed += HALF_ULP[d.dtype] * (exact.abs() + allowed) + 2.0**-25
    error = (d.double() - exact).abs()
    assert (error <= allowed).all(), f"{(error / allowed).max().item()} of what is allowed"


@pytest.mark.parametrize("pair", USUAL, ids="-".join)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("dtype", HALF_ULP)
def test_products(lengths: list[int], pair: tuple[str, str], dtype: Any) -> None:
    rows = sum(lengths) + 9  # of which the last are of no group
    a, b = operands(rows, *pair)
    offsets = offsets_of(lengths)
    out = torch.full((rows, N), 7, dtype=dtype, device="cuda")
    assert blockscale.grouped_gemm(a, b, int32(offsets), out=out) is out
    made = blockscale.grouped_gemm(a, b, int32(offsets), out_dtype=dtype)
    assert torch.equal(made[: offsets[-1]], out[: offsets[-1]])
    assert (out[offsets[-1] :] == 7).all() and (made[offsets[-1] :] == 0).all()
    x, y = blockscale.dequantize(a), blockscale.dequantize(b)
    for g, (begin, end) in enumerate(zip(offsets, offsets[1:], strict=False)):
        assert_close(out[begin:end], x[begin:end], y[g], USUAL[pair])


def test_options_are_exact_on_integers() -> None:
    """Of an FP8 kernel, whose sums of few small integers are exact."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(0, 5, (100, 128), generator=generator).float()
    b = torch.randint(-4, 5, (GROUPS, N, 128), generator=generator).float()
    bias, alpha = normal(GROUPS, N, seed=2).float(), torch.tensor([1.0, 0.5, -2.0, 4.0])
    scales = torch.ones(1, 1), torch.ones(GROUPS, 1, 1)
    left = blockscale.ScaledTensor(a.to(torch.float8_e4m3fn).cuda(), scales[0].cuda(), "fp8_tensor")
    right = blockscale.ScaledTensor(
        b.to(torch.float8_e4m3fn).cuda(), scales[1].cuda(), "fp8_tensor"
    )
    begins, lengths = [60, 0, 40, 99], [30, 33, 0, 1]
    d = blockscale.grouped_gemm(
        left, right, int32(begins), lengths=int32(lengths), alpha=alpha.cuda(), bias=bias.cuda()
    ).cpu()
    want = torch.zeros(100, N)
    for g, (begin, length) in enumerate(zip(begins, lengths, strict=True)):
        rows = slice(begin, begin + length)
        want[rows] = alpha[g] * (a[rows] @ b[g].T) + bias[g]
    assert torch.equal(d, want)


@pytest.mark.parametrize("pair", [("fp8_1x128", "fp8_128x128"), ("mxfp8_e4m3", "mxfp4")])
def test_rows_that_move(pair: tuple[str, str]) -> None:
    a, b = operands(100, *pair)
    x, y = blockscale.dequantize(a).double(), blockscale.dequantize(b).double()
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(-1, 101, (150,), generator=generator)
    to = torch.randperm(200, generator=generator)[:150]
    weights = torch.rand(150, generator=generator)
    lengths, offsets = [70, 0, 64, 5], offsets_of([70, 0, 64, 5])
    moves = {"index": int32(index.tolist()), "destinations": int32(to.tolist())}
    moves["weights"] = weights.cuda()
    d = blockscale.grouped_gemm(a, b, int32(offsets), out_rows=190, **moves)
    added = torch.ones(190, N, device="cuda")
    blockscale.grouped_gemm(a, b, int32(offsets), add=True, out=added, **moves)
    want, allowed = torch.zeros(2, 190, N, dtype=torch.float64, device="cuda")
    for g, length in enumerate(lengths):
        for r in range(offsets[g], offsets[g] + length):
            if to[r] < 190 and 0 <= index[r] < 100:
                row = x[index[r]]
                want[to[r]] = float(weights[r]) * (y[g] @ row)
                allowed[to[r]] = float(weights[r]) * (y[g].abs() @ row.abs())
    weighted = 2.0**-24 * allowed  # the weights' rounding
    allowed = usual_error(USUAL[pair], want, allowed) + weighted
    assert ((d.double() - want).abs() <= allowed + 2.0**-24 * want.abs()).all()
    assert ((added.double() - 1 - want).abs() <= allowed + 2.0**-23 * (want.abs() + 1)).all()


@pytest.mark.parametrize("transform", ["gelu_tanh", "swiglu", blockscale.Swiglu(group=1)])
@pytest.mark.parametrize("pair", [("fp8_1x128", "fp8_128x128"), ("mxfp8_e4m3", "mxfp4")])
def test_transforms(transform: Any, pair: tuple[str, str]) -> None:
    a, b = operands(90, *pair)
    offsets = [0, 30, 30, 80, 85]
    d = blockscale.grouped_gemm(a, b, int32(offsets), transform=transform)
    for g in (0, 2, 3):
        rows = slice(offsets[g], offsets[g + 1])
        alone = blockscale.gemm(a, b[g], transform=transform)[rows]
        assert (d[rows] - alone).abs().max() <= 2.0**-7 * alone.abs().max()
    assert (d[85:] == 0).all() and d.shape == (90, N if transform == "gelu_tanh" else N // 2)


@pytest.mark.parametrize("transform", ["identity", "swiglu"])
@pytest.mark.parametrize("recipe", ["fp8_1x128", "fp8_row", "mxfp8_e4m3", "nvfp4"])
@pytest.mark.parametrize("pair", [("fp8_1x128", "fp8_128x128"), ("mxfp8_e4m3", "mxfp4")])
def test_quantized_results(pair: tuple[str, str], recipe: str, transform: str) -> None:
    """Values as far from those of the product as quantize puts them, and rows of no group."""
    a = blockscale.quantize(normal(90, K, dtype=torch.float32).cuda(), pair[0])
    b = normal(GROUPS, 256, K, seed=1, dtype=torch.float32).cuda()
    b = blockscale.quantize(b, pair[1])
    offsets = int32([0, 30, 30, 80, 85])
    result = {"transform": transform, "tensor_scale": 10.0 if recipe == "nvfp4" else None}
    for index in (None, int32([7] * 20 + list(range(70)))):
        d = blockscale.grouped_gemm(a, b, offsets, index=index, out_dtype=torch.float32)
        want = blockscale.dequantize(blockscale.quantize(d, recipe, **result))
        made = blockscale.grouped_gemm_quantize(a, b, offsets, recipe, index=index, **result)
        got = blockscale.dequantize(made)
        error = (got - want)[:85].abs()
        assert (error > 1e-5 * want[:85].abs()).float().mean() <= 0.002  # of codes between two
        assert error.max() <= 0.35 * want.abs().max()
        assert (made.values.view(torch.uint8)[85:] == 0).all() and (got[85:] == 0).all()
        out = blockscale.quantize(
            torch.ones_like(want), recipe, tensor_scale=result["tensor_scale"]
        )
        old = out.values.view(torch.uint8).clone()
        more = {"index": index, "out": out, **result}
        assert blockscale.grouped_gemm_quantize(a, b, offsets, recipe, **more) is out
        codes, new = (x.view(torch.uint8) for x in (out.values, made.values))
        assert torch.equal(codes[:85], new[:85]) and torch.equal(codes[85:], old[85:])


@pytest.mark.parametrize("pair", [("fp8_1x128", "fp8_128x128"), ("mxfp8_e4m3", "mxfp4")])
def test_masked_groups(pair: tuple[str, str]) -> None:
    a = blockscale.quantize(normal(GROUPS, 70, K, dtype=torch.float32).cuda(), pair[0])
    _, b = operands(1, *pair)
    counts = [70, 0, 33, 1]
    out = torch.full((GROUPS, 70, N), 7.0, device="cuda")
    blockscale.masked_grouped_gemm(a, b, int32(counts), out=out)
    made = blockscale.masked_grouped_gemm(a, b, int32(counts))
    x, y = blockscale.dequantize(a), blockscale.dequantize(b)
    for g, count in enumerate(counts):
        assert_close(out[g, :count], x[g, :count], y[g], USUAL[pair])
        assert (out[g, count:] == 7).all() and (made[g, count:] == 0).all()
        assert torch.equal(made[g, :count], out[g, :count])


@pytest.mark.parametrize("recipe", ["fp8_row", "mxfp8_e4m3", "nvfp4"])
def test_groups_of_k(recipe: str) -> None:
    a = blockscale.quantize(normal(70, K, dtype=torch.float32).cuda(), recipe)
    b = blockscale.quantize(normal(90, K, seed=1, dtype=torch.float32).cuda(), recipe)
    offsets = [0, 5, 5, 301, 512]
    d = blockscale.k_grouped_gemm(a, b, int32(offsets), alpha=2.0)
    added = torch.ones_like(d)
    blockscale.k_grouped_gemm(a, b, int32(offsets), alpha=2.0, add=True, out=added)
    x, y = 2 * blockscale.dequantize(a), blockscale.dequantize(b)
    for g in (0, 2, 3):
        k = slice(offsets[g], offsets[g + 1])
        assert_close(d[g], x[:, k], y[:, k], PLAIN_KERNELS)
        assert (added[g] - 1 - d[g]).abs().max() <= 2.0**-20 * d[g].abs().max()
    assert (d[1] == 0).all() and (added[1] == 1).all()


def test_a_graph_takes_other_offsets() -> None:
    a, b = operands(100, "fp8_1x128", "fp8_128x128")
    offsets = int32([0, 10, 20, 30, 40])
    out = torch.zeros(100, N, device="cuda")
    blockscale.grouped_gemm(a, b, offsets, out=out)  # loads the kernels
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        blockscale.grouped_gemm(a, b, offsets, out=out)
    other = int32([0, 90, 90, 95, 100])
    offsets.copy_(other)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, blockscale.grouped_gemm(a, b, other))


def test_groups_are_checked() -> None:
    a, b = operands(40, "fp8_1x128", "fp8_128x128")
    blockscale.check_groups(a, b, int32([0, 10, 20, 30, 40]))
    with pytest.raises(ValueError, match="^offsets: descends from 20 to 19"):
        blockscale.check_groups(a, b, int32([0, 20, 19, 30, 40]))
    wild = blockscale.grouped_gemm(a, b, int32([-5, 10, 20, 30, 2**31 - 1]))
    assert torch.equal(wild, blockscale.grouped_gemm(a, b, int32([0, 10, 20, 30, 40])))


def test_operators_have_the_packages_bits() -> None:
    a, b = operands(40, "fp8_1x128", "fp8_128x128")
    offsets = int32([0, 10, 10, 30, 40])
    arguments = (a.values, b.values, "fp8_1x128", "fp8_128x128", offsets)
    options = {"a_scales": a.scales, "b_scales": b.scales}
    want = blockscale.grouped_gemm(a, b, offsets, out_dtype=torch.bfloat16)
    assert torch.equal(ops.grouped_gemm(*arguments, **options), want)
    compiled = torch.compile(
        lambda *x: ops.grouped_gemm(*x, **options), fullgraph=True, mode="reduce-overhead"
    )
    for _ in range(3):  # the second captures a graph, the third replays it
        assert torch.equal(compiled(*arguments).clone(), want)


@pytest.mark.parametrize("pair", [("fp8_1x128", "fp8_128x128"), ("mxfp8_e4m3", "mxfp4")])
@pytest.mark.parametrize("transform", ["identity", "swiglu"])
def test_the_command_line(pair: tuple[str, str], transform: str) -> None:
    if CLI is None:
        pytest.skip("BLOCKSCALE_CLI is not set: ./dev gpu-test")
    command = [CLI, "gemm", "--groups", "32x20", "-n", "576", "-k", "1024", "--device", "cuda"]
    command += ["--recipe-a", pair[0], "--recipe-b", pair[1], "--transform", transform, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["check"]["passed"] and report["check"]["elements"] == 1024
    assert report["seconds"] > 0 and report["device"] and report["plan"].startswith("grouped_gemm_")
