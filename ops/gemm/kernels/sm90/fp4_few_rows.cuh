// D = epilogue(A B^T) for few rows of A, in bf16, f16 or FP8, and B in nvfp4 or mxfp4 as it lies. B
// is read once, straight to registers, as fast as memory gives it: everything else hides behind
// that. (ops/gemm/kernels/plain.cuh computes the same for any pair: read that first.)
//
// A warp takes 16 rows of B, mma.sync's rows, and a part of K; A's rows, which lie in shared
// memory, are its columns. Of a step, 64 bytes of each row, lane l has 16 of rows l / 4 and
// l / 4 + 8, those at 16 (l % 4). That an instruction's fragments ask for other k of that lane
// changes nothing, as they are the same k of both operands.
//   1. Codes become bf16 or f16, times the scale of the lane's own block, exactly: mma.sync sums a
//      step's 128 products of an element of D, of blocks with four scales or more.
//   2. What it sums from 0 is added to the sum of the steps before, in f32: times the step's scale
//      of the row of A, where that is in FP8, whose elements alone have become bf16.
//   3. At the end of K warps of the block that divide K, and blocks of the cluster, add their sums
//      in the order of k, and alpha, tensor scale, bias, gate and C are applied.
// Two steps go together, so that neither waits for the other's products. MX has scales with which
// bf16, or f16, does not hold every code: a warp that has one in these takes their blocks one after
// the other, without scales, and applies these to the sums.
//
// Blocks take tiles in turn, and a warp's loads run ahead of what it multiplies, past the end of a
// tile too. What is outside of K is 0, what is outside of B is not stored, and a row that A does
// not have is the last one it has.
#pragma once

#include "core/format.h"
#include "device/decode/codes.cuh"
#include "device/decode/scaled_codes.cuh"
#include "device/epilogue/one_element.cuh"
#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/barrier.h"
#include "device/ptx/cluster.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/integer.h"
#include "device/ptx/mma.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "device/vector.h"
#include "ops/gemm/kernels/gemv_fp8.cuh"
#include "ops/gemm/kernels/sm90/fp4_params.h"

namespace blockscale {
namespace fp4_few_rows {

using Bytes16 = device::Vector<uint32_t, 4>;

// The grid: blocks that divide K, a cluster; clusters, which take turns with tiles; matrices.
BLOCKSCALE_DEVICE uint32_t batch_of_block() {
  return ptx::ctaid_z();
}
BLOCKSCALE_DEVICE uint32_t first_tile_of_block(const Fp4GemmParams& p) {
  return ptx::ctaid_y() * p.block_tiles;
}
/// Between a block's turns.
BLOCKSCALE_DEVICE uint32_t tile_step(const Fp4GemmParams& p) {
  return ptx::nctaid_y() * p.block_tiles;
}
BLOCKSCALE_DEVICE uint32_t first_chunk_of_block(const Fp4GemmParams& p) {
  return ptx::ctaid_x() * p.block_chunks;
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
    const uint32_t chunks = (p.pieces * kFp4PieceK + kFp4ChunkK - 1) / kFp4ChunkK;
    const uint32_t end = first_chunk_of_block(p) + p.block_chunks;
    end_chunk = end < chunks ? end : chunks;
  }
};

/// A lane's part of two rows of B in a step.
struct Pieces {
  Bytes16 codes[2];
  uint32_t scales[2];  // as they are stored: one byte of MX, two of NVFP4
};

/// A warp's part of B: the steps of a chunk, and behind those that were multiplied the next one's.
template <Fp4GemmConfig kConfig>
class Weights {
 public:
  BLOCKSCALE_DEVICE Weights(const Fp4GemmParams& p, const Part& part)
      : p_(p), part_(part), tile_(first_tile_of_block(p) + part.tile), chunk_(part.chunk) {
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
      loaded_[step] = loaded_[step + 1] = {{}, {kOne, kOne}};
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
      tile_ += tile_step(p_);
      chunk_ = part_.chunk;
      begin_tile();
    } else {
      begin_chunk();
    }
  }

 private:
  static constexpr bool kIsNvfp4 = kConfig.b == Recipe::nvfp4;
  static constexpr int kScaleBytes = kIsNvfp4 ? 2 : 1;
  /// Scales that do not disturb, of blocks that there are not.
  static constexpr uint32_t kOne = kIsNvfp4 ? 0x3838 : 127;

