#include "models/convert/layers/scale_groups.h"

#include <algorithm>
#include <map>
#include <string>

#include "models/convert/layers/fused_siblings.h"

namespace blockscale::models {

void find_groups(Plan& plan, const ConvertOptions& options) {
  std::map<std::string, int> by_key;
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    PlannedTensor& planned = plan.tensors[i];
    const bool one_scale = planned.recipe == Recipe::nvfp4 || planned.recipe == Recipe::fp8_tensor;
    if (planned.method != Method::requantize || !one_scale) continue;
    const CheckpointTensor& tensor = plan.source->tensors()[planned.source];
    const std::string key = fusion_key(tensor) + "|" + recipe_traits(planned.recipe).name;
    const auto [found, added] = by_key.emplace(key, static_cast<int>(plan.groups.size()));
    if (added) plan.groups.emplace_back();
    planned.group = found->second;
    plan.groups[static_cast<std::size_t>(found->second)].members.push_back(i);
  }
  for (ScaleGroup& group : plan.groups) {
    group.keeps_blocks =
        std::all_of(group.members.begin(), group.members.end(), [&](std::size_t i) {
          const CheckpointTensor& tensor = plan.source->tensors()[plan.tensors[i].source];
          return tensor.quantized && tensor.recipe == Recipe::mxfp4 && tensor.form.empty() &&
                 !plan.source->parts(plan.tensors[i].source).high_nibble_first &&
                 plan.tensors[i].recipe == Recipe::nvfp4 &&
                 !searches_scales(options, plan.tensors[i]);
        });
    if (!group.keeps_blocks) continue;
    for (const std::size_t i : group.members) {
      plan.tensors[i].reason = "codes copied where e4m3 holds a block's scale";
    }
  }
}

}  // namespace blockscale::models
