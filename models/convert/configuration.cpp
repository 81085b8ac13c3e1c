// The files of a result that describe it: config.json and its kind, and the index of its shards.
#include "models/convert/mistral_params.h"
#include "models/convert/named_layers.h"
#include "models/convert/plan.h"
#include "models/dialects/config_keys.h"
#include "models/json_file.h"
#include "models/safetensors/index_file.h"

namespace blockscale::models {
namespace {

constexpr std::string_view kSuffix = ".safetensors";

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
  const bool several = plan.shards.size() > 1;
  if (several || with_index) {
    const std::string& first = plan.shards[0].file;
    const std::string stem = first.substr(
        0, several ? first.rfind('-', first.rfind("-of-") - 1) : first.size() - kSuffix.size());
    files[stem + std::string(kIndexSuffix)] = index_text(plan);
  }
  return files;
}

}  // namespace blockscale::models
