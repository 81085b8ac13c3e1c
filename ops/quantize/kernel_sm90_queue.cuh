// Tiles of kernels with a table: how elements come to the threads that look them up.
//
// A slot beside the table holds the elements of a warp's chunks while they are on their way: copied
// with cp.async, some tiles ahead, by lanes that share a chunk among V of them, the number of its
// vectors of 16 bytes, so that they ask for whole sectors. A chunk is read by the lane that
// quantises it. Its vectors are permuted so that eight neighbouring lanes reach all banks: vector j
// of lane c lies at place j ^ (c V / 8 % V).
#pragma once

#include "core/input_transform.h"
#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/barrier.h"
#include "device/ptx/cp_async.h"
#include "device/ptx/integer.h"
#include "device/ptx/prefetch.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "device/vector.h"
#include "ops/quantize/kernel_sm90_chunk.cuh"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernel_sm90_table.cuh"
#include "ops/quantize/kernel_sm90_units.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// The elements of x that a thread's chunk is made of. For swiglu these are gates and ups, which
/// lie in two runs, or alternate in one that the second part goes on with.
template <QuantizeConfig kConfig>
struct RawChunk {
  static constexpr uint32_t kParts = kConfig.transform == InputTransform::swiglu ? 2 : 1;
  Chunk<kConfig.input, kConfig.chunk> part[kParts];
};

/// The elements of a thread's next tiles.
template <QuantizeConfig kConfig>
class ChunkQueue {
  using Table = FunctionTable<kConfig.transform, kConfig.input>;
  using Words = device::Vector<uint32_t, 4>;
  static constexpr bool kGated = kConfig.transform == InputTransform::swiglu;
  static constexpr uint32_t kParts = RawChunk<kConfig>::kParts;
  static constexpr uint32_t kWarps = kConfig.threads / 32;
  static constexpr uint32_t kChunk = kConfig.chunk;
  static constexpr uint32_t kChunkBytes = 2 * kChunk;
  static constexpr uint32_t kVectors = kChunkBytes / 16;  // of a chunk, and copies of a thread
  static constexpr uint32_t kChunksOfCopy = 32 / kVectors;
  static constexpr uint32_t kSlotBytes = 32 * kChunkBytes;
  static constexpr uint32_t kLowerSlots = (Table::kNan - Table::kPositiveEnd) / kSlotBytes;
  static constexpr uint32_t kUpperSlots = (Table::kEnd - Table::kNegativeEnd) / kSlotBytes;
  static_assert(kVectors == 2 || kVectors == 4);

