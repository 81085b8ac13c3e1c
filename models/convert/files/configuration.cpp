// The files of a result that describe it: config.json and its kind, and the index of its shards.
#include <algorithm>

#include "models/convert/files/mistral_params.h"
#include "models/convert/files/shards.h"
#include "models/convert/layers/named_layers.h"
#include "models/convert/plan.h"
#include "models/dialects/config_keys.h"
#include "models/json_file.h"

namespace blockscale::models {
namespace {

std::string index_text(const Plan& plan) {
  Json weight_map = Json::object();
  for (const PlannedShard& shard : plan.shards) {
    for (const TensorInfo& tensor : shard.tensors) weight_map[tensor.name] = shard.file;
  }
  return Json{{"metadata", {{"total_size", plan.bytes}}}, {"weight_map", weight_map}}.dump(2) +
         "\n";
}

}  // namespace

std::map<std::string, std::string> configuration_files(const Plan& plan, bool with_index) {
  Documents documents;
  if (!plan.all_verbatim) {
    const SourceConfig& config = plan.source->config();
    documents = {{"config.json", config.config}, {"hf_quant_config.json", config.hf_quant_config}};
    Contents contents;
    contents.kept_modules = plan.kept_modules;
    contents.plain_dtype = plan.plain_dtype;
    contents.cache = plan.cache;
    const NamedLayers named(*plan.source);
    for (const PlannedTensor& planned : plan.tensors) {
      if (!planned.quantized) continue;
      const CheckpointTensor& tensor = plan.source->tensors()[planned.source];
      WeightToWrite weight;
      weight.name = tensor.name;
      weight.shape = tensor.shape;
      weight.recipe = planned.recipe;
      weight.activations = planned.activations;
      weight.input_words = planned.input_words;
      weight.named = named.hold(tensor);
      contents.quantized.push_back(std::move(weight));
    }
    erase_quantization(documents["config.json"]);
    if (documents["config.json"].is_null()) documents["config.json"] = Json::object();
    const DialectTraits& dialect = contents.quantized.empty() ? kPlain : *plan.destination;
    dialect.describe(contents, documents);
    if (const auto params = mistral_params(*plan.source)) documents[kMistralParams] = *params;
  }
  std::map<std::string, std::string> files;
  for (const auto& [name, document] : documents) {
    if (!document.is_null()) files[name] = json_text(document) + "\n";
  }
  if (plan.shards.size() > 1 || with_index) files[index_file_name(plan)] = index_text(plan);
  const bool quantized =
      std::any_of(plan.tensors.begin(), plan.tensors.end(),
                  [](const PlannedTensor& planned) { return planned.quantized; });
  if (quantized && plan.destination->index_name != nullptr) {
    files[plan.destination->index_name] = index_text(plan);
  }
  return files;
}

}  // namespace blockscale::models
