// QuantizeKernel::maximum of rms_norm: the factors of rows and the largest magnitude of what they
// make of x, by thread blocks that each go through some tiles of whole rows.
//
// A warp's loads are of consecutive bytes, and the next tile's are on their way while one is worked
// on. x stays in registers as it lies in memory, since converting it twice costs less than the
// registers of its values, and so does each thread's weight in shared memory.
//
// The plan sees to it that rows are whole chunks, that vectors fit, that the weight is of the type
// of x, and that a thread block holds a row at once.
#pragma once

#include "device/kernel.h"
#include "device/ptx/barrier.h"
#include "device/ptx/prefetch.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/vector.h"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernel_sm90_maximum.cuh"
#include "ops/quantize/kernel_sm90_rms.cuh"
#include "ops/quantize/kernel_sm90_row_exchange.cuh"
#include "ops/quantize/kernel_sm90_tensor_scale.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

template <QuantizeConfig kConfig>
class RowMaximum {
  static_assert(streams_rows(kConfig) && kConfig.persistent);
  static constexpr uint32_t kChunks = kConfig.chunks;
  /// Columns between a thread's chunks, and of all of a warp's.
  static constexpr uint32_t kStep = 32 * kConfig.chunk;
  static constexpr uint32_t kWarpColumns = kStep * kChunks;
  using Raw = Chunk<kConfig.input, kConfig.chunk>;
  using Values = Chunk<Format::f32, kConfig.chunk>;
  using Vector = device::Vector<uint32_t, 4>;

 public:
  BLOCKSCALE_DEVICE explicit RowMaximum(const QuantizeParams& p) : p_(p), exchange_(p.row_warps) {
    column_ = exchange_.warp_of_row() * kWarpColumns + ptx::tid_x() % 32 * kConfig.chunk;
  }

  BLOCKSCALE_DEVICE void find() {
    const TilesOfScale run = tiles_of_scale(p_);
    const uint32_t first = run.scale * run.tiles + run.part;
    const uint32_t end = (run.scale + 1) * run.tiles;
    ChunkPlace place = place_of(first);
    prefetch(place);
    exchange_.clear_words();
    await_turn(p_);
    Raw next[kChunks];
    load(next, place);
    hold_weight();
    for (uint32_t tile = first; tile < end; tile += p_.maxima.count) {
      Raw x[kChunks];
      BLOCKSCALE_UNROLL
      for (uint32_t u = 0; u < kChunks; ++u) x[u] = next[u];
      const ChunkPlace row = place;
      if (tile + p_.maxima.count < end) {
        place = place_of(tile + p_.maxima.count);
        load(next, place);
      }
      Values values[kChunks];
      BLOCKSCALE_UNROLL
      for (uint32_t u = 0; u < kChunks; ++u) {
        fill_values(values[u], [&](int i) { return value_at(x[u], i); });
      }
      const float sum = add_segments<kWarpColumns>(exchange_, 0, sum_of_squares(values));
      const float factor = rms_factor(sum, p_.transform);
      store_row_factor(p_, exchange_, row, factor);
      fold(x, factor);
    }
    ptx::barrier_sync_all();  // who still reads words of the exchange
    leave_maximum(p_.maxima, run.scale, run.part, largest_.f32_bits());
  }

 private:
  /// Of the thread's first chunk in a tile; these lie one below the other.
  BLOCKSCALE_DEVICE ChunkPlace place_of(uint32_t tile) const {
    const TilePlace place = tile_place(p_.grid, tile);
    return {place.matrix, place.row + exchange_.row_of_tile(), column_};
  }

  /// x of the warp into the level-2 cache.
  BLOCKSCALE_DEVICE void prefetch(const ChunkPlace& place) const {
    if (ptx::tid_x() % 32 != 0 || place.row >= p_.rows || place.column >= p_.k) return;
    const uint32_t left = p_.k - place.column;
    ptx::cp_async_bulk_prefetch_l2(
        x_at<kConfig>(p_, place),
        (left < kWarpColumns ? left : kWarpColumns) * uint32_t{Raw::kElementBytes});
  }

  /// The thread's chunks, 0 beyond the matrix.
  BLOCKSCALE_DEVICE void load(Raw (&x)[kChunks], const ChunkPlace& place) const {
    const uint8_t* const from = x_at<kConfig>(p_, place);
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kChunks; ++u) {
      clear(x[u]);
      const bool inside = place.row < p_.rows && column_ + u * kStep < p_.k;
      if (inside) load_vectors(x[u], from + u * kStep * Raw::kElementBytes);
    }
  }

  /// Of columns beyond the matrix, whose x is 0, any weight will do.
  BLOCKSCALE_DEVICE void hold_weight() const {
    Raw weight[kChunks];
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kChunks; ++u) {
      const uint32_t column = column_ + u * kStep < p_.k ? column_ + u * kStep : 0;
      load_vectors(weight[u], p_.transform.weight.data + int64_t{column} * Raw::kElementBytes);
    }
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kChunks; ++u) {
      ptx::st_shared(weight_at(u), bit_cast<Vector>(weight[u]));
    }
  }

  /// A thread's own chunk of the weight.
  BLOCKSCALE_DEVICE static ptx::SharedAddress weight_at(uint32_t u) {
    static_assert(sizeof(Raw) == sizeof(Vector));
    const uint32_t vector = u * ptx::ntid_x() + ptx::tid_x();
    return device::shared_base() + (kQuantizeSharedBytes + vector * uint32_t{sizeof(Vector)});
  }

  BLOCKSCALE_DEVICE void fold(const Raw (&x)[kChunks], float factor) {
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kChunks; ++u) {
      const Raw weight = bit_cast<Raw>(ptx::ld_shared<Vector>(weight_at(u)));
      Values values;
      fill_values(values, [&](int i) {
        return math::rms_norm<device::KernelMath>(value_at(x[u], i), factor, value_at(weight, i));
      });
      largest_.fold(values);
    }
  }

  const QuantizeParams& p_;
  RowExchange exchange_;
  uint32_t column_;  // of the thread's first chunk
  Largest<Format::f32, false> largest_;
};

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void find_maxima_of_normalized_rows(const QuantizeParams& p) {
  RowMaximum<kConfig>(p).find();
}

}  // namespace blockscale::quantize_sm90
