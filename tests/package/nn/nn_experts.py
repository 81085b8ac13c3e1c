"""Experts of a mixture as transformers 5 has them, a small model with them, and their results in
float64 with what floats may differ by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import blockscale
import torch
from safetensors.torch import save_file

H, I, E, TOP_K = 128, 64, 4, 2  # noqa: E741


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def routes(*shape: int, experts: int = E, top_k: int = TOP_K) -> tuple[Any, Any]:
    """int64 experts and weights of so many tokens."""
    scores = normal(*shape, experts, seed=3).softmax(-1)
    weights, ids = scores.topk(top_k, dim=-1)
    return ids, weights


# --- what transformers has ------------------------------------------------------------------------


class GateUpExperts(torch.nn.Module):
    """Mixtral's, Qwen3's and DeepSeek-V3's: [E, out, in], gates first."""

    def __init__(self, inner: int = I, hidden: int = H, experts: int = E) -> None:
        super().__init__()
        self.gate_up_proj = torch.nn.Parameter(torch.empty(experts, 2 * inner, hidden))
        self.down_proj = torch.nn.Parameter(torch.empty(experts, hidden, inner))
        self.act_fn = torch.nn.SiLU()

    def forward(self, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
        y = torch.zeros_like(hidden_states)
        for t, j in torch.cartesian_prod(*map(torch.arange, top_k_index.shape)).tolist():
            e = int(top_k_index[t, j])
            y[t] += top_k_weights[t, j] * self.expert(hidden_states[t], e)
        return y

    def expert(self, x: Any, e: int) -> Any:
        gate, up = (self.gate_up_proj[e] @ x).chunk(2)
        return self.down_proj[e] @ (self.act_fn(gate) * up)


class TurnedExperts(GateUpExperts):
    """gpt-oss's: [E, in, out], gates and ups in turns, biases, a clamp and a slope."""

    is_concatenated = False
    limit, alpha = 7.0, 1.702

    def __init__(self, inner: int = I, hidden: int = H, experts: int = E) -> None:
        super().__init__(inner, hidden, experts)
        self.gate_up_proj = torch.nn.Parameter(torch.empty(experts, hidden, 2 * inner))
        self.gate_up_proj_bias = torch.nn.Parameter(torch.empty(experts, 2 * inner))
        self.down_proj = torch.nn.Parameter(torch.empty(experts, inner, hidden))
        self.down_proj_bias = torch.nn.Parameter(torch.empty(experts, hidden))
        del self.act_fn

    def _apply_gate(self, gate_up: Any) -> Any:
        gate, up = gate_up[..., ::2], gate_up[..., 1::2]
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return (up + 1) * gate * torch.sigmoid(gate * self.alpha)

    def expert(self, x: Any, e: int) -> Any:
        h = self._apply_gate(x @ self.gate_up_proj[e] + self.gate_up_proj_bias[e])
        return h @ self.down_proj[e] + self.down_proj_bias[e]


class Mixture(torch.nn.Module):
    """A router and experts."""

    def __init__(self, experts: torch.nn.Module) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(H, E, bias=False)
        self.experts = experts

    def forward(self, x: Any) -> Any:
        weights, ids = self.gate(x).softmax(-1).topk(TOP_K, dim=-1)
        return self.experts(x, ids, weights)


class Block(torch.nn.Module):
    def __init__(self, experts: torch.nn.Module) -> None:
        super().__init__()
        self.q_proj = torch.nn.Linear(H, H, bias=False)
        self.mlp = Mixture(experts)

    def forward(self, x: Any) -> Any:
        return x + self.mlp(self.q_proj(x))


class Model(torch.nn.Module):
    """Two layers of `kind`."""

    def __init__(self, kind: type[GateUpExperts] = GateUpExperts, inner: int = I) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Block(kind(inner)) for _ in range(2))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


def seeded(kind: type[GateUpExperts] = GateUpExperts, inner: int = I) -> Model:
    model = Model(kind, inner).eval()
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            scale = 0.5 if parameter.dim() == 2 and len(parameter) == E else H**-0.5
            parameter.copy_(scale * normal(*parameter.shape, seed=i))
    return model


def tied(kind: str) -> Model:
    """Both layers have the same experts: the same "module", or the same "stacks" in two."""
    model = seeded()
    first, second = (layer.mlp for layer in model.layers)
    if kind == "module":
        second.experts = first.experts
    else:
        second.experts.gate_up_proj = first.experts.gate_up_proj
        second.experts.down_proj = first.experts.down_proj
    return model


def on_meta(kind: type[GateUpExperts] = GateUpExperts, inner: int = I) -> Model:
    with torch.device("meta"):
        return Model(kind, inner).eval()


NAMES = {
    "qwen": ("mlp", "gate_proj", "up_proj", "down_proj"),
    "mixtral": ("block_sparse_moe", "w1", "w3", "w2"),
}


