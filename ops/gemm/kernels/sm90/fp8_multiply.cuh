// The warpgroups that multiply: 64 rows of the tile each.
//
// The tensor cores sum a k-block of 128 products with few bits; then its scales apply and f32 takes
// over. Two k-blocks are in flight: the next one's products run while this one is added up, half of
// them begun before the sums, the others behind them. Of three warpgroups each has one in flight,
// and they take turns: without that they would multiply together, and then all add.
#pragma once

#include "device/ptx/arithmetic.h"
#include "device/ptx/barrier.h"
#include "device/ptx/fence.h"
#include "device/ptx/sm90/wgmma.h"
#include "device/vector.h"
#include "ops/gemm/kernels/sm90/fp8_load.cuh"

namespace blockscale::fp8_gemm {

/// Products of one k-block, and the scales of this thread's rows r and r + 8: of A, or of A times
/// each block of B.
template <Fp8GemmConfig kConfig>
struct KBlock {
  static constexpr int kScales = kConfig.leaves_scales ? 1 : 2 * row_scales_of(kConfig);
  ptx::WgmmaAccumulator<kConfig.columns> products;
  uint32_t stage;
  device::Vector<float, kScales> scales;
};

template <Fp8GemmConfig kConfig, bool kMayGather>
class Multiplier {
 public:
  static constexpr int kSums = kConfig.columns / 2;

  /// `warp` counts from the first that multiplies; `gathers` says that threads copy A's rows.
  BLOCKSCALE_DEVICE Multiplier(const Shared<kConfig>& shared, uint32_t warp, bool gathers)
      : shared_(shared),
        gathers_(gathers),
        lane_(ptx::laneid()),
        warpgroup_(warp / 4),
        row_(warp * 16 + ptx::laneid() / 4) {
    if (!has_two_accumulators(kConfig) && warpgroup_ + 1 == kWarpgroups) pass_turn();
  }

  /// Sums of `count` k-blocks, as a wgmma accumulator has them. From column `boundary` on a tile of
  /// two blocks of B takes the second one's scale. `meanwhile` is done once the tensor cores have
  /// something to do.
  template <class Meanwhile>
  BLOCKSCALE_DEVICE void multiply(uint32_t count, uint32_t boundary, float (&sums)[kSums],
                                  const Meanwhile& meanwhile) {
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kSums; ++i) sums[i] = 0;
    if (count == 0) {
      meanwhile();
      return;
    }
    if constexpr (has_two_accumulators(kConfig)) {
      multiply_ahead(count, boundary, sums, meanwhile);
    } else {
      multiply_ping_pong(count, boundary, sums, meanwhile);
    }
  }

  /// Leaves the stages of `count` k-blocks, and its turns, to the other warpgroups: where none of
  /// this one's rows is the group's.
  BLOCKSCALE_DEVICE void skip(uint32_t count) {
    BLOCKSCALE_NO_UNROLL
    for (; count != 0; --count) {
      shared_.ring.wait_full(place_);
      if constexpr (!has_two_accumulators(kConfig)) {
        await_turn();
        pass_turn();
      }
      leave(place_.stage);
      place_.advance(shared_.ring.stages);
    }
  }

 private:
  /// The next k-block's products run while the sums are made.
  template <class Meanwhile>
  BLOCKSCALE_DEVICE void multiply_ahead(uint32_t count, uint32_t boundary, float (&sums)[kSums],
                                        const Meanwhile& meanwhile) {
    KBlock<kConfig> x, y;
    begin(x);
    go_on(x);
    meanwhile();
    BLOCKSCALE_NO_UNROLL
    for (;;) {
      if (--count == 0) {
        ptx::wgmma_wait_group<0>(x.products);
        finish(x, boundary, sums);
        return;
      }
      begin(y);
      ptx::wgmma_wait_group<1>(x.products);
      finish(x, boundary, sums);
      go_on(y);
      if (--count == 0) {
        ptx::wgmma_wait_group<0>(y.products);
        finish(y, boundary, sums);
        return;
      }
      begin(x);
      ptx::wgmma_wait_group<1>(y.products);
      finish(y, boundary, sums);
      go_on(x);
    }
  }

