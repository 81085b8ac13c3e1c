// What blocks of fp4_tiles.cuh have to do, what they share, and how the warps that load bring it.
#pragma once

#include "device/decode/folded_codes.cuh"
#include "device/decode/scaled_codes.cuh"
#include "device/kernel.h"
#include "device/pipeline/stages.h"
#include "device/ptx/barrier.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/tensor_copy.h"
#include "device/ptx/warp.h"
#include "device/scheduler/block_tiles.h"
#include "device/vector.h"
#include "ops/gemm/kernels/sm90/fp4_tiles_params.h"

namespace blockscale::fp4_tiles {

/// What a block has to do: some of the tiles, and of each its part of K.
template <Fp4TilesConfig kConfig>
struct Work {
  const Fp4TilesParams& p;
  uint32_t first, step;     // tiles
  uint32_t rank;            // in the cluster
  uint32_t k_begin, k_end;  // stages
  BlockTiles<DenseOrGroupedOrder, static_cast<uint32_t>(kConfig.tokens)> tiles;

  /// `shared` is the order's.
  BLOCKSCALE_DEVICE Work(const Fp4TilesParams& params, ptx::SharedAddress shared)
      : p(params),
        first(ptx::ctaid_y()),
        step(ptx::nctaid_y()),
        rank(ptx::ctaid_x()),
        k_begin(rank * p.block_stages),
        k_end(k_begin + p.block_stages),
        tiles(params.order, shared) {
    if (k_begin > p.k_stages) k_begin = p.k_stages;
    if (k_end > p.k_stages) k_end = p.k_stages;
  }

  /// Whether the block is one of several of a cluster, which then has one tile.
  BLOCKSCALE_DEVICE bool divides_k() const { return p.blocks_k > 1; }
  BLOCKSCALE_DEVICE RowSpan span(const Tile& tile) const {
    return {tile.end_row, p.order.groups_are_matrices(), p.order.matrix_of(tile), tile.group};
  }
};

/// What a stage's blocks have in each of some rows: factors of their own, the same one, or in FP8
/// the one of the tile's first stage.
inline constexpr uint32_t kOwnFactors = 0, kOneFactor = 1, kFirstFactor = 2;

template <Fp4TilesConfig kConfig>
struct Shared {
  static constexpr bool kIsNvfp4 = kConfig.b == Recipe::nvfp4;

  Fp4TilesMemory memory;
  ptx::SharedAddress base;
  device::StageRing ring;

  BLOCKSCALE_DEVICE Shared(uint32_t stages, bool is_direct)
      : memory(memory_of(kConfig, stages, is_direct)),
        base(device::shared_base()),
        ring{base, stages} {}

