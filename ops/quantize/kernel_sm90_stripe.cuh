// QuantizeKernel::stripe: rms_norm and one scale for blocks of 32, 64 or 128 rows x 128, from one
// read of x.
//
// A *stripe* is kStripeRows whole rows. Its tiles, kStripeRowBytes of each row, belong to as many
// thread blocks, *mates*. Each copies its tile to shared memory, adds up its part of each row's sum
// of squares, and leaves these sums in the workspace; there each finds those of its mates, and so
// the factors of its rows. Largest magnitudes, scales and codes then come from shared memory; of an
// input that is small enough for one tile a multiprocessor, codes from values held in registers.
//
// A sum that is not there yet is kNoSum, which none can be: QuantizeKernel::clear comes before. So
// nothing else says that sums are there, and no other memory is passed from block to block.
//
// Thread blocks wait for each other, so all mates of one that waits must run some time. They take
// their tiles by tickets: when one has begun, all before it have, and those after it find room as
// long as a device holds the mates of a stripe at once, whatever else runs on it. Plans use the
// kernel where these are a quarter of what the device holds.
#pragma once

#include "core/input_transform.h"
#include "device/kernel.h"
#include "device/ptx/atomic.h"
#include "device/ptx/barrier.h"
#include "device/ptx/cp_async.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/prefetch.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "device/vector.h"
#include "ops/quantize/kernel_sm90_blocks.cuh"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernel_sm90_output.cuh"
#include "ops/quantize/kernel_sm90_rms.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// In place of a sum of squares: -0.
inline constexpr uint32_t kNoSum = 0x80000000u;

/// A thread's part of a tile. A lane has the same 16 bytes of each of its warp's rows, which are
/// consecutive: so operands are loaded once, and a half of the warp's lanes (all, of f32) hold the
/// 128 columns of a block. All threads of the block go through the same functions.
template <QuantizeConfig kConfig>
class StripeTile {
  using Raw = Chunk<kConfig.input, kConfig.chunk>;
  using Values = ValueChunk<kConfig>;
  using Words = device::Vector<uint32_t, 4>;
  static_assert(kConfig.transform == InputTransform::rms_norm && kConfig.block == 128);
  static_assert(Raw::kWords == 4 && 16 * 32 == kStripeRowBytes);

  static constexpr bool kHolds = !kConfig.large;
  static constexpr uint32_t kChunk = kConfig.chunk;
  static constexpr uint32_t kWarps = kConfig.threads / 32;
  static constexpr uint32_t kWarpRows = kStripeRows / kWarps;
  /// Rows that a warp copies in one group and adds up at once, eight lanes a row.
  static constexpr uint32_t kStepRows = 4;
  static constexpr uint32_t kSteps = kWarpRows / kStepRows;
  static constexpr uint32_t kColumns = 32 * kChunk;
  static constexpr uint32_t kBlockLanes = kConfig.block / kChunk;
  static_assert(kSteps >= 1 && kSteps <= 8 && kWarps <= kBlockLanes);

  /// Shared memory: the rows' factors, the warps' largest magnitudes in each block, the ticket;
  /// behind kQuantizeSharedBytes the tile.
  static constexpr uint32_t kMaximaAt = 4 * kStripeRows;
  static constexpr uint32_t kTicketAt = kQuantizeSharedBytes - 4;
  static_assert(kMaximaAt + 4 * kWarps * (32 / kBlockLanes) <= kTicketAt);

 public:
  BLOCKSCALE_DEVICE explicit StripeTile(const QuantizeParams& p)
      : p_(p), warp_(ptx::tid_x() / 32), lane_(ptx::tid_x() % 32) {}

  BLOCKSCALE_DEVICE void quantize() {
    prefetch_tile(ptx::ctaid_x());
    ptx::griddepcontrol_wait();
    if (p_.lets_next_start) ptx::griddepcontrol_launch_dependents();
    take_ticket();
    copy_rows();
    load_weight();
    leave_sum(sum_of_rows<0>(0.0f));
    find_factors();
    store_blocks();
  }

