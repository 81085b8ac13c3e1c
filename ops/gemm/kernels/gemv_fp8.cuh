// D = epilogue(A B^T) where A has one row, of FP8 operands with scales. B is read once, straight to
// registers, as fast as memory gives it: everything else hides behind that.
//
// A warp takes 8 rows of B and a part of K. Of a k-block of 128 a lane has 16 bytes of rows r and
// r + 4 with r = lane / 8, those at 16 (lane % 8), and A's 16 bytes beside them. They are the
// lane's fragments of mma.sync: its rows lane / 4 and lane / 4 + 8, its column lane / 4. So column
// j of the product belongs to other bytes of k than row i unless i = j: the diagonals hold half
// rows' sums, and everything else in it means nothing. Warps that divide K add up in shared memory.
#pragma once

#include "device/epilogue/linear.h"
#include "device/epilogue/one_element.cuh"
#include "device/epilogue/tile_store.cuh"
#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/barrier.h"
#include "device/ptx/cp_async.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/mma.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "device/vector.h"
#include "ops/gemm/kernels/params.h"

namespace blockscale {

inline constexpr uint32_t kGemvWarpRows = 8;  // of B
inline constexpr uint32_t kGemvWarps = 8;     // of a block
inline constexpr uint32_t kGemvBlocksPerMultiprocessor = 4;

struct Fp8GemvParams {
  const uint8_t* a = nullptr;  // rows of both begin at multiples of 16 bytes
  const uint8_t* b = nullptr;
  int64_t a_batch_stride = 0;  // bytes
  int64_t b_batch_stride = 0;
  int64_t b_row_stride = 0;
  GemmScales a_scales, b_scales;  // B's: one for all rows of a block of threads
  LinearEpilogue epilogue;        // of one row
  uint32_t k = 0;                 // a multiple of 16
  uint32_t division_shift = 0;    // 2^this warps divide K, at most all
  uint32_t part_blocks = 0;       // k-blocks of each of them, but the last ones
};

namespace fp8_gemv {

/// Shared memory, in bytes from its start: A, filled up with zeros; the products of scales; sums.
struct Memory {
  uint32_t scales, sums, total;
};
BLOCKSCALE_HD constexpr Memory memory_of(uint32_t k_blocks) {
  Memory m{};
  m.scales = k_blocks * kFp8BlockK;
  m.sums = m.scales + (k_blocks * 4 + 15) / 16 * 16;
  m.total = m.sums + kGemvWarps * kGemvWarpRows * 4;
  return m;
}

using Bytes16 = device::Vector<uint32_t, 4>;

BLOCKSCALE_DEVICE float load_scale(const GemmScales& s, uint32_t batch, uint32_t row,
                                   uint32_t k_block) {
  if (s.data == nullptr) return 1.0f;  // left to the epilogue
  const int64_t at = batch * s.batch_stride + s.row_offset(row) + s.k_offset(k_block);
  return s.bytes ? scale_value(ptx::ld_global(s.data + at))
                 : scale_value(ptx::ld_global(reinterpret_cast<const uint32_t*>(s.data) + at));
}

/// body(k-block, its slot) for k-blocks [begin, end), which have kAhead slots of registers in turn.
template <int kAhead, class Body>
BLOCKSCALE_DEVICE void for_each_slot(uint32_t begin, uint32_t end, const Body& body) {
  BLOCKSCALE_NO_UNROLL
  for (uint32_t k = begin; k < end; k += kAhead) {
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      if (k + static_cast<uint32_t>(i) >= end) return;
      body(k + static_cast<uint32_t>(i), i);
    }
  }
}

/// A warp's part of B: some k-blocks of its rows, of which the next ones are on their way.
class Stream {
 public:
  static constexpr int kAhead = 4;  // k-blocks: 4 KB a warp

  BLOCKSCALE_DEVICE Stream(const Fp8GemvParams& p, uint32_t first_row, uint32_t begin, uint32_t end)
      : k_(p.k), next_(begin), end_(end), byte_(begin * kFp8BlockK + ptx::laneid() % 8 * 16) {
    const uint8_t* const b = p.b + ptx::ctaid_y() * p.b_batch_stride + byte_;
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t row = first_row + ptx::laneid() / 8 + 4 * i;
      // Rows outside of B take its last one's place: what they give is not stored.
      at_[i] = b + (row < p.epilogue.columns ? row : p.epilogue.columns - 1) * p.b_row_stride;
    }
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kAhead; ++i) load(i);
  }

  /// Calls visit(k-block, 16 bytes of each of the two rows) for each k-block.
  template <class Visit>
  BLOCKSCALE_DEVICE void for_each(const Visit& visit) {
    for_each_slot<kAhead>(next_ - kAhead, end_, [&](uint32_t k, int slot) {
      visit(k, loaded_[slot]);
      load(slot);
    });
  }

 private:
  BLOCKSCALE_DEVICE void load(int slot) {
    const bool has = next_ < end_ && byte_ < k_;
    BLOCKSCALE_UNROLL
    for (int i = 0; i < 2; ++i) {
      loaded_[slot][i] = ptx::ld_global_nc_if(has, reinterpret_cast<const Bytes16*>(at_[i]));
      at_[i] += kFp8BlockK;
    }
    byte_ += kFp8BlockK;
    ++next_;
  }

  uint32_t k_, next_, end_;
  uint32_t byte_;  // of k: this lane's of the next load
  const uint8_t* at_[2];
  Bytes16 loaded_[kAhead][2];
};

