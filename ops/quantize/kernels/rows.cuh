// QuantizeKernel::rows, ::rstd, and ::amax of rms_norm: CTAs that hold whole rows, so that what
// depends on all of a row costs no second read: a per-token scale, the rstd of rms_norm.
//
// It differs from plain.cuh in who has what: as many warps work on a row as cover it, up to
// kRowMostWarps, and a thread has `chunks` chunks of it, 32 chunks apart, so that a load of a warp
// is of consecutive bytes. What the warps of a row must tell each other goes through shared memory
// (row_exchange.cuh). Rows that are longer than that take several *rounds*, and are read again from
// L2 or memory for each use.
#pragma once

#include "ops/quantize/kernels/blocks.cuh"
#include "ops/quantize/kernels/rms.cuh"
#include "ops/quantize/kernels/row_exchange.cuh"
#include "ops/quantize/kernels/tensor_scale.cuh"

namespace blockscale::quantizer {

/// A thread's chunks of the row that it works on. All threads of the CTA go through the same
/// functions. kOneRound: p.row_rounds is 1.
template <QuantizeConfig kConfig, bool kOneRound>
class RowTile {
  static constexpr bool kNormalizes = kConfig.fused == Fused::rms_norm;
  static constexpr bool kQuantizes = kConfig.kernel == QuantizeKernel::rows;
  /// `rstd` needs no weights.
  static constexpr QuantizeConfig kLoaded =
      kConfig.kernel == QuantizeKernel::rstd ? without_fused(kConfig) : kConfig;
  /// The rule of a row's own scale poisons nothing, nor does a tensor's.
  using RowAmax = Amax<kValueFormat<kConfig>, false>;
  using Values = ValueChunk<kConfig>;
  /// Columns between a thread's chunks, and of all of a warp's.
  static constexpr uint32_t kStep = 32 * kConfig.chunk;
  static constexpr uint32_t kWarpColumns = kStep * kConfig.chunks;

 public:
  BLOCKSCALE_DEVICE explicit RowTile(const QuantizeParams& p) : p_(p), exchange_(p.row_warps) {}

  /// The rows of a tile. Where their amax is all that is wanted, folds their values into `amax`.
  BLOCKSCALE_DEVICE void work(uint32_t tile, RowAmax& amax) {
    const TilePlace at = tile_place(p_.grid, tile);
    place_ = {at.matrix, at.row + exchange_.row_of_tile(), 0};
    if constexpr (kNormalizes) find_rstd();
    if constexpr (kConfig.kernel == QuantizeKernel::amax) {
      fold_into(amax);
    } else if constexpr (kQuantizes && kConfig.block == 0) {
      quantize_per_token();
    } else if constexpr (kQuantizes) {
      quantize_blocks_of_row();
    }
  }

 private:
  /// Calls body() for each round, at the place of its first chunk.
  template <class Body>
  BLOCKSCALE_DEVICE void each_round(const Body& body) {
    if constexpr (kOneRound) {
      go_to_round(0);
      body();
    } else {
      BLOCKSCALE_NO_UNROLL
      for (uint32_t round = 0; round < p_.row_rounds; ++round) {
        go_to_round(round);
        body();
      }
    }
  }

  BLOCKSCALE_DEVICE void go_to_round(uint32_t round) {
    const uint32_t first = (round * p_.row_warps.divisor + exchange_.warp_of_row()) * kWarpColumns;
    place_.column = first + ptx::tid_x() % 32 * kConfig.chunk;
    const bool vectors = p_.x.vectors && (!kQuantizes || p_.value_vectors);
    whole_ = vectors && (p_.k % kConfig.chunk == 0 || p_.k - first >= kWarpColumns);
  }

  BLOCKSCALE_DEVICE ChunkPlace place(uint32_t u) const { return right_of(place_, u * kStep); }

  BLOCKSCALE_DEVICE bool inside(uint32_t u) const {
    return place_.row < p_.rows && place(u).column < p_.k;
  }

  /// Where whole_.
  BLOCKSCALE_DEVICE Extent whole_extent(uint32_t u) const {
    return {inside(u) ? kConfig.chunk : 0, true};
  }

  /// Where whole_, raw_; else of rms_norm x, of which the squares are needed, and nothing else.
  BLOCKSCALE_DEVICE void load() {
    if (whole_) {
      BLOCKSCALE_UNROLL
      for (uint32_t u = 0; u < kConfig.chunks; ++u) {
        load_raw(raw_[u], p_, place(u), whole_extent(u));
      }
    } else if constexpr (kNormalizes) {
      BLOCKSCALE_UNROLL
      for (uint32_t u = 0; u < kConfig.chunks; ++u) {
        RawChunk<without_fused(kConfig)> x;
        load_raw(x, p_, place(u), extent_at<kConfig>(p_, place(u)));
        raw_[u].x[0] = x.x[0];
      }
    }
  }

  BLOCKSCALE_DEVICE void find_rstd() {
    float total = 0;
    each_round([&] {
      load();
      float sums[kConfig.chunks];
      BLOCKSCALE_UNROLL
      for (uint32_t u = 0; u < kConfig.chunks; ++u) sums[u] = sum_of_chunk(raw_[u].x[0]);
      total = add_segments<kWarpColumns>(exchange_, total, sum_of_warp(sums));
    });
    rstd_ = rstd_of(total, p_.fused);
    if constexpr (!kQuantizes) {
      if (place_.row < p_.rows && exchange_.is_first_lane()) {
        ptx::st_global(p_.fused.rstd + uint64_t{place_.matrix} * p_.rows + place_.row, rstd_);
      }
    }
  }

