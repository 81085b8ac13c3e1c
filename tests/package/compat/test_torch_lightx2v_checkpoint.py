"""What `convert` writes for LightX2V, loaded and multiplied by the classes of its names and by our
layer; `./dev test --torch` runs these."""

from __future__ import annotations

import json
from pathlib import Path

import blockscale
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")

import blockscale.nn  # noqa: E402
from blockscale.compat.lightx2v import MM_WEIGHT_REGISTER  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

CLASSES = {
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "mxfp6_e3m2": "mxfp6-mxfp8",
    "mxfp8_e4m3": "mxfp8",
    "fp8_row": "fp8-vllm",
}
#: The classes go to a GPU if there is one, whose FP8 products are sums of another order.
DEVICE, OFF_BY = ("cuda", 1e-3) if torch.cuda.is_available() else ("cpu", 1e-5)


@pytest.mark.parametrize("recipe", CLASSES)
def test_its_classes_and_our_layer_load_it(recipe: str, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    weight = 0.05 * torch.randn(192, 512, generator=generator)
    bias, x = torch.randn(192, generator=generator), torch.randn(5, 512, generator=generator)
    plain, written, scales = (tmp_path / name for name in ("plain", "written", "scales.json"))
    plain.mkdir()
    tensors = {"blocks.0.ffn.0.weight": weight, "blocks.0.ffn.0.bias": bias}
    save_file(tensors, plain / "model.safetensors")
    scales.write_text(json.dumps({"blocks.0.ffn.0": x.abs().max().item()}))
    given = {"activation_scales": scales} if recipe == "nvfp4" else {}
    blockscale.convert(plain, written, recipe, dialect="lightx2v", **given)
    stored = load_file(written / "model.safetensors")

    theirs = MM_WEIGHT_REGISTER[CLASSES[recipe]]("blocks.0.ffn.0.weight", "blocks.0.ffn.0.bias")
    theirs.load(stored)
    y = theirs.apply(x.to(DEVICE)).cpu()
    ours = torch.nn.Sequential(torch.nn.Linear(512, 192, device="meta"))
    ours = blockscale.nn.load(ours, written, prefix="blocks.0.ffn.")
    with torch.no_grad():
        wanted, unquantized = ours(x), torch.nn.functional.linear(x, weight, bias)
    assert (y - wanted).abs().max() <= OFF_BY * wanted.abs().max()
    assert (y - unquantized).norm() < 0.2 * unquantized.norm()

    assert ours[0].dialect == "lightx2v"
    state = {f"blocks.0.ffn.{name}": tensor for name, tensor in ours.state_dict().items()}
    assert state.keys() == stored.keys()
    for name, tensor in stored.items():
        mine = state[name]
        assert (mine.shape, mine.dtype) == (tensor.shape, tensor.dtype), name
        assert torch.equal(mine.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))
