// rms_norm's rstd, 1 / root mean square: a row's sum of squares in its pinned order
// (core/input_transform.h).
#pragma once

#include "core/input_transform.h"
#include "device/encode/chunk.cuh"
#include "device/math.h"
#include "ops/quantize/kernels/row_exchange.cuh"
#include "ops/quantize/kernels/tiles.cuh"

namespace blockscale::quantizer {

using encoding::Chunk;
using encoding::value_at;

/// Sum of kCount numbers, a power of two: neighbours are added until one is left.
template <uint32_t kCount>
BLOCKSCALE_DEVICE float sum_of_neighbours(const float (&numbers)[kCount]) {
  if constexpr (kCount == 1) {
    return numbers[0];
  } else {
    float sums[kCount / 2];
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kCount / 2; ++i) {
      sums[i] = ptx::add_rn(numbers[2 * i], numbers[2 * i + 1]);
    }
    return sum_of_neighbours(sums);
  }
}

/// Sum of the squares of a chunk, in the order of core/input_transform.h.
template <Format kFormat, int kCount>
BLOCKSCALE_DEVICE float sum_of_chunk(const Chunk<kFormat, kCount>& chunk) {
  constexpr int kRuns = kCount / kRmsRun;
  float sums[kRuns];
  BLOCKSCALE_UNROLL
  for (int run = 0; run < kRuns; ++run) {
    sums[run] = 0;
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kRmsRun; ++i) {
      const float x = value_at(chunk, run * kRmsRun + i);
      sums[run] = ptx::fma_rn(x, x, sums[run]);
    }
  }
  return sum_of_neighbours(sums);
}

/// kCount sums, each of a number of all lanes that differ in their bits from kLanes on; neighbours
/// are added first. A lane gets one of these sums: each of those bits, the lowest first, says in
/// which half of what is left it lies, until one is left.
template <uint32_t kLanes, uint32_t kCount>
BLOCKSCALE_DEVICE float scattered_sum(const float (&numbers)[kCount]) {
  if constexpr (kLanes == 32) {
    static_assert(kCount == 1, "there are lanes for all sums");
    return numbers[0];
  } else if constexpr (kCount == 1) {
    const float other = ptx::shfl_sync_bfly(ptx::kFullMask, numbers[0], kLanes);
    const float sums[1] = {ptx::add_rn(numbers[0], other)};
    return scattered_sum<2 * kLanes>(sums);
  } else {
    const bool upper = (ptx::tid_x() & kLanes) != 0;
    float sums[kCount / 2];
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kCount / 2; ++i) {
      const float lower_half = numbers[i];
      const float upper_half = numbers[i + kCount / 2];
      const float other =
          ptx::shfl_sync_bfly(ptx::kFullMask, upper ? lower_half : upper_half, kLanes);
      sums[i] = ptx::add_rn(upper ? upper_half : lower_half, other);
    }
    return scattered_sum<2 * kLanes>(sums);
  }
}

/// Sum of a number for each chunk of a warp's lanes, in the order of core/input_transform.h: a
/// thread's chunks are 32 chunks apart, so the lanes' sums come first.
template <uint32_t kChunks>
BLOCKSCALE_DEVICE float sum_of_warp(const float (&chunks)[kChunks]) {
  float sum = scattered_sum<1>(chunks);
  // Chunks that are neighbours went to lanes that differ in the last half's bit.
  BLOCKSCALE_UNROLL
  for (uint32_t lanes = kChunks / 2; lanes > 0; lanes /= 2) {
    sum = ptx::add_rn(sum, ptx::shfl_sync_bfly(ptx::kFullMask, sum, lanes));
  }
  return sum;
}

/// A row's rstd, from the sum of its squares.
BLOCKSCALE_DEVICE float rstd_of(float sum, const FusedParams& f) {
  const float root = ptx::sqrt_rn(ptx::fma_rn(sum, f.reciprocal_k, f.epsilon));
  // The root of a number above 0 is far from the ends of f32's range.
  const bool ordinary = bit_cast<uint32_t>(root) - 1 < encoding::kInfinityBits - 1;
  return ordinary ? device::reciprocal_of_normal(root) : ptx::rcp_rn(root);
}

/// `total` and then the sums of the segments of a round of warps, one after the other, of each of
/// which kWarpColumns columns are summed in `of_warp`. Collective of the CTA.
template <uint32_t kWarpColumns>
BLOCKSCALE_DEVICE float add_segments(RowExchange& exchange, float total, float of_warp) {
  constexpr uint32_t kSegmentWarps = kRmsSegment / kWarpColumns;
  const auto add_segment = [&](const uint32_t(&words)[kSegmentWarps]) {
    float sums[kSegmentWarps];
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kSegmentWarps; ++i) sums[i] = bit_cast<float>(words[i]);
    total = ptx::add_rn(total, sum_of_neighbours(sums));
  };
  exchange.template exchange<kSegmentWarps>(bit_cast<uint32_t>(of_warp), add_segment);
  return total;
}

}  // namespace blockscale::quantizer
