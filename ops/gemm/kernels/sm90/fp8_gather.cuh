// The warpgroup that loads where rows of A are gathered, which no tensor copy of Hopper does. Its
// warps take turns at k-blocks: one copies A's rows, a thread 16 bytes at a time, brings the scales
// of both operands, and begins the tensor copies of B.
//
// A thread's copies belong to the generic proxy: the warp waits for those of its k-block, fences
// them for wgmma, and says that they are there, while the others have k-blocks on their way.
#pragma once

#include "device/ptx/cp_async.h"
#include "device/ptx/fence.h"
#include "ops/gemm/kernels/sm90/fp8_load.cuh"

namespace blockscale::fp8_gemm {

/// Warp `warp` of kGatherWarps.
template <Fp8GemmConfig kConfig, class Order>
class RowGatherer {
 public:
  BLOCKSCALE_DEVICE RowGatherer(const Work<kConfig, Order>& work, const Shared<kConfig>& shared,
                                uint32_t warp)
      : work_(work),
        shared_(shared),
        warps_(shared.ring.stages < kGatherWarps ? shared.ring.stages : kGatherWarps),
        lane_(ptx::laneid()),
        table_(shared.gathered_rows(work.p.order.shared_bytes()) + warp * kRows * 4),
        k_(work.k_begin + warp) {
    place_.advance(shared.ring.stages, warp);
  }

  BLOCKSCALE_DEVICE void run() {
    if (place_.parity != 0) return;  // a warp more than there are stages
    for_each_tile(work_, [&](const Tile& tile) {
      if (k_ < work_.k_end) bring(tile);
      k_ -= work_.k_end - work_.k_begin;
    });
  }

 private:
  using Params = Fp8GemmParamsOf<Order>;
  static constexpr uint32_t kRows = static_cast<uint32_t>(kConfig.rows);
  static constexpr uint32_t kColumns = static_cast<uint32_t>(kConfig.columns);
  static constexpr uint32_t kUnit = 16;   // bytes of a copy
  static constexpr uint32_t kAtOnce = 4;  // rows of a warp's copy, of 8 lanes each
  static constexpr bool kByColumns = kConfig.promotion == Promotion::columns;
  /// Copies whose rows are looked up together, as registers allow.
  static constexpr uint32_t kTogether = 4;
  static constexpr uint32_t kA = kRows / 32;  // scales of a lane
  static constexpr uint32_t kB =
      kByColumns ? (kColumns + 31) / 32 : static_cast<uint32_t>(b_scales_of(kConfig));
  static_assert(kRows % (kAtOnce * kTogether) == 0);

  /// Scales as they are stored.
  struct Codes {
    uint32_t a[kA], b[kB];
  };

  /// This warp's k-blocks of a tile.
  BLOCKSCALE_DEVICE void bring(const Tile& tile) {
    const TileCopies<kConfig, Order, true> copies(work_, shared_, tile);
    find_rows(tile);
    BLOCKSCALE_NO_UNROLL
    for (; k_ < work_.k_end; k_ += warps_) {
      Codes codes;  // on their way while rows are copied, where registers suffice
      if constexpr (!kByColumns) codes = load(tile);
      shared_.ring.wait_empty(place_);
      copies.begin(place_.stage, k_);
      copy_rows();
      if constexpr (kByColumns) codes = load(tile);
      store(codes);
      ptx::cp_async_wait_all();
      ptx::fence_proxy_async_shared();
      ptx::bar_warp_sync(ptx::kFullMask);
      if (lane_ == 0) ptx::mbarrier_arrive(shared_.ring.full(place_.stage));
      place_.advance(shared_.ring.stages, warps_);
    }
  }

  /// Where the tile's rows of A begin, in units, to the warp's table, and where their scales do:
  /// kNone of those that are zeros.
  BLOCKSCALE_DEVICE void find_rows(const Tile& tile) {
    const Params& p = work_.p;
    const auto units = static_cast<uint32_t>(p.gather.row_stride / kUnit);
    rows_ = tile.end_row - tile.first_row < kRows ? tile.end_row - tile.first_row : kRows;
    ptx::bar_warp_sync(ptx::kFullMask);  // all have read the tile before
    BLOCKSCALE_UNROLL
    for (uint32_t j = 0; j < kA; ++j) {
      const uint32_t own = 32 * j + lane_, row = tile.first_row + own;
      const uint32_t from = row < tile.end_row ? p.gather.row(row) : GatheredA::kNone;
      const bool exists = from != GatheredA::kNone;
      a_row_[j] = exists ? static_cast<uint32_t>(p.a_scales.row_offset(from)) : GatheredA::kNone;
      ptx::st_shared(table_ + own * 4, exists ? from * units : GatheredA::kNone);
    }
    ptx::bar_warp_sync(ptx::kFullMask);
  }