  BLOCKSCALE_DEVICE ptx::SharedAddress a(uint32_t stage) const {
    return base + (memory.operands + stage * memory.stage_bytes);
  }
  BLOCKSCALE_DEVICE ptx::SharedAddress b(uint32_t stage) const {
    return a(stage) + memory.b_offset;
  }
  /// Of a row of B; in FP8 the tables of its blocks.
  BLOCKSCALE_DEVICE ptx::SharedAddress scales(uint32_t stage, uint32_t row) const {
    const uint32_t first = stage * scale_rows_of(kConfig) * kTileRows;
    return base + (Fp4TilesMemory::kScales + (first + row) * kRowWords * 4);
  }
  /// In FP8: the factors of its blocks' products.
  BLOCKSCALE_DEVICE ptx::SharedAddress factors(uint32_t stage, uint32_t row) const {
    return scales(stage, row + kTileRows);
  }
  /// Of A, whose rows are the tile's tokens.
  BLOCKSCALE_DEVICE ptx::SharedAddress a_scales(uint32_t stage, uint32_t token) const {
    return base + (memory.a_scales + (stage * static_cast<uint32_t>(kConfig.tokens) + token) * 4);
  }
  /// Of MX: a word for each 32 rows, kOwnFactors where one of their scales has none.
  BLOCKSCALE_DEVICE ptx::SharedAddress has_factors(uint32_t stage, uint32_t of_rows) const {
    return base + (Fp4TilesMemory::kHaveFactors + (stage * (kTileRows / 32) + of_rows) * 4);
  }
  /// Of the 64 rows of a warpgroup: the lesser of these words.
  BLOCKSCALE_DEVICE uint32_t have_factors(uint32_t stage, uint32_t warpgroup) const {
    const auto have =
        ptx::ld_shared<device::Vector<uint32_t, 2>>(has_factors(stage, warpgroup * 2));
    return have.at[0] < have.at[1] ? have.at[0] : have.at[1];
  }
  BLOCKSCALE_DEVICE bool all_have_factors(uint32_t stage, uint32_t warpgroup) const {
    return have_factors(stage, warpgroup) != kOwnFactors;
  }
  /// By whole warps that multiply: each says so when all of its lanes have left a stage.
  BLOCKSCALE_DEVICE void leave(uint32_t stage) const {
    ptx::bar_warp_sync(ptx::kFullMask);
    if (ptx::laneid() == 0) ptx::mbarrier_arrive(ring.empty(stage));
  }
  BLOCKSCALE_DEVICE ptx::SharedAddress results(uint32_t warp) const {
    return base + (memory.results + warp * 16 * kStoreBytes);
  }
  BLOCKSCALE_DEVICE ptx::SharedAddress of_order() const { return base + memory.total; }
  BLOCKSCALE_DEVICE ptx::SharedAddress exchange(uint32_t warpgroup) const {
    return base + (memory.exchange + warpgroup * kExchangeTokens * kSumRowBytes);
  }
};

/// Begins the copies of a stage's operands. By one thread.
template <Fp4TilesConfig kConfig>
BLOCKSCALE_DEVICE void copy_operands(const Work<kConfig>& work, const Shared<kConfig>& shared,
                                     uint32_t stage, const Tile& tile, uint32_t k) {
  const auto& p = work.p;
  constexpr uint32_t kBytesB = row_bytes_of_b(kConfig);
  const ptx::SharedAddress full = shared.ring.full(stage);
  ptx::mbarrier_arrive_expect_tx(
      full, static_cast<uint32_t>(kConfig.tokens) * kRowBytesA + kTileRows * kBytesB);
  const auto bring = [&](ptx::SharedAddress to, Fp4TilesMap map, uint32_t byte, uint32_t row,
                         uint32_t matrix) {
    ptx::cp_async_bulk_tensor_shared_global<3>(
        to, p.map(map),
        {{static_cast<int32_t>(byte), static_cast<int32_t>(row), static_cast<int32_t>(matrix)}},
        full);
  };
  bring(shared.b(stage), Fp4TilesMap::b, k * kBytesB, tile.n * kTileRows,
        p.b_batched ? tile.group : 0);
  bring(shared.a(stage), Fp4TilesMap::a, k * kRowBytesA, tile.first_row,
        p.a_batched ? p.order.matrix_of(tile) : 0);
}

/// By one warp, where B is plain: there are no scales to be loaded.
template <Fp4TilesConfig kConfig>
BLOCKSCALE_DEVICE void load_plain(const Work<kConfig>& work, const Shared<kConfig>& shared) {
  device::StagePlace place;
  BLOCKSCALE_NO_UNROLL
  for (uint32_t i = work.first; i < work.tiles.count(); i += work.step) {
    const Tile tile = work.tiles.tile(i);
    BLOCKSCALE_NO_UNROLL
    for (uint32_t k = work.k_begin; k < work.k_end; ++k) {
      shared.ring.wait_empty(place);
      if (ptx::elect_sync()) copy_operands(work, shared, place.stage, tile, k);
      ptx::bar_warp_sync(ptx::kFullMask);
      place.advance(shared.ring.stages);
    }
  }
}

/// By the warps that load codes: each brings the scales of 32 rows of B as factors, and the first
/// one begins the copies of operands. A lane has a row's scales of the next stages on their way.
template <Fp4TilesConfig kConfig>
class Loader {
 public:
  BLOCKSCALE_DEVICE Loader(const Work<kConfig>& work, const Shared<kConfig>& shared, uint32_t warp)
      : work_(work), shared_(shared), warp_(warp) {}

