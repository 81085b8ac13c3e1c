"""torch.ops.blockscale on the CPU: the package's results, and what torch.compile asks of operators;
`./dev test --torch` runs these."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import blockscale
import pytest
from blockscale._tensor import TRAITS

torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")

import blockscale.torch  # noqa: E402
from torch.library import opcheck  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
ops = torch.ops.blockscale
RECIPES = [traits.name for traits in TRAITS.values() if not traits.plain]
LAYOUTS = ["row_major", "mn_major", "swizzled_128x4", "swizzled_8x4"]


def normal(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def equal(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def operands(m: int, n: int, k: int, left: str, right: str) -> tuple[Any, Any, dict[str, Any]]:
    """Values of both, and gemm's options that go with them."""
    a, a_scales, a_factor = ops.quantize(normal(m, k).bfloat16(), left)
    b, b_scales, b_factor = ops.quantize(normal(n, k, seed=1).bfloat16(), right)
    options = {"a_scales": a_scales, "b_scales": b_scales}
    if a_factor.numel() > 0:
        options |= {"a_tensor_scale": a_factor, "b_tensor_scale": b_factor}
    return a, b, options


@pytest.mark.parametrize("recipe", RECIPES)
def test_results_are_the_packages(recipe: str) -> None:
    x = normal(2, 8, 256).bfloat16()
    want = blockscale.quantize(x, recipe, layout="mn_major")
    values, scales, factor = ops.quantize(x, recipe, layout="mn_major")
    assert equal(values, want.values) and equal(scales, want.scales)
    parts = {"layout": "mn_major"}
    if want.tensor_scale is None:
        assert factor.shape == (0,) and factor.dtype == torch.float32
    else:
        assert torch.equal(factor, want.tensor_scale)
        parts["tensor_scale"] = factor
    y = ops.dequantize(values, scales, recipe, out_dtype=torch.bfloat16, **parts)
    assert torch.equal(y, blockscale.dequantize(want, out_dtype=torch.bfloat16))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_shapes_are_known_beforehand(recipe: str, layout: str) -> None:
    for shape in ((1, 128), (130, 640), (3, 8, 256), (2, 0, 128)):
        x = normal(*shape)
        try:
            real = ops.quantize(x, recipe, layout=layout)
        except ValueError as error:
            assert "which holds 1-byte scales" in str(error)
            continue
        with torch._subclasses.FakeTensorMode() as mode:
            fake = ops.quantize(mode.from_tensor(x), recipe, layout=layout)
        assert [(t.shape, t.dtype) for t in fake] == [(t.shape, t.dtype) for t in real]


def test_every_option_of_quantize() -> None:
    x = normal(4, 512)
    factor = torch.full((1,), 0.5)
    options = {"tensor_scale": factor, "sense": "multiplier", "transform": "swiglu"}
    want = blockscale.quantize(x, "nvfp4", **options)
    values, scales, found = ops.quantize(x, "nvfp4", **options)
    assert equal(values, want.values) and equal(scales, want.scales) and found.shape == (0,)
    given = torch.full((1, 1), 0.5)
    want = blockscale.quantize(x, "fp8_row", scales=given)
    got = ops.quantize(x, "fp8_row", scales=given)
    assert equal(got[0], want.values) and torch.equal(got[1], torch.full((4, 1), 0.5))
    want = blockscale.quantize(x, "mxfp8_e4m3", scale_mode="floor", transform="gelu_erf")
    got = ops.quantize(x, "mxfp8_e4m3", scale_mode="floor", transform="gelu_erf")
    assert equal(got[0], want.values) and equal(got[1], want.scales)
    want = blockscale.quantize(x, "fp8_1x128", amax_floor=9.0)
    assert equal(ops.quantize(x, "fp8_1x128", amax_floor=9.0)[1], want.scales)