  /// raw_, where whole_: again if there are several rounds, and for the first time if find_rstd has
  /// not loaded it.
  BLOCKSCALE_DEVICE void reload() {
    if constexpr (!kOneRound || !kNormalizes) load();
  }

  /// Where whole_.
  BLOCKSCALE_DEVICE void find(Values& values, uint32_t u) const {
    find_values(values, raw_[u], p_, place(u), whole_extent(u), rstd_);
  }

  /// Calls body(place, values) for the thread's chunks, whatever they hold, one after the other.
  template <class Body>
  BLOCKSCALE_DEVICE void each_plainly(const Body& body) const {
    BLOCKSCALE_NO_UNROLL
    for (uint32_t u = 0; u < kConfig.chunks; ++u) {
      const ChunkPlace at = place(u);
      Values values;
      load_values<kConfig>(values, p_, at, extent_at<kConfig>(p_, at), rstd_);
      body(at, values);
    }
  }

  BLOCKSCALE_DEVICE void fold_into(RowAmax& amax) {
    each_round([&] {
      reload();
      if (whole_) {
        BLOCKSCALE_UNROLL
        for (uint32_t u = 0; u < kConfig.chunks; ++u) {
          find(values_[u], u);
          amax.fold(values_[u]);
        }
      } else {
        each_plainly([&](const ChunkPlace&, const Values& values) { amax.fold(values); });
      }
    });
  }

  BLOCKSCALE_DEVICE void quantize_per_token() {
    RowAmax amax;
    fold_into(amax);
    const uint32_t bits = exchange_.largest(amax.f32_bits());
    Blocks<kConfig> row;
    row.scale[0] = encoding::fp8_block_scale<kConfig.element>(bits, p_.scale_options);
    if (place_.row < p_.rows && exchange_.is_first_lane()) {
      const uint32_t stored[1] = {row.scale[0].stored};
      encoding::store_scales(p_.scales, place_.matrix, place_.row, 0, stored);
    }
    each_round([&] {
      if (whole_ && !row.scale[0].exceptional) {
        if constexpr (!kOneRound) load();
        BLOCKSCALE_UNROLL
        for (uint32_t u = 0; u < kConfig.chunks; ++u) {
          if constexpr (!kOneRound) find(values_[u], u);
          if (!inside(u)) continue;
          encoding::store_codes(encode<kConfig, false>(values_[u], row),
                                codes_at<kConfig.element>(p_, place(u)));
        }
      } else {
        each_plainly([&](const ChunkPlace& at, const Values& values) {
          store<kConfig>(p_, at, encode<kConfig, true>(values, row));
        });
      }
    });
  }

  BLOCKSCALE_DEVICE void quantize_blocks_of_row() {
    const float tensor_scale =
        kConfig.rule == ScaleRule::nvfp4 ? tensor_scale_at<kConfig>(p_, place_) : 1.0f;
    each_round([&] {
      reload();
      uint32_t done = 0;  // bit u: chunk u
      if (whole_) {
        BLOCKSCALE_UNROLL
        for (uint32_t u = 0; u < kConfig.chunks; ++u) {
          Values values;
          find(values, u);
          const bool is_done =
              quantize_fast<kConfig>(p_, tensor_scale, place(u), values, inside(u));
          done |= (is_done ? 1u : 0u) << u;
        }
      }
      BLOCKSCALE_NO_UNROLL
      for (uint32_t u = 0; u < kConfig.chunks; ++u) {
        if ((done >> u & 1) != 0) continue;
        quantize_plainly<kConfig>(p_, tensor_scale, place(u), rstd_);
      }
    });
  }

  const QuantizeParams& p_;
  RowExchange exchange_;
  ChunkPlace place_ = {};  // of the first chunk
  bool whole_ = false;     // each chunk of the warp is whole, or lies beyond the row; vectors fit
  float rstd_ = 1;
  RawChunk<kLoaded> raw_[kConfig.chunks];
  Values values_[kConfig.chunks];
};

template <QuantizeConfig kConfig, bool kOneRound>
BLOCKSCALE_DEVICE void quantize_rows_in(const QuantizeParams& p) {
  using Tile = RowTile<kConfig, kOneRound>;
  Amax<kValueFormat<kConfig>, false> amax;
  Tile rows(p);
  if constexpr (kConfig.kernel == QuantizeKernel::amax) {
    const TilesOfScale run = tiles_of_scale(p);
    for (uint32_t tile = run.part; tile < run.tiles; tile += p.amax.count) {
      rows.work(run.scale * run.tiles + tile, amax);
    }
    ptx::barrier_sync_all();  // who still reads words of the exchange
    store_partial_amax(p.amax, run.scale, run.part, amax.f32_bits());
  } else if constexpr (kConfig.persistent) {
    for (uint32_t tile = ptx::ctaid_x(); tile < p.grid.tiles; tile += ptx::nctaid_x()) {
      rows.work(tile, amax);
    }
  } else {
    rows.work(ptx::ctaid_x(), amax);
  }
}

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_rows(const QuantizeParams& p) {
  static_assert(kConfig.threads >= 32 * kRowMostWarps, "rounds are of kRowMostWarps warps");
  wait_for_turn(p);
  if (p.row_rounds == 1) {
    quantize_rows_in<kConfig, true>(p);
  } else {
    quantize_rows_in<kConfig, false>(p);
  }
}

}  // namespace blockscale::quantizer
