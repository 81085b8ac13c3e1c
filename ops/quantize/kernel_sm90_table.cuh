// GELU and swiglu of 16-bit elements with a table of the function in shared memory: GELU and silu
// cost 20 to 25 instructions an element where an H200's memory leaves 19 for everything; a look-up
// costs four.
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

#include "core/input_transform.h"
#include "core/math.h"
#include "device/kernel.h"
#include "device/math.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/barrier.h"
#include "device/ptx/cp_async.h"
#include "device/ptx/integer.h"
#include "device/ptx/packed.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "device/vector.h"
#include "ops/quantize/kernel_sm90_chunk.cuh"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernel_sm90_transform.cuh"
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

/// The functions that tables hold: GELU, and for swiglu silu.
template <InputTransform kTransform>
struct Tabulated {
  using Math = device::KernelMath;
  static constexpr bool kTanh = kTransform == InputTransform::gelu_tanh;
  static constexpr bool kErf = kTransform == InputTransform::gelu_erf;
  static_assert(kTanh || kErf || kTransform == InputTransform::swiglu);

  /// Below its negative it is constant.
  static constexpr float kLowest = kTanh ? 10.0f : kErf ? 8.0f : 87.0f;

  BLOCKSCALE_DEVICE static float value(float x) {
    if constexpr (kTanh || kErf) return gelu<kTransform>(x);
    return math::silu<Math>(x);
  }

  /// What is costly about it, at 0; and from that the function of magnitudes below 2^-27 and of
  /// their negatives.
  BLOCKSCALE_DEVICE static float costly_at_zero() {
    if constexpr (kTanh) return math::tanh_tail<Math>(0.0f);
    if constexpr (kErf) return math::erf_tail<Math>(0.0f);
    return math::sigmoid<Math>(0.0f);
  }
  BLOCKSCALE_DEVICE static float above_zero(float x, float costly) {
    return kTanh || kErf ? ptx::fma_rn(-x, costly, x) : ptx::mul_rn(x, costly);
  }
  BLOCKSCALE_DEVICE static float below_zero(float x, float costly) {
    return ptx::mul_rn(x, costly);
  }
};

/// The values of a function of 16-bit numbers, and where they lie.
template <InputTransform kTransform, Format kFormat>
class FunctionTable {
  using Function = Tabulated<kTransform>;
  static constexpr bool kIsBf16 = kFormat == Format::bf16;
  static constexpr bool kIsGelu = kTransform != InputTransform::swiglu;

  /// Numbers below -kLowest have the value that it has, which is NaN where the function goes on:
  /// the table of silu for f16 would be too long.
  static constexpr bool kEnds = kIsGelu || kIsBf16;
  static constexpr uint32_t kLowest = bits_of<kFormat>(kEnds ? Function::kLowest : 32.0f);
  /// From here on numbers have no entry. Here f16 leaves room for 32 slots.
  static constexpr uint32_t kHighest = bits_of<kFormat>(kIsBf16   ? 256.0f
                                                        : kIsGelu ? 128.0f
                                                                  : 28.0f);
  static constexpr uint32_t kNearZero = kIsBf16 ? bits_of<kFormat>(0x1p-27f) : 0;

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
    if constexpr (kNearZero > 0) {
      const float costly = Function::costly_at_zero();
      for (uint32_t first = kEntries * ptx::tid_x(); first < kNearZero;
           first += kEntries * kThreads) {
        const Numbers x(first);
        ptx::st_shared(table + 4 * first,
                       x.map([&](float number) { return Function::above_zero(number, costly); }));
        ptx::st_shared(table + (kNegative + 4 * first),
                       x.map([&](float number) { return Function::below_zero(-number, costly); }));
      }
    }
    constexpr uint32_t kLength = kHighest > kBelowZero ? kHighest : kBelowZero;
    for (uint32_t first = kNearZero + kEntries * ptx::tid_x(); first < kLength;
         first += kEntries * kThreads) {
      const Numbers x(first);
      if (first < kHighest) {
        ptx::st_shared(table + 4 * first,
                       x.map([](float number) { return Function::value(number); }));
      }
      if (first < kBelowZero) {
        ptx::st_shared(table + (kNegative + 4 * first),
                       x.map([](float number) { return Function::value(-number); }));
      }
    }
    if (ptx::tid_x() != 0) return;
    ptx::st_shared(table + 4 * kHighest, kQuietNan);
    ptx::st_shared(table + kNan, kQuietNan);
    if constexpr (!kEnds) ptx::st_shared(table + (kNegative + 4 * kLowest), kQuietNan);
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

  /// Entries that a thread computes at once. Some behind the last may be written; nobody reads
  /// them.
  static constexpr uint32_t kEntries = 4;
  static constexpr uint32_t kBelowZero = kEnds ? kLowest + 1 : kLowest;
  static_assert(kNearZero % kEntries == 0 && kHighest % kEntries == 0);
  static_assert(kEnds || kLowest % kEntries == 0);

  struct Numbers {
    Chunk<kFormat, kEntries> x;

    BLOCKSCALE_DEVICE explicit Numbers(uint32_t first)
        : x{{first | (first + 1) << 16, (first + 2) | (first + 3) << 16}} {}

    template <class Map>
    BLOCKSCALE_DEVICE device::Vector<float, kEntries> map(const Map& value_of) const {
      device::Vector<float, kEntries> values;
      BLOCKSCALE_UNROLL
      for (int i = 0; i < 4; ++i) values.at[i] = value_of(value_at(x, i));
      return values;
    }
  };
};

/// The elements of x that a thread's chunk is made of: for swiglu gates and ups, which lie in two
/// runs, or alternate in one that `second` goes on with; else `first` alone.
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

  /// Begins to copy the warp's chunks of a tile, if there is one, over those that were taken last.
  /// Chunks that do not exist as a whole become 0.
  BLOCKSCALE_DEVICE void begin(uint32_t tile_index) {
    const Slot slot = slots_[0];
    if (tile_index < p_.grid.tiles) copy(slot, tile_place(p_.grid, tile_index));
    ptx::cp_async_commit_group();
    BLOCKSCALE_UNROLL
    for (uint32_t s = 0; s + 1 < kStages; ++s) slots_[s] = slots_[s + 1];
    slots_[kStages - 1] = slot;
  }

  /// The thread's chunk of the tile that was begun first of kStages.
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
    ptx::SharedAddress part[kParts];
  };

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

  BLOCKSCALE_DEVICE void copy(const Slot& slot, const TilePlace& tile) const {
    const uint32_t columns = kChunk << p_.grid.log2_chunks;
    const uint32_t column = tile.across * columns;
    const uint8_t* const from =
        p_.x.data + tile.matrix * p_.x.batch_stride + tile.row * p_.x.row_stride + x_bytes(column);
    const bool whole = tile.row + p_.grid.rows <= p_.rows && column + columns <= p_.k;
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

/// Calls body(tile, raw) for each tile of the thread block, with the thread's elements of x.
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
    const RawChunk<kConfig> raw = queue.take();
    queue.begin(tile + Queue::kStages * step);
    body(tile, raw);
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
  constexpr bool kGated = kConfig.transform == InputTransform::swiglu;
  if constexpr (kGated) part_gates_from_ups(raw, t);
  ValueChunk<kConfig> values;
  BLOCKSCALE_UNROLL
  for (int i = 0; i < kConfig.chunk; i += 2) {
    auto pair = FunctionTable<kConfig.transform, kConfig.input>::look_up(raw.part[0].word[i / 2]);
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