 public:
  /// Tiles that are on their way at once.
  static constexpr uint32_t kStages = (kLowerSlots + kUpperSlots) / (kWarps * kParts);
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
      offset_[i] = down_[i] * p.x.row_stride + x_bytes(column_[i]) + lane % kVectors * 16;
    }
    BLOCKSCALE_UNROLL
    for (uint32_t s = 0; s < kStages; ++s) {
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kParts; ++i) {
        slots_[s].part[i] = slot_at((s * kWarps + warp) * kParts + i);
      }
    }
    find_parts();
    const uint32_t turn = lane / 8 % kVectors;  // of the chunk that the lane copies to
    copy_to_ = lane / kVectors * kChunkBytes + ((lane % kVectors) ^ turn) * 16;
    read_from_ = lane * kChunkBytes + lane * kVectors / 8 % kVectors * 16;
  }

  /// Begins to copy the warp's chunks of the tile of a turn, if there is one, over those that were
  /// taken last. Chunks that do not exist as a whole become 0.
  BLOCKSCALE_DEVICE void begin(uint32_t turn) {
    Slot slot = slots_[0];
    if (turn < p_.grid.tiles) {
      slot.tile = place_in_turn(turn);
      copy(slot);
    }
    ptx::cp_async_commit_group();
    BLOCKSCALE_UNROLL
    for (uint32_t s = 0; s + 1 < kStages; ++s) slots_[s] = slots_[s + 1];
    slots_[kStages - 1] = slot;
  }

  /// The chunks of a tile into the level-2 cache, if all of it exists.
  BLOCKSCALE_DEVICE void prefetch(uint32_t turn) const {
    if (turn >= p_.grid.tiles) return;
    const TilePlace tile = place_in_turn(turn);
    if (!is_whole(tile)) return;
    BLOCKSCALE_UNROLL
    for (uint32_t part = 0; part < kParts; ++part) {
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kVectors; ++i) {
        ptx::prefetch_global_l2(start_of(tile) + part_[part] + offset_[i]);
      }
    }
  }

  /// The tile that was begun first of kStages, and the thread's chunk of it.
  BLOCKSCALE_DEVICE const TilePlace& first_tile() const { return slots_[0].tile; }
  BLOCKSCALE_DEVICE RawChunk<kConfig> take() {
    ptx::cp_async_wait_group<kStages - 1>();
    ptx::bar_warp_sync(ptx::kFullMask);
    RawChunk<kConfig> raw;
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kParts; ++i) {
      const uint32_t from = slots_[0].part[i].value + read_from_;
      BLOCKSCALE_UNROLL
      for (uint32_t j = 0; j < kVectors; ++j) {
        const Words words = ptx::ld_shared<Words>(ptx::SharedAddress{from ^ (16 * j)});
        BLOCKSCALE_UNROLL
        for (uint32_t k = 0; k < 4; ++k) raw.part[i].word[4 * j + k] = words.at[k];
      }
    }
    ptx::bar_warp_sync(ptx::kFullMask);  // the slot may be written again
    return raw;
  }

 private:
  struct Slot {
    TilePlace tile;  // that is copied to it
    ptx::SharedAddress part[kParts];
  };

  BLOCKSCALE_DEVICE TilePlace place_in_turn(uint32_t turn) const {
    return tile_place(p_.grid, tile_in_turn<kConfig>(p_, turn));
  }

  BLOCKSCALE_DEVICE static ptx::SharedAddress slot_at(uint32_t index) {
    const uint32_t at = index < kLowerSlots
                            ? Table::kPositiveEnd + index * kSlotBytes
                            : Table::kNegativeEnd + (index - kLowerSlots) * kSlotBytes;
    return device::shared_base() + at;
  }

  /// Bytes of a row of x before what a column of the result is made of, from the first part of that
  /// of column 0. A sum of such columns may be taken apart at multiples of 64.
  BLOCKSCALE_DEVICE int64_t x_bytes(uint32_t column) const {
    const int64_t bytes = int64_t{column} * 2;
    if constexpr (kGated) {
      if (p_.transform.gate_group == 1) return 2 * bytes;
      if (p_.transform.gate_group != p_.k) return 2 * bytes - column % 64 * 2;
    }
    return bytes;
  }

  /// Where the parts of column 0 lie in a row of x.
  BLOCKSCALE_DEVICE void find_parts() {
    part_[0] = 0;
    if constexpr (kGated) {
      const TransformParams& t = p_.transform;
      const GatedColumns start = gated_columns(t.gate_order, t.gate_group, 0);
      part_[0] = t.gate_group == 1 ? 0 : start.gate * 2;
      part_[1] = t.gate_group == 1 ? int64_t{kChunkBytes} : start.up * 2;
    }
  }

  BLOCKSCALE_DEVICE uint32_t first_column(const TilePlace& tile) const {
    return (tile.across << p_.grid.log2_chunks) * kChunk;
  }
  BLOCKSCALE_DEVICE const uint8_t* start_of(const TilePlace& tile) const {
    return x_row_at(p_, tile.matrix, tile.row) + x_bytes(first_column(tile));
  }
  BLOCKSCALE_DEVICE bool is_whole(const TilePlace& tile) const {
    const uint32_t end = first_column(tile) + (kChunk << p_.grid.log2_chunks);
    return tile.row + p_.grid.rows <= p_.rows && end <= p_.k;
  }

  BLOCKSCALE_DEVICE void copy(const Slot& slot) const {
    const TilePlace& tile = slot.tile;
    const uint32_t column = first_column(tile);
    const uint8_t* const from = start_of(tile);
    const bool whole = is_whole(tile);
    BLOCKSCALE_UNROLL
    for (uint32_t part = 0; part < kParts; ++part) {
      const ptx::SharedAddress to = slot.part[part] + copy_to_;
      if (whole) {
        BLOCKSCALE_UNROLL
        for (uint32_t i = 0; i < kVectors; ++i) {
          ptx::cp_async_cg(to + i * kChunksOfCopy * kChunkBytes, from + part_[part] + offset_[i]);
        }
      } else {
        BLOCKSCALE_UNROLL
        for (uint32_t i = 0; i < kVectors; ++i) {
          const bool exists = tile.row + down_[i] < p_.rows && column + column_[i] + kChunk <= p_.k;
          ptx::cp_async_cg(to + i * kChunksOfCopy * kChunkBytes,
                           exists ? from + part_[part] + offset_[i] : p_.x.data, exists ? 16 : 0);
        }
      }
    }
  }

  const QuantizeParams& p_;
  uint32_t down_[kVectors];    // of what the thread copies, from the tile's first chunk
  uint32_t column_[kVectors];  // likewise, elements of the result
  int64_t offset_[kVectors];   // likewise, bytes of x
  int64_t part_[kParts];
  Slot slots_[kStages];  // of the tiles, that which was begun first in front
  uint32_t copy_to_;
  uint32_t read_from_;
};