  BLOCKSCALE_DEVICE void load_one(uint32_t step, uint32_t piece) {
    const bool has = piece < end_piece_;
    BLOCKSCALE_UNROLL
    for (int i = 0; i < 2; ++i) {
      loaded_[step].codes[i] = ptx::ld_global_nc_if(
          has, reinterpret_cast<const Bytes16*>(codes_[i] + piece * kFp4PieceBytes));
      loaded_[step].scales[i] = ptx::ld_global_nc_narrow_if<kScaleBytes>(
          has, scales_[i] + piece / 4 * (p_.scales.k_stride_4 * kScaleBytes), kOne);
    }
  }

  BLOCKSCALE_DEVICE void begin_chunk() {
    piece_ = chunk_ * (kFp4ChunkK / kFp4PieceK) + ptx::laneid() % 4;
  }

  BLOCKSCALE_DEVICE void begin_tile() {
    const uint32_t batch = batch_of_block(), rows = p_.epilogue.columns;
    const uint32_t scale = ptx::laneid() % 4 * kScaleBytes;  // of a step's
    end_piece_ = tile_ < p_.tiles && part_.chunk < part_.end_chunk ? p_.pieces : 0;
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t own = tile_ * kFp4TileRows + ptx::laneid() / 4 + 8 * i;
      const uint32_t row = own < rows ? own : rows - 1;
      codes_[i] = p_.b + batch * p_.b_batch_stride + row * p_.b_row_stride;
      scales_[i] = p_.scales.data + batch * p_.scales.batch_stride + p_.scales.row_offset(row) +
                   p_.scales.k_offset(scale);
    }
    begin_chunk();
  }

  const Fp4GemmParams& p_;
  const Part& part_;
  uint32_t tile_, chunk_;       // that are loaded next
  uint32_t piece_, end_piece_;  // of a row: this lane's of the next load
  const uint8_t* codes_[2];     // of rows
  const uint8_t* scales_[2];    // of rows, this lane's of their first step
  Pieces loaded_[kFp4ChunkSteps];
};

/// Of NVFP4's numbers, 2^7 is left behind the factor of their scale: elements of e4m3 take it.
template <Fp4GemmConfig kConfig>
inline constexpr float kLeft = kConfig.b == Recipe::nvfp4 ? decoding::kUe4m3Left : 1;

/// Eight neighbours among A's elements, which begin `first` words into a load, as pairs (0, 4),
/// (1, 5), (2, 6) and (3, 7): exactly.
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
  } else {
    return {{ptx::prmt(n[0], n[2], 0x5410), ptx::prmt(n[0], n[2], 0x7632),
             ptx::prmt(n[1], n[3], 0x5410), ptx::prmt(n[1], n[3], 0x7632)}};
  }
}

/// Fills shared memory with the block's part of A's rows, eight neighbours side by side; of a step
/// each lane's first eight come first, then their second ones.
template <Fp4GemmConfig kConfig>
BLOCKSCALE_DEVICE void bring_tokens(const Fp4GemmParams& p, const Fp4GemmMemory& memory) {
  constexpr uint32_t kElements = kConfig.load_elements();
  constexpr uint32_t kAtOnce = 4;  // loads of a thread, which do not wait for each other
  const uint32_t threads = ptx::ntid_x();
  const uint32_t loads = p.row_loads.divisor, count = p.epilogue.rows * loads;
  const uint32_t first_load = first_chunk_of_block(p) * (kFp4ChunkK / kElements);
  const uint32_t end_load = p.pieces * (kFp4PieceK / kElements);
  const uint8_t* const a = p.a + batch_of_block() * p.a_batch_stride;
  for (uint32_t first = ptx::tid_x(); first < count; first += kAtOnce * threads) {
    Bytes16 natural[kAtOnce];
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t at = first + i * threads;
      const uint32_t row = p.row_loads.quotient(at);
      const uint32_t load = first_load + at - row * loads;
      natural[i] = ptx::ld_global_nc_if(
          at < count && load < end_load,
          reinterpret_cast<const Bytes16*>(a + row * p.a_row_stride + int64_t{load} * 16));
    }
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t at = first + i * threads;
      if (at >= count) break;
      const uint32_t row = p.row_loads.quotient(at);
      BLOCKSCALE_UNROLL
      for (uint32_t j = 0; j < kElements / 8; ++j) {
        const uint32_t vector = (at - row * loads) * (kElements / 8) + j;
        const uint32_t step = vector / 16, lane = vector / 4 % 4, word = vector % 4;
        ptx::st_shared(
            device::shared_base() + (row * memory.token_bytes + step * 256 + word * 64 + lane * 16),
            pairs_of<kConfig>(natural[i], 2 * j));
      }
    }
  }
}

