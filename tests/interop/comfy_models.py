"""Weights in comfy-kitchen's layouts, stored as ComfyUI stores them, and its own values of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from comfy_kitchen.tensor import (
    AsymW4A8Int8Layout,
    TensorCoreAWQW4A16Layout,
    TensorCoreConvRotW4A4Layout,
    TensorCoreFP8Layout,
    TensorCoreMXFP8Layout,
    TensorCoreNVFP4Layout,
    TensorCoreSVDQuantW4A4Layout,
    TensorWiseINT8Layout,
)
from safetensors.torch import save_file

#: By layer: names, dtypes and shapes of the first are ModelOpt's, too; the last one is padded.
SHAPES = {
    "model.diffusion_model.blocks.0.attn.q": (256, 512),
    "model.diffusion_model.blocks.0.ffn.0": (160, 320),
    "model.diffusion_model.blocks.0.ffn.2": (96, 96),
    "model.diffusion_model.blocks.1.ffn.2": (72, 200),
}

#: ComfyUI's name of a format, our recipe, and what quantizes.
READ = [
    ("nvfp4", "nvfp4", TensorCoreNVFP4Layout, {}),
    ("mxfp8", "mxfp8_e4m3", TensorCoreMXFP8Layout, {}),
    ("float8_e4m3fn", "fp8_tensor", TensorCoreFP8Layout, {}),
    ("float8_e5m2", "fp8_tensor_e5m2", TensorCoreFP8Layout, {"dtype": torch.float8_e5m2}),
]


class Integers(NamedTuple):
    """Weights of whole numbers, which are read by their values."""

    format: str
    layout: type
    kind: str  # in words
    bits: int = 4
    options: dict[str, object] = {}  # of quantize
    words: dict[str, object] = {}  # of the layer's description
    equal: bool = False  # or sums in another order


def by_groups(weight: torch.Tensor, group: int) -> torch.Tensor:
    return weight.view(weight.shape[0], -1, group)


def packed(codes: torch.Tensor) -> torch.Tensor:
    """Two codes a byte, the first in its low bits."""
    codes = codes.to(torch.int32) & 15
    return (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8).view(torch.int8)


class Awq(TensorCoreAWQW4A16Layout):
    """With `quantize`, which others' tools do: each group from its least to its greatest value."""

    @classmethod
    def quantize(cls, tensor: torch.Tensor, group_size: int = 64) -> tuple[torch.Tensor, object]:
        groups = by_groups(tensor, group_size)
        least, greatest = groups.amin(-1), groups.amax(-1)
        scale = ((greatest - least) / 15).bfloat16()
        zeros = (least + 8 * scale.float()).bfloat16()
        codes = ((groups - zeros.float()[..., None]) / scale.float()[..., None]).round() + 8
        params = cls.Params(
            scale=scale.T.contiguous(),
            zeros=zeros.T.contiguous(),
            orig_dtype=torch.float32,
            orig_shape=tuple(tensor.shape),
            group_size=group_size,
        )
        return packed(codes.clamp(0, 15).view(tensor.shape)), params


class Svdquant(TensorCoreSVDQuantW4A4Layout):
    """With `quantize`, which others' tools do: the first singular vectors apart, columns scaled."""

    @classmethod
    def quantize(cls, tensor: torch.Tensor, rank: int = 16) -> tuple[torch.Tensor, object]:
        u, s, v = torch.linalg.svd(tensor, full_matrices=False)
        up, down = u[:, :rank] * s[:rank], v[:rank].T
        smooth = tensor.abs().amax(0).sqrt().clamp(min=1e-3)
        groups = by_groups((tensor - up @ down.T) * smooth, 64)
        scale = groups.abs().amax(-1).clamp(min=1e-8) / 7
        codes = (groups / scale[..., None]).round().clamp(-7, 7)
        params = cls.Params(
            scale=scale.T.contiguous(),
            orig_dtype=torch.float32,
            orig_shape=tuple(tensor.shape),
            proj_down=down.contiguous(),
            proj_up=up.contiguous(),
            smooth_factor=smooth,
        )
        return packed(codes.view(tensor.shape)), params


INT8 = ("int8_tensorwise", TensorWiseINT8Layout)
INT4 = ("convrot_w4a4", TensorCoreConvRotW4A4Layout)
W4A8 = ("asym_w4a8_int8", AsymW4A8Int8Layout)
A_ROW = {"per_channel": True}
BY_64 = {"convrot_groupsize": 64}
INTEGERS = [
    Integers(*INT8, "a tensor", 8, equal=True),
    Integers(*INT8, "a row", 8, A_ROW, {"convrot": False}, equal=True),
    Integers(*INT8, "rotated by 256", 8, {**A_ROW, "convrot": True}, {"convrot": True}),
    Integers(
        *(*INT8, "rotated by 64", 8),
        {**A_ROW, "convrot": True, **BY_64},
        {"params": {"convrot": True, **BY_64}},
    ),
    Integers(*INT4, "rotated by 256"),
    Integers(*INT4, "rotated by 64", 4, BY_64, {**BY_64, "quant_group_size": 64}),
    Integers(*W4A8, "levels"),
    Integers(*W4A8, "6 bits", 6, {"bits": 6}, {"group_size": 16}),
    Integers(
        *(*W4A8, "groups of 32 from their least value", 4),
        {"group_size": 32, "symmetric": False, "scale_dtype": torch.float32, **BY_64},
        {"params": {"group_size": 32, **BY_64}},
    ),
    Integers(*W4A8, "steps", 4, {"codebook": False}, {"convrot": True}),
    Integers("awq_w4a16", Awq, "groups of 64", equal=True),
    Integers("awq_w4a16", Awq, "groups of 32", 4, {"group_size": 32}, {"group_size": 32}, True),
    Integers("svdquant_w4a4", Svdquant, "rank 16", 4, {}, {"act_unsigned": False}),
]
INTEGER_SHAPES = {"blocks.0.attn.q": (256, 512), "blocks.0.ffn.0": (72, 256)}


def write(
    folder: Path,
    format_name: str,
    layout: type,
    options: dict[str, object],
    described_by: str = "header",
    shapes: dict[str, tuple[int, int]] = SHAPES,
    words: dict[str, object] | None = None,
) -> dict[str, np.ndarray]:
    """Returns the weights as comfy-kitchen dequantizes them to float32, padding included."""
    generator = torch.Generator().manual_seed(11)
    tensors, layers, values = {}, {}, {}
    for name, shape in shapes.items():
        weight = torch.randn(shape, generator=generator) * 0.05
        weight[0, :32] = 0.0  # a block of zeros
        codes, params = layout.quantize(weight, **options)
        for suffix, tensor in layout.state_dict_tensors(codes, params).items():
            tensors[f"{name}.weight{suffix}"] = tensor.contiguous()
        tensors[f"{name}.bias"] = torch.zeros(shape[0], dtype=torch.bfloat16)
        layers[name] = {"format": format_name, **(words or {})}
        values[f"{name}.weight"] = layout.dequantize(codes, params).numpy()
        if described_by == "tensors":
            text = json.dumps(layers[name]).encode()
            tensors[f"{name}.comfy_quant"] = torch.tensor(list(text), dtype=torch.uint8)
    metadata = {"format": "pt"}
    if described_by == "header":
        metadata["_quantization_metadata"] = json.dumps({"format_version": "1.0", "layers": layers})
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata=metadata)
    return values
