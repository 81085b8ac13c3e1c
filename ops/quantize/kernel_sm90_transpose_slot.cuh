// x of a tile of quantize_rows_and_columns in shared memory, copied with cp.async while the tile
// before is worked on.
//
// A warp copies what its own lanes read: rows of 128 columns, two or one at a time so that it asks
// for whole lines. A lane reads the vectors of 16 bytes of its chunk, V of them; vector v of a row
// lies at place v ^ (v / 8 % V), so that eight lanes reach all banks.
#pragma once

#include "core/input_transform.h"
#include "device/kernel.h"
#include "device/ptx/cp_async.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "device/vector.h"
#include "ops/quantize/kernel_sm90_chunk.cuh"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernel_sm90_queue.cuh"
#include "ops/quantize/kernel_sm90_transform.cuh"
#include "ops/quantize/rows_and_columns_sm90.h"

namespace blockscale::quantize_sm90 {

/// The slot of a warp. Vectors of x and of the codes exist, and k is a multiple of a chunk. In
/// place of a chunk beyond the matrix there is the nearest one within it, as in HeldChunks.
template <QuantizeConfig kConfig>
class TransposeSlot {
  using Words = device::Vector<uint32_t, 4>;
  using Raw = RawChunk<kConfig>;
  static constexpr uint32_t kParts = Raw::kParts;
  static constexpr uint32_t kElementBytes = Chunk<kConfig.input, kConfig.chunk>::kElementBytes;
  static constexpr uint32_t kVectors = kConfig.chunk * kElementBytes / 16;  // of a chunk
  static constexpr uint32_t kRowLanes = kTransposeTile / kConfig.chunk;
  static constexpr uint32_t kRowVectors = kRowLanes * kVectors;
  static constexpr uint32_t kRowBytes = 16 * kRowVectors;
  static constexpr uint32_t kRows = kTransposeTile / (transpose_threads(kConfig) / 32);
  static constexpr uint32_t kRowsAtOnce = 32 / kRowVectors;
  static_assert(kRowVectors <= 32 && kRows % kRowsAtOnce == 0);
  static_assert(transpose_slot_bytes(kConfig) == kTransposeTile * kRowBytes * kParts);

 public:
  /// Collective among the warp.
  BLOCKSCALE_DEVICE explicit TransposeSlot(const QuantizeParams& p)
      : p_(p), warp_(device::warp_index()), lane_(ptx::tid_x() % 32) {
    at_ = device::shared_base() + (kTransposeSharedBytes + warp_ * (kRows * kRowBytes * kParts));
  }

  /// Begins to copy the warp's rows of a tile.
  BLOCKSCALE_DEVICE void begin(const TilePlace& tile) const {
    const uint32_t vector = lane_ % kRowVectors;
    const uint32_t chunk = tile.across * kTransposeTile + vector / kVectors * kConfig.chunk;
    const uint32_t column = chunk < p_.k ? chunk : p_.k - kConfig.chunk;
    int64_t offset[kParts];
    if constexpr (kParts == 2) {
      const GatedOffsets offsets = gated_offsets<kConfig.input, kConfig.chunk>(p_, column);
      offset[0] = offsets.part[0];
      offset[1] = offsets.part[1];
    } else {
      offset[0] = int64_t{column} * kElementBytes;
    }
    const uint8_t* const x = p_.x.data + tile.matrix * p_.x.batch_stride + vector % kVectors * 16;
    const uint32_t first = lane_ / kRowVectors;
    const ptx::SharedAddress to = at_ + (first * kRowBytes + place_of(vector) * 16);
    BLOCKSCALE_UNROLL
    for (uint32_t down = 0; down < kRows; down += kRowsAtOnce) {
      const uint32_t wanted = tile.row + warp_ * kRows + first + down;
      const uint32_t row = wanted < p_.rows ? wanted : p_.rows - 1;
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kParts; ++i) {
        ptx::cp_async_cg(to + (i * kRows + down) * kRowBytes,
                         x + row * p_.x.row_stride + offset[i]);
      }
    }
    ptx::cp_async_commit_group();
  }

  /// Waits for what was begun last.
  BLOCKSCALE_DEVICE void wait() const {
    ptx::cp_async_wait_group<0>();
    ptx::bar_warp_sync(ptx::kFullMask);
  }

  /// The lane's chunk u.
  BLOCKSCALE_DEVICE Raw take(uint32_t u) const {
    const uint32_t row = lane_ / kRowLanes * kConfig.chunks + u;
    const uint32_t vector = lane_ % kRowLanes * kVectors;
    Raw raw;
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kParts; ++i) {
      BLOCKSCALE_UNROLL
      for (uint32_t j = 0; j < kVectors; ++j) {
        const Words words = ptx::ld_shared<Words>(
            at_ + ((i * kRows + row) * kRowBytes + place_of(vector + j) * 16));
        BLOCKSCALE_UNROLL
        for (uint32_t w = 0; w < 4; ++w) raw.part[i].word[4 * j + w] = words.at[w];
      }
    }
    return raw;
  }

 private:
  BLOCKSCALE_DEVICE static uint32_t place_of(uint32_t vector) {
    return vector ^ (vector / 8 % kVectors);
  }

  const QuantizeParams& p_;
  uint32_t warp_;
  uint32_t lane_;
  ptx::SharedAddress at_;
};

}  // namespace blockscale::quantize_sm90
