"""LightX2V's tensors of a layer, by the rules that its public source states (rules.py)."""

from __future__ import annotations

import numpy as np
import rules
import torch

RECIPES = ["fp8_row", "nvfp4", "mxfp4", "mxfp6_e3m2", "mxfp8_e4m3"]


def layer(recipe: str, weight: np.ndarray) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    """Stored tensors by suffix, and values, as ModelTC/LightX2V's tools/convert/quant/quant.py."""
    rows, k = weight.shape
    if recipe == "fp8_row":  # amax / 448 a row as [rows, 1]
        q = rules.quantize_fp8(weight, 1, k)
        codes = torch.from_numpy(q.codes).view(torch.float8_e4m3fn)
        values = rules.E4M3.decode(q.codes) * q.scales
        return {".weight": codes, ".weight_scale": torch.from_numpy(q.scales)}, values
    if recipe == "nvfp4":
        q = rules.quantize_nvfp4(weight, np.abs(weight).max())
        factors = rules.E4M3.decode(q.scales) / q.tensor_scale
        scale = torch.from_numpy(rules.swizzle(q.scales)).view(torch.float8_e4m3fn)
        more = {
            ".weight_global_scale": torch.tensor(q.tensor_scale),
            ".input_absmax": torch.tensor(42.0),
        }
        element, pack = rules.E2M1, rules.pack4
    else:
        element, pack = {
            "mxfp4": (rules.E2M1, rules.pack4),
            "mxfp6_e3m2": (rules.E3M2, rules.pack6),
            "mxfp8_e4m3": (rules.E4M3, lambda codes: codes),
        }[recipe]
        q = rules.quantize_mx(weight, element)
        factors = rules.decode_exponents(q.scales)
        scale = torch.from_numpy(rules.swizzle(q.scales)).view(torch.float8_e8m0fnu)
        more = {}
    values = element.decode(q.codes) * rules.expand_scales(factors, (rows, k))
    packed = torch.from_numpy(np.ascontiguousarray(pack(q.codes)))
    return {".weight": packed, ".weight_scale": scale} | more, values
