// The products of block_scaled.cuh: a warp's part of a tile, from stages in shared memory to sums
// in registers.
#pragma once

#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/barrier.h"
#include "device/ptx/ldmatrix.h"
#include "device/ptx/mbarrier.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/sm100/ldmatrix.h"
#include "device/ptx/sm120/mma.h"
#include "device/ptx/special_registers.h"
#include "ops/gemm/kernels/sm120/block_scaled_load.cuh"

namespace blockscale::block_scaled {

template <BlockScaledConfig kConfig>
class Multiplier {
 public:
  static constexpr int kTilesM = static_cast<int>(warp_rows(kConfig)) / 16;
  static constexpr int kTilesN = static_cast<int>(warp_columns(kConfig)) / 8;

  struct Sums {
    ptx::MmaAccumulator at[kTilesM][kTilesN];
  };

  /// `row` and `column`: the warp's first in the tile.
  BLOCKSCALE_DEVICE Multiplier(const Shared<kConfig>& shared, uint32_t row, uint32_t column)
      : shared_(shared) {
    const uint32_t lane = ptx::laneid();
    // Four matrices of 8 rows by 16 bytes: of A the upper and the lower rows, then the next bytes;
    // of B two of one row's, then the next 8 rows.
    a_ = place(row + lane % 16, lane / 16);
    b_ = place(column + lane % 8 + lane / 16 * 8, lane / 8 % 2);
    // Words lie in the quads' lanes as the instruction looks for them: of two tiles of A, and of
    // four of B.
    const uint32_t in_quad = lane % 4, in_tile = lane / 4;
    a_scale_row_ = row + in_quad % (2 * kTilesM) * 8 + in_tile;
    b_scales_ = word_offset(column + in_quad * 8 + in_tile);
    own_word_ = word_offset(row + in_tile);
  }

  /// The sums over `count` stages, of a tile whose first row is `first_row`. `has_scales`: of
  /// scales in f32, that there are any.
  BLOCKSCALE_DEVICE void multiply(uint32_t count, uint32_t first_row, bool has_scales, Sums& sums) {
    a_scales_ = word_offset(first_row + a_scale_row_);
    set_zero(sums);
    BLOCKSCALE_NO_UNROLL
    for (; count != 0; --count) {
      shared_.ring.wait_full(place_);
      if constexpr (has_f32_scales(kConfig)) {
        Sums products;
        set_zero(products);
        const Factors factors = factors_of(has_scales);
        multiply_stage(products);
        promote(sums, products, factors);
      } else {
        multiply_stage(sums);
      }
      place_.advance(shared_.ring.stages);
    }
  }

 private:
  static constexpr uint32_t kRowBytes = stage_row_bytes(kConfig);
  static constexpr int kInstructionK = static_cast<int>(instruction_k(kConfig));
  static constexpr int kSteps = static_cast<int>(kStageK) / kInstructionK;
  static constexpr int kAtoms = static_cast<int>(stage_atoms(kConfig));
  static constexpr int kScaleWordsB = kTilesN / 4;
  static constexpr Format kElementA = recipe_traits(kConfig.a).element;
  static constexpr Format kElementB = recipe_traits(kConfig.b).element;
  /// Elements of B that lie in a byte each with fewer bits.
  static constexpr int kNarrowBits = format_traits(kElementB).bits;
  static constexpr bool kIsNarrow = kRowBytes == kStageK && kNarrowBits != 8;

  /// What a step of kInstructionK multiplies.
  struct Fragments {
    ptx::MmaFragmentA a[kTilesM];
    ptx::MmaFragmentB b[kTilesN];
  };
  /// Of a stage.
  struct Scales {
    uint32_t a[kAtoms];
    uint32_t b[kAtoms][kScaleWordsB];
  };
  /// Of a stage with scales in f32: of the lane's rows of D, A's times B's.
  struct Factors {
    float at[kTilesM][2];
  };

  BLOCKSCALE_DEVICE static void set_zero(Sums& sums) {
    BLOCKSCALE_UNROLL
    for (auto& row : sums.at) {
      BLOCKSCALE_UNROLL
      for (ptx::MmaAccumulator& d : row) {
        BLOCKSCALE_UNROLL
        for (float& sum : d.value) sum = 0;
      }
    }
  }

  /// Where 16 bytes of a row lie, as tensor copies swizzle rows of kRowBytes. Those of step i are
  /// 32 i bytes on, which is an exclusive or too.
  BLOCKSCALE_DEVICE static uint32_t place(uint32_t row, uint32_t chunk) {
    const uint32_t offset = row * kRowBytes;
    return offset + (chunk ^ (offset >> 7 & (kRowBytes / 16 - 1))) * 16;
  }

