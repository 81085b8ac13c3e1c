"""A linear layer of torch in FP8 with block scales, or in FP4, next to the same one in bf16.

Weights are kept as fp8_128x128, and the forward pass quantizes activations to fp8_1x128 and
multiplies; weights in nvfp4 or mxfp4 are multiplied by activations as they are. Prints how far the
results move, what the weights weigh and, on a GPU, what a call takes: as it is, and as
torch.compile and CUDA graphs run it.

    python examples/fp8_linear.py
    python examples/fp8_linear.py --recipe nvfp4
    python examples/fp8_linear.py --tokens 128 --inputs 7168 --outputs 4096 --device cuda

Needs: torch, and a Hopper GPU for --device cuda (the default where torch sees one).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import blockscale.torch  # noqa: F401 (registers torch.ops.blockscale)
import torch

#: Of weights: what activations are quantized to, if they are, and the largest error of a result.
RECIPES = {"fp8_128x128": ("fp8_1x128", 0.05), "nvfp4": (None, 0.15), "mxfp4": (None, 0.2)}


class QuantizedLinear(torch.nn.Module):
    """`linear`, in bf16, for inference with weights in `recipe`."""

    def __init__(self, linear: torch.nn.Linear, recipe: str) -> None:
        super().__init__()
        self.recipe = recipe
        weight, scales, factor = torch.ops.blockscale.quantize(linear.weight.detach(), recipe)
        self.register_buffer("weight", weight)  # [outputs, inputs], FP4 packed in pairs
        self.register_buffer("scales", scales)  # one for each 128 x 128 of them, 1 x 16 or 1 x 32
        self.register_buffer("tensor_scale", factor if factor.numel() else None)  # nvfp4's
        bias = None if linear.bias is None else linear.bias.detach()
        self.register_buffer("bias", bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, a_scales, activations = x.reshape(-1, x.shape[-1]), None, "bf16"
        if RECIPES[self.recipe][0] is not None:
            activations = RECIPES[self.recipe][0]
            a, a_scales, _ = torch.ops.blockscale.quantize(a, activations)
        y = torch.ops.blockscale.gemm(
            a,
            self.weight,
            activations,
            self.recipe,
            a_scales=a_scales,
            b_scales=self.scales,
            b_tensor_scale=self.tensor_scale,
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


def compare(recipe: str, tokens: int, inputs: int, outputs: int, device: str) -> float:
    """Prints the comparison; the error with weights in `recipe`."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(inputs, outputs, device=device, dtype=torch.bfloat16)
    quantized = QuantizedLinear(linear, recipe)
    x = torch.randn(tokens, inputs, device=device, dtype=torch.bfloat16)
    exact = x.double() @ linear.weight.double().T + linear.bias.double()
    errors = relative_error(quantized(x), exact), relative_error(linear(x), exact)
    bytes_of = quantized.weight.nbytes + quantized.scales.nbytes, linear.weight.nbytes
    print(f"{tokens} x {inputs} -> {outputs} on {device}")
    for name, error, size in zip((recipe, "bf16"), errors, bytes_of, strict=True):
        print(f"{name:11} error {error:.2e} of the result, weights {size / 1e6:.1f} MB")
    if device == "cuda":
        for name, layer in ((recipe, quantized), ("bf16", linear)):
            compiled = torch.compile(layer, fullgraph=True, mode="reduce-overhead")
            times = microseconds(lambda f=layer: f(x)), microseconds(lambda f=compiled: f(x))
            print(f"{name:11} {times[0]:.1f} us a call, {times[1]:.1f} us in a graph")
    return errors[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", choices=list(RECIPES), default="fp8_128x128")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--inputs", type=int, default=1024)
    parser.add_argument("--outputs", type=int, default=512)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cpu", "cuda"], default=default)
    options = parser.parse_args()
    with torch.no_grad():
        error = compare(**vars(options))
    return 0 if error < RECIPES[options.recipe][1] else 1


if __name__ == "__main__":
    sys.exit(main())