  /// Copies a k-block's rows as a tensor copy would leave them, zeros where A has none. Most of
  /// those that the group does not have are left out.
  BLOCKSCALE_DEVICE void copy_rows() const {
    const GatheredA& gather = work_.p.gather;
    const uint32_t chunk = lane_ % 8, at = k_ * kFp8BlockK + chunk * kUnit;
    const uint32_t behind = at < gather.k ? GatheredA::kNone : 0;  // of rows that are read
    const uint8_t* const from = gather.values + at;
    const ptx::SharedAddress to = shared_.a(place_.stage) + lane_ / 8 * kFp8BlockK;
    BLOCKSCALE_NO_UNROLL
    for (uint32_t first = 0; first < rows_; first += kAtOnce * kTogether) {
      uint32_t rows[kTogether];
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kTogether; ++i) {
        rows[i] = ptx::ld_shared<uint32_t>(table_ + (first + kAtOnce * i + lane_ / 8) * 4);
      }
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kTogether; ++i) {
        const uint32_t swizzled = (chunk ^ (kAtOnce * i + lane_ / 8) % 8) * kUnit;
        ptx::cp_async_cg_if(rows[i] < behind, to + ((first + kAtOnce * i) * kFp8BlockK + swizzled),
                            from + uint64_t{rows[i]} * kUnit);
      }
    }
  }

  BLOCKSCALE_DEVICE static uint32_t load_code(const GemmScales& scales, bool exists,
                                              uint32_t matrix, int64_t offset) {
    if (!exists || scales.data == nullptr) return 0;
    if (scales.bytes) return ptx::ld_global(first_code<uint8_t>(scales, matrix) + offset);
    return ptx::ld_global(first_code<uint32_t>(scales, matrix) + offset);
  }
  /// 1 where scales are left to the epilogue.
  BLOCKSCALE_DEVICE static float value_of(const GemmScales& scales, uint32_t code) {
    if (scales.data == nullptr) return 1.0f;
    return scales.bytes ? scale_value(static_cast<uint8_t>(code)) : scale_value(code);
  }

  /// Begins to load the scales of k-block k_.
  BLOCKSCALE_DEVICE Codes load(const Tile& tile) const {
    const Params& p = work_.p;
    const int64_t a_k = p.a_scales.k_offset(k_), b_k = p.b_scales.k_offset(k_);
    Codes codes;
    BLOCKSCALE_UNROLL
    for (uint32_t j = 0; j < kA; ++j) {
      codes.a[j] = load_code(p.a_scales, a_row_[j] != GatheredA::kNone, 0, a_row_[j] + a_k);
    }
    BLOCKSCALE_UNROLL
    for (uint32_t j = 0; j < kB; ++j) {
      const uint32_t row = row_of_b_scale<kConfig>(p, tile.n, j);
      codes.b[j] = load_code(p.b_scales, true, tile.group,
                             row_offset(p.b_scales, row, p.epilogue.columns) + b_k);
    }
    return codes;
  }

  BLOCKSCALE_DEVICE void store(const Codes& codes) const {
    const Params& p = work_.p;
    BLOCKSCALE_UNROLL
    for (uint32_t j = 0; j < kA; ++j) {
      const float a = value_of(p.a_scales, codes.a[j]);
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < static_cast<uint32_t>(row_scales_of(kConfig)); ++i) {
        const float scale = kByColumns ? a : ptx::mul_rn(a, value_of(p.b_scales, codes.b[i]));
        ptx::st_shared(shared_.row_scale(place_.stage, 32 * j + lane_, i), scale);
      }
    }
    if constexpr (kByColumns) {
      BLOCKSCALE_UNROLL
      for (uint32_t j = 0; j < kB; ++j) {
        const uint32_t column = 32 * j + lane_;
        if (column < kColumns) {
          ptx::st_shared(shared_.column_scale(place_.stage, column),
                         value_of(p.b_scales, codes.b[j]));
        }
      }
    }
  }

  const Work<kConfig, Order>& work_;
  const Shared<kConfig>& shared_;
  uint32_t warps_;  // that take turns: no more than there are stages
  uint32_t lane_;
  ptx::SharedAddress table_;
  uint32_t k_;  // of the warp's next turn; beyond the tile's last it lies in a tile behind
  device::StagePlace place_;
  uint32_t rows_ = 0;  // of the tile, that its group has
  uint32_t a_row_[kA];
};

}  // namespace blockscale::fp8_gemm
