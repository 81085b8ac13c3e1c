// From the sums that blocks of fp4_tiles.cuh have, which are D^T's, to D.
#pragma once

#include "device/decode/scaled_codes.cuh"
#include "device/epilogue/tile_store.cuh"
#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/barrier.h"
#include "device/ptx/bulk_copy.h"
#include "device/ptx/cluster.h"
#include "device/ptx/convert.h"
#include "device/ptx/fence.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/ldmatrix.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/sm90/wgmma.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/tensor_copy.h"
#include "device/vector.h"
#include "ops/gemm/kernels/sm90/fp4_tiles_load.cuh"
#include "ops/gemm/kernels/tensor_scale.cuh"

namespace blockscale::fp4_tiles {

BLOCKSCALE_DEVICE void sync_warpgroup(uint32_t warpgroup) {
  constexpr uint32_t kFirst = 2;  // barriers, one for each of them
  ptx::bar_sync(kFirst + warpgroup, 128);
}

/// Until a warpgroup's sums, or those of the cluster's blocks, are there or have been read.
template <Fp4TilesConfig kConfig>
BLOCKSCALE_DEVICE void sync_exchange(const Work<kConfig>& work, uint32_t warpgroup) {
  if (!work.divides_k()) {
    sync_warpgroup(warpgroup);
  } else {
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
  }
}

/// A turn is kExchangeTokens rows of A.
template <Fp4TilesConfig kConfig>
inline constexpr uint32_t kTurnsOf = static_cast<uint32_t>(kConfig.tokens) / kExchangeTokens;

/// Calls `visit` with each turn. Its code is there once for all turns of NVFP4, whose tensor scales
/// make it long.
template <Fp4TilesConfig kConfig, class Visit>
BLOCKSCALE_DEVICE void for_each_turn(const Visit& visit) {
  if constexpr (Shared<kConfig>::kIsNvfp4) {
    BLOCKSCALE_NO_UNROLL
    for (uint32_t turn = 0; turn < kTurnsOf<kConfig>; ++turn) visit(turn);
  } else {
    BLOCKSCALE_UNROLL
    for (uint32_t turn = 0; turn < kTurnsOf<kConfig>; ++turn) visit(turn);
  }
}

/// Calls `visit` with a turn as a number that the compiler knows, as registers want it: behind a
/// branch for each turn.
template <Fp4TilesConfig kConfig, class Visit>
BLOCKSCALE_DEVICE void with_known_turn(uint32_t turn, const Visit& visit) {
  BLOCKSCALE_UNROLL
  for (uint32_t known = 0; known < kTurnsOf<kConfig>; ++known) {
    if (known == turn) visit(known);
  }
}

/// A sum times what NVFP4's factors have left. (In a register, so that behind the branches of
/// with_known_turn() the compiler does not select each sum among all turns'.)
template <Fp4TilesConfig kConfig>
BLOCKSCALE_DEVICE float times_left(float sum) {
  if constexpr (!Shared<kConfig>::kIsNvfp4) return sum;
  return ptx::in_register(ptx::mul_rn(sum, decoding::kUe4m3Left));
}

/// NVFP4's.
template <Fp4TilesConfig kConfig, int kSums>
BLOCKSCALE_DEVICE void apply_tensor_scales(float (&sums)[kSums], const Fp4TilesParams& p,
                                           const RowSpan& span) {
  if constexpr (!Shared<kConfig>::kIsNvfp4) return;
  const TensorFactor of_b(p.tensor_scale, span.group);
  if (const TensorScale& of_a = p.a_tensor_scale; of_a.data != nullptr) {
    TensorFactor(of_a, span.matrix).apply(sums);
  }
  of_b.apply(sums);
}

/// From D^T's sums to D, whatever the epilogue.
template <Fp4TilesConfig kConfig>
class Storer {
 public:
  using Sums = ptx::WgmmaAccumulator<kConfig.tokens>;

  BLOCKSCALE_DEVICE Storer(const Work<kConfig>& work, const Shared<kConfig>& shared, uint32_t warp)
      : work_(work), shared_(shared), warp_(warp) {}

  BLOCKSCALE_DEVICE void operator()(const Sums& sums, const Tile& tile) const {
    const auto& p = work_.p;
    const uint32_t warpgroup = warp_ / 4;
    const RowSpan span = work_.span(tile);
    for_each_turn<kConfig>([&](uint32_t turn) {
      with_known_turn<kConfig>(turn, [&](uint32_t known) { give(sums, known); });
      sync_exchange(work_, warpgroup);
      if (!work_.divides_k() || warp_ % p.blocks_k == work_.rank) {
        float own[kOwn];
        take(own);
        BLOCKSCALE_UNROLL
        for (float& sum : own) sum = times_left<kConfig>(sum);
        apply_tensor_scales<kConfig>(own, p, span);
        Store(p.epilogue, p.map(Fp4TilesMap::d), shared_.results(warp_), p.order.row_map())(
            own, span, tile.first_row + turn * kExchangeTokens + warp_ % 4 * 16,
            tile.n * kTileRows + warpgroup * 64);
      }
      sync_exchange(work_, warpgroup);
    });
  }