/// The same with the scales of A's rows, which are 0 where a step is behind all of K: a scale that
/// holds for more of K, or for more rows, is read again.
template <Fp4GemmConfig kConfig>
BLOCKSCALE_DEVICE void bring_token_scales(const Fp4GemmParams& p, const Fp4GemmMemory& memory) {
  constexpr uint32_t kTokens = static_cast<uint32_t>(kConfig.tokens);
  const uint32_t first_step = first_chunk_of_block(p) * kFp4ChunkSteps;
  const uint32_t end_step = (p.pieces + 3) / 4;
  for (uint32_t i = ptx::tid_x(); i < p.block_chunks * kFp4ChunkSteps * kTokens;
       i += ptx::ntid_x()) {
    const uint32_t step = first_step + i / kTokens, own = i % kTokens;
    const uint32_t row = own < p.epilogue.rows ? own : p.epilogue.rows - 1;
    const float scale =
        step < end_step ? fp8_gemv::load_scale(p.a_scales, batch_of_block(), row, step) : 0;
    ptx::st_shared(device::shared_base() + (memory.scales + i * 4), scale);
  }
}

/// A tile's sums, or a step's, of each 8 rows of A.
template <Fp4GemmConfig kConfig>
using Sums = ptx::MmaAccumulator[kConfig.tokens / 8];

