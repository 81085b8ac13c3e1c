// The warpgroup that loads: one warp begins copies of A's and B's tiles, the others bring the
// scales; where rows of A are gathered (fp8_gather.cuh), one does. Scales are few, of any layout,
// stride and type, and seldom fit TMA's rules: they are read with ordinary loads, some k-blocks
// ahead, and stored as f32 in a tile's own order.
#pragma once

#include "device/ptx/barrier.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/tensor_copy.h"
#include "device/ptx/warp.h"
#include "ops/gemm/kernels/sm90/fp8_scale_boxes.cuh"
#include "ops/gemm/kernels/sm90/fp8_shared.cuh"

namespace blockscale::fp8_gemm {

/// The tensor copies of a tile's k-blocks: of B's rows, and of A's unless those are gathered.
template <Fp8GemmConfig kConfig, class Order, bool kGathers = false>
class TileCopies {
 public:
  BLOCKSCALE_DEVICE TileCopies(const Work<kConfig, Order>& work, const Shared<kConfig>& shared,
                               const Tile& tile)
      : p_(work.p),
        shared_(shared),
        row_(static_cast<int32_t>(tile.first_row)),
        column_(static_cast<int32_t>(kConfig.quantizes ? p_.runs.box_row(tile.n, 0)
                                                       : tile.n * kConfig.columns)),
        second_(static_cast<int32_t>(p_.runs.box_row(tile.n, 1))),
        a_matrix_(p_.a_batched ? static_cast<int32_t>(work.matrix(tile)) : 0),
        b_matrix_(p_.b_batched ? static_cast<int32_t>(tile.group) : 0) {
    const bool a_tail = work.takes_tail(tile);
    const bool last_column = !kConfig.quantizes && tile.n + 1 == p_.order.tiles_n;
    a_ = p_.map(a_tail ? Fp8GemmMap::a_tail : Fp8GemmMap::a);
    b_ = p_.map(last_column ? Fp8GemmMap::b_second : Fp8GemmMap::b);
    bytes_ = (kGathers ? 0
              : a_tail ? p_.a_tail_bytes
                       : p_.a_bytes) +
             (last_column ? p_.b_tail_bytes : p_.b_bytes);
  }

  /// By one warp, of a stage that is empty.
  BLOCKSCALE_DEVICE void begin(uint32_t stage, uint32_t k) const {
    if (!ptx::elect_sync()) return;
    const ptx::SharedAddress full = shared_.ring.full(stage);
    const ptx::SharedAddress b = shared_.b(stage);
    const int32_t byte = static_cast<int32_t>(k) * kFp8BlockK;
    const ptx::TensorCoordinates<3> b_at = {{byte, column_, b_matrix_}};
    ptx::mbarrier_arrive_expect_tx(full, bytes_);
    if constexpr (!kGathers) {
      ptx::cp_async_bulk_tensor_shared_global<3>(shared_.a(stage), a_, {{byte, row_, a_matrix_}},
                                                 full);
    }
    if (p_.b_once) {
      ptx::cp_async_bulk_tensor_shared_global<3>(b, b_, b_at, full,
                                                 ptx::createpolicy_evict_first());
    } else {
      ptx::cp_async_bulk_tensor_shared_global<3>(b, b_, b_at, full);
    }
    if constexpr (kConfig.quantizes) {
      ptx::cp_async_bulk_tensor_shared_global<3>(b + kRunColumns * kFp8BlockK,
                                                 p_.map(Fp8GemmMap::b_second),
                                                 {{byte, second_, b_matrix_}}, full);
    }
  }

