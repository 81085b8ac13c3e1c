#include "models/convert/layers/fused_siblings.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "models/convert/selection/layer_names.h"
#include "models/text.h"

namespace blockscale::models {
namespace {

const CheckpointTensor& tensor_of(const Plan& plan, std::size_t planned) {
  return plan.source->tensors()[plan.tensors[planned].source];
}

/// The stored tensor scales if they are carried over, else nothing.
std::span<const std::byte> copied_scale(const Plan& plan, std::size_t planned) {
  const PlannedTensor& tensor = plan.tensors[planned];
  if (tensor.method == Method::requantize) return {};
  return std::as_bytes(plan.source->tensor_scales(tensor.source));
}

bool same_tensor_scale(const Plan& plan, const std::vector<std::size_t>& members) {
  const auto first = copied_scale(plan, members[0]);
  return std::all_of(members.begin(), members.end(), [&](std::size_t member) {
    const auto scale = copied_scale(plan, member);
    return std::equal(first.begin(), first.end(), scale.begin(), scale.end());
  });
}

/// "q_proj nvfp4, k_proj bf16", or without recipes "q_proj, k_proj".
std::string names_of(const Siblings& siblings, const Plan& plan) {
  std::string names;
  for (const std::size_t member : siblings.members) {
    const LayerPath path = path_of(tensor_of(plan, member).name);
    names += (names.empty() ? "" : ", ") + path.name;
    if (!path.index.empty()) names += "." + path.index;
    if (siblings.same_recipe) continue;
    names += std::string(" ") + recipe_traits(plan.tensors[member].recipe).name;
  }
  return names;
}

}  // namespace

std::string fusion_key(const CheckpointTensor& tensor) {
  std::string key = fused_group(tensor.name);
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    if (d + 2 != tensor.shape.size()) key += "|" + std::to_string(tensor.shape[d]);
  }
  return key;
}

std::vector<Siblings> differing_siblings(const Plan& plan) {
  std::map<std::string, Siblings> by_key;
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    by_key[fusion_key(tensor_of(plan, i))].members.push_back(i);
  }
  std::vector<Siblings> differing;
  for (auto& [key, siblings] : by_key) {
    const auto& members = siblings.members;
    if (members.size() < 2) continue;
    const Recipe recipe = plan.tensors[members[0]].recipe;
    siblings.same_recipe = std::all_of(members.begin(), members.end(), [&](std::size_t member) {
      return plan.tensors[member].recipe == recipe;
    });
    siblings.same_tensor_scale =
        !siblings.same_recipe || recipe != Recipe::nvfp4 || same_tensor_scale(plan, members);
    const bool quantized = std::any_of(members.begin(), members.end(), [&](std::size_t member) {
      return plan.tensors[member].quantized;
    });
    if (quantized && (!siblings.same_recipe || !siblings.same_tensor_scale)) {
      differing.push_back(std::move(siblings));
    }
  }
  return differing;
}

std::vector<std::string> warnings_of(const std::vector<Siblings>& differing, const Plan& plan) {
  struct Kind {
    std::string example;
    std::size_t count = 0;
    bool same_recipe = false;
  };
  std::map<std::string, Kind> kinds;
  for (const Siblings& siblings : differing) {
    const std::string names = names_of(siblings, plan);
    Kind& kind = kinds[names];
    if (kind.count++ > 0) continue;
    const std::string container = path_of(tensor_of(plan, siblings.members[0]).name).container;
    kind.example = container.empty() ? "" : "in " + quote(container);
    kind.same_recipe = siblings.same_recipe;
  }
  std::vector<std::string> warnings;
  for (const auto& [names, kind] : kinds) {
    std::string where = kind.example;
    if (kind.count > 1) where += " and " + std::to_string(kind.count - 1) + " more";
    warnings.push_back(
        names + " " + where +
        (kind.same_recipe
             ? " have different tensor scales, and engines that fuse them take one for all; "
               "share_tensor_scales quantizes them anew with one"
             : ": engines fuse these weights into one, and may not load different recipes"));
  }
  return warnings;
}

}  // namespace blockscale::models
