#include "models/convert/activation_scales.h"

#include <cstring>

#include "blockscale/safetensors.h"
#include "blockscale/tensor.h"
#include "models/json_file.h"
#include "models/text.h"

namespace blockscale::models {
namespace {

[[noreturn]] void fail(const std::filesystem::path& file, const std::string& name,
                       const std::string& message) {
  throw Error(ErrorCode::corrupt_file, file.string(), quote(name) + " " + message);
}

float checked(const std::filesystem::path& file, const std::string& name, double value) {
  const bool fits = value <= double{format_traits(Format::f32).max};  // false for NaN
  const float absmax = fits ? static_cast<float>(value) : 0.0f;
  if (!(absmax > 0)) {
    fail(file, name, "is " + std::to_string(value) + ", must be finite and above 0 in f32");
  }
  return absmax;
}

std::map<std::string, float> from_safetensors(const std::filesystem::path& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::map<std::string, float> result;
  for (const TensorInfo& tensor : file.tensors()) {
    if (tensor.dtype != DType::F32 || tensor.bytes != sizeof(float)) {
      fail(path, tensor.name, "must be F32 with one element");
    }
    float value = 0;
    std::memcpy(&value, file.data(tensor).data(), sizeof value);
    result[tensor.name] = checked(path, tensor.name, value);
  }
  return result;
}

}  // namespace

std::map<std::string, float> read_activation_scales(const std::filesystem::path& file) {
  if (file.extension() == ".safetensors") return from_safetensors(file);
  const nlohmann::json json = read_json_file(file);
  if (!json.is_object()) {
    throw Error(ErrorCode::corrupt_file, file.string(),
                "must hold a JSON object of weight name -> absmax");
  }
  std::map<std::string, float> result;
  for (const auto& [name, value] : json.items()) {
    if (!value.is_number()) fail(file, name, "must be a number");
    result[name] = checked(file, name, value.get<double>());
  }
  return result;
}

}  // namespace blockscale::models
