// D = epilogue(A B^T) for few rows of A, in bf16, f16 or FP8, and B in nvfp4, mxfp4 or MXFP8 as it
// lies. B is read once, straight to registers, as fast as memory gives it: everything else hides
// behind that. (ops/gemm/kernels/plain.cuh computes the same for any pair: read that first.)
//
// A warp takes 16 rows of B, mma.sync's rows, and a part of K; A's rows, which lie in shared
// memory, are its columns. Of a step, 64 bytes of each row, lane l has 16 of rows l / 4 and
// l / 4 + 8, those at 16 (l % 4). That an instruction's fragments ask for other k of that lane
// changes nothing, as they are the same k of both operands.
//   1. Codes become bf16 or f16, times the scale of the lane's own block, exactly: mma.sync sums a
//      step's products of an element of D, 128 or 64 of eight bits, of blocks with several scales.
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
#include "device/decode/scaled_codes.cuh"
#include "device/epilogue/one_element.cuh"
#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/barrier.h"
#include "device/ptx/cluster.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/mma.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "device/vector.h"
#include "ops/gemm/kernels/fp4_load.cuh"
#include "ops/gemm/kernels/tensor_scale.cuh"

namespace blockscale {
namespace fp4_few_rows {

/// A tile's sums, or a step's, of each 8 rows of A.
template <Fp4GemmConfig kConfig>
using Sums = ptx::MmaAccumulator[kConfig.tokens / 8];

/// Multiplies B's pieces of a step by A's rows.
template <Fp4GemmConfig kConfig>
class Multiplier {
 public:
  /// By the `rows` rows that are in shared memory.
  BLOCKSCALE_DEVICE Multiplier(const Fp4GemmMemory& memory, uint32_t rows) {
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kColumns; ++i) {
      const uint32_t own = ptx::laneid() / 4 + 8 * i;
      const uint32_t row = own < rows ? own : rows - 1;
      tokens_[i] = device::shared_base() + (row * memory.token_bytes + ptx::laneid() % 4 * 16);
    }
    token_scales_ = device::shared_base() + (memory.scales + ptx::laneid() % 4 * 8);
  }

