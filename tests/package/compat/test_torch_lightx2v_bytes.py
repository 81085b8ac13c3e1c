"""blockscale.compat.lightx2v: LightX2V's own bytes of NVFP4, against its rule in numpy;
`./dev test --torch` runs these."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")

from blockscale.compat import lightx2v  # noqa: E402
from lightx2v_cases import DEVICES, normal  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

GLOBAL = torch.tensor(2688 / 4.5)
CODES = np.arange(127)  # of ue4m3, but for NaN's
E4M3 = np.where(CODES < 8, CODES * 2.0**-9, (8 + CODES % 8) * 2.0 ** (CODES // 8 - 10.0))
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def nearest(x: Any, magnitudes: Any) -> Any:
    """Codes of the nearest magnitudes, of two the even one."""
    distances = np.abs(np.abs(x.astype(np.float64))[..., None] - magnitudes)
    first = distances.argmin(-1)
    last = len(magnitudes) - 1 - distances[..., ::-1].argmin(-1)
    return np.where(first % 2 == 0, first, last).astype(np.uint8)


def by_its_rule(x: Any, factor: Any) -> tuple[Any, Any]:
    """Bytes of values [m, n / 2], and codes of scales [m, n / 16], in float32."""
    blocks = x.reshape(len(x), x.shape[1] // 16, 16)
    amax = np.abs(blocks).max(-1)
    scales = nearest(factor * (amax * (np.float32(1) / np.float32(6))), E4M3)
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = factor * (np.float32(1) / E4M3[scales].astype(np.float32))
        scaled = np.where(scales[..., None] == 0, 0, blocks * factors[..., None])
    codes = nearest(scaled, E2M1) + np.uint8(8) * np.signbit(blocks)
    codes[scales == 0] = 0
    codes = codes.reshape(x.shape)
    return codes[:, ::2] + 16 * codes[:, 1::2], scales


def in_tiles(scales: Any) -> Any:
    """Where the scale of a row and of a block is, by LightX2V's formula."""
    m, n = scales.shape
    m_tiles, n_tiles = (m + 127) // 128, (n + 3) // 4
    r, c = np.indices(scales.shape)
    at = 512 * (r // 128 * n_tiles + c // 4) + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
    stored = np.zeros(512 * m_tiles * n_tiles, np.uint8)
    stored[at] = scales
    return stored.reshape(128 * m_tiles, 4 * n_tiles)


def theirs(x: Any, factor: Any = GLOBAL, device: str = "cpu") -> tuple[Any, Any]:
    values, scales = lightx2v.scaled_nvfp4_quant(
        x.to(device), factor.to(device), lightx2v_bytes=True
    )
    assert (values.dtype, scales.dtype) == (torch.uint8, torch.float8_e4m3fn)
    return values.cpu().numpy(), scales.cpu().view(torch.uint8).numpy()


def one_scale(x: Any, factor: Any = GLOBAL, device: str = "cpu") -> tuple[list[int], int]:
    """Codes and the scale of one block of 16."""
    values, scales = theirs(torch.tensor(x, dtype=torch.float32).reshape(1, 16), factor, device)
    assert not scales[1:].any() and not scales[0, 1:].any()
    return [int(byte) >> shift & 15 for byte in values[0] for shift in (0, 4)], int(scales[0, 0])


# ---- Bytes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("m", "n"), [(0, 32), (3, 0), (1, 16), (130, 80), (257, 1536)])
def test_bytes(m: int, n: int, dtype: Any, device: str) -> None:
    x = normal(m, n, dtype=dtype)
    if m > 1 and n > 0:  # scales from subnormal ones to the largest, and what saturates
        x *= torch.logspace(-4, 1, m)[:, None].to(dtype)
    values, scales = theirs(x, device=device)
    expected, of_blocks = by_its_rule(x.float().numpy(), GLOBAL.numpy())
    assert np.array_equal(values, expected)
    assert np.array_equal(scales, in_tiles(of_blocks))


@pytest.mark.parametrize("device", DEVICES)
def test_every_scale(device: str) -> None:
    """Values around each place where a code changes, for every scale; with a global scale that is
    a power of two many are on it."""
    between = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5])
    for factor in (torch.tensor(1.0), GLOBAL):
        s = torch.tensor(E4M3[1:], dtype=torch.float32)[:, None]
        on = between * s / factor
        upper, lower = (on.nextafter(torch.tensor(end)) for end in (torch.inf, 0.0))
        x = torch.cat([6 * s / factor, on, -upper, lower, -on[:, 1:] * 0], dim=1)
        x = torch.nn.functional.pad(x, (0, 32 - x.shape[1]), value=0.0)
        x[:, 16] = x[:, 0]
        values, scales = theirs(x, factor, device)
        expected, of_blocks = by_its_rule(x.numpy(), factor.numpy())
        assert of_blocks.tolist() == [[code, code] for code in range(1, 127)]
        assert np.array_equal(scales, in_tiles(of_blocks))
        assert np.array_equal(values, expected)