  BLOCKSCALE_DEVICE void run() {
    const bool together = !kConfig.promotes && work_.p.scale_vectors &&
                          (work_.k_begin | work_.k_end) % kScaleStages == 0;
    BLOCKSCALE_NO_UNROLL
    for (uint32_t i = work_.first; i < work_.tiles.count(); i += work_.step) {
      const Tile tile = work_.tiles.tile(i);
      find_scales(tile);
      if (together) {
        fill_together(tile);
      } else {
        fill_apart(tile);
      }
    }
  }

 private:
  static constexpr uint32_t kTokens = static_cast<uint32_t>(kConfig.tokens);
  static constexpr uint32_t kPieces = stage_k(kConfig) / kPieceK;
  static constexpr bool kIsNvfp4 = Shared<kConfig>::kIsNvfp4;
  static constexpr uint32_t kPieceBytes = kIsNvfp4 ? 2 : 1;
  static constexpr uint32_t kOne = kIsNvfp4 ? 0x3838 : 127;  // of pieces that there are not

  struct Scales {
    uint32_t at[kPieces];
    uint32_t of_a;  // where sums take them
  };
  static constexpr uint32_t kScaleRows = scale_rows_of(kConfig);
  /// A row's scales of kScaleStages stages side by side.
  using Words = device::Vector<uint32_t, kScaleStages * kPieces * kPieceBytes / 4>;

  /// Rows outside of B take its last one's.
  BLOCKSCALE_DEVICE void find_scales(const Tile& tile) {
    const auto& p = work_.p;
    const uint32_t row = tile.n * kTileRows + 32 * warp_ + ptx::laneid();
    const uint32_t last = p.epilogue.columns - 1;
    scales_ = p.scales.data + tile.group * p.scales.batch_stride +
              p.scales.row_offset(row < last ? row : last);
    if constexpr (kConfig.promotes) {
      const uint32_t token = tile.first_row + 32 * warp_ + ptx::laneid();
      const uint32_t last_token = p.epilogue.rows - 1;
      a_scale_ = tile.group * p.a_scales.batch_stride +
                 p.a_scales.row_offset(token < last_token ? token : last_token);
    }
  }

  /// A tile's stages, whose scales are loaded a group ahead.
  BLOCKSCALE_DEVICE void fill_together(const Tile& tile) {
    Words next = load_together(work_.k_begin);
    BLOCKSCALE_NO_UNROLL
    for (uint32_t k = work_.k_begin; k < work_.k_end; k += kScaleStages) {
      const Words now = next;
      next = load_together(k + kScaleStages);
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kScaleStages; ++i) fill(tile, k + i, scales_of(now, i));
    }
  }

