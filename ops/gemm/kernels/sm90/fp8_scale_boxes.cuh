// Scales that tensor copies bring: f32, one for each row of A and for 128 rows of B, of
// kScaleBoxBlocks k-blocks at a time. Loads from global memory hold up the tensor cores' reads of
// shared memory, 4 to 10 cycles each (docs/log/gemm-sm90.md); copies do not.
//
// The warp that copies operands brings boxes two ahead of the stages. The scale warps multiply
// them, and store each k-block's products in its stage.
#pragma once

#include "device/ptx/warp.h"
#include "ops/gemm/kernels/sm90/fp8_shared.cuh"

namespace blockscale::fp8_gemm {

/// The block of B that a tile's first column lies in.
template <Fp8GemmConfig kConfig>
BLOCKSCALE_DEVICE uint32_t first_block(const Tile& tile) {
  return tile.n * static_cast<uint32_t>(kConfig.columns) / kFp8BlockK;
}

/// By the warp that copies; nothing where scales are loaded.
template <Fp8GemmConfig kConfig, class Order>
class ScaleProducer {
 public:
  BLOCKSCALE_DEVICE ScaleProducer(const Work<kConfig, Order>& work, const Shared<kConfig>& shared)
      : work_(work), shared_(shared), tile_(work.first_tile), k_(work.k_begin) {
    if (work.k_begin == work.k_end) return;
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i + 1 < kScaleBoxes; ++i) bring();
  }

  /// Said of each of a tile's k-blocks in turn, behind its operands' copies.
  BLOCKSCALE_DEVICE void follow(uint32_t k_block) {
    if ((k_block - work_.k_begin) % kScaleBoxBlocks == 0) bring();
  }

 private:
  /// The next box, if there is one.
  BLOCKSCALE_DEVICE void bring() {
    if (!kConfig.copies_scales || !work_.has(turn_)) return;
    const Fp8GemmParamsOf<Order>& p = work_.p;
    shared_.scale_boxes.wait_empty(place_);
    if (ptx::elect_sync()) {
      const ptx::SharedAddress full = shared_.scale_boxes.full(place_.stage);
      const ptx::SharedAddress to = shared_.scale_box(place_.stage);
      const bool a_rows_inner = p.a_scales.layout == ScaleLayout::mn_major;
      const int32_t a_row = static_cast<int32_t>(
          a_rows_inner ? tile_.first_row / kBoxStepA * kBoxStepA : tile_.first_row);
      const uint32_t block = first_block<kConfig>(tile_);
      const bool b_rows_inner = p.b_scales.layout == ScaleLayout::mn_major;
      const int32_t b_row =
          static_cast<int32_t>(b_rows_inner ? block / kBoxStepB * kBoxStepB : block);
      const int32_t a_matrix = p.a_batched ? static_cast<int32_t>(work_.matrix(tile_)) : 0;
      const int32_t b_matrix = p.b_batched ? static_cast<int32_t>(tile_.group) : 0;
      ptx::mbarrier_arrive_expect_tx(
          full, p.a_scale_box_rows * kScaleBoxBlocks * 4 + p.b_scale_box_bytes);
      ptx::cp_async_bulk_tensor_shared_global<3>(to, p.map(Fp8GemmMap::a_scales),
                                                 at(p.a_scales, a_row, a_matrix), full);
      ptx::cp_async_bulk_tensor_shared_global<3>(to + a_scale_box_bytes(kConfig),
                                                 p.map(Fp8GemmMap::b_scales),
                                                 at(p.b_scales, b_row, b_matrix), full);
    }
    place_.advance(kScaleBoxes);
    k_ += kScaleBoxBlocks;
    if (k_ < work_.k_end) return;
    k_ = work_.k_begin;
    if (work_.has(++turn_)) tile_ = work_.tile(turn_);
  }

  BLOCKSCALE_DEVICE ptx::TensorCoordinates<3> at(const GemmScales& scales, int32_t row,
                                                 int32_t batch) const {
    const int32_t k = static_cast<int32_t>(k_);
    if (scales.layout == ScaleLayout::mn_major) return {{row, k, batch}};
    return {{k, row, batch}};
  }

  const Work<kConfig, Order>& work_;
  const Shared<kConfig>& shared_;
  Tile tile_;
  uint32_t turn_ = 0, k_;  // of the next box
  device::StagePlace place_;
};

/// By the scale warps: a thread has the same rows of every k-block.
template <Fp8GemmConfig kConfig, class Order>
class ScaleConsumer {
 public:
  /// `thread` counts from the first scale warp's.
  BLOCKSCALE_DEVICE ScaleConsumer(const Work<kConfig, Order>& work, const Shared<kConfig>& shared,
                                  uint32_t thread)
      : work_(work), shared_(shared), thread_(thread), k_(work.k_begin) {
    a_rows_inner_ = work.p.a_scales.layout == ScaleLayout::mn_major;
    a_row_bytes_ = a_rows_inner_ ? 4 : kScaleBoxBlocks * 4;
    a_k_bytes_ = a_rows_inner_ ? work.p.a_scale_box_rows * 4 : 4;
    b_rows_inner_ = work.p.b_scales.layout == ScaleLayout::mn_major;
    begin_tile(work.first_tile);
    BLOCKSCALE_UNROLL
    for (uint32_t j = 0; j < kMine; ++j) slot_[j] = shared.row_scale(0, row(j));
  }

