// Micro-kernels of products of warps and warpgroups, of matrices moved by a warp, of setmaxnreg and
// of clusters, as those of programs.h.
#pragma once

#include "core/format.h"
#include "device/golden/programs.h"
#include "device/ptx/cluster.h"
#include "device/ptx/ldmatrix.h"
#include "device/ptx/mma.h"
#include "device/ptx/setmaxnreg.h"
#include "device/ptx/sm90/wgmma.h"

namespace blockscale::golden {

// --- Products: small integers, so that every sum is exact in f32, in whatever order ---

BLOCKSCALE_HD constexpr Format format_of(ptx::WgmmaElement element) {
  return element == ptx::WgmmaElement::e4m3   ? Format::e4m3
         : element == ptx::WgmmaElement::e5m2 ? Format::e5m2
         : element == ptx::WgmmaElement::f16  ? Format::f16
                                              : Format::bf16;
}

BLOCKSCALE_HD constexpr Format format_of(ptx::MmaElement element) {
  return element == ptx::MmaElement::e4m3   ? Format::e4m3
         : element == ptx::MmaElement::e5m2 ? Format::e5m2
         : element == ptx::MmaElement::f16  ? Format::f16
                                            : Format::bf16;
}

/// Codes of integers from -4 to 4 in place of the parts of a random word.
template <auto kElement>
BLOCKSCALE_DEVICE uint32_t small_integers(uint32_t random) {
  constexpr Format kFormat = format_of(kElement);
  constexpr int kBits = format_traits(kFormat).bits;
  uint32_t word = 0;
  BLOCKSCALE_UNROLL
  for (int i = 0; i < 32; i += kBits) {
    const int value = static_cast<int>((random >> i & 0xFFu) % 9u) - 4;
    word |= encode<kFormat>(static_cast<float>(value)) << i;
  }
  return word;
}

/// D = A * B over one span of k, then D += A * B over its first 32 bytes. What lies in shared
/// memory is not put where rows are: the descriptor says which bytes they have.
template <ptx::WgmmaElement kA, ptx::WgmmaElement kB, int kN, TensorMapSwizzle kSwizzle,
          bool kAInRegisters = false>
struct WgmmaProgram {
  static constexpr uint32_t kSpan = swizzle_span(kSwizzle);
  static constexpr uint32_t kBytesOfA = 64 * kSpan, kBytesOfB = kN * kSpan;
  static constexpr LaunchShape kShape = {.block = {128},
                                         .dynamic_shared_bytes = kBytesOfA + kBytesOfB};

  BLOCKSCALE_DEVICE static uint32_t random(const ProgramParams& p, uint32_t word) {
    return ptx::ld_global_nc(p.in + word % kInWords) ^ word / kInWords * 0x9E3779B9u;
  }

  BLOCKSCALE_DEVICE static void multiply(ptx::WgmmaAccumulator<kN>& d, uint32_t k, bool accumulate,
                                         [[maybe_unused]] const ptx::WgmmaFragmentA& a) {
    const ptx::SharedAddress s = device::shared_base();
    const ptx::WgmmaDescriptor b = ptx::wgmma_descriptor(s + kBytesOfA + 32 * k, kSwizzle);
    if constexpr (kAInRegisters) {
      ptx::wgmma_mma_async<kA, kB>(d, a, b, accumulate);
    } else {
      ptx::wgmma_mma_async<kA, kB>(d, ptx::wgmma_descriptor(s + 32 * k, kSwizzle), b, accumulate);
    }
  }

  /// Of D's values: 16 words of this thread.
  BLOCKSCALE_DEVICE static void add_to_hashes(const ptx::WgmmaAccumulator<kN>& d,
                                              uint32_t (&hashes)[16]) {
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kN / 2; ++i) {
      hashes[i % 16] = hashes[i % 16] * 0x9E3779B1u + bit_cast<uint32_t>(d.get(i));
    }
  }

