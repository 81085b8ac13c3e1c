"""blockscale.compat.hpc on the CPU: the cases of hpc-ops' tests of group_gemm_pertensor (at
49fdcc5c), group_gemm_blockwise (10448e2f), fuse_moe_blockwise (23cd755e) and fuse_moe_pertensor
(4b402c89), in smaller sizes, against products in float64."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")

from blockscale.compat import hpc  # noqa: E402

FP8 = torch.float8_e4m3fn


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(41)


def codes(*shape: int, divisor: float = 1.0) -> Any:
    return (torch.randn(shape) / divisor).to(FP8)


def offsets(seqlens: Any) -> Any:
    return torch.nn.functional.pad(seqlens.cumsum(0), (1, 0)).int()


def by_blocks(scales: Any, rows: int, columns: int) -> Any:
    each = scales.double().repeat_interleave(128, -2).repeat_interleave(128, -1)
    return each[..., :rows, :columns]


def close(x: Any, exact: Any, rtol: float, atol: float) -> bool:
    return torch.allclose(x.double(), exact.double(), rtol=rtol, atol=atol)


@pytest.mark.parametrize("rows", [8, 16, 32, 64, 128])
def test_group_gemm_pertensor(rows: int) -> None:
    groups, n, k = 4, 256, 448
    seqlens = torch.full((groups,), rows, dtype=torch.int32)
    x, w = codes(groups * rows, k), codes(groups, n, k)
    y_scale = torch.rand(groups) + 0.5
    for function in (hpc.group_gemm_pertensor_fp8, hpc.group_gemm_fp8):
        y = function(x, w, seqlens, offsets(seqlens), y_scale, num_seq_per_group_avg=rows)
        exact = x.double().view(groups, rows, k) @ w.double().mT * y_scale[:, None, None].double()
        assert y.dtype == torch.bfloat16
        assert close(y, exact.view(-1, n), 2**-8, 0.01)


def test_groups_with_gaps_and_an_output() -> None:
    seqlens, starts = torch.tensor([2, 0, 3]).int(), torch.tensor([1, 4, 4, 8]).int()
    x, w, scale = codes(8, 64), codes(3, 32, 64), torch.ones(3)
    output = torch.full((8, 32), 7.0, dtype=torch.bfloat16)
    assert hpc.group_gemm_pertensor_fp8(x, w, seqlens, starts, scale, output=output) is output
    assert (output[[0, 3, 7]] == 7).all()
    assert close(output[4:7], x[4:7].double() @ w[2].double().T, 2**-8, 0.01)


def padded(x_scale: Any, seqlens: Any, tile: int) -> Any:
    """Columns of each group padded by NaN to whole tiles, and a tile more."""
    parts = [
        torch.nn.functional.pad(part, (0, -part.shape[1] % tile), value=float("nan"))
        for part in x_scale.split(seqlens.tolist(), 1)
    ]
    return torch.cat([*parts, torch.full((x_scale.shape[0], tile), float("nan"))], 1)


@pytest.mark.parametrize("average", [5, 16, 30, 48, 65, 130])
def test_group_gemm_blockwise(average: int) -> None:
    n, k = 256, 384
    seqlens = torch.tensor([average, average // 2, 0, average * 2 - average // 2]).int()
    groups, rows = len(seqlens), int(seqlens.sum())
    x, w = codes(rows, k, divisor=10), codes(groups, n, k, divisor=10)
    x_scale, w_scale = torch.randn(k // 128, rows), torch.randn(groups, n // 128, 4)
    given = padded(x_scale, seqlens, next((t for t in (8, 16, 32, 48) if average <= t), 64))
    y = hpc.group_gemm_blockwise_fp8(
        x, w, seqlens, offsets(seqlens), given, w_scale, num_seq_per_group_avg=average
    )
    of_x = x.double() * x_scale.double().repeat_interleave(128, 0).T
    of_w = w.double() * by_blocks(w_scale, n, k)
    parts = [
        part @ weight.T for part, weight in zip(of_x.split(seqlens.tolist()), of_w, strict=True)
    ]
    assert close(y, torch.cat(parts), 0.08, 0.1)
    assert close(y, torch.cat(parts), 2**-8, 1e-3)


def test_scales_of_groups_with_gaps_lie_close() -> None:
    """As hpc-ops' reformat_x_scale leaves those of DeepEP: rows of x are apart, scales are not."""
    starts, seqlens = torch.tensor([0, 64, 128]).int(), torch.tensor([10, 20]).int()
    x, w, w_scale = codes(128, 256, divisor=10), codes(2, 128, 256), torch.rand(2, 1, 2)
    x_scale = torch.rand(2, 30)
    given = padded(x_scale, seqlens, 16)
    y = hpc.group_gemm_blockwise_fp8(x, w, seqlens, starts, given, w_scale, 16)
    for group, rows, columns in (
        (0, slice(0, 10), slice(0, 10)),
        (1, slice(64, 84), slice(10, 30)),
    ):
        of_x = x[rows].double() * x_scale[:, columns].double().repeat_interleave(128, 0).T
        of_w = w[group].double() * by_blocks(w_scale[group], 128, 256)
        assert close(y[rows], of_x @ of_w.T, 2**-8, 1e-3)
    assert (y[84:] == 0).all()