/// Calls body(place, raw) for each tile of the thread block, with the thread's chunk of it and its
/// elements of x.
template <QuantizeConfig kConfig, class Body>
BLOCKSCALE_DEVICE void each_queued_tile(const QuantizeParams& p, const Body& body) {
  using Queue = ChunkQueue<kConfig>;
  static_assert(kConfig.persistent && kConfig.min_blocks == 1);
  Queue queue(p);
  const uint32_t step = ptx::nctaid_x();
  // After a `maximum` x is there already.
  const bool has_x = follows_maximum(kConfig) && p.tensor_source == TensorScaleSource::maxima;
  if (p.prefetches && !has_x) {
    BLOCKSCALE_NO_UNROLL
    for (uint32_t s = 0; s < Queue::kStages; ++s) queue.prefetch(ptx::ctaid_x() + s * step);
  }
  FunctionTable<kConfig.transform, kConfig.input>::template fill<kConfig.threads>();
  await_turn(p, has_x);
  BLOCKSCALE_UNROLL
  for (uint32_t s = 0; s < Queue::kStages; ++s) queue.begin(ptx::ctaid_x() + s * step);
  ptx::barrier_sync_all();
  for (uint32_t turn = ptx::ctaid_x(); turn < p.grid.tiles; turn += step) {
    const TilePlace kept = queue.first_tile();
    const RawChunk<kConfig> raw = queue.take();
    queue.begin(turn + Queue::kStages * step);
    // Groups of warps have no registers to keep it in.
    const bool keeps = kConfig.kernel == QuantizeKernel::blocks;
    const TilePlace tile = keeps ? kept : tile_place(p.grid, tile_in_turn<kConfig>(p, turn));
    body(chunk_place<kConfig>(p.grid, tile), raw);
  }
}

/// Gates into the first part and ups into the second, if they alternate.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void part_gates_from_ups(RawChunk<kConfig>& raw, const TransformParams& t) {
  if (t.gate_group != 1) return;
  constexpr int kWords = Chunk<kConfig.input, kConfig.chunk>::kWords;
  const bool gate_first = t.gate_order == GateOrder::gate_first;
  const uint32_t gates = gate_first ? 0x5410u : 0x7632u;
  const RawChunk<kConfig> mixed = raw;
  BLOCKSCALE_UNROLL
  for (int i = 0; i < kWords; ++i) {
    const auto& from = mixed.part[2 * i / kWords];
    const uint32_t first = from.word[2 * i % kWords];
    const uint32_t second = from.word[2 * i % kWords + 1];
    raw.part[0].word[i] = ptx::prmt(first, second, gates);
    raw.part[1].word[i] = ptx::prmt(first, second, gates ^ 0x2222u);
  }
}

/// What is quantised, from the table.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE ValueChunk<kConfig> look_up(RawChunk<kConfig> raw, const TransformParams& t) {
  using Table = FunctionTable<kConfig.transform, kConfig.input>;
  constexpr bool kGated = kConfig.transform == InputTransform::swiglu;
  // Products make codes of more than 4 bits, as many as logic does where there is no gate.
  constexpr bool kByDp2a = kGated || format_traits(kConfig.element).bits == 4;
  if constexpr (kGated) part_gates_from_ups(raw, t);
  ValueChunk<kConfig> values;
  BLOCKSCALE_UNROLL
  for (int i = 0; i < kConfig.chunk; i += 2) {
    auto pair = Table::template look_up<kByDp2a>(raw.part[0].word[i / 2]);
    if constexpr (kGated) {
      pair.low = ptx::mul_rn(pair.low, value_at(raw.part[1], i));
      pair.high = ptx::mul_rn(pair.high, value_at(raw.part[1], i + 1));
    }
    values.word[i] = bit_cast<uint32_t>(pair.low);
    values.word[i + 1] = bit_cast<uint32_t>(pair.high);
  }
  return values;
}

}  // namespace blockscale::quantize_sm90
