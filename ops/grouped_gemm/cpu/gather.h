// Rows of A that an index names, side by side, as an operand of their own.
#pragma once

#include <cstdint>

#include "blockscale/grouped_gemm.h"
#include "ops/gemm/cpu/memory.h"
#include "ops/grouped_gemm/cpu/waves.h"

namespace blockscale::grouped_gemm_detail {

/// The recipe of rows of `recipe` that come from anywhere: each has scales of its own, unless all
/// rows share one.
Recipe recipe_of_gathered(Recipe recipe);

/// Memory of gathered rows, kept from wave to wave.
class GatheredRows {
 public:
  /// Room for `most_rows` rows of A of validated arguments with an index.
  GatheredRows(const GroupedGemmArguments& x, std::int64_t most_rows);

  /// Copies the rows of a wave, zeros where the index names no row. The view lasts until the next.
  ScaledTensorView gather(const GroupedGemmArguments& x, const RowWave& wave, int threads);

 private:
  void copy_row(const GroupedGemmArguments& x, std::int64_t source, std::int64_t to);

  ScaledTensorView view_;
  gemm_detail::Array<std::uint8_t> values_;
  gemm_detail::Array<std::uint8_t> scales_;
};

}  // namespace blockscale::grouped_gemm_detail