def test_a_device_without_tokens() -> None:
    none, w = torch.zeros(2, dtype=torch.int32), codes(2, 64, 128)
    y = hpc.group_gemm_pertensor_fp8(codes(0, 128), w, none, offsets(none), torch.ones(2))
    assert y.shape == (0, 64)
    given = (codes(0, 128), w, none, offsets(none), torch.ones(1, 0), torch.ones(2, 1, 1))
    assert hpc.group_gemm_blockwise_fp8(*given).shape == (0, 64)
    ids = torch.zeros(0, 4, dtype=torch.int32)
    one, w13, w2 = torch.ones(2), codes(2, 64, 128), codes(2, 128, 32)
    layer = (codes(0, 128), w13, w2, one, one, torch.ones(1), ids, torch.zeros(0, 4), 0, 2)
    assert hpc.fuse_moe(*layer).shape == (0, 128)


def routing(tokens: int, top_k: int, experts: int) -> tuple[Any, Any]:
    ids = torch.multinomial(torch.ones(tokens, experts), top_k).int().sort(dim=1).values
    weights = torch.rand(tokens, top_k)
    return ids, weights / weights.sum(1, keepdim=True)


def layer(x: Any, w13: Any, w2: Any, ids: Any, weights: Any, first: int, inner: Any) -> Any:
    """In float64, of dequantized operands; `inner` is what happens between the products."""
    y = torch.zeros(x.shape[0], w2.shape[1], dtype=torch.float64)
    for token in range(x.shape[0]):
        for expert, weight in zip(ids[token].tolist(), weights[token].tolist(), strict=True):
            if not first <= expert < first + w13.shape[0]:
                continue
            gate, up = (w13[expert - first] @ x[token]).chunk(2)
            y[token] += weight * (w2[expert - first] @ inner(torch.nn.functional.silu(gate), up))
    return y


def requantized(gate: Any, up: Any) -> Any:
    out = torch.nn.functional.pad(gate * up, (0, -gate.shape[0] % 128)).view(-1, 128)
    scale = (out.abs().amax(1, keepdim=True) / 448).float().double()
    codes_of_it = (out / scale).float().to(FP8).double()
    return (codes_of_it * scale).flatten()[: gate.shape[0]]


