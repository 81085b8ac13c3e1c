"""A mixture-of-experts layer of DeepSeek-V3 and one of Qwen3-30B-A3B, from a checkpoint in FP8.

Makes a small checkpoint of each: random weights, under the names that the real ones have, in blocks
of 128 x 128 with `weight_scale_inv`. Then loads a layer as an engine would, routes tokens, computes
the layer in one call, and compares it with a plain one of the dequantized weights in float32.
Without --folder the checkpoints are gone in the end.

DeepSeek-V3: 3.5 times as many numbers of a token as of an expert, 8 groups of experts of which 4
take part, sigmoid scores with a bias for the choice, 8 experts a token, and one that all tokens
share. The experts are divided among --devices, as with expert parallelism: each call has its own
and adds to what the one before it left. Qwen3: softmax, and an expert of 192 numbers, as a device
has that shares Qwen3-235B-A22B's with seven others: the last block of gates has 64 rows, and those
of ups begin anew.

    python examples/moe_checkpoint.py
    python examples/moe_checkpoint.py --tokens 100 --devices 4 --folder build/moe

Needs: numpy, safetensors.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import blockscale
import numpy as np
from safetensors.numpy import save_file

#: Of |y - y'| / |y'|: x and what lies between the products are FP8, as in the engines.
LARGEST_ERROR = 0.06


@dataclass(frozen=True)
class Model:
    """A model's layer in small; names of config.json."""

    model_type: str
    hidden_size: int
    moe_intermediate_size: int
    experts: int
    layer: int  # the first that has experts
    options: dict  # of `blockscale.route`
    shared_experts: int = 0
    has_bias: bool = False

    @property
    def mlp(self) -> str:
        return f"model.layers.{self.layer}.mlp"


TOP_K = 8
MODELS = {
    "DeepSeek-V3": Model(
        "deepseek_v3", 896, 256, 32, 3,
        {"score": "sigmoid", "groups": 8, "top_groups": 4, "best_of_group": 2, "scale": 2.5},
        shared_experts=1, has_bias=True,
    ),
    "Qwen3-30B-A3B": Model("qwen3_moe", 512, 192, 32, 0, {"score": "softmax"}),
}  # fmt: skip


# --- the checkpoint -------------------------------------------------------------------------------


def make_checkpoint(model: Model, folder: Path) -> Path:
    """A layer in float32, converted as DeepSeek stores it."""
    rng = np.random.default_rng(0)

    def normal(rows: int, k: int) -> np.ndarray:
        return rng.standard_normal((rows, k), np.float32) / np.float32(k) ** 0.5

    tensors = {f"{model.mlp}.gate.weight": normal(model.experts, model.hidden_size)}
    if model.has_bias:
        bias = 0.1 * rng.standard_normal(model.experts, np.float32)
        tensors[f"{model.mlp}.gate.e_score_correction_bias"] = bias
    widths = {f"experts.{e}": model.moe_intermediate_size for e in range(model.experts)}
    if model.shared_experts:
        widths["shared_experts"] = model.shared_experts * model.moe_intermediate_size
    for name, inner in widths.items():
        tensors[f"{model.mlp}.{name}.gate_proj.weight"] = normal(inner, model.hidden_size)
        tensors[f"{model.mlp}.{name}.up_proj.weight"] = normal(inner, model.hidden_size)
        tensors[f"{model.mlp}.{name}.down_proj.weight"] = normal(model.hidden_size, inner)
    plain = folder / f"{model.model_type}-f32"
    plain.mkdir(parents=True)
    save_file(tensors, plain / "model.safetensors")
    (plain / "config.json").write_text(json.dumps({"model_type": model.model_type}))
    blockscale.convert(plain, folder / model.model_type, "fp8_128x128", dialect="deepseek")
    return folder / model.model_type


# --- the layer ------------------------------------------------------------------------------------


def stacked(tensors: list[blockscale.ScaledTensor]) -> blockscale.ScaledTensor:
    """Matrices of one shape as a batch."""
    values, scales = (
        np.stack([getattr(t, part) for t in tensors]) for part in ("values", "scales")
    )
    return blockscale.ScaledTensor(values, scales, tensors[0].recipe)


