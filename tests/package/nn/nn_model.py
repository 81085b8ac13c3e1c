"""A small model of torch with everything that a checkpoint's names meet, and its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import blockscale
import torch
from safetensors.torch import save_file

WIDTH, ROWS, VOCABULARY = 256, 128, 40


class Block(torch.nn.Module):
    """Fused names, layers with and without a bias, a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = torch.nn.Linear(WIDTH, ROWS)
        self.k_proj = torch.nn.Linear(WIDTH, ROWS, bias=False)
        self.norm = torch.nn.LayerNorm(ROWS)
        self.o_proj = torch.nn.Linear(ROWS, WIDTH)

    def forward(self, x: Any) -> Any:
        return x + self.o_proj(self.norm(self.q_proj(x) * torch.sigmoid(self.k_proj(x))))


class Model(torch.nn.Module):
    """Two blocks, a head that is tied to the embedding, and buffers of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.layers = torch.nn.ModuleList([Block(), Block()])
        self.lm_head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.embed_tokens.weight
        self.register_buffer("steps", torch.arange(3))
        with torch.device("cpu"):
            self.register_buffer("factor", torch.full((1,), 0.5), persistent=False)

    def forward(self, ids: Any) -> Any:
        x = self.embed_tokens(ids) * self.factor
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(x)


def linears(model: torch.nn.Module) -> dict[str, Any]:
    """The layers of blocks, by name."""
    return {name: m for name, m in model.named_modules() if name.endswith("_proj")}


def seeded() -> Model:
    """The same numbers each time; k's are larger than q's, so that scales shared show."""
    torch.manual_seed(0)
    model = Model().eval()
    with torch.no_grad():
        for layer in model.layers:
            layer.k_proj.weight.mul_(3)
    return model


def on_meta() -> Model:
    with torch.device("meta"):
        return Model().eval()


def save(model: torch.nn.Module, folder: Path) -> Path:
    """A checkpoint of it, in which what is tied stands once."""
    folder.mkdir(parents=True)
    tensors = {name: x for name, x in model.state_dict().items() if name != "lm_head.weight"}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "test", "dtype": "float32"}\n')
    return folder


def calibrated(model: torch.nn.Module) -> blockscale.Calibrator:
    """What its layers saw of every token."""
    with blockscale.Calibrator(model) as calibrator, torch.no_grad():
        model(torch.arange(VOCABULARY)[None])
    return calibrator


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal dtypes, shapes and bytes."""
    bytes_of = [x.detach().contiguous().reshape(-1).view(torch.uint8) for x in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bytes_of)


def same_state(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    """The same names and bytes."""
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(same(x, right[name]) for name, x in left.items())


class OfNumbers(torch.nn.Module):
    """A `Linear` with its numbers in f64: weight and inputs as they were quantized."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer, self.dtype = layer, torch.float64

    def forward(self, x: Any) -> Any:
        rows, layer = x.reshape(-1, self.layer.in_features).float(), self.layer
        options: dict[str, Any] = {}
        if layer.input_scale is not None and layer.activations == "nvfp4":
            options = {"tensor_scale": layer.input_scale, "sense": layer.sense}
        elif layer.input_scale is not None:
            options = {"scales": layer.input_scale}
        if layer.activations is not None:
            rows = blockscale.dequantize(blockscale.quantize(rows, layer.activations, **options))
        y = rows.double() @ blockscale.dequantize(layer.weight).double().T
        y = y if layer.bias is None else y + layer.bias.double()
        return y.reshape(*x.shape[:-1], -1).float()