@pytest.mark.parametrize(
    ("tokens", "hidden", "inner"), [(1, 256, 192), (5, 256, 256), (40, 512, 256)]
)
@pytest.mark.parametrize(("size", "rank"), [(1, 0), (4, 1)])
@pytest.mark.parametrize("is_shared", [False, True])
def test_fuse_moe_blockwise(
    tokens: int, hidden: int, inner: int, size: int, rank: int, is_shared: bool
) -> None:
    total, top_k = 16, 8
    experts = total // size
    ids, weights = routing(tokens, top_k, total)
    x, x_scale = codes(tokens, hidden, divisor=100), torch.randn(tokens, hidden // 128)
    w13, w2 = codes(experts, 2 * inner, hidden), codes(experts, hidden, inner)
    w13_scale = torch.rand(experts, 2 * inner // 128, 4 * -(-hidden // 512)) * 0.02
    w2_scale = torch.rand(experts, hidden // 128, 4 * -(-inner // 512)) * 0.02
    shared = torch.randn(tokens, hidden).bfloat16() if is_shared else None
    given = (x, x_scale, w13, w13_scale, w2, w2_scale, ids, weights, rank, total, shared)
    y = hpc.fuse_moe_blockwise_fp8(*given)
    output = torch.zeros_like(y)
    assert hpc.fuse_moe_blockwise(*given, output) is output
    assert output.equal(y)
    exact = layer(
        x.double() * x_scale.double().repeat_interleave(128, 1),
        w13.double() * by_blocks(w13_scale, 2 * inner, hidden),
        w2.double() * by_blocks(w2_scale, hidden, inner),
        *(ids, weights, rank * experts, requantized),
    )
    if shared is not None:
        exact += shared.double()
    assert close(y, exact, 0.01, 0.01)
    error = (y.double() - exact).norm() / exact.norm().clamp(min=1e-30)
    assert error < 0.006


@pytest.mark.parametrize("use_bf16_mul", [False, True])
@pytest.mark.parametrize(("size", "rank"), [(1, 0), (4, 1)])
def test_fuse_moe_pertensor(size: int, rank: int, use_bf16_mul: bool) -> None:
    tokens, hidden, inner, total, top_k = 20, 256, 192, 16, 8
    experts = total // size
    ids, weights = routing(tokens, top_k, total)
    x = codes(tokens, hidden, divisor=100)
    w13, w2 = codes(experts, 2 * inner, hidden), codes(experts, hidden, inner)
    up_scale, down_scale, scale = torch.randn(experts), torch.randn(experts), torch.tensor([3.0])
    shared = torch.randn(tokens, hidden).bfloat16()
    y = hpc.fuse_moe_pertensor_fp8(
        *(x, w13, w2, up_scale, down_scale, scale, ids, weights, rank, total),
        use_bf16_mul=use_bf16_mul,
        shared_output=shared,
    )

    def between(gate: Any, up: Any) -> Any:
        return (gate * up * scale.double()).float().to(FP8).double()

    exact = shared.double() + layer(
        x.double(),
        w13.double() * up_scale[:, None, None].double(),
        w2.double() * down_scale[:, None, None].double(),
        *(ids, weights, rank * experts, between),
    )
    error = (y.double() - exact).norm() / exact.norm()
    assert error < 0.02  # a code of 3 bits may fall to the other side of an edge
    output = torch.zeros_like(y)
    given = (x, w13, w2, up_scale, down_scale, scale, ids, weights, rank, total, use_bf16_mul)
    assert hpc.fuse_moe(*given, shared, output) is output
    assert output.equal(y)


def test_what_does_not_fit_is_refused() -> None:
    seqlens = torch.tensor([2, 2]).int()
    x, w, ends = codes(4, 128), codes(2, 16, 128), offsets(seqlens)
    blockwise = hpc.group_gemm_blockwise_fp8
    with pytest.raises(ValueError, match=r"x_scale: shape is \(1, 3\), must be \(1, at least 64\)"):
        blockwise(x, w, seqlens, ends, torch.ones(1, 3), torch.ones(2, 1, 1))
    with pytest.raises(ValueError, match=r"w_scale: shape is \(2, 1, 0\), must have 3 dimensions"):
        blockwise(x, w, seqlens, ends, torch.ones(1, 128), torch.ones(2, 1, 0))
    with pytest.raises(TypeError, match=r"x: has dtype torch.float32"):
        hpc.group_gemm_pertensor_fp8(x.float(), w, seqlens, ends, torch.ones(2))
    with pytest.raises(TypeError, match=r"alpha: "):
        hpc.group_gemm_pertensor_fp8(x, w, seqlens, ends, torch.ones(2).double())
    ids, weights, one = torch.zeros(4, 2, dtype=torch.int32), torch.rand(4, 2), torch.ones(2)
    w13, w2 = codes(2, 64, 128), codes(2, 128, 32)
    layer = [x, w13, w2, one, one, torch.ones(1), ids, weights, 0, 2]
    for at, given, match in (
        (7, weights[:, :1], r"topk_scale: shape is \(4, 1\), must be \(4, 2\)"),
        (5, torch.ones(32), r"act_and_mul_scale: shape is \(32,\), must be \(1,\)"),
    ):
        with pytest.raises(ValueError, match=match):
            hpc.fuse_moe(*layer[:at], given, *layer[at + 1 :])
    for name in ("shared_output", "output"):
        with pytest.raises(ValueError, match=rf"{name}: shape is \(128,\), must be \(4, 128\)"):
            hpc.fuse_moe(*layer, **{name: torch.zeros(128).bfloat16()})