/// Fills shared memory with A and the products of its scales and B's.
BLOCKSCALE_DEVICE void bring_a(const Fp8GemvParams& p, const Memory& memory, uint32_t k_blocks,
                               uint32_t first_row) {
  const ptx::SharedAddress shared = device::shared_base();
  const uint32_t batch = ptx::ctaid_y();
  const uint8_t* const a = p.a + batch * p.a_batch_stride;
  for (uint32_t i = ptx::tid_x(); i < k_blocks * 8; i += 32 * kGemvWarps) {
    const bool has = i * 16 < p.k;
    ptx::cp_async_cg(shared + i * 16, has ? a + i * 16 : a, has ? 16 : 0);
  }
  for (uint32_t k = ptx::tid_x(); k < k_blocks; k += 32 * kGemvWarps) {
    ptx::st_shared(shared + (memory.scales + k * 4),
                   ptx::mul_rn(load_scale(p.a_scales, batch, 0, k),
                               load_scale(p.b_scales, batch, first_row, k)));
  }
  ptx::cp_async_wait_all();
  ptx::barrier_sync_all();
}

/// D's number before it is rounded.
BLOCKSCALE_DEVICE float combined(const LinearEpilogue& e, const epilogue::RowPlace& at,
                                 uint32_t column, float sum) {
  if (e.row_scales.data != nullptr) {
    sum = ptx::mul_rn(sum, epilogue::scale_of(e.row_scales, at.matrix, at.row, e.rows));
  }
  if (e.column_scales.data != nullptr) {
    sum = ptx::mul_rn(sum, epilogue::scale_of(e.column_scales, at.group, column, e.columns));
  }
  return epilogue::combine_one(e, at, column, ptx::mul_rn(epilogue::alpha_of(e, at.group), sum));
}

}  // namespace fp8_gemv

BLOCKSCALE_DEVICE void fp8_gemv_kernel(const Fp8GemvParams& p) {
  using fp8_gemv::Bytes16;
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  const uint32_t warp = device::warp_index();
  const uint32_t rows = (kGemvWarps >> p.division_shift) * kGemvWarpRows;  // of the block
  const uint32_t first_row = ptx::ctaid_x() * rows;
  const uint32_t k_blocks = (p.k + kFp8BlockK - 1) / kFp8BlockK;
  const uint32_t group = warp >> p.division_shift;
  const uint32_t part = warp - (group << p.division_shift);
  const uint32_t begin = part * p.part_blocks, end = begin + p.part_blocks;
  fp8_gemv::Stream stream(p, first_row + group * kGemvWarpRows, begin,
                          end < k_blocks ? end : k_blocks);
  const fp8_gemv::Memory memory = fp8_gemv::memory_of(k_blocks);
  fp8_gemv::bring_a(p, memory, k_blocks, first_row);

  const ptx::SharedAddress shared = device::shared_base();
  const uint32_t lane = ptx::laneid();
  float sums[4] = {};
  stream.for_each([&](uint32_t k, const Bytes16(&b)[2]) {
    const Bytes16 a = ptx::ld_shared<Bytes16>(shared + (k * kFp8BlockK + lane % 8 * 16));
    const float scale = ptx::ld_shared<float>(shared + (memory.scales + k * 4));
    ptx::MmaAccumulator products = {};
    BLOCKSCALE_UNROLL
    for (int i = 0; i < 4; i += 2) {
      ptx::mma_sync_m16n8<ptx::MmaElement::e4m3>(
          products, {{b[0].at[i], b[1].at[i], b[0].at[i + 1], b[1].at[i + 1]}},
          {{a.at[i], a.at[i + 1]}});
    }
    BLOCKSCALE_UNROLL
    for (int i = 0; i < 4; ++i) sums[i] = ptx::fma_rn(products.value[i], scale, sums[i]);
  });

  // Row r's halves are elements 2 r and 2 r + 1 of the diagonals, which lanes 9 r and 9 r + 4 have.
  BLOCKSCALE_UNROLL
  for (uint32_t i = 0; i < 2; ++i) {
    const float half = lane / 4 % 2 == 0 ? sums[2 * i] : sums[2 * i + 1];
    const float sum = ptx::add_rn(half, ptx::shfl_sync_bfly(ptx::kFullMask, half, 4));
    const uint32_t row = lane / 8 + 4 * i;
    if (lane % 9 == 0) {
      ptx::st_shared(shared + (memory.sums + (warp * kGemvWarpRows + row) * 4), sum);
    }
  }
  ptx::barrier_sync_all();
  for (uint32_t i = ptx::tid_x(); i < rows; i += 32 * kGemvWarps) {
    if (first_row + i >= p.epilogue.columns) continue;
    const uint32_t first_warp = i / kGemvWarpRows << p.division_shift;
    float sum = 0;
    for (uint32_t w = 0; w < 1u << p.division_shift; ++w) {
      const uint32_t at = ((first_warp + w) * kGemvWarpRows + i % kGemvWarpRows) * 4;
      sum = ptx::add_rn(sum, ptx::ld_shared<float>(shared + (memory.sums + at)));
    }
    const uint32_t batch = ptx::ctaid_y();
    const epilogue::RowPlace at = {batch, batch, 0};
    epilogue::store_one(p.epilogue, at, first_row + i,
                        fp8_gemv::combined(p.epilogue, at, first_row + i, sum));
  }
}

}  // namespace blockscale
