// The warpgroups of fp4_tiles.cuh that multiply A in FP8 by mxfp4, on FP8's tensor cores.
//
// A stage is kFp8BlockK of k: four instructions, each of a block of mxfp4. Codes become e4m3, times
// what their blocks' scales differ by (device/decode/folded_codes.cuh), so that a row of B has one
// factor a stage, which its products take in f32. These are made of kTurnTokens rows of A at a
// time: meanwhile a part of the next stage's codes becomes numbers, and while they are added up the
// tensor cores have those of the other warpgroup. (Two sets of products would take turns: of 64
// rows of A there are not registers enough, and those of 32 are slower. docs/log/gemm-fp4.md,
// version 17.)
//
// Where scales of a row are too far apart, each block of the 64 rows has a factor and a sum of its
// own.
//
// With fast accumulation a row's tables leave room on both sides of its first stage's scales. The
// stages up to the first that does not fit them have one factor, and one sum in the tensor cores.
#pragma once

#include "device/decode/folded_codes.cuh"
#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/sm90/wgmma.h"
#include "device/ptx/special_registers.h"
#include "ops/gemm/kernels/sm90/fp4_tiles_load.cuh"

namespace blockscale::fp4_tiles {

/// Waits for the products of a stage, behind which those of so many have begun.
template <int kPending, class Sums, class Stage>
BLOCKSCALE_DEVICE void end(Sums& sums, Stage& x) {
  if constexpr (kPending == 0) {
    ptx::wgmma_wait_group<0>(sums, x.b[0], x.b[1], x.b[2], x.b[3]);
  } else {
    ptx::wgmma_wait_group<kPending>(x.b[0], x.b[1], x.b[2], x.b[3]);
  }
}

template <Fp4TilesConfig kConfig>
class Fp8Multiplier {
 public:
  using Sums = ptx::WgmmaAccumulator<kConfig.tokens>;

  /// `warp` counts from the first that multiplies.
  BLOCKSCALE_DEVICE Fp8Multiplier(const Shared<kConfig>& shared, uint32_t warp)
      : shared_(shared), warpgroup_(warp / 4), row_(warp * 16 + ptx::laneid() / 4) {}

  /// D^T's sums over `count` stages, of 64 rows of B and all of A, of which the tile has `rows`.
  BLOCKSCALE_DEVICE void multiply(uint32_t count, uint32_t rows, bool fast_accumulation,
                                  Sums& sums) {
    BLOCKSCALE_UNROLL
    for (int i = 0; i < Sums::kValues; ++i) sums.set(i, 0);
    if (fast_accumulation) accumulate(count, sums);
    Stage x, y;
    BLOCKSCALE_NO_UNROLL
    while (count != 0) {
      if (!next_is_folded()) {
        add_blocks(sums, rows);
        --count;
        continue;
      }
      take(x);
      decode_all(x);
      BLOCKSCALE_NO_UNROLL
      for (;;) {
        if (!add(sums, x, y, rows, --count != 0)) break;
        if (!add(sums, y, x, rows, --count != 0)) break;
      }
    }
  }

 private:
  static constexpr uint32_t kSteps = kFp8BlockK / 32;  // instructions
  static constexpr uint32_t kTurnTokens = 64;
  static constexpr uint32_t kTurns = static_cast<uint32_t>(kConfig.tokens) / kTurnTokens;
  static constexpr uint32_t kTurnSteps = kSteps / kTurns;  // of the next stage's codes
  using Products = ptx::WgmmaAccumulator<kTurnTokens>;
  static_assert(kSteps % kTurns == 0);

  /// B's part of a stage, as numbers, and the thread's two rows' factors.
  struct Stage {
    ptx::WgmmaFragmentA b[kSteps];
    float factors[2];
    uint32_t place;
  };

  /// Sums the products of the stages that have the first one's factors, and counts them off. One is
  /// left when the next one but one is there, as fp4_tiles.cuh says why.
  BLOCKSCALE_DEVICE void accumulate(uint32_t& count, Sums& sums) {
    if (count == 0 || !next_is_folded(kFirstFactor)) return;
    Stage x, y;
    take(x);
    decode_all(x);
    begin(sums, x, 0, true);
    bool y_is_there = false;
    BLOCKSCALE_NO_UNROLL
    for (;;) {
      if (--count == 0 || !next_is_folded(kFirstFactor)) {
        end<0>(sums, x);
        break;
      }
      if (y_is_there) shared_.leave(y.place);
      y_is_there = true;
      take(y);
      decode_all(y);
      begin(sums, y, 0, true);
      end<1>(sums, x);
      if (--count == 0 || !next_is_folded(kFirstFactor)) {
        end<0>(sums, y);
        break;
      }
      shared_.leave(x.place);
      take(x);
      decode_all(x);
      begin(sums, x, 0, true);
      end<1>(sums, y);
    }
    shared_.leave(x.place);
    if (y_is_there) shared_.leave(y.place);
    BLOCKSCALE_UNROLL
    for (int i = 0; i < Sums::kValues; ++i) {
      sums.set(i, ptx::mul_rn(sums.get(i), x.factors[i / 2 % 2]));
    }
  }

  /// Waits for the next stage. Whether each of its rows has such a factor.
  BLOCKSCALE_DEVICE bool next_is_folded(uint32_t factor = kOneFactor) const {
    shared_.ring.wait_full(place_);
    return shared_.have_factors(place_.stage, warpgroup_) >= factor;
  }

  /// Goes on to the next stage, which is there.
  BLOCKSCALE_DEVICE void take(Stage& x) {
    x.place = place_.stage;
    place_.advance(shared_.ring.stages);
    load_factors(x, 0);
  }

