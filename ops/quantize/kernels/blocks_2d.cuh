// QuantizeKernel::blocks_2d: one scale for blocks of 32, 64 or 128 rows x 128.
//
// It differs from plain.cuh in that a CTA holds whole blocks, 128 x 128 elements or as many in
// another shape: a block of 128 rows, two of 64 or four of 32 side by side. Half a warp holds 128
// columns of a row, a thread all its chunks at once, so the matrix is read once.
#pragma once

#include "ops/quantize/kernels/plain.cuh"
#include "ops/quantize/kernels/tensor_scale.cuh"

namespace blockscale::quantizer {

/// A thread's part of a block of several rows.
template <QuantizeConfig kConfig>
class Block2d {
  static_assert(kConfig.chunk == 8 && kConfig.block == 128 && kConfig.threads <= 1024);
  static constexpr uint32_t kLanes = 128 / kConfig.chunk;  // that hold a row of a block
  static constexpr uint32_t kWarps = kConfig.threads / 32;
  using Values = ValueChunk<kConfig>;

 public:
  BLOCKSCALE_DEVICE explicit Block2d(const QuantizeParams& p) : p_(p) {
    const TilePlace tile = tile_of_cta(p);
    blocks_ = (1u << p.grid.log2_chunks) / kLanes;
    const uint32_t warp = ptx::tid_x() / 32;
    const uint32_t lane = ptx::tid_x() % 32;
    block_ = warp % blocks_;
    row_step_ = 2 * kWarps / blocks_;
    const uint32_t chunk = (tile.across << p.grid.log2_chunks) + block_ * kLanes + lane % kLanes;
    first_ = {tile.matrix, tile.row + warp / blocks_ * 2 + lane / kLanes, chunk * kConfig.chunk};
    // Each chunk is whole, or lies beyond the matrix.
    whole_ = p.x.vectors && p.value_vectors && p.k % kConfig.chunk == 0;
  }

  /// Collective, as what follows it is.
  BLOCKSCALE_DEVICE void quantize() {
    Amax<kValueFormat<kConfig>, false> amax;
    if (whole_) {
      load_all();
      BLOCKSCALE_UNROLL
      for (const Values& values : values_) amax.fold(values);
    } else {
      if constexpr (follows_rstd(kConfig)) ptx::griddepcontrol_wait();
      each_plainly([&](const ChunkPlace&, const Values& values) { amax.fold(values); });
    }
    const BlockScale scale =
        encoding::fp8_block_scale<kConfig.element>(block_amax(amax.f32_bits()), p_.scale_options);
    store_scale(scale);
    if (whole_ && !scale.exceptional) {
      BLOCKSCALE_UNROLL
      for (uint32_t u = 0; u < kConfig.chunks; ++u) {
        const ChunkPlace at = place(u);
        if (at.row >= p_.rows || at.column >= p_.k) continue;
        const auto codes =
            encoding::encode_chunk<kConfig.element, kConfig.rule, false>(values_[u], scale);
        encoding::store_codes(codes, codes_at<kConfig.element>(p_, at));
      }
    } else {
      each_plainly([&](const ChunkPlace& at, const Values& values) {
        Blocks<kConfig> blocks;
        blocks.scale[0] = scale;
        store<kConfig>(p_, at, encode<kConfig, true>(values, blocks));
      });
    }
  }

 private:
  BLOCKSCALE_DEVICE ChunkPlace place(uint32_t u) const { return below(first_, u * row_step_); }

  /// Where whole_: all of x before rstd is waited for, and before anything is computed.
  BLOCKSCALE_DEVICE void load_all() {
    RawChunk<kConfig> raw[kConfig.chunks];
    float rstd[kConfig.chunks];
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kConfig.chunks; ++u) load_raw(raw[u], p_, place(u), whole_extent(u));
    if constexpr (follows_rstd(kConfig)) ptx::griddepcontrol_wait();
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kConfig.chunks; ++u) rstd[u] = stored_rstd<kConfig>(p_, place(u));
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kConfig.chunks; ++u) {
      find_values(values_[u], raw[u], p_, place(u), whole_extent(u), rstd[u]);
    }
  }

  /// Where whole_: without a branch for a part of a chunk.
  BLOCKSCALE_DEVICE Extent whole_extent(uint32_t u) const {
    const bool inside = place(u).row < p_.rows && place(u).column < p_.k;
    return {inside ? kConfig.chunk : 0, true};
  }

  /// Calls body(place, values) for the thread's chunks, one after the other.
  template <class Body>
  BLOCKSCALE_DEVICE void each_plainly(const Body& body) const {
    BLOCKSCALE_NO_UNROLL
    for (uint32_t u = 0; u < kConfig.chunks; ++u) {
      const ChunkPlace at = place(u);
      Values values;
      load_values<kConfig>(values, p_, at, extent_at<kConfig>(p_, at),
                           stored_rstd<kConfig>(p_, at));
      body(at, values);
    }
  }

  /// The amax (bits) of the warp's block, from that of each lane.
  BLOCKSCALE_DEVICE uint32_t block_amax(uint32_t of_lane) const {
    const ptx::SharedAddress words = device::shared_base();
    const uint32_t warp = ptx::tid_x() / 32;
    const uint32_t lane = ptx::tid_x() % 32;
    const uint32_t of_warp = ptx::redux_sync_max(ptx::kFullMask, of_lane);
    if (lane == 0) ptx::st_shared(words + warp * 4, of_warp);
    ptx::barrier_sync_all();
    // Lane i has warp i's.
    const bool is_of_block = lane < kWarps && lane % blocks_ == block_;
    const uint32_t other = is_of_block ? ptx::ld_shared<uint32_t>(words + lane * 4) : 0;
    return ptx::redux_sync_max(ptx::kFullMask, other);
  }

  /// The first thread of a block does.
  BLOCKSCALE_DEVICE void store_scale(const BlockScale& scale) const {
    if (ptx::tid_x() % 32 != 0 || (first_.row & (p_.block_rows - 1)) != 0) return;
    const uint32_t row = first_.row / p_.block_rows;
    if (row >= p_.scales.rows) return;
    const uint32_t stored[1] = {scale.stored};
    encoding::store_scales(p_.scales, first_.matrix, row, first_.column / kConfig.block, stored);
  }

  const QuantizeParams& p_;
  uint32_t blocks_;  // side by side in the tile, a power of two
  uint32_t block_;   // the warp's
  ChunkPlace first_;
  uint32_t row_step_;  // between a thread's chunks
  bool whole_;
  Values values_[kConfig.chunks];
};

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_blocks_2d(const QuantizeParams& p) {
  // What `rstd` leaves is waited for later; x was complete when that one let this kernel start.
  wait_for_turn(p, follows_rstd(kConfig));
  Block2d<kConfig>(p).quantize();
}

}  // namespace blockscale::quantizer
