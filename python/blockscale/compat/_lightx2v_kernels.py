"""LightX2V's kernels: `blockscale.compat.lightx2v` has what users read.

`quantized`, `modulated` and `product` make their results; where a tracer has to see them they are
operators of torch without side effects. KERNELS write into what they are given, as
`torch.ops.lightx2v_kernel` has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .._ops import gemm, quantize
from .._tensor import ScaledTensor, traits_of
from .._torch_layer import PLAIN, is_seen
from .._transform import Modulate, Transform
from ..torch import results_like  # which registers torch.ops.blockscale

_LAYOUT = "swizzled_128x4"
_OPERANDS_OF_QUANTIZE = {
    "x": "input",
    "values": "input",
    "out": "output",
    "tensor_scale": "input_global_scale",
    "transform.scale": "scale",
    "transform.shift": "shift",
}

Quantized = tuple[torch.Tensor, torch.Tensor]


class Renamed:
    """Errors of the package name the arguments of a function that has others."""

    def __init__(self, **names: str) -> None:
        self._names = names

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, (TypeError, ValueError)):
            head, colon, rest = str(error).partition(":")
            arguments = [_renamed(argument, self._names) for argument in head.split(", ")]
            raise type(error)(f"{', '.join(arguments)}{colon}{rest}") from None


def _renamed(argument: str, names: dict[str, str]) -> str:
    """Its longest beginning that has another name in `names` gets that: transform.scale.rows."""
    end = len(argument)
    while end > 0:
        if argument[:end] in names:
            return names[argument[:end]] + argument[end:]
        end = argument.rfind(".", 0, end)
    return argument


def scalar(x: torch.Tensor, argument: str) -> torch.Tensor:
    """[1], of a float32 of one element.

    Raises:
        TypeError, ValueError: it is something else.
    """
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{argument}: is a {type(x).__name__}, must be a torch.Tensor")
    if x.dtype != torch.float32:
        raise TypeError(f"{argument}: has dtype {x.dtype}, must be torch.float32")
    if x.numel() != 1:
        raise ValueError(f"{argument}: shape is {tuple(x.shape)}, must have one element")
    return x.detach().reshape(1)


# ---- Results that are made here -----------------------------------------------------------------


def quantized(
    input: torch.Tensor,
    recipe: str,
    factor: torch.Tensor | None = None,
    transform: str = "identity",
) -> Quantized:
    """Values as bytes, and scales in tiles. `factor` is a `scalar`, NVFP4's global scale."""
    if input.dim() != 2:
        raise ValueError(f"input: shape is {tuple(input.shape)}, must be (m, n)")
    options = {"layout": _LAYOUT, "tensor_scale": factor, "transform": transform}
    if is_seen(input):
        values, scales, _ = torch.ops.blockscale.quantize(input, recipe, **options)
        return values.view(torch.uint8), scales
    with Renamed(**_OPERANDS_OF_QUANTIZE):
        result = quantize(input, recipe, **options)
    return result.values.view(torch.uint8), result.scales


def quantized_like(input: torch.Tensor, recipe: str) -> Quantized:
    """The shapes and dtypes of `quantized`, without numbers."""
    traits = traits_of(recipe, "recipe")
    values, scales = results_like(input, input.shape, traits, _LAYOUT, "identity")
    return values.view(torch.uint8), scales


