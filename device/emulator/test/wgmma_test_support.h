// What the tests of wgmma share: the wrappers, and maps of matrices of bytes.
#pragma once

#include <algorithm>
#include <vector>

#include "device/emulator/meaning/wgmma.h"
#include "device/emulator/test/barriers_test_support.h"
#include "device/emulator/test/planted_test_support.h"
#include "device/ptx/barrier.h"
#include "device/ptx/fence.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/mbarrier.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/sm90/wgmma.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/tensor_copy.h"
#include "device/ptx/warp.h"

namespace blockscale::emulator {

/// Of a matrix of bytes: boxes of `box_rows` rows of the swizzle's span.
inline TensorMapDescription rows_map(const std::vector<uint8_t>& bytes, uint32_t rows,
                                     uint32_t row_bytes, uint32_t box_rows,
                                     TensorMapSwizzle swizzle) {
  TensorMapDescription d;
  d.address = reinterpret_cast<uint64_t>(bytes.data());
  d.sizes[0] = row_bytes;
  d.sizes[1] = rows;
  d.strides[0] = row_bytes;
  d.box[0] = swizzle_span(swizzle);
  d.box[1] = box_rows;
  d.element_strides[0] = d.element_strides[1] = 1;
  d.rank = 2;
  d.swizzle = swizzle;
  return d;
}

// The programs with planted bugs: a warpgroup multiplies 64 x 128 e4m3 with 8 x 128 of them. Shared
// memory has two mbarriers, A from 1024 on and B behind it.
inline constexpr uint32_t kBytesOfA = 64 * 128, kBytesOfB = 8 * 128;
inline constexpr LaunchShape kOneWarpgroup = {.block = {128},
                                              .dynamic_shared_bytes = 1024 + kBytesOfA + kBytesOfB};

using Accumulator = ptx::WgmmaAccumulator<8>;

inline ptx::SharedAddress tile_a() {
  return device::shared_base() + 1024;
}
inline ptx::SharedAddress tile_b() {
  return tile_a() + kBytesOfA;
}
inline ptx::WgmmaDescriptor descriptor(ptx::SharedAddress start) {
  return ptx::wgmma_descriptor(start, TensorMapSwizzle::bytes_128);
}

/// A and B in global memory, with their maps.
struct Operands {
  std::vector<uint8_t> a = std::vector<uint8_t>(kBytesOfA, 0x38);
  std::vector<uint8_t> b = std::vector<uint8_t>(kBytesOfB, 0x38);
  TensorMap a_map = encode_tensor_map(rows_map(a, 64, 128, 64, TensorMapSwizzle::bytes_128));
  TensorMap b_map = encode_tensor_map(rows_map(b, 8, 128, 8, TensorMapSwizzle::bytes_128));
  std::vector<Buffer> buffers() const { return {input("a", a), input("b", b)}; }
};

/// One thread: begins to load A and B.
inline void begin_load(const Operands& operands, SourceLocation at = SourceLocation::current()) {
  ptx::mbarrier_arrive_expect_tx(full(), kBytesOfA + kBytesOfB);
  ptx::cp_async_bulk_tensor_shared_global<2>(tile_a(), &operands.a_map, {{0, 0}}, full(), at);
  ptx::cp_async_bulk_tensor_shared_global<2>(tile_b(), &operands.b_map, {{0, 0}}, full(), at);
}

/// All threads: A and B are there.
inline void load(const Operands& operands) {
  init_barriers();
  if (ptx::tid_x() == 0) begin_load(operands);
  device::mbarrier_wait(full(), 0);
}

/// All threads: one product over 32 of k.
inline void multiply(Accumulator& d, SourceLocation at = SourceLocation::current()) {
  ptx::wgmma_mma_async<ptx::WgmmaElement::e4m3, ptx::WgmmaElement::e4m3>(
      d, descriptor(tile_a()), descriptor(tile_b()), false, at);
}

/// All threads: one product with all that belongs to it.
inline void fence_multiply_wait(SourceLocation at = SourceLocation::current()) {
  Accumulator d;
  ptx::wgmma_fence(d);
  multiply(d, at);
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<0>(d);
}

}  // namespace blockscale::emulator
