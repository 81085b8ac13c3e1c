// QuantizeKernel::amax, but for rms_norm (rows.cuh): partial amaxes of a tensor. Each CTA goes
// through some of the tiles that one scale is for, `chunks` of them at once, and leaves one word.
//
// GELU grows with x where x >= 0, and stays below 0.1705 where x < 0. So where GELU of the largest
// x is at least that, it is the amax, and no other value need be computed: half of the kernel's
// time (math_emulated_test.cpp has every 16-bit number).
#pragma once

#include "ops/quantize/kernels/input.cuh"
#include "ops/quantize/kernels/tensor_scale.cuh"

namespace blockscale::quantizer {

using encoding::Amax;

/// GELU of this and of larger numbers has larger magnitudes than GELU of negative ones.
inline constexpr float kLeastOrderedX = 0.28125f;

/// The largest x, -infinity at first. NaN does not count.
template <Format kFormat>
struct LargestX {
  static constexpr bool kIsBf16 = kFormat == Format::bf16;
  uint32_t bits = kIsBf16 ? 0xFF80FF80u : 0xFC00FC00u;  // of two numbers

  template <int kCount>
  BLOCKSCALE_DEVICE void fold(const Chunk<kFormat, kCount>& x) {
    BLOCKSCALE_UNROLL
    for (const uint32_t word : x.word) {
      bits = kIsBf16 ? ptx::max_bf16x2(bits, word) : ptx::max_f16x2(bits, word);
    }
  }
  BLOCKSCALE_DEVICE float value() const {
    const Chunk<kFormat, 2> x = {{bits}};
    return ptx::max(value_at(x, 0), value_at(x, 1));
  }
};

/// A thread's chunks of the tiles of its CTA.
template <QuantizeConfig kConfig>
class AmaxTiles {
 public:
  BLOCKSCALE_DEVICE AmaxTiles(const QuantizeParams& p, const TilesOfScale& run)
      : p_(p), run_(run) {}

  /// Calls fold(chunk) for each chunk of what kLoaded quantizes.
  template <QuantizeConfig kLoaded, class Fold>
  BLOCKSCALE_DEVICE void each_chunk(const Fold& fold) const {
    const uint32_t step = p_.amax.count;
    for (uint32_t first = run_.part; first < run_.tiles; first += kConfig.chunks * step) {
      RawChunk<kLoaded> raw[kConfig.chunks];
      BLOCKSCALE_UNROLL
      for (uint32_t u = 0; u < kConfig.chunks; ++u) {
        const ChunkPlace place = chunk_at(first + u * step);
        load_raw(raw[u], p_, place, extent<kLoaded>(first + u * step, place));
      }
      BLOCKSCALE_UNROLL
      for (uint32_t u = 0; u < kConfig.chunks; ++u) {
        const ChunkPlace place = chunk_at(first + u * step);
        ValueChunk<kLoaded> values;
        find_values(values, raw[u], p_, place, extent<kLoaded>(first + u * step, place), 1);
        fold(values);
      }
    }
  }

 private:
  BLOCKSCALE_DEVICE ChunkPlace chunk_at(uint32_t tile) const {
    const TilePlace at = tile_place(p_.grid, run_.scale * run_.tiles + tile);
    return chunk_place(p_.grid, at, kConfig.chunk);
  }

  template <QuantizeConfig kLoaded>
  BLOCKSCALE_DEVICE Extent extent(uint32_t tile, const ChunkPlace& place) const {
    return tile < run_.tiles ? extent_at<kLoaded>(p_, place) : Extent{0, false};
  }

  const QuantizeParams& p_;
  TilesOfScale run_;
};

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void find_amax(const QuantizeParams& p) {
  wait_for_turn(p);
  const TilesOfScale run = tiles_of_scale(p);
  const AmaxTiles<kConfig> tiles(p, run);
  Amax<kValueFormat<kConfig>, false> amax;
  bool computes = true;
  if constexpr (kConfig.fused == Fused::gelu && kConfig.input != Format::f32) {
    LargestX<kConfig.input> largest;
    tiles.template each_chunk<without_fused(kConfig)>(
        [&](const Chunk<kConfig.input, kConfig.chunk>& x) { largest.fold(x); });
    computes = !(largest.value() >= kLeastOrderedX);
    if (!computes) amax.bits = bit_cast<uint32_t>(gelu(p.fused, largest.value()));
  }
  // Of no thread, where one of its warp has so large an x: its GELU is larger than all of these.
  if (ptx::vote_sync_all(ptx::kFullMask, computes)) {
    tiles.template each_chunk<kConfig>(
        [&](const ValueChunk<kConfig>& values) { amax.fold(values); });
  }
  store_partial_amax(p.amax, run.scale, run.part, amax.f32_bits());
}

}  // namespace blockscale::quantizer
