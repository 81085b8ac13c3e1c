"""What each recipe looks like on disk in each dialect, and in which order it is dequantized.

From the packages' documentation and behaviour; see docs/interop.md for their versions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import rules
from rules import E2M1, E2M3, E4M3, Array, Quantized

Tensors = dict[str, Array]  # stored tensors of one layer, by the part of the name after its dot


def _codes(element: rules.Element, unpack: Callable[[Array], Array] | None = None):
    def values(stored: Array) -> Array:
        return element.decode(unpack(stored) if unpack else stored)

    return values


@dataclass(frozen=True)
class Case:
    """One recipe in one dialect."""

    recipe: str
    dialect: str
    values_name: str  # the tensor of codes: "weight" or "weight_packed"
    scales_name: str
    values: Callable[[Array], Array]  # stored codes to float32
    pack: Callable[[Array], Array]
    quantize: Callable[[Array, np.float32], Quantized]  # weight, amax of its fused siblings
    tensor_scale_name: str | None = None
    weights: dict[str, object] = field(default_factory=dict)  # compressed-tensors' arguments
    format: str | None = None

    @property
    def name(self) -> str:
        return f"{self.recipe}-{self.dialect}"

    @property
    def returned_in_bfloat16(self) -> bool:
        """compressed-tensors dequantizes its packed and MX formats to bf16, come what may."""
        return self.format not in (None, "float-quantized")

    def expected(self, quantized: Quantized) -> Tensors:
        """The stored tensors of a layer, codes and 1-byte scales as bytes."""
        tensors = {
            self.values_name: self.pack(quantized.codes),
            self.scales_name: quantized.scales,
        }
        if self.recipe == "fp8_tensor":
            tensors[self.scales_name] = quantized.scales.reshape(1)
        if self.dialect == "deepseek" and self.recipe.endswith("_ue8m0"):
            tensors[self.scales_name] = rules.exponent_bytes(quantized.scales)
        if self.tensor_scale_name and quantized.tensor_scale is not None:
            shape = () if self.dialect == "modelopt" else (1,)
            tensors[self.tensor_scale_name] = np.full(shape, quantized.tensor_scale)
        return tensors

    def scales(self, tensors: Tensors) -> Array:
        """The float32 factor of every block, tensor scale included."""
        stored = tensors[self.scales_name]
        if stored.dtype == np.float32:
            return np.atleast_2d(stored)
        if self.recipe != "nvfp4":
            return rules.decode_exponents(stored)
        tensor_scale = tensors[self.tensor_scale_name].reshape(())
        decoded = E4M3.decode(stored)
        return decoded * tensor_scale if self.dialect == "modelopt" else decoded / tensor_scale

    def dequantize(self, tensors: Tensors) -> Array:
        """Float32: code * factor, rounded once."""
        codes = self.values(tensors[self.values_name])
        return codes * rules.expand_scales(self.scales(tensors), codes.shape)

    def dequantize_as_loaded(self, tensors: Tensors) -> Array:
        """As transformers holds it in a bf16 model: values of bfloat16 in float32.

        compressed-tensors multiplies in the scale's type, which loading has made bf16 for
        `float-quantized`; NVFP4's quotient, and everything of the FP8 path, stays float32.
        """
        if self.format == "float-quantized":
            codes = self.values(tensors[self.values_name])
            scales = rules.round_to_bfloat16(self.scales(tensors))
            return rules.round_to_bfloat16(codes * rules.expand_scales(scales, codes.shape))
        return rules.round_to_bfloat16(self.dequantize(tensors))


def _weights(bits: int, strategy: str, **more: object) -> dict[str, object]:
    return {
        "num_bits": bits,
        "type": "float",
        "symmetric": True,
        "dynamic": False,
        "strategy": strategy,
    } | more


def _same(codes: Array) -> Array:
    return codes


def _fp8(rows: int, k: int, **options: bool) -> Callable[[Array, np.float32], Quantized]:
    """Blocks of rows x k; 0 stands for all of them."""

    def quantize(weight: Array, _: np.float32) -> Quantized:
        n, width = weight.shape
        return rules.quantize_fp8(weight, rows or n, k or width, **options)

    return quantize


def _fp8_tensor(weight: Array, amax: np.float32) -> Quantized:
    return rules.quantize_fp8(weight, *weight.shape, amax=amax)


def _mx_even(
    element: rules.Element, mantissa_bits: int | None = None
) -> Callable[[Array, np.float32], Quantized]:
    def quantize(weight: Array, _: np.float32) -> Quantized:
        rule = partial(rules.mx_exponent_even, mantissa_bits=mantissa_bits)
        return rules.quantize_mx(weight, element, rule)

    return quantize


def _compressed(recipe, format_name, values_name, values, pack, quantize, weights, **more) -> Case:
    return Case(
        recipe,
        "compressed-tensors",
        values_name,
        "weight_scale",
        values,
        pack,
        quantize,
        weights=weights,
        format=format_name,
        **more,
    )


def _deepseek(recipe: str, power_of_two: bool) -> Case:
    return Case(
        recipe,
        "deepseek",
        "weight",
        "weight_scale_inv",
        _codes(E4M3),
        _same,
        _fp8(128, 128, power_of_two=power_of_two),
    )


COMPRESSED_TENSORS = [
    _compressed(
        "nvfp4",
        "nvfp4-pack-quantized",
        "weight_packed",
        _codes(E2M1, rules.unpack4),
        rules.pack4,
        rules.quantize_nvfp4,
        _weights(4, "tensor_group", group_size=16, scale_dtype="torch.float8_e4m3fn"),
        tensor_scale_name="weight_global_scale",
    ),
    _compressed(
        "mxfp4",
        "mxfp4-pack-quantized",
        "weight_packed",
        _codes(E2M1, rules.unpack4),
        rules.pack4,
        _mx_even(E2M1),
        _weights(4, "group", group_size=32, scale_dtype="torch.uint8"),
    ),
    _compressed(
        "mxfp6_e2m3",
        "mxfp6-pack-quantized",
        "weight_packed",
        _codes(E2M3, rules.unpack6),
        rules.pack6,
        _mx_even(E2M3),
        _weights(6, "group", group_size=32, scale_dtype="torch.uint8"),
    ),
    _compressed(
        "mxfp8_e4m3",
        "mxfp8-quantized",
        "weight",
        _codes(E4M3),
        _same,
        _mx_even(E4M3, E2M1.mantissa_bits),
        _weights(8, "group", group_size=32, scale_dtype="torch.uint8"),
    ),
    _compressed(
        "fp8_tensor",
        "float-quantized",
        "weight",
        _codes(E4M3),
        _same,
        _fp8_tensor,
        _weights(8, "tensor"),
    ),
    _compressed(
        "fp8_row",
        "float-quantized",
        "weight",
        _codes(E4M3),
        _same,
        _fp8(1, 0),
        _weights(8, "channel"),
    ),
    _compressed(
        "fp8_128x128",
        "float-quantized",
        "weight",
        _codes(E4M3),
        _same,
        _fp8(128, 128),
        _weights(8, "block", block_structure=[128, 128]),
    ),
]

DEEPSEEK = [
    _deepseek("fp8_128x128", power_of_two=False),
    _deepseek("fp8_128x128_pow2", power_of_two=True),
    _deepseek("fp8_128x128_ue8m0", power_of_two=True),
]

MODELOPT = [
    Case(
        "nvfp4",
        "modelopt",
        "weight",
        "weight_scale",
        _codes(E2M1, rules.unpack4),
        rules.pack4,
        rules.quantize_nvfp4_multiplier,
        tensor_scale_name="weight_scale_2",
    )
]

LOADABLE = COMPRESSED_TENSORS + DEEPSEEK  # by transformers
ALL = LOADABLE + MODELOPT


def find(recipe: str, dialect: str) -> Case:
    return next(c for c in ALL if (c.recipe, c.dialect) == (recipe, dialect))


def case_id(case: Case) -> str:
    return case.name
