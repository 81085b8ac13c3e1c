"""What tests of blockscale.compat.lightx2v share: numbers, and results in float64."""

from __future__ import annotations

from typing import Any

import blockscale
import pytest
import torch

#: "cuda" shows in every run whether it was run.
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


def normal(*shape: int, seed: int = 0, dtype: Any = torch.bfloat16, device: str = "cpu") -> Any:
    """The same values on every machine."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return x.to(dtype).to(device)


def exact(values: Any, scales: Any, recipe: str, divisor: Any = None) -> Any:
    """An operand in float64, by the package's dequantize."""
    t = blockscale.ScaledTensor(
        values,
        scales,
        recipe,
        layout="swizzled_128x4" if scales.element_size() == 1 else "row_major",
        tensor_scale=divisor if recipe == "nvfp4" else None,
    )
    return blockscale.dequantize(t).double()


#: What is usual of results (docs/numerics.md, "Error bound"), cancelling and of one sign: of FP8 on
#: Hopper, and of everything else.
FP8_ON_HOPPER = (16000, 104000)
USUAL = (16, 48)


def off_by(
    y: Any,
    a: Any,
    b: Any,
    bias: Any = None,
    factor: Any = 1.0,
    addend: Any = 0.0,
    usual: tuple[int, int] = USUAL,
) -> float:
    """The largest error of y = addend + factor (a b^T + bias), over what is usual of the product,
    and half a unit in the last place of y."""
    of_bias = 0.0 if bias is None else bias.double()
    result = addend + factor * (a @ b.T + of_bias)
    sums = a.abs() @ b.abs().T + abs(of_bias)
    sums = abs(factor) * sums + abs(addend)
    cancelling, same_sign = usual
    allowed = 2.0**-24 * (cancelling * sums + same_sign * result.abs())
    allowed = allowed + torch.finfo(y.dtype).eps / 2 * (result.abs() + allowed)
    return float(((y.double() - result).abs() / allowed.clamp(min=1e-30)).max())
