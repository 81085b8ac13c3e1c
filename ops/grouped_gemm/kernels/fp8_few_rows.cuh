// D = epilogue(A B^T) of groups of few rows, of FP8 operands with scales of blocks of both: B is
// read once for as many as 8 rows of a group, straight to registers, as fast as memory gives it.
//
// A warp takes 16 rows of B and a part of K, and multiplies them by the tile's rows of A, which lie
// in shared memory: B's rows are mma.sync's 16 rows, A's its 8 columns. Of a row's 128 bytes of a
// k-block a lane has 16 in each half; that these are not the k that an instruction's fragments ask
// for of it changes nothing, as they are the same k of both operands. Warps that divide K add up in
// shared memory. With SwiGLU a warp's rows are 8 gates and their ups, so that whoever adds up has
// both: D has no gates and ups.
#pragma once

#include "device/epilogue/result_transform.h"
#include "device/scheduler/block_tiles.h"
#include "device/scheduler/grouped_order.h"
#include "ops/gemm/kernels/gemv_fp8.cuh"

namespace blockscale {

inline constexpr uint32_t kFewRows = 8;       // of a tile
inline constexpr uint32_t kFewWarpRows = 16;  // of B
inline constexpr uint32_t kFewGates = kFewWarpRows / 2;
inline constexpr uint32_t kFewWarps = 8;
inline constexpr int kFewThreads = 32 * kFewWarps;
inline constexpr int kFewBlocksPerMultiprocessor = 3;

struct Fp8FewRowsParams {
  const uint8_t* a = nullptr;  // rows of both begin at multiples of 16 bytes
  const uint8_t* b = nullptr;
  int64_t a_row_stride = 0, a_batch_stride = 0;  // bytes
  int64_t b_row_stride = 0, b_batch_stride = 0;  // a matrix of B has less than 2^32 bytes
  GemmScales a_scales, b_scales;  // B's: one for all rows of a block of threads, or all its gates
                                  // and all its ups
  SourceRows source;              // of A
  LinearEpilogue epilogue;        // its columns are B's rows
  bool is_transformed = false;
  ResultTransform transform;
  EntryOrder order;             // of tiles of kFewRows, a block's rows of B wide; no row moves
  uint32_t k = 0;               // a multiple of 16
  uint32_t division_shift = 0;  // 2^this warps divide K, at most all
  uint32_t part_blocks = 0;     // k-blocks of each of them, but the last ones

  /// B's row at a place. Places are B's rows in the order in which warps take them, kFewWarpRows
  /// each: with SwiGLU kFewGates gates, then their ups. `first` is the first one of a warp's.
  BLOCKSCALE_DEVICE uint32_t row_of_b(uint32_t first, uint32_t place) const {
    if (!transform.is_gated) return first + place;
    const ResultTransform::Columns of = transform.columns_of(first / 2 + place % kFewGates);
    return place < kFewGates ? of.gate : of.up;
  }
};

namespace fp8_few_rows {

using fp8_gemv::Bytes16;

/// Rows of B that a block has.
BLOCKSCALE_HD constexpr uint32_t places_of(uint32_t division_shift) {
  return (kFewWarps >> division_shift) * kFewWarpRows;
}

/// A row of A's scale of a k-block times those of a warp's first and last 8 rows of B.
using Scales = device::Vector<float, 2>;
inline constexpr uint32_t kScalesBytes = sizeof(Scales);

/// Shared memory, in bytes from its start: A's rows, filled up with zeros and so far apart that
/// reads of neighbours do not meet; Scales of each of them; sums of warps; what the order asks for.
struct Memory {
  uint32_t row_bytes, scales, sums, order;
};
BLOCKSCALE_HD constexpr Memory memory_of(uint32_t k_blocks) {
  Memory m{};
  m.row_bytes = k_blocks * kFp8BlockK + 64;
  m.scales = kFewRows * m.row_bytes;
  m.sums = m.scales + k_blocks * kFewRows * kScalesBytes;
  m.order = m.sums + kFewWarps * kFewWarpRows * kFewRows * 4;
  return m;
}

/// A warp's part of a tile's B: some k-blocks of its rows, of which the next ones are on their way.
class Stream {
 public:
  static constexpr int kAhead = 2;  // k-blocks: 4 KB a warp
  struct Rows {
    Bytes16 at[2][2];  // of rows lane / 4 and 8 more, 64 bytes apart
  };

  /// K-blocks [begin, end) of every tile.
  BLOCKSCALE_DEVICE Stream(const Fp8FewRowsParams& p, uint32_t begin, uint32_t end)
      : p_(p), begin_(begin), end_(end) {}

  /// Goes on to a tile of that matrix of B, where this warp's places begin at `first`.
  BLOCKSCALE_DEVICE void begin(uint32_t matrix, uint32_t first) {
    b_ = p_.b + matrix * p_.b_batch_stride;
    next_ = begin_;
    byte_ = begin_ * kFp8BlockK + ptx::laneid() % 4 * 16;
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t row = p_.row_of_b(first, ptx::laneid() / 4 + 8 * i);
      // Rows outside of B take its last one's place: what they give is not stored.
      row_[i] = (row < p_.epilogue.columns ? row : p_.epilogue.columns - 1) *
                static_cast<uint32_t>(p_.b_row_stride);
    }
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kAhead; ++i) load(i);
  }

