// QuantizeKernel::blocks and ::row of small inputs with operands that rows share (modulate,
// rms_norm): a thread has one chunk, and all that a thread block needs is on its way before any of
// it is used. One wave of thread blocks does it all, so that nothing is gained by threads with
// several rows; what counts is the time from the last element's arrival on, thus many threads with
// few instructions each.
//
// The plan sees to it that rows are whole chunks, that vectors fit, that the operands of `row` are
// of the type of x, and that the rows of a tile of `blocks` share theirs.
#pragma once

#include "device/kernel.h"
#include "device/ptx/barrier.h"
#include "device/ptx/prefetch.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernel_sm90_operands.cuh"
#include "ops/quantize/kernel_sm90_rms.cuh"
#include "ops/quantize/kernel_sm90_row_exchange.cuh"
#include "ops/quantize/kernel_sm90_row_tile.cuh"
#include "ops/quantize/kernel_sm90_units.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// modulate's operands of the columns of consecutive chunks, in shared memory: the rows of a tile
/// load and convert them once, and they cost no registers.
template <QuantizeConfig kConfig>
class OperandStrip {
  static_assert(shared_operands(kConfig.transform) == 2);
  static constexpr uint32_t kChunkBytes = strip_chunk_bytes(kConfig);
  /// Columns that a thread loads of one operand; half of the threads load all of it.
  static constexpr uint32_t kVector = 8;
  static_assert(kMostOperandChunks * kConfig.chunk <= kConfig.threads / 2 * int{kVector});

 public:
  /// Loads a group's operands for the `chunks` chunks from column `first` on, at most
  /// kMostOperandChunks.
  BLOCKSCALE_DEVICE OperandStrip(const TransformParams& t, uint32_t group, uint32_t chunks,
                                 uint32_t first, uint32_t k)
      : bytes_(chunks * kChunkBytes) {
    const uint32_t half = ptx::ntid_x() / 2;
    is_scale_ = ptx::tid_x() < half;
    column_ = (is_scale_ ? ptx::tid_x() : ptx::tid_x() - half) * kVector;
    exists_ = column_ < chunks * kConfig.chunk;
    const DeviceMatrix& matrix = is_scale_ ? t.scale : t.shift;
    if (exists_ && first + column_ < k) raw_.load(matrix, group, first + column_);
  }

  /// Stores them in shared memory, 0 for columns beyond the matrix. A barrier must follow.
  BLOCKSCALE_DEVICE void fill(const TransformParams& t) const {
    if (!exists_) return;
    Chunk<Format::f32, kVector> values;
    raw_.convert(values, is_scale_ ? t.scale.dtype : t.shift.dtype);
    make_applicable<kConfig.transform>(values, is_scale_ ? 0 : 1);
    const ptx::SharedAddress to =
        start() + ((is_scale_ ? 0 : bytes_) + column_ / kConfig.chunk * kChunkBytes +
                   column_ % kConfig.chunk * 4);
    store_operand(values, [&](uint32_t v) { return to + v * 16; });
  }

  /// As apply_operands, for a chunk of the strip.
  template <class Function>
  BLOCKSCALE_DEVICE void apply(Chunk<Format::f32, kConfig.chunk>& values, uint32_t chunk,
                               const Function& function) const {
    const ptx::SharedAddress at = start() + chunk * kChunkBytes;
    apply_operands<2>(
        values, [&](uint32_t o, uint32_t v) { return at + (o * bytes_ + v * 16); }, function);
  }

 private:
  BLOCKSCALE_DEVICE static ptx::SharedAddress start() {
    return device::shared_base() + kQuantizeSharedBytes;
  }

  uint32_t bytes_;  // of an operand
  // What this thread fills.
  bool is_scale_, exists_;
  uint32_t column_;
  RawOperand<kVector> raw_ = {};
};

BLOCKSCALE_DEVICE bool is_inside(const QuantizeParams& p, const ChunkPlace& place) {
  return place.row < p.rows && place.column < p.k;
}

/// QuantizeKernel::blocks.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_blocks_at_once(const QuantizeParams& p) {
  const TilePlace tile = tile_place(p.grid, ptx::ctaid_x());
  const ChunkPlace place = chunk_place<kConfig>(p.grid, tile);
  const uint32_t group = operand_group(p, tile.matrix, tile.row);
  const uint32_t chunks = 1u << p.grid.log2_chunks;
  const uint32_t chunk = ptx::tid_x() & (chunks - 1);
  if (p.prefetches && is_inside(p, place)) {
    ptx::prefetch_global_l2(x_at<kConfig>(p, place));
  }
  await_turn(p);
  const OperandStrip<kConfig> strip(p.transform, group, chunks,
                                    place.column - chunk * kConfig.chunk, p.k);
  Chunk<kConfig.input, kConfig.chunk> x;
  clear(x);
  const bool inside = is_inside(p, place);
  if (inside) load_vectors(x, x_at<kConfig>(p, place));
  strip.fill(p.transform);
  ptx::barrier_sync_all();
  ValueChunk<kConfig> values;
  strip.apply(values, chunk, [&](int i, float one_plus_scale, float shift) {
    return modulated(value_at(x, i), one_plus_scale, shift);
  });
  constexpr float kNoTensorScale = 1;
  quantize_held_chunk<kConfig>(p, kNoTensorScale, {inside, true}, place, values);
}

