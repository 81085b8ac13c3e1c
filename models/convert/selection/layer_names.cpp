#include "models/convert/selection/layer_names.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "models/dialects/dialect.h"

namespace blockscale::models {
namespace {

/// Where the components `text` ("mlp.gate") stand in a module's name.
enum class Place { last, anywhere, whole };

struct NameRule {
  std::string_view text;
  Place place;
  Role role;
};

// From the modelling files of transformers 4.57.1 and 5.23.0, read class by class: every nn.Linear
// whose outputs are experts (routers), every get_output_embeddings and _tied_weights_keys, and
// every nn.Linear onto vocab_size or num_labels (heads), _keep_in_fp32_modules (sensitive). Not
// from there: switch, gate.proj, v_head, unembed and eh_proj, which other people's checkpoints
// have. The first rule that fits decides.
constexpr auto kRules = std::to_array<NameRule>({
    {"router", Place::anywhere, Role::router},  // .layer, .classifier, .proj of it as well
    {"gate", Place::last, Role::router},
    {"gate.wg", Place::last, Role::router},  // hunyuan_v1_moe
    {"gate.proj", Place::last, Role::router},
    {"switch", Place::last, Role::router},
    {"shared_expert_gate", Place::last, Role::router},  // qwen2_moe, qwen3_next
    {"router_mlp", Place::anywhere, Role::router},      // zaya
    {"density_router", Place::anywhere, Role::router},

    {"indexer.weights_proj", Place::last, Role::sensitive},  // deepseek_v32, deepseek_v4
    {"compressor", Place::anywhere, Role::sensitive},        // deepseek_v4
    {"eh_proj", Place::last, Role::sensitive},               // multi-token prediction

    {"lm_head", Place::anywhere, Role::head},  // .decoder (RoBERTa), .dense, .out_proj of it too
    {"lm_heads", Place::anywhere, Role::head},
    {"generator_lm_head", Place::last, Role::head},
    {"text_lm_head", Place::last, Role::head},
    {"head", Place::last, Role::head},  // shared_head.head, rwkv, DeepSeek's own names
    {"v_head", Place::anywhere, Role::head},
    {"predictions.decoder", Place::last, Role::head},  // cls.predictions.decoder: BERT
    {"entity_predictions.decoder", Place::last, Role::head},
    {"mlm_score.decoder", Place::last, Role::head},
    {"mlm_head.decoder", Place::last, Role::head},
    {"mim_head.decoder", Place::last, Role::head},
    {"mmm_text_head.decoder", Place::last, Role::head},
    {"mmm_image_head.decoder", Place::last, Role::head},
    {"head.decoder", Place::last, Role::head},
    {"decoder", Place::whole, Role::head},  // modernbert
    {"output", Place::whole, Role::head},   // Llama's own names, git
    {"cls", Place::whole, Role::head},
    {"proj_out", Place::whole, Role::head},  // whisper; inside of blocks it is a linear layer
    {"embed_out", Place::last, Role::head},  // gpt_neox
    {"unembed", Place::last, Role::head},    // inkling
    {"output_projection", Place::last, Role::head},
    {"vocab_projector", Place::last, Role::head},
    {"pred_layer.proj", Place::last, Role::head},
    {"lm_loss", Place::last, Role::head},
    {"logits_proj", Place::last, Role::head},
    {"logits_dense", Place::last, Role::head},
    {"ctc_head", Place::last, Role::head},
    {"codec_head", Place::last, Role::head},
    {"head_linear", Place::last, Role::head},
    {"score", Place::last, Role::head},
    {"summary", Place::last, Role::head},
    {"classifier", Place::anywhere, Role::head},           // .dense and .out_proj of it
    {"classification_head", Place::anywhere, Role::head},  // BART
    {"cls_classifier", Place::last, Role::head},
    {"distillation_classifier", Place::last, Role::head},
    {"class_labels_classifier", Place::last, Role::head},
    {"dist_head", Place::last, Role::head},
    {"qa_outputs", Place::last, Role::head},
    {"class_predictor", Place::last, Role::head},
    {"class_embed", Place::anywhere, Role::head},  // DETR
    {"enc_out_class_embed", Place::anywhere, Role::head},
    {"enc_score_head", Place::anywhere, Role::head},
});

// Attributes of the same files that are an nn.Embedding somewhere and an nn.Linear nowhere.
constexpr auto kEmbeddings = std::to_array<std::string_view>({
    "additional_embedding",
    "box_position_embeddings",
    "char_position_embeddings",
    "code_embedding",
    "codec_embed",
    "codec_embedding",
    "column_embedder",
    "column_embeddings",
    "denoising_class_embed",
    "distance_embedding",
    "embed",  // DeepSeek's own names
    "embed_audio_tokens",
    "embed_char",
    "embed_char_positions",
    "embed_in",
    "embed_positions",
    "embed_text_tokens",
    "embed_timestep",
    "embed_tokens",
    "embed_tokens_per_layer",
    "embedding",
    "embeddings",
    "entity_embeddings",
    "freq_emb",
    "global_relative_attention_bias",
    "h_position_embeddings",
    "input_embeds_layer",
    "lang_embeddings",
    "language_embedding",
    "language_id_embedding",
    "level_embed",
    "ngram_embeddings",
    "pos_emb",
    "pos_embed",
    "position_emb",
    "position_embedding",
    "position_embedding_table",
    "position_embeddings",
    "position_embeds_layer",
    "positions_embed",
    "prompt_embedding",
    "query_embed",
    "query_position_embeddings",
    "rel_attn_embed",
    "rel_embeddings",
    "rel_pos_emb",
    "relative_attention_bias",
    "row_embedder",
    "row_embeddings",
    "segment_emb",
    "segment_embedding",
    "shared",
    "shared_embedding",
    "speaker_embedding",
    "speaker_id_embedding",
    "task_type_embeddings",
    "text_embed_tokens",
    "text_position_embedding",
    "text_token_embedding",
    "tile_embedding",
    "tok_embeddings",
    "token_embedding",
    "token_type_embeddings",
    "tokens_embed",
    "tgt_embed",
    "unit_embedding",
    "w_position_embeddings",
    "word_embedding",
    "word_embeddings",
    "wpe",
    "wte",
    "x_position_embeddings",
    "y_position_embeddings",
});

/// How names of other tables end; `x_embedder` and `time_embedding.0` are linear layers.
constexpr auto kTableEnds = std::to_array<std::string_view>(
    {"embed", "embeds", "embedding", "embeddings", "_emb", "_embs", "embedding_table", "_wte"});

/// Modules that engines fuse into one, by the last component of their names: what public
/// models for vLLM have as packed_modules_mapping (its own files were not read one by one), and
/// what BERT, T5 and diffusers call the same layers.
using FusedNames = std::array<std::string_view, 4>;
constexpr auto kFused = std::to_array<FusedNames>({
    {"q_proj", "k_proj", "v_proj", ""},
    {"query", "key", "value", ""},
    {"query_proj", "key_proj", "value_proj", ""},
    {"q_lin", "k_lin", "v_lin", ""},
    {"linear_q", "linear_k", "linear_v", ""},
    {"to_q", "to_k", "to_v", ""},
    {"add_q_proj", "add_k_proj", "add_v_proj", ""},
    {"wq", "wk", "wv", ""},
    {"wq_du", "wk_dv", "wv_dv", "wr_du"},  // inkling
    {"q", "k", "v", ""},
    {"q_a_proj", "kv_a_proj_with_mqa", "", ""},  // multi-head latent attention
    {"wq_a", "wkv", "wgate", ""},                // deepseek_v4: attention; its compressor
    {"gate_proj", "up_proj", "", ""},
    {"gate", "up", "", ""},
    {"w1", "w3", "", ""},
    {"wi_0", "wi_1", "", ""},
    {"fc1", "fc3", "", ""},
    {"c_fc_0", "c_fc_1", "", ""},          // EXAONE
    {"in_proj_qkv", "in_proj_z", "", ""},  // qwen3_5
    {"in_proj_b", "in_proj_a", "", ""},
});

/// Components of names under which a module keeps another one of its own kind: PEFT's adapters,
/// torch.compile, FSDP, activation checkpointing, DataParallel, transformers' and others' wrappers.
constexpr auto kWrappers = std::to_array<std::string_view>({
    "_checkpoint_wrapped_module",
    "_forward_module",
    "_fsdp_wrapped_module",
    "_orig_mod",
    "base_layer",
    "default",  // modules_to_save.default
    "inner_module",
    "module",
    "modules_to_save",
    "orig_module",
    "original_module",
    "wrapped",
    "wrapped_module",
});
/// The same of modules that are more than a linear layer and hold one: "norm1.linear" is no norm.
constexpr auto kInnerLayers = std::to_array<std::string_view>({
    "layer",
    "linear",
    "linear_layer",
});

bool is_number(std::string_view component) {
  return !component.empty() && std::all_of(component.begin(), component.end(),
                                           [](char c) { return c >= '0' && c <= '9'; });
}

std::string_view last_of(std::string_view module) {
  return module.substr(module.rfind('.') + 1);
}

/// `module` without its last component; "" if it has one only.
std::string_view without_last(std::string_view module) {
  const std::size_t dot = module.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : module.substr(0, dot);
}

/// `module` without what wraps it at its end. `inner`: layers within a module of the name, too.
std::string_view unwrapped(std::string_view module, bool inner) {
  for (;;) {
    const std::string_view last = last_of(module);
    const std::string_view rest = without_last(module);
    const bool wraps = holds(kWrappers, last) || (inner && holds(kInnerLayers, last));
    if (!wraps || rest.empty()) return module;
    module = rest;
  }
}

/// Whether `text` stands in `module` with dots or ends around it.
bool fits(std::string_view module, std::string_view text, Place place) {
  if (place == Place::whole) return module == text;
  for (std::size_t at = module.find(text); at != std::string_view::npos;
       at = module.find(text, at + 1)) {
    const std::size_t end = at + text.size();
    const bool begins = at == 0 || module[at - 1] == '.';
    if (!begins || (end != module.size() && module[end] != '.')) continue;
    if (place == Place::anywhere || end == module.size()) return true;
  }
  return false;
}

Role role_of_matrix(std::string_view module) {
  const std::string_view inner = unwrapped(module, false);
  const std::string_view outer = unwrapped(module, true);
  for (const NameRule& rule : kRules) {
    if (fits(rule.place == Place::whole ? inner : outer, rule.text, rule.place)) return rule.role;
  }
  const std::string_view last = last_of(inner);
  if (holds(kEmbeddings, last)) return Role::embedding;
  if (last.find("norm") != std::string_view::npos) return Role::norm;
  return module.find("embed") != std::string_view::npos ? Role::embedder : Role::linear;
}

}  // namespace

Role role_of(const std::string& name, const std::vector<std::int64_t>& shape) {
  const std::string module = module_of(name);
  const bool in_experts =
      fits(module, "experts", Place::anywhere) || fits(module, "local_experts", Place::anywhere);
  if (shape.size() == 3 && in_experts && !name.ends_with("bias")) return Role::experts;
  if (shape.size() == 2 && name.ends_with(".weight")) return role_of_matrix(module);
  const std::size_t last = module.rfind('.') + 1;
  return module.find("norm", last) != std::string::npos ? Role::norm : Role::other;
}

bool is_called_a_table(const std::string& name) {
  const std::string module = module_of(name);
  const std::string_view last = last_of(unwrapped(module, false));
  return std::any_of(kTableEnds.begin(), kTableEnds.end(),
                     [&](std::string_view end) { return last.ends_with(end); });
}

const char* role_reason(Role role) {
  switch (role) {
    case Role::embedding:
    case Role::embedder: return "embedding";
    case Role::norm: return "norm";
    case Role::head: return "output head";
    case Role::router: return "router";
    case Role::sensitive: return "engines keep it in high precision";
    default: return "no weight of a linear layer";
  }
}

LayerPath path_of(const std::string& weight) {
  const std::string whole = module_of(weight);
  std::string_view module = unwrapped(whole, true);
  LayerPath path;
  while (is_number(last_of(module)) && !without_last(module).empty()) {
    path.index = "." + std::string(last_of(module)) + path.index;
    module = unwrapped(without_last(module), true);
  }
  path.name = last_of(module);
  std::string_view container = without_last(module);
  while (!container.empty()) {  // wrappers in the middle, whose names nothing else has
    const std::string_view last = last_of(container);
    if (!last.starts_with('_') || !holds(kWrappers, last)) {
      path.container = std::string(last) + (path.container.empty() ? "" : ".") + path.container;
    }
    container = without_last(container);
  }
  if (!path.index.empty()) path.index.erase(0, 1);
  return path;
}

std::string fused_group(const std::string& weight) {
  const LayerPath path = path_of(weight);
  for (const FusedNames& names : kFused) {
    if (!holds(names, path.name)) continue;
    return path.container + "." + std::string(names[0]) + "+" + path.index;
  }
  return weight;
}

}  // namespace blockscale::models