  BLOCKSCALE_DEVICE static void run(const ProgramParams& p) {
    const ptx::SharedAddress s = device::shared_base();
    const uint32_t thread = ptx::tid_x();
    for (uint32_t word = thread; word < (kBytesOfA + kBytesOfB) / 4; word += 128) {
      const uint32_t value = random(p, word);
      ptx::st_shared(s + 4 * word,
                     word < kBytesOfA / 4 ? small_integers<kA>(value) : small_integers<kB>(value));
    }
    ptx::fence_proxy_async_shared();
    ptx::barrier_sync_all();
    ptx::WgmmaFragmentA a[kSpan / 32];
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kSpan / 8; ++i) {
      a[i / 4].set(static_cast<int>(i % 4), small_integers<kA>(random(p, 128 * i + thread)));
    }
    ptx::WgmmaAccumulator<kN> d;
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kN / 2; ++i) d.set(i, static_cast<float>(i));
    uint32_t hashes[16] = {};
    BLOCKSCALE_UNROLL
    for (uint32_t k = 0; k < kSpan / 32; ++k) ptx::wgmma_fence(d, a[k]);
    BLOCKSCALE_UNROLL
    for (uint32_t k = 0; k < kSpan / 32; ++k) {
      multiply(d, k, k != 0, a[k]);
      ptx::wgmma_commit_group();
    }
    ptx::wgmma_wait_group<0>(d);
    add_to_hashes(d, hashes);
    ptx::wgmma_fence(d, a[0]);
    multiply(d, 0, true, a[0]);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>(d, a[0]);
    add_to_hashes(d, hashes);
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < 16; ++i) ptx::st_global(p.out + 16 * thread + i, hashes[i]);
  }
};

#define BLOCKSCALE_WGMMA_PROGRAM(type, name, a, b, n, swizzle, ...)                          \
  struct type : WgmmaProgram<ptx::WgmmaElement::a, ptx::WgmmaElement::b, n,                  \
                             TensorMapSwizzle::bytes_##swizzle __VA_OPT__(, ) __VA_ARGS__> { \
    static constexpr const char* kName = name;                                               \
  };
BLOCKSCALE_WGMMA_PROGRAM(WgmmaE4m3, "wgmma_e4m3_n64_128", e4m3, e4m3, 64, 128)
BLOCKSCALE_WGMMA_PROGRAM(WgmmaE4m3Wide, "wgmma_e4m3_n256_128", e4m3, e4m3, 256, 128)
BLOCKSCALE_WGMMA_PROGRAM(WgmmaE5m2E4m3, "wgmma_e5m2_e4m3_n8_64", e5m2, e4m3, 8, 64)
BLOCKSCALE_WGMMA_PROGRAM(WgmmaE4m3E5m2, "wgmma_e4m3_e5m2_n256_32", e4m3, e5m2, 256, 32)
BLOCKSCALE_WGMMA_PROGRAM(WgmmaE5m2, "wgmma_e5m2_n40_128", e5m2, e5m2, 40, 128)
BLOCKSCALE_WGMMA_PROGRAM(WgmmaF16, "wgmma_f16_n64_128", f16, f16, 64, 128)
BLOCKSCALE_WGMMA_PROGRAM(WgmmaBf16, "wgmma_bf16_n176_64", bf16, bf16, 176, 64)
BLOCKSCALE_WGMMA_PROGRAM(WgmmaE4m3Registers, "wgmma_e4m3_n64_128_rs", e4m3, e4m3, 64, 128, true)
BLOCKSCALE_WGMMA_PROGRAM(WgmmaE5m2Registers, "wgmma_e5m2_e4m3_n8_32_rs", e5m2, e4m3, 8, 32, true)
BLOCKSCALE_WGMMA_PROGRAM(WgmmaF16Registers, "wgmma_f16_n256_128_rs", f16, f16, 256, 128, true)
BLOCKSCALE_WGMMA_PROGRAM(WgmmaBf16Registers, "wgmma_bf16_n8_64_rs", bf16, bf16, 8, 64, true)
#undef BLOCKSCALE_WGMMA_PROGRAM

