"""Checkpoints as the real `safetensors` package reads them, tensor by tensor, byte by byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import safe_open


class Stored(NamedTuple):
    dtype: str  # as safetensors spells it
    array: np.ndarray


def read(folder: Path) -> dict[str, Stored]:
    """Every tensor of a checkpoint folder, sharded or not."""
    indices = list(folder.glob("*.safetensors.index.json"))
    if indices:
        index, *others = indices
        assert all(other.read_bytes() == index.read_bytes() for other in others)
        weight_map = json.loads(index.read_text())["weight_map"]
        files = [folder / shard for shard in sorted(set(weight_map.values()))]
    else:
        files = sorted(folder.glob("*.safetensors"))
    tensors: dict[str, Stored] = {}
    for file in files:
        with safe_open(file, framework="pt") as reader:
            for name in reader.keys():  # noqa: SIM118 (a reader is no mapping)
                dtype = reader.get_slice(name).get_dtype()
                tensors[name] = Stored(dtype, as_array(reader.get_tensor(name)))
    return tensors


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """1-byte types as bytes, bf16 and f16 widened to float32."""
    if tensor.element_size() == 1:
        return tensor.contiguous().view(torch.uint8).numpy()
    return tensor.float().numpy() if tensor.element_size() == 2 else tensor.numpy()


def parts(tensors: dict[str, Stored], weight: str) -> dict[str, np.ndarray]:
    """The stored tensors of one layer, by the part of the name after its last dot; no bias."""
    layer = weight.removesuffix("weight")
    names = [n for n in tensors if n.startswith(layer) and "." not in n[len(layer) :]]
    return {n[len(layer) :]: tensors[n].array for n in names if not n.endswith(".bias")}


def config(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())