 private:
  /// Of the tile that the thread block would have if tickets were taken in the order of blocks: it,
  /// or another of those that begin together, then finds it in L2. No value depends on it.
  BLOCKSCALE_DEVICE void prefetch_tile(uint32_t tile) const {
    constexpr uint32_t kLineBytes = 128;
    constexpr uint32_t kRowLines = kStripeRowBytes / kLineBytes;
    const TilePlace place = tile_place(p_.grid, tile);
    const uint32_t offset = place.across * kStripeRowBytes + ptx::tid_x() % kRowLines * kLineBytes;
    if (offset >= p_.k * Raw::kElementBytes) return;
    BLOCKSCALE_UNROLL
    for (uint32_t down = 0; down < kStripeRows; down += kConfig.threads / kRowLines) {
      const uint32_t row = place.row + down + ptx::tid_x() / kRowLines;
      if (row < p_.rows) ptx::prefetch_global_L2(row_of_x(place.matrix, row) + offset);
    }
  }

  BLOCKSCALE_DEVICE void take_ticket() {
    const ptx::SharedAddress word = device::shared_base() + kTicketAt;
    if (ptx::tid_x() == 0) ptx::st_shared(word, ptx::atom_global_add(p_.stripes.counters, 1));
    ptx::barrier_sync_all();
    const uint32_t ticket = ptx::ld_shared<uint32_t>(word);
    const TilePlace tile = tile_place(p_.grid, ticket);
    stripe_ = p_.grid.across.quotient(ticket);
    mate_ = tile.across;
    place_ = {tile.matrix, tile.row + warp_ * kWarpRows, tile.across * kColumns + lane_ * kChunk};
    left_ = static_cast<int32_t>(p_.k - place_.column);
  }

  BLOCKSCALE_DEVICE const uint8_t* row_of_x(uint32_t matrix, uint32_t row) const {
    return p_.x.data + matrix * p_.x.batch_stride + row * p_.x.row_stride;
  }

  /// The first byte of one of the warp's rows in shared memory.
  BLOCKSCALE_DEVICE ptx::SharedAddress row_at(uint32_t row) const {
    return device::shared_base() +
           (kQuantizeSharedBytes + (warp_ * kWarpRows + row) * kStripeRowBytes);
  }

  /// Begins copying the warp's rows, a group of copies for each step. Columns beyond the matrix are
  /// 0; in place of a row there is the last one, which is in the same block or in none.
  BLOCKSCALE_DEVICE void copy_rows() const {
    const uint32_t first = place_.row < p_.rows ? place_.row : p_.rows - 1;
    const uint8_t* from =
        row_of_x(place_.matrix, first) + int64_t{place_.column} * Raw::kElementBytes;
    const auto go_on = [&](uint32_t row) {
      from += place_.row + row + 1 < p_.rows ? p_.x.row_stride : 0;
    };
    if (left_ >= kConfig.chunk) {
      BLOCKSCALE_UNROLL
      for (uint32_t row = 0; row < kWarpRows; ++row) {
        ptx::cp_async_cg(row_at(row) + 16 * lane_, from);
        if (row % kStepRows == kStepRows - 1) ptx::cp_async_commit_group();
        go_on(row);
      }
    } else {
      BLOCKSCALE_NO_UNROLL
      for (uint32_t row = 0; row < kWarpRows; ++row) {
        Raw raw;
        load_elements(raw, from, left_);
        ptx::st_shared(row_at(row) + 16 * lane_,
                       Words{{raw.word[0], raw.word[1], raw.word[2], raw.word[3]}});
        go_on(row);
      }
    }
  }

  /// The tile's sum of squares of one of the warp's rows, where lane % 8 < kSteps: of row
  /// lane % 8 * kStepRows + lane / 8. `sum` is that of the steps before kStep.
  template <uint32_t kStep>
  BLOCKSCALE_DEVICE float sum_of_rows(float sum) const {
    if constexpr (kStep < kSteps) {
      ptx::cp_async_wait_group<kSteps - 1 - kStep>();
      ptx::bar_warp_sync(ptx::kFullMask);
      const float of_step = sum_of_squares<8>(neighbours(kStep * kStepRows + lane_ / 8));
      return sum_of_rows<kStep + 1>(lane_ % 8 == kStep ? of_step : sum);
    } else {
      return sum;
    }
  }

