"""Writes the linear layers' weights of a safetensors checkpoint as bf16: operands for tests.

Usage: linear_weights.py MODEL.safetensors OUTPUT.safetensors
"""

import sys

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file


def is_linear(name: str, tensor: np.ndarray) -> bool:
    return name.endswith(".weight") and tensor.ndim == 2 and "embedding" not in name


def main() -> int:
    source, destination = sys.argv[1:]
    weights = {
        name: tensor.astype(ml_dtypes.bfloat16)
        for name, tensor in sorted(load_file(source).items())
        if is_linear(name, tensor)
    }
    save_file(weights, destination)
    print(f"{len(weights)} weights, {sum(w.nbytes for w in weights.values())} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
