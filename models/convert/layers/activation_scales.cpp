#include "models/convert/layers/activation_scales.h"

#include <algorithm>
#include <cmath>
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

constexpr std::string_view kAbsmax = ".input_absmax";
constexpr std::string_view kMeanSquare = ".input_mean_square";
constexpr std::string_view kMean = ".input_mean";

std::string without(std::string_view name, std::string_view suffix) {
  return std::string(name.substr(0, name.size() - suffix.size()));
}

/// The numbers of an F32 tensor of one dimension, or of one element.
std::vector<float> floats_of(const SafetensorsFile& file, const TensorInfo& tensor) {
  if (tensor.dtype != DType::F32 || (tensor.shape.size() != 1 && tensor.bytes != sizeof(float))) {
    fail(file.path(), tensor.name, "must be F32 of one dimension");
  }
  std::vector<float> values(tensor.bytes / sizeof(float));
  std::memcpy(values.data(), file.data(tensor).data(), tensor.bytes);
  return values;
}

std::map<std::string, float> from_safetensors(const std::filesystem::path& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::map<std::string, float> result;
  for (const TensorInfo& tensor : file.tensors()) {
    if (tensor.name.ends_with(kMeanSquare) || tensor.name.ends_with(kMean)) continue;
    const bool by_channel = tensor.name.ends_with(kAbsmax);
    if (!by_channel && tensor.bytes != sizeof(float)) {
      fail(path, tensor.name, "must be F32 with one element");
    }
    double absmax = 0;
    for (const float value : floats_of(file, tensor)) {
      if (!(value >= 0)) checked(path, tensor.name, double{value});  // which refuses it
      absmax = std::max(absmax, double{value});
    }
    const std::string name = by_channel ? without(tensor.name, kAbsmax) : tensor.name;
    if (!result.emplace(name, checked(path, tensor.name, absmax)).second) {
      fail(path, name, "has two entries, must have one");
    }
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

CalibratedChannels read_calibrated_channels(const std::filesystem::path& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  CalibratedChannels result;
  for (const TensorInfo& tensor : file.tensors()) {
    const bool is_square = tensor.name.ends_with(kMeanSquare);
    if (!is_square && !tensor.name.ends_with(kMean)) continue;
    std::vector<float> values = floats_of(file, tensor);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::isfinite(values[i]) && (!is_square || values[i] >= 0)) continue;
      fail(path, tensor.name,
           "is " + std::to_string(values[i]) + " for channel " + std::to_string(i) +
               ", must be finite" + (is_square ? " and at least 0" : ""));
    }
    ChannelNumbers& numbers = is_square ? result.mean_squares : result.means;
    numbers.emplace(without(tensor.name, is_square ? kMeanSquare : kMean), std::move(values));
  }
  return result;
}

}  // namespace blockscale::models
