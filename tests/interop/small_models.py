"""Small random language models in bf16, for the packages that quantize those only."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": 256,
    "max_position_embeddings": 64,
}
KINDS = ("llama", "mixture_of_experts")


def build(kind: str) -> PreTrainedModel:
    torch.manual_seed(4)
    if kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**SIZES))
    else:
        experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **experts))
    model.config.architectures = [type(model).__name__]
    return model.to(torch.bfloat16).eval()


def save(kind: str, folder: Path) -> None:
    build(kind).save_pretrained(folder)


def token_ids() -> torch.Tensor:
    """A calibration batch."""
    return torch.arange(8 * 32).reshape(8, 32)
