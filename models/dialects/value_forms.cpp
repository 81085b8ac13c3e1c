// Weights in forms that no recipe has, which are read by their values.
#include <charconv>
#include <string_view>

#include "models/dialects/match.h"

namespace blockscale::models {
namespace {

using Shape = std::vector<std::int64_t>;

/// FP8 in blocks of other sizes than the recipes'.
std::optional<StoredWeight> match_blocks(const FoundWeight& found) {
  const Shape& shape = found.values->shape;
  const DType dtype = found.scales->dtype;
  if (found.values->dtype != DType::F8_E4M3 || found.values->bytes == 0 || shape.size() < 2 ||
      shape.size() > 3) {
    return std::nullopt;
  }
  if (!is_scale_dtype(Format::f32, dtype) && !is_scale_dtype(Format::ue8m0, dtype)) {
    return std::nullopt;
  }
  std::string wanted;
  for (const BlockSize& block : found.odd_blocks) {
    Shape grid = shape;
    grid[grid.size() - 2] = ceil_div(grid[grid.size() - 2], block.rows);
    grid.back() = ceil_div(grid.back(), block.columns);
    if (found.scales->shape != grid) {
      wanted += (wanted.empty() ? "" : " or ") + shape_text(grid) + " for blocks of " +
                std::to_string(block.rows) + " x " + std::to_string(block.columns);
      continue;
    }
    StoredWeight weight;
    static_cast<FoundWeight&>(weight) = found;
    weight.recipe = Recipe::fp8_tensor;
    weight.shape = shape;
    weight.channel_factors = found.scales;
    weight.factor_block = block;
    weight.scales = nullptr;
    return weight;
  }
  throw Error(ErrorCode::corrupt_file, found.name,
              "its scales " + found.scales->name + " have shape " +
                  shape_text(found.scales->shape) + ", must be " + wanted + " of " +
                  shape_text(shape));
}

/// A stack whose codes and scales lie along the second-last dimension.
bool match_packed_along_rows(const FoundWeight& found, Recipe recipe, StoredWeight& weight) {
  const RecipeTraits& t = recipe_traits(recipe);
  const int bits = format_traits(t.element).bits;
  const Shape& shape = found.values->shape;
  const bool blocks_of_a_row = t.block_rows == 1 && t.block_k > 0 && t.scale != Format::f32;
  if (!blocks_of_a_row || (bits != 4 && bits != 8) || shape.size() != 3 ||
      found.values->bytes == 0 || found.scale_layout != ScaleLayout::row_major ||
      found.channel_factors != nullptr || found.values->dtype == DType::F4 ||
      !is_value_dtype(t.element, found.values->dtype, found.byte_values) ||
      !is_scale_dtype(t.scale, found.scales->dtype)) {
    return false;
  }
  const std::int64_t inputs = shape[1] * (8 / bits);
  if (inputs % t.block_k != 0 ||
      found.scales->shape != Shape{shape[0], inputs / t.block_k, shape[2]}) {
    return false;
  }
  static_cast<FoundWeight&>(weight) = found;
  weight.recipe = recipe;
  weight.shape = {shape[0], inputs, shape[2]};
  weight.packed_along_rows = true;
  return match_factors(found, recipe, weight.shape).empty();
}

/// An FP8 stack [E, in, out] with a scale an output, [E, 1, out].
bool match_column_scales(const FoundWeight& found, StoredWeight& weight) {
  const Shape& shape = found.values->shape;
  if (shape.size() != 3 || found.values->dtype != DType::F8_E4M3 || found.values->bytes == 0 ||
      found.channel_factors != nullptr || !is_scale_dtype(Format::f32, found.scales->dtype) ||
      found.scales->shape != Shape{shape[0], 1, shape[2]}) {
    return false;
  }
  static_cast<FoundWeight&>(weight) = found;
  weight.recipe = Recipe::fp8_tensor;
  weight.shape = shape;
  weight.channel_factors = found.scales;
  weight.scales = nullptr;
  return match_factors(found, Recipe::fp8_tensor, shape).empty();
}

}  // namespace

std::optional<BlockSize> block_size(const Json& words) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  Json sides = words;
  if (words.is_string()) {  // compressed-tensors' elders
    const auto& text = words.get_ref<const std::string&>();
    const std::size_t x = text.find('x');
    const auto number = [](std::string_view digits) {
      std::int64_t value = 0;
      const auto [end, error] =
          std::from_chars(digits.data(), digits.data() + digits.size(), value);
      return error == std::errc() && end == digits.data() + digits.size() ? value : 0;
    };
    if (x == std::string::npos) return std::nullopt;
    sides = {number(std::string_view(text).substr(0, x)),
             number(std::string_view(text).substr(x + 1))};
  }
  if (!sides.is_array() || sides.size() != 2) return std::nullopt;
  for (const Json& side : sides) {
    if (!side.is_number_integer() || side < 1 || side > kMost) return std::nullopt;
  }
  return BlockSize{sides[0].get<std::int64_t>(), sides[1].get<std::int64_t>()};
}

std::optional<StoredWeight> match_value_form(const FoundWeight& found,
                                             std::span<const Recipe> candidates) {
  if (found.values == nullptr || found.scales == nullptr) return std::nullopt;
  if (!found.odd_blocks.empty()) {
    if (auto weight = match_blocks(found)) return weight;
  }
  StoredWeight weight;
  for (const Recipe recipe : candidates) {
    if (match_packed_along_rows(found, recipe, weight)) return weight;
    if (recipe == Recipe::fp8_row && match_column_scales(found, weight)) return weight;
  }
  return std::nullopt;
}

}  // namespace blockscale::models