  /// The same, stage by stage.
  BLOCKSCALE_DEVICE void fill_apart(const Tile& tile) {
    constexpr bool kIsLong = kConfig.promotes || is_in_fp8(kConfig);  // in registers
    constexpr uint32_t kAhead = kIsLong ? kScaleStages / 2 : kScaleStages;
    Scales ahead[kAhead];
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) load(ahead[i], work_.k_begin + i);
    BLOCKSCALE_NO_UNROLL
    for (uint32_t k = work_.k_begin; k < work_.k_end; k += kAhead) {
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kAhead; ++i) {
        if (k + i >= work_.k_end) break;
        fill(tile, k + i, ahead[i]);
        load(ahead[i], k + i + kAhead);
      }
    }
  }

  /// Begins to load a stage's scales, piece by piece.
  BLOCKSCALE_DEVICE void load(Scales& to, uint32_t k) const {
    const auto& p = work_.p;
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kPieces; ++i) {
      const uint32_t piece = k * kPieces + i;
      to.at[i] = ptx::ld_global_nc_narrow_if<kPieceBytes>(
          piece < p.pieces, scales_ + p.scales.k_offset(piece * kPieceBytes), kOne);
    }
    if constexpr (kConfig.promotes) load_of_a(to, k);
  }

  /// A's, of the same stage.
  BLOCKSCALE_DEVICE void load_of_a(Scales& to, uint32_t k) const {
    const auto& p = work_.p;
    const auto* const words = reinterpret_cast<const uint32_t*>(p.a_scales.data);
    to.of_a = ptx::ld_global_nc_if(
        k * kPieces < p.pieces, words + a_scale_ + p.a_scales.k_offset(k / (kPromotedK / kStageK)));
  }

  /// Those of kScaleStages stages.
  BLOCKSCALE_DEVICE Words load_together(uint32_t k) const {
    return ptx::ld_global_nc_if(
        k < work_.k_end, reinterpret_cast<const Words*>(scales_ + k * kPieces * kPieceBytes));
  }

  BLOCKSCALE_DEVICE static Scales scales_of(const Words& words, uint32_t stage) {
    Scales scales = {};
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kPieces; ++i) {
      const uint32_t byte = (stage * kPieces + i) * kPieceBytes;
      scales.at[i] = words.at[byte / 4] >> byte % 4 * 8 & ((1u << kPieceBytes * 8) - 1);
    }
    return scales;
  }

  BLOCKSCALE_DEVICE void fill(const Tile& tile, uint32_t k, const Scales& scales) {
    device::Vector<uint32_t, kRowWords> words[kScaleRows];
    uint32_t have = kOneFactor;
    if constexpr (is_in_fp8(kConfig)) {
      uint32_t of_blocks[kPieces];  // those that K does not have are like the first
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kPieces; ++i) {
        of_blocks[i] = k * kPieces + i < work_.p.pieces ? scales.at[i] : scales.at[0];
      }
      const decoding::ScaleRange range(of_blocks);
      if (k == work_.k_begin && work_.p.fast_accumulation) first_ = range.first_of_middle();
      const bool has_first = range.fits(first_);
      const decoding::FoldedScales folded =
          decoding::fold_scales(of_blocks, has_first ? first_ : range.least);
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kPieces; ++i) {
        words[0].at[i] = folded.tables[i];
        words[1].at[i] = bit_cast<uint32_t>(folded.factors[i]);
      }
      have = !ptx::vote_sync_all(ptx::kFullMask, folded.fit) ? kOwnFactors
             : ptx::vote_sync_all(ptx::kFullMask, has_first) ? kFirstFactor
                                                             : kOneFactor;
    } else if constexpr (kIsNvfp4) {
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kPieces; ++i) {
        uint32_t factors[2];
        decoding::ue4m3_factors<kConfig.form>(factors, scales.at[i]);
        words[0].at[2 * i] = factors[0];
        words[0].at[2 * i + 1] = factors[1];
      }
    } else {
      bool fit = true;
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kPieces; ++i) {
        fit = fit && decoding::has_ue8m0_factor<kConfig.form>(scales.at[i]);
        words[0].at[i] = decoding::ue8m0_factor<kConfig.form>(scales.at[i]);
        words[0].at[kFirstScale + i] = bit_cast<uint32_t>(decoding::ue8m0_value(scales.at[i]));
      }
      have = ptx::vote_sync_all(ptx::kFullMask, fit) ? kOneFactor : kOwnFactors;
    }
    shared_.ring.wait_empty(place_);
    if (warp_ == 0 && ptx::elect_sync()) copy_operands(work_, shared_, place_.stage, tile, k);
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kScaleRows; ++i) {
      const uint32_t row = i * kTileRows + 32 * warp_ + ptx::laneid();
      ptx::st_shared(shared_.scales(place_.stage, row), words[i]);
    }
    if (kConfig.promotes && 32 * warp_ < kTokens) {
      ptx::st_shared(shared_.a_scales(place_.stage, 32 * warp_ + ptx::laneid()), scales.of_a);
    }
    if (!kIsNvfp4 && ptx::laneid() == 0) {
      ptx::st_shared(shared_.has_factors(place_.stage, warp_), have);
    }
    ptx::bar_warp_sync(ptx::kFullMask);
    if (ptx::laneid() == 0) ptx::mbarrier_arrive(shared_.ring.full(place_.stage));
    place_.advance(shared_.ring.stages);
  }

  const Work<kConfig>& work_;
  const Shared<kConfig>& shared_;
  uint32_t warp_;
  const uint8_t* scales_ = nullptr;  // of the lane's row in the tile
  int64_t a_scale_ = 0;              // where the token's are
  uint32_t first_ = 256;             // in FP8, of tables of a tile's first stage; 256: none fit it
  device::StagePlace place_;
};

}  // namespace blockscale::fp4_tiles
