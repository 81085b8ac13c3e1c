"""blockscale.nn on a GPU: the operators' bits, moves, graphs, torch.compile, load, quantize.
`./dev gpu-test` runs these where there is a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import blockscale.cuda
import blockscale.nn
import pytest
from blockscale._calibration_file import write
from blockscale.nn import Linear
from gpu_torch import normal, torch

#: Weights, inputs, and a scale of static ones.
LAYERS = [
    ("fp8_128x128", "fp8_1x128", None),
    ("fp8_row", "fp8_row", None),
    ("fp8_row", "fp8_row", 0.01),
    ("fp8_tensor", "fp8_tensor", 0.01),
    ("nvfp4", None, None),
    ("nvfp4", "nvfp4", None),
    ("nvfp4", "nvfp4", 600.0),
    ("mxfp4", "mxfp8_e4m3", None),
]


def plain(outputs: int = 192, inputs: int = 512) -> Any:
    layer = torch.nn.Linear(inputs, outputs)
    with torch.no_grad():
        layer.weight.copy_(normal(outputs, inputs, seed=1, dtype=torch.float32) / inputs**0.5)
        layer.bias.copy_(normal(outputs, seed=2, dtype=torch.float32))
    return layer


def layer_of(recipe: str, activations: str | None, scale: float | None) -> Any:
    """Quantized on the CPU, and moved."""
    layer = Linear.from_float(plain(), recipe, activations=activations, input_scale=scale)
    return layer.to("cuda")


@pytest.mark.parametrize(("recipe", "activations", "scale"), LAYERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_results_are_the_packages(
    recipe: str, activations: str | None, scale: float | None, dtype: Any
) -> None:
    layer = layer_of(recipe, activations, scale)
    assert all(x.is_cuda for x in layer.state_dict().values())
    x = normal(2, 9, 512).to("cuda", dtype)
    a: Any = x.reshape(18, 512)
    if activations == "nvfp4":
        a = blockscale.quantize(a, "nvfp4", tensor_scale=layer.input_scale, sense=layer.sense)
    elif activations is not None:
        a = blockscale.quantize(a, activations, scales=layer.input_scale)
    want = blockscale.gemm(a, layer.weight, bias=layer.bias, out_dtype=dtype)
    y = layer(x)
    assert y.shape == (2, 9, 192) and y.dtype == dtype
    assert torch.equal(y.reshape(18, 192), want)
    assert layer(x[:, :0]).shape == (2, 0, 192)
    near = layer.cpu()(x.cpu()).double()  # other sums, and codes of inputs that are the same
    assert float((y.cpu().double() - near).norm() / near.norm()) < 2.0**-7


@pytest.mark.parametrize(("recipe", "activations", "scale"), LAYERS)
def test_a_graph_is_captured_and_replayed(
    recipe: str, activations: str | None, scale: float | None
) -> None:
    blockscale.cuda.load_kernels()
    layer = layer_of(recipe, activations, scale)
    x = normal(8, 512).cuda()
    for _ in range(2):
        layer(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(x)
    for seed in (3, 4):
        x.copy_(normal(8, 512, seed=seed))
        graph.replay()
        assert torch.equal(y, layer(x))


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_compiles_as_one_graph(mode: str | None) -> None:
    model = torch.nn.Sequential(
        layer_of("fp8_128x128", "fp8_1x128", None), torch.nn.GELU(), torch.nn.LayerNorm(192).cuda()
    )
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, mode=mode)
    with torch.no_grad():
        for rows in (4, 9):
            x = normal(2, rows, 512, seed=rows, dtype=torch.float32).cuda()
            for _ in range(3):  # warm up, record, replay
                y = compiled(x).clone()
            assert torch.allclose(y, model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", ["row_major", "mn_major", "swizzled_128x4"])
def test_states_come_and_go(layout: str) -> None:
    make = {"layout": layout, "activations": "nvfp4"}
    layer = Linear.from_float(plain().cuda(), "nvfp4", **make)
    state = {name: x.cpu() for name, x in layer.state_dict().items()}
    other = Linear.from_float(plain(), "nvfp4", **make)
    assert all(torch.equal(x, other.state_dict()[name]) for name, x in state.items())
    other.scales.zero_()
    other = other.cuda()
    other.load_state_dict(state)
    x = normal(3, 512).cuda()
    assert torch.equal(other(x), layer(x))


def test_load_and_quantize(tmp_path: Path) -> None:
    model = torch.nn.ModuleDict({"q_proj": plain(), "norm": torch.nn.LayerNorm(192)})
    (tmp_path / "model").mkdir()
    tensors = {name: x.numpy() for name, x in model.state_dict().items()}
    write(
        tmp_path / "model/model.safetensors", tensors, {}
    )  # safetensors may not be installed there
    (tmp_path / "model/config.json").write_text(json.dumps({"model_type": "test"}))
    blockscale.convert(tmp_path / "model", tmp_path / "out", "fp8_row")
    with torch.device("meta"):
        empty = torch.nn.ModuleDict(
            {"q_proj": torch.nn.Linear(512, 192), "norm": torch.nn.LayerNorm(192)}
        )
    loaded = blockscale.nn.load(empty, tmp_path / "out", device="cuda")
    there = blockscale.nn.quantize(model.cuda(), "fp8_row")
    for name, x in loaded.state_dict().items():
        assert x.is_cuda and torch.equal(x, there.state_dict()[name])