def modulated(input: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> Quantized:
    """`quantized` to MXFP8 of input * (1 + scale) + shift."""
    if input.dim() != 2:
        raise ValueError(f"input: shape is {tuple(input.shape)}, must be (m, n)")
    if is_seen(input):
        return torch.ops.blockscale_lightx2v.modulated(input, scale, shift)
    return _modulated(input, scale, shift)


def _modulated(input: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> Quantized:
    transform = _modulation(input, scale, shift)
    with Renamed(**_OPERANDS_OF_QUANTIZE):
        result = quantize(input, "mxfp8_e4m3", layout=_LAYOUT, transform=transform)
    return result.values.view(torch.uint8), result.scales


def _modulated_shapes(input: torch.Tensor, *_: torch.Tensor) -> Quantized:
    return quantized_like(input, "mxfp8_e4m3")


def _modulation(input: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> Modulate:
    columns = input.shape[-1]
    rows = []
    for argument, operand in (("scale", scale), ("shift", shift)):
        if columns == 0 or operand.numel() % columns:
            raise ValueError(
                f"{argument}: shape is {tuple(operand.shape)}, must be rows of {columns}"
            )
        rows.append(operand.detach().reshape(-1, columns))
    if 1 in (rows[0].shape[0], rows[1].shape[0]):
        rows = [x.contiguous() for x in torch.broadcast_tensors(*rows)]
    with Renamed(**_OPERANDS_OF_QUANTIZE):
        return Modulate(*rows)


def product(
    recipes: tuple[str, str],
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scales_a: torch.Tensor,
    scales_b: torch.Tensor,
    alpha: torch.Tensor | None,
    bias: torch.Tensor | None,
    *,
    dtype: torch.dtype = torch.bfloat16,
    **options: Any,
) -> torch.Tensor:
    """alpha * mat_a mat_b^T + bias in `dtype`; without alpha it is 1. Options are those of `gemm`
    and of its operator."""
    if not is_seen(mat_a):
        operands = (mat_a, mat_b, scales_a, scales_b, alpha, bias)
        return _multiply(recipes, operands, out_dtype=dtype, **options)
    return torch.ops.blockscale.gemm(
        *(mat_a, mat_b, *recipes),
        a_scales=scales_a,
        b_scales=scales_b,
        a_layout=_LAYOUT,
        b_layout=_LAYOUT,
        alpha_factor=None if alpha is None else scalar(alpha, "alpha"),
        bias=bias,
        out_dtype=dtype,
        **options,
    )


def _multiply(recipes: tuple[str, str], operands: tuple[Any, ...], **options: Any) -> torch.Tensor:
    """`product` by the package's function."""
    mat_a, mat_b, scales_a, scales_b, alpha, bias = operands
    factor: Any = 1.0
    if alpha is not None:
        factor = scalar(alpha, "alpha")
        factor = factor if factor.is_cuda else float(factor)
    left = _scaled(mat_a, scales_a, recipes[0], "mat_a", "scales_a")
    right = _scaled(mat_b, scales_b, recipes[1], "mat_b", "scales_b")
    with Renamed(a="mat_a", b="mat_b"):
        return gemm(left, right, alpha=factor, bias=bias, **options)


def _scaled(
    values: torch.Tensor, scales: torch.Tensor, recipe: str, value: str, scale: str
) -> ScaledTensor:
    """An operand; its tensor scale, where its recipe has one, is in alpha, and 1 here."""
    with Renamed(values=value, scales=scale):
        return ScaledTensor(values, scales, recipe, layout=_LAYOUT)


def add_gated_product(
    recipes: tuple[str, str],
    residual: torch.Tensor,
    operands: tuple[Any, ...],
    gate: torch.Tensor,
) -> None:
    """residual += gate * product(recipes, *operands), in float32, rounded once: in the product's
    epilogue, unless each row has a gate of its own."""
    _require_addends(residual, gate, operands[0], operands[1])
    if gate.numel() != residual.shape[1]:
        residual.addcmul_(product(recipes, *operands, dtype=torch.float32), gate)
        return
    sums = {"c": residual, "beta": 1.0, "gate": gate.reshape(1, -1)}
    if is_seen(residual):
        residual.copy_(product(recipes, *operands, dtype=residual.dtype, **sums))
    else:
        _multiply(recipes, operands, out=residual, **sums)


def _require_addends(
    residual: torch.Tensor, gate: torch.Tensor, mat_a: torch.Tensor, mat_b: torch.Tensor
) -> None:
    shape = (mat_a.shape[0], mat_b.shape[0])
    if tuple(residual.shape) != shape:
        raise ValueError(f"residual: shape is {tuple(residual.shape)}, must be {shape}")
    allowed = (shape[1:], (1, shape[1]), shape)
    if tuple(gate.shape) not in allowed:
        raise ValueError(
            f"gate: shape is {tuple(gate.shape)}, must be {allowed[0]}, {allowed[1]} or {shape}"
        )
    for argument, x in (("residual", residual), ("gate", gate)):
        if x.dtype not in PLAIN:
            raise TypeError(
                f"{argument}: has dtype {x.dtype}, must be float32, float16 or bfloat16"
            )
        if x.device != mat_a.device:
            raise ValueError(f"{argument}: is on {x.device}, must be on {mat_a.device} like mat_a")


# ---- Operators of torch -------------------------------------------------------------------------


def _quantizer(recipe: str, transform: str = "identity") -> Callable[..., None]:
    def kernel(
        output: torch.Tensor,
        input: torch.Tensor,
        output_scale: torch.Tensor,
        input_scale: torch.Tensor | None = None,
    ) -> None:
        factor = None if input_scale is None else scalar(input_scale, "input_scale")
        _quantize_into(output, input, output_scale, recipe, transform, factor)

    return kernel


def _modulating_quantizer(
    output: torch.Tensor,
    input: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    output_scale: torch.Tensor,
) -> None:
    transform = _modulation(input, scale, shift)
    _quantize_into(output, input, output_scale, "mxfp8_e4m3", transform, None)


def _quantize_into(
    output: torch.Tensor,
    input: torch.Tensor,
    output_scale: torch.Tensor,
    recipe: str,
    transform: Transform,
    factor: torch.Tensor | None,
) -> None:
    if output_scale.dtype == torch.int32:  # 4 scales in each
        if not output_scale.is_contiguous():
            raise ValueError("output_scale: is not contiguous, must be")
        output_scale = output_scale.view(torch.uint8)
    out = _scaled(output, output_scale, recipe, "output", "output_scale")
    with Renamed(**_OPERANDS_OF_QUANTIZE | {"tensor_scale": "input_scale"}):
        quantize(input, recipe, tensor_scale=factor, transform=transform, out=out)


def _multiplier(a: str, b: str, transform: str = "identity") -> Callable[..., None]:
    def kernel(out: torch.Tensor, *operands: Any) -> None:
        _multiply((a, b), operands[:6], out=out, transform=transform)

    return kernel


def _adder(a: str, b: str) -> Callable[..., None]:
    def kernel(residual: torch.Tensor, *operands: Any) -> None:
        add_gated_product((a, b), residual, operands[:6], operands[6])

    return kernel


class Kernel(NamedTuple):
    """An operator: LightX2V's schema, and what it calls."""

    arguments: str
    function: Callable[..., None]


_QUANTIZED = "Tensor! output, Tensor! input, Tensor! output_scale"
_MODULATED = "Tensor! output, Tensor! input, Tensor scale, Tensor shift, Tensor! output_scale"
_OPERANDS = (
    "Tensor mat_a, Tensor mat_b, Tensor scales_a, Tensor scales_b, Tensor alpha, Tensor? bias"
)
_MULTIPLIED = f"Tensor! out, {_OPERANDS}"
_GATED = f"Tensor! residual, {_OPERANDS}, Tensor gate"
_SPLIT = "int split_n_parts"

KERNELS = {
    "scaled_nvfp4_quant_sm120": Kernel(f"{_QUANTIZED}, Tensor! input_scale", _quantizer("nvfp4")),
    "scaled_mxfp4_quant_sm120": Kernel(_QUANTIZED, _quantizer("mxfp4")),
    "scaled_mxfp6_quant_sm120": Kernel(_QUANTIZED, _quantizer("mxfp6_e3m2")),
    "scaled_mxfp8_quant_sm120": Kernel(_QUANTIZED, _quantizer("mxfp8_e4m3")),
    "scaled_mxfp8_gelu_quant_sm120": Kernel(_QUANTIZED, _quantizer("mxfp8_e4m3", "gelu_tanh")),
    "scaled_mxfp8_modulate_quant_sm120": Kernel(_MODULATED, _modulating_quantizer),
    "cutlass_scaled_nvfp4_mm_sm120": Kernel(_MULTIPLIED, _multiplier("nvfp4", "nvfp4")),
    "cutlass_scaled_mxfp4_mm_sm120": Kernel(_MULTIPLIED, _multiplier("mxfp4", "mxfp4")),
    "cutlass_scaled_mxfp6_mxfp8_mm_sm120": Kernel(
        _MULTIPLIED, _multiplier("mxfp8_e4m3", "mxfp6_e3m2")
    ),
    "cutlass_scaled_mxfp8_mm_sm120": Kernel(_MULTIPLIED, _multiplier("mxfp8_e4m3", "mxfp8_e4m3")),
    "cutlass_scaled_mxfp8_mm_residual_gate_sm120": Kernel(
        _GATED, _adder("mxfp8_e4m3", "mxfp8_e4m3")
    ),
    "cutlass_scaled_nvfp4_mm_split_n_stride_sm120": Kernel(
        f"{_MULTIPLIED}, {_SPLIT}", _multiplier("nvfp4", "nvfp4")
    ),
    "cutlass_scaled_nvfp4_mm_split_n_stride_gelu_sm120": Kernel(
        f"{_MULTIPLIED}, {_SPLIT}", _multiplier("nvfp4", "nvfp4", "gelu_tanh")
    ),
    "cutlass_scaled_nvfp4_mm_split_n_stride_residual_gate_sm120": Kernel(
        f"{_GATED}, {_SPLIT}", _adder("nvfp4", "nvfp4")
    ),
}


def _no_result(*_: Any) -> None:
    """Of operators that write into what they are given."""


def define(
    library: torch.library.Library,
    schema: str,
    function: Callable[..., Any],
    fake: Callable[..., Any],
) -> None:
    """An operator for the CPU and CUDA; `fake` makes its results without memory."""
    name = schema.partition("(")[0]
    library.define(schema)
    for key in ("CPU", "CUDA"):
        library.impl(name, function, key)
    torch.library.register_fake(f"{library.ns}::{name}", fake, lib=library)


def register(namespace: str) -> torch.library.Library:
    """Defines those of KERNELS that `torch.ops` does not have in `namespace`, for as long as the
    result lives."""
    library = torch.library.Library(namespace, "FRAGMENT")
    for name, kernel in KERNELS.items():
        if not hasattr(getattr(torch.ops, namespace), name):
            define(library, f"{name}({kernel.arguments}) -> ()", kernel.function, _no_result)
    return library


_own = torch.library.Library("blockscale_lightx2v", "DEF")
define(
    _own,
    "modulated(Tensor input, Tensor scale, Tensor shift) -> (Tensor values, Tensor scales)",
    _modulated,
    _modulated_shapes,
)
_theirs = register("lightx2v_kernel")