PAIRS = [("fp8_1x128", "fp8_128x128"), ("nvfp4", "nvfp4"), ("fp8_row", "fp8_row")]


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_products_are_the_packages(left: str, right: str) -> None:
    a, b, options = operands(5, 7, 256, left, right)
    c, bias = normal(5, 7, seed=2), normal(7, seed=3).bfloat16()
    want = blockscale.gemm(
        *(
            blockscale.quantize(x.bfloat16(), recipe)
            for x, recipe in ((normal(5, 256), left), (normal(7, 256, seed=1), right))
        ),
        alpha=2.0,
        beta=0.5,
        c=c,
        bias=bias,
        out_dtype=torch.float16,
    )
    extras = {"alpha": 2.0, "beta": 0.5, "c": c, "bias": bias}
    got = ops.gemm(a, b, left, right, out_dtype=torch.float16, **options, **extras)
    assert got.dtype == torch.float16 and torch.equal(got, want)
    out = torch.empty(5, 7, dtype=torch.float16)
    assert ops.gemm_out(a, b, left, right, out=out, **options, **extras) is None
    assert torch.equal(out, want)
    assert ops.gemm(a, b, left, right, **options).dtype == torch.bfloat16


def test_a_plain_operand_and_bytes() -> None:
    x = normal(5, 256).bfloat16()
    b, scales, _ = ops.quantize(normal(7, 256, seed=1), "mxfp8_e4m3")
    want = blockscale.gemm(x, blockscale.ScaledTensor(b, scales, "mxfp8_e4m3"))
    assert torch.equal(ops.gemm(x, b, "bf16", "mxfp8_e4m3", b_scales=scales), want)
    b, scales = b.view(torch.uint8), scales.view(torch.uint8)
    assert torch.equal(ops.gemm(x, b, "bf16", "mxfp8_e4m3", b_scales=scales), want)


