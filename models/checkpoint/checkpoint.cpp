#include "models/checkpoint/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include "models/dialects/config_keys.h"
#include "models/json_file.h"
#include "models/safetensors/source_path.h"
#include "models/text.h"

namespace blockscale {
namespace models {
namespace {

namespace fs = std::filesystem;

Json read_optional_json(const fs::path& path) {
  std::error_code error;
  if (fs::symlink_status(path, error).type() == fs::file_type::not_found) return nullptr;
  check_contained(path, path.parent_path());
  Json json = read_json_file(path);
  if (!json.is_object()) {
    throw Error(ErrorCode::corrupt_file, path.string(), "must hold a JSON object");
  }
  return json;
}

/// The plain recipe of a dtype; f32 for those that have none.
Recipe recipe_of(DType dtype) {
  return dtype == DType::F16 ? Recipe::f16 : dtype == DType::BF16 ? Recipe::bf16 : Recipe::f32;
}

float widened(const std::byte* data, std::size_t i, DType dtype) {
  if (dtype == DType::F32) {
    float value = 0;
    std::memcpy(&value, data + 4 * i, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, data + 2 * i, sizeof bits);
  return decode(dtype == DType::BF16 ? Format::bf16 : Format::f16, bits);
}

bool is_aligned(const void* pointer, std::size_t alignment) {
  return reinterpret_cast<std::uintptr_t>(pointer) % alignment == 0;
}

}  // namespace

SourceConfig make_source_config(Json config_json, Json hf_quant_config, std::string config_path) {
  SourceConfig config;
  config.config_path = std::move(config_path);
  config.config = std::move(config_json);
  config.hf_quant_config = std::move(hf_quant_config);
  const auto found = find_quantization(config.config);
  if (found.empty()) return config;
  config.quantization_path = found[0].first;
  config.quantization = *found[0].second;
  if (!config.quantization.is_object()) {
    throw Error(ErrorCode::corrupt_file, config.config_path,
                config.quantization_path + " must be an object");
  }
  for (const auto& [path, other] : found) {
    if (*other == config.quantization) continue;
    throw Error(ErrorCode::unsupported, config.config_path,
                path + " differs from " + config.quantization_path +
                    ", readable is one way of quantizing a checkpoint");
  }
  return config;
}

SourceConfig read_source_config(const fs::path& folder) {
  return make_source_config(read_optional_json(folder / "config.json"),
                            read_optional_json(folder / "hf_quant_config.json"),
                            (folder / "config.json").string());
}

MatrixShape matrix_shape(const std::vector<std::int64_t>& shape) {
  MatrixShape result;
  if (!shape.empty()) result.k = shape.back();
  if (shape.size() >= 2) {
    result.rows = shape[shape.size() - 2];
    result.batch = std::accumulate(shape.begin(), shape.end() - 2, std::int64_t{1},
                                   std::multiplies<std::int64_t>());
  }
  return result;
}

std::shared_ptr<const StoredCheckpoint> StoredCheckpoint::open(const fs::path& file_or_folder) {
  auto checkpoint = std::make_shared<StoredCheckpoint>();
  checkpoint->store_ = TensorStore::open(file_or_folder);
  const TensorStore& store = checkpoint->store_;
  checkpoint->config_ = read_source_config(store.folder());
  checkpoint->dialect_ = &detect_dialect(store, checkpoint->config_);

  const std::vector<StoredWeight> weights = checkpoint->dialect_->read(store, checkpoint->config_);
  std::set<std::string_view> claimed;
  for (const StoredWeight& weight : weights) {
    for (const TensorInfo* info :
         {weight.values, weight.scales, weight.tensor_scale, weight.input_scale}) {
      if (info != nullptr && !claimed.insert(info->name).second) {
        throw Error(ErrorCode::corrupt_file, info->name, "is claimed by two weights");
      }
    }
    checkpoint->add_weight(weight);
  }
  for (const auto& [name, entry] : store.tensors()) {
    if (!claimed.contains(name)) checkpoint->add_plain(entry);
  }

  // Sort both lists by name. Two weights of one name: X and X_packed in one store.
  std::vector<std::size_t> order(checkpoint->tensors_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return checkpoint->tensors_[a].name < checkpoint->tensors_[b].name;
  });
  std::vector<CheckpointTensor> tensors;
  std::vector<WeightParts> parts;
  for (const std::size_t i : order) {
    if (!tensors.empty() && tensors.back().name == checkpoint->tensors_[i].name) {
      throw Error(ErrorCode::corrupt_file, tensors.back().name, "is stored both plain and packed");
    }
    tensors.push_back(std::move(checkpoint->tensors_[i]));
    parts.push_back(checkpoint->parts_[i]);
  }
  checkpoint->tensors_ = std::move(tensors);
  checkpoint->parts_ = std::move(parts);
  if (!weights.empty()) check_side_tensors(store, weights, claimed);
  return checkpoint;
}

void StoredCheckpoint::add_weight(const StoredWeight& weight) {
  const auto entry = [&](const TensorInfo* info) {
    return info == nullptr ? nullptr : store_.find(info->name);
  };
  WeightParts parts;
  parts.values = entry(weight.values);
  parts.scales = entry(weight.scales);
  parts.tensor_scale = entry(weight.tensor_scale);
  parts.input_scale = entry(weight.input_scale);
  parts.sense = weight.sense;
  const bool f32_scales = recipe_traits(weight.recipe).scale == Format::f32;
  parts.scale_copy = f32_scales ? copy_of_factors(parts.scales, true) : -1;
  parts.tensor_scale_copy = copy_of_factors(parts.tensor_scale, false);

  CheckpointTensor tensor;
  tensor.name = weight.name;
  tensor.shape = weight.shape;
  tensor.quantized = true;
  tensor.recipe = weight.recipe;
  tensor.dtype = weight.values->dtype;
  for (const TensorStore::Entry* part :
       {parts.values, parts.scales, parts.tensor_scale, parts.input_scale}) {
    if (part != nullptr) tensor.bytes += part->info.bytes;
  }
  tensors_.push_back(std::move(tensor));
  parts_.push_back(parts);
}

void StoredCheckpoint::add_plain(const TensorStore::Entry& entry) {
  CheckpointTensor tensor;
  tensor.name = entry.info.name;
  tensor.shape = entry.info.shape;
  tensor.dtype = entry.info.dtype;
  tensor.recipe = recipe_of(entry.info.dtype);
  tensor.bytes = entry.info.bytes;
  tensors_.push_back(std::move(tensor));
  parts_.push_back({.values = &entry});
}

/// f32 factors in their own memory where they are stored narrower or misaligned; -1 if in place.
int StoredCheckpoint::copy_of_factors(const TensorStore::Entry* entry, bool widen) {
  if (entry == nullptr) return -1;
  const std::span<const std::byte> data = store_.data(*entry);
  const DType dtype = entry->info.dtype;
  if (dtype == DType::F32 && is_aligned(data.data(), alignof(float))) return -1;
  if (dtype != DType::F32 && !widen) return -1;
  copies_.push_back(factors(*entry));
  return static_cast<int>(copies_.size()) - 1;
}

SideTensor StoredCheckpoint::side(std::size_t tensor) const {
  if (tensors_[tensor].quantized || dialect_->dialect == Dialect::plain) return {};
  const SideTensor result = side_tensor(tensors_[tensor].name);
  const bool of_activations = result.kind == Side::input || result.kind == Side::output;
  const bool has_weight =
      find(result.owner + ".weight") != nullptr || find(result.owner) != nullptr;
  return of_activations && !has_weight ? SideTensor{} : result;
}

std::vector<float> StoredCheckpoint::factors(const TensorStore::Entry& entry) const {
  const std::span<const std::byte> data = store_.data(entry);
  const DType dtype = entry.info.dtype;
  std::vector<float> result(data.size() * 8 / static_cast<std::size_t>(dtype_bits(dtype)));
  for (std::size_t i = 0; i < result.size(); ++i) result[i] = widened(data.data(), i, dtype);
  return result;
}

std::optional<ScaleProblem> StoredCheckpoint::scale_problem(std::size_t tensor) const {
  const WeightParts& parts = parts_[tensor];
  const CheckpointTensor& t = tensors_[tensor];
  const bool one_scale = t.quantized && recipe_traits(t.recipe).block_rows == 0;
  const bool is_side = has_view(t) && is_factor(side(tensor).kind);
  for (const TensorStore::Entry* entry : {parts.tensor_scale, one_scale ? parts.scales : nullptr,
                                          parts.input_scale, is_side ? parts.values : nullptr}) {
    if (entry == nullptr) continue;
    for (const float factor : factors(*entry)) {
      if (std::isfinite(factor) && factor > 0) continue;
      return ScaleProblem{entry->info.name,
                          "is " + std::to_string(factor) + ", must be finite and above 0"};
    }
  }
  return std::nullopt;
}

const CheckpointTensor* StoredCheckpoint::find(std::string_view name) const {
  const auto found =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const CheckpointTensor& t, std::string_view n) { return t.name < n; });
  return found == tensors_.end() || found->name != name ? nullptr : &*found;
}