def interop_weights() -> list[tuple[Any, Any]]:
    """Those that docs/interop.md counts, and global scales as LightX2V's converter has them, which
    computes them in bfloat16."""
    generator = torch.Generator().manual_seed(10)
    found = []
    for shape in ((256, 256), (130, 2144), (200, 512), (256, 384)):
        weight = (0.05 * torch.randn(shape, generator=generator)).bfloat16()
        found.append((weight, (2688.0 * (1 / weight.abs().max())).float()))
    return found


def test_as_many_bytes_differ_as_the_page_says() -> None:
    """LightX2V's own source counted there."""
    different = np.zeros(2, int)
    for weight, factor in interop_weights():
        ours = lightx2v.scaled_nvfp4_quant(weight, factor)
        ours = (ours[0].numpy(), ours[1].view(torch.uint8).numpy())
        different += [(a != b).sum() for a, b in zip(theirs(weight, factor), ours, strict=True)]
    page = (Path(__file__).resolve().parents[3] / "docs/interop.md").read_text()
    part = page.partition("## Bytes of LightX2V's own quantizers")[2]
    row = re.search(r"\| `nvfp4` \| (\d+) of 272480 \| (\d+) of 34060 ", part)
    assert row is not None
    assert different.tolist() == [int(count) for count in row.groups()]


# ---- What is not LightX2V's ---------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_blocks_without_a_scale_have_codes_0(device: str) -> None:
    zeros = [0.0, -0.0] * 8
    assert one_scale(zeros, device=device) == ([0] * 16, 0)
    assert one_scale([-1e-9] * 16, device=device) == ([0] * 16, 0)  # its scale rounds to 0
    with_nan = [1.0, -1.0, float("nan"), -float("inf")] * 4
    assert one_scale(with_nan, device=device) == ([0] * 16, 0x7F)
    assert one_scale([-float("nan")] * 16, device=device) == ([0] * 16, 0x7F)
    without = lightx2v.scaled_nvfp4_quant(
        torch.tensor([with_nan]).to(device), GLOBAL.to(device), lightx2v_bytes=False
    )
    assert not without[0].any() and without[1].view(torch.uint8)[0, 0] == 0x7F


@pytest.mark.parametrize("device", DEVICES)
def test_infinities_and_zeros_in_blocks(device: str) -> None:
    infinite = [float("inf"), -float("inf"), 1.0, 0.0] + [-0.0] * 12
    codes = [7, 15, 0, 0] + [8] * 12  # 1 is less than a quarter of 448 / GLOBAL
    assert one_scale(infinite, torch.tensor(100.0), device) == (codes, 0x7E)
    # The factor is infinite, and a zero times that is NaN.
    tiny = [1e-38, -1e-38, 0.0, -0.0] * 4
    assert one_scale(tiny, torch.tensor(3e38), device)[0] == [7, 15, 0, 8] * 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("factor", [torch.inf, torch.nan, -torch.inf, -1.0, 0.0])