  BLOCKSCALE_DEVICE void take(Fragments& f, uint32_t step) const {
    const ptx::SharedAddress a = shared_.a(place_.stage) + (a_ ^ step * 32);
    const ptx::SharedAddress b = shared_.b(place_.stage) + (b_ ^ step * 32);
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kTilesM; ++i) {
      const auto words = ptx::ldmatrix<4>(a + i * 16 * kRowBytes);
      BLOCKSCALE_UNROLL
      for (uint32_t j = 0; j < 4; ++j) f.a[i].value[j] = words.value[j];
    }
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kTilesN / 2; ++i) {
      const auto words = load_b(b + i * 16 * kRowBytes);
      BLOCKSCALE_UNROLL
      for (uint32_t j = 0; j < 4; ++j) f.b[2 * i + j / 2].value[j % 2] = words.value[j];
    }
  }

  BLOCKSCALE_DEVICE static ptx::MatrixFragment<4> load_b(ptx::SharedAddress row) {
    if constexpr (!kIsNarrow) {
      return ptx::ldmatrix<4>(row);
    } else {
      auto words = ptx::ldmatrix_b8x16<kNarrowBits, 4>(row);
      if constexpr (kNarrowBits == 4) {
        BLOCKSCALE_UNROLL
        for (uint32_t& word : words.value) word <<= 2;  // products take bits 2 to 5
      }
      return words;
    }
  }

  BLOCKSCALE_DEVICE Scales scales_of_stage() const {
    Scales s;
    if constexpr (has_f32_scales(kConfig)) {
      constexpr uint32_t kOnes = 0x7F7F7F7F;
      s.a[0] = kOnes;
      for (uint32_t& word : s.b[0]) word = kOnes;
      return s;
    }
    const ptx::SharedAddress a = shared_.a_scales(place_.stage) + a_scales_;
    const ptx::SharedAddress b = shared_.b_scales(place_.stage) + b_scales_;
    BLOCKSCALE_UNROLL
    for (uint32_t atom = 0; atom < kAtoms; ++atom) {
      s.a[atom] = ptx::ld_shared<uint32_t>(a + atom * kAtomBytes);
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kScaleWordsB; ++i) {  // the next 32 rows' words are 4 bytes on
        s.b[atom][i] = ptx::ld_shared<uint32_t>(b + (atom * kAtomBytes + i * 4));
      }
    }
    return s;
  }

  /// Adds the products of a stage, and leaves it.
  BLOCKSCALE_DEVICE void multiply_stage(Sums& sums) const {
    const Scales scales = scales_of_stage();
    Fragments first;
    take(first, 0);
    multiply_from<0>(sums, first, scales);
  }

  /// From a step on, whose fragments are there: the next one's are loaded while it is multiplied.
  template <int kStep>
  BLOCKSCALE_DEVICE void multiply_from(Sums& sums, const Fragments& f, const Scales& scales) const {
    if constexpr (kStep + 1 < kSteps) {
      Fragments next;
      take(next, kStep + 1);
      multiply_step<kStep>(sums, f, scales);
      multiply_from<kStep + 1>(sums, next, scales);
    } else {
      ptx::bar_warp_sync(ptx::kFullMask);
      if (ptx::laneid() == 0) ptx::mbarrier_arrive(shared_.ring.empty(place_.stage));
      multiply_step<kStep>(sums, f, scales);
    }
  }

  /// The products of a step, from a tile on. (What an instruction selects is to be known when this
  /// is compiled.)
  template <int kStep, int kTile = 0>
  BLOCKSCALE_DEVICE static void multiply_step(Sums& sums, const Fragments& f,
                                              const Scales& scales) {
    if constexpr (kTile < kTilesM * kTilesN) {
      constexpr int kM = kTile / kTilesN, kN = kTile % kTilesN;
      multiply_tile<kStep, kM, kN>(sums.at[kM][kN], f, scales);
      multiply_step<kStep, kTile + 1>(sums, f, scales);
    }
  }

  template <int kStep, int kM, int kN>
  BLOCKSCALE_DEVICE static void multiply_tile(ptx::MmaAccumulator& d, const Fragments& f,
                                              const Scales& scales) {
    constexpr int kWordK = static_cast<int>(scale_word_k(kConfig));
    constexpr int kAtom = kStep * kInstructionK / kWordK;
    constexpr int kByte = has_f32_scales(kConfig) ? 0 : kStep * kInstructionK % kWordK * 4 / kWordK;
    constexpr ptx::ScaleSelector kOfA = {kByte, kM}, kOfB = {kByte, kN % 4};
    const uint32_t of_a = scales.a[kAtom], of_b = scales.b[kAtom][kN / 4];
    if constexpr (kInstructionK == 64) {
      constexpr int kScales = kConfig.a == Recipe::nvfp4 ? 4 : 2;
      ptx::mma_sync_m16n8k64_mxf4nvf4<kScales, kOfA, kOfB>(d, f.a[kM], f.b[kN], of_a, of_b);
    } else {
      ptx::mma_sync_m16n8k32_mxf8f6f4<kElementA, kElementB, kOfA, kOfB>(d, f.a[kM], f.b[kN], of_a,
                                                                        of_b);
    }
  }

  BLOCKSCALE_DEVICE Factors factors_of(bool has_scales) const {
    Factors factors;
    const float of_b = has_scales ? ptx::ld_shared<float>(shared_.b_scales(place_.stage)) : 1.0f;
    const ptx::SharedAddress a = shared_.a_scales(place_.stage);
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < 2 * kTilesM; ++i) {
      float factor = of_b;
      if (has_scales) {
        // The rows of a warp are among 32 whose words are 16 bytes apart.
        const uint32_t word = own_word_ + 8 * i * 16;
        factor = ptx::mul_rn(ptx::ld_shared<float>(a + word), of_b);
      }
      factors.at[i / 2][i % 2] = factor;
    }
    return factors;
  }

  BLOCKSCALE_DEVICE static void promote(Sums& sums, const Sums& products, const Factors& factors) {
    BLOCKSCALE_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      BLOCKSCALE_UNROLL
      for (int n = 0; n < kTilesN; ++n) {
        BLOCKSCALE_UNROLL
        for (int i = 0; i < 4; ++i) {
          float& sum = sums.at[m][n].value[i];
          sum = ptx::fma_rn(products.at[m][n].value[i], factors.at[m][i / 2], sum);
        }
      }
    }
  }

  const Shared<kConfig>& shared_;
  uint32_t a_, b_;  // where the lane's rows of operands lie in a stage's
  uint32_t a_scale_row_;
  uint32_t a_scales_ = 0, b_scales_;  // where its words of scales lie
  uint32_t own_word_;                 // where that of its first row lies, of scales in f32
  device::StagePlace place_;
};

}  // namespace blockscale::block_scaled