std::size_t StoredCheckpoint::index_of(const CheckpointTensor& tensor) const {
  const CheckpointTensor* found = find(tensor.name);
  if (found == nullptr) {
    throw Error(ErrorCode::not_found, "tensor", quote(tensor.name) + " is not in the checkpoint");
  }
  return static_cast<std::size_t>(found - tensors_.data());
}

bool StoredCheckpoint::has_view(const CheckpointTensor& tensor) {
  return tensor.quantized || tensor.dtype == DType::F32 || tensor.dtype == DType::F16 ||
         tensor.dtype == DType::BF16;
}

ScaledTensorView StoredCheckpoint::unaligned_view(std::size_t tensor) const {
  const CheckpointTensor& t = tensors_[tensor];
  const WeightParts& parts = parts_[tensor];
  if (!has_view(t)) {
    throw Error(ErrorCode::unsupported, t.name,
                "holds " + std::string(dtype_name(t.dtype)) +
                    ", values can be read of f32, f16, bf16 and quantized tensors");
  }
  const MatrixShape shape = matrix_shape(t.shape);
  ScaledTensorView view;
  view.recipe = t.recipe;
  view.rows = shape.rows;
  view.k = shape.k;
  view.batch = shape.batch;
  view.values = store_.data(*parts.values).data();
  if (!t.quantized) return view;
  view.scales = parts.scale_copy >= 0 ? copies_[static_cast<std::size_t>(parts.scale_copy)].data()
                                      : static_cast<const void*>(store_.data(*parts.scales).data());
  if (parts.tensor_scale != nullptr) {
    view.tensor_scale =
        parts.tensor_scale_copy >= 0
            ? copies_[static_cast<std::size_t>(parts.tensor_scale_copy)].data()
            : reinterpret_cast<const float*>(store_.data(*parts.tensor_scale).data());
    view.sense = parts.sense;
    view.tensor_scale_batch_stride = parts.tensor_scale->info.bytes > sizeof(float) ? 1 : 0;
  }
  return view;
}

