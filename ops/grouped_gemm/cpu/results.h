// From a wave's rows of D in f32 to what the caller asked for: rows elsewhere, times weights,
// transformed or quantized.
#pragma once

#include <cstdint>
#include <vector>

#include "blockscale/grouped_gemm.h"
#include "ops/gemm/cpu/memory.h"
#include "ops/gemm/cpu/transform.h"
#include "ops/grouped_gemm/cpu/waves.h"

namespace blockscale::grouped_gemm_detail {

/// Whether rows of D are in f32 first, or products go to d directly.
bool has_rows_in_f32(const GroupedGemmArguments& x);

/// Rows of D in f32 of validated arguments for which that is so, kept from wave to wave.
class RowsInF32 {
 public:
  RowsInF32(const GroupedGemmArguments& x, std::int64_t most_rows);

  /// Row r of a wave, of as many columns as b has rows.
  float* row(std::int64_t r) const { return numbers_.get() + r * columns_; }

  /// Stores the rows of a wave: of those with one destination the last, or with `adds` their sum,
  /// added up in the order of rows.
  void store(const GroupedGemmArguments& x, const RowWave& wave, int threads) const;

 private:
  void store_rows(const GroupedGemmArguments& x, const RowWave& wave, int threads) const;
  void scatter(const GroupedGemmArguments& x, const RowWave& wave, int threads) const;
  void quantize_rows(const GroupedGemmArguments& x, const QuantizedResult& result,
                     const RowWave& wave, int threads) const;

  std::int64_t columns_;
  gemm_detail::Array<float> numbers_;
  gemm_detail::ResultRows results_;
  std::vector<std::int32_t> owners_;  // owners_of_shared_rows
};

}  // namespace blockscale::grouped_gemm_detail
