// The ways to multiply of an instruction set, as a table: the first that serves a product computes
// it. What a method cannot sum in f32 goes by panels (panels/), which serve every product.
#pragma once

#include <cstdint>

#include "ops/gemm/cpu/operand.h"
#include "ops/gemm/cpu/plan.h"
#include "ops/gemm/cpu/task.h"

namespace blockscale::gemm_detail {

/// Products of some columns of D over k in [begin, begin + count), and where they go.
struct Span {
  const PackedBand& band;
  const OperandMatrix& b;
  const Task& task;
  std::int64_t begin, count;  // of k
  float* factors;             // scratch of the span's factors, and of the method
  float* scratch;
  float* sums;   // in f32, rows kTileColumns apart: instead of what was there
  double* tile;  // the same in f64: added to it
};

/// Where a method has left a span's products: nowhere if f32 might not hold them.
enum class Products : std::uint8_t { nowhere, sums, tile };

struct CpuMethod {
  CpuKernel kernel;
  /// Whether it computes products of `m` rows of A.
  bool (*serves)(std::int64_t m, Recipe a, Recipe b);
  /// Takes the memory of a band of `rows` rows of A, and what else it may take later; of a Memory
  /// that counts, this is what a workspace needs.
  void (*take)(PackedBand& band, std::int64_t rows, std::int64_t k, Recipe a, Recipe b);
  void (*take_rest)(PackedBand& band, std::int64_t rows, std::int64_t k);
  /// Packs rows [begin, end) of a band of A, `packed_rows` at most, and ends it when all are.
  std::int64_t packed_rows;
  void (*pack)(const OperandMatrix& a, Recipe b, std::int64_t begin, std::int64_t end,
               PackedBand& band);
  void (*end)(const OperandMatrix& a, Recipe b, PackedBand& band);
  /// Whether spans go to `sums`, so that D of one span need not pass through f64.
  bool gives_sums;
  Products (*multiply)(const Span& span);
};

// What methods have in common, whatever the instruction set: memory of a band of A, and its end.

inline void take_values(PackedBand& band, std::int64_t, std::int64_t k, Recipe, Recipe) {
  band.take_values(ceil_div(k, kSlab));
}
inline void take_pairs(PackedBand& band, std::int64_t rows, std::int64_t k, Recipe a, Recipe b) {
  band.pairs.take_rows(rows, k, a, b, band.memory);
}
inline void take_integers(PackedBand& band, std::int64_t rows, std::int64_t k, Recipe a, Recipe) {
  band.integers.take_rows(rows, k, recipe_traits(a).block_k, band.memory);
}
inline void take_nothing(PackedBand&, std::int64_t, std::int64_t) {}
/// A in f32 too, where a span needs it.
inline void take_decoded(PackedBand& band, std::int64_t, std::int64_t k) {
  band.take_values(ceil_div(k, kSlab));
}
/// As few_rows-inl.h and bf16_rows-inl.h arrange rows, in chunks of at most 128 codes.
inline void take_few_rows(PackedBand& band, std::int64_t rows, std::int64_t k) {
  band.memory.take<float>(ceil_div(k, std::int64_t{128}) * 128 * rows);
}
inline void take_bf16_rows(PackedBand& band, std::int64_t rows, std::int64_t k) {
  band.memory.take<std::uint16_t>(ceil_div(k, std::int64_t{128}) * 128 * rows);
}

inline void end_values(const OperandMatrix& a, Recipe, PackedBand& band) {
  band.take_range(ceil_div(a.k, kSlab));
}
inline void end_pairs(const OperandMatrix&, Recipe, PackedBand& band) {
  band.pairs.take_ranges();
}
inline void end_integers(const OperandMatrix&, Recipe, PackedBand& band) {
  band.integers.take_range(band.rows);
}

}  // namespace blockscale::gemm_detail
