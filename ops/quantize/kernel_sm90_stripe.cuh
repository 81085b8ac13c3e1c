// QuantizeKernel::stripe: rms_norm and one scale for blocks of 32, 64 or 128 rows x 128, from one
// read of x.
//
// A *stripe* is kStripeRows whole rows. Its tiles, kStripeRowBytes of each row, belong to as many
// thread blocks, *mates*, which make a *team*: each has the same columns of all stripes of its
// team, one after the other, in a ring of slots in shared memory. Of a tile that has come it
// adds up its part of each row's sum of squares, and leaves these sums in the workspace. Some
// rounds later those of its mates are there too; so it finds the factors of the rows, the values,
// their largest magnitudes, scales and codes, while the tiles behind this one are on their way.
//
// A warp has 8 rows of a tile, each copied in bulk, and a lane the same 16 bytes of each: slots
// need no barrier of the thread block. Warps meet where a scale is made of their largest
// magnitudes, and add up the next sums between telling theirs and asking for others'.
//
// A sum that is not there yet is kNoSum, which none can be: QuantizeKernel::clear comes before. So
// nothing else says that sums are there, and no other memory is passed from block to block. Of a
// small input `clear`, which may run beside the call before, also prefetches first tiles into L2.
//
// Thread blocks wait for their mates, but not for ever: a warp that has polled kPatience times adds
// up from x itself what it misses. So a call ends whatever else runs, in whichever order thread
// blocks begin. That is slow, and rare: they begin in the order of their numbers, as far as anybody
// has seen, and plans use the kernel where a team is at most a quarter of what the device holds.
#pragma once

#include "core/input_transform.h"
#include "device/kernel.h"
#include "device/ptx/barrier.h"
#include "device/ptx/bulk_copy.h"
#include "device/ptx/fence.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/mbarrier.h"
#include "device/ptx/prefetch.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "device/vector.h"
#include "ops/quantize/kernel_sm90_codes.cuh"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernel_sm90_operands.cuh"
#include "ops/quantize/kernel_sm90_output.cuh"
#include "ops/quantize/kernel_sm90_rms.cuh"
#include "ops/quantize/kernel_sm90_scale.cuh"
#include "ops/quantize/kernel_sm90_units.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// In place of a sum of squares: -0.
inline constexpr uint32_t kNoSum = 0x80000000u;

/// Times that a warp polls for sums, most of a microsecond each.
inline constexpr uint32_t kPatience = 64;

/// The matrix of a stripe, and the stripe's first row in it.
struct StripePlace {
  uint32_t matrix;
  uint32_t row;
};
BLOCKSCALE_DEVICE StripePlace place_of_stripe(const QuantizeParams& p, uint32_t stripe) {
  const uint32_t matrix = p.stripes.per_matrix.quotient(stripe);
  const uint32_t down = stripe - matrix * p.stripes.per_matrix.divisor;
  return {matrix, down * kStripeRows};
}

/// A thread block's team, whose number is that of its first stripe, and which of the mates it is.
struct Mate {
  uint32_t team;
  uint32_t number;
};
BLOCKSCALE_DEVICE Mate mate_of_block(const QuantizeParams& p) {
  const uint32_t team = p.grid.across.quotient(ptx::ctaid_x());
  return {team, ptx::ctaid_x() - team * p.grid.across.divisor};
}

/// Where a row of a mate's tile lies in x. In place of one beyond the matrix there is the last one:
/// where the missing row's block exists, that is a row of it.
BLOCKSCALE_DEVICE const uint8_t* x_of_tile_row(const QuantizeParams& p, uint32_t stripe,
                                               uint32_t mate, uint32_t row) {
  const StripePlace first = place_of_stripe(p, stripe);
  const uint32_t wanted = first.row + row;
  const uint32_t existing = wanted < p.rows ? wanted : p.rows - 1;
  return x_row_at(p, first.matrix, existing) + mate * kStripeRowBytes;
}

/// Bytes of each row of a mate's tiles.
BLOCKSCALE_DEVICE uint32_t bytes_of_tile_row(const QuantizeParams& p, uint32_t mate) {
  const uint32_t row_bytes = p.k * (p.x.dtype == Format::f32 ? 4 : 2);
  const uint32_t left = row_bytes - mate * kStripeRowBytes;
  return left < kStripeRowBytes ? left : kStripeRowBytes;
}

