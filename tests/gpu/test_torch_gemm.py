"""gemm of CUDA tensors of torch against float64: the error bound, every option, the caller's
stream, graphs. `./dev gpu-test` runs these where there is a GPU."""

from __future__ import annotations

from typing import Any

import blockscale
import pytest
from blockscale import ScaledTensor
from gpu_torch import normal, torch

#: docs/numerics.md: of Hopper's FP8 tensor cores, in units of 2^-24 sum |a||b|.
CONSTANT = 19000
#: Half an ulp of D's dtype, relative; f16's smallest ulp is absolute.
HALF_ULP = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
SMALLEST = 2.0**-25

PAIRS = [
    ("fp8_tensor", "fp8_tensor"),
    ("fp8_row", "fp8_row"),
    ("fp8_1x128", "fp8_128x128"),
    ("fp8_1x128", "fp8_1x128"),
    ("fp8_128x128", "fp8_32x128_ue8m0"),
    ("fp8_1x128_pow2", "fp8_64x128"),
    ("fp8_1x128_ue8m0", "fp8_128x128_ue8m0"),
]
SHAPES = [  # m, n, k: rows and columns that fill no tile, K that fills no block
    (1, 576, 7168),
    (64, 2112, 512),
    (128, 128, 128),
    (150, 200, 1104),
    (300, 4096, 256),
    (17, 25, 16),
    (33, 40, 1001),  # rows that begin anywhere: copied to a workspace
]


