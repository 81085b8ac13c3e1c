"""Other people's dequantization of whole checkpoints, in float32."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

Values = dict[str, np.ndarray]


def dequantize(dialect: str, folder: Path, weights: Iterable[str]) -> Values:
    """The named weights as the dialect's own package computes them."""
    readers = {
        "compressed-tensors": dequantize_compressed_tensors,
        "deepseek": dequantize_deepseek,
        "modelopt": dequantize_modelopt,
    }
    return readers[dialect](folder, list(weights))


def dequantize_compressed_tensors(folder: Path, weights: list[str]) -> Values:
    from compressed_tensors.entrypoints.convert.converters import CompressedTensorsDequantizer

    tensors = _tensors(folder)
    # It knows tensors by name only, and would take norms and embeddings for layers.
    layers = {name.rpartition(".")[0] for name in weights}
    kept = {name.rpartition(".")[0] for name in tensors} - layers
    reader = CompressedTensorsDequantizer(folder, ignore=kept, dtype=torch.float32)
    return _float32(reader.process(tensors), weights)


def dequantize_deepseek(folder: Path, weights: list[str]) -> Values:
    """The package at hand that reads DeepSeek's files is compressed-tensors."""
    from compressed_tensors.entrypoints.convert.converters import FP8BlockDequantizer

    reader = FP8BlockDequantizer.from_pretrained(folder, dtype=torch.float32)
    return _float32(reader.process(_tensors(folder)), weights)


def dequantize_modelopt(folder: Path, weights: list[str]) -> Values:
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    tensors = _tensors(folder)
    values = {}
    for name in weights:
        packed = tensors[name]
        shape = torch.Size((packed.shape[0], 2 * packed.shape[1]))
        values[name] = NVFP4QTensor(shape, torch.float32, packed).dequantize(
            dtype=torch.float32,
            scale=tensors[name + "_scale"],
            double_scale=tensors[name + "_scale_2"],
            block_sizes={-1: 16},
        )
    return _float32(values, weights)


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    (file,) = folder.glob("*.safetensors")
    return load_file(file)


def _float32(tensors: dict[str, torch.Tensor], weights: list[str]) -> Values:
    return {name: tensors[name].float().numpy() for name in weights}