def by_name(model: Model, names: str = "qwen") -> dict[str, torch.Tensor]:
    """A state in which each expert's matrices stand alone, as checkpoints have them."""
    mlp, gate, up, down = NAMES[names]
    state = {}
    for name, x in model.state_dict().items():
        name = name.replace(".mlp.", f".{mlp}.")
        if name.endswith("gate_up_proj"):
            for e, matrix in enumerate(x):
                for part, half in zip((gate, up), matrix.chunk(2), strict=True):
                    state[name.replace("gate_up_proj", f"{e}.{part}.weight")] = half.clone()
        elif name.endswith("experts.down_proj"):
            for e, matrix in enumerate(x):
                state[name.replace("down_proj", f"{e}.{down}.weight")] = matrix.clone()
        else:
            state[name] = x
    return state


def save_state(state: dict[str, torch.Tensor], folder: Path, config: str = "{}") -> Path:
    folder.mkdir(parents=True)
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(config)
    return folder


# --- in float64 -----------------------------------------------------------------------------------


def numbers(x: Any) -> torch.Tensor:
    return (
        blockscale.dequantize(x).double() if isinstance(x, blockscale.ScaledTensor) else x.double()
    )


def requantized(x: torch.Tensor, activations: str) -> torch.Tensor:
    if activations == "bf16":
        return x.double()
    return numbers(blockscale.quantize(x.float().contiguous(), activations))


def off_by(y: Any, layer: Any, x: Any, ids: Any, weights: Any) -> float:
    """The largest error of `y` over what its steps may leave (docs/numerics.md): products in f32
    (2^-21 of the sum of magnitudes), what lies between them and each row in bf16 (or FP8), and the
    sum of rows in f32, all of one element."""
    up, down = numbers(layer.w13).reshape(E, -1, layer.hidden_dim), numbers(layer.w2)
    alphas = [1.0 if a is None else a.double() for a in (layer.w13_alphas, layer.w2_alphas)]
    biases = [
        0.0 if b is None else b.double() for b in (layer.gate_up_proj_bias, layer.down_proj_bias)
    ]
    one = [t if isinstance(t, torch.Tensor) else torch.full((E, 1), t) for t in (*alphas, *biases)]
    tokens = x.reshape(-1, layer.hidden_dim)
    rows = requantized(tokens, layer.activations)
    ids, weights = (t.reshape(len(rows), -1) for t in (ids, weights.double()))
    exact = torch.zeros(rows.shape, dtype=torch.float64)
    allowed, sums = torch.zeros_like(exact), torch.zeros_like(exact)
    chain, half = 2.0**-21, 2.0**-9 * (1 + 2.0**-6)
    for t in range(len(rows)):
        for j, e in enumerate(ids[t].tolist()):
            if not 0 <= e < E:
                continue
            h = one[0][e] * (up[e] @ rows[t]) + one[2][e]
            off = chain * (abs(one[0][e]) * (up[e].abs() @ rows[t].abs()) + abs(one[2][e]))
            h, off = between(layer, h, off)
            if layer.activations == "bf16":
                off += half * h.abs()
            else:  # e4m3: 3 bits, and steps of 2^-9 of a scale, which is at most amax / 224
                off += 2.0**-4 * (1 + 2.0**-6) * h.abs() + 2.0**-9 * h.abs().amax() / 224
            row = one[1][e] * (down[e] @ h) + one[3][e]
            each = abs(one[1][e]) * (down[e].abs() @ (off + chain * h.abs()))
            each += half * (row.abs() + each) + chain * abs(one[3][e])
            exact[t] += weights[t, j] * row
            allowed[t] += weights[t, j].abs() * each
            sums[t] += (weights[t, j] * row).abs()
    eps = torch.finfo(y.dtype).eps / 2
    allowed += eps * (exact.abs() + allowed) + 2.0**-22 * sums + 2.0**-24
    return float(((y.reshape(exact.shape).double() - exact).abs() / allowed).max())


def between(layer: Any, h: Any, off: Any) -> tuple[Any, Any]:
    """What lies between the products, and what an error becomes there: slopes are below 1.2."""
    if layer.activation is None:
        return h, off
    if layer.activation == "silu":
        return torch.nn.functional.silu(h), 1.2 * off + 2.0**-21 * h.abs()
    if layer.activation != "swiglu":
        how = "tanh" if layer.activation == "gelu_tanh" else "none"
        return torch.nn.functional.gelu(h, approximate=how), 1.2 * off + 2.0**-21 * h.abs()
    halves = [(t[::2], t[1::2]) if layer.interleave == 1 else t.chunk(2) for t in (h, off)]
    (gate, up), (off_gate, off_up) = (pair if layer.gate_first else pair[::-1] for pair in halves)
    if layer.limit is not None:
        gate, up = gate.clamp(max=layer.limit), up.clamp(-layer.limit, layer.limit)
    gated = gate * torch.sigmoid(layer.alpha * gate)
    up = up + layer.up_shift
    off = 1.2 * off_gate * up.abs() + gated.abs() * off_up + 1.2 * off_gate * off_up
    return gated * up, off + 2.0**-20 * (gated * up).abs()
