// What blocks of fp4_few_rows.cuh have of a product, and how they bring it: B straight to
// registers, ahead of what is multiplied, A's rows and their scales to shared memory, once.
#pragma once

#include "core/format.h"
#include "device/decode/codes.cuh"
#include "device/decode/scaled_codes.cuh"
#include "device/kernel.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/integer.h"
#include "device/ptx/packed.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "device/scheduler/rows.h"
#include "device/vector.h"
#include "ops/gemm/kernels/fp4_params.h"
#include "ops/gemm/kernels/gemv_fp8.cuh"

namespace blockscale::fp4_few_rows {

using Bytes16 = device::Vector<uint32_t, 4>;

/// Rows of a product that are multiplied at a time.
struct TurnRows {
  uint32_t matrix;  // of A and D
  uint32_t group;   // matrix of B
  uint32_t first, count;
  SourceRows source;
};

/// The turns of a block of a dense product, whose grid is blocks that divide K, a cluster;
/// clusters, which take turns with tiles; matrices. Of other products' grids the first two are the
/// same, and so is what Weights asks of their turns.
class DenseTurns {
 public:
  BLOCKSCALE_DEVICE explicit DenseTurns(const Fp4GemmParams& p)
      : p_(p), tile_(ptx::ctaid_y() * p.block_tiles) {}

  BLOCKSCALE_DEVICE bool has() const { return tile_ < p_.tiles; }
  BLOCKSCALE_DEVICE void next() { tile_ += ptx::nctaid_y() * p_.block_tiles; }
  /// The first of the turn's tiles of B; behind the last turn, none that B has.
  BLOCKSCALE_DEVICE uint32_t tile() const { return tile_; }
  BLOCKSCALE_DEVICE uint32_t group() const { return ptx::ctaid_z(); }
  BLOCKSCALE_DEVICE TurnRows rows() const {
    return {ptx::ctaid_z(), ptx::ctaid_z(), 0, p_.epilogue.rows, {}};
  }

 private:
  const Fp4GemmParams& p_;
  uint32_t tile_;
};

BLOCKSCALE_DEVICE uint32_t first_chunk_of_block(const Fp4GemmParams& p) {
  return ptx::ctaid_x() * p.block_chunks;
}

/// The first chunk that shared memory has A's rows of: the block's, or that of a part of K.
template <Fp4GemmConfig kConfig>
BLOCKSCALE_DEVICE uint32_t first_chunk_in_memory(const Fp4GemmParams& p, uint32_t first) {
  if constexpr (kConfig.refills) {
    return first;
  } else {
    return first_chunk_of_block(p);
  }
}

/// What a warp has of a block's tiles: which of those of a turn, and of it chunks from `chunk` to
/// `end_chunk`, warps_k apart.
struct Part {
  uint32_t tile;
  uint32_t chunk, end_chunk;

  BLOCKSCALE_DEVICE explicit Part(const Fp4GemmParams& p) {
    const uint32_t warp = device::warp_index();
    tile = warp / p.warps_k;
    chunk = first_chunk_of_block(p) + warp - tile * p.warps_k;
    const uint32_t chunks = (p.pieces + kFp4ChunkPieces - 1) / kFp4ChunkPieces;
    const uint32_t end = first_chunk_of_block(p) + p.block_chunks;
    end_chunk = end < chunks ? end : chunks;
  }
};

/// A lane's part of two rows of B in a step.
struct Pieces {
  Bytes16 codes[2];
  uint32_t scales[2];  // as they are stored: one byte of MX, the block's, two of NVFP4
};

/// A warp's part of B: the steps of a chunk, and behind those that were multiplied the next one's,
/// which may be the next turn's.
template <Fp4GemmConfig kConfig, class Turns>
class Weights {
 public:
  BLOCKSCALE_DEVICE Weights(const Fp4GemmParams& p, const Part& part, const Turns& first)
      : p_(p), part_(part), turns_(first), chunk_(part.chunk) {
    begin_tile();
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kFp4ChunkSteps; i += 2) load(i);
    next_chunk();
  }

  BLOCKSCALE_DEVICE const Pieces& operator[](uint32_t step) const { return loaded_[step]; }

  /// Begins to load two steps of the chunk that comes next. The branch, which all lanes take alike,
  /// keeps the loads here: without it the compiler puts all of a chunk's behind its products, where
  /// the warp then waits for memory.
  BLOCKSCALE_DEVICE void load(uint32_t step) {
    if (ptx::vote_sync_all(ptx::kFullMask, piece_ >= end_piece_)) {
      loaded_[step] = loaded_[step + 1] = {{}, {kNone, kNone}};
    } else {
      load_one(step, piece_);
      load_one(step + 1, piece_ + 4);
    }
    piece_ += 8;
  }