/// QuantizeKernel::row. Its rows lie in few thread blocks, so that each thread has the operands of
/// its columns to itself.
template <QuantizeConfig kConfig>
class RowAtOnce {
  static constexpr bool kNormalizes = kConfig.transform == InputTransform::rms_norm;
  static constexpr uint32_t kWarpColumns = 32 * kConfig.chunk;
  using Raw = Chunk<kConfig.input, kConfig.chunk>;

 public:
  BLOCKSCALE_DEVICE explicit RowAtOnce(const QuantizeParams& p) : p_(p), exchange_(p.row_warps) {
    const TilePlace tile = tile_place(p.grid, ptx::ctaid_x());
    place_ = {tile.matrix, tile.row + exchange_.row_of_tile(),
              exchange_.warp_of_row() * kWarpColumns + ptx::tid_x() % 32 * kConfig.chunk};
  }

  BLOCKSCALE_DEVICE void quantize() {
    exchange_.clear_words();
    if (p_.prefetches && is_inside(p_, place_)) {
      ptx::prefetch_global_l2(x_at<kConfig>(p_, place_));
    }
    await_turn(p_);
    load();
    ValueChunk<kConfig> values;
    if constexpr (kNormalizes) {
      fill_values(values, [&](int i) { return value_at(x_, i); });
      const float sum = add_segments<kWarpColumns>(exchange_, 0, sum_of_squares(values));
      const float factor = rms_factor(sum, p_.transform);
      fill_values(values, [&](int i) {
        return math::rms_norm<device::KernelMath>(value_at(values, i), factor,
                                                  value_at(operand_[0], i));
      });
    } else {
      fill_values(values, [&](int i) {
        return math::modulate<device::KernelMath>(value_at(x_, i), value_at(operand_[0], i),
                                                  value_at(operand_[1], i));
      });
    }
    const ChunkState state = {is_inside(p_, place_), true};
    if constexpr (kConfig.block == 0) {
      Largest<Format::f32, false> largest;
      largest.fold(values);
      const uint32_t amax = exchange_.maximum(largest.f32_bits());
      const BlockScale scale = store_scale_of_row<kConfig>(p_, exchange_, place_, amax);
      store_with_scale<kConfig>(p_, state, place_, values, scale);
    } else {
      constexpr float kNoTensorScale = 1;
      quantize_held_chunk<kConfig>(p_, kNoTensorScale, state, place_, values);
    }
  }

 private:
  /// x and the operands, which are of the same type. Beyond the matrix they are 0, for values of 0;
  /// but of rms_norm it is enough that x is.
  BLOCKSCALE_DEVICE void load() {
    clear(x_);
    if (is_inside(p_, place_)) load_vectors(x_, x_at<kConfig>(p_, place_));
    if constexpr (kNormalizes) {
      load_operand_at(0, 0, place_.column < p_.k ? place_.column : 0);
    } else {
      const uint32_t group = operand_group(p_, place_.matrix, place_.row);
      BLOCKSCALE_UNROLL
      for (int o = 0; o < kOperands; ++o) {
        clear(operand_[o]);
        if (place_.column < p_.k) load_operand_at(o, group, place_.column);
      }
    }
  }

  BLOCKSCALE_DEVICE void load_operand_at(int operand, uint32_t group, uint32_t column) {
    const DeviceMatrix& matrix = operand_matrix<kConfig.transform>(p_.transform, operand);
    load_vectors(operand_[operand],
                 matrix.data + group * matrix.row_stride + int64_t{column} * Raw::kElementBytes);
  }

  static constexpr int kOperands = shared_operands(kConfig.transform);
  const QuantizeParams& p_;
  RowExchange exchange_;
  ChunkPlace place_;
  Raw x_;
  Raw operand_[kOperands];
};

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_at_once(const QuantizeParams& p) {
  static_assert(loads_at_once(kConfig) && kConfig.chunks == 1 && !kConfig.persistent);
  if constexpr (kConfig.kernel == QuantizeKernel::row) {
    RowAtOnce<kConfig>(p).quantize();
  } else {
    quantize_blocks_at_once<kConfig>(p);
  }
}

}  // namespace blockscale::quantize_sm90
