// What the tests of checkpoints share: small checkpoints made by hand.
#pragma once

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "models/dialects/dialect.h"
#include "models/testing.h"

namespace blockscale::test {

using models::Json;

/// A tensor to be put into a file. Without data it holds random bytes that are no NaN in any
/// format of scales (0x00..0x6F).
struct TestTensor {
  std::string name;
  DType dtype;
  std::vector<std::int64_t> shape;
  std::string data;
};

inline std::string test_bytes(const TestTensor& tensor) {
  const TensorInfo info = models::tensor_info(tensor.name, tensor.dtype, tensor.shape);
  if (!tensor.data.empty()) return tensor.data;
  std::string bytes(info.bytes, '\0');
  std::seed_seq seed(tensor.name.begin(), tensor.name.end());
  std::mt19937 random(seed);
  for (char& byte : bytes) byte = static_cast<char>(random() % 0x70);
  return bytes;
}

inline std::string floats(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// Normally distributed f32 weights of [rows, k], different for every seed.
inline std::vector<float> normal_values(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.05f);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

inline TestTensor f32_tensor(std::string name, std::vector<std::int64_t> shape, unsigned seed) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return {std::move(name), DType::F32, std::move(shape), floats(normal_values(count, seed))};
}

inline void write_store(const std::filesystem::path& file, const std::vector<TestTensor>& tensors,
                        const std::map<std::string, std::string>& metadata = {{"format", "pt"}}) {
  std::vector<TensorInfo> infos;
  for (const TestTensor& t : tensors)
    infos.push_back(models::tensor_info(t.name, t.dtype, t.shape));
  SafetensorsWriter writer(file, infos, metadata);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string bytes = test_bytes(tensors[i]);
    writer.write(i, 0, std::as_bytes(std::span(bytes)));
  }
  writer.publish();
}

/// A folder with model.safetensors and, unless null, config.json.
inline void write_checkpoint(const std::filesystem::path& folder,
                             const std::vector<TestTensor>& tensors, const Json& config = nullptr) {
  std::filesystem::create_directories(folder);
  write_store(folder / "model.safetensors", tensors);
  if (!config.is_null()) write_text(folder / "config.json", config.dump(2));
}

/// config.json of compressed-tensors with one group.
inline Json compressed_tensors_config(const std::string& format, Json weights) {
  return {{"quantization_config",
           {{"quant_method", "compressed-tensors"},
            {"format", format},
            {"quantization_status", "compressed"},
            {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}}}};
}

inline Json deepseek_config() {
  return {{"quantization_config",
           {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {128, 128}}}}};
}

inline Json modelopt_config() {
  return {{"quantization_config", {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}}};
}

}  // namespace blockscale::test