/// D += A * B four times, of one warp's registers; D after each.
template <ptx::MmaElement kElement>
struct MmaProgram {
  static constexpr LaunchShape kShape = {.block = {32}};
  BLOCKSCALE_DEVICE static void run(const ProgramParams& p) {
    const uint32_t lane = ptx::laneid();
    ptx::MmaAccumulator d;
    for (uint32_t i = 0; i < 4; ++i) d.value[i] = static_cast<float>(4 * lane + i);
    for (uint32_t step = 0; step < 4; ++step) {
      const uint32_t* const in = p.in + 256 * step + 8 * lane;
      ptx::MmaFragmentA a;
      ptx::MmaFragmentB b;
      for (uint32_t i = 0; i < 4; ++i) {
        a.value[i] = small_integers<kElement>(ptx::ld_global_nc(in + i));
      }
      for (uint32_t i = 0; i < 2; ++i) {
        b.value[i] = small_integers<kElement>(ptx::ld_global_nc(in + 4 + i));
      }
      ptx::mma_sync_m16n8<kElement>(d, a, b);
      for (uint32_t i = 0; i < 4; ++i) {
        ptx::st_global(p.out + 128 * step + 4 * lane + i, bit_cast<uint32_t>(d.value[i]));
      }
    }
  }
};

#define BLOCKSCALE_MMA_PROGRAM(type, element)                  \
  struct type : MmaProgram<ptx::MmaElement::element> {         \
    static constexpr const char* kName = "mma_sync_" #element; \
  };
BLOCKSCALE_MMA_PROGRAM(MmaF16, f16)
BLOCKSCALE_MMA_PROGRAM(MmaBf16, bf16)
BLOCKSCALE_MMA_PROGRAM(MmaE4m3, e4m3)
BLOCKSCALE_MMA_PROGRAM(MmaE5m2, e5m2)
#undef BLOCKSCALE_MMA_PROGRAM

/// Matrices of each number, as they are and transposed, to registers and from them.
struct Matrices {
  static constexpr const char* kName = "ldmatrix_stmatrix";
  static constexpr LaunchShape kShape = {.block = {32}, .dynamic_shared_bytes = 1024};

  template <int kCount, bool kTransposed>
  BLOCKSCALE_DEVICE static void move(const ProgramParams& p) {
    constexpr uint32_t kPart = 256 * (kCount / 2 + 3 * uint32_t{kTransposed});  // of out
    const uint32_t lane = ptx::laneid();
    const ptx::SharedAddress row = device::shared_base() + 16 * lane, stored = row + 512;
    for (uint32_t i = 0; i < 4; ++i) {
      ptx::st_shared(row + 4 * i, ptx::ld_global_nc(p.in + kPart + 4 * lane + i));
      ptx::st_shared(stored + 4 * i, kOutFill);
    }
    ptx::bar_warp_sync(ptx::kFullMask);
    auto f = ptx::ldmatrix<kCount, kTransposed>(row);
    for (uint32_t i = 0; i < kCount; ++i) {
      ptx::st_global(p.out + kPart + 32 * i + lane, f.value[i]);
      f.value[i] = f.value[i] * 0x9E3779B1u + lane;
    }
    ptx::stmatrix<kTransposed>(stored, f);
    ptx::bar_warp_sync(ptx::kFullMask);
    for (uint32_t i = 0; i < 4; ++i) {
      ptx::st_global(p.out + kPart + 128 + 4 * lane + i, ptx::ld_shared<uint32_t>(stored + 4 * i));
    }
  }

  BLOCKSCALE_DEVICE static void run(const ProgramParams& p) {
    move<1, false>(p);
    move<2, false>(p);
    move<4, false>(p);
    move<1, true>(p);
    move<2, true>(p);
    move<4, true>(p);
  }
};

/// A warpgroup gives up registers, the others take them.
struct Setmaxnreg {
  static constexpr const char* kName = "setmaxnreg";
  static constexpr LaunchShape kShape = {.block = {384}};
  BLOCKSCALE_DEVICE static void run(const ProgramParams& p) {
    const uint32_t thread = ptx::tid_x();
    if (device::warp_index() < 4) {
      ptx::setmaxnreg_dec<40>();
    } else {
      ptx::setmaxnreg_inc<232>();
    }
    ptx::st_global(p.out + thread, ptx::ld_global_nc(p.in + thread) + 1);
  }
};

// --- Clusters ---

