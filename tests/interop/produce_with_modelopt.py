"""Writes a small model with ModelOpt: `python produce_with_modelopt.py KIND CONFIG FOLDER`.

A program of its own, because ModelOpt patches the modules of the process that it runs in.
"""

from __future__ import annotations

import copy
import sys

import modelopt.torch.quantization as mtq
import small_models
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.model_calib import apply_pre_quant_scale_and_smooth


def quantize_with_awq(model: torch.nn.Module, config: dict, ids: torch.Tensor) -> None:
    """With random factors of the inputs: the search for good ones needs a GPU, which they do not
    depend on where they are applied and exported."""
    config = copy.deepcopy(config) | {"algorithm": "max"}
    mtq.quantize(model, config, forward_loop=lambda calibrated: calibrated(ids))
    generator = torch.Generator().manual_seed(3)
    for module in model.modules():
        if getattr(getattr(module, "weight_quantizer", None), "is_enabled", False):
            inputs, k = module.input_quantizer, module.weight.shape[1]
            inputs._amax_for_smoothing = inputs.amax.expand(k).clone()
            factors = torch.rand(k, generator=generator) + 0.5
            apply_pre_quant_scale_and_smooth(module, factors)


def main(kind: str, config: str, folder: str) -> None:
    model = small_models.build(kind)
    ids = small_models.token_ids()
    if "AWQ" in config:
        quantize_with_awq(model, getattr(mtq, config), ids)
    else:
        mtq.quantize(model, getattr(mtq, config), forward_loop=lambda calibrated: calibrated(ids))
    with torch.inference_mode():
        export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