/// Into L2 a mate's tile, a line by each thread of the block.
BLOCKSCALE_DEVICE void prefetch_tile_of_stripe(const QuantizeParams& p, uint32_t stripe,
                                               uint32_t mate) {
  constexpr uint32_t kRowLines = kStripeRowBytes / ptx::kLineBytes;
  const uint32_t offset = ptx::tid_x() % kRowLines * ptx::kLineBytes;
  if (offset >= bytes_of_tile_row(p, mate)) return;
  const uint32_t rows = ptx::ntid_x() / kRowLines;
  for (uint32_t row = ptx::tid_x() / kRowLines; row < kStripeRows; row += rows) {
    ptx::prefetch_global_l2(x_of_tile_row(p, stripe, mate, row) + offset);
  }
}

/// A thread's part of its team's stripes. All threads of a block go through the same functions.
template <QuantizeConfig kConfig>
class TeamStripes {
  using Raw = Chunk<kConfig.input, kConfig.chunk>;
  using Values = ValueChunk<kConfig>;
  using Words = device::Vector<uint32_t, 4>;
  static_assert(kConfig.transform == InputTransform::rms_norm && kConfig.block == 128);
  static_assert(kConfig.element == Format::e4m3, "whose ties ShortQuotient is for");
  static_assert(Raw::kWords == 4 && 16 * 32 == kStripeRowBytes);

  static constexpr uint32_t kChunk = kConfig.chunk;
  static constexpr uint32_t kWarps = kConfig.threads / 32;
  static constexpr uint32_t kRows = kStripeRows / kWarps;  // of a warp
  static constexpr uint32_t kPairs = kRows / 2;            // sums of two rows are a word
  static constexpr uint32_t kColumns = 32 * kChunk;
  static constexpr uint32_t kBlockLanes = kConfig.block / kChunk;
  static constexpr uint32_t kBlocks = 32 / kBlockLanes;  // side by side
  /// Tiles that the sums are ahead of the codes.
  static constexpr uint32_t kAhead = 2;
  static_assert(kRows == 8 && kAhead + 1 == kStripeSlots);
  static_assert(kMaxMates * kColumns <= kRmsSegment, "a row is one segment");

  /// Shared memory: the warps' largest magnitudes in each block, of two rounds; who has told them;
  /// what has been copied. Behind kQuantizeSharedBytes the weight as f32, and the slots.
  static constexpr uint32_t kMaximaBytes = 4 * kWarps * kBlocks;
  static constexpr uint32_t kToldAt = 2 * kMaximaBytes;
  static constexpr uint32_t kCopiedAt = kToldAt + 8;
  static constexpr uint32_t kSlotsAt = kQuantizeSharedBytes + kStripeWeightBytes;
  static_assert(kCopiedAt + 8 * kStripeSlots * kWarps <= kQuantizeSharedBytes);
  static_assert(kColumns * 4 <= kStripeWeightBytes);

 public:
  BLOCKSCALE_DEVICE explicit TeamStripes(const QuantizeParams& p)
      : p_(p),
        warp_(ptx::shfl_sync_idx(ptx::kFullMask, ptx::tid_x() / 32, 0)),
        lane_(ptx::tid_x() % 32),
        stripe_(mate_of_block(p).team),
        mate_(mate_of_block(p).number) {}

