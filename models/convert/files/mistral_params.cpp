#include "models/convert/files/mistral_params.h"

#include <algorithm>

#include "models/json_file.h"
#include "models/safetensors/source_path.h"

namespace blockscale::models {

std::optional<Json> mistral_params(const StoredCheckpoint& source) {
  const auto& tensors = source.store().tensors();
  const bool mistral = std::any_of(tensors.begin(), tensors.end(), [](const auto& tensor) {
    return tensor.first.ends_with(".qscale_weight");
  });
  const std::filesystem::path path = source.store().folder() / kMistralParams;
  std::error_code error;
  if (!mistral || !std::filesystem::exists(path, error)) return std::nullopt;
  check_contained(path, path.parent_path());
  Json params = read_json_file(path);
  if (!params.is_object() || params.erase("quantization") == 0) return std::nullopt;
  return params;
}

}  // namespace blockscale::models
