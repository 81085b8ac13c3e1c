// What the fuzzers of dialects share: small stores, and what holds of every weight that is
// accepted.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "models/checkpoint/checkpoint.h"
#include "models/fuzzing.h"

namespace blockscale::fuzz {

/// A store of these tensors, all zero. Its file is gone; the mapping stays.
inline TensorStore make_store(const std::vector<TensorInfo>& tensors,
                              const std::map<std::string, std::string>& metadata = {}) {
  std::string folder = std::filesystem::temp_directory_path() / "blockscale-XXXXXX";
  require(::mkdtemp(folder.data()) != nullptr, "mkdtemp works");
  const std::filesystem::path path = std::filesystem::path(folder) / "model.safetensors";
  SafetensorsWriter writer(path, tensors, metadata);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<std::byte> zeros(tensor_bytes(tensors[i].dtype, tensors[i].shape));
    writer.write(i, 0, zeros);
  }
  writer.publish();
  TensorStore store = TensorStore::open(path);
  std::filesystem::remove_all(folder);
  return store;
}

/// Tensors of whole numbers have as many elements as their formula reads.
inline void check_integer_parts(const models::IntegerForm& form, const models::MatrixShape& shape) {
  using models::IntegerPart;
  require(form.group > 0 && shape.k % form.group == 0, "groups are whole");
  const TensorInfo* const down = form[IntegerPart::down];
  require((down == nullptr) == (form[IntegerPart::up] == nullptr), "a product has two sides");
  const std::int64_t grid = shape.rows * (shape.k / form.group);
  const std::int64_t rank = down == nullptr ? 0 : down->shape.at(1);
  const std::pair<IntegerPart, std::int64_t> counts[] = {
      {IntegerPart::group_scales, grid},   {IntegerPart::levels, 1 << form.bits},
      {IntegerPart::offsets, grid},        {IntegerPart::divisors, shape.k},
      {IntegerPart::down, shape.k * rank}, {IntegerPart::up, shape.rows * rank},
  };
  for (const auto& [part, count] : counts) {
    const TensorInfo* const info = form[part];
    if (info == nullptr) continue;
    const std::uint64_t bits = static_cast<std::uint64_t>(dtype_bits(info->dtype));
    require(info->bytes * 8 / bits == static_cast<std::uint64_t>(count), "parts are filled");
  }
}

/// A weight that was accepted has the bytes that its recipe says, so that no view leaves the file.
inline void check_weight(const models::StoredWeight& weight) {
  const models::MatrixShape shape = models::matrix_shape(weight.shape);
  require(weight.values != nullptr, "values are there");
  const models::IntegerForm& integers = weight.integers;
  const TensorInfo* const of_groups = integers[models::IntegerPart::group_scales];
  require(weight.scales != nullptr || weight.channel_factors != nullptr || of_groups != nullptr,
          "scales are there");
  const RecipeTraits& t = recipe_traits(weight.recipe);
  const std::int64_t elements = shape.batch * shape.rows * shape.k;
  const std::int64_t values =
      weight.packed_along_rows ? elements * format_traits(t.element).bits / 8
      : integers.bits != 0     ? elements * integers.bits / 8
                               : shape.batch * value_bytes(weight.recipe, shape.rows, shape.k);
  require(weight.values->bytes == static_cast<std::uint64_t>(values), "values fill their tensor");
  if (integers.rotated_columns != 0) {
    require(integers.bits != 0 && shape.k % integers.rotated_columns == 0,
            "whole groups are rotated");
  }
  if (of_groups != nullptr) {
    check_integer_parts(integers, shape);
    if (weight.channel_factors == nullptr) return;
  }
  if (weight.scales == nullptr) {
    const auto& [rows, columns] = weight.factor_block;
    const std::int64_t grid =
        (rows == 0 ? 1 : ceil_div(shape.rows, rows)) * ceil_div(shape.k, columns);
    const std::uint64_t bits =
        static_cast<std::uint64_t>(dtype_bits(weight.channel_factors->dtype));
    const std::uint64_t factors = weight.channel_factors->bytes * 8 / bits;
    require(factors == static_cast<std::uint64_t>(grid) ||
                factors == static_cast<std::uint64_t>(shape.batch * grid),
            "every block has a factor");
    return;
  }
  const std::int64_t scales =
      weight.packed_along_rows
          ? elements / t.block_k
          : shape.batch * scale_bytes(weight.recipe, weight.scale_layout, shape.rows, shape.k);
  const bool narrow = weight.scales->dtype == DType::BF16 || weight.scales->dtype == DType::F16;
  require(weight.scales->bytes * static_cast<std::uint64_t>(weight.matrices_per_scale) ==
              static_cast<std::uint64_t>(narrow ? scales / 2 : scales),
          "scales fill their tensor");
  require((weight.tensor_scale != nullptr || weight.no_tensor_scale) ==
              recipe_traits(weight.recipe).tensor_scale,
          "a tensor scale where the recipe has one");
}

}  // namespace blockscale::fuzz
