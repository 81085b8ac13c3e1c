// What the tests of clusters share: two blocks of a warp each, their mbarriers, a box for both.
#pragma once

#include <array>
#include <vector>

#include "device/emulator/test/barriers_test_support.h"
#include "device/emulator/test/planted_test_support.h"
#include "device/ptx/barrier.h"
#include "device/ptx/cluster.h"
#include "device/ptx/fence.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/mbarrier.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/tensor_copy.h"
#include "device/ptx/warp.h"
#include "device/vector.h"

namespace blockscale::emulator {

inline constexpr LaunchShape kTwoBlocks = {
    .grid = {2}, .block = {32}, .cluster = {2}, .dynamic_shared_bytes = 4096};

// Shared memory of these programs: two mbarriers, a word for each thread, and boxes of 1 KiB.
inline ptx::SharedAddress word() {
  return device::shared_base() + 128 + 4 * ptx::tid_x();
}
inline ptx::SharedAddress box(uint32_t i = 0) {
  return device::shared_base() + 1024 * (i + 1);
}

inline uint32_t other_rank() {
  return ptx::cluster_ctarank() ^ 1;
}
inline ptx::ClusterAddress of_other(ptx::SharedAddress address) {
  return ptx::mapa_shared_cluster(address, other_rank());
}

inline void cluster_sync(SourceLocation at = SourceLocation::current()) {
  ptx::barrier_cluster_arrive(at);
  ptx::barrier_cluster_wait(at);
}

/// All threads: mbarriers that the cluster sees, of which `empty` has `consumers` arrivals.
inline void init_cluster_barriers(uint32_t consumers = 1) {
  begin_barriers(consumers);
  cluster_sync();
}

/// 32 x 32 words in global memory, in boxes of 8 rows.
struct alignas(128) Matrix {
  std::array<uint32_t, 1024> words;
  TensorMap map;

  Matrix() {
    for (uint32_t i = 0; i < words.size(); ++i) words[i] = i;
    TensorMapDescription d;
    d.address = reinterpret_cast<uint64_t>(words.data());
    d.sizes[0] = d.sizes[1] = 32;
    d.strides[0] = 128;
    d.box[0] = 32;
    d.box[1] = 8;
    d.element_strides[0] = d.element_strides[1] = 1;
    d.rank = 2;
    d.element = TensorMapElement::u32;
    map = encode_tensor_map(d);
  }
  std::vector<Buffer> buffers() const { return {input("words", words)}; }
};

}  // namespace blockscale::emulator
