"""Mixture of experts on CUDA tensors of torch: routing and sorting against the CPU, the layer
against the CPU's, every option, graphs, torch.compile. `./dev gpu-test` runs these where there is a
GPU."""

from __future__ import annotations

from typing import Any

import blockscale
import pytest
from gpu_torch import normal, torch

TOKENS, H, I, E, TOP_K = 150, 512, 192, 8, 3  # noqa: E741

import blockscale.torch  # noqa: E402 (where there is no torch, gpu_torch says so first)

ops = torch.ops.blockscale
FP8 = "fp8_128x128"
#: Of the CPU's result, in L2: what a layer may differ from its model by. A requantised code may
#: fall to the other side of an edge, and sums of tensor cores differ in their last bits.
LARGEST_DIFFERENCE = 0.006


def on_gpu(x: Any) -> Any:
    """The same tensor there, quantized or not, in a pair or not."""
    if isinstance(x, (tuple, list)):
        return tuple(map(on_gpu, x))
    if not isinstance(x, blockscale.ScaledTensor):
        return x if x is None else x.cuda()
    factor = None if x.tensor_scale is None else x.tensor_scale.cuda()
    more = {"layout": x.layout, "tensor_scale": factor, "sense": x.sense}
    return blockscale.ScaledTensor(x.values.cuda(), x.scales.cuda(), x.recipe, **more)


def experts(recipe: str, *, inner: int = I, gated: bool = True, apart: bool = False) -> Any:
    """On the CPU."""
    rows = 2 * inner if gated else inner
    w13 = normal(E, rows, H, seed=1, dtype=torch.float32) / H**0.5
    w2 = normal(E, H, inner, seed=2, dtype=torch.float32) / inner**0.5
    if apart:
        w13 = w13.reshape(2 * E, inner, H)
    if recipe == "bf16":
        return w13.bfloat16(), w2.bfloat16()
    return blockscale.quantize(w13, recipe), blockscale.quantize(w2, recipe)


def routes(kind: str = "uniform", tokens: int = TOKENS) -> tuple[Any, Any]:
    logits = normal(tokens, E, seed=3, dtype=torch.float32)
    ids, weights = blockscale.route(logits, TOP_K)
    if kind == "one expert":
        ids.fill_(E - 1)
    elif kind == "half dropped":
        ids[::2, 1:] = -1
        ids[1::3] = E + 5
    return ids, weights


def assert_close(y: Any, want: Any) -> None:
    error = (y.cpu().double() - want.double()).norm() / want.double().norm()
    assert y.dtype == want.dtype and error <= LARGEST_DIFFERENCE, error.item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("experts_there", "groups"), [(8, 1), (256, 8), (1000, 1)])
