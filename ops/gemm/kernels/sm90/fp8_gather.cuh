// Rows of A that are gathered, which no tensor copy of Hopper does: three warps of the warpgroup
// that loads copy them, a thread 16 bytes at a time, and the fourth brings scales (fp8_load.cuh).
//
// Who copies has a part of each k-block and waits for nothing but an empty stage: copies arrive by
// themselves when they have ended, so that a stage is full as soon as memory is, and all that are
// empty are on their way. What a warp issues for a k-block binds then, so that it looks nothing up:
// where a thread's rows begin lies in registers. Copies of threads belong to the generic proxy: who
// multiplies fences what has come.
#pragma once

#include "device/ptx/arithmetic.h"
#include "device/ptx/cp_async.h"
#include "ops/gemm/kernels/sm90/fp8_load.cuh"

namespace blockscale::fp8_gemm {

/// Warp `warp` of kGatherWarps, of which the first begins the tensor copies of B.
template <Fp8GemmConfig kConfig, class Order>
class RowGatherer {
 public:
  BLOCKSCALE_DEVICE RowGatherer(const Work<kConfig, Order>& work, const Shared<kConfig>& shared,
                                uint32_t warp)
      : work_(work), shared_(shared), warp_(warp) {}

  BLOCKSCALE_DEVICE void run() {
    for_each_tile(work_, [&](const Tile& tile) {
      const TileCopies<kConfig, Order, true> copies(work_, shared_, tile);
      find_rows(tile);
      BLOCKSCALE_NO_UNROLL
      for (uint32_t k = work_.k_begin; k < work_.k_end; ++k) {
        shared_.ring.wait_empty(place_);
        if (warp_ == 0) copies.begin(place_.stage, k);
        if (has_all_ && (k + 1) * kFp8BlockK <= work_.p.gather.k) {
          copy_rows<true>(k);
        } else {
          copy_rows<false>(k);
        }
        ptx::cp_async_mbarrier_arrive_noinc(shared_.ring.full(place_.stage));
        place_.advance(shared_.ring.stages);
      }
    });
  }

 private:
  static constexpr uint32_t kRows = static_cast<uint32_t>(kConfig.rows);
  static constexpr uint32_t kUnit = 16;                   // bytes of a copy
  static constexpr uint32_t kUnits = kFp8BlockK / kUnit;  // of a row's k-block
  static constexpr uint32_t kOfWarp = 32 / kUnits;        // rows that a warp copies at once
  static constexpr uint32_t kAtOnce = kGatherWarps * kOfWarp;
  static constexpr uint32_t kCopies = (kRows + kAtOnce - 1) / kAtOnce;  // of a thread, at most
  static constexpr uint32_t kTogether = 4;  // copies that are left out together
  static_assert(2 * kAtOnce % 8 == 0, "every other copy of a thread is swizzled alike");
  static_assert(!kConfig.leaves_scales, "a stage waits for the warp that brings its scales");

  /// The row of a tile that is copy `i` of this thread.
  BLOCKSCALE_DEVICE uint32_t row_of(uint32_t i) const {
    return i * kAtOnce + warp_ * kOfWarp + ptx::laneid() / kUnits;
  }

  /// Finds where the rows of A begin that this thread copies, in units.
  BLOCKSCALE_DEVICE void find_rows(const Tile& tile) {
    const auto units = static_cast<uint32_t>(work_.p.gather.row_stride / kUnit);
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kCopies; ++i) from_[i] = gathered_row(work_.p, tile, row_of(i));
    has_all_ = true;
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kCopies; ++i) {
      has_all_ = has_all_ && from_[i] != GatheredA::kNone;
      if (from_[i] != GatheredA::kNone) from_[i] *= units;
    }
    rows_ = tile.end_row - tile.first_row < kRows ? tile.end_row - tile.first_row : kRows;
  }

  /// Begins to copy a k-block's rows to where a tensor copy would leave them, zeros where A has
  /// none, unless kAreThere says that it has all of them. Most of those that the group does not
  /// have are left out.
  template <bool kAreThere>
  BLOCKSCALE_DEVICE void copy_rows(uint32_t k) const {
    const GatheredA& gather = work_.p.gather;
    const uint32_t unit = ptx::laneid() % kUnits, at = k * kFp8BlockK + unit * kUnit;
    const uint32_t behind = at < gather.k ? GatheredA::kNone : 0;  // of rows that are read
    const uint8_t* const from = ptx::in_register(gather.values + at);
    const ptx::SharedAddress stage = shared_.a(place_.stage);
    const ptx::SharedAddress to[2] = {stage + swizzled(row_of(0), unit),
                                      stage + swizzled(row_of(1), unit)};
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kCopies; ++i) {
      if (i % kTogether == 0 && i * kAtOnce >= rows_) break;
      if (i + 1 == kCopies && kRows % kAtOnce != 0 && row_of(i) >= kRows) break;
      const ptx::SharedAddress place = to[i % 2] + i / 2 * (2 * kAtOnce * kFp8BlockK);
      const uint8_t* const values = from + uint64_t{from_[i]} * kUnit;
      if constexpr (kAreThere) {
        ptx::cp_async_cg(place, values);
      } else {
        ptx::cp_async_cg_if(from_[i] < behind, place, values);
      }
    }
  }
  /// Where a unit of a row lies in a stage.
  BLOCKSCALE_DEVICE static uint32_t swizzled(uint32_t row, uint32_t unit) {
    return row * kFp8BlockK + (unit ^ row % 8) * kUnit;
  }

  const Work<kConfig, Order>& work_;
  const Shared<kConfig>& shared_;
  uint32_t warp_;
  device::StagePlace place_;
  uint32_t rows_ = 0;     // of the tile, that its group has
  bool has_all_ = false;  // A has all rows that this thread copies
  uint32_t from_[kCopies];
};

}  // namespace blockscale::fp8_gemm