 private:
  const Fp8GemmParamsOf<Order>& p_;
  const Shared<kConfig>& shared_;
  int32_t row_, column_, second_, a_matrix_, b_matrix_;
  const TensorMap* a_;
  const TensorMap* b_;
  uint32_t bytes_;
};

/// By the warp that copies.
template <Fp8GemmConfig kConfig, class Order>
BLOCKSCALE_DEVICE void load_operands(const Work<kConfig, Order>& work,
                                     const Shared<kConfig>& shared) {
  device::StagePlace place;
  ScaleProducer<kConfig, Order> scales(work, shared);
  for_each_tile(work, [&](const Tile& tile) {
    const TileCopies<kConfig, Order> copies(work, shared, tile);
    BLOCKSCALE_NO_UNROLL
    for (uint32_t k = work.k_begin; k < work.k_end; ++k) {
      shared.ring.wait_empty(place);
      copies.begin(place.stage, k);
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

/// The first scale of a matrix.
template <class Code>
BLOCKSCALE_DEVICE const Code* first_code(const GemmScales& scales, uint32_t matrix) {
  return reinterpret_cast<const Code*>(scales.data) + matrix * scales.batch_stride;
}
/// Where a row's scales begin, or the last row's.
BLOCKSCALE_DEVICE uint32_t row_offset(const GemmScales& scales, uint32_t row, uint32_t rows) {
  return static_cast<uint32_t>(scales.row_offset(row < rows ? row : rows - 1));
}
/// The row of B that has scale `j` of a tile, or of this lane.
template <Fp8GemmConfig kConfig, class Params>
BLOCKSCALE_DEVICE uint32_t row_of_b_scale(const Params& p, uint32_t tile, uint32_t j) {
  constexpr bool kByColumns = kConfig.promotion == Promotion::columns;
  if constexpr (kConfig.quantizes) {
    constexpr uint32_t kOfRun = kByColumns ? kRunColumns / 32 : 1;
    return p.runs.row(tile, j / kOfRun, kByColumns ? j % kOfRun * 32 + ptx::laneid() : 0);
  } else {
    const uint32_t first = tile * static_cast<uint32_t>(kConfig.columns);
    return kByColumns ? first + 32 * j + ptx::laneid() : (first / 128 + j) * 128;
  }
}

/// The row of A that is gathered as row `i` of a tile, kNone if that has none. Behind the group's
/// last row that one again, which nobody stores.
template <class Params>
BLOCKSCALE_DEVICE uint32_t gathered_row(const Params& p, const Tile& tile, uint32_t i) {
  const uint32_t row = tile.first_row + i;
  return p.gather.row(row < tile.end_row ? row : tile.end_row - 1);
}

/// The warps that bring scales take turns at k-blocks: to wait for a stage, to store and to arrive
/// may take one warp longer than the products of a k-block. Each has loaded the scales of its next
/// turns; nothing but loads stands between loads, because a branch would wait for each.
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
        if (!has[i]) return;
        store(ahead[i]);
        has[i] = load(ahead[i]);
      }
    }
  }

 private:
  static constexpr uint32_t kRows = static_cast<uint32_t>(kConfig.rows);
  static constexpr uint32_t kColumns = static_cast<uint32_t>(kConfig.columns);
  static constexpr bool kByColumns = kConfig.promotion == Promotion::columns;
  static constexpr uint32_t kWarps = kGathers ? kGatherScaleWarps : kScaleWarps;
  static constexpr uint32_t kA = kRows / 32;  // of a lane
  static constexpr uint32_t kB =
      kByColumns ? (kColumns + 31) / 32 : static_cast<uint32_t>(b_scales_of(kConfig));

  /// Turns, as registers allow: a loader has 56 beside three warpgroups, else 40.
  static constexpr int kAhead = kA + kB < (loader_registers(kConfig) > 40 ? 12 : 8) ? 2 : 1;

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
    BLOCKSCALE_UNROLL
    for (uint32_t j = 0; j < kA; ++j) {
      if constexpr (kGathers) {
        a_row_[j] = gathered_row(p, tile, 32 * j + lane);
      } else {
        a_row_[j] = row_offset(p.a_scales, tile.first_row + 32 * j + lane, tile.end_row);
      }
    }
    BLOCKSCALE_UNROLL
    for (uint32_t j = 0; j < kB; ++j) {
      b_row_[j] = row_offset(p.b_scales, row_of_b_scale<kConfig>(p, tile.n, j), p.epilogue.columns);
    }
    BLOCKSCALE_UNROLL
    for (uint32_t j = 0; kGathers && j < kA; ++j) {  // behind all rows, which wait for an index
      if (a_row_[j] == GatheredA::kNone) continue;
      a_row_[j] = static_cast<uint32_t>(p.a_scales.row_offset(a_row_[j]));
    }
  }
  /// Begins to load the scales of this warp's next k-block; false if there is none.
  BLOCKSCALE_DEVICE bool load(Scales& to) {
    if (!work_.has(turn_)) return false;
    const ACode* const a = a_ + work_.p.a_scales.k_offset(k_);
    const BCode* const b = b_ + work_.p.b_scales.k_offset(k_);
    BLOCKSCALE_UNROLL
    for (uint32_t j = 0; j < kA; ++j) {
      to.a[j] = kGathers && a_row_[j] == GatheredA::kNone ? ACode{} : load_code(a + a_row_[j]);
    }
    BLOCKSCALE_UNROLL
    for (uint32_t j = 0; j < kB; ++j) to.b[j] = load_code(b + b_row_[j]);
    k_ += kWarps;
    if (k_ >= work_.k_end) begin_tile();
    return true;
  }

  BLOCKSCALE_DEVICE void store(const Scales& scales) {
    const uint32_t lane = ptx::laneid();
    shared_.ring.wait_empty(place_);
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
    ptx::bar_warp_sync(ptx::kFullMask);
    if (lane == 0) ptx::mbarrier_arrive(shared_.ring.full(place_.stage));
    place_.advance(shared_.ring.stages, kWarps);
  }

  const Work<kConfig, Order>& work_;
  const Shared<kConfig>& shared_;
  uint32_t turn_ = 0, k_;  // of the next load
  const ACode* a_ = nullptr;
  const BCode* b_ = nullptr;
  uint32_t a_row_[kA], b_row_[kB];
  device::StagePlace place_;
};

/// By warp `warp` of those that bring scales.
template <Fp8GemmConfig kConfig, bool kGathers, class Order>
BLOCKSCALE_DEVICE void load_scales(const Work<kConfig, Order>& work, const Shared<kConfig>& shared,
                                   uint32_t warp) {
  if constexpr (kConfig.copies_scales && !kGathers) {
    if (warp < scale_warps_of(kConfig)) {
      ScaleConsumer<kConfig, Order>(work, shared, warp * 32 + ptx::laneid()).run();
    }
  } else if constexpr (!kConfig.leaves_scales) {
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
}

}  // namespace blockscale::fp8_gemm