  /// Calls visit(k-block, its rows) for each k-block.
  template <class Visit>
  BLOCKSCALE_DEVICE void for_each(const Visit& visit) {
    fp8_gemv::for_each_slot<kAhead>(next_ - kAhead, end_, [&](uint32_t k, int slot) {
      visit(k, loaded_[slot]);
      load(slot);
    });
  }

 private:
  BLOCKSCALE_DEVICE void load(int slot) {
    BLOCKSCALE_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {
      const bool has = next_ < end_ && byte_ + half * 64 < p_.k;
      BLOCKSCALE_UNROLL
      for (int i = 0; i < 2; ++i) {
        loaded_[slot].at[i][half] = ptx::ld_global_nc_if(
            has, reinterpret_cast<const Bytes16*>(b_ + (row_[i] + byte_ + half * 64)));
      }
    }
    byte_ += kFp8BlockK;
    ++next_;
  }

  const Fp8FewRowsParams& p_;
  uint32_t begin_, end_;
  const uint8_t* b_ = nullptr;  // the tile's
  uint32_t next_ = 0;
  uint32_t byte_ = 0;  // of k: this lane's first of the next load
  uint32_t row_[2];    // where rows begin, from b_ on
  Rows loaded_[kAhead];
};

/// Fills shared memory with the tile's `rows` rows of A and their Scales. B's places begin at
/// `first`.
BLOCKSCALE_DEVICE void bring_a(const Fp8FewRowsParams& p, const Memory& memory, const Tile& tile,
                               uint32_t rows, uint32_t k_blocks, uint32_t first) {
  const uint32_t matrix = p.order.matrix_of(tile), of_b = p.order.b_of(tile);
  const ptx::SharedAddress shared = device::shared_base();
  const uint32_t row_steps = k_blocks * 8;
  for (uint32_t i = ptx::tid_x(); i < rows * row_steps; i += kFewThreads) {
    const uint32_t row = i / row_steps, byte = (i - row * row_steps) * 16;
    uint32_t of_a = 0;
    const bool has = p.source.find(tile.first_row + row, of_a) && byte < p.k;
    const uint8_t* const a = p.a + matrix * p.a_batch_stride + of_a * p.a_row_stride + byte;
    ptx::cp_async_cg(shared + (row * memory.row_bytes + byte), has ? a : p.a, has ? 16 : 0);
  }
  for (uint32_t i = ptx::tid_x(); i < rows * k_blocks; i += kFewThreads) {
    const uint32_t row = i / k_blocks, k = i - row * k_blocks;
    uint32_t of_a = 0;
    Scales scales = {};
    if (p.source.find(tile.first_row + row, of_a)) {
      // All loads come before a product that waits for them.
      const float of_row = fp8_gemv::load_scale(p.a_scales, matrix, of_a, k);
      BLOCKSCALE_UNROLL
      for (uint32_t half = 0; half < 2; ++half) {
        scales.at[half] =
            fp8_gemv::load_scale(p.b_scales, of_b, p.row_of_b(first, half * kFewGates), k);
      }
      BLOCKSCALE_UNROLL
      for (float& scale : scales.at) scale = ptx::mul_rn(of_row, scale);
    }
    ptx::st_shared(shared + (memory.scales + i * kScalesBytes), scales);
  }
  ptx::cp_async_wait_all();
  ptx::barrier_sync_all();
}

/// Where a warp's sum of a row of A and one of B is, from `sums` on.
BLOCKSCALE_DEVICE uint32_t sum_offset(uint32_t warp, uint32_t row, uint32_t column) {
  return ((warp * kFewRows + row) * kFewWarpRows + column) * 4;
}

/// A warp's sums of the tile's `rows` rows of A, which are in shared memory, to there.
BLOCKSCALE_DEVICE void multiply(Stream& stream, const Memory& memory, uint32_t rows,
                                uint32_t k_blocks) {
  const uint32_t warp = device::warp_index(), lane = ptx::laneid();
  const ptx::SharedAddress shared = device::shared_base();
  // Rows that the tile does not have are its first one: what they give is not stored.
  const auto row_or_first = [&](uint32_t row) { return row < rows ? row : 0; };
  const ptx::SharedAddress a_at =
      shared + (row_or_first(lane / 4) * memory.row_bytes + lane % 4 * 16);
  ptx::SharedAddress scales_at[2];
  BLOCKSCALE_UNROLL
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t first = row_or_first(lane % 4 * 2 + i) * k_blocks;
    scales_at[i] = shared + (memory.scales + first * kScalesBytes);
  }
  float sums[4] = {};
  stream.for_each([&](uint32_t k, const Stream::Rows& b) {
    const uint32_t at = k * kScalesBytes;
    const Scales scales[2] = {ptx::ld_shared<Scales>(scales_at[0] + at),
                              ptx::ld_shared<Scales>(scales_at[1] + at)};
    ptx::MmaAccumulator products = {};
    BLOCKSCALE_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {
      const Bytes16 a = ptx::ld_shared<Bytes16>(a_at + (k * kFp8BlockK + half * 64));
      const Bytes16 &upper = b.at[0][half], &lower = b.at[1][half];
      BLOCKSCALE_UNROLL
      for (int i = 0; i < 4; i += 2) {
        ptx::mma_sync_m16n8<ptx::MmaElement::e4m3>(
            products, {{upper.at[i], lower.at[i], upper.at[i + 1], lower.at[i + 1]}},
            {{a.at[i], a.at[i + 1]}});
      }
    }
    BLOCKSCALE_UNROLL
    for (int i = 0; i < 4; ++i) {
      sums[i] = ptx::fma_rn(products.value[i], scales[i % 2].at[i / 2], sums[i]);
    }
  });
  BLOCKSCALE_UNROLL
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t at = sum_offset(warp, lane % 4 * 2 + i % 2, lane / 4 + i / 2 * 8);
    ptx::st_shared(shared + (memory.sums + at), sums[i]);
  }
}

