"""Weights in comfy-kitchen's layouts, stored as ComfyUI stores them, and its own values of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from comfy_kitchen.tensor import (
    AsymW4A8Int8Layout,
    TensorCoreConvRotW4A4Layout,
    TensorCoreFP8Layout,
    TensorCoreMXFP8Layout,
    TensorCoreNVFP4Layout,
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
#: Of whole numbers, which are read by their values: the format and what quantizes, options, and
#: what is said of a layer.
INT8 = ("int8_tensorwise", TensorWiseINT8Layout)
INT4 = ("convrot_w4a4", TensorCoreConvRotW4A4Layout)
INTEGERS = [
    (INT8, {}, {}),
    (INT8, {"per_channel": True}, {"convrot": False}),
    (INT8, {"per_channel": True, "convrot": True}, {"convrot": True}),
    (
        INT8,
        {"per_channel": True, "convrot": True, "convrot_groupsize": 64},
        {"convrot": True, "convrot_groupsize": 64},
    ),
    (INT4, {}, {}),
    (INT4, {"convrot_groupsize": 64}, {"convrot_groupsize": 64, "quant_group_size": 64}),
]
INTEGER_SHAPES = {"blocks.0.attn.q": (256, 512), "blocks.0.ffn.0": (72, 256)}
#: Whose numbers are others than ours.
REFUSED = [
    ("asym_w4a8_int8", AsymW4A8Int8Layout, {}),
]


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