def spread(*shape: int, seed: int = 0) -> Any:
    """Normal values, with blocks of 128 columns of very different sizes, on the GPU."""
    x = normal(*shape, seed=seed, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed + 1)
    blocks = torch.randint(-7, 3, (*shape[:-1], -(-shape[-1] // 128)), generator=generator)
    return (x * torch.exp2(blocks).repeat_interleave(128, -1)[..., : shape[-1]]).cuda()


def operands(
    m: int, n: int, k: int, left: str = "fp8_1x128", right: str = "fp8_128x128", seed: int = 0
) -> tuple[ScaledTensor, ScaledTensor]:
    a = blockscale.quantize(spread(m, k, seed=seed), left)
    return a, blockscale.quantize(spread(n, k, seed=seed + 10), right)


def assert_product(
    d: Any,
    a: ScaledTensor,
    b: ScaledTensor,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Any = None,
    bias: Any = None,
) -> None:
    x, y = (blockscale.dequantize(t).double() for t in (a, b))
    exact = alpha * (x @ y.mT)
    allowed = CONSTANT * 2.0**-24 * abs(alpha) * (x.abs() @ y.abs().mT)
    for term in (None if c is None else beta * c.double(), None if bias is None else bias.double()):
        if term is not None:
            exact = exact + term
            allowed = allowed + 4 * 2.0**-24 * term.abs()
    allowed = allowed + HALF_ULP[d.dtype] * (exact.abs() + allowed) + SMALLEST
    assert d.device.type == "cuda" and d.shape == exact.shape
    error = (d.double() - exact).abs()
    assert (error <= allowed).all(), f"{(error / allowed).max().item()} of what is allowed"


@pytest.mark.parametrize(("left", "right"), PAIRS, ids="-".join)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products(shape: tuple[int, int, int], left: str, right: str) -> None:
    a, b = operands(*shape, left, right)
    d = blockscale.gemm(a, b)
    assert d.dtype == torch.float32
    assert_product(d, a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_out_is_written_and_nothing_beside_it(shape: tuple[int, int, int], dtype: Any) -> None:
    m, n, k = shape
    a = blockscale.quantize(normal(m, k).cuda(), "fp8_1x128", layout="mn_major")
    b = blockscale.quantize(normal(n, k, seed=1).cuda(), "fp8_128x128")
    room = torch.full((m + 2, n + 16), float("nan"), dtype=dtype, device="cuda")
    out = room[1:-1, 8:-8]
    assert blockscale.gemm(a, b, out=out) is out
    assert_product(out, a, b)
    out.fill_(float("nan"))
    assert room.isnan().all()
    given = blockscale.gemm(a, b, out_dtype=dtype)
    assert given.dtype == dtype and given.is_contiguous()
    assert_product(given, a, b)


LAYOUTS = ["row_major", "mn_major", "swizzled_128x4", "swizzled_8x4"]


@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_layouts_change_no_bit(left: str, right: str) -> None:
    x, y = spread(150, 1152), spread(200, 1152, seed=1)
    recipe = "fp8_1x128_ue8m0"
    a = blockscale.quantize(x, recipe, layout=left)
    b = blockscale.quantize(y, recipe, layout=right)
    want = blockscale.gemm(blockscale.quantize(x, recipe), blockscale.quantize(y, recipe))
    assert_product(want, a, b)
    assert torch.equal(blockscale.gemm(a, b), want)


def test_the_same_bits_each_time() -> None:
    a, b = operands(64, 2112, 7168)
    want = blockscale.gemm(a, b)
    for _ in range(20):
        assert torch.equal(blockscale.gemm(a, b), want)


def test_a_row_does_not_depend_on_the_others_where_that_is_asked() -> None:
    x, w = spread(300, 7168), blockscale.quantize(spread(576, 7168, seed=1), "fp8_128x128")

    def product(m: int) -> Any:
        return blockscale.gemm(blockscale.quantize(x[:m], "fp8_1x128"), w, batch_invariant=True)

    want = product(300)
    for m in (1, 7, 64, 129):
        assert torch.equal(product(m), want[:m])


@pytest.mark.parametrize("m", [1, 16, 33, 200])
@pytest.mark.parametrize(("n", "k"), [(130, 96), (130, 160), (512, 256)])
@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp4"])
def test_weights_that_other_libraries_get_wrong(recipe: str, n: int, k: int, m: int) -> None:
    """K of odd multiples of 32, shards of N = 512 and K = 256; MX scales 2^24 apart in a row, and
    NVFP4's subnormal ones."""
    x = normal(n, k, seed=1, dtype=torch.float32)
    options: dict[str, Any] = {}
    if recipe == "mxfp4":
        x = x * torch.exp2(torch.arange(k // 32) % 2 * 24 - 12).repeat_interleave(32)
    else:
        x, options["tensor_scale"] = x * 2.0**-8, 1.0
    w = blockscale.quantize(x.cuda(), recipe, **options)
    rows = normal(m, k).cuda()
    for a in (rows, blockscale.quantize(rows, "fp8_row")):
        d = blockscale.gemm(a, w, out_dtype=torch.float32).double()
        numbers = a.double() if a is rows else blockscale.dequantize(a).double()
        exact = numbers @ blockscale.dequantize(w).double().t()
        assert float((d - exact).norm() / exact.norm()) < (3e-3 if a is rows else 1e-2)


def test_fast_accumulation_is_less_exact() -> None:
    """Of products of one sign."""
    x, y = normal(300, 4096).abs().cuda(), normal(576, 4096, seed=1).abs().cuda()
    a, w = blockscale.quantize(x, "fp8_row"), blockscale.quantize(y, "mxfp4")
    exact = blockscale.dequantize(a).double() @ blockscale.dequantize(w).double().t()
    promoted, fast = (blockscale.gemm(a, w, fast_accumulation=on).double() for on in (False, True))
    errors = [float((d - exact).norm() / exact.norm()) for d in (promoted, fast)]
    assert errors[0] < 0.01 and errors[0] < errors[1] < 0.2


@pytest.mark.parametrize("shared", [None, "a", "b"])
def test_batches(shared: str | None) -> None:
    def make(rows: int, recipe: str, seed: int, one: bool) -> ScaledTensor:
        return blockscale.quantize(spread(1 if one else 3, rows, 512, seed=seed), recipe)

    a = make(70, "fp8_1x128", 0, shared == "a")
    b = make(200, "fp8_128x128", 1, shared == "b")
    c = normal(3, 70, 200, seed=2).cuda()
    d = blockscale.gemm(a, b, beta=2.0, c=c)
    assert d.shape == (3, 70, 200)
    assert_product(d, a, b, beta=2.0, c=c)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 200, 256), (200, 130, 1024)], ids=str)
def test_epilogue(shape: tuple[int, int, int], dtype: Any) -> None:
    m, n, _ = shape
    a, b = operands(*shape, "fp8_row", "fp8_row")
    c = normal(m, n, seed=2, dtype=dtype).cuda()
    bias = (100 * normal(n, seed=3, dtype=dtype)).cuda()
    d = blockscale.gemm(a, b, bias=bias)
    assert_product(d, a, b, bias=bias)
    d = blockscale.gemm(a, b, alpha=-0.25, beta=30.0, c=c, bias=bias, out_dtype=dtype)
    assert_product(d, a, b, alpha=-0.25, beta=30.0, c=c, bias=bias)
    before = c.clone()
    assert blockscale.gemm(a, b, beta=-3.0, c=c, out=c) is c
    assert_product(c, a, b, beta=-3.0, c=before)
    poison = torch.full_like(c, float("nan"))  # is not read
    assert_product(blockscale.gemm(a, b, beta=0.0, c=poison), a, b)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
def test_alpha_of_the_device(shape: tuple[int, ...]) -> None:
    a, b = operands(64, 256, 512)
    alpha = torch.full(shape, 0.375, device="cuda")
    d = blockscale.gemm(a, b, alpha=alpha)
    assert_product(d, a, b, alpha=0.375)
    assert torch.equal(d, blockscale.gemm(a, b, alpha=0.375))


def test_operands_of_torchs_own_are_taken_as_they_are() -> None:
    m, n, k = 96, 160, 512

    def values(rows: int, seed: int) -> Any:
        return normal(rows, k, seed=seed).cuda().to(torch.float8_e4m3fn)

    x, y = values(m, 0), values(n, 1)
    # As torch._scaled_mm wants them: one scale a row, one scale a column of y.t().
    scale_a, scale_b = torch.rand(m, 1, device="cuda") + 0.5, torch.rand(1, n, device="cuda") + 0.5
    a, b = ScaledTensor(x, scale_a, "fp8_row"), ScaledTensor(y, scale_b.t(), "fp8_row")
    d = blockscale.gemm(a, b)
    exact = (x.double() * scale_a.double()) @ (y.double() * scale_b.t().double()).t()
    sizes = (x.double() * scale_a.double()).abs() @ (y.double() * scale_b.t().double()).abs().t()
    assert ((d.double() - exact).abs() <= (CONSTANT + 2) * 2.0**-24 * sizes).all()
    # And with scales of blocks: a column of A's after the other.
    blocks = torch.rand(k // 128, m, device="cuda") + 0.5
    a = ScaledTensor(x, blocks, "fp8_1x128", layout="mn_major")
    assert a.scales.data_ptr() == blocks.data_ptr() and a.values.data_ptr() == x.data_ptr()
    b = ScaledTensor(y, torch.rand(2, k // 128, device="cuda") + 0.5, "fp8_128x128")
    assert_product(blockscale.gemm(a, b, out_dtype="bfloat16"), a, b)


def test_integers_are_exact() -> None:
    m, n, k = 130, 264, 1040
    generator = torch.Generator().manual_seed(0)

    def integers(rows: int) -> Any:
        return torch.randint(-3, 4, (rows, k), generator=generator).cuda()

    def scaled(x: Any, rows: int) -> ScaledTensor:
        scales = torch.ones(rows, -(-k // 128), device="cuda")
        recipe = "fp8_1x128" if rows == len(x) else "fp8_128x128"
        return ScaledTensor(x.float().to(torch.float8_e4m3fn), scales, recipe)

    x, y = integers(m), integers(n)
    d = blockscale.gemm(scaled(x, m), scaled(y, 3))
    assert torch.equal(d.double(), x.double() @ y.double().t())


def test_strided_operands() -> None:
    wide_a = normal(70, 1024).cuda().to(torch.float8_e4m3fn)
    wide_b = normal(2 * 200, 1024, seed=1).cuda().to(torch.float8_e4m3fn)
    a = ScaledTensor(wide_a[:, 256:768], torch.rand(70, 4, device="cuda"), "fp8_1x128")
    b = ScaledTensor(wide_b[::2, :512], torch.rand(2, 4, device="cuda"), "fp8_128x128")
    assert_product(blockscale.gemm(a, b), a, b)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 128, 128), (128, 0, 128), (5, 7, 0)])
def test_empty_products(m: int, n: int, k: int) -> None:
    a, b = (blockscale.quantize(torch.zeros(r, k).cuda(), "fp8_1x128") for r in (m, n))
    bias = normal(n).cuda()
    d = blockscale.gemm(a, b, bias=bias)
    assert torch.equal(d, bias.float().expand(m, n))


def test_work_is_queued_on_the_current_stream() -> None:
    a, b = operands(256, 4096, 4096)
    want = blockscale.gemm(a, b)  # loads the kernel
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        late = torch.zeros_like(a.values.view(torch.uint8))
        out = torch.zeros_like(want)
        operand = ScaledTensor(late, a.scales, "fp8_1x128")
        torch.cuda._sleep(100_000_000)
        late.copy_(a.values.view(torch.uint8))  # what is multiplied is there only after the sleep
        blockscale.gemm(operand, b, out=out)
        done = torch.cuda.Event()
        done.record(stream)
    assert not done.query()  # the call did not wait
    done.synchronize()
    assert torch.equal(out, want)


def test_a_graph_captures_a_call() -> None:
    a, b = operands(64, 2112, 1024)
    alpha = torch.ones((), device="cuda")
    out = blockscale.gemm(a, b, alpha=alpha)  # loads the kernel
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        blockscale.gemm(a, b, alpha=alpha, out=out)
        allocated = blockscale.gemm(a, b, out_dtype="bfloat16")
    fresh, _ = operands(64, 2112, 1024, seed=5)
    a.values.view(torch.uint8).copy_(fresh.values.view(torch.uint8))
    a.scales.copy_(fresh.scales)
    alpha.fill_(-2.0)
    out.zero_()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, blockscale.gemm(fresh, b, alpha=-2.0))
    assert torch.equal(allocated, blockscale.gemm(fresh, b, out_dtype="bfloat16"))


def test_calls_behind_each_other_wait_for_each_other() -> None:
    """Kernels may start early, but not read what the one before still writes."""
    a, b = operands(128, 512, 512)
    c = torch.zeros(128, 512, device="cuda")
    want = torch.zeros_like(c)
    for _ in range(50):
        blockscale.gemm(a, b, beta=0.5, c=c, out=c)
    for _ in range(50):
        want = blockscale.gemm(a, b, beta=0.5, c=want)
    assert torch.equal(c, want)
    for _ in range(20):  # quantize writes what gemm reads
        x = normal(128, 512, seed=7).cuda()
        got = blockscale.gemm(blockscale.quantize(x, "fp8_1x128"), b)
        torch.cuda.synchronize()
        assert torch.equal(got, blockscale.gemm(blockscale.quantize(x, "fp8_1x128"), b))


def test_what_is_refused() -> None:
    a, b = operands(64, 256, 512)
    out = torch.zeros(64, 256, device="cuda")

    def refuses(text: str, *arguments: Any, kind: type = ValueError, **options: Any) -> None:
        with pytest.raises(kind, match=text):
            blockscale.gemm(*arguments, **options)

    host = blockscale.quantize(normal(256, 512), "fp8_128x128")
    refuses("b: is on the CPU, must be on cuda:0 like a", a, host)
    refuses("b: is on cuda:0, must be on the CPU like a", host, b)
    refuses("out: is on the CPU, must be on cuda:0 like a", a, b, out=out.cpu())
    refuses("c: is on the CPU", a, b, beta=1.0, c=out.cpu())
    refuses("bias: is on the CPU", a, b, bias=torch.zeros(256))
    refuses("alpha: is on cuda:0, must be on the CPU", host, host, alpha=torch.ones(1).cuda())
    refuses("alpha: has dtype float64", a, b, alpha=torch.ones(1).cuda().double(), kind=TypeError)
    refuses("alpha: shape is", a, b, alpha=torch.ones(2).cuda())
    refuses("beta: is an array", a, b, beta=torch.ones(1).cuda(), c=out, kind=TypeError)
    refuses("out: has dtype int32", a, b, out=out.int(), kind=TypeError)
    refuses("out: overlaps c", a, b, beta=1.0, c=out, out=out.view(torch.bfloat16)[:, :256])
    refuses("b.k: is 384, must be 512", a, operands(1, 256, 384)[1])
    assert torch.equal(out, torch.zeros_like(out))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("bf16", "fp8_128x128"), ("bf16", "nvfp4"), ("fp8_tensor_e5m2", "fp8_tensor_e5m2"),
        ("mxfp8_e4m3", "mxfp8_e4m3"), ("mxfp8_e4m3", "mxfp4"), ("fp8_1x128", "mxfp6_e2m3"),
        ("nvfp4", "nvfp4"),
    ],
)  # fmt: skip
def test_pairs_without_a_kernel_of_their_own_are_taken(a: str, b: str) -> None:
    """By plain kernels, which sum in another order than the CPU does."""
    x, w = normal(64, 512), normal(96, 512, seed=1)
    host = [
        t if recipe == "bf16" else blockscale.quantize(t, recipe) for t, recipe in ((x, a), (w, b))
    ]
    there = [
        t.cuda() if recipe == "bf16" else blockscale.quantize(t.cuda(), recipe)
        for t, recipe in ((x, a), (w, b))
    ]
    got = blockscale.gemm(*there, out_dtype="float32")
    values = [
        t.double() if recipe == "bf16" else blockscale.dequantize(t).double()
        for t, recipe in zip(host, (a, b), strict=True)
    ]
    bound = 2.0**-18 * (values[0].abs() @ values[1].abs().T)
    assert torch.all((got.cpu().double() - values[0] @ values[1].T).abs() <= bound)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no second GPU")
def test_the_device_of_a_counts_whichever_is_current() -> None:
    a, b = operands(150, 200, 512)
    want = blockscale.gemm(a, b)
    other = torch.device("cuda", 1)

    def moved(x: ScaledTensor) -> ScaledTensor:
        return ScaledTensor(x.values.to(other), x.scales.to(other), x.recipe, layout=x.layout)

    there = blockscale.gemm(moved(a), moved(b))
    assert there.device == other and torch.cuda.current_device() == 0
    assert torch.equal(there.cpu(), want.cpu())
    with pytest.raises(ValueError, match="b: is on cuda:0, must be on cuda:1 like a"):
        blockscale.gemm(moved(a), b)
