"""Writes a small model with ModelOpt: `python produce_with_modelopt.py KIND CONFIG FOLDER`.

A program of its own, because ModelOpt patches the modules of the process that it runs in.
"""

from __future__ import annotations

import sys

import modelopt.torch.quantization as mtq
import small_models
import torch
from modelopt.torch.export import export_hf_checkpoint


def main(kind: str, config: str, folder: str) -> None:
    model = small_models.build(kind)
    ids = small_models.token_ids()
    mtq.quantize(model, getattr(mtq, config), forward_loop=lambda calibrated: calibrated(ids))
    with torch.inference_mode():
        export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