  BLOCKSCALE_DEVICE static void finish() { Store::finish(); }

 private:
  using Store = TileStore<64, kStoreBytes, 1, DenseOrGroupedOrder::RowMap>;
  static constexpr int kOwn = 32;  // sums of 16 rows of A and 64 columns of D

  BLOCKSCALE_DEVICE void give(const Sums& sums, uint32_t turn) const {
    const uint32_t lane = ptx::laneid();
    const ptx::SharedAddress to = shared_.exchange(warp_ / 4) +
                                  (lane % 4 * 2 * kSumRowBytes + (warp_ % 4 * 16 + lane / 4) * 4);
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kOwn; ++i) {
      ptx::st_shared(to + ((i / 4 * 8 + i % 2) * kSumRowBytes + i / 2 % 2 * 32),
                     sums.get(static_cast<int>(turn * kOwn + i)));
    }
  }

  /// As a wgmma accumulator of D has them, added up over the cluster.
  BLOCKSCALE_DEVICE void take(float (&own)[kOwn]) const {
    using Two = device::Vector<float, 2>;
    const uint32_t lane = ptx::laneid();
    const ptx::SharedAddress from =
        shared_.exchange(warp_ / 4) + ((warp_ % 4 * 16 + lane / 4) * kSumRowBytes + lane % 4 * 8);
    const auto place = [&](uint32_t i) {
      return from + (i / 2 % 2 * 8 * kSumRowBytes + i / 4 * 32);
    };
    if (!work_.divides_k()) {
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kOwn; i += 2) {
        const Two two = ptx::ld_shared<Two>(place(i));
        own[i] = two.at[0];
        own[i + 1] = two.at[1];
      }
      return;
    }
    BLOCKSCALE_UNROLL
    for (float& sum : own) sum = 0;
    BLOCKSCALE_NO_UNROLL
    for (uint32_t block = 0; block < work_.p.blocks_k; ++block) {
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kOwn; i += 2) {
        const Two two = ptx::ld_shared_cluster<Two>(ptx::mapa_shared_cluster(place(i), block));
        own[i] = ptx::add_rn(own[i], two.at[0]);
        own[i + 1] = ptx::add_rn(own[i + 1], two.at[1]);
      }
    }
  }

  const Work<kConfig>& work_;
  const Shared<kConfig>& shared_;
  uint32_t warp_;
};

/// The same where each element is rounded to 16 bits as it is, or with A's scale, a bias and a
/// gate: numbers are transposed as they are stored to shared memory, rows of 128 bytes for tensor
/// copies.
template <Fp4TilesConfig kConfig>
class DirectStorer {
 public:
  using Sums = typename Storer<kConfig>::Sums;

  BLOCKSCALE_DEVICE DirectStorer(const Work<kConfig>& work, const Shared<kConfig>& shared,
                                 uint32_t warp)
      : work_(work), shared_(shared), warp_(warp) {}

  BLOCKSCALE_DEVICE void operator()(const Sums& sums, const Tile& tile) const {
    const auto& p = work_.p;
    const LinearEpilogue& e = p.epilogue;
    const uint32_t column = tile.n * kTileRows + warp_ / 4 * 64;  // the warpgroup's first
    const uint32_t own = column + warp_ % 4 * 16 + ptx::laneid() / 4;
    const float alpha = epilogue::alpha_of(e, tile.group);
    const ColumnNumbers bias(e.bias, e, tile.group, own), gate(e.gate, e, 0, own);
    const RowSpan span = work_.span(tile);
    for_each_turn<kConfig>([&](uint32_t turn) {
      const uint32_t row = tile.first_row + turn * kExchangeTokens;
      if (row >= tile.end_row) return;
      float numbers[kOwn];
      with_known_turn<kConfig>(turn, [&](uint32_t known) {
        BLOCKSCALE_UNROLL
        for (int i = 0; i < kOwn; ++i) {
          numbers[i] = times_left<kConfig>(sums.get(static_cast<int>(known) * kOwn + i));
        }
      });
      apply_tensor_scales<kConfig>(numbers, p, span);
      if (e.row_scales.data != nullptr) apply_row_scales(numbers, span, row);
      if (alpha != 1) {
        BLOCKSCALE_UNROLL
        for (float& x : numbers) x = ptx::mul_rn(alpha, x);
      }
      if (e.bias.data != nullptr) {
        BLOCKSCALE_UNROLL
        for (int i = 0; i < kOwn; ++i) numbers[i] = ptx::add_rn(numbers[i], bias.at[i / 2 % 2]);
      }
      if (e.gate.data != nullptr) {
        BLOCKSCALE_UNROLL
        for (int i = 0; i < kOwn; ++i) numbers[i] = ptx::mul_rn(numbers[i], gate.at[i / 2 % 2]);
      }
      // The copies of a buffer are its warp's lane 0's.
      ptx::cp_async_bulk_wait_group_read<0>();
      sync_warpgroup(warp_ / 4);
      if (e.d.dtype == Format::f16) {
        fill<true>(numbers);
      } else {
        fill<false>(numbers);
      }
      ptx::fence_proxy_async_shared();
      sync_warpgroup(warp_ / 4);
      store_rows(span, row + warp_ % 4 * 16, column);
    });
  }

