#include "models/convert/checks/staying_dtypes.h"

#include <map>

#include "models/text.h"

namespace blockscale::models {
namespace {

/// Floats but those of a plain recipe.
bool is_other_float(DType dtype) {
  switch (dtype) {
    case DType::F64:
    case DType::C64:
    case DType::F4:
    case DType::F6_E2M3:
    case DType::F6_E3M2:
    case DType::F8_E4M3:
    case DType::F8_E5M2:
    case DType::F8_E8M0:
    case DType::F8_E4M3FNUZ:
    case DType::F8_E5M2FNUZ: return true;
    default: return false;
  }
}

}  // namespace

std::vector<std::string> staying_dtypes(const Plan& plan) {
  struct Group {
    std::size_t count = 0;
    const std::string* example = nullptr;
  };
  std::map<std::string, Group> groups;  // by dtype
  for (const PlannedTensor& planned : plan.tensors) {
    const CheckpointTensor& tensor = plan.source->tensors()[planned.source];
    const bool stays = planned.method == Method::verbatim && !planned.parts.empty();
    if (!stays || tensor.quantized || tensor.bytes == 0 || !is_other_float(tensor.dtype)) continue;
    Group& group = groups[std::string(dtype_name(tensor.dtype))];
    if (group.count++ == 0) group.example = &tensor.name;
  }
  std::vector<std::string> warnings;
  if (plan.all_verbatim) return warnings;
  for (const auto& [dtype, group] : groups) {
    const bool one = group.count == 1;
    warnings.push_back(std::to_string(group.count) +
                       (one ? " tensor stays in " : " tensors stay in ") + dtype +
                       (one ? " (" : ", such as ") + quote(*group.example) + (one ? ")" : "") +
                       ": neither rounded nor quantized");
  }
  return warnings;
}

}  // namespace blockscale::models