def test_zero_blocks_of_a_global_scale_that_nobody_checks(factor: float) -> None:
    assert one_scale([0.0] * 16, torch.tensor(factor), "cuda") == ([0] * 16, 0)


# ---- Compilers, tracers, weights ----------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_it_compiles(device: str) -> None:
    def both(x: Any, factor: Any) -> Any:
        return lightx2v.scaled_nvfp4_quant(x * 2, factor, lightx2v_bytes=True)

    torch._dynamo.reset()
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    for rows in (4, 9, 17):  # the second compiles for any number of rows, the third runs that
        x, factor = normal(rows, 160, device=device), GLOBAL.to(device)
        for y, expected in zip(compiled(x, factor), both(x, factor), strict=True):
            assert y.view(torch.uint8).equal(expected.view(torch.uint8))


def test_tracers() -> None:
    with FakeTensorMode():
        x = torch.empty(130, 160, dtype=torch.bfloat16)
        values, scales = lightx2v.scaled_nvfp4_quant(x, torch.empty(1), lightx2v_bytes=True)
        assert (values.shape, scales.shape) == ((130, 80), (256, 12))
    torch.library.opcheck(
        torch.ops.blockscale_lightx2v.nvfp4.default,
        (normal(5, 160), GLOBAL.reshape(1)),
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.parametrize("device", DEVICES)
def test_weights_have_the_option(device: str) -> None:
    factor = GLOBAL.to(device)
    values, scales = lightx2v.scaled_nvfp4_quant(normal(48, 1536, seed=1, device=device), factor)
    stored = {"a.weight": values, "a.weight_scale": scales}
    stored |= {"a.input_global_scale": factor, "a.weight_global_scale": factor}
    x = normal(257, 1536, device=device)
    results = []
    for option in (False, True):
        weight = lightx2v.MM_WEIGHT_REGISTER["nvfp4"]("a.weight", None)
        weight.load(stored)
        weight.lightx2v_bytes = option
        results.append(weight.apply(x))
        inputs, of_inputs = lightx2v.scaled_nvfp4_quant(x, factor, lightx2v_bytes=option)
        operands = (inputs, values, of_inputs, scales, 1 / (factor * factor))
        assert results[-1].equal(lightx2v.cutlass_scaled_nvfp4_mm(*operands))
    assert not results[0].equal(results[1])


# ---- Errors -------------------------------------------------------------------------------------


def refused() -> dict[str, tuple[type, list[Any]]]:
    """What is wrong with calls, by the message."""
    x, one = normal(5, 160), torch.ones(1)
    return {
        r"^input: shape is \(160,\), must be \(m, n\)": (ValueError, [x[0], one]),
        r"^input.k: is 150, must be a multiple of 16 for nvfp4": (ValueError, [x[:, :150], one]),
        r"^input: has dtype float64, must be one of": (TypeError, [x.double(), one]),
        r"^input: requires grad": (ValueError, [x.detach().float().requires_grad_(), one]),
        r"^input_global_scale: shape is \(2,\), must have": (ValueError, [x, torch.ones(2)]),
        r"^input_global_scale: has dtype .*64, must be": (TypeError, [x, one.double()]),
        r"^input_global_scale: is a float, must be": (TypeError, [x, 1.0]),
        r"^input_global_scale: is on meta": (ValueError, [x, one.to("meta")]),
    }


@pytest.mark.parametrize("match", refused())
def test_errors_are_those_without_the_option(match: str) -> None:
    kind, given = refused()[match]
    for option in (False, True):
        with pytest.raises(kind, match=match):
            lightx2v.scaled_nvfp4_quant(*given, lightx2v_bytes=option)


@pytest.mark.parametrize("factor", [0.0, -1.0, torch.inf, torch.nan])
def test_global_scales_are_finite_and_above_0(factor: float) -> None:
    match = rf"^input_global_scale: is {factor:g}, must be finite and above 0"
    with pytest.raises(ValueError, match=match):
        theirs(normal(5, 160), torch.tensor(factor))
