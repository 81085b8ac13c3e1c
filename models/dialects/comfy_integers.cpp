#include "models/dialects/comfy_integers.h"

#include <algorithm>
#include <tuple>

#include "models/checkpoint/rotation.h"
#include "models/dialects/config_keys.h"
#include "models/dialects/match.h"
#include "models/json_file.h"
#include "models/text.h"

namespace blockscale::models {
namespace {

using Shape = std::vector<std::int64_t>;

[[noreturn]] void refuse(const TensorInfo& info, const ComfySource& source,
                         const std::string& wanted, ErrorCode code = ErrorCode::corrupt_file) {
  throw Error(code, info.name,
              "is " + std::string(dtype_name(info.dtype)) + " of shape " + shape_text(info.shape) +
                  ", must be " + wanted + " for " + source.format);
}

/// The codes' tensor: I8 [N, bytes of a row]. comfy-kitchen also has stacks, and tiles for a GPU.
const TensorInfo& codes_of(const ComfySource& source) {
  const TensorInfo& codes = *source.found.values;
  if (codes.dtype != DType::I8 || codes.shape.size() != 2 || codes.bytes == 0) {
    const bool more = codes.dtype == DType::I8 && codes.shape.size() > 2;
    refuse(codes, source, "I8 of two dimensions",
           more ? ErrorCode::unsupported : ErrorCode::corrupt_file);
  }
  return codes;
}

/// The tensor of the weight that is called so, or null.
const TensorInfo* part(const ComfySource& source, const char* suffix) {
  return find_info(source.store, source.found.name + suffix);
}

const TensorInfo& require_part(const ComfySource& source, const char* suffix) {
  const TensorInfo* found = part(source, suffix);
  if (found != nullptr) return *found;
  throw Error(
      ErrorCode::corrupt_file, source.found.name,
      "has no " + quote(source.found.name + suffix, 200) + ", which " + source.format + " needs");
}

void require_floats(const TensorInfo& info, const Shape& shape, const ComfySource& source) {
  if (is_scale_dtype(Format::f32, info.dtype) && info.shape == shape) return;
  refuse(info, source, "floats of shape " + shape_text(shape));
}

const TensorInfo* floats(const ComfySource& source, const char* suffix, const Shape& shape) {
  const TensorInfo& info = require_part(source, suffix);
  require_floats(info, shape, source);
  return &info;
}

/// A size in what is said of the layer; 0 if it is none that can be.
std::int64_t size_said(const ComfySource& source, const char* key, std::int64_t preset) {
  const Json& value = member(source.said.json, key);
  if (value.is_null()) return preset;
  return value.is_number_integer() ? std::max<std::int64_t>(value.get<std::int64_t>(), 0) : 0;
}

[[noreturn]] void refuse_size(const ComfySource& source, const char* key, std::int64_t preset,
                              const std::string& readable) {
  const Json& value = member(source.said.json, key);
  throw Error(ErrorCode::unsupported, source.said.said_by,
              said_of(source.layer) + " has " + key + " " +
                  (value.is_null() ? std::to_string(preset) : show_json(value)) +
                  ", readable are " + readable);
}

/// Of K columns so many are rotated together.
std::int64_t rotated_columns(const ComfySource& source, std::int64_t k) {
  constexpr std::int64_t kPreset = 256;
  const std::int64_t size = size_said(source, "convrot_groupsize", kPreset);
  if (is_rotation_size(size) && k % size == 0) return size;
  refuse_size(source, "convrot_groupsize", kPreset, "powers of 4 that divide " + std::to_string(k));
}

/// A weight of `found` with these columns and no factors yet.
StoredWeight start(const ComfySource& source, std::int64_t k, int bits) {
  StoredWeight weight;
  static_cast<FoundWeight&>(weight) = source.found;
  weight.recipe = Recipe::fp8_tensor;
  weight.shape = {source.found.values->shape[0], k};
  weight.integers.bits = bits;
  weight.scales = nullptr;
  weight.input_scale = nullptr;  // inputs are quantized as they come, or not at all
  return weight;
}

void set_row_factors(StoredWeight& weight, const TensorInfo* factors, bool one) {
  weight.channel_factors = factors;
  weight.factor_block = {one ? weight.shape[0] : 1, weight.shape[1]};
}

/// Columns that share a number, of `k`; such as `fits`.
template <class Fits>
void set_groups(StoredWeight& weight, const ComfySource& source, std::int64_t preset,
                const std::string& readable, const Fits& fits) {
  weight.integers.group = size_said(source, "group_size", preset);
  const std::int64_t group = weight.integers.group, k = weight.shape[1];
  if (group > 0 && k % group == 0 && fits(group)) return;
  refuse_size(source, "group_size", preset,
              "those of " + readable + " that divide " + std::to_string(k));
}

}  // namespace

std::string said_of(const std::string& layer) {
  return "what is said of layer " + quote(layer, 200);
}

StoredWeight match_int8(const ComfySource& source) {
  const TensorInfo& codes = codes_of(source);
  const TensorInfo& scales = require_part(source, "_scale");
  const bool one = std::ranges::all_of(scales.shape, [](std::int64_t n) { return n == 1; });
  const Shape each_row = {codes.shape[0], 1};
  if (!is_scale_dtype(Format::f32, scales.dtype) || (!one && scales.shape != each_row)) {
    refuse(scales, source, "floats of shape [] or " + shape_text(each_row));
  }
  StoredWeight weight = start(source, codes.shape[1], 8);
  set_row_factors(weight, &scales, one);
  if (member(source.said.json, "convrot") == true) {
    weight.integers.rotated_columns = rotated_columns(source, codes.shape[1]);
  }
  return weight;
}

StoredWeight match_convrot_w4a4(const ComfySource& source) {
  const TensorInfo& codes = codes_of(source);
  StoredWeight weight = start(source, 2 * codes.shape[1], 4);
  set_row_factors(weight, floats(source, "_scale", {codes.shape[0]}), false);
  weight.integers.rotated_columns = rotated_columns(source, weight.shape[1]);
  return weight;
}

StoredWeight match_asym_w4a8(const ComfySource& source) {
  constexpr std::int64_t kGroup = 16;
  const TensorInfo& codes = codes_of(source);
  const TensorInfo& scales = require_part(source, "_s_rel");
  const std::int64_t rows = codes.shape[0], row = codes.shape[1];
  // A row of as many bytes has two widths; the grid of scales tells them apart.
  const std::int64_t group = size_said(source, "group_size", kGroup);
  const std::int64_t groups = scales.shape.size() == 2 ? scales.shape[1] : 0;
  const bool wide = row % 3 == 0 && group > 0 && groups > 0 && row / 3 * 4 % group == 0 &&
                    row / 3 * 4 / group == groups;
  StoredWeight weight = start(source, wide ? row / 3 * 4 : 2 * row, wide ? 6 : 4);
  IntegerForm& integers = weight.integers;
  set_groups(weight, source, kGroup, "4, 8 and multiples of 16",
             [](std::int64_t g) { return g == 4 || g == 8 || g % 16 == 0; });
  const std::int64_t k = weight.shape[1];
  const Shape grid = {rows, k / integers.group};
  const bool e4m3 = scales.dtype == DType::F8_E4M3 || scales.dtype == DType::U8;
  if (scales.shape != grid || (!e4m3 && !is_scale_dtype(Format::f32, scales.dtype))) {
    refuse(scales, source, "F8_E4M3 or floats of shape " + shape_text(grid));
  }
  integers.biased = true;
  integers.whole = true;
  integers.rotated_columns = rotated_columns(source, k);
  integers.set(IntegerPart::group_scales, &scales);
  set_row_factors(weight, floats(source, "_s_channel", {rows}), false);
  for (const auto& [suffix, kind, shape] :
       {std::tuple{"_codebook", IntegerPart::levels, Shape{16}},
        std::tuple{"_correction", IntegerPart::offsets, Shape{grid[1], rows}}}) {
    const TensorInfo* found = part(source, suffix);
    if (found == nullptr) continue;
    if (wide) refuse(*found, source, "absent where codes have 6 bits,");
    require_floats(*found, shape, source);
    integers.set(kind, found);
  }
  return weight;
}

StoredWeight match_awq_w4a16(const ComfySource& source) {
  const TensorInfo& codes = codes_of(source);
  StoredWeight weight = start(source, 2 * codes.shape[1], 4);
  IntegerForm& integers = weight.integers;
  set_groups(weight, source, 64, "whole numbers", [](std::int64_t) { return true; });
  const Shape grid = {weight.shape[1] / integers.group, codes.shape[0]};
  integers.biased = true;
  integers.groups_first = true;
  integers.set(IntegerPart::group_scales, floats(source, "_scale", grid));
  integers.set(IntegerPart::offsets, floats(source, "_zeros", grid));
  return weight;
}

StoredWeight match_svdquant_w4a4(const ComfySource& source) {
  const TensorInfo& codes = codes_of(source);
  StoredWeight weight = start(source, 2 * codes.shape[1], 4);
  IntegerForm& integers = weight.integers;
  set_groups(weight, source, 64, "64", [](std::int64_t group) { return group == 64; });
  const std::int64_t rows = codes.shape[0], k = weight.shape[1];
  integers.groups_first = true;
  integers.set(IntegerPart::group_scales, floats(source, "_scale", {k / 64, rows}));
  integers.set(IntegerPart::divisors, floats(source, "_smooth_factor", {k}));
  const TensorInfo& down = require_part(source, "_proj_down");
  const std::int64_t rank = down.shape.size() == 2 ? down.shape[1] : 0;
  require_floats(down, {k, rank}, source);
  integers.set(IntegerPart::down, &down);
  integers.set(IntegerPart::up, floats(source, "_proj_up", {rows, rank}));
  return weight;
}

}  // namespace blockscale::models
