// QuantizeKernel::rows, ::rstd, and ::amax of rms_norm: CTAs that hold whole rows, so that what
// depends on all of a row costs no second read: a per-token scale, the rstd of rms_norm.
//
// It differs from plain.cuh in who has what: as many warps work on a row as cover it, up to
// kRowMostWarps, and a thread has `chunks` chunks of it, 32 chunks apart, so that a load of a warp
// is of consecutive bytes. What the warps of a row must tell each other goes through shared memory
// (row_exchange.cuh). Rows that are longer than that take several *rounds*, and are read again from
// L2 or memory for each use.
#pragma once

#include "ops/quantize/kernels/plain.cuh"
#include "ops/quantize/kernels/rms.cuh"
#include "ops/quantize/kernels/row_exchange.cuh"
#include "ops/quantize/kernels/tensor_scale.cuh"

namespace blockscale::quantizer {

/// A thread's chunks of the row that it works on. All threads of the CTA go through the same
/// functions. kOneRound: p.row_rounds is 1.
template <QuantizeConfig kConfig, bool kOneRound>
class RowTile {
  static constexpr bool kNormalizes = kConfig.fused == Fused::rms_norm;
  /// The rule of a row's own scale poisons nothing, nor does a tensor's.
  static constexpr bool kRowScale = kConfig.block == 0;
  using X = Chunk<kConfig.input, kConfig.chunk>;
  using Values = ValueChunk<kConfig>;
  using RowAmax = Amax<kValueFormat<kConfig>, false>;
  /// Columns between a thread's chunks, and of all of a warp's.
  static constexpr uint32_t kStep = 32 * kConfig.chunk;
  static constexpr uint32_t kWarpColumns = kStep * kConfig.chunks;

 public:
  BLOCKSCALE_DEVICE explicit RowTile(const QuantizeParams& p) : p_(p), exchange_(p.row_warps) {
    exchange_.clear_words();
  }

  /// The rows of a tile. Where its rows are all that is wanted, folds their values into `amax`.
  BLOCKSCALE_DEVICE void work(uint32_t tile, RowAmax& amax) {
    const TilePlace at = tile_place(p_.grid, tile);
    place_ = {at.matrix, at.row + exchange_.row_of_tile(), 0};
    if constexpr (kNormalizes) find_rstd();
    if constexpr (kConfig.kernel == QuantizeKernel::rstd) return;
    if constexpr (kConfig.kernel == QuantizeKernel::amax) {
      fold_into(amax);
    } else if constexpr (kRowScale) {
      quantize_per_token();
    } else {
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
    // Each chunk of the warp is whole, or lies beyond the row.
    whole_ = p_.x.vectors && (p_.k % kConfig.chunk == 0 || p_.k - first >= kWarpColumns);
  }

  BLOCKSCALE_DEVICE ChunkPlace place(uint32_t u) const { return right_of(place_, u * kStep); }

  /// Without a branch of its own for each chunk: whole_ is the same for all of a warp.
  BLOCKSCALE_DEVICE Extent extent(uint32_t u) const {
    const bool exists = place_.row < p_.rows && place(u).column < p_.k;
    return {exists ? static_cast<int32_t>(p_.k - place(u).column) : 0, whole_};
  }

  /// x_ or, of what is fused but rms_norm, values_.
  BLOCKSCALE_DEVICE void load() {
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kConfig.chunks; ++u) {
      if constexpr (kNormalizes) {
        encoding::clear(x_[u]);
        if (extent(u).left > 0) load_x<kConfig>(x_[u], p_, place(u), extent(u));
      } else {
        load_values<kConfig>(values_[u], p_, place(u), extent(u));
      }
    }
  }

  BLOCKSCALE_DEVICE void find_rstd() {
    float total = 0;
    each_round([&] {
      load();
      total = add_segments<kWarpColumns>(exchange_, total, sum_of_squares(x_));
    });
    rstd_ = rstd_of(total, p_.fused);
    if constexpr (kConfig.kernel != QuantizeKernel::rows) {
      if (place_.row < p_.rows && exchange_.is_first_lane()) {
        ptx::st_global(p_.fused.rstd + uint64_t{place_.matrix} * p_.rows + place_.row, rstd_);
      }
    }
  }

