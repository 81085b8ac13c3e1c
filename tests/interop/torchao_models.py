"""Small models in torchao's tensor classes, and its own values of what a file holds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import small_models
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torchao.prototype.mx_formats.mx_tensor import MXTensor, QuantizeTensorToMXKwargs
from torchao.prototype.mx_formats.nvfp4_tensor import (
    NVFP4Tensor,
    QuantizeTensorToNVFP4Kwargs,
    per_tensor_amax_to_scale,
)
from torchao.prototype.safetensors.safetensors_support import (
    flatten_tensor_state_dict,
    unflatten_tensor_state_dict,
)
from torchao.quantization import Float8Tensor, PerRow, PerTensor
from torchao.quantization.granularity import PerBlock
from torchao.quantization.quantize_.workflows import QuantizeTensorToFloat8Kwargs


def _float8(granularity: object, dynamic: bool = True):
    def quantize(weight: torch.Tensor) -> torch.Tensor:
        inputs = QuantizeTensorToFloat8Kwargs(granularity=granularity) if dynamic else None
        return Float8Tensor.from_hp(weight, granularity=granularity, act_quant_kwargs=inputs)

    return quantize


def _mx(element: torch.dtype, swizzled: bool):
    def quantize(weight: torch.Tensor) -> torch.Tensor:
        inputs = QuantizeTensorToMXKwargs(elem_dtype=element)
        return MXTensor.to_mx(
            weight, element, 32, act_quant_kwargs=inputs, is_swizzled_scales=swizzled
        )

    return quantize


def _nvfp4(weight: torch.Tensor, **options: object) -> torch.Tensor:
    scale = per_tensor_amax_to_scale(weight.abs().max())
    return NVFP4Tensor.to_nvfp4(weight, per_tensor_scale=scale, **options)


#: What a row of the page says, our recipe, and the tensor of a weight.
TENSORS = [
    ("Float8Tensor, rows", "fp8_row", _float8(PerRow())),
    ("Float8Tensor, tensors", "fp8_tensor", _float8(PerTensor())),
    # What its files cannot say are inputs in blocks.
    ("Float8Tensor, blocks", "fp8_128x128", _float8(PerBlock([128, 128]), dynamic=False)),
    ("MXTensor", "mxfp8_e4m3", _mx(torch.float8_e4m3fn, False)),
    ("MXTensor, swizzled", "mxfp8_e4m3", _mx(torch.float8_e4m3fn, True)),
    ("MXTensor", "mxfp4", _mx(torch.float4_e2m1fn_x2, False)),
    ("MXTensor, swizzled", "mxfp4", _mx(torch.float4_e2m1fn_x2, True)),
    ("NVFP4Tensor", "nvfp4", _nvfp4),
    (
        "NVFP4Tensor, swizzled, static inputs",
        "nvfp4",
        lambda weight: _nvfp4(
            weight,
            is_swizzled_scales=True,
            act_per_tensor_scale=torch.tensor(0.25),
            act_quant_kwargs=QuantizeTensorToNVFP4Kwargs(is_swizzled_scales=True),
        ),
    ),
    ("NVFP4Tensor without a scale of the tensor", "nvfp4", NVFP4Tensor.to_nvfp4),
]


def write(quantize, folder: Path) -> None:
    """The small llama with every linear layer but the head in a tensor class."""
    model = small_models.build("llama")
    tensors = dict(model.state_dict())
    for name, tensor in tensors.items():
        if name.endswith("_proj.weight"):
            tensors[name] = quantize(tensor)
    flat, metadata = flatten_tensor_state_dict(tensors)
    folder.mkdir()
    save_file(flat, folder / "model.safetensors", metadata=metadata)
    model.config.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "torchao"}
    (folder / "config.json").write_text(json.dumps(config))


def values(folder: Path) -> dict[str, np.ndarray]:
    """The quantized weights as torchao dequantizes them to float32."""
    file = folder / "model.safetensors"
    with safe_open(file, framework="pt") as reader:
        metadata = reader.metadata()
    tensors, left = unflatten_tensor_state_dict(load_file(file), metadata)
    assert not left
    return {
        name: tensor.dequantize(torch.float32).numpy()
        for name, tensor in tensors.items()
        if type(tensor) is not torch.Tensor
    }
