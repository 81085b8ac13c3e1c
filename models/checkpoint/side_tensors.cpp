#include "models/checkpoint/side_tensors.h"

#include <algorithm>

namespace blockscale::models {
namespace {

struct KnownSuffix {
  std::string_view suffix;
  Side kind;
};

/// Names that compressed-tensors, ModelOpt, AutoFP8 and vLLM give; longer ones first.
constexpr KnownSuffix kKnown[] = {
    {".k_proj.k_scale", Side::key_scale},  // ModelOpt
    {".v_proj.v_scale", Side::value_scale},
    {".qkv_proj.k_scale", Side::key_scale},
    {".qkv_proj.v_scale", Side::value_scale},
    {".k_proj.output_scale", Side::key_scale},  // old compressed-tensors
    {".v_proj.output_scale", Side::value_scale},
    {".k_proj.k_bias", Side::cache_bias},  // ModelOpt's NVFP4_AFFINE
    {".v_proj.v_bias", Side::cache_bias},
    {".k_scale", Side::key_scale},  // compressed-tensors
    {".v_scale", Side::value_scale},
    {".kv_scale", Side::cache},  // AutoFP8
    {".q_scale", Side::cache},
    {".prob_scale", Side::cache},
    {".k_global_scale", Side::cache},
    {".v_global_scale", Side::cache},
    {".q_global_scale", Side::cache},
    {".input_scale", Side::input},
    {"_input_scale", Side::input},  // of a stacked parameter
    {".input_global_scale", Side::input},
    {"_input_global_scale", Side::input},
    {".activation_scale", Side::input},
    {".input_scale_ub", Side::input},  // FBGEMM's bound of dynamic scales
    {".output_scale", Side::output},
    {".output_global_scale", Side::output},
    {"_zero_point", Side::zero_point},
    {".q_fake_quantizer.qscale_act", Side::cache},  // Mistral
    {".k_fake_quantizer.qscale_act", Side::cache},
    {".v_fake_quantizer.qscale_act", Side::cache},
    {".kv_fake_quantizer.qscale_act", Side::cache},
    {".qscale_act", Side::input},
    {".scale_input", Side::input},      // ComfyUI's elder FP8
    {"scaled_fp8", Side::description},  // its mark
};

/// Ends of names of what changes weights: GPTQ's permutation, AWQ's and SVDQuant's factors, masks
/// and counts of compressed sparse weights, weights in other packings.
constexpr std::string_view kUnknown[] = {
    "g_idx",           ".bitmask",         ".compressed",      ".row_offsets",
    "pre_quant_scale", ".svdquant_lora_a", ".svdquant_lora_b", ".scale_packed",
    ".qweight",        ".qzeros"};

[[noreturn]] void refuse(const std::string& name, const std::string& message) {
  throw Error(ErrorCode::unsupported, name, message);
}

bool is_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

/// Everything below the module of a quantized linear layer: its weight, a bias, or known.
void check_module(const TensorStore& store, const std::string& weight,
                  const std::set<std::string_view>& claimed) {
  const std::string module = without_suffix(weight, ".weight");
  if (module.empty()) return;  // a stacked parameter, whose module has others
  const std::string prefix = module + ".";
  for (auto entry = store.tensors().lower_bound(prefix);
       entry != store.tensors().end() && entry->first.starts_with(prefix); ++entry) {
    const std::string& name = entry->first;
    if (claimed.contains(name) || name == weight || name.ends_with("bias")) continue;
    if (side_tensor(name).kind != Side::none) continue;
    refuse(name, "belongs to the quantized weight " + weight +
                     ", and what it does to it is not known here");
  }
}

}  // namespace

bool is_factor(Side kind) {
  return kind != Side::none && kind != Side::cache_bias && kind != Side::zero_point &&
         kind != Side::description;
}

SideTensor side_tensor(const std::string& name) {
  for (const KnownSuffix& known : kKnown) {
    if (!name.ends_with(known.suffix)) continue;
    return {known.kind, name.substr(0, name.size() - known.suffix.size())};
  }
  return {};
}

void check_side_tensors(const TensorStore& store, std::span<const StoredWeight> weights,
                        const std::set<std::string_view>& claimed) {
  for (const auto& [name, entry] : store.tensors()) {
    if (claimed.contains(name)) continue;
    for (const std::string_view suffix : kUnknown) {
      if (name.ends_with(suffix)) {
        refuse(name, "changes what quantized weights mean, in a way that is not known here");
      }
    }
    if (side_tensor(name).kind == Side::zero_point && !is_zero(store.data(entry))) {
      refuse(name, "holds zero points other than 0; readable are symmetric weights");
    }
  }
  for (const StoredWeight& weight : weights) check_module(store, weight.name, claimed);
}

}  // namespace blockscale::models