/// Multiplies B's pieces of a step by A's rows.
template <Fp4GemmConfig kConfig>
class Multiplier {
 public:
  BLOCKSCALE_DEVICE Multiplier(const Fp4GemmParams& p, const Fp4GemmMemory& memory) {
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kColumns; ++i) {
      const uint32_t own = ptx::laneid() / 4 + 8 * i;
      const uint32_t row = own < p.epilogue.rows ? own : p.epilogue.rows - 1;
      tokens_[i] = device::shared_base() + (row * memory.token_bytes + ptx::laneid() % 4 * 16);
    }
    token_scales_ = device::shared_base() + (memory.scales + ptx::laneid() % 4 * 8);
  }

  /// Adds the products of two steps, the block's steps `step` and the one behind it: with sums of
  /// their own, so that neither waits for the other's.
  BLOCKSCALE_DEVICE void add_steps(Sums<kConfig>& sums, const Pieces& first, const Pieces& second,
                                   uint32_t step) const {
    const Pieces* const b[2] = {&first, &second};
    uint32_t factors[2][2][2];  // of a step, of a row's codes: in words 0 and 1, and in 2 and 3
    if constexpr (kConfig.b == Recipe::nvfp4) {
      BLOCKSCALE_UNROLL
      for (int i = 0; i < 4; ++i) {
        decoding::ue4m3_factors<kForm>(factors[i / 2][i % 2], b[i / 2]->scales[i % 2]);
      }
    } else {
      bool fit = true;
      BLOCKSCALE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const uint32_t scale = b[i / 2]->scales[i % 2];
        fit = fit && decoding::has_ue8m0_factor<kForm>(scale);
        for (uint32_t& factor : factors[i / 2][i % 2]) {
          factor = decoding::ue8m0_factor<kForm>(scale);
        }
      }
      if (!ptx::vote_sync_all(ptx::kFullMask, fit)) {
        add_blocks(sums, first, step);
        add_blocks(sums, second, step + 1);
        return;
      }
    }
    Sums<kConfig> products[2] = {};
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      BLOCKSCALE_UNROLL
      for (uint32_t j = 0; j < 2; ++j) {
        multiply(products[j], {b[j]->codes[0].at[i], b[j]->codes[1].at[i]},
                 {factors[j][0][i / 2], factors[j][1][i / 2]}, (step + j) * kStepBytes + i * 64);
      }
    }
    BLOCKSCALE_UNROLL
    for (uint32_t j = 0; j < 2; ++j) {
      const ScalesOfTokens scales = scales_of_tokens(step + j);
      for_each(sums, [&](uint32_t i, int k, float& sum) {
        sum = ptx::fma_rn(products[j][i].value[k], scales.at[i][k % 2], sum);
      });
    }
  }

 private:
  static constexpr Format kForm = kConfig.form();
  static constexpr auto kMma = kForm == Format::bf16 ? ptx::MmaElement::bf16 : ptx::MmaElement::f16;
  static constexpr uint32_t kColumns = static_cast<uint32_t>(kConfig.tokens) / 8;
  static constexpr uint32_t kStepBytes = kFp4StepK * 2;  // of a row of A

  struct OfRows {
    uint32_t at[2];
  };
  struct ScalesOfTokens {
    float at[kColumns][2];
  };

  /// The same where scales have no factors: one of the four lanes' blocks after the other, of which
  /// each lane takes one word, and whose scale is the sums'.
  BLOCKSCALE_DEVICE void add_blocks(Sums<kConfig>& sums, const Pieces& b, uint32_t step) const {
    constexpr OfRows kFactors = {{decoding::kPlainFactor<kForm>, decoding::kPlainFactor<kForm>}};
    const uint32_t own = ptx::laneid() % 4;
    BLOCKSCALE_NO_UNROLL
    for (uint32_t block = 0; block < 4; ++block) {
      const auto of_block = [&](uint32_t x) {
        return ptx::shfl_sync_idx(ptx::kFullMask, x, block, 4);
      };
      OfRows codes;
      float scales[2];
      BLOCKSCALE_UNROLL
      for (int row = 0; row < 2; ++row) {
        BLOCKSCALE_UNROLL
        for (uint32_t i = 0; i < 4; ++i) {
          const uint32_t word = of_block(b.codes[row].at[i]);
          if (i == 0 || i == own) codes.at[row] = word;
        }
        scales[row] = scale_value(static_cast<uint8_t>(of_block(b.scales[row])));
      }
      Sums<kConfig> products = {};
      // A's lie where the lane with the block has its word `own`.
      multiply(products, codes, kFactors, step * kStepBytes + own * (64 - 16) + block * 16);
      const ScalesOfTokens of_tokens = scales_of_tokens(step);
      for_each(sums, [&](uint32_t i, int k, float& sum) {
        float product = products[i].value[k];
        if constexpr (kConfig.has_token_scales()) {
          product = ptx::mul_rn(product, of_tokens.at[i][k % 2]);
        }
        sum = ptx::fma_rn(product, scales[k / 2], sum);
      });
    }
  }

  /// A's scales of a step, of the rows that this lane has sums of; without, what is left of B's.
  BLOCKSCALE_DEVICE ScalesOfTokens scales_of_tokens(uint32_t step) const {
    ScalesOfTokens scales;
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kColumns; ++i) {
      using Pair = device::Vector<float, 2>;
      Pair pair = {{kLeft<kConfig>, kLeft<kConfig>}};
      if constexpr (kConfig.has_token_scales()) {
        constexpr uint32_t kBytes = kColumns * 32;  // of a step
        pair = ptx::ld_shared<Pair>(token_scales_ + (step * kBytes + i * 32));
      }
      scales.at[i][0] = pair.at[0];
      scales.at[i][1] = pair.at[1];
    }
    return scales;
  }

  /// Adds products of eight k of each lane: of codes times factors, and of A's at `offset` of its
  /// first ones.
  BLOCKSCALE_DEVICE void multiply(Sums<kConfig>& products, const OfRows& codes,
                                  const OfRows& factors, uint32_t offset) const {
    uint32_t b[2][4];
    BLOCKSCALE_UNROLL
    for (int row = 0; row < 2; ++row) {
      decoding::spread_e2m1<kForm>(b[row], codes.at[row]);
      BLOCKSCALE_UNROLL
      for (uint32_t& pair : b[row]) pair = decoding::multiply_pair<kForm>(pair, factors.at[row]);
    }
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kColumns; ++i) {
      const Bytes16 a = ptx::ld_shared<Bytes16>(tokens_[i] + offset);
      BLOCKSCALE_UNROLL
      for (int j = 0; j < 4; j += 2) {
        ptx::mma_sync_m16n8<kMma>(products[i], {{b[0][j], b[1][j], b[0][j + 1], b[1][j + 1]}},
                                  {{a.at[j], a.at[j + 1]}});
      }
    }
  }

  /// body(which eight rows of A, which of this lane's sums, that sum): of rows k % 2 of A's two,
  /// and k / 2 of B's.
  template <class Body>
  BLOCKSCALE_DEVICE static void for_each(Sums<kConfig>& sums, const Body& body) {
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kColumns; ++i) {
      BLOCKSCALE_UNROLL
      for (int k = 0; k < 4; ++k) body(i, k, sums[i].value[k]);
    }
  }

  ptx::SharedAddress tokens_[kColumns];  // this lane's of the first step
  ptx::SharedAddress token_scales_;      // likewise
};

/// Until all threads that divide K are here: of the cluster, or of the block if it is alone.
BLOCKSCALE_DEVICE void sync_parts(const Fp4GemmParams& p) {
  if (p.blocks_k == 1) {
    ptx::barrier_sync_all();
  } else {
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
  }
}