  BLOCKSCALE_DEVICE void run() {
    if (work_.k_begin == work_.k_end) return;
    Products products;
    BLOCKSCALE_NO_UNROLL
    while (const uint32_t count = load(products)) {
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kScaleBoxBlocks; ++i) {
        if (i < count) store(products, i);
      }
    }
  }

 private:
  static constexpr uint32_t kThreads = scale_warps_of(kConfig) * 32;
  static constexpr uint32_t kRows = static_cast<uint32_t>(kConfig.rows);
  static constexpr uint32_t kMine = kRows / kThreads;
  static constexpr uint32_t kBlocks = static_cast<uint32_t>(row_scales_of(kConfig));  // of B
  static_assert(kRows % kThreads == 0);

  struct Products {
    float at[kScaleBoxBlocks][kMine][kBlocks];
  };

  BLOCKSCALE_DEVICE uint32_t row(uint32_t j) const { return thread_ + j * kThreads; }

  /// Where a tile's scales lie in a box.
  BLOCKSCALE_DEVICE void begin_tile(const Tile& tile) {
    a_offset_ = a_rows_inner_ ? tile.first_row % kBoxStepA * 4 : 0;
    const uint32_t block = first_block<kConfig>(tile);
    b_offset_ = a_scale_box_bytes(kConfig) + (b_rows_inner_ ? block % kBoxStepB * 4 : 0);
  }

  /// The products of the next box's scales, and of how many k-blocks they are; 0 if none is left.
  BLOCKSCALE_DEVICE uint32_t load(Products& to) {
    if (!work_.has(turn_)) return 0;
    const uint32_t left = work_.k_end - k_, count = left < kScaleBoxBlocks ? left : kScaleBoxBlocks;
    shared_.scale_boxes.wait_full(from_);
    const ptx::SharedAddress box = shared_.scale_box(from_.stage);
    const ptx::SharedAddress a = box + a_offset_, b = box + b_offset_;
    const uint32_t b_k_bytes = b_rows_inner_ ? kBoxRowsB * 4 : 4;
    const uint32_t b_row_bytes = b_rows_inner_ ? 4 : kScaleBoxBlocks * 4;
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kScaleBoxBlocks; ++i) {
      float of_a[kMine];
      BLOCKSCALE_UNROLL
      for (uint32_t j = 0; j < kMine; ++j) {
        of_a[j] = ptx::ld_shared<float>(a + (row(j) * a_row_bytes_ + i * a_k_bytes_));
      }
      BLOCKSCALE_UNROLL
      for (uint32_t n = 0; n < kBlocks; ++n) {
        const float of_b = ptx::ld_shared<float>(b + (n * b_row_bytes + i * b_k_bytes));
        BLOCKSCALE_UNROLL
        for (uint32_t j = 0; j < kMine; ++j) to.at[i][j][n] = ptx::mul_rn(of_a[j], of_b);
      }
    }
    ptx::bar_warp_sync(ptx::kFullMask);
    if (thread_ % 32 == 0) ptx::mbarrier_arrive(shared_.scale_boxes.empty(from_.stage));
    from_.advance(kScaleBoxes);
    k_ += count;
    if (k_ == work_.k_end) {
      k_ = work_.k_begin;
      if (work_.has(++turn_)) begin_tile(work_.tile(turn_));
    }
    return count;
  }

  BLOCKSCALE_DEVICE void store(const Products& products, uint32_t i) {
    shared_.ring.wait_empty(to_);
    BLOCKSCALE_UNROLL
    for (uint32_t j = 0; j < kMine; ++j) {
      BLOCKSCALE_UNROLL
      for (uint32_t n = 0; n < kBlocks; ++n) {
        ptx::st_shared(slot_[j] + (to_.stage * shared_.memory.scale_bytes + n * 8),
                       products.at[i][j][n]);
      }
    }
    ptx::bar_warp_sync(ptx::kFullMask);
    if (thread_ % 32 == 0) ptx::mbarrier_arrive(shared_.ring.full(to_.stage));
    to_.advance(shared_.ring.stages);
  }

  const Work<kConfig, Order>& work_;
  const Shared<kConfig>& shared_;
  uint32_t thread_;
  uint32_t turn_ = 0, k_;  // of the next box
  bool a_rows_inner_, b_rows_inner_;
  uint32_t a_row_bytes_, a_k_bytes_;
  uint32_t a_offset_, b_offset_;
  ptx::SharedAddress slot_[kMine];  // of stage 0
  device::StagePlace from_, to_;
};

}  // namespace blockscale::fp8_gemm