 private:
  static constexpr int kOwn = 32;  // sums of 64 rows of A and 16 columns of D, of a warp

  /// Numbers of a lane's two columns of D.
  struct ColumnNumbers {
    float at[2] = {};

    BLOCKSCALE_DEVICE ColumnNumbers(const EpilogueMatrix& of, const LinearEpilogue& e,
                                    uint32_t batch, uint32_t column) {
      if (of.data == nullptr) return;
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < 2; ++i) {
        at[i] = epilogue::load_element(epilogue::row_part(of, e, batch, 0, column + 8 * i, 1),
                                       of.dtype, 0);
      }
    }
  };

  /// A's scales, of kExchangeTokens rows from `row` on: a lane has those of two.
  BLOCKSCALE_DEVICE void apply_row_scales(float (&numbers)[kOwn], const RowSpan& span,
                                          uint32_t row) const {
    const EpilogueScales& scales = work_.p.epilogue.row_scales;
    const uint32_t lane = ptx::laneid();
    const float of_lane[2] = {
        epilogue::row_scale_of(scales, span.matrix, row + lane, span.end),
        epilogue::row_scale_of(scales, span.matrix, row + 32 + lane, span.end)};
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kOwn; i += 4) {
      BLOCKSCALE_UNROLL
      for (uint32_t j = 0; j < 2; ++j) {
        const float scale =
            ptx::shfl_sync_idx(ptx::kFullMask, of_lane[i / 16], (2 * i + lane % 4 * 2 + j) % 32);
        numbers[i + j] = ptx::mul_rn(numbers[i + j], scale);
        numbers[i + j + 2] = ptx::mul_rn(numbers[i + j + 2], scale);
      }
    }
  }

  /// Where a byte of the warpgroup's 64 rows is: as tensor copies swizzle rows of 128 bytes.
  BLOCKSCALE_DEVICE ptx::SharedAddress place(uint32_t row, uint32_t byte) const {
    return shared_.results(warp_ / 4 * 4) + (row * kStoreBytes + (byte ^ row % 8 * 16));
  }

  template <bool kF16>
  BLOCKSCALE_DEVICE void fill(const float (&numbers)[kOwn]) const {
    // Four matrices: 8 rows by the lower and by the upper 8 columns, then the next 8 rows.
    const uint32_t lane = ptx::laneid();
    const ptx::SharedAddress to =
        place(lane / 16 * 8 + lane % 8, warp_ % 4 * 32 + lane / 8 % 2 * 16);
    BLOCKSCALE_UNROLL
    for (uint32_t j = 0; j < kOwn / 8; ++j) {
      ptx::MatrixFragment<4> four;
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        const float low = numbers[8 * j + 2 * i], high = numbers[8 * j + 2 * i + 1];
        four.value[i] = kF16 ? ptx::cvt_rn_f16x2_f32(high, low) : ptx::cvt_rn_bf16x2_f32(high, low);
      }
      ptx::stmatrix<true>(to + j * 16 * kStoreBytes, four);
    }
  }

  /// The warp's 16 rows, those of the span.
  BLOCKSCALE_DEVICE void store_rows(const RowSpan& span, uint32_t row, uint32_t column) const {
    const auto& p = work_.p;
    const EpilogueMatrix& d = p.epilogue.d;
    if (row >= span.end || column >= p.epilogue.columns) return;
    if (span.holds_box(row)) {
      if (ptx::laneid() == 0) {
        ptx::cp_async_bulk_tensor_global_shared<3>(
            p.map(Fp4TilesMap::d),
            {{static_cast<int32_t>(column), static_cast<int32_t>(row),
              static_cast<int32_t>(span.matrix)}},
            shared_.results(warp_));
      }
      ptx::cp_async_bulk_commit_group();
      return;
    }
    using Chunk = device::Vector<uint32_t, 4>;
    const uint32_t lane = ptx::laneid(), own = column + lane % 8 * 8;
    BLOCKSCALE_UNROLL
    for (uint32_t i = lane / 8; i < 16; i += 4) {
      if (row + i >= span.end || own >= p.epilogue.columns) continue;
      const int64_t at = span.matrix * d.batch_stride + (row + i) * d.row_stride + own;
      ptx::st_global(reinterpret_cast<Chunk*>(d.data + at * 2),
                     ptx::ld_shared<Chunk>(place(warp_ % 4 * 16 + i, lane % 8 * 16)));
    }
  }

  const Work<kConfig>& work_;
  const Shared<kConfig>& shared_;
  uint32_t warp_;
};

}  // namespace blockscale::fp4_tiles