/// Each block writes to the next one of its cluster, in every way that there is.
struct Clusters {
  static constexpr const char* kName = "cluster";
  static constexpr LaunchShape kShape = {
      .grid = {8}, .block = {64}, .cluster = {4}, .dynamic_shared_bytes = 4096};
  using Two = device::Vector<uint32_t, 2>;
  using Four = device::Vector<uint32_t, 4>;

  BLOCKSCALE_DEVICE static void sync() {
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
  }

  BLOCKSCALE_DEVICE static void run(const ProgramParams& p) {
    const uint32_t i = ptx::tid_x(), next = (ptx::cluster_ctarank() + 1) % ptx::cluster_nctarank();
    const ptx::SharedAddress s = device::shared_base(), arrived = s, came = s + 8;
    const ptx::SharedAddress words = s + 512 + 4 * i, twos = s + 1024 + 8 * i,
                             fours = s + 2048 + 16 * i;
    const auto there = [&](ptx::SharedAddress here) {
      return ptx::mapa_shared_cluster(here, next);
    };
    if (i == 0) {
      ptx::mbarrier_init(arrived, 64, "arrived");
      ptx::mbarrier_init(came, 1, "came");
      ptx::fence_mbarrier_init();
    }
    ptx::barrier_cluster_arrive_relaxed();
    ptx::barrier_cluster_wait();
    const uint32_t value = ptx::ld_global_nc(p.in + 64 * ptx::ctaid_x() + i);
    const Two two = {{value ^ 1, value * 3}};
    const Four four = {{value ^ 2, value * 5, value + 7, ~value}};
    uint32_t* const out = p.out + 4 * (64 * ptx::ctaid_x() + i);
    // Ordinary stores and loads.
    ptx::st_shared_cluster(there(words), value);
    ptx::st_shared_cluster(there(twos), two);
    ptx::st_shared_cluster(there(fours), four);
    sync();
    uint32_t sum = ptx::ld_shared<uint32_t>(words) + ptx::ld_shared<Two>(twos).at[1] +
                   ptx::ld_shared<Four>(fours).at[2];
    ptx::st_global(out, sum);
    sum = ptx::ld_shared_cluster<uint32_t>(there(words)) ^
          ptx::ld_shared_cluster<Two>(there(twos)).at[0] ^
          ptx::ld_shared_cluster<Four>(there(fours)).at[3];
    ptx::st_global(out + 1, sum);
    // Arrivals.
    ptx::mbarrier_arrive_cluster(there(arrived));
    device::mbarrier_wait(arrived, 0);
    ptx::st_global(out + 2, static_cast<uint32_t>(ptx::mbarrier_test_wait_parity(arrived, 1)));
    if (i == 0) ptx::mbarrier_arrive_expect_tx(came, 64 * (4 + 8 + 16));
    sync();
    // Stores that complete their bytes.
    ptx::st_async(there(words), value + 11, there(came));
    ptx::st_async(there(twos), Two{{two.at[0] + 13, two.at[1]}}, there(came));
    ptx::st_async(there(fours), Four{{four.at[0], four.at[1], four.at[2], four.at[3] + 17}},
                  there(came));
    device::mbarrier_wait(came, 0);
    sum = ptx::ld_shared<uint32_t>(words) + ptx::ld_shared<Two>(twos).at[0] +
          ptx::ld_shared<Four>(fours).at[3];
    ptx::st_global(out + 3, sum);
  }
};

using HopperPrograms =
    TypeList<WgmmaE4m3, WgmmaE4m3Wide, WgmmaE5m2E4m3, WgmmaE4m3E5m2, WgmmaE5m2, WgmmaF16, WgmmaBf16,
             WgmmaE4m3Registers, WgmmaE5m2Registers, WgmmaF16Registers, WgmmaBf16Registers, MmaF16,
             MmaBf16, MmaE4m3, MmaE5m2, Matrices, Setmaxnreg, Clusters>;

template <class A, class B>
struct Joined;
template <class... A, class... B>
struct Joined<TypeList<A...>, TypeList<B...>> {
  using List = TypeList<A..., B...>;
};
using AllPrograms = Joined<Programs, HopperPrograms>::List;

}  // namespace blockscale::golden
