// Functions of 16-bit elements from a table in shared memory: GELU and silu cost 20 to 25
// instructions an element where an H200's memory leaves 19 for everything; a look-up costs four.
//
// One thread block fills a multiprocessor and goes through many tiles. Shared memory:
//
//   0                  values of +0 and of all positive numbers up to `highest`, which is NaN: the
//                      number with bits b lies at 4 b
//   behind them        slots, as many as fit
//   4 * 0x7FFF         NaN, the value of all NaNs
//   4 * 0x8000         values of -0 and of all negative numbers down to -`lowest`
//   behind them        slots
//   the last 1024      what other kernels have too (kQuantizeSharedBytes)
//
// Elements are limited to [-lowest, highest] two at a time before they are looked up. Those that
// have no entry, NaN among them, give NaN, and blocks with a NaN are done again the exact way.
//
// A slot holds the elements of a warp's chunks while they are on their way: copied with cp.async,
// some tiles ahead, by lanes that share a chunk among four of them, so that they ask for whole
// sectors. A chunk is read by the lane that quantises it. Its four vectors are permuted so that
// eight neighbouring lanes reach all banks: vector j of lane c lies at place j ^ c / 2 % 4.
#pragma once

#include "core/math.h"
#include "device/kernel.h"
#include "device/math.h"
#include "device/ptx/barrier.h"
#include "device/ptx/cp_async.h"
#include "device/ptx/packed.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "device/vector.h"
#include "ops/quantize/kernel_sm90_chunk.cuh"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// Bits of a normal number of a 16-bit format.
template <Format kFormat>
BLOCKSCALE_HD constexpr uint32_t bits_of(float x) {
  static_assert(kFormat == Format::bf16 || kFormat == Format::f16);
  const uint32_t bits = bit_cast<uint32_t>(x);
  return kFormat == Format::bf16 ? bits >> 16 : (bits - (112u << 23)) >> 13;
}

/// The two 16-bit halves alike.
BLOCKSCALE_HD constexpr uint32_t both_halves(uint32_t half) {
  return half | half << 16;
}