  /// Behind all loads of a chunk.
  BLOCKSCALE_DEVICE void next_chunk() {
    chunk_ += p_.warps_k;
    if (chunk_ >= part_.end_chunk) {
      turns_.next();
      chunk_ = part_.chunk;
      begin_tile();
    } else {
      begin_chunk();
    }
  }

 private:
  static constexpr bool kIsNvfp4 = kConfig.b == Recipe::nvfp4;
  static constexpr int kScaleBytes = kIsNvfp4 ? 2 : 1;
  static constexpr uint32_t kBlockK = recipe_traits(kConfig.b).block_k;
  static constexpr uint32_t kStepBlocks = kConfig.step_k() / kBlockK;
  /// Scales that do not disturb, of blocks that there are not.
  static constexpr uint32_t kNone =
      kIsNvfp4 ? 0x3838 : decoding::kUe8m0Factors<kConfig.form(), kConfig.element()>.most;

  BLOCKSCALE_DEVICE void load_one(uint32_t step, uint32_t piece) {
    const bool has = piece < end_piece_;
    BLOCKSCALE_UNROLL
    for (int i = 0; i < 2; ++i) {
      loaded_[step].codes[i] = ptx::ld_global_nc_if(
          has, reinterpret_cast<const Bytes16*>(codes_[i] + piece * kFp4PieceBytes));
      loaded_[step].scales[i] = ptx::ld_global_nc_narrow_if<kScaleBytes>(
          has, scales_[i] + offset_of_scales(piece / 4), kNone);
    }
  }

  /// Of a step: of two fours of blocks, of one, or of the first or second half of one.
  BLOCKSCALE_DEVICE int64_t offset_of_scales(uint32_t step) const {
    if constexpr (kStepBlocks >= 4) {
      return step * (p_.scales.k_stride_4 * (kStepBlocks / 4));
    } else {
      return step / 2 * p_.scales.k_stride_4 + step % 2 * kStepBlocks;
    }
  }

  BLOCKSCALE_DEVICE void begin_chunk() { piece_ = chunk_ * kFp4ChunkPieces + ptx::laneid() % 4; }

  BLOCKSCALE_DEVICE void begin_tile() {
    const uint32_t group = turns_.group(), rows = p_.epilogue.columns;
    const uint32_t tile = turns_.tile() + part_.tile;
    const uint32_t scale = ptx::laneid() % 4 * kConfig.piece_k() / kBlockK;  // of a step's
    end_piece_ = tile < p_.tiles && part_.chunk < part_.end_chunk ? p_.pieces : 0;
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t own = tile * kFp4TileRows + ptx::laneid() / 4 + 8 * i;
      const uint32_t row = own < rows ? own : rows - 1;
      codes_[i] = p_.b + group * p_.b_batch_stride + row * p_.b_row_stride;
      scales_[i] = p_.scales.data + group * p_.scales.batch_stride + p_.scales.row_offset(row) +
                   p_.scales.k_offset(scale);
    }
    begin_chunk();
  }

  const Fp4GemmParams& p_;
  const Part& part_;
  Turns turns_;                 // that are loaded
  uint32_t chunk_;              // that is loaded next
  uint32_t piece_, end_piece_;  // of a row: this lane's of the next load
  const uint8_t* codes_[2];     // of rows
  const uint8_t* scales_[2];    // of rows, this lane's of their first step
  Pieces loaded_[kFp4ChunkSteps];
};

/// What is left of B's numbers behind the factor of their scale: elements of e4m3 take it.
template <Fp4GemmConfig kConfig>
inline constexpr float kLeft =
    kConfig.b == Recipe::nvfp4 ? decoding::kUe4m3Left
                               : decoding::kUe8m0Factors<kConfig.form(), kConfig.element()>.left;

/// Eight neighbours among A's elements, which begin `first` words into a load, in the pairs that
/// decoding::spread has: (0, 4), (1, 5), (2, 6) and (3, 7) beside four bits. Exactly.
template <Fp4GemmConfig kConfig>
BLOCKSCALE_DEVICE Bytes16 pairs_of(const Bytes16& load, uint32_t first) {
  const auto& n = load.at;
  if constexpr (kConfig.a == Format::e4m3) {
    const decoding::Codes<Format::e4m3, 8> codes = {
        {ptx::prmt(n[first], n[first + 1], 0x5140), ptx::prmt(n[first], n[first + 1], 0x7362)}};
    Bytes16 pairs;
    decoding::widen_codes<Format::bf16>(pairs.at, codes);
    if constexpr (kLeft<kConfig> != 1) {
      constexpr uint32_t kFactor = decoding::twice(encode<Format::bf16>(kLeft<kConfig>));
      BLOCKSCALE_UNROLL
      for (uint32_t& pair : pairs.at) pair = ptx::mul_rn_bf16x2(pair, kFactor);
    }
    return pairs;
  } else if constexpr (kConfig.element() != Format::e2m1) {
    return load;
  } else {
    return {{ptx::prmt(n[0], n[2], 0x5410), ptx::prmt(n[0], n[2], 0x7632),
             ptx::prmt(n[1], n[3], 0x5410), ptx::prmt(n[1], n[3], 0x7632)}};
  }
}