  /// Other warpgroups' products do: each waits until those of the one before it have begun, of
  /// which the tensor cores then have enough to do.
  template <class Meanwhile>
  BLOCKSCALE_DEVICE void multiply_ping_pong(uint32_t count, uint32_t boundary, float (&sums)[kSums],
                                            const Meanwhile& meanwhile) {
    KBlock<kConfig> x;
    bool is_there = false;  // the next stage, as far as is known
    BLOCKSCALE_NO_UNROLL
    while (--count != 0) {
      take_turn(x, is_there);
      ptx::wgmma_wait_group<0>(x.products);
      if constexpr (kConfig.promotion == Promotion::blocks) {
        leave(x.stage);
        is_there = shared_.ring.is_full(place_);
        add_by_blocks(x, boundary, sums);
      } else {
        is_there = shared_.ring.is_full(place_);
        add_by_columns(x, sums);
      }
    }
    take_turn(x, is_there);
    meanwhile();
    ptx::wgmma_wait_group<0>(x.products);
    finish(x, boundary, sums);
  }

  /// Begins the next stage's products, in this warpgroup's turn. `is_there`: the stage need not be
  /// waited for.
  BLOCKSCALE_DEVICE void take_turn(KBlock<kConfig>& x, bool is_there) {
    if (!is_there) shared_.ring.wait_full(place_);
    take_stage(x);
    await_turn();
    ptx::wgmma_fence(x.products);
    multiply_bytes<0, kFp8BlockK>(x);
    pass_turn();
  }

  static constexpr uint32_t kWarpgroups = static_cast<uint32_t>(math_warpgroups(kConfig));
  static constexpr uint32_t kFirstTurn = 2;      // barriers, one for each warpgroup
  static constexpr uint32_t kTurnThreads = 256;  // who waits, and who passes the turn to them

  BLOCKSCALE_DEVICE void await_turn() const {
    ptx::bar_sync(kFirstTurn + warpgroup_, kTurnThreads);
  }
  /// The next warpgroup may multiply.
  BLOCKSCALE_DEVICE void pass_turn() const {
    const uint32_t next = warpgroup_ + 1 == kWarpgroups ? 0 : warpgroup_ + 1;
    ptx::bar_arrive(kFirstTurn + next, kTurnThreads);
  }

  /// Goes on to the next stage, which is there, and reads its scales.
  BLOCKSCALE_DEVICE void take_stage(KBlock<kConfig>& x) {
    if (kMayGather && gathers_) ptx::fence_proxy_async_shared();
    x.stage = place_.stage;
    place_.advance(shared_.ring.stages);
    if constexpr (!kConfig.leaves_scales) {
      x.scales = ptx::ld_shared<decltype(x.scales)>(shared_.row_scale(x.stage, row_));
    }
  }

  /// Begins the next stage's products, or their first half.
  BLOCKSCALE_DEVICE void begin(KBlock<kConfig>& x) {
    shared_.ring.wait_full(place_);
    take_stage(x);
    ptx::wgmma_fence(x.products);
    multiply_bytes<0, kFirstBytes>(x);
  }
  /// Begins what begin() has left.
  BLOCKSCALE_DEVICE void go_on(KBlock<kConfig>& x) {
    if constexpr (kFirstBytes < kFp8BlockK) multiply_bytes<kFirstBytes, kFp8BlockK>(x);
  }

  /// Bytes of k that begin() multiplies: half of a k-block, but that who has a scale of each column
  /// to read has no register for two beginnings.
  static constexpr uint32_t kFirstBytes =
      kConfig.promotion == Promotion::columns ? kFp8BlockK : kFp8BlockK / 2;