ScaledTensorView StoredCheckpoint::view(std::size_t tensor) const {
  const ScaledTensorView view = unaligned_view(tensor);
  const std::size_t size =
      static_cast<std::size_t>(format_traits(recipe_traits(view.recipe).element).bits + 7) / 8;
  if (!is_aligned(view.values, size)) {
    throw Error(ErrorCode::unsupported, tensors_[tensor].name,
                "lies at an address that is no multiple of " + std::to_string(size) +
                    " in its file; convert the checkpoint to align it");
  }
  return view;
}

void StoredCheckpoint::drop(std::size_t tensor) const {
  const WeightParts& parts = parts_[tensor];
  for (const TensorStore::Entry* part :
       {parts.values, parts.scales, parts.tensor_scale, parts.input_scale}) {
    if (part != nullptr) store_.files()[part->file].drop(part->info);
  }
}

}  // namespace models

struct Checkpoint::State {
  std::shared_ptr<const models::StoredCheckpoint> stored;
};

Checkpoint Checkpoint::open(const std::filesystem::path& file_or_folder) {
  Checkpoint checkpoint;
  checkpoint.state_ =
      std::make_shared<const State>(State{models::StoredCheckpoint::open(file_or_folder)});
  return checkpoint;
}

Dialect Checkpoint::dialect() const {
  return state_->stored->dialect().dialect;
}
const TensorStore& Checkpoint::store() const {
  return state_->stored->store();
}
const std::vector<CheckpointTensor>& Checkpoint::tensors() const {
  return state_->stored->tensors();
}
const CheckpointTensor* Checkpoint::find(std::string_view name) const {
  return state_->stored->find(name);
}
std::string Checkpoint::problem(const CheckpointTensor& tensor) const {
  const auto problem = state_->stored->scale_problem(state_->stored->index_of(tensor));
  return problem ? problem->tensor + " " + problem->message : "";
}
ScaledTensorView Checkpoint::view(const CheckpointTensor& tensor) const {
  return state_->stored->view(state_->stored->index_of(tensor));
}

}  // namespace blockscale