/// Adds the sums of warps that divide K up, and stores a tile's part of D. A gate's lane and its
/// up's are kFewGates apart; what an up's makes of them is not stored. Whole warps go round
/// together, as they exchange: lanes that have nothing of D with 0.
BLOCKSCALE_DEVICE void add_up(const Fp8FewRowsParams& p, const Memory& memory, const Tile& tile,
                              uint32_t rows) {
  const uint32_t places = places_of(p.division_shift);
  const uint32_t matrix = p.order.matrix_of(tile), of_b = p.order.b_of(tile);
  const bool is_gated = p.transform.is_gated;
  for (uint32_t i = ptx::tid_x(); i - ptx::laneid() < rows * places; i += kFewThreads) {
    const uint32_t row = i / places, place = i - row * places;
    const uint32_t of_warp = place % kFewWarpRows;
    const uint32_t first = tile.n * places + place - of_warp;  // of the warp's places
    const uint32_t row_of_b = p.row_of_b(first, of_warp);
    const bool is_in_d = row < rows && row_of_b < p.epilogue.columns;
    const epilogue::RowPlace to = {matrix, of_b, tile.first_row + row};
    float number = 0;
    if (is_in_d) {
      const uint32_t first_warp = place / kFewWarpRows << p.division_shift;
      for (uint32_t w = 0; w < 1u << p.division_shift; ++w) {
        const uint32_t at = memory.sums + sum_offset(first_warp + w, row, of_warp);
        number = ptx::add_rn(number, ptx::ld_shared<float>(device::shared_base() + at));
      }
      number = fp8_gemv::combined(p.epilogue, to, row_of_b, number);
    }
    if (p.is_transformed) {
      const float up = ptx::shfl_sync_bfly(ptx::kFullMask, number, kFewGates);
      number = p.transform(number, is_gated ? up : 1.0f);
    }
    if (is_in_d && !(is_gated && of_warp >= kFewGates)) {
      epilogue::store_one(p.epilogue, to, is_gated ? first / 2 + of_warp : row_of_b, number);
    }
  }
}

}  // namespace fp8_few_rows

BLOCKSCALE_DEVICE void fp8_few_rows_kernel(const Fp8FewRowsParams& p) {
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  const uint32_t k_blocks = (p.k + kFp8BlockK - 1) / kFp8BlockK;
  const fp8_few_rows::Memory memory = fp8_few_rows::memory_of(k_blocks);
  BlockTiles<EntryOrder, kFewRows> tiles(p.order, device::shared_base() + memory.order);
  tiles.begin();
  uint32_t index = ptx::ctaid_x();
  if (index >= tiles.count()) return;
  Tile tile = tiles.tile(index);

  const uint32_t warp = device::warp_index();
  const uint32_t places = fp8_few_rows::places_of(p.division_shift);
  const uint32_t group = warp >> p.division_shift;
  const uint32_t part = warp - (group << p.division_shift);
  const uint32_t begin = part * p.part_blocks, end = begin + p.part_blocks;
  fp8_few_rows::Stream stream(p, begin, end < k_blocks ? end : k_blocks);
  const auto begin_stream = [&] {
    stream.begin(p.order.b_of(tile), tile.n * places + group * kFewWarpRows);
  };
  begin_stream();
  for (;;) {
    const uint32_t left = tile.end_row - tile.first_row, rows = left < kFewRows ? left : kFewRows;
    fp8_few_rows::bring_a(p, memory, tile, rows, k_blocks, tile.n * places);
    fp8_few_rows::multiply(stream, memory, rows, k_blocks);
    // The next tile's B comes while this one's sums are added up.
    const Tile done = tile;
    index += ptx::nctaid_x();
    const bool has_next = index < tiles.count();
    if (has_next) {
      tile = tiles.tile(index);
      begin_stream();
    }
    ptx::barrier_sync_all();
    fp8_few_rows::add_up(p, memory, done, rows);
    if (!has_next) return;
  }
}

}  // namespace blockscale
