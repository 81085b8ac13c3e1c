"""Writes the example model with compressed-tensors alone: its rules, its compressor, its config."""

from __future__ import annotations

from pathlib import Path

import torch
from cases import Case
from transformers import AutoModel, AutoTokenizer


def quantize_weights(model: torch.nn.Module) -> None:
    """Min-max scales of every module that the configuration targets."""
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    for module in model.modules():
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is None:
            continue
        weight = module.weight.detach()
        rows, k = weight.shape
        arguments = scheme.weights
        if arguments.strategy == "block":
            r, c = arguments.block_structure
            blocks = weight.reshape(rows // r, r, k // c, c).transpose(1, 2)
            groups = blocks.reshape(rows // r, k // c, r * c)
        elif arguments.strategy == "tensor":
            groups = weight.reshape(1, rows * k)
        else:
            groups = weight.reshape(rows, -1, arguments.group_size or k)
        global_scale = None
        if arguments.strategy == "tensor_group":
            global_scale = generate_gparam(weight.min(), weight.max())
            module.weight_global_scale.data.copy_(global_scale)
        low, high = groups.amin(dim=-1), groups.amax(dim=-1)
        scale, _ = calculate_qparams(low, high, arguments, global_scale)
        module.weight_scale.data.copy_(scale)


def produce(case: Case, source: Path, destination: Path) -> None:
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config

    group = {"targets": ["Linear"], "weights": case.weights, "format": case.format}
    config = {"config_groups": {"group_0": group}, "ignore": ["pooler.dense"]}
    model = AutoModel.from_pretrained(source, dtype=torch.float32)
    apply_quantization_config(model, QuantizationConfig.model_validate(config))
    quantize_weights(model)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(destination)
    compressor.update_config(destination)
    AutoTokenizer.from_pretrained(source).save_pretrained(destination)