  /// Four neighbouring chunks of a row, of eight lanes all. Banks of shared memory: each lane
  /// begins with another one, in an order which adding neighbours does not depend on: the two of a
  /// pair, or the pairs, change places.
  BLOCKSCALE_DEVICE Chunk<kConfig.input, 4 * kConfig.chunk> neighbours(uint32_t row) const {
    const uint32_t in_row = lane_ % 8;
    const ptx::SharedAddress first = row_at(row) + (in_row * 64 + in_row / 2 * 16);
    Chunk<kConfig.input, 4 * kConfig.chunk> raw;
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      const Words words = ptx::ld_shared<Words>({first.value ^ 16 * i});
      BLOCKSCALE_UNROLL
      for (uint32_t j = 0; j < 4; ++j) raw.word[4 * i + j] = words.at[j];
    }
    return raw;
  }

  BLOCKSCALE_DEVICE uint32_t mates() const { return p_.grid.across.divisor; }

  /// The stripe's sums that a mate leaves, two rows in a word, the lower one in its lower half.
  BLOCKSCALE_DEVICE uint64_t* sums_of(uint32_t mate) const {
    return p_.stripes.sums + (uint64_t{stripe_} * mates() + mate) * (kStripeRows / 2);
  }

  /// Leaves a sum, which sum_of_rows gave the lane.
  BLOCKSCALE_DEVICE void leave_sum(float sum) const {
    const uint32_t lower = bit_cast<uint32_t>(sum);
    const uint32_t upper = ptx::shfl_sync_bfly(ptx::kFullMask, lower, 8);
    if (lane_ % 8 >= kSteps || lane_ / 8 % 2 != 0) return;
    const uint32_t row = warp_ * kWarpRows + lane_ % 8 * kStepRows + lane_ / 8;
    ptx::st_relaxed_gpu_global(sums_of(mate_) + row / 2, uint64_t{upper} << 32 | lower);
  }

  BLOCKSCALE_DEVICE static bool is_there(uint64_t sums) {
    return static_cast<uint32_t>(sums) != kNoSum;
  }

  /// The sums of two rows that kCount mates from `first` on leave, 0 of those that do not exist.
  template <uint32_t kCount>
  BLOCKSCALE_DEVICE void await_sums(uint64_t (&sums)[kCount], uint32_t first, uint32_t pair) const {
    const uint64_t* const from = sums_of(first) + pair;
    for (;;) {
      uint32_t missing = kCount;
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kCount; ++i) {
        sums[i] = 0;
        if (first + i < mates()) sums[i] = ptx::ld_relaxed_gpu_global(from + i * kStripeRows / 2);
        if (!is_there(sums[i])) missing = i;
      }
      if (missing == kCount) return;
      while (!is_there(ptx::ld_relaxed_gpu_global(from + missing * kStripeRows / 2))) {
      }
    }
  }

  /// The factors of the tile's rows, in shared memory. A thread adds up what neighbouring mates
  /// leave of two rows; so many lanes that they have a whole segment share these rows.
  BLOCKSCALE_DEVICE void find_factors() const {
    constexpr uint32_t kSegmentMates = kRmsSegment / kColumns;
    constexpr uint32_t kLanes = kConfig.threads / (kStripeRows / 2);
    constexpr uint32_t kEach = kSegmentMates / kLanes;
    const uint32_t pair = ptx::tid_x() / kLanes;
    const uint32_t in_row = ptx::tid_x() % kLanes;
    float total[2] = {};
    BLOCKSCALE_NO_UNROLL
    for (uint32_t segment = 0; segment < mates(); segment += kSegmentMates) {
      uint64_t sums[kEach];
      await_sums(sums, segment + in_row * kEach, pair);
      BLOCKSCALE_UNROLL
      for (uint32_t row = 0; row < 2; ++row) {
        float of_row[kEach];
        BLOCKSCALE_UNROLL
        for (uint32_t i = 0; i < kEach; ++i) {
          of_row[i] = bit_cast<float>(static_cast<uint32_t>(sums[i] >> 32 * row));
        }
        const float sum = sum_of_lanes<kLanes>(sum_of_neighbours(of_row));
        total[row] = ptx::add_rn(total[row], sum);
      }
    }
    if (in_row < 2) {
      ptx::st_shared(device::shared_base() + 4 * (2 * pair + in_row),
                     rms_factor(in_row == 0 ? total[0] : total[1], p_.transform));
    }
    ptx::barrier_sync_all();
  }

  BLOCKSCALE_DEVICE void load_weight() {
    load_operand(weight_, p_.transform.weight, 0, place_.column, left_, left_ >= kConfig.chunk);
  }

  /// Calls body(row, factor, x) for four of the warp's rows, x the thread's elements of a row.
  template <class Body>
  BLOCKSCALE_DEVICE void four_rows(uint32_t first, const Body& body) const {
    const Words factors =
        ptx::ld_shared<Words>(device::shared_base() + 4 * (warp_ * kWarpRows + first));
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      const Words words = ptx::ld_shared<Words>(row_at(first + i) + 16 * lane_);
      Raw raw;
      BLOCKSCALE_UNROLL
      for (uint32_t j = 0; j < 4; ++j) raw.word[j] = words.at[j];
      body(first + i, bit_cast<float>(factors.at[i]), raw);
    }
  }

  /// The same for all of them.
  template <class Body>
  BLOCKSCALE_DEVICE void each_row(const Body& body) const {
    BLOCKSCALE_NO_UNROLL
    for (uint32_t first = 0; first < kWarpRows; first += 4) four_rows(first, body);
  }

  BLOCKSCALE_DEVICE Values values_of(float factor, const Raw& raw) const {
    Values values;
    fill_values(values, [&](int i) {
      return math::rms_norm<device::KernelMath>(value_at(raw, i), factor, value_at(weight_, i));
    });
    return values;
  }

  /// Bits of the largest magnitude in the warp's rows of the lane's block.
  BLOCKSCALE_DEVICE uint32_t maximum_of_warp() {
    Largest<Format::f32, false> largest;
    if constexpr (kHolds) {
      BLOCKSCALE_UNROLL
      for (uint32_t first = 0; first < kWarpRows; first += 4) {
        four_rows(first, [&](uint32_t row, float factor, const Raw& raw) {
          held_[row] = values_of(factor, raw);
          largest.fold(held_[row]);
        });
      }
    } else {
      // The weight of a column meets only the largest of its products with factors: rounding keeps
      // their order, and what is NaN then was NaN, or 0, before.
      float of_column[kConfig.chunk] = {};
      each_row([&](uint32_t, float factor, const Raw& raw) {
        BLOCKSCALE_UNROLL
        for (int i = 0; i < kConfig.chunk; ++i) {
          of_column[i] = ptx::max(of_column[i], ptx::abs(ptx::mul_rn(value_at(raw, i), factor)));
        }
      });
      BLOCKSCALE_UNROLL
      for (int i = 0; i < kConfig.chunk; ++i) {
        largest.fold(bit_cast<uint32_t>(ptx::mul_rn(of_column[i], value_at(weight_, i))));
      }
    }
    return maximum_of_lanes(largest.bits);
  }

  /// The largest of a word of each lane of the block.
  BLOCKSCALE_DEVICE uint32_t maximum_of_lanes(uint32_t word) const {
    BLOCKSCALE_UNROLL
    for (uint32_t lanes = 1; lanes < kBlockLanes; lanes *= 2) {
      const uint32_t other = ptx::shfl_sync_bfly(ptx::kFullMask, word, lanes);
      word = other > word ? other : word;
    }
    return word;
  }

  /// The scale of the lane's block, which one of its lanes stores.
  BLOCKSCALE_DEVICE BlockScale scale_of_block() {
    const ptx::SharedAddress maxima =
        device::shared_base() + (kMaximaAt + lane_ / kBlockLanes * (4 * kWarps));
    const bool leads = lane_ % kBlockLanes == 0;
    const uint32_t of_warp = maximum_of_warp();
    if (leads) ptx::st_shared(maxima + 4 * warp_, of_warp);
    ptx::barrier_sync_all();
    // Warps of a block are neighbours, a power of two.
    const uint32_t warps = p_.block_rows / kWarpRows;
    const uint32_t in_block = warp_ & (warps - 1);
    const uint32_t other = warp_ - in_block + (lane_ & (warps - 1));
    const uint32_t amax = maximum_of_lanes(ptx::ld_shared<uint32_t>(maxima + 4 * other));
    const BlockScale scale = fp8_block_scale<kConfig.element>(amax, p_.amax_floor, p_.fp8_scale);
    if (leads && in_block == 0 && place_.row < p_.rows && left_ > 0) {
      const uint32_t stored[1] = {scale.stored};
      store_scales_at<kConfig>(p_, place_.matrix, place_.row / p_.block_rows,
                               place_.column / kConfig.block, stored);
    }
    return scale;
  }

  BLOCKSCALE_DEVICE void store_blocks() {
    const BlockScale scale = scale_of_block();
    const bool is_part = left_ > 0 && left_ < kConfig.chunk;
    const bool exactly = !p_.value_vectors || is_part || scale.exceptional;
    if (ptx::vote_sync_any(ptx::kFullMask, exactly)) {
      each_row([&](uint32_t row, float factor, const Raw& raw) {
        store_exactly<kConfig>(p_, below(place_, row), values_of(factor, raw), scale);
      });
    } else if constexpr (kHolds) {
      BLOCKSCALE_UNROLL
      for (uint32_t row = 0; row < kWarpRows; ++row) {
        if (exists(row)) store_row(row, held_[row], scale);
      }
    } else {
      each_row([&](uint32_t row, float factor, const Raw& raw) {
        if (exists(row)) store_row(row, values_of(factor, raw), scale);
      });
    }
  }

  /// Whether the thread has elements in one of the warp's rows.
  BLOCKSCALE_DEVICE bool exists(uint32_t row) const {
    return place_.row + row < p_.rows && left_ > 0;
  }

  BLOCKSCALE_DEVICE void store_row(uint32_t row, const Values& values,
                                   const BlockScale& scale) const {
    uint8_t* const to = codes_at<kConfig.element>(p_, place_) + row * p_.value_row_stride;
    store_codes(encode_chunk<kConfig.element, kConfig.rule, false>(values, scale), to);
  }

  const QuantizeParams& p_;
  const uint32_t warp_;
  const uint32_t lane_;
  uint32_t stripe_ = 0;    // counted through all matrices
  uint32_t mate_ = 0;      // which of the stripe's tiles
  ChunkPlace place_ = {};  // of the thread's chunk in the first of its warp's rows
  int32_t left_ = 0;       // columns from there on, below 0 beyond the matrix
  Chunk<Format::f32, kConfig.chunk> weight_ = {};
  Values held_[kHolds ? kWarpRows : 1];
};

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_stripes(const QuantizeParams& p) {
  StripeTile<kConfig>(p).quantize();
}

/// QuantizeKernel::clear: a counter and two words of sums a thread. The next kernel may start at
/// once, since it waits for this one, and so for those before, ahead of all that it reads and
/// writes.
BLOCKSCALE_DEVICE void clear_stripes(const StripeParams& stripes) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  using Words = device::Vector<uint32_t, 4>;
  const uint64_t at = uint64_t{ptx::ctaid_x()} * ptx::ntid_x() + ptx::tid_x();
  if (at < stripes.count) ptx::st_global(stripes.counters + at, 0u);
  if (2 * at >= stripes.words) return;
  ptx::st_global(reinterpret_cast<Words*>(stripes.sums) + at,
                 Words{{kNoSum, kNoSum, kNoSum, kNoSum}});
}

}  // namespace blockscale::quantize_sm90
