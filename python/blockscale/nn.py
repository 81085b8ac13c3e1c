"""Layers of torch with quantized weights, for inference: docs/nn.md.

- `Linear`: a linear layer of a ScaledTensor.
- `Experts`: the experts of a mixture, two stacks of matrices.
- `load`: a model from a checkpoint, its linear layers and experts as they are stored.
- `Offload`: blocks of a model that is larger than the device, whose weights come as they run.
- `quantize`: a model in memory, its linear layers and experts chosen as by `blockscale.convert`.

    import torch, blockscale.nn
    model = blockscale.nn.load(model, "model-nvfp4", device="cuda")
"""

from ._torch_experts import Experts
from ._torch_linear import Linear
from ._torch_load import load
from ._torch_offload import Offload
from ._torch_quantize import quantize

__all__ = ["Experts", "Linear", "Offload", "load", "quantize"]
