// D = epilogue(A B^T) for many rows of A, in bf16 or f16, and B in nvfp4 or mxfp4 as it lies, or in
// A's own type; or of A in FP8 and B in mxfp4 (fp4_tiles_fp8.cuh).
// (ops/gemm/kernels/plain.cuh computes the same for any pair: read that first.)
//
// A block computes tiles of D, one after the other. A warpgroup loads stages of kStageK of k:
// tensor copies bring A's rows and B's codes, and its threads turn scales into factors. The two
// others multiply 64 rows of B each by all of the tile's rows of A, so that D^T is what they
// sum: a product's operand that lies in registers is wgmma's rows, and codes are numbers there
// alone.
//   1. Codes become bf16 or f16, times the scale of their block, exactly, while the stage before is
//      multiplied.
//   2. The tensor cores sum all of K, or where A has scales for blocks of it each of these, which
//      is then added up in f32, times its scale.
//   3. Sums that become numbers of 16 bits are transposed on their way to D; others go through
//      shared memory, from which each warp takes 16 rows of A and 64 columns of D as a TileStore
//      wants them. There blocks of a cluster, which divide K, add theirs in the order of k.
// MX has scales with which bf16, or f16, does not hold every code. The products of a stage that has
// one are made without scales, block by block, and these are applied to their sums.
// Of B in A's type nothing becomes anything: it is multiplied from shared memory.
//
// What is outside of K or of A is 0, and what is outside of B is not stored.
#pragma once

#include "core/format.h"
#include "device/conversion_loss.cuh"
#include "device/decode/scaled_codes.cuh"
#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/barrier.h"
#include "device/ptx/cluster.h"
#include "device/ptx/grid.h"
#include "device/ptx/integer.h"
#include "device/ptx/mma.h"
#include "device/ptx/setmaxnreg.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/sm90/wgmma.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "device/vector.h"
#include "ops/gemm/kernels/sm90/fp4_tiles_fp8.cuh"
#include "ops/gemm/kernels/sm90/fp4_tiles_store.cuh"

namespace blockscale {
namespace fp4_tiles {

template <Fp4TilesConfig kConfig>
class Multiplier {
 public:
  using Sums = ptx::WgmmaAccumulator<kConfig.tokens>;

  /// `warp` counts from the first that multiplies.
  BLOCKSCALE_DEVICE Multiplier(const Shared<kConfig>& shared, uint32_t warp)
      : shared_(shared), warpgroup_(warp / 4), row_(warp * 16 + ptx::laneid() / 4) {}

  /// D^T's sums over `count` stages, of 64 rows of B and so many of A. One that has ended is left
  /// when the next one but one is there: before that wait the arrival would keep descriptors out of
  /// uniform registers (docs/log/gemm-sm90.md, version 91).
  BLOCKSCALE_DEVICE void multiply(uint32_t count, uint32_t rows, Sums& sums) {
    BLOCKSCALE_UNROLL
    for (int i = 0; i < Sums::kValues; ++i) sums.set(i, 0);
    Stage x, y;
    BLOCKSCALE_NO_UNROLL
    while (count != 0) {
      if (!next_has_factors()) {
        take(x, false, false);
        add_blocks(sums, x, rows);
        leave();
        --count;
        continue;
      }
      take(x, true, false);
      begin(sums, x);
      bool one_has_ended = false;
      BLOCKSCALE_NO_UNROLL
      for (;;) {
        if (--count == 0 || !next_has_factors()) {
          end<0>(sums, x);
          break;
        }
        take(y, true, one_has_ended);
        begin(sums, y);
        end<1>(sums, x);
        one_has_ended = true;
        if (--count == 0 || !next_has_factors()) {
          end<0>(sums, y);
          break;
        }
        take(x, true, true);
        begin(sums, x);
        end<1>(sums, y);
      }
      if (one_has_ended) leave();
      leave();
    }
  }

  /// The same over stages from `k` to `k_end`, each kPromotedK of which are summed from 0. The next
  /// ones' first stage becomes numbers while the last is multiplied.
  BLOCKSCALE_DEVICE void multiply_promoted(uint32_t k, uint32_t k_end, uint32_t rows, Sums& sums) {
    constexpr uint32_t kBlock = kPromotedK / kStageK;
    static_assert(kBlock == 2);
    BLOCKSCALE_UNROLL
    for (int i = 0; i < Sums::kValues; ++i) sums.set(i, 0);
    Stage x, y;
    Sums products;
    BLOCKSCALE_NO_UNROLL
    while (k != k_end) {
      if (!next_has_factors()) {
        take(x, false, false);
        add_blocks(sums, x, rows);
        leave();
        ++k;
        continue;
      }
      take(x, true, false);
      BLOCKSCALE_NO_UNROLL
      for (;;) {
        begin(products, x, false);
        if (++k == k_end || k % kBlock == 0 || !next_has_factors()) {
          end<0>(products, x);
          promote(sums, products, x.place);
          leave();
          break;
        }
        take(y, true, false);
        begin(products, y);
        end<1>(products, x);
        const bool goes_on = ++k != k_end && next_has_factors();
        if (goes_on) take(x, true, true);
        end<0>(products, y);
        promote(sums, products, y.place);
        if (!goes_on) leave();
        leave();
        if (!goes_on) break;
      }
    }
  }

