// What a thread holds of a block of several rows, and the largest magnitude that it knows of.
#pragma once

#include "device/kernel.h"
#include "ops/quantize/kernel_sm90_gelu_maximum.cuh"
#include "ops/quantize/kernel_sm90_held.cuh"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernel_sm90_transform.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// A thread's chunks of the rows that it encodes, `step` rows apart from `first` down.
template <QuantizeConfig kConfig, bool kHalf = halves_blocks(kConfig)>
class TallRows {
 public:
  BLOCKSCALE_DEVICE TallRows(const QuantizeParams& p, const ChunkPlace& first, uint32_t step)
      : p_(p), first_(first), step_(step), chunks_(p, first, step) {}

  /// Loads the chunks and returns the bits of their largest magnitude. All lanes of a warp call it.
  BLOCKSCALE_DEVICE uint32_t load(bool may_hold) {
    Largest<kValueFormat<kConfig>, false> largest;
    fold_rows(largest, chunks_, may_hold, p_, first_, step_);
    return largest.f32_bits();
  }

  BLOCKSCALE_DEVICE bool is_present(uint32_t u) const { return chunks_.is_present(u); }
  BLOCKSCALE_DEVICE ValueChunk<kConfig> values(uint32_t u) const { return chunks_.values(u); }

 private:
  const QuantizeParams& p_;
  ChunkPlace first_;
  uint32_t step_;
  HeldChunks<kConfig> chunks_;
};

/// The same of GELU where they are half of a block's rows: a thread reads as many of the other
/// half, but for the largest magnitude alone, which `load` returns of both. That follows from the
/// largest x, which costs a tenth of the values that the other half's thread block computes; where
/// no x of a warp is so large, which is rare, its values are computed for it, and once more to be
/// encoded.
template <QuantizeConfig kConfig>
class TallRows<kConfig, true> {
  static_assert(orders_gelu(kConfig));
  static constexpr uint32_t kChunks = kConfig.chunks;

 public:
  BLOCKSCALE_DEVICE TallRows(const QuantizeParams& p, const ChunkPlace& first, uint32_t step)
      : p_(p),
        first_(first),
        others_first_({first.matrix, first.row ^ (p.block_rows / 2), first.column}),
        step_(step),
        x_(p, first, step),
        others_(p, others_first_, step) {}

  BLOCKSCALE_DEVICE uint32_t load(bool may_hold) {
    if (!may_hold) {  // no thread may
      Largest<Format::f32, false> largest;
      fold_rows_in_turn<kConfig>(largest, p_, first_, step_);
      fold_rows_in_turn<kConfig>(largest, p_, others_first_, step_);
      return largest.f32_bits();
    }
    x_.load();
    others_.load();
    Chunk<kConfig.input, kConfig.chunk> x[2 * kChunks];
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kChunks; ++u) {
      x[u] = x_.values(u);
      x[kChunks + u] = others_.values(u);
    }
    LargestGelu<kConfig.transform, kConfig.input> largest;
    largest.fold_of_warp(x);
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kChunks; ++u) gelu_chunk<kConfig.transform>(values_[u], x[u]);
    return largest.f32_bits();
  }

  BLOCKSCALE_DEVICE bool is_present(uint32_t u) const { return x_.is_present(u); }
  BLOCKSCALE_DEVICE ValueChunk<kConfig> values(uint32_t u) const { return values_[u]; }

 private:
  const QuantizeParams& p_;
  ChunkPlace first_;
  ChunkPlace others_first_;
  uint32_t step_;
  HeldChunks<without_transform(kConfig)> x_;
  HeldChunks<without_transform(kConfig)> others_;
  ValueChunk<kConfig> values_[kChunks];
};

}  // namespace blockscale::quantize_sm90
