"""Writes a small model with ModelOpt: `python produce_with_modelopt.py KIND CONFIG FOLDER`.

A program of its own, because ModelOpt patches the modules of the process that it runs in.

The search of AWQ rounds weights and inputs to NVFP4 and back by a CUDA kernel (the operator
tensorrt::dynamic_block_quantize_op), which is all that it needs a GPU for. ModelOpt's plain form of
that in torch, which its export uses, stands in.
"""

from __future__ import annotations

import sys

import modelopt.torch.quantization as mtq
import small_models
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization import tensor_quant
from modelopt.torch.quantization.qtensor import NVFP4QTensor


def dynamic_block_quantize(inputs, block_size, amax, *format_bits: int) -> torch.Tensor:
    assert format_bits == (4, 2, 8, 4)  # E2M1 with scales in E4M3
    scale_2 = amax.float() / (6 * 448)
    packed, scale, _ = NVFP4QTensor.quantize(inputs, block_size, weights_scaling_factor_2=scale_2)
    blocks = {"scale": scale, "double_scale": scale_2, "block_sizes": {-1: block_size}}
    return packed.dequantize(inputs.dtype, **blocks)


def main(kind: str, config: str, folder: str) -> None:
    model = small_models.build(kind)
    ids = small_models.token_ids()
    if "AWQ" in config:
        tensor_quant.dynamic_block_quantize_op = dynamic_block_quantize
    mtq.quantize(model, getattr(mtq, config), forward_loop=lambda calibrated: calibrated(ids))
    with torch.inference_mode():
        export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