  /// The same of plain B, whose stages are left as those of `multiply` are.
  template <ptx::WgmmaElement kOfBoth>
  BLOCKSCALE_DEVICE void multiply_plain(uint32_t count, Sums& sums) {
    BLOCKSCALE_UNROLL
    for (int i = 0; i < Sums::kValues; ++i) sums.set(i, 0);
    BLOCKSCALE_NO_UNROLL
    for (uint32_t i = 0; i < count; ++i) {
      shared_.ring.wait_full(place_);
      if (i > 1) leave();
      const auto at = [](ptx::SharedAddress rows) {
        return ptx::wgmma_descriptor(rows, TensorMapSwizzle::bytes_128);
      };
      const ptx::WgmmaDescriptor a = at(shared_.a(place_.stage));
      const ptx::WgmmaDescriptor b = at(shared_.b(place_.stage) + warpgroup_ * 64 * kRowBytesA);
      ptx::wgmma_fence(sums);
      BLOCKSCALE_UNROLL
      for (uint32_t step = 0; step < kSteps; ++step) {
        ptx::wgmma_mma_async<kOfBoth, kOfBoth>(sums, b + step * 32, a + step * 32, true);
      }
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<1>();
      place_.advance(shared_.ring.stages);
    }
    ptx::wgmma_wait_group<0>(sums);
    if (count > 1) leave();
    if (count > 0) leave();
  }

 private:
  static constexpr bool kIsNvfp4 = Shared<kConfig>::kIsNvfp4;
  static constexpr Format kForm = kConfig.form;
  static constexpr auto kElement =
      kForm == Format::bf16 ? ptx::WgmmaElement::bf16 : ptx::WgmmaElement::f16;
  static constexpr auto kMma = kForm == Format::bf16 ? ptx::MmaElement::bf16 : ptx::MmaElement::f16;
  static constexpr uint32_t kSteps = kStageK / 16;  // instructions

  /// B's part of a stage, as numbers.
  struct Stage {
    ptx::WgmmaFragmentA b[kSteps];
    uint32_t place;
  };
  using Bytes16 = device::Vector<uint32_t, 4>;

  /// Waits for the next stage, if its scales have to be known.
  BLOCKSCALE_DEVICE bool next_has_factors() const {
    if constexpr (kIsNvfp4) return true;
    shared_.ring.wait_full(place_);
    return shared_.all_have_factors(place_.stage, row_ / 64);
  }

  /// Waits for the next stage, leaves the oldest if that has ended, and makes numbers of codes,
  /// with or without scales.
  BLOCKSCALE_DEVICE void take(Stage& x, bool with_scales, bool leaves) {
    if constexpr (kIsNvfp4) shared_.ring.wait_full(place_);
    if (leaves) leave();
    x.place = place_.stage;
    place_.advance(shared_.ring.stages);
    using Factors = device::Vector<uint32_t, kIsNvfp4 ? 4 : 2>;
    Factors factors[2];
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < 2; ++i) {
      factors[i] = ptx::ld_shared<Factors>(shared_.scales(x.place, row_ + 8 * i));
    }
    if (!with_scales) {
      BLOCKSCALE_UNROLL
      for (Factors& of_row : factors) {
        for (uint32_t& factor : of_row.at) factor = decoding::kPlainFactor<kForm>;
      }
    }
    const uint32_t select = 0x0040 + ptx::laneid() % 4 * 0x11;
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t row = row_ + 8 * i;
      const ptx::SharedAddress codes = shared_.b(x.place) + row * kRowBytesB;
      BLOCKSCALE_UNROLL
      for (uint32_t half = 0; half < 2; ++half) {
        // As a tensor copy swizzles rows of 32 bytes.
        const uint32_t chunk = half ^ (row / 4 % 2);
        const Bytes16 words = ptx::ld_shared<Bytes16>(codes + chunk * 16);
        // Of each word this lane has a byte: two neighbours of k.
        const uint32_t bytes = ptx::prmt(ptx::prmt(words.at[0], words.at[1], select),
                                         ptx::prmt(words.at[2], words.at[3], select), 0x5410);
        const uint32_t upper = bytes >> 4;
        BLOCKSCALE_UNROLL
        for (uint32_t j = 0; j < 2; ++j) {
          const uint32_t step = 2 * half + j;
          uint32_t pairs[2];
          decoding::spread_even_e2m1<kForm>(pairs,
                                            ptx::prmt(bytes, upper, j == 0 ? 0x5410 : 0x7632));
          const uint32_t factor = factors[i].at[kIsNvfp4 ? step : half];
          x.b[step].set(static_cast<int>(i), decoding::multiply_pair<kForm>(pairs[0], factor));
          x.b[step].set(static_cast<int>(i) + 2, decoding::multiply_pair<kForm>(pairs[1], factor));
        }
      }
    }
  }