/// Leaves a warp's sums in a buffer in shared memory.
template <Fp4GemmConfig kConfig>
BLOCKSCALE_DEVICE void store_sums(const Fp4GemmParams& p, const Sums<kConfig>& sums,
                                  const Fp4GemmMemory& memory, ptx::SharedAddress buffer) {
  const ptx::SharedAddress warp_sums = buffer + ptx::tid_x() / 32 * memory.warp_sum_bytes;
  const uint32_t row = ptx::laneid() / 4;
  BLOCKSCALE_UNROLL
  for (uint32_t i = 0; i < kConfig.tokens / 8; ++i) {
    BLOCKSCALE_UNROLL
    for (uint32_t j = 0; j < 4; ++j) {
      const uint32_t token = 8 * i + ptx::laneid() % 4 * 2 + j % 2;
      if (token >= p.epilogue.rows) continue;
      ptx::st_shared(warp_sums + (token * Fp4GemmMemory::kSumRowBytes + (row + j / 2 * 8) * 4),
                     sums[i].value[j]);
    }
  }
}

/// Adds up the sums of a block's tiles, and stores D. Blocks of a cluster share its elements.
BLOCKSCALE_DEVICE void add_up(const Fp4GemmParams& p, const Fp4GemmMemory& memory,
                              uint32_t first_tile, ptx::SharedAddress buffer) {
  const LinearEpilogue& e = p.epilogue;
  const uint32_t batch = batch_of_block(), columns = p.block_tiles * kFp4TileRows;
  const float alpha = epilogue::alpha_of(e, batch);
  const float tensor_scale = p.tensor_scale == nullptr
                                 ? 1.0f
                                 : ptx::ld_global(p.tensor_scale + batch * p.tensor_scale_stride);
  for (uint32_t i = ptx::ctaid_x() * ptx::ntid_x() + ptx::tid_x(); i < e.rows * columns;
       i += p.blocks_k * ptx::ntid_x()) {
    const uint32_t token = i / columns, own = i - token * columns;
    const uint32_t column = first_tile * kFp4TileRows + own;
    if (column >= e.columns) continue;
    const ptx::SharedAddress first =
        buffer + (own / kFp4TileRows * p.warps_k * memory.warp_sum_bytes +
                  token * Fp4GemmMemory::kSumRowBytes + own % kFp4TileRows * 4);
    float sum = 0;
    for (uint32_t block = 0; block < p.blocks_k; ++block) {
      for (uint32_t warp = 0; warp < p.warps_k; ++warp) {
        const ptx::SharedAddress at = first + warp * memory.warp_sum_bytes;
        sum = ptx::add_rn(sum, p.blocks_k == 1 ? ptx::ld_shared<float>(at)
                                               : ptx::ld_shared_cluster<float>(
                                                     ptx::mapa_shared_cluster(at, block)));
      }
    }
    sum = ptx::mul_rn(alpha, sum);
    sum = p.tensor_scale_divides ? ptx::div_rn(sum, tensor_scale) : ptx::mul_rn(sum, tensor_scale);
    epilogue::store_one(e, {batch, batch, token}, column, sum);
  }
}

}  // namespace fp4_few_rows

template <Fp4GemmConfig kConfig>
BLOCKSCALE_DEVICE void fp4_few_rows_kernel(const Fp4GemmParams& p) {
  using namespace fp4_few_rows;
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  const Part part(p);
  const Fp4GemmMemory memory =
      memory_of_fp4(kConfig, p.epilogue.rows, p.block_chunks, p.block_tiles * p.warps_k);
  Weights<kConfig> weights(p, part);
  bring_tokens<kConfig>(p, memory);
  if constexpr (kConfig.has_token_scales()) bring_token_scales<kConfig>(p, memory);
  ptx::barrier_sync_all();
  const Multiplier<kConfig> multiplier(p, memory);
  // Who stores to a buffer again has met all who read it, behind the other buffer's stores.
  uint32_t buffer = 0;  // where it begins
  for (uint32_t tile = first_tile_of_block(p); tile < p.tiles; tile += tile_step(p)) {
    Sums<kConfig> sums = {};
    BLOCKSCALE_NO_UNROLL
    for (uint32_t chunk = part.chunk; chunk < part.end_chunk; chunk += p.warps_k) {
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kFp4ChunkSteps; i += 2) {
        multiplier.add_steps(sums, weights[i], weights[i + 1],
                             (chunk - first_chunk_of_block(p)) * kFp4ChunkSteps + i);
        weights.load(i);
      }
      weights.next_chunk();
    }
    const ptx::SharedAddress to = device::shared_base() + (memory.sums + buffer);
    store_sums<kConfig>(p, sums, memory, to);
    sync_parts(p);
    add_up(p, memory, tile, to);
    buffer = memory.sum_bytes - buffer;
  }
  if (p.blocks_k > 1) sync_parts(p);  // others read this block's sums
}

}  // namespace blockscale