@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_routes_are_the_cpus(score: str, experts_there: int, groups: int, dtype: Any) -> None:
    logits = normal(200, experts_there, dtype=dtype)
    bias = normal(experts_there, seed=1, dtype=torch.float32) / 4
    options: dict[str, Any] = {"score": score, "groups": groups, "top_groups": (groups + 1) // 2}
    options["scale"] = 2.5
    for given in (None, bias):
        want = blockscale.route(logits, 6, correction_bias=given, **options)
        got = blockscale.route(logits.cuda(), 6, correction_bias=on_gpu(given), **options)
        assert torch.equal(got[0].cpu(), want[0]) and torch.equal(got[1].cpu(), want[1])


@pytest.mark.parametrize("kind", ["uniform", "one expert", "half dropped"])
@pytest.mark.parametrize("tile", [1, 8, 128])
@pytest.mark.parametrize("tokens", [0, 1, TOKENS, 5000])
def test_sorted_entries_are_the_cpus(tokens: int, tile: int, kind: str) -> None:
    ids, _ = routes(kind, tokens)
    options = {"local_expert_offset": 2, "tile": tile}
    want = blockscale.moe_sort(ids, E, **options)
    got = blockscale.moe_sort(ids.cuda(), E, **options)
    for there, here in zip(got, want, strict=True):
        assert there is here is None or torch.equal(there.cpu(), here)


RECIPES = [FP8, "fp8_1x128", "bf16", "nvfp4", "mxfp4"]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("kind", ["uniform", "one expert", "half dropped"])
@pytest.mark.parametrize("tokens", [1, TOKENS])
def test_layers_are_near_the_cpus(tokens: int, kind: str, recipe: str) -> None:
    """In results that were poison, whose dropped tokens are zero."""
    x, (w13, w2), (ids, weights) = normal(tokens, H), experts(recipe), routes(kind, tokens)
    want = blockscale.moe(x, w13, w2, ids, weights)
    arguments = [on_gpu(given) for given in (x, w13, w2, ids, weights)]
    out = torch.full((tokens, H), torch.nan, dtype=x.dtype, device="cuda")
    assert blockscale.moe(*arguments, out=out) is out
    assert_close(out, want)
    dropped = ((ids < 0) | (ids >= E)).all(dim=1)
    assert (out[dropped.cuda()] == 0).all()
    assert torch.equal(blockscale.moe(*arguments), out)  # the same bits again


@pytest.mark.parametrize("recipe", [FP8, "bf16"])
@pytest.mark.parametrize(
    "options",
    [{"gate_first": False}, {"interleave": 1}, {"interleave": 64}]
    + [{"activation": a} for a in ("gelu_tanh", "gelu_erf", "silu", None)],
    ids=str,
)
def test_activations(options: dict[str, Any], recipe: str) -> None:
    gated = options.get("activation", "swiglu") == "swiglu"
    x, (w13, w2), (ids, weights) = normal(TOKENS, H), experts(recipe, gated=gated), routes()
    want = blockscale.moe(x, w13, w2, ids, weights, **options)
    arguments = [on_gpu(given) for given in (x, w13, w2, ids, weights)]
    assert_close(blockscale.moe(*arguments, **options), want)


@pytest.mark.parametrize("recipe", [FP8, "bf16"])
@pytest.mark.parametrize("inner", [80, 128])
def test_gates_apart(recipe: str, inner: int) -> None:
    x, (ids, weights) = normal(TOKENS, H), routes()
    w13, w2 = experts(recipe, inner=inner, apart=True)
    want = blockscale.moe(x, w13, w2, ids, weights)
    arguments = [on_gpu(given) for given in (x, w13, w2, ids, weights)]
    assert_close(blockscale.moe(*arguments), want)


@pytest.mark.parametrize("recipe", [FP8, "bf16"])
def test_weights_on_the_input(recipe: str) -> None:
    x, (w13, w2), (ids, weights) = normal(TOKENS, H), experts(recipe), routes()
    want = blockscale.moe(x, w13, w2, ids, weights, weights_on_input=True)
    arguments = [on_gpu(given) for given in (x, w13, w2, ids, weights)]
    assert_close(blockscale.moe(*arguments, weights_on_input=True), want)


@pytest.mark.parametrize("recipe", [FP8, "bf16"])
@pytest.mark.parametrize("tokens", [1, TOKENS])
def test_shared_experts(recipe: str, tokens: int) -> None:
    x, (w13, w2), (ids, weights) = normal(tokens, H), experts(recipe), routes(tokens=tokens)
    shared = tuple(w[:2] for w in experts(recipe))
    want = blockscale.moe(x, w13, w2, ids, weights, shared=shared)
    arguments = [on_gpu(given) for given in (x, w13, w2, ids, weights)]
    assert_close(blockscale.moe(*arguments, shared=tuple(map(on_gpu, shared))), want)


@pytest.mark.parametrize("recipe", [FP8, "nvfp4"])
def test_alphas_biases_and_residuals(recipe: str) -> None:
    x, (w13, w2), (ids, weights) = normal(TOKENS, H), experts(recipe), routes("half dropped")
    options: dict[str, Any] = {
        "expert_alphas": (torch.rand(E) + 0.5, None),
        "biases": (normal(E, 2 * I, seed=5), normal(E, H, seed=6)),
        "residual": normal(TOKENS, H, seed=7),
    }
    want = blockscale.moe(x, w13, w2, ids, weights, **options)
    there = {name: on_gpu(given) for name, given in options.items()}
    arguments = [on_gpu(given) for given in (x, w13, w2, ids, weights)]
    y = blockscale.moe(*arguments, **there)
    assert_close(y, want)
    residual = there["residual"]
    assert blockscale.moe(*arguments, **there, out=residual) is residual  # in place
    assert torch.equal(residual, y)


def test_parts_have_the_bits_of_the_whole() -> None:
    tokens = 700
    given = (normal(tokens, H), *experts(FP8), *routes(tokens=tokens))
    arguments = [on_gpu(x) for x in given]
    want = blockscale.moe(*arguments)
    assert torch.equal(blockscale.moe(*arguments, workspace_limit=1), want)


@pytest.mark.parametrize("recipe", [FP8, "bf16"])
def test_a_graph_takes_other_routes(recipe: str) -> None:
    x, w13, w2, ids, weights = map(on_gpu, (normal(TOKENS, H), *experts(recipe), *routes()))
    out = torch.zeros(TOKENS, H, dtype=x.dtype, device="cuda")
    blockscale.moe(x, w13, w2, ids, weights, out=out)  # loads the kernels
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        blockscale.moe(x, w13, w2, ids, weights, out=out)
    for kind in ("one expert", "half dropped", "uniform"):
        others = [on_gpu(part) for part in routes(kind)]
        ids.copy_(others[0])
        weights.copy_(others[1].flip(0))
        out.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, blockscale.moe(x, w13, w2, others[0], others[1].flip(0)))


def test_rows_beside_the_tensors_stay() -> None:
    x, w13, w2, ids, weights = map(on_gpu, (normal(TOKENS, H), *experts(FP8), *routes()))
    memory = torch.full((TOKENS + 2, H + 8), 7.0, dtype=x.dtype, device="cuda")
    out = memory[1:-1, :H]  # with a stride
    blockscale.moe(x, w13, w2, ids, weights, out=out)
    assert torch.equal(out, blockscale.moe(x, w13, w2, ids, weights))
    out.fill_(7.0)
    assert (memory == 7).all()


def test_operators_have_the_packages_bits() -> None:
    x, w13, w2 = map(on_gpu, (normal(TOKENS, H), *experts(FP8)))
    router = normal(E, H, seed=8).cuda() / H**0.5
    scales = {"w13_scales": w13.scales, "w2_scales": w2.scales}

    def layer(x: Any, *weights: Any) -> Any:
        ids, factors = ops.route(x @ router.T, 2)
        return ops.moe(x, *weights, ids, factors, "bf16", FP8, FP8, **scales)

    arguments = (x, w13.values, w2.values)
    want = blockscale.moe(x, w13, w2, *blockscale.route(x @ router.T, 2))
    assert torch.equal(layer(*arguments), want)
    compiled = torch.compile(layer, fullgraph=True, mode="reduce-overhead")
    for _ in range(3):  # the second captures a graph, the third replays it
        assert torch.equal(compiled(*arguments).clone(), want)