class Layer:
    """The experts [first, last) of a layer, its router, and the experts that all tokens share."""

    def __init__(self, checkpoint: blockscale.Checkpoint, model: Model, first: int, last: int):
        def of(name: str, *projections: str) -> list[blockscale.ScaledTensor]:
            return [checkpoint[f"{model.mlp}.{name}.{p}_proj.weight"] for p in projections]

        self.model, self.first = model, first
        experts = [f"experts.{e}" for e in range(first, last)]
        # Gates and ups of each expert, one matrix behind the other: blocks are as they are stored.
        self.w13 = stacked([t for e in experts for t in of(e, "gate", "up")])
        self.w2 = stacked([t for e in experts for t in of(e, "down")])
        self.gate = np.asarray(checkpoint[f"{model.mlp}.gate.weight"])
        self.bias = None
        if model.has_bias:
            self.bias = np.asarray(checkpoint[f"{model.mlp}.gate.e_score_correction_bias"])
        self.shared = None
        if model.shared_experts:
            up = stacked(of("shared_experts", "gate", "up"))
            self.shared = up, stacked(of("shared_experts", "down"))

    def route(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logits = x @ self.gate.T
        return blockscale.route(logits, TOP_K, correction_bias=self.bias, **self.model.options)

    def __call__(self, x: np.ndarray, ids: np.ndarray, weights: np.ndarray, y: np.ndarray) -> None:
        """Adds the experts that are here to y."""
        blockscale.moe(
            x, self.w13, self.w2, ids, weights,
            local_expert_offset=self.first, residual=y, out=y,
        )  # fmt: skip

    def of_all_tokens(self, x: np.ndarray) -> np.ndarray:
        """What the shared experts give: a layer of one expert, to which every token goes."""
        if self.shared is None:
            return np.zeros_like(x)
        ids = np.zeros((len(x), 1), np.int32)
        return blockscale.moe(x, *self.shared, ids, None)


# --- what it is compared with ---------------------------------------------------------------------


def plain_route(logits: np.ndarray, model: Model, bias: np.ndarray | None) -> np.ndarray:
    """[T, experts] weights, 0 where an expert is not chosen, as the models' own code has it."""
    if model.options["score"] == "softmax":
        scores = np.exp(logits - logits.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
    else:
        scores = 1 / (1 + np.exp(-logits))
    choice = scores if bias is None else scores + bias
    groups = model.options.get("groups", 1)
    if groups > 1:
        grouped = choice.reshape(len(choice), groups, -1)
        best = np.sort(grouped, axis=2)[:, :, -model.options["best_of_group"] :].sum(axis=2)
        kept = np.argsort(-best, axis=1)[:, : model.options["top_groups"]]
        mask = np.zeros(best.shape, bool)
        np.put_along_axis(mask, kept, True, axis=1)
        choice = np.where(mask[:, :, None], grouped, -np.inf).reshape(choice.shape)
    chosen = np.argsort(-choice, axis=1)[:, :TOP_K]
    weights = np.zeros_like(scores)
    np.put_along_axis(weights, chosen, np.take_along_axis(scores, chosen, axis=1), axis=1)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights * np.float32(model.options.get("scale", 1.0))


def plain_layer(x: np.ndarray, checkpoint: blockscale.Checkpoint, model: Model) -> np.ndarray:
    """The layer in float32, expert by expert."""

    def expert(name: str, rows: np.ndarray) -> np.ndarray:
        gate, up, down = (
            blockscale.dequantize(checkpoint[f"{model.mlp}.{name}.{p}_proj.weight"])
            for p in ("gate", "up", "down")
        )
        gates = rows @ gate.T
        return (gates / (1 + np.exp(-gates)) * (rows @ up.T)) @ down.T

    bias = checkpoint.get(f"{model.mlp}.gate.e_score_correction_bias")
    logits = x @ checkpoint[f"{model.mlp}.gate.weight"].T
    weights = plain_route(logits, model, bias)
    y = expert("shared_experts", x) if model.shared_experts else np.zeros_like(x)
    for e in range(model.experts):
        tokens = np.nonzero(weights[:, e])[0]
        y[tokens] += weights[tokens, e, None] * expert(f"experts.{e}", x[tokens])
    return y


def error_of(y: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(y - exact) / np.linalg.norm(exact))


def run(name: str, folder: Path, tokens: int, devices: int) -> None:
    model = MODELS[name]
    checkpoint = blockscale.Checkpoint(make_checkpoint(model, folder))
    x = np.random.default_rng(1).standard_normal((tokens, model.hidden_size), np.float32)
    bounds = [model.experts * d // devices for d in range(devices + 1)]
    layers = [Layer(checkpoint, model, *part) for part in zip(bounds[:-1], bounds[1:], strict=True)]
    ids, weights = layers[0].route(x)
    y = layers[0].of_all_tokens(x)
    for layer in layers:
        layer(x, ids, weights, y)
    routed = np.zeros((tokens, model.experts), np.float32)
    np.put_along_axis(routed, ids.astype(np.int64), weights, axis=1)
    wanted = plain_route(x @ layers[0].gate.T, model, layers[0].bias)
    error = error_of(y, plain_layer(x, checkpoint, model))
    print(
        f"{name}: {checkpoint.dialect.name}, {len(checkpoint)} tensors; {tokens} tokens, "
        f"{TOP_K} of {model.experts} experts each on {len(layers)} devices, "
        f"H {model.hidden_size}, I {model.moe_intermediate_size}"
    )
    print(f"  weights of experts are {error_of(routed, wanted):.1e} off, y {error:.2e}")
    assert error_of(routed, wanted) < 1e-5, "other experts, or other weights"
    assert error < LARGEST_ERROR, f"the error of y must be below {LARGEST_ERROR}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=33)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="keep the checkpoints here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for name in MODELS:
            run(name, options.folder or Path(temporary), options.tokens, options.devices)
    return 0


if __name__ == "__main__":
    sys.exit(main())
