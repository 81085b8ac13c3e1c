// Micro-kernels of instructions that touch memory or other threads, for comparing the emulator with
// a GPU: the same source is run on both, and what it leaves in `out` is compared byte for byte.
#pragma once

#include "core/launch_shape.h"
#include "core/tensor_map.h"
#include "device/golden/operations.h"
#include "device/kernel.h"
#include "device/ptx/atomic.h"
#include "device/ptx/barrier.h"
#include "device/ptx/bulk_copy.h"
#include "device/ptx/cp_async.h"
#include "device/ptx/fence.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/mbarrier.h"
#include "device/ptx/prefetch.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "device/vector.h"

namespace blockscale::golden {

/// Words of `in` (random) and of `out` (kOutFill at first).
inline constexpr uint32_t kInWords = 4096;
inline constexpr uint32_t kOutWords = 2048;
inline constexpr uint32_t kOutFill = 0xA5C3E1F0;
inline constexpr uint32_t kSharedBytes = 32 * 1024;

struct alignas(64) ProgramParams {
  TensorMap map;  // of tensor programs
  const uint32_t* in;
  uint32_t* out;
  int32_t coordinates[5];
  uint32_t box_bytes;
  uint32_t box_offset;  // from the start of the box area, a multiple of 128
};

// --- Registers ---

struct SpecialRegisters {
  static constexpr const char* kName = "special_registers";
  static constexpr LaunchShape kShape = {.grid = {2, 1, 2}, .block = {8, 4, 2}};
  BLOCKSCALE_DEVICE static void run(const ProgramParams& p) {
    const uint32_t thread =
        ptx::tid_x() + ptx::ntid_x() * (ptx::tid_y() + ptx::ntid_y() * ptx::tid_z());
    const uint32_t block =
        ptx::ctaid_x() + ptx::nctaid_x() * (ptx::ctaid_y() + ptx::nctaid_y() * ptx::ctaid_z());
    const uint32_t value = ptx::laneid() | ptx::ntid_z() << 8 | ptx::nctaid_z() << 12 |
                           ptx::cluster_ctarank() << 16 | ptx::cluster_nctarank() << 20;
    ptx::st_global(p.out + block * 64 + thread, value);
  }
};

// --- Collectives ---

struct Shuffles {
  static constexpr const char* kName = "shfl_sync";
  static constexpr LaunchShape kShape = {.block = {32}};
  BLOCKSCALE_DEVICE static void run(const ProgramParams& p) {
    const uint32_t lane = ptx::laneid();
    uint32_t* out = p.out + lane;
    for (uint32_t i = 0; i < 12; ++i) {
      const uint32_t value = ptx::ld_global_nc(p.in + 64 * i + lane);
      // Each lane has an operand of its own, beyond the segment's width now and then.
      const uint32_t operand = ptx::ld_global_nc(p.in + 64 * i + 32 + lane) & 31u;
      const uint32_t width = 32u >> (i % 6);
      ptx::st_global(out + 128 * i, ptx::shfl_sync_idx(ptx::kFullMask, value, operand, width));
      ptx::st_global(out + 128 * i + 32, ptx::shfl_sync_up(ptx::kFullMask, value, operand, width));
      ptx::st_global(out + 128 * i + 64,
                     ptx::shfl_sync_down(ptx::kFullMask, value, operand, width));
      ptx::st_global(out + 128 * i + 96, ptx::shfl_sync_bfly(ptx::kFullMask, value, operand));
    }
  }
};

struct VotesAndReductions {
  static constexpr const char* kName = "vote_redux_match_elect";
  static constexpr LaunchShape kShape = {.block = {32}};
  BLOCKSCALE_DEVICE static void run(const ProgramParams& p) {
    const uint32_t lane = ptx::laneid();
    for (uint32_t i = 0; i < 4; ++i) {
      // Groups of 32, 16, 8 and 4 lanes.
      const uint32_t size = 32u >> i;
      const uint32_t mask = (size == 32 ? ptx::kFullMask : (1u << size) - 1u)
                            << (lane / size * size);
      const uint32_t value = ptx::ld_global_nc(p.in + 32 * i + lane);
      const bool predicate = (value & 6u) != 0;
      uint32_t* out = p.out + 352 * i + lane;
      ptx::st_global(out, static_cast<uint32_t>(ptx::vote_sync_any(mask, predicate)));
      ptx::st_global(out + 32, static_cast<uint32_t>(ptx::vote_sync_all(mask, predicate)));
      ptx::st_global(out + 64, ptx::vote_sync_ballot(mask, predicate));
      ptx::st_global(out + 96, ptx::match_any_sync(mask, value & 3u));
      ptx::st_global(out + 128, static_cast<uint32_t>(ptx::elect_sync(mask)));
      ptx::st_global(out + 160, ptx::redux_sync_add(mask, value));
      ptx::st_global(out + 192, ptx::redux_sync_min(mask, value));
      ptx::st_global(out + 224, ptx::redux_sync_max(mask, value));
      ptx::st_global(out + 256, ptx::redux_sync_and(mask, value | 0xFF00u));
      ptx::st_global(out + 288, ptx::redux_sync_or(mask, value & 0xFF00FFu));
      ptx::st_global(out + 320, ptx::redux_sync_xor(mask, value));
    }
  }
};

// --- Loads and stores ---

template <class T, ptx::Cache kCache>
BLOCKSCALE_DEVICE void copy_one(const void* from, void* to) {
  const uint32_t i = ptx::tid_x();
  const T a = ptx::ld_global_nc<T, kCache>(static_cast<const T*>(from) + i);
  const T b = ptx::ld_global<T, kCache>(static_cast<const T*>(from) + i + 32);
  ptx::st_global<T, kCache>(static_cast<T*>(to) + 2 * i, a);
  ptx::st_global<T, kCache>(static_cast<T*>(to) + 2 * i + 1, b);
}

template <class T>
BLOCKSCALE_DEVICE void copy_each(const uint32_t* from, uint32_t*& to) {
  constexpr uint32_t kWords = 64 * sizeof(T) / 4;
  copy_one<T, ptx::Cache::normal>(from, to);
  copy_one<T, ptx::Cache::evict_first>(from + 4, to + kWords);
  copy_one<T, ptx::Cache::evict_last>(from + 8, to + 2 * kWords);
  copy_one<T, ptx::Cache::no_allocate>(from + 12, to + 3 * kWords);
  to += 4 * kWords;
}

struct GlobalMemory {
  static constexpr const char* kName = "ld_st_global";
  static constexpr LaunchShape kShape = {.block = {32}};
  BLOCKSCALE_DEVICE static void run(const ProgramParams& p) {
    uint32_t* to = p.out;
    copy_each<uint8_t>(p.in, to);
    copy_each<uint16_t>(p.in, to);
    copy_each<uint32_t>(p.in, to);
    copy_each<device::Vector<uint32_t, 2>>(p.in, to);
    copy_each<device::Vector<uint8_t, 16>>(p.in, to);
    const uint32_t i = ptx::tid_x();
    ptx::st_relaxed_gpu_global(to + i, ptx::ld_relaxed_gpu_global(p.in + i));
    ptx::st_release_gpu_global(to + i + 32, ptx::ld_acquire_gpu_global(p.in + i + 32));
    ptx::prefetch_global_l2(p.in + i);
    ptx::cp_async_bulk_prefetch_l2(p.in, 512);
  }
};

/// Lanes whose predicate does not hold point behind `in`.
struct PredicatedLoads {
  static constexpr const char* kName = "ld_global_nc_if";
  static constexpr LaunchShape kShape = {.block = {32}};
  BLOCKSCALE_DEVICE static void run(const ProgramParams& p) {
    using Quad = device::Vector<uint32_t, 4>;
    const Quad* const in = reinterpret_cast<const Quad*>(p.in);
    Quad* const out = reinterpret_cast<Quad*>(p.out);
    for (uint32_t round = 0; round < 8; ++round) {
      const uint32_t i = 32 * round + ptx::tid_x();
      // No lane, all lanes, and then every second one at random.
      const bool holds = round == 1 || (round > 1 && ptx::ld_global_nc(p.in + i) % 2 == 1);
      ptx::st_global(out + i, ptx::ld_global_nc_if(holds, in + (holds ? i : kInWords / 4)));
    }
  }
};

template <class T>
BLOCKSCALE_DEVICE void copy_with_policy(const uint32_t* from, uint32_t* to,
                                        ptx::CachePolicy policy) {
  const uint32_t i = ptx::tid_x();
  ptx::st_global(reinterpret_cast<T*>(to) + i, ptx::ld_global(reinterpret_cast<const T*>(from) + i),
                 policy);
}

struct StoresWithPolicy {
  static constexpr const char* kName = "st_global_policy";
  static constexpr LaunchShape kShape = {.block = {32}};
  BLOCKSCALE_DEVICE static void run(const ProgramParams& p) {
    copy_with_policy<uint8_t>(p.in, p.out, ptx::createpolicy_evict_last());
    copy_with_policy<uint16_t>(p.in + 8, p.out + 8, ptx::createpolicy_evict_first());
    copy_with_policy<uint32_t>(p.in + 24, p.out + 24, ptx::createpolicy_evict_last());
  }
};

template <class T>
BLOCKSCALE_DEVICE void through_shared(const uint32_t* from, uint32_t* to) {
  const ptx::SharedAddress s = device::shared_base();
  const uint32_t i = ptx::tid_x(), other = i ^ 21u;
  ptx::st_shared(s + i * static_cast<uint32_t>(sizeof(T)),
                 ptx::ld_global_nc(reinterpret_cast<const T*>(from) + i));
  ptx::bar_warp_sync(ptx::kFullMask);
  ptx::st_global(reinterpret_cast<T*>(to) + i,
                 ptx::ld_shared<T>(s + other * static_cast<uint32_t>(sizeof(T))));
  ptx::bar_warp_sync(ptx::kFullMask);
}

struct SharedMemory {
  static constexpr const char* kName = "ld_st_shared";
  static constexpr LaunchShape kShape = {.block = {32}, .dynamic_shared_bytes = 512};
  BLOCKSCALE_DEVICE static void run(const ProgramParams& p) {
    through_shared<uint8_t>(p.in, p.out);
    through_shared<uint16_t>(p.in, p.out + 16);
    through_shared<uint32_t>(p.in, p.out + 64);
    through_shared<device::Vector<uint16_t, 4>>(p.in, p.out + 128);
    through_shared<device::Vector<uint32_t, 4>>(p.in, p.out + 256);
  }
};

// --- Atomics: each thread has words of its own, so that old values are determined ---

struct Atomics {
  static constexpr const char* kName = "atom_red";
  static constexpr LaunchShape kShape = {.block = {64}, .dynamic_shared_bytes = 1024};
  BLOCKSCALE_DEVICE static void run(const ProgramParams& p) {
    const uint32_t i = ptx::tid_x();
    const auto a = [&](uint32_t n) { return ptx::ld_global_nc(p.in + 128 * n + i); };
    const auto b = [&](uint32_t n) { return ptx::ld_global_nc(p.in + 128 * n + 64 + i); };
    const auto word = [&](uint32_t n) { return p.out + 64 * n + i; };
    const auto set = [&](uint32_t n, uint32_t value) {
      ptx::st_global(word(n), value);
      return word(n);
    };
    ptx::red_global_max(set(0, a(0)), b(0));
    ptx::red_global_min(set(1, a(1)), b(1));
    ptx::red_global_add(set(2, a(2)), b(2));
    ptx::red_global_or(set(3, a(3)), b(3));
    ptx::st_global(word(5), ptx::atom_global_add(set(4, a(4)), b(4)));
    ptx::st_global(word(7), ptx::atom_global_max(set(6, a(5)), b(5)));
    ptx::st_global(word(9), ptx::atom_global_exch(set(8, a(6)), b(6)));
    ptx::st_global(word(11), ptx::atom_global_inc(set(10, a(7) & 7u), b(7) & 7u));
    ptx::st_global(word(13), ptx::atom_global_cas(set(12, a(8) & 1u), b(8) & 1u, a(9)));
    ptx::st_global(word(15), ptx::atom_acq_rel_global_add(set(14, a(10)), b(10)));
    const ptx::SharedAddress s = device::shared_base() + 4 * i;
    ptx::st_shared(s, a(11));
    ptx::red_shared_max(s, b(11));
    ptx::st_global(word(16), ptx::ld_shared<uint32_t>(s));
    ptx::red_shared_add(s, b(12));
    ptx::red_shared_or(s, b(13) & 0xFFFFu);
    ptx::st_global(word(17), ptx::ld_shared<uint32_t>(s));
    ptx::st_global(word(18), ptx::atom_shared_add(s, b(14)));
    ptx::st_global(word(19), ptx::ld_shared<uint32_t>(s));
    for (uint32_t n = 0; n < 8; ++n) {  // f32: subnormals, NaNs and limits among them
      const uint64_t index = 64 * n + i;
      float* f = reinterpret_cast<float*>(p.out + 64 * (20 + n) + i);
      ptx::st_global(f, as_float(operand(Operands::f32, index, 0)));
      ptx::red_global_add(f, as_float(operand(Operands::f32, index, 1)));
    }
  }
};

/// Additions of pairs and of 16 bytes: what was there, and what is added.
struct VectorAdditions {
  static constexpr const char* kName = "red_add_vectors";
  static constexpr LaunchShape kShape = {.block = {64}};