  BLOCKSCALE_DEVICE void quantize() {
    make_ring();
    prefetch();
    ptx::griddepcontrol_wait();
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) copy(i, stripe_ + i * teams());
    BLOCKSCALE_NO_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) {
      leave_sums(stripe_ + i * teams());
      // Issuing it waits for those before, and would hold up the first sums.
      if (i == 0) copy(kAhead, stripe_ + kAhead * teams());
    }
    // Not before: the next call's prefetches would hold up these sums.
    ptx::griddepcontrol_launch_dependents();
    ask_for_sums(stripe_);
    keep_weight();
    ptx::barrier_sync_all();  // the weight is there
    uint32_t slot = 0;
    BLOCKSCALE_NO_UNROLL
    for (uint32_t parity = 0; stripe_ < stripes(); parity ^= 1) {
      const uint32_t amax = take_values(slot, row_factor());
      tell_maximum(amax, parity);
      copy(slot, stripe_ + kStripeSlots * teams());
      leave_sums(stripe_ + kAhead * teams());
      ask_for_sums(stripe_ + teams());
      store_codes_of_tile(parity);
      stripe_ += teams();
      slot = next(slot);
    }
  }

 private:
  BLOCKSCALE_DEVICE uint32_t mates() const { return p_.grid.across.divisor; }
  BLOCKSCALE_DEVICE uint32_t teams() const { return p_.stripes.teams; }
  /// Stripes of all teams, through all matrices.
  BLOCKSCALE_DEVICE uint32_t stripes() const { return p_.stripes.stripes; }

  BLOCKSCALE_DEVICE uint32_t column() const { return mate_ * kColumns + lane_ * kChunk; }
  /// Whether the thread's columns do, as a whole; else they are zeros.
  BLOCKSCALE_DEVICE bool exists() const { return column() < p_.k; }

  /// Mbarriers, and zeros where there are no columns.
  BLOCKSCALE_DEVICE void make_ring() const {
    const ptx::SharedAddress base = device::shared_base();
    if (ptx::tid_x() == 0) ptx::mbarrier_init(base + kToldAt, kWarps, "told");
    if (lane_ < kStripeSlots) {
      ptx::mbarrier_init(copied(lane_), kRows, "copied");
      ptx::fence_mbarrier_init();
    }
    ptx::bar_warp_sync(ptx::kFullMask);
    if (exists()) return;
    for (uint32_t slot = 0; slot < p_.stripes.slots; ++slot) {
      BLOCKSCALE_UNROLL
      for (uint32_t row = 0; row < kRows; ++row) {
        ptx::st_shared(chunk_at(slot_at(slot), row), Words{});
      }
    }
  }

  /// Into L2 the weight and, unless `clear` has done that, the first tile. No more of them: the
  /// next ones would hold it up.
  BLOCKSCALE_DEVICE void prefetch() const {
    if (p_.prefetches) prefetch_tile_of_stripe(p_, stripe_, mate_);
    const DeviceMatrix& weight = p_.transform.weight;
    if (warp_ != 0 || !exists()) return;
    ptx::prefetch_global_l2(weight.data +
                            int64_t{column()} * (weight.dtype == Format::f32 ? 4 : 2));
  }

  BLOCKSCALE_DEVICE static uint32_t next(uint32_t slot) {
    return slot + 1 < kStripeSlots ? slot + 1 : 0;
  }

  /// The warp's rows in a slot.
  BLOCKSCALE_DEVICE ptx::SharedAddress slot_at(uint32_t slot) const {
    return device::shared_base() +
           (kSlotsAt + slot * kStripeSlotBytes + warp_ * kRows * kStripeRowBytes);
  }

  /// The lane's chunk of a row in a slot.
  BLOCKSCALE_DEVICE ptx::SharedAddress chunk_at(ptx::SharedAddress slot, uint32_t row) const {
    return slot + (row * kStripeRowBytes + lane_ * 16);
  }

  /// The mbarrier of the copies of the warp's rows into a slot.
  BLOCKSCALE_DEVICE ptx::SharedAddress copied(uint32_t slot) const {
    return device::shared_base() + (kCopiedAt + (slot * kWarps + warp_) * 8);
  }

  BLOCKSCALE_DEVICE ptx::SharedAddress weight_at(uint32_t vector) const {
    return device::shared_base() + (kQuantizeSharedBytes + lane_ * kChunk * 4 + vector * 16);
  }

  /// The weight of the thread block's columns into shared memory.
  BLOCKSCALE_DEVICE void keep_weight() const {
    if (warp_ != 0) return;
    Chunk<Format::f32, kConfig.chunk> weight;
    load_operand(weight, p_.transform.weight, 0, column(), static_cast<int32_t>(p_.k - column()),
                 false);
    store_operand(weight, [&](uint32_t v) { return weight_at(v); });
  }

  /// The thread's chunk in the first of its warp's rows.
  BLOCKSCALE_DEVICE ChunkPlace place_in(uint32_t stripe) const {
    const StripePlace first = place_of_stripe(p_, stripe);
    return {first.matrix, first.row + warp_ * kRows, column()};
  }

  /// Begins to copy the warp's rows of a stripe, if it exists, each by a lane. All lanes have read
  /// what was in the slot, and met since (tell_maximum).
  BLOCKSCALE_DEVICE void copy(uint32_t slot, uint32_t stripe) const {
    if (stripe >= stripes() || lane_ >= kRows) return;
    const uint32_t bytes = bytes_of_tile_row(p_, mate_);
    const uint8_t* const from = x_of_tile_row(p_, stripe, mate_, warp_ * kRows + lane_);
    ptx::mbarrier_arrive_expect_tx(copied(slot), bytes);
    ptx::cp_async_bulk_shared_global(slot_at(slot) + lane_ * kStripeRowBytes, from, bytes,
                                     copied(slot));
  }

  BLOCKSCALE_DEVICE static Raw raw_of(const Words& words) {
    Raw raw;
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < 4; ++i) raw.word[i] = words.at[i];
    return raw;
  }
  BLOCKSCALE_DEVICE Raw load_chunk(ptx::SharedAddress slot, uint32_t row) const {
    return raw_of(ptx::ld_shared<Words>(chunk_at(slot, row)));
  }

  /// The sums that mates leave of the warp's rows in a stripe, those of a mate side by side.
  BLOCKSCALE_DEVICE uint64_t* sums_of(uint32_t stripe) const {
    const uint32_t of_warp = mates() * kPairs;
    return p_.stripes.sums + (uint64_t{stripe} * (kWarps * of_warp) + warp_ * of_warp);
  }

  /// Adds up the warp's rows in the next tile, if it exists, and tells the mates.
  BLOCKSCALE_DEVICE void leave_sums(uint32_t stripe) {
    if (stripe >= stripes()) return;
    device::mbarrier_wait(copied(sum_slot_), sum_parity_);
    const ptx::SharedAddress slot = slot_at(sum_slot_);
    sum_slot_ = next(sum_slot_);
    sum_parity_ ^= sum_slot_ == 0 ? 1 : 0;
    float of_row[kRows];
    BLOCKSCALE_UNROLL
    for (uint32_t row = 0; row < kRows; ++row) of_row[row] = sum_of_chunk(load_chunk(slot, row));
    // Lane bits 0, 1, 2 choose among 4, 2, 1 rows: neighbours are four lanes apart.
    const uint32_t lower = bit_cast<uint32_t>(scattered_sum<1>(of_row));
    const uint32_t upper = ptx::shfl_sync_bfly(ptx::kFullMask, lower, 4);
    const uint32_t pair = lane_ % 2 * 2 + lane_ / 2;
    if (lane_ < kPairs) {
      ptx::st_relaxed_gpu_global(sums_of(stripe) + mate_ * kPairs + pair,
                                 uint64_t{upper} << 32 | lower);
    }
    ptx::bar_warp_sync(ptx::kFullMask);  // the lanes go on together
  }

  static constexpr uint32_t kSumWords = kMaxMates * kPairs / 32;  // of a lane

  /// Loads a stripe's sums that are not there yet, as far as mates exist: of lane % kPairs's pair
  /// of rows those that mates i * 32 / kPairs + lane / kPairs leave.
  template <bool kAll>
  BLOCKSCALE_DEVICE void load_sums(uint32_t stripe) {
    const uint64_t* const from = sums_of(stripe) + lane_;
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kSumWords; ++i) {
      const bool wanted = kAll ? i * 32 + lane_ < mates() * kPairs : !is_there(sums_[i]);
      if (wanted) sums_[i] = ptx::ld_relaxed_gpu_global(from + i * 32);
    }
  }

  BLOCKSCALE_DEVICE static bool is_there(uint64_t sums) {
    return static_cast<uint32_t>(sums) != kNoSum;
  }

  /// Loads what there is of a stripe's sums; row_factor waits for the rest.
  BLOCKSCALE_DEVICE void ask_for_sums(uint32_t stripe) {
    if (stripe < stripes()) load_sums<true>(stripe);
  }

  /// Adds up from x what mates have not told of the stripe whose turn it is. Rolled up, so that the
  /// jump past it stays short: as 20 KiB of code it cost calls that never come here 1 us.
  BLOCKSCALE_DEVICE void add_up_missing_sums() {
    BLOCKSCALE_NO_UNROLL
    for (uint32_t i = 0; i < kSumWords; ++i) {
      uint64_t sums = sums_[0];
      BLOCKSCALE_NO_UNROLL
      for (uint32_t teller = 0; teller < 32; ++teller) {  // the lane that asks
        const uint32_t mate = (i * 32 + teller) / kPairs;
        const bool missing = lane_ == teller && mate < mates() && !is_there(sums);
        if (!ptx::vote_sync_any(ptx::kFullMask, missing)) continue;
        const uint32_t row = teller % kPairs * 2;
        const uint32_t lower = bit_cast<uint32_t>(sum_of_tile_row(mate, row));
        const uint32_t upper = bit_cast<uint32_t>(sum_of_tile_row(mate, row + 1));
        if (missing) sums = uint64_t{upper} << 32 | lower;
      }
      // The next one to the front; in the end all are where they were.
      BLOCKSCALE_UNROLL
      for (uint32_t j = 0; j + 1 < kSumWords; ++j) sums_[j] = sums_[j + 1];
      sums_[kSumWords - 1] = sums;
    }
  }

  /// Sum of squares of one of the warp's rows in a mate's tile, as leave_sums finds it.
  BLOCKSCALE_DEVICE float sum_of_tile_row(uint32_t mate, uint32_t row) const {
    Words words = {};
    if (lane_ * 16 < bytes_of_tile_row(p_, mate)) {
      const uint8_t* const from = x_of_tile_row(p_, stripe_, mate, warp_ * kRows + row);
      words = ptx::ld_global(reinterpret_cast<const Words*>(from) + lane_);
    }
    const float of_lane[1] = {sum_of_chunk(raw_of(words))};
    return scattered_sum<1>(of_lane);
  }

  /// The factor of one of the warp's rows: row_lane says whose. The warp polls as one, so that the
  /// shuffles behind are of one that has not diverged.
  BLOCKSCALE_DEVICE float row_factor() {
    BLOCKSCALE_NO_UNROLL
    for (uint32_t polls = 0;; ++polls) {
      bool all_there = true;
      BLOCKSCALE_UNROLL
      for (const uint64_t sums : sums_) all_there &= is_there(sums);
      if (ptx::vote_sync_all(ptx::kFullMask, all_there)) break;
      if (polls < kPatience) {
        load_sums<false>(stripe_);
      } else {
        add_up_missing_sums();
      }
    }
    float of_mates[2 * kSumWords];
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kSumWords; ++i) {
      of_mates[2 * i] = bit_cast<float>(static_cast<uint32_t>(sums_[i]));
      of_mates[2 * i + 1] = bit_cast<float>(static_cast<uint32_t>(sums_[i] >> 32));
    }
    static_assert(kSumWords == 4 && kPairs == 4);
    // Of 8 neighbouring mates: lane bits 2 and 3 choose i, bit 4 the row of the pair.
    float sum = scattered_sum<kPairs>(of_mates);
    sum = ptx::add_rn(sum, ptx::shfl_sync_bfly(ptx::kFullMask, sum, 8));
    sum = ptx::add_rn(sum, ptx::shfl_sync_bfly(ptx::kFullMask, sum, 4));
    return rms_factor(sum, p_.transform);
  }
  BLOCKSCALE_DEVICE static uint32_t row_lane(uint32_t row) { return row / 2 + row % 2 * 16; }

  /// Makes held_ of the tile whose turn it is. Returns bits of the largest magnitude of the lane's.
  BLOCKSCALE_DEVICE uint32_t take_values(uint32_t slot, float factor) {
    const ptx::SharedAddress from = slot_at(slot);
    Chunk<Format::f32, kConfig.chunk> weight;
    BLOCKSCALE_UNROLL
    for (uint32_t v = 0; v < kChunk / 4; ++v) {
      const Words words = ptx::ld_shared<Words>(weight_at(v));
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) weight.word[4 * v + i] = words.at[i];
    }
    Largest<Format::f32, false> largest;
    BLOCKSCALE_UNROLL
    for (uint32_t row = 0; row < kRows; ++row) {
      const float of_row = ptx::shfl_sync_idx(ptx::kFullMask, factor, row_lane(row));
      const Raw raw = load_chunk(from, row);
      fill_values(held_[row], [&](int i) {
        return math::rms_norm<device::KernelMath>(value_at(raw, i), of_row, value_at(weight, i));
      });
      largest.fold(held_[row]);
    }
    return largest.f32_bits();
  }

  /// Where warps tell the largest magnitude of the lane's block. A warp writes the place of a round
  /// again two rounds later: behind its wait for the round between, which all warps have told after
  /// they read.
  BLOCKSCALE_DEVICE ptx::SharedAddress maxima(uint32_t parity) const {
    return device::shared_base() + (parity * kMaximaBytes + lane_ / kBlockLanes * (4 * kWarps));
  }

  BLOCKSCALE_DEVICE void tell_maximum(uint32_t of_lane, uint32_t parity) const {
    const uint32_t of_warp = largest_of_lanes<kBlockLanes>(of_lane);
    if (lane_ % kBlockLanes == 0) ptx::st_shared(maxima(parity) + 4 * warp_, of_warp);
    ptx::bar_warp_sync(ptx::kFullMask);
    if (lane_ == 0) ptx::mbarrier_arrive(device::shared_base() + kToldAt);
  }

  /// The scale of the lane's block, from what its warps tell in a round.
  BLOCKSCALE_DEVICE BlockScale scale_of_block(uint32_t parity) const {
    device::mbarrier_wait(device::shared_base() + kToldAt, parity);
    // Warps of a block are neighbours, a power of two.
    const uint32_t warps = p_.block_rows / kRows;
    const uint32_t other = (warp_ & ~(warps - 1)) + (lane_ & (warps - 1));
    const uint32_t amax =
        largest_of_lanes<kBlockLanes>(ptx::ld_shared<uint32_t>(maxima(parity) + 4 * other));
    return fp8_block_scale<kConfig.element>(amax, p_.amax_floor, p_.fp8_scale);
  }

  BLOCKSCALE_DEVICE void store_codes_of_tile(uint32_t parity) const {
    const ChunkPlace place = place_in(stripe_);
    const BlockScale scale = scale_of_block(parity);
    const bool leads = lane_ % kBlockLanes == 0 && place.row % p_.block_rows == 0;
    if (leads && place.row < p_.rows && exists()) {
      const uint32_t stored[1] = {scale.stored};
      store_scales_at<kConfig>(p_, place.matrix, place.row / p_.block_rows,
                               place.column / kConfig.block, stored);
    }
    const bool exceptional = scale.exceptional || ShortQuotient::is_exceptional(scale.factor);
    const bool all_exist = place.row + kRows <= p_.rows;
    if (ptx::vote_sync_any(ptx::kFullMask, exceptional) || !all_exist || !p_.value_vectors) {
      BLOCKSCALE_UNROLL
      for (uint32_t row = 0; row < kRows; ++row) {
        store_exactly<kConfig>(p_, below(place, row), held_[row], scale);
      }
    } else if (exists()) {
      const ShortQuotient quotient(scale.factor);
      uint8_t* to = codes_at<kConfig.element>(p_, place);
      BLOCKSCALE_UNROLL
      for (uint32_t row = 0; row < kRows; ++row) {
        const auto scaled = [&](int i) { return quotient(value_at(held_[row], i)); };
        store_codes(encode_bytes<kConfig.element, kConfig.chunk>(scaled), to);
        to += p_.value_row_stride;
      }
    }
  }

  const QuantizeParams& p_;
  const uint32_t warp_;  // one number for the compiler, too: it may keep addresses once for a warp
  const uint32_t lane_;
  uint32_t stripe_;  // whose turn it is; the team's first one is its number
  const uint32_t mate_;
  uint32_t sum_slot_ = 0;  // of the tile that is added up next, and the parity of its mbarrier
  uint32_t sum_parity_ = 0;
  uint64_t sums_[kSumWords] = {};
  Values held_[kRows];
};

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_stripes(const QuantizeParams& p) {
  TeamStripes<kConfig>(p).quantize();
}

/// QuantizeKernel::clear. The next kernel may start at once, since it waits for this one, and so
/// for those before, ahead of all that it reads and writes.
BLOCKSCALE_DEVICE void clear_stripes(const QuantizeParams& p) {
  ptx::griddepcontrol_launch_dependents();
  if (p.prefetches) {  // the tile that the thread block of `stripe` with this number begins with
    const Mate mate = mate_of_block(p);
    prefetch_tile_of_stripe(p, mate.team, mate.number);
  }
  ptx::griddepcontrol_wait();
  using Words = device::Vector<uint32_t, 4>;
  const uint64_t thread = uint64_t{ptx::ctaid_x()} * ptx::ntid_x() + ptx::tid_x();
  const uint64_t threads = uint64_t{ptx::nctaid_x()} * ptx::ntid_x();
  for (uint64_t pair = thread; 2 * pair < p.stripes.words; pair += threads) {
    ptx::st_global(reinterpret_cast<Words*>(p.stripes.sums) + pair,
                   Words{{kNoSum, kNoSum, kNoSum, kNoSum}});
  }
}

}  // namespace blockscale::quantize_sm90
