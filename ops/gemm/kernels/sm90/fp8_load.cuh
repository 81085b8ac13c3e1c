// The warpgroup that loads: one warp begins copies of A's and B's tiles, the others bring the
// scales. Scales are few, of any layout, stride and type, and seldom fit TMA's rules: they are read
// with ordinary loads, some k-blocks ahead, and stored as f32 in a tile's own order.
#pragma once

#include "device/ptx/barrier.h"
#include "device/ptx/cp_async.h"
#include "device/ptx/fence.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/tensor_copy.h"
#include "device/ptx/warp.h"
#include "ops/gemm/kernels/sm90/fp8_scale_boxes.cuh"
#include "ops/gemm/kernels/sm90/fp8_shared.cuh"

namespace blockscale::fp8_gemm {

/// By the warp that copies.
template <Fp8GemmConfig kConfig, class Order>
BLOCKSCALE_DEVICE void load_operands(const Work<kConfig, Order>& work,
                                     const Shared<kConfig>& shared) {
  const Fp8GemmParamsOf<Order>& p = work.p;
  device::StagePlace place;
  ScaleProducer<kConfig, Order> scales(work, shared);
  for_each_tile(work, [&](const Tile& tile) {
    const int32_t row = static_cast<int32_t>(tile.first_row);
    const int32_t column = static_cast<int32_t>(kConfig.quantizes ? p.runs.box_row(tile.n, 0)
                                                                  : tile.n * kConfig.columns);
    const int32_t second = static_cast<int32_t>(p.runs.box_row(tile.n, 1));
    const int32_t a_matrix = p.a_batched ? static_cast<int32_t>(work.matrix(tile)) : 0;
    const int32_t b_matrix = p.b_batched ? static_cast<int32_t>(tile.group) : 0;
    const bool a_tail = work.takes_tail(tile);
    const bool last_column = !kConfig.quantizes && tile.n + 1 == p.order.tiles_n;
    const TensorMap* const a = p.map(a_tail ? Fp8GemmMap::a_tail : Fp8GemmMap::a);
    const TensorMap* const b_map = p.map(last_column ? Fp8GemmMap::b_second : Fp8GemmMap::b);
    const bool gathers = Order::kGathersRows && p.gather.index != nullptr;
    const uint32_t bytes = (gathers  ? 0
                            : a_tail ? p.a_tail_bytes
                                     : p.a_bytes) +
                           (last_column ? p.b_tail_bytes : p.b_bytes);
    BLOCKSCALE_NO_UNROLL
    for (uint32_t k = work.k_begin; k < work.k_end; ++k) {
      shared.ring.wait_empty(place);
      if (ptx::elect_sync()) {
        const ptx::SharedAddress full = shared.ring.full(place.stage);
        const ptx::SharedAddress b = shared.b(place.stage);
        const int32_t byte = static_cast<int32_t>(k) * kFp8BlockK;
        const ptx::TensorCoordinates<3> b_at = {{byte, column, b_matrix}};
        ptx::mbarrier_arrive_expect_tx(full, bytes);
        if (!gathers) {
          ptx::cp_async_bulk_tensor_shared_global<3>(shared.a(place.stage), a,
                                                     {{byte, row, a_matrix}}, full);
        }
        if (p.b_once) {
          ptx::cp_async_bulk_tensor_shared_global<3>(b, b_map, b_at, full,
                                                     ptx::createpolicy_evict_first());
        } else {
          ptx::cp_async_bulk_tensor_shared_global<3>(b, b_map, b_at, full);
        }
        if constexpr (kConfig.quantizes) {
          ptx::cp_async_bulk_tensor_shared_global<3>(b + kRunColumns * kFp8BlockK,
                                                     p.map(Fp8GemmMap::b_second),
                                                     {{byte, second, b_matrix}}, full);
        }
      }
      place.advance(shared.ring.stages);
      scales.follow(k);
    }
  });
}

/// The code of a scale that is left to the epilogue: 1 until then.
struct UnitScale {};
using blockscale::scale_value;
BLOCKSCALE_DEVICE float scale_value(UnitScale) {
  return 1.0f;
}
BLOCKSCALE_DEVICE UnitScale load_code(const UnitScale*) {
  return {};
}
template <class Code>
BLOCKSCALE_DEVICE Code load_code(const Code* p) {
  return ptx::ld_global(p);
}
/// A finite one where there is none.
BLOCKSCALE_DEVICE UnitScale load_code_if(bool, const UnitScale*) {
  return {};
}
template <class Code>
BLOCKSCALE_DEVICE Code load_code_if(bool exists, const Code* p) {
  return exists ? ptx::ld_global(p) : Code{0};
}

/// The warps that bring scales take turns at k-blocks: to wait for a stage, to store and to arrive
/// take one warp longer than the products of a k-block. Each has loaded the scales of its next
/// turns; nothing but loads stands between loads, because a branch would wait for each.
///
/// Where rows of A are gathered, the same warp copies those of its k-blocks. They are there, for
/// all that reads them, when its next turn comes: the warps have a k-block each on its way.
template <Fp8GemmConfig kConfig, class Order, class ACode, class BCode, bool kGathers>
class ScaleLoader {
 public:
  BLOCKSCALE_DEVICE ScaleLoader(const Work<kConfig, Order>& work, const Shared<kConfig>& shared,
                                uint32_t warp)
      : work_(work), shared_(shared), k_(work.k_begin + warp) {
    place_.stage = warp;
  }

