#include "models/convert/selection/experts_layout.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "models/convert/selection/layer_names.h"

namespace blockscale::models {
namespace {

// From transformers 4.57.1, modeling_*.py: the shapes of its nn.Parameters and the products that
// they enter (what counts is the file, and 5.x reorders some stacks as it loads them); where 4.57.1
// lacks the model, from 5.23.0 with its conversion_mapping.py (Transpose of stacks: qwen3_vl_moe
// and nemo_speechlm). The `_text` half of a model type lies as the whole.
constexpr auto kInOut = std::to_array<std::string_view>({
    "aria",                   // AriaGroupedExpertsGemm: [groups, in, out]
    "gpt_oss",                // GptOssExperts: gate_up_proj [E, hidden, 2 * intermediate]
    "llama4",                 // Llama4TextExperts: the same
    "nemo_speechlm",          // 5.23.0: mixer.experts.down_projs, transposed as it is loaded
    "openai_privacy_filter",  // 5.23.0: is_transposed=True
    "qwen3_vl_moe",           // Qwen3VLMoeTextExperts: the same; 5.x transposes it
});
constexpr auto kOutIn = std::to_array<std::string_view>({
    // ParallelExperts: weight [E, out, in]
    "granitemoe",
    "granitemoehybrid",
    "granitemoeshared",
    "jetmoe",
    // 5.23.0: gate_up_proj [E, 2 * intermediate, hidden], down_proj [E, hidden, intermediate]
    "afmoe",
    "axk1",
    "axk2",
    "bailing_hybrid",
    "beam",
    "cohere2_moe",
    "deepseek_ocr2",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v4",
    "diffusion_gemma",
    "dots1",
    "dots3_note",
    "ernie4_5_moe",
    "ernie4_5_vl_moe",
    "exaone_moe",
    "flex_olmo",
    "flint",
    "gemma4",
    "glm4_moe",
    "glm4_moe_lite",
    "glm4v_moe",
    "glm5_next",
    "glm_moe_dsa",
    "granitemoe_swa",
    "hunyuan_v1_moe",
    "hy_v3",
    "hy_v4",
    "inkling2",
    "inkling_mm_model",
    "jamba",
    "kimi_linear",
    "kolibri1",
    "laguna",
    "lfm2_moe",
    "longcat_flash",
    "mellum",
    "mimo_v2_flash",
    "minimax",
    "minimax_m2",
    "minimax_m3_vl",
    "mistral4",
    "mistral_large4",
    "mixtral",
    "muse_spark",
    "nemotron_h",
    "olmoe",
    "phimoe",
    "qwen2_moe",
    "qwen3_5_moe",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_omni_moe",
    "qwen4_exp",
    "solar_open",
    "step3p5",
    "step3p7",
    "unlimited_ocr",
    "zaya",
});

// The same files: layers made by Conv1D (x @ weight), and dbrx's w2 (x @ weight, w1 and v1 are
// x @ weight.T). Other layers of these models are nn.Linear.
struct TransposedLayer {
  std::string_view model_type;
  std::string_view module;  // last component
};
constexpr auto kTransposedLayers = std::to_array<TransposedLayer>({
    {"clvp", "c_fc"},
    {"clvp", "c_proj"},
    {"dbrx", "w2"},
    {"decision_transformer", "c_attn"},
    {"decision_transformer", "c_fc"},
    {"decision_transformer", "c_proj"},
    {"decision_transformer", "q_attn"},
    {"gpt2", "c_attn"},
    {"gpt2", "c_fc"},
    {"gpt2", "c_proj"},
    {"gpt2", "q_attn"},
    {"imagegpt", "c_attn"},
    {"imagegpt", "c_fc"},
    {"imagegpt", "c_proj"},
    {"imagegpt", "q_attn"},
    {"openai-gpt", "c_attn"},
    {"openai-gpt", "c_fc"},
    {"openai-gpt", "c_proj"},
});

}  // namespace

std::optional<ExpertsLayout> experts_layout_of(const std::string& model_type) {
  std::string_view type = model_type;
  if (type.ends_with("_text")) type.remove_suffix(5);
  if (holds(kInOut, type)) return ExpertsLayout::in_out;
  if (holds(kOutIn, type)) return ExpertsLayout::out_in;
  return std::nullopt;
}

bool contradicts(ExpertsLayout layout, const std::string& weight,
                 const std::vector<std::int64_t>& shape, std::int64_t hidden_size) {
  constexpr std::array<std::string_view, 6> kFromHidden = {
      "gate_up_proj", "gate_proj", "up_proj", "w1", "w3", "w13_weight"};
  constexpr std::array<std::string_view, 3> kToHidden = {"down_proj", "w2", "w2_weight"};
  const std::string name = path_of(weight).name;
  const bool from = holds(kFromHidden, name);
  if ((!from && !holds(kToHidden, name)) || shape.size() != 3 || shape[1] == shape[2]) return false;
  const bool hidden_is_last = from == (layout == ExpertsLayout::out_in);
  return shape[hidden_is_last ? 2 : 1] != hidden_size &&
         shape[hidden_is_last ? 1 : 2] == hidden_size;
}

bool is_transposed(const std::string& model_type, const std::string& weight) {
  const std::string module = path_of(weight).name;
  return std::any_of(kTransposedLayers.begin(), kTransposedLayers.end(), [&](const auto& layer) {
    return layer.model_type == model_type && layer.module == module;
  });
}

}  // namespace blockscale::models