inline constexpr uint32_t kSlotAlignment = 128;
BLOCKSCALE_HD constexpr uint32_t align_slot(uint32_t bytes) {
  return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

/// The values of a function of 16-bit numbers, and where they lie.
template <InputTransform kTransform, Format kFormat>
class FunctionTable {
  static constexpr bool kTanh = kTransform == InputTransform::gelu_tanh;
  static_assert(kTanh || kTransform == InputTransform::gelu_erf);
  static constexpr bool kIsBf16 = kFormat == Format::bf16;

  /// Magnitudes of the last entries. Below -kLowest functions are constant; what reaches kHighest
  /// is computed.
  static constexpr uint32_t kLowest = bits_of<kFormat>(kTanh ? 10.0f : 8.0f);
  static constexpr uint32_t kHighest = bits_of<kFormat>(kIsBf16 ? 256.0f : 128.0f);
  /// Below 2^-27 the tails are what they are at 0.
  static constexpr uint32_t kFlat = kIsBf16 ? bits_of<kFormat>(0x1p-27f) : 0;

 public:
  static constexpr uint32_t kPositiveEnd = align_slot(4 * (kHighest + 1));
  static constexpr uint32_t kNan = 4 * 0x7FFFu;
  static constexpr uint32_t kNegative = 4 * 0x8000u;
  static constexpr uint32_t kNegativeEnd = align_slot(kNegative + 4 * (kLowest + 1));
  static constexpr uint32_t kEnd = kTableSharedBytes - kQuantizeSharedBytes;

  /// Computes the entries, all threads of the block together; a barrier must follow.
  template <int kThreads>
  BLOCKSCALE_DEVICE static void fill() {
    const ptx::SharedAddress table = device::shared_base();
    if constexpr (kFlat > 0) {
      const float flat_tail = tail(0.0f);
      for (uint32_t bits = ptx::tid_x(); bits < kFlat; bits += kThreads) {
        const float x = magnitude(bits);
        store(table, bits, math::gelu_of_tail<device::KernelMath>(x, x, flat_tail),
              math::gelu_of_tail<device::KernelMath>(-x, x, flat_tail));
      }
    }
    for (uint32_t bits = kFlat + ptx::tid_x(); bits < kHighest; bits += kThreads) {
      const float x = magnitude(bits);
      store(table, bits, function(x), function(-x));
    }
    if (ptx::tid_x() != 0) return;
    ptx::st_shared(table + 4 * kHighest, kQuietNan);
    ptx::st_shared(table + kNan, kQuietNan);
  }

  /// Values of the elements of a word of two.
  struct Pair {
    float low;
    float high;
  };
  BLOCKSCALE_DEVICE static Pair look_up(uint32_t word) {
    constexpr uint32_t kBottom = both_halves(0x8000u | kLowest);
    constexpr uint32_t kTop = both_halves(kHighest);
    if constexpr (kIsBf16) {
      word = ptx::min_nan_bf16x2(ptx::max_nan_bf16x2(word, kBottom), kTop);
    } else {
      word = ptx::min_nan_f16x2(ptx::max_nan_f16x2(word, kBottom), kTop);
    }
    const ptx::SharedAddress table = device::shared_base();
    return {ptx::ld_shared<float>(table + (word & 0xFFFFu) * 4),
            ptx::ld_shared<float>(table + (word >> 16) * 4)};
  }

 private:
  static constexpr uint32_t kQuietNan = 0x7FFFFFFFu;

  BLOCKSCALE_DEVICE static float magnitude(uint32_t bits) {
    return value_at(Chunk<kFormat, 2>{{bits}}, 0);
  }
  BLOCKSCALE_DEVICE static float tail(float x) {
    if constexpr (kTanh) return math::tanh_tail<device::KernelMath>(x);
    return math::erf_tail<device::KernelMath>(x);
  }
  BLOCKSCALE_DEVICE static float function(float x) {
    if constexpr (kTanh) return math::gelu_tanh<device::KernelMath>(x);
    return math::gelu_erf<device::KernelMath>(x);
  }
  BLOCKSCALE_DEVICE static void store(ptx::SharedAddress table, uint32_t bits, float positive,
                                      float negative) {
    ptx::st_shared(table + 4 * bits, positive);
    if (bits <= kLowest) ptx::st_shared(table + (kNegative + 4 * bits), negative);
  }
};

/// The elements of a thread's next tiles.
template <QuantizeConfig kConfig>
class ChunkQueue {
  using Table = FunctionTable<kConfig.transform, kConfig.input>;
  using Words = device::Vector<uint32_t, 4>;
  static constexpr uint32_t kWarps = kConfig.threads / 32;
  static constexpr uint32_t kChunk = kConfig.chunk;
  static constexpr uint32_t kChunkBytes = 2 * kChunk;
  static constexpr uint32_t kVectors = kChunkBytes / 16;  // of a chunk, and copies of a thread
  static constexpr uint32_t kChunksOfCopy = 32 / kVectors;
  static constexpr uint32_t kSlotBytes = 32 * kChunkBytes;
  static constexpr uint32_t kLowerSlots = (Table::kNan - Table::kPositiveEnd) / kSlotBytes;
  static constexpr uint32_t kUpperSlots = (Table::kEnd - Table::kNegativeEnd) / kSlotBytes;
  static_assert(kVectors == 4);

 public:
  using Raw = Chunk<kConfig.input, kConfig.chunk>;
  /// Tiles that are on their way at once.
  static constexpr uint32_t kStages = (kLowerSlots + kUpperSlots) / kWarps;
  static_assert(kStages >= 1);

  BLOCKSCALE_DEVICE explicit ChunkQueue(const QuantizeParams& p) : p_(p) {
    const uint32_t warp = ptx::tid_x() / 32;
    const uint32_t lane = ptx::tid_x() % 32;
    const uint32_t across_mask = (1u << p.grid.log2_chunks) - 1;
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kVectors; ++i) {
      const uint32_t chunk = warp * 32 + i * kChunksOfCopy + lane / kVectors;
      down_[i] = chunk >> p.grid.log2_chunks;
      column_[i] = (chunk & across_mask) * kChunk;
      offset_[i] = down_[i] * p.x.row_stride + column_[i] * 2 + lane % kVectors * 16;
    }
    BLOCKSCALE_UNROLL
    for (uint32_t s = 0; s < kStages; ++s) slots_[s] = slot_at(s * kWarps + warp);
    const uint32_t turn = lane / 8 % 4;  // of the chunk that the lane copies to
    copy_to_ = lane / kVectors * kChunkBytes + ((lane % kVectors) ^ turn) * 16;
    read_from_ = lane * kChunkBytes + lane / 2 % 4 * 16;
  }

  /// Begins to copy the warp's chunks of a tile, if there is one, over those that were taken last.
  /// Chunks that do not exist as a whole become 0.
  BLOCKSCALE_DEVICE void begin(uint32_t tile_index) {
    const ptx::SharedAddress slot = slots_[0];
    if (tile_index < p_.grid.tiles) copy(slot, tile_place(p_.grid, tile_index));
    ptx::cp_async_commit_group();
    BLOCKSCALE_UNROLL
    for (uint32_t s = 0; s + 1 < kStages; ++s) slots_[s] = slots_[s + 1];
    slots_[kStages - 1] = slot;
  }

  /// The thread's chunk of the tile that was begun first of kStages.
  BLOCKSCALE_DEVICE Raw take() {
    ptx::cp_async_wait_group<kStages - 1>();
    ptx::bar_warp_sync(ptx::kFullMask);
    const uint32_t from = slots_[0].value + read_from_;
    Raw chunk;
    BLOCKSCALE_UNROLL
    for (uint32_t j = 0; j < kVectors; ++j) {
      const Words words = ptx::ld_shared<Words>(ptx::SharedAddress{from ^ (16 * j)});
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) chunk.word[4 * j + i] = words.at[i];
    }
    ptx::bar_warp_sync(ptx::kFullMask);  // the slot may be written again
    return chunk;
  }

 private:
  BLOCKSCALE_DEVICE static ptx::SharedAddress slot_at(uint32_t index) {
    const uint32_t at = index < kLowerSlots
                            ? Table::kPositiveEnd + index * kSlotBytes
                            : Table::kNegativeEnd + (index - kLowerSlots) * kSlotBytes;
    return device::shared_base() + at;
  }

  BLOCKSCALE_DEVICE void copy(ptx::SharedAddress slot, const TilePlace& tile) const {
    const ptx::SharedAddress to = slot + copy_to_;
    const uint32_t columns = kChunk << p_.grid.log2_chunks;
    const uint32_t column = tile.across * columns;
    const uint8_t* const from = p_.x.data + tile.matrix * p_.x.batch_stride +
                                tile.row * p_.x.row_stride + int64_t{column} * 2;
    if (tile.row + p_.grid.rows <= p_.rows && column + columns <= p_.k) {
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kVectors; ++i) {
        ptx::cp_async_cg(to + i * kChunksOfCopy * kChunkBytes, from + offset_[i]);
      }
      return;
    }
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kVectors; ++i) {
      const bool exists = tile.row + down_[i] < p_.rows && column + column_[i] + kChunk <= p_.k;
      ptx::cp_async_cg(to + i * kChunksOfCopy * kChunkBytes, exists ? from + offset_[i] : p_.x.data,
                       exists ? 16 : 0);
    }
  }

  const QuantizeParams& p_;
  uint32_t down_[kVectors];            // of what the thread copies, from the tile's first chunk
  uint32_t column_[kVectors];          // likewise, elements
  int64_t offset_[kVectors];           // likewise, bytes
  ptx::SharedAddress slots_[kStages];  // of the tiles, that which was begun first in front
  uint32_t copy_to_;
  uint32_t read_from_;
};