  template <Format kDtype>
  BLOCKSCALE_DEVICE static void add_v4(uint32_t* to, uint32_t first) {
    constexpr Operands kKind = kDtype == Format::f32 ? Operands::f32 : Operands::halves;
    device::Vector<uint32_t, 4> old, more;
    for (uint32_t i = 0; i < 4; ++i) {
      old.at[i] = operand(kKind, first + i, 0);
      more.at[i] = operand(kKind, first + i, 1);
    }
    ptx::st_global(reinterpret_cast<device::Vector<uint32_t, 4>*>(to), old);
    ptx::red_global_add_v4<kDtype>(to, more);
  }
  template <Format kDtype>
  BLOCKSCALE_DEVICE static void add_x2(uint32_t* to, uint32_t word) {
    ptx::st_global(to, operand(Operands::halves, word, 0));
    ptx::red_global_add_x2<kDtype>(to, operand(Operands::halves, word, 1));
  }
  BLOCKSCALE_DEVICE static void run(const ProgramParams& p) {
    const uint32_t i = ptx::tid_x();
    add_v4<Format::f32>(p.out + 4 * i, 4 * i);
    add_v4<Format::f16>(p.out + 256 + 4 * i, 256 + 4 * i);
    add_v4<Format::bf16>(p.out + 512 + 4 * i, 512 + 4 * i);
    add_x2<Format::f16>(p.out + 768 + i, 768 + i);
    add_x2<Format::bf16>(p.out + 832 + i, 832 + i);
  }
};

// --- Barriers ---

struct Barriers {
  static constexpr const char* kName = "bar_sync_arrive";
  static constexpr LaunchShape kShape = {.block = {96}, .dynamic_shared_bytes = 1024};
  BLOCKSCALE_DEVICE static void run(const ProgramParams& p) {
    const ptx::SharedAddress s = device::shared_base() + 4 * ptx::laneid();
    const uint32_t warp = device::warp_index(), i = ptx::tid_x();
    ptx::st_shared(s + 128 * warp, ptx::ld_global_nc(p.in + i));
    ptx::barrier_sync_all();
    uint32_t sum = ptx::ld_shared<uint32_t>(s + 128 * ((warp + 1) % 3));
    ptx::barrier_sync_all();
    if (warp == 0) {
      ptx::st_shared(s, sum);
      ptx::bar_arrive(1, 64);
    } else if (warp == 1) {
      ptx::bar_sync(1, 64);
      sum += ptx::ld_shared<uint32_t>(s);
    } else {
      return;
    }
    ptx::barrier_sync_all();  // without the warp that has exited
    ptx::st_global(p.out + i, sum);
    ptx::griddepcontrol_launch_dependents();
    ptx::griddepcontrol_wait();
  }
};

struct MbarrierPhases {
  static constexpr const char* kName = "mbarrier_phases";
  static constexpr LaunchShape kShape = {.block = {32}, .dynamic_shared_bytes = 64};
  BLOCKSCALE_DEVICE static void run(const ProgramParams& p) {
    if (ptx::tid_x() != 0) return;
    const ptx::SharedAddress s = device::shared_base();
    uint32_t* out = p.out;
    const auto put = [&](uint32_t value) { ptx::st_global(out++, value); };
    const auto parities = [&] {
      put(static_cast<uint32_t>(ptx::mbarrier_test_wait_parity(s, 0)) |
          static_cast<uint32_t>(ptx::mbarrier_test_wait_parity(s, 1)) << 1);
    };
    ptx::mbarrier_init(s, 3, "phases");
    parities();
    for (uint32_t round = 0; round < 5; ++round) {
      const uint64_t state = ptx::mbarrier_arrive(s);
      parities();
      put(static_cast<uint32_t>(ptx::mbarrier_test_wait(s, state)));
      ptx::mbarrier_arrive(s, 2);
      parities();
      put(static_cast<uint32_t>(ptx::mbarrier_test_wait(s, state)));
      put(static_cast<uint32_t>(ptx::mbarrier_try_wait_parity(s, round & 1)));
    }
    ptx::mbarrier_inval(s);
    ptx::mbarrier_init(s, 1, "bytes");
    ptx::fence_mbarrier_init();
    for (uint32_t round = 0; round < 3; ++round) {  // bytes expected before and after the copy
      if (round != 1) ptx::mbarrier_expect_tx(s, 16);
      ptx::cp_async_bulk_shared_global(s + 16, p.in + 4 * round, 16, s);
      if (round == 1) {
        ptx::mbarrier_arrive_expect_tx(s, 16);
      } else {
        ptx::mbarrier_arrive(s);
      }
      device::mbarrier_wait(s, round & 1);
      parities();
      put(ptx::ld_shared<uint32_t>(s + 28));
    }
  }
};

// --- Copies ---

struct CpAsync {
  static constexpr const char* kName = "cp_async";
  static constexpr LaunchShape kShape = {.block = {32}, .dynamic_shared_bytes = 4096};
  BLOCKSCALE_DEVICE static void run(const ProgramParams& p) {
    const ptx::SharedAddress s = device::shared_base(), barrier = s + 4088;
    const uint32_t i = ptx::tid_x();
    for (uint32_t word = i; word < 512; word += 32) ptx::st_shared(s + 4 * word, kOutFill);
    if (i == 0) ptx::mbarrier_init(barrier, 32, "copied");
    ptx::barrier_sync_all();
    ptx::cp_async_ca<4>(s + 4 * i, p.in + i, i % 5);
    ptx::cp_async_ca<8>(s + 128 + 8 * i, p.in + 2 * i, i % 9);
    ptx::cp_async_commit_group();
    ptx::cp_async_ca<16>(s + 384 + 16 * i, p.in + 4 * i, i % 17);
    ptx::cp_async_commit_group();
    ptx::cp_async_cg(s + 896 + 16 * i, p.in + 4 * i);
    ptx::cp_async_commit_group();
    ptx::cp_async_wait_group<1>();
    ptx::cp_async_wait_group<0>();
    const ptx::SharedAddress last = s + 1408 + 16 * i;
    if (i % 16 == 0) {
      ptx::cp_async_cg_if(i == 0, last, p.in + 4 * i);
    } else {
      ptx::cp_async_cg(last, p.in + 4 * i, 16 - i % 17);
    }
    ptx::cp_async_mbarrier_arrive_noinc(barrier);
    device::mbarrier_wait(barrier, 0);
    ptx::cp_async_wait_all();
    ptx::barrier_sync_all();
    for (uint32_t word = i; word < 512; word += 32) {
      ptx::st_global(p.out + word, ptx::ld_shared<uint32_t>(s + 4 * word));
    }
  }
};

struct BulkCopies {
  static constexpr const char* kName = "cp_async_bulk";
  static constexpr LaunchShape kShape = {.block = {32}, .dynamic_shared_bytes = 8192};
  BLOCKSCALE_DEVICE static void run(const ProgramParams& p) {
    if (ptx::tid_x() != 0) return;
    const ptx::SharedAddress s = device::shared_base(), barrier = s + 8184;
    ptx::mbarrier_init(barrier, 1, "bulk");
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_tx(barrier, 16 + 4096 + 48);
    ptx::cp_async_bulk_shared_global(s, p.in, 16, barrier);
    ptx::cp_async_bulk_shared_global(s + 16, p.in + 64, 4096, barrier,
                                     ptx::createpolicy_evict_first());
    ptx::cp_async_bulk_shared_global(s + 4112, p.in + 2000, 48, barrier,
                                     ptx::createpolicy_evict_last());
    device::mbarrier_wait(barrier, 0);
    ptx::cp_async_bulk_global_shared(p.out, s, 4160);
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group_read<0>();
    ptx::st_shared(s, 1u);
    ptx::fence_proxy_async_shared();
    ptx::cp_async_bulk_global_shared(p.out + 1100, s, 16);
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group<0>();
  }
};

/// The last of four thread blocks adds up what all have written, and copies it.
struct Fences {
  static constexpr const char* kName = "fence";
  static constexpr LaunchShape kShape = {.grid = {4}, .block = {32}, .dynamic_shared_bytes = 1024};
  BLOCKSCALE_DEVICE static void run(const ProgramParams& p) {
    const uint32_t i = ptx::ctaid_x() * 32 + ptx::tid_x();
    uint32_t* const count = p.out + 256;
    uint32_t* const sums = p.out + 260;
    ptx::st_global(p.out + i, ptx::ld_global_nc(p.in + i));
    ptx::bar_warp_sync(ptx::kFullMask);
    if (ptx::tid_x() != 0) return;
    ptx::fence_acq_rel_gpu();
    if (ptx::atom_global_add(count, 1) != kOutFill + 3) return;
    ptx::fence_acq_rel_gpu();
    for (uint32_t n = 0; n < 4; ++n) {
      uint32_t sum = 0;
      for (uint32_t lane = 0; lane < 32; ++lane) sum += ptx::ld_global(p.out + 32 * n + lane);
      ptx::st_global(sums + n, sum);
    }
    const ptx::SharedAddress s = device::shared_base(), barrier = s + 16;
    ptx::mbarrier_init(barrier, 1, "sums");
    ptx::fence_mbarrier_init();
    ptx::fence_proxy_async_global();
    ptx::mbarrier_arrive_expect_tx(barrier, 16);
    ptx::cp_async_bulk_shared_global(s, sums, 16, barrier);
    device::mbarrier_wait(barrier, 0);
    ptx::cp_async_bulk_global_shared(p.out + 264, s, 16);
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group<0>();
  }
};

template <ptx::BulkReduce kOp>
BLOCKSCALE_DEVICE void reduce_once(const ProgramParams& p) {
  constexpr uint32_t kIndex = static_cast<uint32_t>(kOp);
  uint32_t* out = p.out + 96 * kIndex;
  const ptx::SharedAddress s = device::shared_base() + 512 * kIndex;
  const bool halves = (kIndex >= 3 && kIndex <= 4) || (kIndex >= 10 && kIndex <= 13);
  for (uint32_t i = ptx::tid_x(); i < 96; i += 32) {
    const uint64_t index = 128 * kIndex + i;
    uint32_t a = operand(halves ? Operands::halves : Operands::f32, index, 0);
    uint32_t b = operand(halves ? Operands::halves : Operands::f32, index, 1);
    if (kOp == ptx::BulkReduce::inc_u32 || kOp == ptx::BulkReduce::dec_u32) {
      a &= 3;
      b &= 3;
    }
    ptx::st_global(out + i, a);
    ptx::st_shared(s + 4 * i, b);
  }
  ptx::fence_proxy_async();
  ptx::bar_warp_sync(ptx::kFullMask);
  if (ptx::tid_x() == 0) {
    ptx::cp_reduce_async_bulk_global_shared<kOp>(out, s, 384);
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group<0>();
  }
}

struct BulkReductions {
  static constexpr const char* kName = "cp_reduce_async_bulk";
  static constexpr LaunchShape kShape = {.block = {32}, .dynamic_shared_bytes = 19 * 512};
  BLOCKSCALE_DEVICE static void run(const ProgramParams& p) {
    using ptx::BulkReduce;
    reduce_once<BulkReduce::add_u32>(p);
    reduce_once<BulkReduce::add_s32>(p);
    reduce_once<BulkReduce::add_u64>(p);
    reduce_once<BulkReduce::add_f16>(p);
    reduce_once<BulkReduce::add_bf16>(p);
    reduce_once<BulkReduce::add_f32>(p);
    reduce_once<BulkReduce::min_u32>(p);
    reduce_once<BulkReduce::max_u32>(p);
    reduce_once<BulkReduce::min_s32>(p);
    reduce_once<BulkReduce::max_s32>(p);
    reduce_once<BulkReduce::min_f16>(p);
    reduce_once<BulkReduce::max_f16>(p);
    reduce_once<BulkReduce::min_bf16>(p);
    reduce_once<BulkReduce::max_bf16>(p);
    reduce_once<BulkReduce::inc_u32>(p);
    reduce_once<BulkReduce::dec_u32>(p);
    reduce_once<BulkReduce::and_b32>(p);
    reduce_once<BulkReduce::or_b32>(p);
    reduce_once<BulkReduce::xor_b32>(p);
  }
};

using Programs = TypeList<SpecialRegisters, Shuffles, VotesAndReductions, GlobalMemory,
                          PredicatedLoads, StoresWithPolicy, SharedMemory, Atomics, VectorAdditions,
                          Barriers, MbarrierPhases, CpAsync, BulkCopies, Fences, BulkReductions>;

}  // namespace blockscale::golden