  /// values_, for the first time or, with several rounds, again.
  BLOCKSCALE_DEVICE void find_values(bool again) {
    if constexpr (!kOneRound) {
      load();
    } else {
      if (again) return;
      if constexpr (!kNormalizes) load();
    }
    if constexpr (kNormalizes) {
      BLOCKSCALE_UNROLL
      for (uint32_t u = 0; u < kConfig.chunks; ++u) {
        // Beyond the matrix x is 0, and so is what it becomes.
        const Extent there = extent(u);
        if (there.left > 0) {
          normalize(values_[u], p_.fused, x_[u], rstd_, place(u).column, there);
        } else {
          encoding::clear(values_[u]);
        }
      }
    }
  }

  BLOCKSCALE_DEVICE void fold_into(RowAmax& amax) {
    each_round([&] {
      find_values(false);
      BLOCKSCALE_UNROLL
      for (const Values& values : values_) amax.fold(values);
    });
  }

  BLOCKSCALE_DEVICE void quantize_per_token() {
    RowAmax amax;
    fold_into(amax);
    const uint32_t bits = exchange_.largest(amax.f32_bits());
    const BlockScale scale = encoding::fp8_block_scale<kConfig.element>(bits, p_.scale_options);
    if (place_.row < p_.rows && exchange_.is_first_lane()) {
      const uint32_t stored[1] = {scale.stored};
      encoding::store_scales(p_.scales, place_.matrix, place_.row, 0, stored);
    }
    each_round([&] {
      find_values(true);
      BLOCKSCALE_UNROLL
      for (uint32_t u = 0; u < kConfig.chunks; ++u) {
        Blocks<kConfig> blocks;
        blocks.scale[0] = scale;
        if (is_exceptional(blocks)) {
          store<kConfig>(p_, place(u), encode<kConfig, true>(values_[u], blocks));
        } else {
          store_shortly(u, blocks);
        }
      }
    });
  }

  BLOCKSCALE_DEVICE void quantize_blocks_of_row() {
    const float tensor_scale =
        kConfig.rule == ScaleRule::nvfp4 ? await_tensor_scale<kConfig>(p_, place_) : 1.0f;
    each_round([&] {
      find_values(false);
      BLOCKSCALE_UNROLL
      for (uint32_t u = 0; u < kConfig.chunks; ++u) {
        Blocks<kConfig> blocks;
        find_amaxes<kConfig>(blocks, values_[u]);
        find_scales<kConfig, false>(blocks, p_, tensor_scale, place(u));
        if (is_exceptional(blocks)) {
          find_scales<kConfig, true>(blocks, p_, tensor_scale, place(u));
          store<kConfig>(p_, place(u), encode<kConfig, true>(values_[u], blocks));
        } else {
          store_shortly(u, blocks);
        }
        store_block_scales<kConfig>(p_, place(u), blocks);
      }
    });
  }

  /// Whether a chunk must be encoded and stored the plain way.
  BLOCKSCALE_DEVICE bool is_exceptional(const Blocks<kConfig>& blocks) const {
    bool exceptional = !(whole_ && p_.value_vectors);
    BLOCKSCALE_UNROLL
    for (const BlockScale& scale : blocks.scale) exceptional |= scale.exceptional;
    return exceptional;
  }

  BLOCKSCALE_DEVICE void store_shortly(uint32_t u, const Blocks<kConfig>& blocks) const {
    if (extent(u).left <= 0) return;
    encoding::store_codes(encode<kConfig, false>(values_[u], blocks),
                          codes_at<kConfig.element>(p_, place(u)));
  }

  const QuantizeParams& p_;
  RowExchange exchange_;
  ChunkPlace place_ = {};  // of the first chunk
  bool whole_ = false;
  float rstd_ = 0;
  X x_[kNormalizes ? kConfig.chunks : 1];
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
    leave_amax(p.amax, run.scale, run.part, amax.f32_bits());
  } else {
    for (uint32_t tile = ptx::ctaid_x(); tile < p.grid.tiles; tile += ptx::nctaid_x()) {
      rows.work(tile, amax);
    }
  }
}

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_rows(const QuantizeParams& p) {
  static_assert(kConfig.threads >= 32 * kRowMostWarps, "rounds are of kRowMostWarps warps");
  await_turn(p);
  if (p.row_rounds == 1) {
    quantize_rows_in<kConfig, true>(p);
  } else {
    quantize_rows_in<kConfig, false>(p);
  }
}

}  // namespace blockscale::quantizer
