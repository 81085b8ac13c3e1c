"""Layers of torch with quantized weights, for inference: docs/nn.md.

- `Linear`: a linear layer of a ScaledTensor.

    import torch, blockscale.nn
    layer = blockscale.nn.Linear.from_float(torch.nn.Linear(512, 512), "nvfp4")
"""

from ._torch_linear import Linear

__all__ = ["Linear"]
