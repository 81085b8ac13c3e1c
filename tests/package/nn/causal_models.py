"""Small causal language models of transformers with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import blockscale
import torch
from safetensors.torch import save_file

SIZES = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 64}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64}
LATENT = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32}
DENSE: dict[str, dict[str, Any]] = {"Llama": {}, "Qwen3": {"head_dim": 32}}
GPT_OSS: dict[str, Any] = {"num_local_experts": 4, "head_dim": 32, "num_experts_per_tok": 2}
MIXTURES: dict[str, dict[str, Any]] = {
    "Mixtral": {"num_local_experts": 4},
    "Qwen3Moe": {"num_experts": 4, "moe_intermediate_size": 64, "head_dim": 32},
    "DeepseekV3": {
        "n_routed_experts": 8, "moe_intermediate_size": 64, "n_group": 2, "topk_group": 1,
        "v_head_dim": 32, "first_k_dense_replace": 1, "n_shared_experts": 1, **LATENT,
    },
}  # fmt: skip


def config_of(name: str) -> Any:
    """Of DENSE or MIXTURES, or GptOss; two experts a token."""
    import transformers

    more = DENSE.get(name, GPT_OSS)
    if name in MIXTURES:
        more = {"num_experts_per_tok": 2, **MIXTURES[name]}
    # Weights so wide that logits are apart.
    options = {**SIZES, "initializer_range": 0.06, **more}
    return getattr(transformers, f"{name}Config")(**options)


def model_of(name: str) -> Any:
    """Random weights, the same each time."""
    import transformers

    torch.manual_seed(0)
    return getattr(transformers, f"{name}ForCausalLM")(config_of(name)).eval()


def save(name: str, folder: Path) -> Path:
    model_of(name).save_pretrained(folder)
    return folder


def save_gpt_oss(folder: Path) -> Path:
    """As its checkpoints are: experts in mxfp4 blocks and scales [E, out, in], all else plain."""
    model = model_of("GptOss")
    state = {name: x.contiguous() for name, x in model.state_dict().items()}
    for name in [n for n in state if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        stack = blockscale.quantize(state.pop(name).mT.contiguous(), "mxfp4")
        values = stack.values.view(torch.uint8)
        state[f"{name}_blocks"] = values.reshape(*values.shape[:2], -1, 16).contiguous()
        state[f"{name}_scales"] = stack.scales.view(torch.uint8)
    model.config.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(state, folder / "model.safetensors")
    return folder
