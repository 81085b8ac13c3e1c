// What a conversion would do with a model that is in memory.
#include <algorithm>

#include "models/checkpoint/factors.h"
#include "models/convert/plan.h"
#include "models/json_file.h"
#include "models/safetensors/header_store.h"

namespace blockscale {
namespace {

using models::DialectTraits;
using models::PlannedTensor;

WeightInputs inputs_of(const PlannedTensor& planned, const DialectTraits& destination) {
  WeightInputs inputs;
  inputs.activations = planned.activations;
  inputs.recipe = input_recipe(planned.recipe, planned.activations);
  if (planned.activations != Activations::calibrated) return inputs;
  const float absmax = planned.input_absmax;
  inputs.scales = {planned.recipe == Recipe::nvfp4 ? models::nvfp4_factor(absmax, destination.sense)
                                                   : models::fp8_scale(absmax, 0)};
  return inputs;
}

PlannedWeight weight_of(const models::Plan& plan, const ConvertOptions& options,
                        const PlannedTensor& planned) {
  PlannedWeight weight;
  weight.name = plan.source->tensors()[planned.source].name;
  weight.recipe = planned.recipe;
  weight.converted = planned.converted;
  weight.reason = planned.reason;
  weight.rule = planned.rule;
  if (!planned.quantized) return weight;
  weight.inputs = inputs_of(planned, *plan.destination);
  weight.group = planned.group;
  weight.mx_scale_mode =
      options.mx_scale_mode.value_or(plan.destination->mx_scale_mode(planned.recipe));
  if (planned.channel_weights) weight.channel_weights = *planned.channel_weights;
  if (planned.channel_means) weight.channel_means = *planned.channel_means;
  return weight;
}

}  // namespace

std::vector<PlannedWeight> plan_weights(const std::vector<TensorInfo>& tensors,
                                        const std::string& config, const ConvertOptions& options) {
  models::Json json;
  if (!config.empty()) json = parse_json(config, "config");
  const models::SourceConfig said = models::make_source_config(std::move(json), nullptr, "config");
  TensorStore store = header_store(tensors);
  if (const DialectTraits& dialect = models::detect_dialect(store, said);
      dialect.dialect != Dialect::plain) {
    const std::vector<models::StoredWeight> weights = dialect.read(store, said);
    throw Error(ErrorCode::unsupported, weights.empty() ? "config" : weights[0].name,
                std::string("is quantized as ") + dialect.name +
                    " stores it; blockscale.convert reads such checkpoints");
  }
  const auto source = models::StoredCheckpoint::of(std::move(store), said);
  // One file, whose name nobody sees: there is no source that shards could be named after.
  const models::Plan plan = models::make_plan(source, options, "model.safetensors");
  std::vector<PlannedWeight> result;
  for (const PlannedTensor& planned : plan.tensors) {
    result.push_back(weight_of(plan, options, planned));
  }
  return result;
}

}  // namespace blockscale
