"""Mixture of experts as operators of torch on the CPU: the package's results, and what
torch.compile asks of operators; `./dev test --torch` runs these."""

from __future__ import annotations

from typing import Any

import blockscale
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")

import blockscale.torch  # noqa: E402
from torch.library import opcheck  # noqa: E402

ops = torch.ops.blockscale
TOKENS, H, I, E, TOP_K = 19, 160, 96, 4, 3  # noqa: E741
FP8 = "fp8_128x128"


def normal(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def routes(tokens: int = TOKENS) -> tuple[Any, Any]:
    """Of six experts, of which four are here."""
    return ops.route(normal(tokens, E + 2, seed=3), TOP_K)


def experts(recipe: str = FP8) -> tuple[Any, Any]:
    w13, w2 = normal(E, 2 * I, H, seed=1) / H**0.5, normal(E, H, I, seed=2) / I**0.5
    if recipe == "bf16":
        return w13.bfloat16(), w2.bfloat16()
    if recipe == "nvfp4":
        scale = torch.tensor([500.0])
        return tuple(blockscale.quantize(w, recipe, tensor_scale=scale) for w in (w13, w2))
    return blockscale.quantize(w13, recipe), blockscale.quantize(w2, recipe)


def plain(x: Any, w13: Any, w2: Any, recipe: str) -> tuple[list[Any], dict[str, Any]]:
    """x and weights as operators have them: what comes before ids, and options."""
    options: dict[str, Any] = {}
    tensors = []
    for name, operand in (("x", x), ("w13", w13), ("w2", w2)):
        if isinstance(operand, blockscale.ScaledTensor):
            options[f"{name}_scales"] = operand.scales
            if recipe == "nvfp4":
                options[f"{name}_tensor_scale"] = operand.tensor_scale
            operand = operand.values
        tensors.append(operand)
    return tensors, options


MORE = {
    "alphas": (normal(E, seed=4), normal(E, seed=5)),
    "biases": (normal(E, 2 * I, seed=6).bfloat16(), normal(E, H, seed=7).bfloat16()),
}


@pytest.mark.parametrize("recipe", [FP8, "bf16", "nvfp4"])
def test_layers_are_the_packages(recipe: str) -> None:
    x, (w13, w2), (ids, weights) = normal(TOKENS, H).bfloat16(), experts(recipe), routes()
    tensors, options = plain(x, w13, w2, recipe)
    recipes = ("bf16", recipe, recipe)
    want = blockscale.moe(x, w13, w2, ids, weights)
    got = ops.moe(*tensors, ids, weights, *recipes, **options)
    assert got.dtype == torch.bfloat16 and torch.equal(got, want) and (got != 0).any()

    more: dict[str, Any] = {"gate_first": False, "interleave": 1, "residual": x}
    more |= {"local_expert_offset": 2, "activations": "bf16", "workspace_limit": 1 << 20}
    pairs = {"expert_alphas": MORE["alphas"], "biases": MORE["biases"]}
    want = blockscale.moe(x, w13, w2, ids, None, **more, **pairs)
    apart = {"w13_alphas": MORE["alphas"][0], "w2_alphas": MORE["alphas"][1]}
    apart |= {"w13_bias": MORE["biases"][0], "w2_bias": MORE["biases"][1]}
    got = ops.moe(*tensors, ids, None, *recipes, **options, **more, **apart)
    assert torch.equal(got, want)
    out = torch.full_like(want, torch.nan)
    assert ops.moe_out(*tensors, ids, None, *recipes, out=out, **options, **more, **apart) is None
    assert torch.equal(out, want)
    want = blockscale.moe(x, w13, w2, ids, weights, weights_on_input=True)
    got = ops.moe(*tensors, ids, weights, *recipes, **options, weights_on_input=True)
    assert torch.equal(got, want)
    own = experts(recipe)
    want = blockscale.moe(x, w13, w2, ids, weights, shared=own)
    (_, *ours), named = plain(x, *own, recipe)
    named = {f"shared_{name}": part for name, part in named.items()}
    named |= {"shared_w13": ours[0], "shared_w2": ours[1]}
    got = ops.moe(*tensors, ids, weights, *recipes, **options, **named)
    assert torch.equal(got, want)
    with pytest.raises(TypeError, match=r"^shared\[0\]: is a NoneType, must be an array"):
        ops.moe(*tensors, ids, weights, *recipes, **options, **(named | {"shared_w13": None}))
    more["residual"] = x.clone()
    given = {**options, **more, **apart}
    ops.moe_out(*tensors, ids, None, *recipes, out=more["residual"], **given)
    assert torch.equal(more["residual"], out)


def test_quantized_x_gives_bf16() -> None:
    x, (w13, w2), (ids, weights) = normal(TOKENS, H), experts(), routes()
    a = blockscale.quantize(x, "fp8_1x128", layout="mn_major")
    tensors, options = plain(a, w13, w2, FP8)
    options["x_layout"] = "mn_major"
    got = ops.moe(*tensors, ids, weights, "fp8_1x128", FP8, FP8, **options)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, blockscale.moe(a, w13, w2, ids, weights))