  /// Begins the products of a stage, behind those of the one before. `goes_on`: adds them to the
  /// sums.
  BLOCKSCALE_DEVICE void begin(Sums& sums, Stage& x, bool goes_on = true) {
    const ptx::WgmmaDescriptor a =
        ptx::wgmma_descriptor(shared_.a(x.place), TensorMapSwizzle::bytes_128);
    ptx::wgmma_fence(sums, x.b[0], x.b[1], x.b[2], x.b[3]);
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kSteps; ++i) {
      ptx::wgmma_mma_async<kElement, kElement>(sums, x.b[i], a + i * 32, goes_on || i > 0);
    }
    ptx::wgmma_commit_group();
  }

  /// Adds the products of a stage that has numbers without scales: of blocks of 32 of k, by
  /// mma.sync, whose fragments are wgmma's. (Between products of wgmma and their end the compiler
  /// wants no others.)
  BLOCKSCALE_DEVICE void add_blocks(Sums& sums, const Stage& x, uint32_t rows) const {
    const uint32_t lane = ptx::laneid();
    const ptx::SharedAddress tokens = shared_.a(x.place) + (lane / 4 * kRowBytesA + lane % 4 * 4);
    BLOCKSCALE_UNROLL
    for (uint32_t block = 0; block < kStageK / 32; ++block) {
      const float scales[2] = {
          ptx::ld_shared<float>(shared_.scales(x.place, row_) + (kFirstScale + block) * 4),
          ptx::ld_shared<float>(shared_.scales(x.place, row_ + 8) + (kFirstScale + block) * 4)};
      BLOCKSCALE_UNROLL
      for (int first = 0; first < kConfig.tokens; first += 8) {
        // (A branch, behind which no loads are moved: there is no register for them.)
        if (static_cast<uint32_t>(first) >= rows) break;
        ptx::MmaAccumulator products = {};
        BLOCKSCALE_UNROLL
        for (uint32_t step = 2 * block; step < 2 * block + 2; ++step) {
          // As a tensor copy swizzles rows of 128 bytes.
          const auto pair = [&](uint32_t chunk) {
            return ptx::ld_shared<uint32_t>(
                tokens + (static_cast<uint32_t>(first) * kRowBytesA + (chunk ^ lane / 4) * 16));
          };
          const auto& b = x.b[step].value;
          ptx::mma_sync_m16n8<kMma>(products, {{b[0], b[1], b[2], b[3]}},
                                    {{pair(2 * step), pair(2 * step + 1)}});
        }
        if constexpr (kConfig.promotes) {
          const auto of_a = a_scales(x.place, first);
          BLOCKSCALE_UNROLL
          for (int i = 0; i < 4; ++i) {
            products.value[i] = ptx::mul_rn(products.value[i], of_a.at[i % 2]);
          }
        }
        BLOCKSCALE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int of_sums = first / 2 + i;
          sums.set(of_sums, ptx::fma_rn(products.value[i], scales[i / 2], sums.get(of_sums)));
        }
      }
    }
  }

  /// A's scales of a stage, of the thread's two columns of eight tokens from `first` on.
  BLOCKSCALE_DEVICE device::Vector<float, 2> a_scales(uint32_t stage, int first) const {
    return ptx::ld_shared<device::Vector<float, 2>>(
        shared_.a_scales(stage, static_cast<uint32_t>(first) + ptx::laneid() % 4 * 2));
  }

  /// Adds products, which have ended, times A's scales.
  BLOCKSCALE_DEVICE void promote(Sums& sums, const Sums& products, uint32_t stage) const {
    BLOCKSCALE_UNROLL
    for (int i = 0; i < Sums::kValues; i += 4) {
      const auto scales = a_scales(stage, 2 * i);
      BLOCKSCALE_UNROLL
      for (int j = i; j < i + 4; ++j) {
        sums.set(j, ptx::fma_rn(products.get(j), scales.at[j % 2], sums.get(j)));
      }
    }
  }

  /// Leaves the oldest stage.
  BLOCKSCALE_DEVICE void leave() {
    shared_.leave(left_);
    if (++left_ == shared_.ring.stages) left_ = 0;
  }

  const Shared<kConfig>& shared_;
  uint32_t warpgroup_;
  uint32_t row_;  // the thread's first in the tile; the other is row_ + 8
  device::StagePlace place_;
  uint32_t left_ = 0;  // that is left next
};

