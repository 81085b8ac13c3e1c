#include "models/convert/checks/readability.h"

#include <algorithm>
#include <set>

#include "models/json_file.h"
#include "models/safetensors/header_store.h"
#include "models/text.h"

namespace blockscale::models {
namespace {

Json document(const std::map<std::string, std::string>& configurations, const std::string& name) {
  const auto found = configurations.find(name);
  return found == configurations.end() ? Json() : parse_json(found->second, name);
}

/// The tensor that stays as it is and that an error names, by its own name or that of the weight
/// which it was taken for; or null.
const PlannedTensor* staying(const Plan& plan, const std::string& named) {
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.quantized || planned.method != Method::verbatim) continue;
    for (const PartToWrite& part : planned.parts) {
      if (part.info.name == named || part.info.name.starts_with(named + "_")) {
        return &planned;
      }
    }
  }
  return nullptr;
}

[[noreturn]] void refuse(const Plan& plan, const std::string& named, const std::string& message) {
  const std::string taken = std::string(plan.destination->name) +
                            " would take it for part of a "
                            "quantized weight: " +
                            message;
  if (const PlannedTensor* planned = staying(plan, named)) {
    const CheckpointTensor& tensor = plan.source->tensors()[planned->source];
    throw Error(ErrorCode::unsupported, tensor.name,
                "is " + std::string(dtype_name(tensor.dtype)) +
                    " in the source and stays so, but " + taken);
  }
  throw Error(ErrorCode::unsupported, "destination",
              "would not be readable: " + named + ": " + message);
}

std::string message_of(const Error& error) {
  const std::string text = error.what();
  return error.argument().empty() ? text : text.substr(error.argument().size() + 2);
}

}  // namespace

void check_will_be_read(const Plan& plan,
                        const std::map<std::string, std::string>& configurations) {
  if (plan.all_verbatim) return;  // it is the source, which was read
  std::vector<TensorInfo> tensors;
  std::set<std::string> quantized;
  for (const PlannedTensor& planned : plan.tensors) {
    for (const PartToWrite& part : planned.parts) tensors.push_back(part.info);
    if (planned.quantized) quantized.insert(plan.source->tensors()[planned.source].name);
  }
  const char* const index = plan.destination->index_name;
  const bool has_index = index != nullptr && configurations.contains(index);
  const TensorStore store = header_store(tensors, has_index ? index : "");
  std::vector<StoredWeight> weights;
  try {
    const SourceConfig config =
        make_source_config(document(configurations, "config.json"),
                           document(configurations, "hf_quant_config.json"), "config.json");
    weights = detect_dialect(store, config).read(store, config);
  } catch (const Error& error) {
    refuse(plan, error.argument(), message_of(error));
  }
  for (const StoredWeight& weight : weights) {
    if (quantized.erase(weight.name) == 0) {
      refuse(plan, weight.name,
             "with the scales " + (weight.scales != nullptr ? quote(weight.scales->name)
                                                            : std::string("of its columns")));
    }
  }
  if (quantized.empty()) return;
  throw Error(ErrorCode::unsupported, *quantized.begin(),
              std::string("would not be read as a quantized weight in ") + plan.destination->name);
}

}  // namespace blockscale::models
