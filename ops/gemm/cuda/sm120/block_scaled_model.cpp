#include "ops/gemm/cuda/sm120/block_scaled_model.h"

#include <algorithm>

#include "core/format.h"
#include "core/recipe.h"

namespace blockscale::gemm_detail {
namespace {

/// An RTX 5090 has 170 multiprocessors of some 2.4 GHz, 1,676 TFLOP/s of FP4, 838 of MXFP8 (and of
/// FP8 with unit scales) and half of that of elements of 4 and 6 bits that lie in bytes each, as
/// far as is public. Others of the family have such multiprocessors, too.
constexpr double kHertz = 2.4e9;
double multiply_adds_per_second(const BlockScaledConfig& c) {
  constexpr double kOfFp4 = 1676e12 / 2 / 170, kOfBytes = 838e12 / 2 / 170;
  const auto bits = [](Recipe recipe) { return format_traits(recipe_traits(recipe).element).bits; };
  if (bits(c.a) == 4) return kOfFp4;
  return bits(c.b) == 8 ? kOfBytes : kOfBytes / 2;
}

/// GDDR7's of RTX cards; LPDDR5X's of GB10.
double bytes_per_second(const cuda::Chip& chip) {
  return chip.architecture == 121 ? 273e9 : 1.79e12;
}

double bytes_of(const BlockScaledSize& size) {
  const auto bits = [](Recipe recipe) {
    const RecipeTraits& t = recipe_traits(recipe);
    const double of_element = format_traits(t.element).bits;
    const int block = t.block_rows * t.block_k;  // 0: scales are few
    return of_element +
           (block == 0 ? 0.0 : static_cast<double>(format_traits(t.scale).bits) / block);
  };
  const auto rows = static_cast<double>(size.rows), columns = static_cast<double>(size.columns);
  const double operands = rows * bits(size.config.a) + columns * bits(size.config.b);
  const double of_result = 2 * rows * columns;  // 16 bits
  return static_cast<double>(size.matrices) *
         (operands / 8 * static_cast<double>(size.k) + of_result);
}

}  // namespace

double expected_seconds(const BlockScaledSize& size, int tile_rows, const cuda::Chip& chip) {
  // A tile fills its stages, and stores D: as on Hopper (sm90/fp4_tiles_plan.cpp).
  const double of_end = (1000 + 12.0 * tile_rows) / kHertz;
  const std::int64_t tiles = ceil_div(size.rows, std::int64_t{tile_rows}) *
                             ceil_div(size.columns, std::int64_t{block_scaled::kColumns}) *
                             size.matrices;
  const auto turns =
      static_cast<double>(ceil_div(tiles, static_cast<std::int64_t>(chip.multiprocessors)));
  // A stage's operands come from L2 at 32 bytes a cycle, which is no public figure but taken, and
  // each warp reads its own from shared memory at 128.
  BlockScaledConfig config = size.config;
  config.rows = tile_rows;
  const double columns = block_scaled::kColumns, row_bytes = stage_row_bytes(config);
  const double multiplied =
      tile_rows * columns * block_scaled::kStageK / multiply_adds_per_second(config);
  const double warps = block_scaled::kMathWarps,
               warp_rows_read = warp_rows(config) + warp_columns(config);
  const double read = warps * warp_rows_read * row_bytes / 128 / kHertz;
  const double copied = (tile_rows + columns) * row_bytes / 32 / kHertz;
  const auto stages = static_cast<double>(ceil_div(size.k, std::int64_t{block_scaled::kStageK}));
  const double multiplying = turns * (stages * std::max({multiplied, read, copied}) + of_end);
  return std::max(multiplying, bytes_of(size) / bytes_per_second(chip) + of_end);
}

int best_block_scaled_rows(const BlockScaledSize& size, const cuda::Chip& chip) {
  return *std::ranges::min_element(kBlockScaledRows, {},
                                   [&](int rows) { return expected_seconds(size, rows, chip); });
}

}  // namespace blockscale::gemm_detail