  BLOCKSCALE_DEVICE void run() {
    if (work_.k_begin == work_.k_end) return;
    begin_tile();
    Scales ahead[kAhead];
    bool has[kAhead];
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kAhead; ++i) has[i] = load(ahead[i]);
    BLOCKSCALE_NO_UNROLL
    for (;;) {
      BLOCKSCALE_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        if (!has[i]) return end_copies();
        store(ahead[i]);
        has[i] = load(ahead[i]);
      }
    }
  }

 private:
  static constexpr uint32_t kRows = static_cast<uint32_t>(kConfig.rows);
  static constexpr uint32_t kColumns = static_cast<uint32_t>(kConfig.columns);
  static constexpr bool kByColumns = kConfig.promotion == Promotion::columns;
  static constexpr uint32_t kA = kRows / 32;  // of a lane
  static constexpr uint32_t kB =
      kByColumns ? (kColumns + 31) / 32 : static_cast<uint32_t>(b_scales_of(kConfig));

  /// Turns, as registers allow: a loader has 56 beside three warpgroups, else 40.
  static constexpr int kAhead =
      !kGathers && kA + kB < (loader_registers(kConfig) > 40 ? 12 : 8) ? 2 : 1;

  struct Scales {
    ACode a[kA];
    BCode b[kB];
  };

  /// Goes on to the tile that k_ lies in, and finds where its scales begin. Rows outside of a
  /// group or matrix take its last row's: what they scale is not stored.
  BLOCKSCALE_DEVICE void begin_tile() {
    const uint32_t count = work_.k_end - work_.k_begin;
    BLOCKSCALE_NO_UNROLL
    while (k_ >= work_.k_end) {
      k_ -= count;
      ++turn_;
    }
    if (!work_.has(turn_)) return;
    const Fp8GemmParamsOf<Order>& p = work_.p;
    const Tile tile = turn_ == 0 ? work_.first_tile : work_.tile(turn_);
    const uint32_t lane = ptx::laneid();
    a_ = first_code<ACode>(p.a_scales, work_.matrix(tile));
    b_ = first_code<BCode>(p.b_scales, tile.group);
    if constexpr (kGathers) rows_ = tile.end_row - tile.first_row;
    BLOCKSCALE_UNROLL
    for (uint32_t j = 0; j < kA; ++j) {
      const uint32_t row = tile.first_row + 32 * j + lane;
      if constexpr (kGathers) {
        from_[j] = p.gather.row(row < tile.end_row ? row : tile.end_row - 1);
      } else {
        a_row_[j] = row_offset(p.a_scales, row, tile.end_row);
      }
    }
    BLOCKSCALE_UNROLL
    for (uint32_t j = 0; j < kB; ++j) {
      b_row_[j] = row_offset(p.b_scales, b_row(tile.n, j), p.epilogue.columns);
    }
  }
  template <class Code>
  BLOCKSCALE_DEVICE static const Code* first_code(const GemmScales& scales, uint32_t matrix) {
    return reinterpret_cast<const Code*>(scales.data) + matrix * scales.batch_stride;
  }
  /// The row of B that has this lane's scale `j`.
  BLOCKSCALE_DEVICE uint32_t b_row(uint32_t tile, uint32_t j) const {
    if constexpr (kConfig.quantizes) {
      constexpr uint32_t kOfRun = kByColumns ? kRunColumns / 32 : 1;
      return work_.p.runs.row(tile, j / kOfRun, kByColumns ? j % kOfRun * 32 + ptx::laneid() : 0);
    } else {
      const uint32_t column = 32 * j + ptx::laneid();  // of the tile
      const uint32_t first = tile * kColumns;
      return kByColumns ? first + column : (first / 128 + j) * 128;
    }
  }
  BLOCKSCALE_DEVICE static uint32_t row_offset(const GemmScales& scales, uint32_t row,
                                               uint32_t rows) {
    return static_cast<uint32_t>(scales.row_offset(row < rows ? row : rows - 1));
  }

  /// Begins to load the scales of this warp's next k-block; false if there is none.
  BLOCKSCALE_DEVICE bool load(Scales& to) {
    // (Whoever copies rows needs those of its last turn until this one.)
    if (kGathers && k_ >= work_.k_end) begin_tile();
    if (!work_.has(turn_)) return false;
    const ACode* const a = a_ + work_.p.a_scales.k_offset(k_);
    const BCode* const b = b_ + work_.p.b_scales.k_offset(k_);
    BLOCKSCALE_UNROLL
    for (uint32_t j = 0; j < kA; ++j) {
      if constexpr (kGathers) {
        const bool exists = from_[j] != GatheredA::kNone;
        to.a[j] = load_code_if(exists, a + work_.p.a_scales.row_offset(exists ? from_[j] : 0));
      } else {
        to.a[j] = load_code(a + a_row_[j]);
      }
    }
    BLOCKSCALE_UNROLL
    for (uint32_t j = 0; j < kB; ++j) to.b[j] = load_code(b + b_row_[j]);
    k_ += kScaleWarps;
    if (!kGathers && k_ >= work_.k_end) begin_tile();
    return true;
  }

  /// Begins to copy a stage's rows of A of the last turn that was loaded, as a tensor copy would
  /// leave them: a lane has a chunk of 16 bytes of every fourth row, of those that the group has.
  BLOCKSCALE_DEVICE void copy_rows() const {
    const GatheredA& gather = work_.p.gather;
    const uint32_t lane = ptx::laneid(), chunk = lane % 8;
    const uint32_t at = (k_ - kScaleWarps) * kFp8BlockK + chunk * 16;
    const uint32_t left = at < gather.k ? gather.k - at : 0, bytes = left < 16 ? left : 16;
    BLOCKSCALE_UNROLL
    for (uint32_t j = 0; j < kA; ++j) {
      BLOCKSCALE_UNROLL_BY_4
      for (uint32_t i = 0; i < 8; ++i) {
        const uint32_t own = 32 * j + 4 * i + lane / 8;  // of the tile
        const uint32_t from = ptx::shfl_sync_idx(ptx::kFullMask, from_[j], own % 32);
        if (own >= rows_) continue;
        const bool exists = from != GatheredA::kNone && bytes != 0;
        ptx::cp_async_cg(shared_.a(place_.stage) + (own * kFp8BlockK + (chunk ^ (own & 7)) * 16),
                         exists ? gather.values + from * gather.row_stride + at : gather.values,
                         exists ? bytes : 0);
      }
    }
    ptx::cp_async_commit_group();
  }

  /// The copies of this warp's last turn have come, and its stage is full as far as it is this
  /// warp's to fill.
  BLOCKSCALE_DEVICE void end_copies() {
    if (!kGathers || !copies_) return;
    ptx::cp_async_wait_group<0>();
    ptx::fence_proxy_async_shared();
    arrive(copied_stage_);
    copies_ = false;
  }
  BLOCKSCALE_DEVICE void arrive(uint32_t stage) const {
    ptx::bar_warp_sync(ptx::kFullMask);
    if (ptx::laneid() == 0) ptx::mbarrier_arrive(shared_.ring.full(stage));
  }

  BLOCKSCALE_DEVICE void store(const Scales& scales) {
    const uint32_t lane = ptx::laneid();
    end_copies();
    shared_.ring.wait_empty(place_);
    if constexpr (kGathers) copy_rows();
    BLOCKSCALE_UNROLL
    for (uint32_t j = 0; j < kA; ++j) {
      const uint32_t row = 32 * j + lane;
      const float a = scale_value(scales.a[j]);
      if constexpr (kByColumns) {
        ptx::st_shared(shared_.row_scale(place_.stage, row), a);
      } else {
        BLOCKSCALE_UNROLL
        for (uint32_t i = 0; i < kB; ++i) {
          ptx::st_shared(shared_.row_scale(place_.stage, row, i),
                         ptx::mul_rn(a, scale_value(scales.b[i])));
        }
      }
    }
    if constexpr (kByColumns) {
      BLOCKSCALE_UNROLL
      for (uint32_t j = 0; j < kB; ++j) {
        const uint32_t column = 32 * j + lane;
        if (column < kColumns) {
          ptx::st_shared(shared_.column_scale(place_.stage, column), scale_value(scales.b[j]));
        }
      }
    }
    if constexpr (kGathers) {
      copies_ = true;
      copied_stage_ = place_.stage;
    } else {
      arrive(place_.stage);
    }
    place_.advance(shared_.ring.stages, kScaleWarps);
  }

  const Work<kConfig, Order>& work_;
  const Shared<kConfig>& shared_;
  uint32_t turn_ = 0, k_;  // of the next load
  const ACode* a_ = nullptr;
  const BCode* b_ = nullptr;
  uint32_t a_row_[kGathers ? 1 : kA], b_row_[kB];
  device::StagePlace place_;
  uint32_t from_[kGathers ? kA : 1];  // rows of A of the tile that was loaded of last
  uint32_t rows_ = 0;                 // that its group has from its first on
  bool copies_ = false;               // of this warp are on their way, to copied_stage_
  uint32_t copied_stage_ = 0;
};

