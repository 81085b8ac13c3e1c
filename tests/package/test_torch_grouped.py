"""Products of groups as operators of torch on the CPU: the package's results, and what
torch.compile asks of operators; `./dev test --torch` runs these."""

from __future__ import annotations

from typing import Any

import blockscale
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")

import blockscale.torch  # noqa: E402
from torch.library import opcheck  # noqa: E402

ops = torch.ops.blockscale
ROWS, GROUPS, N, K = 24, 4, 40, 256
OFFSETS = torch.tensor([0, 3, 3, 20, 21]).int()
RECIPES = ("fp8_1x128", "fp8_128x128")


def normal(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def operands(
    left: str = RECIPES[0], right: str = RECIPES[1], rows: tuple[int, ...] = (ROWS,)
) -> tuple[Any, Any, tuple[Any, ...], dict[str, Any]]:
    """Both as the package has them, an operator's arguments, and the options that go with them."""
    a = blockscale.quantize(normal(*rows, K), left)
    b = blockscale.quantize(normal(GROUPS, N, K, seed=1), right)
    options = {"a_scales": a.scales, "b_scales": b.scales}
    if left == "nvfp4":
        options |= {"a_tensor_scale": a.tensor_scale, "b_tensor_scale": b.tensor_scale}
    return a, b, (a.values, b.values, left, right), options


@pytest.mark.parametrize(("left", "right"), [RECIPES, ("nvfp4", "nvfp4"), ("fp8_row", "fp8_row")])
@pytest.mark.parametrize("transform", ["identity", "swiglu"])
def test_products_are_the_packages(left: str, right: str, transform: str) -> None:
    a, b, arguments, options = operands(left, right)
    alpha, bias = torch.tensor([1.0, 0.5, -2.0, 3.0]), normal(GROUPS, N, seed=2).bfloat16()
    more = {"bias": bias, "transform": transform, "expected_rows": 3, "batch_invariant": True}
    want = blockscale.grouped_gemm(a, b, OFFSETS, alpha=alpha, out_dtype=torch.float16, **more)
    more |= {"alpha_factor": alpha}
    got = ops.grouped_gemm(*arguments, OFFSETS, out_dtype=torch.float16, **options, **more)
    assert got.dtype == torch.float16 and torch.equal(got, want) and (got[:21] != 0).any()
    out = torch.full_like(want, 7)
    assert ops.grouped_gemm_out(*arguments, OFFSETS, out=out, **options, **more) is None
    assert torch.equal(out[:21], want[:21]) and (out[21:] == 7).all()
    assert ops.grouped_gemm(*arguments, OFFSETS, **options).dtype == torch.bfloat16


def test_rows_that_move_are_the_packages() -> None:
    a, b, arguments, options = operands()
    index = torch.tensor([5, 5, 23, 0, -1, 9, 24, 1]).int()
    offsets, lengths = torch.tensor([4, 0, 7, 1]).int(), torch.tensor([3, 1, 0, 2]).int()
    moves = {"index": index, "lengths": lengths, "destinations": index.flip(0), "out_rows": 30}
    for more in ({}, {"weights": normal(8), "add": True}):
        want = blockscale.grouped_gemm(a, b, offsets, **moves, **more)
        got = ops.grouped_gemm(
            *arguments, offsets, out_dtype=torch.float32, **options, **moves, **more
        )
        assert got.shape == (30, N) and torch.equal(got, want) and (got != 0).any()


@pytest.mark.parametrize("recipe", ["fp8_1x128", "mxfp8_e4m3", "nvfp4"])
def test_quantized_results_are_the_packages(recipe: str) -> None:
    a, _, arguments, options = operands()
    b = blockscale.quantize(normal(GROUPS, 192, K, seed=1), RECIPES[1])
    arguments, options["b_scales"] = (a.values, b.values, *RECIPES), b.scales
    more: dict[str, Any] = {"transform": "swiglu", "index": torch.arange(30).int() % ROWS}
    if recipe == "nvfp4":
        more |= {"tensor_scale": torch.full((1,), 0.125), "sense": "multiplier"}
    want = blockscale.grouped_gemm_quantize(a, b, OFFSETS, recipe, **more)
    values, scales = ops.grouped_gemm_quantize(*arguments, OFFSETS, recipe, **options, **more)
    for got, part in ((values, want.values), (scales, want.scales)):
        assert got.shape[0] == 30 and got.dtype == part.dtype
        got, part = (x.view(torch.uint8) for x in (got, part))
        assert torch.equal(got, part) and got[:21].any() and not got[21:].any()


def test_masked_groups_are_the_packages() -> None:
    a, b, arguments, options = operands(rows=(GROUPS, 6))
    counts = torch.tensor([3, 0, 6, 1]).int()
    want = blockscale.masked_grouped_gemm(a, b, counts, alpha=2.0)
    more = options | {"alpha": 2.0}
    got = ops.masked_grouped_gemm(*arguments, counts, out_dtype=torch.float32, **more)
    assert torch.equal(got, want) and (got[0, :3] != 0).any() and (got[0, 3:] == 0).all()
    out = torch.full_like(want, 7)
    ops.masked_grouped_gemm_out(*arguments, counts, out=out, **more)
    assert torch.equal(out[2], want[2]) and (out[1] == 7).all()


def test_groups_of_k_are_the_packages() -> None:
    a, b = blockscale.quantize(normal(9, K), "fp8_row"), normal(14, K, seed=1)
    b = blockscale.quantize(b, "fp8_row")
    offsets = torch.tensor([0, 5, 101, 250]).int()
    want = blockscale.k_grouped_gemm(a, b, offsets, alpha=2.0)
    options = {"a_scales": a.scales, "b_scales": b.scales, "alpha": 2.0}
    arguments = (a.values, b.values, "fp8_row", "fp8_row", offsets)
    got = ops.k_grouped_gemm(*arguments, **options)
    assert got.shape == (3, 9, 14) and torch.equal(got, want)
    out = torch.ones_like(want)
    ops.k_grouped_gemm_out(*arguments, add=True, out=out, **options)
    assert (out - 1 - want).abs().max() <= 2.0**-15 * want.abs().max()


def test_torch_finds_the_operators_sound() -> None:
    _, _, arguments, options = operands()
    a, b = (x.view(torch.uint8) for x in arguments[:2])  # opcheck does not compare FP8
    of_rows = (a, b, *RECIPES, OFFSETS)
    opcheck(ops.grouped_gemm.default, of_rows, options)
    opcheck(ops.grouped_gemm.default, of_rows, options | {"transform": "swiglu"})
    hints = {"expected_rows": 3, "batch_invariant": True}
    opcheck(ops.grouped_gemm.default, of_rows, options | hints)
    to = torch.arange(ROWS).int()
    moves = {"destinations": to, "out_rows": 30, "add": True, "out_dtype": torch.float32}
    opcheck(ops.grouped_gemm.default, of_rows, options | moves)
    quantized = options | {"transform": "swiglu", "layout": "mn_major", "index": to}
    opcheck(ops.grouped_gemm_quantize.default, (*of_rows, "fp8_1x128"), quantized)
    opcheck(ops.grouped_gemm_out.default, of_rows, options | {"out": torch.zeros(ROWS, N)})
    scales = options["a_scales"].reshape(GROUPS, 6, -1)
    masked = (a.reshape(GROUPS, 6, K), b, *RECIPES, OFFSETS[:4])
    opcheck(ops.masked_grouped_gemm.default, masked, options | {"a_scales": scales})
    out = torch.zeros(GROUPS, 6, N)
    options |= {"a_scales": scales, "out": out}
    opcheck(ops.masked_grouped_gemm_out.default, masked, options)
    of_k = (normal(5, 64), normal(6, 64), "f32", "f32", OFFSETS)
    opcheck(ops.k_grouped_gemm.default, of_k)
    opcheck(ops.k_grouped_gemm_out.default, of_k, {"out": torch.zeros(4, 5, 6), "add": True})


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_takes_a_mixture_of_experts_whole(backend: str) -> None:
    """Of any number of tokens: route, sort, both products, and the sum of what came of a token."""
    hidden, most = 128, 2
    up, up_scales, _ = ops.quantize(normal(GROUPS, 2 * hidden, K, seed=1) / 16, RECIPES[1])
    down, down_scales, _ = ops.quantize(normal(GROUPS, K, hidden, seed=2) / 16, RECIPES[1])
    router = normal(GROUPS, K, seed=3) / 16

    def experts(x: Any) -> Any:
        weights, expert = torch.topk(torch.softmax(x @ router.T, -1), most)
        order = torch.argsort(expert.flatten(), stable=True)
        tokens = (order // most).int()
        counts = torch.zeros(GROUPS).index_add(0, expert.flatten(), torch.ones(expert.numel()))
        offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()
        a, scales, _ = ops.quantize(x, RECIPES[0])
        options = {"a_scales": scales, "b_scales": up_scales, "index": tokens}
        options |= {"transform": "swiglu"}
        h, scales = ops.grouped_gemm_quantize(a, up, *RECIPES, offsets, RECIPES[0], **options)
        options = {"a_scales": scales, "b_scales": down_scales, "destinations": tokens}
        options |= {"weights": weights.flatten()[order], "out_rows": x.shape[0], "add": True}
        return ops.grouped_gemm(h, down, *RECIPES, offsets, out_dtype=torch.float32, **options)

    torch._dynamo.reset()
    compiled = torch.compile(experts, fullgraph=True, backend=backend)
    for rows in (4, 9, 17):  # the second compiles for any number of rows, the third runs that
        x = normal(rows, K, seed=rows)
        want = experts(x)
        assert want.shape == (rows, K) and torch.allclose(compiled(x), want, rtol=0.05, atol=0.01)
