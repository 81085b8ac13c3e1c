#include "models/checkpoint/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <numeric>
#include <set>

#include "models/checkpoint/codes.h"
#include "models/checkpoint/factors.h"
#include "models/checkpoint/weight_inputs.h"
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
  if (dtype_bits(dtype) == 8) return decode(Format::ue8m0, static_cast<std::uint8_t>(data[i]));
  if (dtype == DType::F32) {
    float value = 0;
    std::memcpy(&value, data + 4 * i, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, data + 2 * i, sizeof bits);
  return decode(dtype == DType::BF16 ? Format::bf16 : Format::f16, bits);
}

bool is_one_element(const TensorInfo& info) {
  return info.bytes * 8 == static_cast<std::uint64_t>(dtype_bits(info.dtype));
}

/// A stack that a quantized checkpoint holds in FP8, whose scales its dialect does not know.
void check_has_scales(const TensorInfo& info, const DialectTraits& dialect) {
  const bool fp8 = info.dtype == DType::F8_E4M3 || info.dtype == DType::F8_E5M2;
  if (!fp8 || info.shape.size() != 3) return;
  throw Error(ErrorCode::corrupt_file, info.name,
              "is a stack in " + std::string(dtype_name(info.dtype)) + " without scales, of the " +
                  "names that " + dialect.name + " gives them, in any shard");
}

/// CheckpointTensor's.
std::string form_of(const StoredWeight& weight) {
  if (weight.packed_along_rows) return "packed along rows";
  if (const IntegerForm& form = weight.integers; form.bits != 0) {
    return "int" + std::to_string(form.bits) +
           (form.group == 0 ? "" : " in groups of " + std::to_string(form.group)) +
           (form[IntegerPart::up] == nullptr ? "" : ", a product added") +
           (form.rotated_columns == 0 ? "" : ", rotated");
  }
  if (weight.channel_factors == nullptr) return "";
  const auto& [rows, columns] = weight.factor_block;
  if (rows == 0) return "factors of columns";
  return "blocks of " + std::to_string(rows) + " x " + std::to_string(columns);
}

/// Whether an input scale says that calibration never saw the inputs: absmax 0, whose divisor is
/// infinite, or 0 that nothing was written over.
bool is_unused(float scale, Recipe recipe, const WeightParts& parts) {
  const bool divisor =
      recipe == Recipe::nvfp4 &&
      (parts.input_kind == InputScale::divisor ||
       (parts.input_kind == InputScale::factor && parts.sense == TensorScaleSense::divisor));
  return scale == 0 || (divisor && std::isinf(scale) && scale > 0);
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
  TensorStore store = TensorStore::open(file_or_folder);
  SourceConfig config = read_source_config(store.folder());
  return of(std::move(store), std::move(config));
}

