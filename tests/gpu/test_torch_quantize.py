"""quantize on CUDA tensors of torch: the CPU's bytes, the caller's stream, graphs. `./dev gpu-test`
runs these where there is a GPU, and fails where there is one but no torch that sees it."""

from __future__ import annotations

from typing import Any

import blockscale
import pytest
from blockscale import Modulate, RmsNorm, Swiglu
from gpu_torch import normal, torch

QUANTIZED = [r.name for r in blockscale.Recipe if r.name not in ("f32", "f16", "bf16")]
SWIZZLED = ["mxfp8_e4m3", "mxfp6_e2m3", "mxfp4", "nvfp4", "fp8_1x128_ue8m0"]


def assert_same(device: blockscale.ScaledTensor, host: blockscale.ScaledTensor) -> None:
    for name in ("values", "scales", "tensor_scale"):
        got, want = getattr(device, name), getattr(host, name)
        if want is None:
            assert got is None
            continue
        assert got.device.type == "cuda" and got.dtype == want.dtype
        assert torch.equal(got.view(torch.uint8).cpu(), want.view(torch.uint8)), name


@pytest.mark.parametrize("recipe", QUANTIZED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_bytes_are_the_cpus(recipe: str, dtype: Any) -> None:
    x = normal(2, 130, 512, dtype=dtype)
    device = blockscale.quantize(x.cuda(), recipe)
    assert_same(device, blockscale.quantize(x, recipe))


@pytest.mark.parametrize("recipe", SWIZZLED)
@pytest.mark.parametrize("layout", ["mn_major", "swizzled_128x4", "swizzled_8x4"])
def test_scales_lie_where_the_layout_says(recipe: str, layout: str) -> None:
    x = normal(130, 640)
    device = blockscale.quantize(x.cuda(), recipe, layout=layout)
    assert_same(device, blockscale.quantize(x, recipe, layout=layout))


def moved(transform: Any) -> Any:
    if isinstance(transform, Modulate):
        return Modulate(transform.scale.cuda(), transform.shift.cuda())
    if isinstance(transform, RmsNorm):
        return RmsNorm(transform.weight.cuda(), transform.epsilon)
    return transform


@pytest.mark.parametrize("recipe", ["mxfp8_e4m3", "nvfp4", "fp8_1x128"])
@pytest.mark.parametrize(
    "transform",
    [
        "gelu_tanh",
        "gelu_erf",
        "swiglu",
        Swiglu("up_first", 1),
        Swiglu(group=64),
        Modulate(normal(2, 1024, seed=1), normal(2, 1024, seed=2, dtype=torch.float32)),
        RmsNorm(normal(1024, seed=3)),
    ],
    ids=lambda t: t if isinstance(t, str) else type(t).__name__,
)
def test_fused_bytes_are_the_cpus(recipe: str, transform: Any) -> None:
    x = normal(64, 1024)
    device = blockscale.quantize(x.cuda(), recipe, transform=moved(transform))
    assert_same(device, blockscale.quantize(x, recipe, transform=transform))


@pytest.mark.parametrize(
    "transform",
    [
        "identity",
        "gelu_erf",
        Swiglu("up_first", 64),
        Modulate(normal(4, 512, seed=1), normal(4, 512, seed=2)),
        RmsNorm(normal(512, seed=3)),
    ],
    ids=lambda t: t if isinstance(t, str) else type(t).__name__,
)
@pytest.mark.parametrize("layout", ["row_major", "swizzled_128x4"])
def test_rows_and_columns_are_the_cpus(layout: str, transform: Any) -> None:
    x = normal(2, 130, 1024 if isinstance(transform, Swiglu) else 512)
    call = blockscale.quantize_rows_and_columns
    host = call(x, "fp8_1x128_ue8m0", layout=layout, transform=transform)
    device = call(x.cuda(), "fp8_1x128_ue8m0", layout=layout, transform=moved(transform))
    for got, want in zip(device, host, strict=True):
        assert got.shape == want.shape
        assert_same(got, want)
    again = call(x.cuda(), "fp8_1x128_ue8m0", layout=layout, transform=moved(transform), out=device)
    assert again[0] is device[0] and again[1] is device[1]


def test_rows_and_columns_refuse_results_elsewhere() -> None:
    x = normal(128, 128)
    out = blockscale.quantize_rows_and_columns(x, "fp8_1x128")
    with pytest.raises(ValueError, match=r"out\[0\]: is on the CPU, must be on cuda:0 like x"):
        blockscale.quantize_rows_and_columns(x.cuda(), "fp8_1x128", out=out)


@pytest.mark.parametrize("recipe", QUANTIZED)
@pytest.mark.parametrize("out_dtype", ["float32", "float16", "bfloat16"])
def test_values_are_the_cpus(recipe: str, out_dtype: str) -> None:
    x = normal(2, 130, 512)
    device = blockscale.dequantize(blockscale.quantize(x.cuda(), recipe), out_dtype=out_dtype)
    host = blockscale.dequantize(blockscale.quantize(x, recipe), out_dtype=out_dtype)
    assert device.device.type == "cuda" and device.dtype == host.dtype
    assert torch.equal(device.cpu(), host)
    out = torch.empty_like(device)
    assert blockscale.dequantize(blockscale.quantize(x.cuda(), recipe), out=out) is out
    assert torch.equal(out.cpu(), host)


def test_work_is_queued_on_the_current_stream() -> None:
    x = normal(4096, 4096).cuda()
    want = blockscale.quantize(x, "nvfp4")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        late = torch.zeros_like(x)
        torch.cuda._sleep(100_000_000)
        late.copy_(x)  # what is quantized is there only after the sleep
        got = blockscale.quantize(late, "nvfp4")
        done = torch.cuda.Event()
        done.record(stream)
    assert not done.query()  # the call did not wait
    done.synchronize()
    assert torch.equal(got.values.view(torch.uint8), want.values.view(torch.uint8))


@pytest.mark.parametrize("recipe", ["mxfp8_e4m3", "nvfp4", "fp8_tensor"])
def test_a_graph_captures_a_call(recipe: str) -> None:
    x = normal(256, 1024).cuda()
    out = blockscale.quantize(x, recipe)  # loads the kernels
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        blockscale.quantize(x, recipe, out=out)
    fresh = normal(256, 1024, seed=9)
    x.copy_(fresh)
    graph.replay()
    torch.cuda.synchronize()
    assert_same(out, blockscale.quantize(fresh, recipe))


def test_given_scales() -> None:
    x = normal(16, 256)
    scale = torch.full((1,), 300.0)
    device = blockscale.quantize(x.cuda(), "nvfp4", tensor_scale=scale.cuda())
    assert_same(device, blockscale.quantize(x, "nvfp4", tensor_scale=scale))
    device = blockscale.quantize(x.cuda(), "fp8_row", scales=0.5)
    assert_same(device, blockscale.quantize(x, "fp8_row", scales=0.5))


def test_strided_rows() -> None:
    x = normal(40, 600)
    device = blockscale.quantize(x.cuda()[:, :512], "mxfp4")
    assert_same(device, blockscale.quantize(x[:, :512], "mxfp4"))


def test_arrays_of_one_call_lie_on_one_device() -> None:
    x = normal(4, 64)
    with pytest.raises(ValueError, match="out: is on the CPU, must be on cuda:0 like x"):
        blockscale.quantize(x.cuda(), "mxfp4", out=blockscale.quantize(x, "mxfp4"))
    with pytest.raises(ValueError, match="transform.weight: is on the CPU"):
        blockscale.quantize(x.cuda(), "mxfp4", transform=RmsNorm(normal(64)))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no second GPU")
def test_the_device_of_x_counts_whichever_is_current() -> None:
    x = normal(200, 1024)
    weight = normal(1024, seed=3)
    other = torch.device("cuda", 1)
    for recipe in ["mxfp4", "nvfp4", "fp8_128x128"]:
        got = blockscale.quantize(x.to(other), recipe, transform=RmsNorm(weight.to(other)))
        assert got.values.device == other and torch.cuda.current_device() == 0
        assert_same(got, blockscale.quantize(x, recipe, transform=RmsNorm(weight)))
        values = blockscale.dequantize(got, out_dtype="bfloat16")
        assert values.device == other
    with pytest.raises(ValueError, match="transform.weight: is on cuda:0, must be on cuda:1"):
        blockscale.quantize(x.to(other), "nvfp4", transform=RmsNorm(weight.cuda()))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no second GPU")
def test_work_is_queued_on_the_stream_of_the_device_of_x() -> None:
    x = normal(4096, 4096)
    want = blockscale.quantize(x, "nvfp4")
    other = torch.device("cuda", 1)
    there = x.to(other)
    stream = torch.cuda.Stream(other)
    with torch.cuda.stream(stream):
        blockscale.quantize(there, "nvfp4")  # loads the kernels, and fills the stream's pool
        late = torch.zeros_like(there)
        torch.cuda._sleep(1_000_000_000)
        late.copy_(there)
    with torch.cuda.stream(stream), torch.cuda.device(0):
        got = blockscale.quantize(late, "nvfp4")
    assert not stream.query()  # the call did not wait
    stream.synchronize()
    assert torch.equal(got.values.view(torch.uint8).cpu(), want.values.view(torch.uint8))