def test_routing_is_the_packages() -> None:
    logits, bias = normal(TOKENS, 16).half(), normal(16, seed=1)
    options = {"score": "sigmoid", "correction_bias": bias, "groups": 4, "top_groups": 2}
    options |= {"renormalize": False, "scale": 2.5}
    got, want = ops.route(logits, 3, **options), blockscale.route(logits.numpy(), 3)
    assert not torch.equal(got[0], torch.from_numpy(want[0]))
    for part, wanted in zip(got, blockscale.route(logits, 3, **options), strict=True):
        assert torch.equal(part, wanted)
    for tile in (1, 8):
        sorted_ = ops.moe_sort(got[0], 16, local_expert_offset=0, tile=tile)
        for part, wanted in zip(sorted_, blockscale.moe_sort(got[0], 16, tile=tile), strict=True):
            assert part.dtype == torch.int32
            assert part.numel() == 0 if wanted is None else torch.equal(part, wanted)


def test_sizes_are_those_of_fake_tensors() -> None:
    for tokens in (0, 1, 3, 300):
        ids = torch.zeros(tokens, 2, dtype=torch.int32)
        for tile, count in ((1, 4), (8, 4), (24, 100), (256, 1024)):
            real = [part.shape for part in ops.moe_sort(ids, count, tile=tile)]
            with torch._subclasses.FakeTensorMode() as mode:
                fake = [p.shape for p in ops.moe_sort(mode.from_tensor(ids), count, tile=tile)]
            assert fake == real


def test_torch_finds_the_operators_sound() -> None:
    opcheck(ops.route.default, (normal(6, 16), 2), {"correction_bias": normal(16), "groups": 4})
    ids, weights = routes(6)
    opcheck(ops.moe_sort.default, (ids, E))
    opcheck(ops.moe_sort.default, (ids, E), {"tile": 8, "local_expert_offset": 1})
    x, (w13, w2) = normal(6, H).bfloat16(), experts()
    tensors, options = plain(x, w13, w2, FP8)
    tensors[1:] = (w.view(torch.uint8) for w in tensors[1:])  # opcheck does not compare FP8
    arguments = (*tensors, ids, weights, "bf16", FP8, FP8)
    opcheck(ops.moe.default, arguments, options)
    options |= {"w13_alphas": MORE["alphas"][0], "w2_bias": MORE["biases"][1], "residual": x}
    opcheck(ops.moe.default, arguments, options)
    shared = {f"shared_{name}": w for name, w in zip(("w13", "w2"), tensors[1:], strict=True)}
    shared |= {f"shared_{name}_scales": options[f"{name}_scales"] for name in ("w13", "w2")}
    opcheck(ops.moe.default, arguments, options | shared)
    opcheck(ops.moe_out.default, arguments, options | {"out": torch.zeros(6, H)[:, :H].bfloat16()})


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_takes_a_layer_whole(backend: str) -> None:
    """Of any number of tokens, with the result in place of the residual."""
    w13, w2 = experts()
    (_, *tensors), options = plain(None, w13, w2, FP8)
    router = normal(E, H, seed=8) / H**0.5

    def block(x: Any) -> Any:
        ids, weights = ops.route(x @ router.T, 2, score="sigmoid")
        rows = ops.moe_sort(ids, E, tile=8)[2]
        y = x.clone()
        arguments = (x, *tensors, ids, weights, "f32", FP8, FP8)
        ops.moe_out(*arguments, residual=y, out=y, **options)
        return ops.moe(*arguments, residual=x, **options), y, rows.clone()

    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, backend=backend)
    for tokens in (4, 9, 17):  # the second compiles for any number of tokens, the third runs that
        x = normal(tokens, H, seed=tokens)
        for got, want in zip(compiled(x), block(x), strict=True):
            assert got.shape == want.shape
            assert torch.allclose(got.float(), want.float(), rtol=0.05, atol=0.05)
        y, in_place, _ = block(x)
        assert torch.equal(y, in_place)