std::shared_ptr<const StoredCheckpoint> StoredCheckpoint::of(TensorStore opened,
                                                             SourceConfig config) {
  auto checkpoint = std::make_shared<StoredCheckpoint>();
  checkpoint->store_ = std::move(opened);
  checkpoint->config_ = std::move(config);
  const TensorStore& store = checkpoint->store_;
  checkpoint->dialect_ = &detect_dialect(store, checkpoint->config_);

  const std::vector<StoredWeight> weights = checkpoint->dialect_->read(store, checkpoint->config_);
  std::set<std::string_view> claimed;
  for (const StoredWeight& weight : weights) {
    for (const TensorInfo* info : weight.tensors()) {
      if (!claimed.insert(info->name).second) {
        throw Error(ErrorCode::corrupt_file, info->name, "is claimed by two weights");
      }
    }
    checkpoint->add_weight(weight);
  }
  for (const auto& [name, entry] : store.tensors()) {
    if (claimed.contains(name)) continue;
    if (checkpoint->dialect_->dialect != Dialect::plain) {
      check_has_scales(entry.info, *checkpoint->dialect_);
    }
    checkpoint->add_plain(entry);
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
  parts.alpha = entry(weight.alpha);
  parts.channel_factors = entry(weight.channel_factors);
  parts.sense = weight.sense;
  parts.input_kind = weight.input_kind;
  parts.scale_layout = weight.scale_layout;
  parts.tensor_scale_is_alpha = weight.tensor_scale_is_alpha;
  parts.high_nibble_first = weight.high_nibble_first;
  parts.factor_block = weight.factor_block;
  parts.packed_along_rows = weight.packed_along_rows;
  parts.integers = weight.integers;
  std::ranges::transform(weight.integers.parts, parts.integer_parts.begin(), entry);
  const bool f32_scales = recipe_traits(weight.recipe).scale == Format::f32;
  parts.scale_copy = f32_scales ? copy_of_factors(parts.scales, true) : -1;
  const std::int64_t stack = matrix_shape(weight.shape).batch;
  if (parts.scales == nullptr) {
    parts.scale_copy = add_copy(std::vector<float>(static_cast<std::size_t>(stack), 1.0f));
  } else if (stack > 1 && is_one_element(*weight.scales)) {  // for all matrices of the stack
    const float scale = factors(*parts.scales)[0];
    parts.scale_copy = add_copy(std::vector<float>(static_cast<std::size_t>(stack), scale));
  }
  if (weight.matrices_per_scale > 1) {
    std::vector<float> each;
    for (const float scale : factors(*parts.scales)) {
      each.insert(each.end(), static_cast<std::size_t>(weight.matrices_per_scale), scale);
    }
    parts.scale_copy = add_copy(std::move(each));
  }
  parts.tensor_scale_copy = copy_of_factors(parts.tensor_scale, false);
  if (weight.tensor_scale_is_alpha) {
    parts.tensor_scale_copy =
        add_copy({factors(*parts.tensor_scale)[0] * factors(*parts.input_scale)[0]});
  } else if (weight.no_tensor_scale) {
    parts.tensor_scale_copy = add_copy({1.0f});
  }
  if (parts.channel_factors != nullptr) {
    parts.channel_copy = add_copy(factors(*parts.channel_factors));
  }

  CheckpointTensor tensor;
  tensor.name = weight.name;
  tensor.shape = weight.shape;
  tensor.quantized = true;
  tensor.recipe = weight.recipe;
  tensor.dtype = weight.values->dtype;
  tensor.column_factors = weight.channel_factors != nullptr && weight.factor_block == BlockSize{};
  tensor.form = form_of(weight);
  tensor.scale_layout = weight.scale_layout;
  for (const TensorStore::Entry* part : parts.stored()) tensor.bytes += part->info.bytes;
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
  return add_copy(factors(*entry));
}

int StoredCheckpoint::add_copy(std::vector<float> values) {
  copies_.push_back(std::move(values));
  return static_cast<int>(copies_.size()) - 1;
}

std::vector<const TensorStore::Entry*> WeightParts::stored() const {
  std::vector<const TensorStore::Entry*> result;
  for (const TensorStore::Entry* part :
       {values, scales, tensor_scale, input_scale, alpha, channel_factors}) {
    if (part != nullptr) result.push_back(part);
  }
  for (const TensorStore::Entry* part : integer_parts) {
    if (part != nullptr) result.push_back(part);
  }
  return result;
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
  const auto problem = [](std::span<const float> factors,
                          const TensorStore::Entry* entry) -> std::optional<ScaleProblem> {
    for (const float factor : factors) {
      if (std::isfinite(factor) && factor > 0) continue;
      return ScaleProblem{entry->info.name,
                          "is " + std::to_string(factor) + ", must be finite and above 0"};
    }
    return std::nullopt;
  };
  if (parts.tensor_scale != nullptr) {
    if (const auto found = problem(tensor_scales(tensor), parts.tensor_scale)) return found;
  }
  const bool one_scale = t.quantized && recipe_traits(t.recipe).block_rows == 0;
  const Side kind = side(tensor).kind;
  const bool is_side = has_view(t) && is_factor(kind);
  for (const TensorStore::Entry* entry :
       {one_scale ? parts.scales : nullptr, parts.input_scale, is_side ? parts.values : nullptr}) {
    if (entry == nullptr) continue;
    std::vector<float> scales = factors(*entry);
    if (entry == parts.input_scale || kind == Side::input || kind == Side::output) {
      std::erase_if(scales, [&](float scale) { return is_unused(scale, t.recipe, parts); });
    }
    if (const auto found = problem(scales, entry)) return found;
  }
  return std::nullopt;
}

bool StoredCheckpoint::has_unused_inputs(std::size_t tensor) const {
  const WeightParts& parts = parts_[tensor];
  if (parts.input_scale == nullptr) return false;
  return std::ranges::any_of(factors(*parts.input_scale), [&](float scale) {
    return is_unused(scale, tensors_[tensor].recipe, parts);
  });
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

bool StoredCheckpoint::has_values(const CheckpointTensor& tensor) {
  return has_view(tensor) || is_narrow_float(tensor.dtype);
}

ScaledTensorView StoredCheckpoint::unaligned_view(std::size_t tensor) const {
  ScaledTensorView view = stored_view(tensor);
  if (view.layout != ScaleLayout::row_major) {
    view.scales = row_major_scales(tensor);
    view.layout = ScaleLayout::row_major;
  }
  return view;
}

/// With scales as they are stored.
ScaledTensorView StoredCheckpoint::stored_view(std::size_t tensor) const {
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
  view.layout = parts.scale_layout;
  if (const std::span<const float> factors = tensor_scales(tensor); !factors.empty()) {
    view.tensor_scale = factors.data();
    view.sense = parts.sense;
    view.tensor_scale_batch_stride = factors.size() > 1 ? 1 : 0;
  }
  return view;
}

std::span<const float> StoredCheckpoint::tensor_scales(std::size_t tensor) const {
  const WeightParts& parts = parts_[tensor];
  if (parts.tensor_scale_copy >= 0) {
    return copies_[static_cast<std::size_t>(parts.tensor_scale_copy)];
  }
  if (parts.tensor_scale == nullptr) return {};
  const std::span<const std::byte> data = store_.data(*parts.tensor_scale);
  return {reinterpret_cast<const float*>(data.data()), data.size() / sizeof(float)};
}

/// Scales of one byte that are stored in another layout, made when they are first asked for.
const std::byte* StoredCheckpoint::row_major_scales(std::size_t tensor) const {
  const std::lock_guard lock(row_major_mutex_);
  const auto [found, added] = row_major_scales_.try_emplace(tensor);
  std::vector<std::byte>& copy = found->second;
  if (!added) return copy.data();
  const WeightParts& parts = parts_[tensor];
  const MatrixShape shape = matrix_shape(tensors_[tensor].shape);
  const ScaleGrid grid = scale_grid(tensors_[tensor].recipe, shape.rows, shape.k);
  const std::int64_t leading = default_leading_stride(parts.scale_layout, grid.rows, grid.columns);
  const std::int64_t matrix = scale_count(parts.scale_layout, grid.rows, grid.columns, leading);
  const std::byte* stored = store_.data(*parts.scales).data();
  copy.reserve(static_cast<std::size_t>(shape.batch * grid.rows * grid.columns));
  for (std::int64_t b = 0; b < shape.batch; ++b, stored += matrix) {
    for (std::int64_t i = 0; i < grid.rows; ++i) {
      for (std::int64_t j = 0; j < grid.columns; ++j) {
        copy.push_back(stored[scale_offset(parts.scale_layout, i, j, leading)]);
      }
    }
  }
  return copy.data();
}

/// The codes of a tensor that has them the other way round, made when a view is first asked for.
const std::byte* StoredCheckpoint::low_nibble_first(std::size_t tensor) const {
  const std::lock_guard lock(row_major_mutex_);
  const auto [found, added] = low_nibble_first_.try_emplace(tensor);
  if (added) {
    const std::span<const std::byte> codes = store_.data(*parts_[tensor].values);
    found->second.resize(codes.size());
    swap_nibbles(codes, found->second.data());
  }
  return found->second.data();
}

std::span<const float> StoredCheckpoint::channel_factors(std::size_t tensor,
                                                         std::int64_t batch) const {
  const int copy = parts_[tensor].channel_copy;
  if (copy < 0) return {};
  const std::span<const float> all = copies_[static_cast<std::size_t>(copy)];
  const MatrixShape shape = matrix_shape(tensors_[tensor].shape);
  const auto& [rows, columns] = parts_[tensor].factor_block;
  const auto count = static_cast<std::size_t>((rows == 0 ? 1 : ceil_div(shape.rows, rows)) *
                                              ceil_div(shape.k, columns));
  return all.subspan(all.size() == count ? 0 : static_cast<std::size_t>(batch) * count, count);
}

std::vector<float> StoredCheckpoint::input_factors(std::size_t tensor,
                                                   TensorScaleSense sense) const {
  const WeightParts& parts = parts_[tensor];
  std::vector<float> result = factors(*parts.input_scale);
  const Recipe recipe = tensors_[tensor].recipe;
  for (float& factor : result) {
    if (is_unused(factor, recipe, parts)) {
      factor = 1.0f;
      continue;
    }
    if (recipe != Recipe::nvfp4) continue;  // of FP8 a multiplier everywhere
    factor = parts.input_kind == InputScale::absmax
                 ? nvfp4_factor(factor, sense)
                 : in_sense(factor,
                            parts.input_kind == InputScale::divisor ? TensorScaleSense::divisor
                                                                    : parts.sense,
                            sense, parts.input_scale->info.name);
  }
  return result;
}

ScaledTensorView StoredCheckpoint::view(std::size_t tensor) const {
  if (tensors_[tensor].column_factors) {
    throw Error(ErrorCode::unsupported, tensors_[tensor].name,
                "has factors of its columns, " + quote(parts_[tensor].channel_factors->info.name) +
                    ", which a view cannot say; a conversion applies them");
  }
  if (!tensors_[tensor].form.empty()) {
    throw Error(ErrorCode::unsupported, tensors_[tensor].name,
                "is stored as " + tensors_[tensor].form +
                    ", which a view cannot say; a conversion reads its values");
  }
  ScaledTensorView view = stored_view(tensor);
  if (parts_[tensor].high_nibble_first) view.values = low_nibble_first(tensor);
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
  for (const TensorStore::Entry* part : parts_[tensor].stored()) {
    store_.files()[part->file].drop(part->info);
  }
  const std::lock_guard lock(row_major_mutex_);
  row_major_scales_.erase(tensor);
}

}  // namespace models

struct Checkpoint::State {
  std::shared_ptr<const models::StoredCheckpoint> stored;
  mutable std::once_flag once = {};
  mutable std::unique_ptr<const models::SourceInputs> said = {};  // when it is first asked for
};

Checkpoint Checkpoint::open(const std::filesystem::path& file_or_folder) {
  Checkpoint checkpoint;
  auto state = std::make_shared<State>();
  state->stored = models::StoredCheckpoint::open(file_or_folder);
  checkpoint.state_ = std::move(state);
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
WeightInputs Checkpoint::inputs(const CheckpointTensor& tensor) const {
  const models::StoredCheckpoint& stored = *state_->stored;
  std::call_once(state_->once,
                 [&] { state_->said = std::make_unique<const models::SourceInputs>(stored); });
  return models::inputs_of(stored, *state_->said, stored.index_of(tensor));
}
ScaledTensorView Checkpoint::view(const CheckpointTensor& tensor) const {
  return state_->stored->view(state_->stored->index_of(tensor));
}

}  // namespace blockscale