  BLOCKSCALE_DEVICE void load_factors(Stage& x, uint32_t block) const {
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < 2; ++i) {
      x.factors[i] = ptx::ld_shared<float>(shared_.factors(x.place, row_ + 8 * i) + block * 4);
    }
  }

  BLOCKSCALE_DEVICE void decode_all(Stage& x) const {
    BLOCKSCALE_UNROLL
    for (uint32_t turn = 0; turn < kTurns; ++turn) decode_part(x, turn);
  }

  /// Makes numbers of the codes that become some while a turn is multiplied.
  BLOCKSCALE_DEVICE void decode_part(Stage& x, uint32_t turn) const {
    BLOCKSCALE_UNROLL
    for (uint32_t block = turn * kTurnSteps; block < (turn + 1) * kTurnSteps; ++block) {
      decode(x.b[block], x.place, block);
    }
  }

  /// Makes numbers of the codes of a block of the thread's rows.
  BLOCKSCALE_DEVICE void decode(ptx::WgmmaFragmentA& b, uint32_t stage, uint32_t block) const {
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t row = row_ + 8 * i;
      // As a tensor copy swizzles rows of 64 bytes. This lane has four codes of each 16.
      const ptx::SharedAddress codes =
          shared_.b(stage) +
          (row * row_bytes_of_b(kConfig) + (block ^ row / 2 % 4) * 16 + ptx::laneid() % 4 * 2);
      const uint32_t low = ptx::ld_shared<uint16_t>(codes);
      const uint32_t high = ptx::ld_shared<uint16_t>(codes + 8);
      uint32_t words[2];
      decoding::fold_e2m1(words, low | high << 16,
                          ptx::ld_shared<uint32_t>(shared_.scales(stage, row) + block * 4));
      b.set(static_cast<int>(i), words[0]);
      b.set(static_cast<int>(i) + 2, words[1]);
    }
  }

  /// Adds a stage's products, and leaves it. Meanwhile the next one's codes become numbers, if
  /// there is one and it is folded: returns whether. (If not, these become numbers again, without a
  /// branch.) A tile that has rows of the first turn alone has no products of others.
  BLOCKSCALE_DEVICE bool add(Sums& sums, Stage& x, Stage& next, uint32_t rows, bool has_next) {
    Products products;
    begin(products, x, 0);
    const bool goes_on = has_next && next_is_folded();
    next.place = x.place;
    if (goes_on) take(next);
    decode_part(next, 0);
    end<0>(products, x);
    promote(sums, products, x, 0);
    if (kTurns == 1 || rows > kTurnTokens) {
      BLOCKSCALE_UNROLL
      for (uint32_t turn = 1; turn < kTurns; ++turn) {
        begin(products, x, turn);
        decode_part(next, turn);
        end<0>(products, x);
        promote(sums, products, x, turn);
      }
    } else {
      BLOCKSCALE_UNROLL
      for (uint32_t turn = 1; turn < kTurns; ++turn) decode_part(next, turn);
    }
    shared_.leave(x.place);
    return goes_on;
  }

  /// Begins the products of a stage with a turn's rows of A, or all of them. `goes_on`: adds them
  /// to those before.
  template <int kTokens>
  BLOCKSCALE_DEVICE void begin(ptx::WgmmaAccumulator<kTokens>& products, Stage& x, uint32_t turn,
                               bool goes_on = false) {
    const ptx::WgmmaDescriptor a = tokens(x.place, turn);
    ptx::wgmma_fence(products, x.b[0], x.b[1], x.b[2], x.b[3]);
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kSteps; ++i) {
      ptx::wgmma_mma_async<kE4m3, kE4m3>(products, x.b[i], a + i * 32, goes_on || i > 0);
    }
    ptx::wgmma_commit_group();
  }

  /// The same of a stage that is not folded, block by block.
  BLOCKSCALE_DEVICE void add_blocks(Sums& sums, uint32_t rows) {
    Stage x;
    take(x);
    BLOCKSCALE_NO_UNROLL
    for (uint32_t block = 0; block < kSteps; ++block) {
      load_factors(x, block);
      decode(x.b[0], x.place, block);
      BLOCKSCALE_UNROLL
      for (uint32_t turn = 0; turn < kTurns; ++turn) {
        if (turn * kTurnTokens >= rows) break;
        Products products;
        ptx::wgmma_fence(products, x.b[0]);
        ptx::wgmma_mma_async<kE4m3, kE4m3>(products, x.b[0], tokens(x.place, turn) + block * 32,
                                           false);
        ptx::wgmma_commit_group();
        ptx::wgmma_wait_group<0>(products, x.b[0]);
        promote(sums, products, x, turn);
      }
    }
    shared_.leave(x.place);
  }

  BLOCKSCALE_DEVICE ptx::WgmmaDescriptor tokens(uint32_t stage, uint32_t turn) const {
    return ptx::wgmma_descriptor(shared_.a(stage) + turn * kTurnTokens * kRowBytesA,
                                 TensorMapSwizzle::bytes_128);
  }

  BLOCKSCALE_DEVICE static void promote(Sums& sums, const Products& products, const Stage& x,
                                        uint32_t turn) {
    BLOCKSCALE_UNROLL
    for (int i = 0; i < Products::kValues; ++i) {
      const int of_sums = static_cast<int>(turn) * Products::kValues + i;
      sums.set(of_sums, ptx::fma_rn(products.get(i), x.factors[i / 2 % 2], sums.get(of_sums)));
    }
  }

  static constexpr auto kE4m3 = ptx::WgmmaElement::e4m3;

  const Shared<kConfig>& shared_;
  uint32_t warpgroup_;
  uint32_t row_;  // the thread's first in the tile; the other is row_ + 8
  device::StagePlace place_;
};

}  // namespace blockscale::fp4_tiles