/// Calls body(tile, chunk) for each tile of the thread block, with the thread's chunk of x.
template <QuantizeConfig kConfig, class Body>
BLOCKSCALE_DEVICE void each_queued_tile(const QuantizeParams& p, const Body& body) {
  using Queue = ChunkQueue<kConfig>;
  static_assert(kConfig.persistent && kConfig.min_blocks == 1);
  Queue queue(p);
  const uint32_t step = ptx::nctaid_x();
  BLOCKSCALE_UNROLL
  for (uint32_t s = 0; s < Queue::kStages; ++s) queue.begin(ptx::ctaid_x() + s * step);
  FunctionTable<kConfig.transform, kConfig.input>::template fill<kConfig.threads>();
  ptx::barrier_sync_all();
  for (uint32_t tile = ptx::ctaid_x(); tile < p.grid.tiles; tile += step) {
    const typename Queue::Raw chunk = queue.take();
    queue.begin(tile + Queue::kStages * step);
    body(tile, chunk);
  }
}

/// What is quantised, from the table.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE ValueChunk<kConfig> look_up(const Chunk<kConfig.input, kConfig.chunk>& x) {
  ValueChunk<kConfig> values;
  BLOCKSCALE_UNROLL
  for (int i = 0; i < kConfig.chunk / 2; ++i) {
    const auto pair = FunctionTable<kConfig.transform, kConfig.input>::look_up(x.word[i]);
    values.word[2 * i] = bit_cast<uint32_t>(pair.low);
    values.word[2 * i + 1] = bit_cast<uint32_t>(pair.high);
  }
  return values;
}

}  // namespace blockscale::quantize_sm90
