"""What `blockscale convert --dialect lightx2v` writes, byte for byte as LightX2V's rules say. Its
own classes load it where there is a checkout: test_use_lightx2v.py."""

from __future__ import annotations

import json
from pathlib import Path

import lightx2v_layers
import numpy as np
import pytest
import store
import torch
from command import Blockscale
from safetensors.torch import save_file

#: The last one with rows and columns of a part of a tile.
SHAPES = {"blocks.0.attn.q": (256, 512), "blocks.0.ffn.0": (130, 2144)}
ABSMAX = np.float32(42)
INDICES = ["model.safetensors.index.json", "diffusion_pytorch_model.safetensors.index.json"]


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("recipe", lightx2v_layers.RECIPES)
def test_lightx2v_is_written(recipe: str, blockscale: Blockscale, tmp_path: Path) -> None:
    random = np.random.default_rng(11)
    weights = {m: random.normal(0, 0.05, s).astype(np.float32) for m, s in SHAPES.items()}
    (tmp_path / "plain").mkdir()
    tensors = {f"{module}.weight": torch.from_numpy(x) for module, x in weights.items()}
    tensors["blocks.0.ffn.0.bias"] = torch.ones(130)
    save_file(tensors, tmp_path / "plain/model.safetensors")
    scales = tmp_path / "scales.json"
    scales.write_text(json.dumps(dict.fromkeys(SHAPES, float(ABSMAX))))
    more = ["--activation-scales", scales] if recipe == "nvfp4" else []
    options = ["--dialect", "lightx2v", "--shard-size", "1", *more]
    folder = blockscale.convert(tmp_path / "plain", tmp_path / "written", recipe, *options)
    written = store.read(folder)
    expected = {"blocks.0.ffn.0.bias": tensors["blocks.0.ffn.0.bias"]}
    for module, weight in weights.items():
        parts, _ = lightx2v_layers.layer(recipe, weight)
        if parts.pop(".input_absmax", None) is not None:
            of_inputs = np.float32(2688) / ABSMAX
            alpha = np.float32(1) / (of_inputs * parts[".weight_global_scale"].numpy())
            parts |= {".input_global_scale": torch.tensor(of_inputs), ".alpha": torch.tensor(alpha)}
        expected |= {module + suffix: tensor for suffix, tensor in parts.items()}
    assert written.keys() == expected.keys()
    for name, tensor in expected.items():
        assert written[name].array.shape == tuple(tensor.shape), name
        assert written[name].array.tobytes() == bits(tensor), name
    index, other = ((folder / name).read_bytes() for name in INDICES)
    assert index == other
    assert json.loads(index)["weight_map"].keys() == expected.keys()
    assert json.loads(blockscale.run("inspect", folder, "--json"))["dialect"] == "lightx2v"