  /// Adds the products of two steps, the block's steps `step` and the one behind it: with sums of
  /// their own, so that neither waits for the other's.
  BLOCKSCALE_DEVICE void add_steps(Sums<kConfig>& sums, const Pieces& first, const Pieces& second,
                                   uint32_t step) const {
    const Pieces* const b[2] = {&first, &second};
    uint32_t factors[2][2][2];  // of a step, of a row's codes: the first half, and the second
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
        fit = fit && decoding::has_ue8m0_factor<kForm, kElement>(scale);
        for (uint32_t& factor : factors[i / 2][i % 2]) {
          factor = decoding::ue8m0_factor<kForm, kElement>(scale);
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
    for (uint32_t i = 0; i < kEights; ++i) {
      BLOCKSCALE_UNROLL
      for (uint32_t j = 0; j < 2; ++j) {
        multiply(products[j], {{eight_of(b[j]->codes[0], i), eight_of(b[j]->codes[1], i)}},
                 {factors[j][0][i * 2 / kEights], factors[j][1][i * 2 / kEights]},
                 (step + j) * kStepBytes + i * 64);
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
  static constexpr Format kElement = kConfig.element();
  static constexpr uint32_t kStepBytes = kConfig.step_k() * 2;  // of a row of A
  static constexpr uint32_t kEights = kConfig.piece_k() / 8;    // of a piece

  using Eight = decoding::Codes<kElement, 8>;
  struct CodesOfRows {
    Eight at[2];
  };
  struct FactorsOfRows {
    uint32_t at[2];
  };
  struct ScalesOfTokens {
    float at[kColumns][2];
  };

  BLOCKSCALE_DEVICE static Eight eight_of(const Bytes16& piece, uint32_t i) {
    Eight codes;
    BLOCKSCALE_UNROLL
    for (uint32_t j = 0; j < Eight::kWords; ++j) codes.word[j] = piece.at[i * Eight::kWords + j];
    return codes;
  }

  /// The same where scales have no factors: one of the four lanes' blocks after the other, of which
  /// each lane takes eight codes, and whose scale is the sums'.
  BLOCKSCALE_DEVICE void add_blocks(Sums<kConfig>& sums, const Pieces& b, uint32_t step) const {
    constexpr uint32_t kFactor = decoding::kPlainFactor<kForm, kElement>;
    constexpr uint32_t kBlockPieces = 4 / kEights;
    const uint32_t own = ptx::laneid() % kEights;
    BLOCKSCALE_NO_UNROLL
    for (uint32_t block = 0; block < 4; block += kBlockPieces) {
      const uint32_t lane = block + ptx::laneid() % 4 / kEights;  // whose piece of the block
      const auto of_block = [&](uint32_t x) {
        return ptx::shfl_sync_idx(ptx::kFullMask, x, lane, 4);
      };
      CodesOfRows codes;
      float scales[2];
      BLOCKSCALE_UNROLL
      for (int row = 0; row < 2; ++row) {
        BLOCKSCALE_UNROLL
        for (uint32_t i = 0; i < 4; ++i) {
          const uint32_t word = of_block(b.codes[row].at[i]);
          const uint32_t eight = i / Eight::kWords;
          if (eight == 0 || eight == own) codes.at[row].word[i % Eight::kWords] = word;
        }
        scales[row] = scale_value(static_cast<uint8_t>(of_block(b.scales[row])));
      }
      Sums<kConfig> products = {};
      // A's lie where the lane with the piece has its own.
      multiply(products, codes, {{kFactor, kFactor}},
               step * kStepBytes + own * 64 + lane * 16 - ptx::laneid() % 4 * 16);
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
  BLOCKSCALE_DEVICE void multiply(Sums<kConfig>& products, const CodesOfRows& codes,
                                  const FactorsOfRows& factors, uint32_t offset) const {
    uint32_t b[2][4];
    BLOCKSCALE_UNROLL
    for (int row = 0; row < 2; ++row) {
      decoding::spread<kForm>(b[row], codes.at[row]);
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

/// Adds the products of a turn, of a warp's part of K, up; shared memory has A's rows from chunk
/// `first` on, if not from the block's.
template <Fp4GemmConfig kConfig, class Turns>
BLOCKSCALE_DEVICE void add_chunks(const Fp4GemmParams& p, const Part& part,
                                  const Multiplier<kConfig>& multiplier,
                                  Weights<kConfig, Turns>& weights, Sums<kConfig>& sums,
                                  uint32_t first = 0) {
  BLOCKSCALE_NO_UNROLL
  for (uint32_t chunk = part.chunk; chunk < part.end_chunk; chunk += p.warps_k) {
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kFp4ChunkSteps; i += 2) {
      multiplier.add_steps(sums, weights[i], weights[i + 1],
                           (chunk - first_chunk_in_memory<kConfig>(p, first)) * kFp4ChunkSteps + i);
      weights.load(i);
    }
    weights.next_chunk();
  }
}

/// The chunks of K that shared memory has A's rows of: all of a block's, or in turn as many as each
/// of its warps takes alike.
template <Fp4GemmConfig kConfig>
BLOCKSCALE_DEVICE uint32_t chunks_at_once(const Fp4GemmParams& p) {
  if constexpr (kConfig.refills) {
    return p.row_loads.divisor / (kConfig.chunk_k() / kConfig.load_elements());
  } else {
    return p.block_chunks;
  }
}

/// Whether that is not all.
template <Fp4GemmConfig kConfig>
BLOCKSCALE_DEVICE bool refills(const Fp4GemmParams& p) {
  return kConfig.refills && chunks_at_once<kConfig>(p) < p.block_chunks;
}

/// The same of a turn, whose rows of A are brought part by part if they are not all there.
template <Fp4GemmConfig kConfig, class Turns>
BLOCKSCALE_DEVICE void add_parts(const Fp4GemmParams& p, const Part& part,
                                 const Fp4GemmMemory& memory, const TurnRows& rows,
                                 const Multiplier<kConfig>& multiplier,
                                 Weights<kConfig, Turns>& weights, Sums<kConfig>& sums) {
  static_assert(!kConfig.has_token_scales());
  const uint32_t chunks = chunks_at_once<kConfig>(p);
  for (uint32_t first = 0; first < p.block_chunks; first += chunks) {
    if (refills<kConfig>(p)) {
      ptx::barrier_sync_all();  // nobody reads the part before
      bring_tokens<kConfig>(p, memory, rows, first);
      ptx::barrier_sync_all();
    }
    Part now = part;
    now.chunk += first;
    if (first + chunks < now.end_chunk) now.end_chunk = first + chunks;
    add_chunks(p, now, multiplier, weights, sums, first);
  }
}

/// Leaves a warp's sums of `rows` rows in a buffer in shared memory.
template <Fp4GemmConfig kConfig>
BLOCKSCALE_DEVICE void store_sums(const Sums<kConfig>& sums, uint32_t rows,
                                  const Fp4GemmMemory& memory, ptx::SharedAddress buffer) {
  const ptx::SharedAddress warp_sums = buffer + ptx::tid_x() / 32 * memory.warp_sum_bytes;
  const uint32_t row = ptx::laneid() / 4;
  BLOCKSCALE_UNROLL
  for (uint32_t i = 0; i < kConfig.tokens / 8; ++i) {
    BLOCKSCALE_UNROLL
    for (uint32_t j = 0; j < 4; ++j) {
      const uint32_t token = 8 * i + ptx::laneid() % 4 * 2 + j % 2;
      if (token >= rows) continue;
      ptx::st_shared(warp_sums + (token * Fp4GemmMemory::kSumRowBytes + (row + j / 2 * 8) * 4),
                     sums[i].value[j]);
    }
  }
}

/// Adds up the sums of a block's tiles, and stores D. Blocks of a cluster share its elements.
BLOCKSCALE_DEVICE void add_up(const Fp4GemmParams& p, const Fp4GemmMemory& memory,
                              const TurnRows& rows, uint32_t first_tile,
                              ptx::SharedAddress buffer) {
  const LinearEpilogue& e = p.epilogue;
  const uint32_t columns = p.block_tiles * kFp4TileRows;
  const float alpha = epilogue::alpha_of(e, rows.group);
  const TensorFactor tensor_scale(p.tensor_scale, rows.group);
  for (uint32_t i = ptx::ctaid_x() * ptx::ntid_x() + ptx::tid_x(); i < rows.count * columns;
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
    sum = tensor_scale(ptx::mul_rn(alpha, sum));
    const epilogue::RowPlace at = {rows.matrix, rows.group, rows.first + token};
    epilogue::store_one(e, at, column, epilogue::combine_one(e, at, column, sum));
  }
}

/// Body::run of the formats that a launch has, of those that a kernel takes.
template <Fp4GemmConfig kConfig, class Body, class Params>
BLOCKSCALE_DEVICE void run_of_a(const Params& p) {
  if constexpr (kConfig.a == Format::bf16) {
    if (p.is_f16) return Body::template run<kConfig.of_f16()>(p);
  }
  Body::template run<kConfig>(p);
}
template <Fp4GemmConfig kConfig, class Body, class Params>
BLOCKSCALE_DEVICE void run_of_formats(const Params& p) {
  if constexpr (kConfig.b == Recipe::mxfp8_e4m3) {
    if (p.is_e5m2) return run_of_a<kConfig.of_e5m2(), Body>(p);
  }
  run_of_a<kConfig, Body>(p);
}

struct DenseRows {
  template <Fp4GemmConfig kConfig>
  BLOCKSCALE_DEVICE static void run(const Fp4GemmParams& p);
};

template <Fp4GemmConfig kConfig>
BLOCKSCALE_DEVICE void DenseRows::run(const Fp4GemmParams& p) {
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  const Part part(p);
  const Fp4GemmMemory memory = memory_of_fp4(kConfig, p.epilogue.rows, chunks_at_once<kConfig>(p),
                                             p.block_tiles * p.warps_k);
  DenseTurns turns(p);
  Weights<kConfig, DenseTurns> weights(p, part, turns);
  const TurnRows rows = turns.rows();
  if (!refills<kConfig>(p)) bring_rows<kConfig>(p, memory, rows);
  ptx::barrier_sync_all();
  const fp4_few_rows::Multiplier<kConfig> multiplier(memory, rows.count);
  // Who stores to a buffer again has met all who read it, behind the other buffer's stores.
  uint32_t buffer = 0;  // where it begins
  for (; turns.has(); turns.next()) {
    Sums<kConfig> sums = {};
    if constexpr (kConfig.refills) {
      add_parts(p, part, memory, rows, multiplier, weights, sums);
    } else {
      add_chunks(p, part, multiplier, weights, sums);
    }
    const ptx::SharedAddress to = device::shared_base() + (memory.sums + buffer);
    store_sums<kConfig>(sums, rows.count, memory, to);
    sync_parts(p);
    add_up(p, memory, rows, turns.tile(), to);
    buffer = memory.sum_bytes - buffer;
  }
  if (p.blocks_k > 1) sync_parts(p);  // others read this block's sums
}

}  // namespace fp4_few_rows

template <Fp4GemmConfig kConfig>
BLOCKSCALE_DEVICE void fp4_few_rows_kernel(const Fp4GemmParams& p) {
  fp4_few_rows::run_of_formats<kConfig, fp4_few_rows::DenseRows>(p);
}

}  // namespace blockscale
