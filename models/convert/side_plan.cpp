#include "models/convert/side_plan.h"

#include <algorithm>
#include <cmath>

#include "models/text.h"

namespace blockscale::models {
namespace {

constexpr const char* kCacheScales = "scales of the key and value cache";

bool is_cache(Side kind) {
  return kind == Side::key_scale || kind == Side::value_scale || kind == Side::cache ||
         kind == Side::cache_bias;
}

bool is_one_number(const TensorInfo& info) {
  const bool one = std::all_of(info.shape.begin(), info.shape.end(),
                               [](std::int64_t size) { return size == 1; });
  return one && (info.dtype == DType::F32 || info.dtype == DType::BF16 || info.dtype == DType::F16);
}

}  // namespace

int input_range(Recipe recipe) {
  if (recipe == Recipe::nvfp4) return 2688;
  return recipe == Recipe::fp8_tensor || recipe == Recipe::fp8_row ? 448 : 0;
}

SidePlan::SidePlan(const StoredCheckpoint& source, const std::vector<Decision>& decisions,
                   const DialectTraits& destination, bool unchanged, const std::set<Recipe>& given,
                   bool keep_inputs)
    : source_(source) {
  if (unchanged) {
    inputs_.fill(true);
    return;
  }
  const bool any_quantized = std::any_of(decisions.begin(), decisions.end(),
                                         [](const Decision& d) { return !is_plain(d.recipe); });
  decide_inputs(decisions, destination, given, keep_inputs);
  if (source.dialect().dialect == Dialect::plain) return;
  decide_cache(destination, any_quantized);
  drop_sides();
}

/// Engines want the scales of all weights of a kind or of none; codes of 4 bits cannot use those of
/// 8, nor the other way round: what was calibrated was another network.
void SidePlan::decide_inputs(const std::vector<Decision>& decisions,
                             const DialectTraits& destination, const std::set<Recipe>& given,
                             bool keep_inputs) {
  std::array<bool, kRecipeCount> some{};
  std::array<bool, kRecipeCount> lacking{};
  const auto has = [&](std::size_t i) {
    return source_.tensors()[i].quantized && source_.parts(i).input_scale != nullptr &&
           source_.parts(i).channel_factors == nullptr &&
           input_range(source_.tensors()[i].recipe) == input_range(decisions[i].recipe);
  };
  for (std::size_t i = 0; i < decisions.size(); ++i) {
    if (is_plain(decisions[i].recipe)) continue;
    (has(i) ? some : lacking)[static_cast<std::size_t>(decisions[i].recipe)] = true;
  }
  for (const RecipeTraits& t : kRecipes) {
    const auto r = static_cast<std::size_t>(t.recipe);
    const bool kept = keep_inputs && some[r] && !lacking[r];
    inputs_[r] = destination.can_have(t.recipe, Activations::calibrated) &&
                 (kept || given.contains(t.recipe));
  }
  for (std::size_t i = 0; i < decisions.size(); ++i) {
    const TensorStore::Entry* scale = source_.parts(i).input_scale;
    if (scale == nullptr || (!is_plain(decisions[i].recipe) && inputs(decisions[i].recipe))) {
      continue;
    }
    const std::string recipe = recipe_traits(decisions[i].recipe).name;
    drop("input scales",
         !keep_inputs ? "activations says so"
         : source_.parts(i).channel_factors != nullptr
             ? "they are of inputs that were multiplied by factors, which the weights have now"
         : has(i) && destination.can_have(decisions[i].recipe, Activations::calibrated)
             ? "other weights in " + recipe + " have none"
             : recipe + " in " + destination.name + " has none of this kind",
         scale->info.name);
  }
}

void SidePlan::decide_cache(const DialectTraits& destination, bool any_quantized) {
  const DialectTraits& origin = source_.dialect();
  const bool same = origin.dialect == destination.dialect && any_quantized;
  std::optional<CacheScheme> said;
  if (origin.cache != nullptr) said = origin.cache(source_.config());
  std::map<std::size_t, std::string> names;
  bool shared = said && said->fp8 && any_quantized && destination.key_scale != nullptr;
  bool any = false;
  for (std::size_t i = 0; i < source_.tensors().size(); ++i) {
    const SideTensor side = source_.side(i);
    if (!is_cache(side.kind)) continue;
    any = true;
    const TensorInfo& info = source_.parts(i).values->info;
    const bool key = side.kind == Side::key_scale;
    shared = shared && (key || side.kind == Side::value_scale) && is_one_number(info);
    if (shared) names[i] = side.owner + (key ? destination.key_scale : destination.value_scale);
  }
  // Within a dialect they stay as they are, whatever they mean, if its words for them stay too.
  const bool stays = same && (said ? !said->words.is_null() : true);
  if (stays) {
    cache_ = said;
    return;
  }
  if (shared) {
    cache_ = CacheScheme{true, nullptr};
    for (const auto& [i, name] : names) {
      fates_[i] = {name, "scale of the cache, under " + std::string(destination.name) + "'s name"};
    }
    return;
  }
  const std::string why = any_quantized ? std::string(destination.name) + " cannot say them"
                                        : "the result is not quantized";
  if (!any && said) drop("the scheme of the key and value cache", why, "");
  for (std::size_t i = 0; any && i < source_.tensors().size(); ++i) {
    if (!is_cache(source_.side(i).kind)) continue;
    fates_[i] = {"", "dropped: " + why};
    drop(kCacheScales, why, source_.tensors()[i].name);
  }
}

void SidePlan::drop_sides() {
  for (std::size_t i = 0; i < source_.tensors().size(); ++i) {
    const Side kind = source_.side(i).kind;
    const bool zero = kind == Side::zero_point;
    const bool description = kind == Side::description;
    if (!zero && !description && kind != Side::input && kind != Side::output) continue;
    const std::string why = zero          ? "they are all 0, which symmetric weights need not say"
                            : description ? "the result says it in its own way"
                                          : "they belong to no weight that the result has them for";
    fates_[i] = {"", "dropped: " + why};
    drop(zero          ? "zero points"
         : description ? "descriptions of quantized weights"
                       : "scales of activations",
         why, source_.tensors()[i].name);
  }
}

void SidePlan::drop(const std::string& what, const std::string& why, const std::string& tensor) {
  Dropped& dropped = dropped_[{what, why}];
  if (dropped.count++ == 0) dropped.example = tensor;
}

std::optional<SidePlan::Fate> SidePlan::fate(std::size_t i) const {
  const auto found = fates_.find(i);
  if (found == fates_.end()) return std::nullopt;
  return found->second;
}

std::vector<std::string> SidePlan::warnings() const {
  std::vector<std::string> result;
  for (const auto& [kind, dropped] : dropped_) {
    const std::string of = dropped.example.empty() ? ""
                           : dropped.count == 1    ? " (" + quote(dropped.example) + ")"
                                                   : " (" + std::to_string(dropped.count) +
                                                      ", such as " + quote(dropped.example) + ")";
    result.push_back("dropped " + kind.first + of + ": " + kind.second);
  }
  return result;
}

}  // namespace blockscale::models