/// By warp `warp` of those that bring scales, and rows of A where they are gathered.
template <Fp8GemmConfig kConfig, class Order, bool kGathers>
BLOCKSCALE_DEVICE void load_scales_by(const Work<kConfig, Order>& work,
                                      const Shared<kConfig>& shared, uint32_t warp) {
  const bool a_bytes = work.p.a_scales.bytes, b_bytes = work.p.b_scales.bytes;
  if constexpr (kConfig.promotion == Promotion::blocks) {
    if (work.p.a_scales.data == nullptr) {
      ScaleLoader<kConfig, Order, UnitScale, UnitScale, kGathers>(work, shared, warp).run();
      return;
    }
  }
  if (a_bytes && b_bytes) {
    ScaleLoader<kConfig, Order, uint8_t, uint8_t, kGathers>(work, shared, warp).run();
  } else if (a_bytes) {
    ScaleLoader<kConfig, Order, uint8_t, uint32_t, kGathers>(work, shared, warp).run();
  } else if (b_bytes) {
    ScaleLoader<kConfig, Order, uint32_t, uint8_t, kGathers>(work, shared, warp).run();
  } else {
    ScaleLoader<kConfig, Order, uint32_t, uint32_t, kGathers>(work, shared, warp).run();
  }
}

template <Fp8GemmConfig kConfig, class Order>
BLOCKSCALE_DEVICE void load_scales(const Work<kConfig, Order>& work, const Shared<kConfig>& shared,
                                   uint32_t warp) {
  if constexpr (kConfig.copies_scales) {
    if (warp < scale_warps_of(kConfig)) {
      ScaleConsumer<kConfig, Order>(work, shared, warp * 32 + ptx::laneid()).run();
    }
  } else {
    if constexpr (Order::kGathersRows) {
      if (work.p.gather.index != nullptr) {
        load_scales_by<kConfig, Order, true>(work, shared, warp);
        return;
      }
    }
    load_scales_by<kConfig, Order, false>(work, shared, warp);
  }
}

}  // namespace blockscale::fp8_gemm