template <Fp4TilesConfig kConfig>
struct MultiplierOf {
  using Type = Multiplier<kConfig>;
};
template <Fp4TilesConfig kConfig>
  requires(is_in_fp8(kConfig))
struct MultiplierOf<kConfig> {
  using Type = Fp8Multiplier<kConfig>;
};

template <Fp4TilesConfig kConfig>
BLOCKSCALE_DEVICE void load(const Work<kConfig>& work, const Shared<kConfig>& shared,
                            uint32_t warp) {
  if constexpr (!has_codes(kConfig)) {
    if (warp == 0) load_plain(work, shared);
  } else {
    Loader<kConfig>(work, shared, warp).run();
  }
  if (!work.divides_k()) return;
  // The cluster, whose barrier is of all threads, has one tile.
  ptx::bar_warp_sync(ptx::kFullMask);
  BLOCKSCALE_NO_UNROLL
  for (uint32_t i = 0; i < 2 * kTurnsOf<kConfig>; ++i) {
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
  }
}

template <Fp4TilesConfig kConfig>
BLOCKSCALE_DEVICE void multiply(const Work<kConfig>& work, const Shared<kConfig>& shared,
                                uint32_t warp) {
  typename MultiplierOf<kConfig>::Type multiplier(shared, warp);
  const Storer<kConfig> store(work, shared, warp);
  const DirectStorer<kConfig> store_directly(work, shared, warp);
  const uint32_t stages = work.k_end - work.k_begin;
  BLOCKSCALE_NO_UNROLL
  for (uint32_t index = work.first; index < work.tiles.count(); index += work.step) {
    typename Storer<kConfig>::Sums sums;
    const Tile tile = work.tiles.tile(index);
    const uint32_t rows = tile.end_row - tile.first_row;
    if constexpr (is_in_fp8(kConfig)) {
      multiplier.multiply(stages, rows, work.p.fast_accumulation, sums);
    } else if constexpr (!has_codes(kConfig)) {
      if (work.p.is_f16) {
        multiplier.template multiply_plain<ptx::WgmmaElement::f16>(stages, sums);
      } else {
        multiplier.template multiply_plain<ptx::WgmmaElement::bf16>(stages, sums);
      }
    } else if constexpr (kConfig.promotes) {
      multiplier.multiply_promoted(work.k_begin, work.k_end, rows, sums);
    } else {
      multiplier.multiply(stages, rows, sums);
    }
    if (work.p.is_direct) {
      store_directly(sums, tile);
    } else {
      store(sums, tile);
    }
  }
  store.finish();
}

template <Fp4TilesConfig kConfig>
BLOCKSCALE_DEVICE void run(const Fp4TilesParams& p) {
  const Shared<kConfig> shared(p.stages, p.is_direct);
  Work<kConfig> work(p, shared.of_order());
  const uint32_t warp = device::warp_index();
  if (warp == 0) {
    if (ptx::elect_sync()) {
      shared.ring.template init<kFp4TilesMostStages>(1 + (has_codes(kConfig) ? kLoadWarps : 0),
                                                     kMathWarps);
      ptx::fence_mbarrier_init();
    }
    ptx::bar_warp_sync(ptx::kFullMask);
  }
  ptx::barrier_sync_all();
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  if (p.loss != nullptr && conversion_loss::pass_on(p.loss)) return;
  work.tiles.begin();
  if (warp < 4) {
    ptx::setmaxnreg_dec<loader_registers(kConfig)>();
    load(work, shared, warp);
  } else {
    ptx::setmaxnreg_inc<math_registers(kConfig)>();
    multiply(work, shared, warp - 4);
  }
}

}  // namespace fp4_tiles

template <Fp4TilesConfig kConfig>
BLOCKSCALE_DEVICE void fp4_tiles_kernel(const Fp4TilesParams& p) {
  if constexpr (has_codes(kConfig) && kConfig.form == Format::bf16 && !kConfig.promotes) {
    if (p.is_f16) return fp4_tiles::run<in_f16(kConfig)>(p);
  }
  fp4_tiles::run<kConfig>(p);
}

}  // namespace blockscale