/// Fills shared memory with the block's part of a turn's rows of A, or with that from chunk `part`
/// on, eight neighbours, a vector, side by side; of a step each lane's first vectors come first,
/// then their second ones.
template <Fp4GemmConfig kConfig>
BLOCKSCALE_DEVICE void bring_tokens(const Fp4GemmParams& p, const Fp4GemmMemory& memory,
                                    const TurnRows& rows, uint32_t part = 0) {
  constexpr uint32_t kElements = kConfig.load_elements(), kVectors = kConfig.piece_k() / 8;
  constexpr uint32_t kAtOnce = 4;  // loads of a thread, which do not wait for each other
  const uint32_t threads = ptx::ntid_x();
  const uint32_t loads = p.row_loads.divisor, count = rows.count * loads;
  const uint32_t first_load =
      first_chunk_in_memory<kConfig>(p, part) * (kConfig.chunk_k() / kElements);
  const uint32_t end_load = p.pieces * (kConfig.piece_k() / kElements);
  const uint8_t* const a = p.a + rows.matrix * p.a_batch_stride;
  for (uint32_t first = ptx::tid_x(); first < count; first += kAtOnce * threads) {
    Bytes16 natural[kAtOnce];
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t at = first + i * threads;
      const uint32_t row = p.row_loads.quotient(at);
      const uint32_t load = first_load + at - row * loads;
      uint32_t of_a = 0;
      const bool has = at < count && load < end_load && rows.source.find(rows.first + row, of_a);
      natural[i] = ptx::ld_global_nc_if(
          has, reinterpret_cast<const Bytes16*>(a + of_a * p.a_row_stride + int64_t{load} * 16));
    }
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t at = first + i * threads;
      if (at >= count) break;
      const uint32_t row = p.row_loads.quotient(at);
      BLOCKSCALE_UNROLL
      for (uint32_t j = 0; j < kElements / 8; ++j) {
        const uint32_t vector = (at - row * loads) * (kElements / 8) + j;
        const uint32_t own = vector % kVectors, lane = vector / kVectors % 4;
        const uint32_t step = vector / kVectors / 4;
        ptx::st_shared(device::shared_base() +
                           (row * memory.token_bytes + (step * kVectors + own) * 64 + lane * 16),
                       pairs_of<kConfig>(natural[i], 2 * j));
      }
    }
  }
}

/// The same with the scales of A's rows, which are 0 where a step is behind all of K, and of a row
/// that is none: a scale that holds for more of K, or for more rows, is read again.
template <Fp4GemmConfig kConfig>
BLOCKSCALE_DEVICE void bring_token_scales(const Fp4GemmParams& p, const Fp4GemmMemory& memory,
                                          const TurnRows& rows) {
  static_assert(kConfig.step_k() == kFp8BlockK);
  constexpr uint32_t kTokens = static_cast<uint32_t>(kConfig.tokens);
  const uint32_t first_step = first_chunk_of_block(p) * kFp4ChunkSteps;
  const uint32_t end_step = (p.pieces + 3) / 4;
  for (uint32_t i = ptx::tid_x(); i < p.block_chunks * kFp4ChunkSteps * kTokens;
       i += ptx::ntid_x()) {
    const uint32_t step = first_step + i / kTokens, own = i % kTokens;
    const uint32_t row = own < rows.count ? own : rows.count - 1;
    uint32_t of_a = 0;
    const bool has = step < end_step && rows.source.find(rows.first + row, of_a);
    const float scale = has ? fp8_gemv::load_scale(p.a_scales, rows.matrix, of_a, step) : 0;
    ptx::st_shared(device::shared_base() + (memory.scales + i * 4), scale);
  }
}

/// Both.
template <Fp4GemmConfig kConfig>
BLOCKSCALE_DEVICE void bring_rows(const Fp4GemmParams& p, const Fp4GemmMemory& memory,
                                  const TurnRows& rows) {
  bring_tokens<kConfig>(p, memory, rows);
  if constexpr (kConfig.has_token_scales()) bring_token_scales<kConfig>(p, memory, rows);
}

}  // namespace blockscale::fp4_few_rows
