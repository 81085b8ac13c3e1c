#include "models/convert/layers/named_layers.h"

#include "models/text.h"

namespace blockscale::models {

bool NamedLayers::hold(const CheckpointTensor& tensor) const {
  switch (roles_.of(tensor)) {
    case Role::linear:
    case Role::experts:
    case Role::embedder: return said_.names(tensor);
    case Role::other: return tensor.shape.size() == 2 || said_.names(tensor);
    default: return true;
  }
}

std::vector<std::string> warnings_of_unnamed(const Plan& plan) {
  if (plan.destination->dialect != Dialect::deepseek) return {};
  const NamedLayers named(*plan.source);
  std::string example;
  int others = -1;
  for (const PlannedTensor& planned : plan.tensors) {
    if (!planned.quantized || planned.method == Method::verbatim) continue;
    const CheckpointTensor& tensor = plan.source->tensors()[planned.source];
    if (!named.hold(tensor)) continue;
    if (example.empty()) example = module_of(tensor.name);
    ++others;
  }
  if (example.empty()) return {};
  return {quote(example) + (others > 0 ? " and " + std::to_string(others) + " more" : "") +
          ": quantized, which deepseek's configuration cannot say of a layer by its name; engines "
          "that expect only linear layers quantized may not load them"};
}

}  // namespace blockscale::models
