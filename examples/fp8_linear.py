"""A linear layer of torch in FP8 with block scales, next to the same one in bf16.

Weights are kept as fp8_128x128; the forward pass quantizes activations to fp8_1x128 and multiplies.
Prints how far the results move, what the weights weigh and, on a GPU, what a call takes: as it is,
and as torch.compile and CUDA graphs run it.

    python examples/fp8_linear.py
    python examples/fp8_linear.py --tokens 128 --inputs 7168 --outputs 4096 --device cuda

Needs: torch, and a Hopper GPU for --device cuda (the default where torch sees one).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import blockscale.torch  # noqa: F401 (registers torch.ops.blockscale)
import torch

ACTIVATIONS, WEIGHTS = "fp8_1x128", "fp8_128x128"


class Fp8Linear(torch.nn.Module):
    """`linear` for inference, in FP8."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        weight, scales, _ = torch.ops.blockscale.quantize(linear.weight.detach(), WEIGHTS)
        self.register_buffer("weight", weight)  # [outputs, inputs], float8_e4m3fn
        self.register_buffer("scales", scales)  # one for each 128 x 128 of them, float32
        bias = None if linear.bias is None else linear.bias.detach()
        self.register_buffer("bias", bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        a, a_scales, _ = torch.ops.blockscale.quantize(rows, ACTIVATIONS)
        y = torch.ops.blockscale.gemm(
            a,
            self.weight,
            ACTIVATIONS,
            WEIGHTS,
            a_scales=a_scales,
            b_scales=self.scales,
            bias=self.bias,
            out_dtype=x.dtype,
        )
        return y.reshape(*x.shape[:-1], -1)


def relative_error(y: torch.Tensor, exact: torch.Tensor) -> float:
    return float((y.double() - exact).norm() / exact.norm())


def microseconds(call: Callable[[], object], calls: int = 200) -> float:
    """What the GPU takes for a call in a row of them."""
    for _ in range(10):
        call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / calls


def compare(tokens: int, inputs: int, outputs: int, device: str) -> tuple[float, float]:
    """Prints the comparison; the errors of FP8 and of bf16."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(inputs, outputs, device=device, dtype=torch.bfloat16)
    fp8 = Fp8Linear(linear)
    x = torch.randn(tokens, inputs, device=device, dtype=torch.bfloat16)
    exact = x.double() @ linear.weight.double().T + linear.bias.double()
    errors = relative_error(fp8(x), exact), relative_error(linear(x), exact)
    bytes_of = [
        sum(t.nbytes for t in parts) for parts in ((fp8.weight, fp8.scales), (linear.weight,))
    ]
    print(f"{tokens} x {inputs} -> {outputs} on {device}")
    print(f"fp8   error {errors[0]:.2e} of the result, weights {bytes_of[0] / 1e6:.1f} MB")
    print(f"bf16  error {errors[1]:.2e} of the result, weights {bytes_of[1] / 1e6:.1f} MB")
    if device == "cuda":
        for name, layer in (("fp8", fp8), ("bf16", linear)):
            compiled = torch.compile(layer, fullgraph=True, mode="reduce-overhead")
            times = microseconds(lambda f=layer: f(x)), microseconds(lambda f=compiled: f(x))
            print(f"{name:5} {times[0]:.1f} us a call, {times[1]:.1f} us in a graph")
    return errors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--inputs", type=int, default=1024)
    parser.add_argument("--outputs", type=int, default=512)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cpu", "cuda"], default=default)
    options = parser.parse_args()
    with torch.no_grad():
        fp8, _ = compare(options.tokens, options.inputs, options.outputs, options.device)
    return 0 if fp8 < 0.05 else 1  # e4m3 keeps 4 significant bits


if __name__ == "__main__":
    sys.exit(main())