@pytest.mark.parametrize("transform", ["gelu_tanh", "gelu_erf", "silu", "swiglu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_transforms_of_products_are_the_packages(transform: str, dtype: Any) -> None:
    a, b, options = operands(5, 14, 256, "fp8_1x128", "fp8_128x128")
    bias = normal(14, seed=3)
    left = blockscale.ScaledTensor(a, options["a_scales"], "fp8_1x128")
    right = blockscale.ScaledTensor(b, options["b_scales"], "fp8_128x128")
    want = blockscale.gemm(left, right, bias=bias, transform=transform, out_dtype=dtype)
    arguments = (a, b, "fp8_1x128", "fp8_128x128")
    options |= {"bias": bias, "transform": transform}
    got = ops.gemm(*arguments, out_dtype=dtype, **options)
    assert got.dtype == dtype and torch.equal(got, want)
    out = torch.empty_like(want)
    ops.gemm_out(*arguments, out=out, **options)
    assert torch.equal(out, want)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_shapes_of_transformed_products_are_known_beforehand(batch: tuple[int, ...]) -> None:
    a, b = normal(*batch, 5, 64), normal(*(1 for _ in batch), 14, 64)
    for transform in ("identity", "gelu_erf", "silu", "swiglu"):
        real = ops.gemm(a, b, "f32", "f32", transform=transform)
        with torch._subclasses.FakeTensorMode() as mode:
            fakes = [mode.from_tensor(x) for x in (a, b)]
            fake = ops.gemm(*fakes, "f32", "f32", transform=transform)
        assert (fake.shape, fake.dtype) == (real.shape, real.dtype)


@pytest.mark.parametrize(
    "recipe", ["fp8_1x128", "fp8_1x128_ue8m0", "fp8_row", "mxfp8_e4m3", "nvfp4"]
)
@pytest.mark.parametrize("transform", ["identity", "gelu_erf", "silu", "swiglu"])
def test_quantized_products_are_the_packages(recipe: str, transform: str) -> None:
    a, b, options = operands(5, 256, 256, "fp8_1x128", "fp8_128x128")
    bias = normal(256, seed=3)
    result: dict[str, Any] = {"transform": transform}
    if recipe == "nvfp4":
        result |= {"tensor_scale": torch.full((1,), 0.125), "sense": "multiplier"}
    d = ops.gemm(a, b, "fp8_1x128", "fp8_128x128", bias=bias, out_dtype=torch.float32, **options)
    want = blockscale.quantize(d, recipe, layout="row_major", **result)
    recipes = ("fp8_1x128", "fp8_128x128", recipe)
    values, scales = ops.gemm_quantize(a, b, *recipes, bias=bias, **options, **result)
    assert equal(values, want.values) and equal(scales, want.scales)


def test_shapes_of_quantized_products_are_known_beforehand() -> None:
    for recipe in ("fp8_1x128", "fp8_1x128_ue8m0", "fp8_row", "mxfp8_e4m3", "nvfp4"):
        for layout in ("mn_major", "swizzled_128x4"):
            if recipe in ("fp8_1x128", "fp8_row") and layout == "swizzled_128x4":
                continue
            for batch in ((), (3,)):
                a, a_scales, _ = ops.quantize(normal(*batch, 130, 256), "fp8_row")
                b, b_scales, _ = ops.quantize(normal(*(1 for _ in batch), 384, 256), "fp8_row")
                arguments = (a, b, "fp8_row", "fp8_row", recipe)
                options = {"a_scales": a_scales, "b_scales": b_scales, "layout": layout}
                options |= {"transform": "swiglu", "tensor_scale": None}
                if recipe == "nvfp4":
                    options["tensor_scale"] = torch.ones(max(1, *batch, 1))
                real = ops.gemm_quantize(*arguments, **options)
                with torch._subclasses.FakeTensorMode() as mode:
                    fakes = [mode.from_tensor(x) if torch.is_tensor(x) else x for x in arguments]
                    fake_options = {
                        name: mode.from_tensor(x) if torch.is_tensor(x) else x
                        for name, x in options.items()
                    }
                    fake = ops.gemm_quantize(*fakes, **fake_options)
                assert [(t.shape, t.dtype) for t in fake] == [(t.shape, t.dtype) for t in real]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_takes_an_mlp_whole(backend: str) -> None:
    recipes = ("fp8_1x128", "fp8_128x128")
    up, up_scales, _ = ops.quantize(normal(512, 256, seed=1) / 16, recipes[1])
    down, down_scales, _ = ops.quantize(normal(48, 256, seed=2) / 16, recipes[1])

    def mlp(x: Any) -> Any:
        a, a_scales, _ = ops.quantize(x, recipes[0])
        options = {"a_scales": a_scales, "b_scales": up_scales, "transform": "swiglu"}
        h, h_scales = ops.gemm_quantize(a, up, *recipes, recipes[0], **options)
        return ops.gemm(h, down, *recipes, a_scales=h_scales, b_scales=down_scales) * 2

    torch._dynamo.reset()
    compiled = torch.compile(mlp, fullgraph=True, backend=backend)
    for rows in (4, 9, 17):  # the second compiles for any number of rows, the third runs that
        x = normal(rows, 256, seed=rows)
        assert torch.equal(compiled(x), mlp(x))


def test_what_is_refused() -> None:
    a, b, options = operands(5, 7, 256, "fp8_1x128", "fp8_128x128")
    recipes = ("fp8_1x128", "fp8_128x128")

    def refuses(kind: type[Exception], text: str, *arguments: Any, **changes: Any) -> None:
        with pytest.raises(kind, match=text):
            ops.gemm(*arguments, **(options | changes))

    refuses(ValueError, "a_recipe: is 'fp9'", a, b, "fp9", recipes[1])
    refuses(ValueError, "b_scales: are missing", a, b, *recipes, b_scales=None)
    refuses(ValueError, r"a\.scales: shape is", a, b, *recipes, a_scales=options["b_scales"])
    refuses(TypeError, r"a\.values: has dtype float32", a.float(), b, *recipes)
    refuses(TypeError, "a: has dtype torch.float32, must be bf16", a.float(), b, "bf16", recipes[1])
    refuses(ValueError, "b.k: is 128, must be 256", a, b[:, :128], *recipes,
            b_scales=options["b_scales"][:, :1])  # fmt: skip
    refuses(ValueError, "alpha: is 2.0", a, b, *recipes, alpha=2.0, alpha_factor=torch.ones(1))
    refuses(ValueError, "transform: is 'relu'", a, b, *recipes, transform="relu")
    refuses(ValueError, "must be even", a, b, *recipes, transform="swiglu")
    refuses(TypeError, "out_dtype: is float64", a, b, *recipes, out_dtype=torch.float64)
    for recipe, changes, text in (
        ("fp8_tensor", {}, "out.recipe: is fp8_tensor, must be fp8_1x128"),
        ("nvfp4", {}, "tensor_scale: is missing"),
        ("fp8_1x128", {"transform": "rms_norm"}, "transform: is 'rms_norm'"),
        ("fp8_1x128", {"a_scales": None}, "a_scales: are missing"),
    ):
        with pytest.raises(ValueError, match=text):
            ops.gemm_quantize(a, b, *recipes, recipe, **(options | changes))
    with pytest.raises(ValueError, match="x: requires grad"):
        ops.quantize(normal(4, 128).requires_grad_(), "fp8_1x128")


def test_torch_finds_the_operators_sound() -> None:
    x = normal(6, 256)
    opcheck(ops.quantize.default, (x, "fp8_1x128"))
    opcheck(ops.quantize.default, (x, "nvfp4"), {"layout": "swizzled_128x4"})
    a, b, options = operands(5, 7, 256, "fp8_1x128", "fp8_128x128")
    a, b = a.view(torch.uint8), b.view(torch.uint8)  # opcheck does not compare FP8
    arguments = (a, b, "fp8_1x128", "fp8_128x128")
    opcheck(ops.gemm.default, arguments, options)
    even = (a, b[:6], *arguments[2:])
    opcheck(ops.gemm.default, even, options | {"transform": "swiglu"})
    opcheck(ops.gemm_out.default, arguments, options | {"out": torch.empty(5, 7)})
    opcheck(ops.gemm_quantize.default, (*arguments, "fp8_1x128"), options)
    parts = {"out_dtype": torch.bfloat16}
    opcheck(ops.dequantize.default, (a, options["a_scales"], "fp8_1x128"), parts)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_compile_takes_a_layer_whole(left: str, right: str, backend: str) -> None:
    weight, weight_scales, weight_factor = ops.quantize(normal(48, 256, seed=1), right)

    def layer(x: Any) -> Any:
        a, scales, factor = ops.quantize(torch.relu(x), left)
        options = {"a_scales": scales, "b_scales": weight_scales}
        if left == "nvfp4":
            options |= {"a_tensor_scale": factor, "b_tensor_scale": weight_factor}
        return ops.gemm(a, weight, left, right, **options) + 1

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    for rows in (4, 9, 17):  # the second compiles for any number of rows, the third runs that
        x = normal(rows, 256, seed=rows)
        assert torch.equal(compiled(x), layer(x))


def test_the_page_shows_what_works() -> None:
    page = (ROOT / "docs/python.md").read_text()
    (block,) = re.findall(r"^```python\n(import torch.*?)^```$", page, re.M | re.S)
    names: dict[str, Any] = {}
    exec(block, names)
    assert names["linear"](torch.randn(3, 512)).shape == (3, 96)


@pytest.mark.parametrize("recipe", ["fp8_128x128", "nvfp4", "mxfp4"])
def test_the_example_of_a_layer(recipe: str) -> None:
    example = ROOT / "examples" / "fp8_linear.py"
    command = [sys.executable, example, "--device", "cpu", "--tokens", "9", "--inputs", "320"]
    command += ["--recipe", recipe]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    first, quantized, bf16 = done.stdout.splitlines()
    assert first == "9 x 320 -> 512 on cpu"
    assert quantized.split()[:2] == [recipe, "error"] and bf16.split()[:2] == ["bf16", "error"]


def calls() -> dict[str, tuple[list[Any], dict[str, Any]]]:
    """A call of each operator that is right: its arguments, and options."""
    a, b, scales = operands(6, 8, 256, "fp8_1x128", "fp8_128x128")
    recipes = ["fp8_1x128", "fp8_128x128"]
    more = {"alpha": 2.0, "beta": 0.5, "c": normal(6, 8), "bias": normal(8)}
    of_gemm = {"gate": normal(8), "fast_accumulation": True}
    layouts = {"a_layout": "row_major", "b_layout": "row_major"}
    x, x_scales, factor = ops.quantize(normal(6, 256), "nvfp4")
    return {
        "quantize": ([normal(6, 256), "nvfp4"], {"layout": "swizzled_128x4"}),
        "dequantize": ([x, x_scales, "nvfp4"], {"tensor_scale": factor}),
        "gemm": ([a, b, *recipes], scales | more | layouts | of_gemm),
        "gemm_out": ([a, b, *recipes], scales | {"out": torch.empty(6, 8)}),
        "gemm_quantize": (
            [a, b, *recipes, "fp8_1x128"],
            {**scales, "layout": "mn_major", "transform": "swiglu", "amax_floor": 0.5},
        ),
    }


def calls_of_groups() -> dict[str, tuple[list[Any], dict[str, Any]]]:
    """The same of products of groups."""
    a, b, scales = operands(6, 8, 256, "fp8_1x128", "fp8_128x128")
    b, b_scales = (x.unsqueeze(0).repeat(2, 1, 1) for x in (b, scales["b_scales"]))
    of_rows = {"a_scales": scales["a_scales"], "b_scales": b_scales}
    more = of_rows | {"alpha_factor": torch.ones(2), "bias": normal(2, 8)}
    masked, masked_scales = (x.reshape(2, 3, -1) for x in (a, scales["a_scales"]))
    of_masked = {"a_scales": masked_scales, "b_scales": b_scales}
    recipes = ["fp8_1x128", "fp8_128x128"]
    offsets, counts = torch.tensor([0, 2, 5]).int(), torch.tensor([2, 3]).int()
    moved = {"index": torch.arange(4).int(), "destinations": torch.arange(4).int()}
    moved |= {"weights": torch.ones(4), "lengths": counts, "out_rows": 5, "add": True}
    moved |= {"out_dtype": torch.float32, "expected_rows": 3, "batch_invariant": True}
    out = torch.empty(2, 3, 8)
    return {
        "grouped_gemm": ([a, b, *recipes, offsets], more | moved),
        "grouped_gemm_out": ([a, b, *recipes, offsets], more | {"out": torch.empty(6, 8)}),
        "grouped_gemm_quantize": (
            [a, b, *recipes, offsets, "fp8_1x128"],
            {**more, "lengths": counts, "index": torch.arange(4).int(), "transform": "swiglu"},
        ),
        "masked_grouped_gemm": ([masked, b, *recipes, counts], of_masked | {"alpha": 2.0}),
        "masked_grouped_gemm_out": ([masked, b, *recipes, counts], of_masked | {"out": out}),
        "k_grouped_gemm": (
            [a, a[:4], recipes[0], recipes[0], offsets],
            {"a_scales": scales["a_scales"], "b_scales": scales["a_scales"][:4], "alpha": 2.0},
        ),
        "k_grouped_gemm_out": (
            [normal(6, 64), normal(4, 64), "f32", "f32", offsets],
            {"out": torch.empty(2, 6, 4), "add": True},
        ),
    }


def calls_of_layers() -> dict[str, tuple[list[Any], dict[str, Any]]]:
    """The same of mixtures of experts."""
    recipes = ["fp8_128x128", "fp8_128x128"]
    w13, w13_scales, _ = ops.quantize(normal(2, 128, 256), recipes[0])
    w2, w2_scales, _ = ops.quantize(normal(2, 256, 64, seed=1), recipes[1])
    ids, weights = torch.tensor([[0, 1], [1, 5], [0, -1]]).int(), normal(3, 2)
    options = {"w13_scales": w13_scales, "w2_scales": w2_scales, "w13_layout": "row_major"}
    more = {"activation": "swiglu", "w2_alphas": torch.ones(2), "w13_bias": normal(2, 128)}
    more |= {"residual": normal(3, 256), "activations": "fp8_1x128", "w2_bias": normal(2, 256)}
    x, x_scales, _ = ops.quantize(normal(3, 256), "fp8_1x128")
    more |= {"shared_w13": w13[:1], "shared_w2": w2[:1], "weights_on_input": True}
    more |= {"shared_w13_scales": w13_scales[:1], "shared_w2_scales": w2_scales[:1]}
    return {
        "route": ([normal(3, 8), 2], {"correction_bias": normal(8), "score": "softmax"}),
        "moe_sort": ([ids, 4], {"tile": 8, "local_expert_offset": 1}),
        "moe": ([normal(3, 256), w13, w2, ids, weights, "f32", *recipes], options | more),
        "moe_out": (
            [x, w13, w2, ids, weights, "fp8_1x128", *recipes],
            options | {"x_scales": x_scales, "out": torch.empty(3, 256)},
        ),
    }


def wrong(value: Any) -> list[Any]:
    """What stands in for an argument: most of it is wrong there."""
    if isinstance(value, torch.Tensor):
        last = value.shape[-1]
        changed = [value[..., : last // 2], value[:-1], value.unsqueeze(0), value[..., 0]]
        changed += [torch.zeros(value.shape, dtype=d) for d in (torch.int32, torch.float64)]
        return [*changed, value.unsqueeze(0).expand(2, *value.shape).clone()]
    if isinstance(value, int):
        return [-1, 2**62]
    if isinstance(value, str):
        return ["nonsense", "mxfp4", "fp8_row", "bf16", "swizzled_8x4", "swiglu"]
    return [float("inf"), 0.0]


WRONG_OPTIONS = [
    {"layout": "swizzled_128x4"}, {"layout": "x"}, {"scale_mode": "floor"}, {"scale_mode": "x"},
    {"sense": "x"}, {"tensor_scale": torch.ones(3)}, {"tensor_scale": torch.ones(1).double()},
    {"amax_floor": 2.0}, {"transform": "relu"}, {"transform": "gelu_tanh"},
    {"alpha_factor": torch.ones(2)}, {"alpha_factor": torch.ones(1).half()}, {"beta": 1.0},
    {"c": normal(6, 7)}, {"bias": normal(3)}, {"bias": normal(2, 8)}, {"out_dtype": torch.int8},
    {"a_tensor_scale": torch.ones(1)}, {"batch_invariant": True}, {"add": False}, {"add": True},
    {"lengths": torch.ones(3).int()}, {"lengths": torch.ones(2)}, {"lengths": torch.ones(2).int()},
    {"index": torch.ones(4, 1).int()}, {"index": torch.ones(8).int()[::2]}, {"out_rows": 3},
    {"destinations": torch.ones(6).int()}, {"weights": torch.ones(6)}, {"out_rows": -1},
]  # fmt: skip


def wrong_calls() -> Any:
    every = calls() | calls_of_groups() | calls_of_layers()
    for name, (arguments, options) in every.items():
        for i, value in enumerate(arguments):
            for other in wrong(value):
                yield name, [*arguments[:i], other, *arguments[i + 1 :]], options
        for option, value in options.items():
            for other in [*wrong(value), None]:
                yield name, arguments, options | {option: other}
        for more in WRONG_OPTIONS:
            yield name, arguments, options | more


def outcome(name: str, arguments: list[Any], options: dict[str, Any]) -> Any:
    """What a call raises, or the shapes and types of its results."""
    try:
        results = getattr(ops, name)(*arguments, **options)
    except (TypeError, ValueError, RuntimeError) as error:
        return type(error), str(error)
    tensors = results if isinstance(results, tuple) else [] if results is None else [results]
    return [(tuple(t.shape), t.dtype) for t in tensors]


def test_fake_tensors_elsewhere_are_refused() -> None:
    a, b, scales = operands(6, 8, 256, "fp8_1x128", "fp8_128x128")
    with torch._subclasses.FakeTensorMode() as mode:
        there = [
            torch.empty_like(mode.from_tensor(x), device="meta") for x in (b, scales["b_scales"])
        ]
        a, a_scales = mode.from_tensor(a), mode.from_tensor(scales["a_scales"])
        options = {"a_scales": a_scales, "b_scales": there[1]}
        with pytest.raises(ValueError, match="^b: is on meta, must be on cpu like a$"):
            blockscale.torch._require_one_device("gemm", [a, there[0]], options)
        with pytest.raises(ValueError, match="^b_scales: is on meta, must be on cpu like a$"):
            blockscale.torch._require_one_device("gemm", [a, a], options)
        with pytest.raises(ValueError, match="^scales: is on meta, must be on cpu like values$"):
            blockscale.torch._require_one_device("dequantize", [a, there[1]], {})


def test_fake_tensors_are_refused_as_real_ones_are() -> None:
    refused = 0
    for name, arguments, options in wrong_calls():
        real = outcome(name, arguments, options)
        with torch._subclasses.FakeTensorMode() as mode:

            def faked(x: Any, mode: Any = mode) -> Any:
                return mode.from_tensor(x) if isinstance(x, torch.Tensor) else x

            fake = outcome(
                name, list(map(faked, arguments)), {key: faked(x) for key, x in options.items()}
            )
        assert fake == real, (name, arguments, options)
        refused += isinstance(real, tuple)
    assert refused >= 250
