// D = epilogue(A B^T) of FP8 operands for up to 8 rows of A: B is read once, from memory straight
// to registers.
//
// A warp multiplies 8 rows of B: a lane reads 16 bytes of one of them at a time, 4 lanes 64 bytes
// of a row, and the same bytes of a row of A. As f16, which holds e4m3, both are fragments of
// mma.sync whose k is permuted alike. Warps of a block divide K; their sums are added in the order
// of k.
#pragma once

#include "device/epilogue/tile_store.cuh"
#include "device/kernel.h"
#include "device/ptx/barrier.h"
#include "device/ptx/convert.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/mma.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/warp.h"
#include "device/vector.h"
#include "ops/gemm/kernels/params.h"

namespace blockscale {

namespace fp8_rows {

using Bytes16 = device::Vector<uint32_t, 4>;

inline constexpr uint32_t kAhead = 4;  // k-blocks whose loads are begun together

/// What a lane needs of one k-block.
template <class ACode, class BCode>
struct KBlock {
  Bytes16 a[2], b[2];  // of row lane / 4: 16 bytes of each half
  ACode a_scale;       // of that row of A
  BCode b_scale[2];    // of rows 2 (lane % 4) and one more of B
};

/// Sums of A's row lane / 4 with two rows of B, over the warp's part of K.
template <class ACode, class BCode>
class Warp {
 public:
  BLOCKSCALE_DEVICE Warp(const Fp8RowsParams& p, uint32_t batch, uint32_t first_column)
      : p_(p), lane_(ptx::laneid()) {
    const uint32_t row = lane_ / 4, quad = lane_ % 4;
    has_a_ = row < p.epilogue.rows;
    const uint32_t a_row = has_a_ ? row : 0;
    a_ = p.a + batch * p.a_batch_stride + a_row * p.a_row_stride + quad * 16;
    b_ = p.b + batch * p.b_batch_stride + inside(first_column + row) * p.b_row_stride + quad * 16;
    a_scale_ = reinterpret_cast<const ACode*>(p.a_scales.data) + batch * p.a_scales.batch_stride +
               p.a_scales.row_offset(a_row);
    const BCode* const b_scales =
        reinterpret_cast<const BCode*>(p.b_scales.data) + batch * p.b_scales.batch_stride;
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < 2; ++i) {
      b_scale_[i] = b_scales + p.b_scales.row_offset(inside(first_column + 2 * quad + i));
    }
  }

  BLOCKSCALE_DEVICE void multiply(uint32_t begin, uint32_t end, float (&sums)[2]) const {
    BLOCKSCALE_NO_UNROLL
    for (uint32_t k = begin; k < end; k += kAhead) {
      KBlock<ACode, BCode> blocks[kAhead];
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kAhead; ++i) load(k + i < end ? k + i : end - 1, blocks[i]);
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kAhead; ++i) {
        if (k + i < end) add(blocks[i], sums);
      }
    }
  }

 private:
  /// A row of B: what lies outside is not stored.
  BLOCKSCALE_DEVICE uint32_t inside(uint32_t row) const {
    return row < p_.epilogue.columns ? row : p_.epilogue.columns - 1;
  }

  BLOCKSCALE_DEVICE void load(uint32_t k_block, KBlock<ACode, BCode>& to) const {
    BLOCKSCALE_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t byte = k_block * 128 + half * 64;
      const bool has_k = byte + lane_ % 4 * 16 < p_.k;
      to.a[half] = to.b[half] = {{0, 0, 0, 0}};
      if (has_k) {
        to.b[half] = ptx::ld_global_nc<Bytes16, ptx::Cache::no_allocate>(
            reinterpret_cast<const Bytes16*>(b_ + byte));
      }
      if (has_k && has_a_) to.a[half] = ptx::ld_global(reinterpret_cast<const Bytes16*>(a_ + byte));
    }
    to.a_scale = ptx::ld_global(a_scale_ + p_.a_scales.k_offset(k_block));
    BLOCKSCALE_UNROLL
    for (int i = 0; i < 2; ++i) {
      to.b_scale[i] = ptx::ld_global(b_scale_[i] + p_.b_scales.k_offset(k_block));
    }
  }

  BLOCKSCALE_DEVICE static void add(const KBlock<ACode, BCode>& x, float (&sums)[2]) {
    ptx::MmaAccumulator d = {{0, 0, 0, 0}};
    BLOCKSCALE_UNROLL
    for (int i = 0; i < 8; ++i) {
      const uint32_t a = x.a[i / 4].at[i % 4], b = x.b[i / 4].at[i % 4];
      ptx::mma_sync_m16n8<ptx::MmaElement::f16>(d, {{halves(a), 0, halves(a >> 16), 0}},
                                                {{halves(b), halves(b >> 16)}});
    }
    const float a_scale = scale_value(x.a_scale);
    BLOCKSCALE_UNROLL
    for (int i = 0; i < 2; ++i) {
      sums[i] = ptx::fma_rn(d.value[i], ptx::mul_rn(a_scale, scale_value(x.b_scale[i])), sums[i]);
    }
  }

  /// The two e4m3 of the low 16 bits as f16.
  BLOCKSCALE_DEVICE static uint32_t halves(uint32_t codes) {
    return ptx::cvt_rn_f16x2_e4m3x2(static_cast<uint16_t>(codes));
  }

  const Fp8RowsParams& p_;
  uint32_t lane_;
  bool has_a_;
  const uint8_t* a_;
  const uint8_t* b_;
  const ACode* a_scale_;
  const BCode* b_scale_[2];
};

}  // namespace fp8_rows

BLOCKSCALE_DEVICE void fp8_rows_kernel(const Fp8RowsParams& p) {
  using device::Vector;
  const uint32_t warp = device::warp_index(), lane = ptx::laneid(), batch = ptx::ctaid_y();
  const uint32_t groups = kFp8RowsWarps / p.parts;  // of 8 rows of B, in a block
  const uint32_t group = warp / p.parts, part = warp - group * p.parts;
  const uint32_t block_column = ptx::ctaid_x() * groups * 8;
  const uint32_t begin = part * p.part_blocks, most = begin + p.part_blocks;
  const uint32_t end = most < p.k_blocks ? most : p.k_blocks;
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  float sums[2] = {0, 0};
  if (begin < end) {
    const uint32_t column = block_column + group * 8;
    visit_scale_codes(p.a_scales, p.b_scales, [&](auto a_code, auto b_code) {
      using Warp = fp8_rows::Warp<decltype(a_code), decltype(b_code)>;
      Warp(p, batch, column).multiply(begin, end, sums);
    });
  }
  const ptx::SharedAddress shared = device::shared_base();
  ptx::st_shared(shared + (warp * 64 + lane * 2) * 4, Vector<float, 2>{{sums[0], sums[1]}});
  ptx::barrier_sync_all();
  // Result i of a block: row i / 8 % 8 of A, row i % 8 of the group i / 64 of B.
  BLOCKSCALE_NO_UNROLL
  for (uint32_t i = ptx::tid_x(); i < groups * 64; i += kFp8RowsThreads) {
    const uint32_t first = i / 64 * p.parts;  // warp
    float sum = 0;
    BLOCKSCALE_NO_UNROLL
    for (uint32_t w = first; w < first + p.parts; ++w) {
      sum = ptx::add_rn(sum, ptx::ld_shared<float>(shared + (w * 64 + i % 64) * 4));
    }
    epilogue::store_result(p.epilogue, batch, i / 8 % 8, block_column + i / 64 * 8 + i % 8, sum);
  }
}

}  // namespace blockscale