  template <uint32_t kBegin, uint32_t kEnd>
  BLOCKSCALE_DEVICE void multiply_bytes(KBlock<kConfig>& x) {
    constexpr uint32_t kRowBytes = 64 * kFp8BlockK;  // of a warpgroup
    constexpr uint32_t kStep = 32;                   // bytes of k of one instruction
    const ptx::WgmmaDescriptor a = ptx::wgmma_descriptor(
        shared_.a(x.stage) + warpgroup_ * kRowBytes, TensorMapSwizzle::bytes_128);
    const ptx::WgmmaDescriptor b =
        ptx::wgmma_descriptor(shared_.b(x.stage), TensorMapSwizzle::bytes_128);
    BLOCKSCALE_UNROLL
    for (uint32_t k = kBegin; k < kEnd; k += kStep) {
      ptx::wgmma_mma_async<ptx::WgmmaElement::e4m3, ptx::WgmmaElement::e4m3>(x.products, a + k,
                                                                             b + k, k != 0);
    }
    ptx::wgmma_commit_group();
  }

  /// Adds products that have ended to the sums, and leaves their stage.
  BLOCKSCALE_DEVICE void finish(const KBlock<kConfig>& x, uint32_t boundary,
                                float (&sums)[kSums]) const {
    if constexpr (kConfig.promotion == Promotion::blocks) {
      leave(x.stage);
      add_by_blocks(x, boundary, sums);
    } else {
      add_by_columns(x, sums);
    }
  }

  BLOCKSCALE_DEVICE void add_by_blocks(const KBlock<kConfig>& x, uint32_t boundary,
                                       float (&sums)[kSums]) const {
    if constexpr (kConfig.leaves_scales) {
      BLOCKSCALE_UNROLL
      for (int i = 0; i < kSums; ++i) sums[i] = ptx::add_rn(x.products.get(i), sums[i]);
      return;
    }
    constexpr int kBlocks = row_scales_of(kConfig);
    constexpr int kAlike = 16;  // sums of 32 columns: no tile meets a block of B elsewhere
    static_assert(kSums % kAlike == 0);
    BLOCKSCALE_UNROLL
    for (int first = 0; first < kSums; first += kAlike) {
      const bool second = kBlocks == 2 && static_cast<uint32_t>(2 * first) >= boundary;
      const float scale[2] = {second ? x.scales.at[2 * kBlocks - 2] : x.scales.at[0],
                              second ? x.scales.at[2 * kBlocks - 1] : x.scales.at[1]};
      BLOCKSCALE_UNROLL
      for (int i = first; i < first + kAlike; ++i) {
        sums[i] = ptx::fma_rn(x.products.get(i), scale[i / 2 % 2], sums[i]);
      }
    }
  }

  BLOCKSCALE_DEVICE void add_by_columns(const KBlock<kConfig>& x, float (&sums)[kSums]) const {
    BLOCKSCALE_UNROLL
    for (int j = 0; j < kSums / 4; ++j) {
      const uint32_t column = 8 * static_cast<uint32_t>(j) + lane_ % 4 * 2;
      const auto b =
          ptx::ld_shared<device::Vector<float, 2>>(shared_.column_scale(x.stage, column));
      if (j == kSums / 4 - 1) leave(x.stage);
      BLOCKSCALE_UNROLL
      for (int i = 4 * j; i < 4 * j + 4; ++i) {
        const float by_row = ptx::mul_rn(x.products.get(i), x.scales.at[i / 2 % 2]);
        sums[i] = ptx::fma_rn(by_row, b.at[i % 2], sums[i]);
      }
    }
  }

  /// Each warp says so when all of its lanes have read what they want of a stage.
  BLOCKSCALE_DEVICE void leave(uint32_t stage) const {
    ptx::bar_warp_sync(ptx::kFullMask);
    if (lane_ == 0) ptx::mbarrier_arrive(shared_.ring.empty(stage));
  }

  const Shared<kConfig>& shared_;
  bool gathers_;
  uint32_t lane_;
  uint32_t warpgroup_;
  uint32_t row_;  // the thread's first in the tile; the other is row_ + 8
  device::StagePlace place_;
};

}  // namespace blockscale::fp8_gemm
