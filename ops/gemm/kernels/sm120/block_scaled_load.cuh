// What blocks of block_scaled.cuh have to do, what they share, and how a warp brings it.
#pragma once

#include "device/kernel.h"
#include "device/pipeline/stages.h"
#include "device/ptx/barrier.h"
#include "device/ptx/bulk_copy.h"
#include "device/ptx/cp_async.h"
#include "device/ptx/fence.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/tensor_copy.h"
#include "device/ptx/warp.h"
#include "device/scheduler/block_tiles.h"
#include "ops/gemm/kernels/sm120/block_scaled_params.h"

namespace blockscale::block_scaled {

/// Where a row's word lies in an atom of scales.
BLOCKSCALE_HD constexpr uint32_t word_offset(uint32_t row) {
  return row % 32 * 16 + row / 32 % 4 * 4;
}

/// What a block has to do: some of the tiles.
template <BlockScaledConfig kConfig>
struct Work {
  const BlockScaledParams& p;
  uint32_t first, step;  // tiles
  BlockTiles<DenseOrGroupedOrder, static_cast<uint32_t>(kConfig.rows)> tiles;

  /// `shared` is the order's.
  BLOCKSCALE_DEVICE Work(const BlockScaledParams& params, ptx::SharedAddress shared)
      : p(params), first(ptx::ctaid_x()), step(ptx::nctaid_x()), tiles(params.order, shared) {}

  BLOCKSCALE_DEVICE RowSpan span(const Tile& tile) const {
    return {tile.end_row, p.order.groups_are_matrices(), p.order.matrix_of(tile), tile.group};
  }
};

template <BlockScaledConfig kConfig>
struct Shared {
  BlockScaledMemory memory;
  ptx::SharedAddress base;
  device::StageRing ring;

  BLOCKSCALE_DEVICE explicit Shared(uint32_t stages)
      : memory(memory_of(kConfig, stages)), base(device::shared_base()), ring{base, stages} {}

  BLOCKSCALE_DEVICE ptx::SharedAddress a(uint32_t stage) const {
    return base + (BlockScaledMemory::kStages + stage * memory.stage_bytes);
  }
  BLOCKSCALE_DEVICE ptx::SharedAddress b(uint32_t stage) const {
    return a(stage) + memory.b_offset;
  }
  BLOCKSCALE_DEVICE ptx::SharedAddress a_scales(uint32_t stage) const {
    return a(stage) + memory.a_scales;
  }
  BLOCKSCALE_DEVICE ptx::SharedAddress b_scales(uint32_t stage) const {
    return a(stage) + memory.b_scales;
  }
  BLOCKSCALE_DEVICE ptx::SharedAddress results(uint32_t warp) const {
    return base + (memory.results + warp * 16 * store_bytes_of(kConfig));
  }
  BLOCKSCALE_DEVICE ptx::SharedAddress of_order() const { return base + memory.total; }
};

/// How the scales of an operand's rows of a tile are brought, stage by stage: by one copy, or by
/// words, of which each lane copies those of some rows. Words have 0 for what is outside of K,
/// where elements are 0, too: a NaN would show. Rows that there are not may have any scale.
template <BlockScaledConfig kConfig, uint32_t kRows>
class ScaleCopies {
 public:
  static constexpr uint32_t kBytes = stage_atoms(kConfig) * kAtomBytes;  // of one copy

  /// Of kRows rows from `first` on, those before `end`.
  BLOCKSCALE_DEVICE ScaleCopies(const BlockScaledScales& scales, uint32_t matrix, uint32_t first,
                                uint32_t end)
      : scales_(scales), data_(scales.at.data + matrix * scales.at.batch_stride * kScaleBytes) {
    atoms_ = data_ + scales.at.row_offset(first / kAtomRows * kAtomRows) * kScaleBytes;
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kOfLane; ++i) {
      const uint32_t in_tile = 32 * i + ptx::laneid(), row = first + in_tile;
      exists_[i] = in_tile < kRows && row < end;
      places_[i] = word_offset(has_f32_scales(kConfig) ? in_tile : row);
      rows_[i] = exists_[i] ? scales.at.row_offset(row) * kScaleBytes : 0;
    }
  }

  /// Whether they are copied together, in a stage that is whole or not.
  BLOCKSCALE_DEVICE bool together(bool is_whole) const { return scales_.atoms && is_whole; }

  BLOCKSCALE_DEVICE void copy_atoms(ptx::SharedAddress to, uint32_t k,
                                    ptx::SharedAddress full) const {
    ptx::cp_async_bulk_shared_global(to, atoms_ + int64_t{k} * kBytes, kBytes, full);
  }

  /// `blocks`: of a row's k, that there are.
  BLOCKSCALE_DEVICE void copy_words(ptx::SharedAddress to, uint32_t k, uint32_t blocks) const {
    constexpr uint32_t kAtoms = stage_atoms(kConfig), kWordBlocks = 4 / kScaleBytes;
    BLOCKSCALE_UNROLL
    for (uint32_t atom = 0; atom < kAtoms; ++atom) {
      const uint32_t block = (k * kAtoms + atom) * kWordBlocks;
      const uint32_t left = block < blocks ? (blocks - block) * kScaleBytes : 0;
      const uint8_t* const from = data_ + scales_.at.k_offset(block) * kScaleBytes;
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kOfLane; ++i) {
        ptx::cp_async_ca<4>(to + (atom * kAtomBytes + places_[i]), from + rows_[i],
                            !exists_[i] ? 0
                            : left < 4  ? left
                                        : 4);
      }
    }
  }

 private:
  static constexpr uint32_t kScaleBytes = has_f32_scales(kConfig) ? 4 : 1;
  static constexpr uint32_t kOfLane = (kRows + 31) / 32;  // rows

  const BlockScaledScales& scales_;
  const uint8_t* data_;   // of the matrix
  const uint8_t* atoms_;  // of the tile's rows, where they lie so
  int64_t rows_[kOfLane];
  uint32_t places_[kOfLane];
  bool exists_[kOfLane];
};

/// By the warp that loads: one lane begins the copies of a stage, and all copy words of scales.
template <BlockScaledConfig kConfig>
class Loader {
 public:
  BLOCKSCALE_DEVICE Loader(const Work<kConfig>& work, const Shared<kConfig>& shared)
      : p_(work.p), work_(work), shared_(shared) {}

  BLOCKSCALE_DEVICE void run() {
    BLOCKSCALE_NO_UNROLL
    for (uint32_t index = work_.first; index < work_.tiles.count(); index += work_.step) {
      const Tile tile = work_.tiles.tile(index);
      const ScaleCopies<kConfig, kRows> a_scales(p_.a_scales, p_.order.matrix_of(tile),
                                                 tile.first_row, tile.end_row);
      const ScaleCopies<kConfig, kRowsOfB> b_scales(p_.b_scales, tile.group, tile.n * kColumns,
                                                    p_.epilogue.columns);
      BLOCKSCALE_NO_UNROLL
      for (uint32_t k = 0; k < p_.k_stages; ++k) {
        shared_.ring.wait_empty(place_);
        if (ptx::elect_sync()) copy(tile, k, a_scales, b_scales);
        if (p_.copies_words) copy_words(k, a_scales, b_scales);
        place_.advance(shared_.ring.stages);
      }
    }
  }

 private:
  static constexpr uint32_t kRows = static_cast<uint32_t>(kConfig.rows);
  static constexpr uint32_t kRowsOfB = has_f32_scales(kConfig) ? 1 : kColumns;  // that have scales

  template <class A, class B>
  BLOCKSCALE_DEVICE void copy(const Tile& tile, uint32_t k, const A& a_scales,
                              const B& b_scales) const {
    const bool is_whole = k < p_.whole_stages;
    const bool a_together = a_scales.together(is_whole), b_together = b_scales.together(is_whole);
    const uint32_t stage = place_.stage;
    const ptx::SharedAddress full = shared_.ring.full(stage);
    // Copies overwrite what lanes wrote, where a stage before had words.
    if (p_.copies_words) ptx::fence_proxy_async_shared();
    ptx::mbarrier_arrive_expect_tx(full,
                                   box_bytes<kConfig.a>(kRows) + box_bytes<kConfig.b>(kColumns) +
                                       (a_together ? A::kBytes : 0) + (b_together ? B::kBytes : 0));
    const auto bring = [&](ptx::SharedAddress to, BlockScaledMap map, uint32_t row,
                           uint32_t matrix) {
      const uint32_t at = k * stage_row_bytes(kConfig);  // of bytes, or of elements with gaps
      ptx::cp_async_bulk_tensor_shared_global<3>(
          to, p_.map(map),
          {{static_cast<int32_t>(at), static_cast<int32_t>(row), static_cast<int32_t>(matrix)}},
          full);
    };
    bring(shared_.a(stage), BlockScaledMap::a, tile.first_row,
          p_.a_batched ? p_.order.matrix_of(tile) : 0);
    bring(shared_.b(stage), BlockScaledMap::b, tile.n * kColumns, p_.b_batched ? tile.group : 0);
    if (a_together) a_scales.copy_atoms(shared_.a_scales(stage), k, full);
    if (b_together) b_scales.copy_atoms(shared_.b_scales(stage), k, full);
  }

  template <class A, class B>
  BLOCKSCALE_DEVICE void copy_words(uint32_t k, const A& a_scales, const B& b_scales) const {
    const bool is_whole = k < p_.whole_stages;
    const uint32_t stage = place_.stage;
    if (!a_scales.together(is_whole)) {
      a_scales.copy_words(shared_.a_scales(stage), k, p_.scale_blocks);
    }
    if (!b_scales.together(is_whole)) {
      b_scales.copy_words(shared_.b_scales(stage), k, p_.scale_blocks);
    }
    ptx::cp_async_mbarrier_arrive_noinc(shared_.ring.full(stage));
  }

  /// Bytes of a box of so many rows in memory, which are those that a copy completes.
  template <Recipe kRecipe>
  BLOCKSCALE_HD static constexpr uint32_t box_bytes(uint32_t rows) {
    constexpr FormatTraits kTraits = format_traits(recipe_traits(kRecipe).element);
    return rows * kStageK * static_cast<uint32_t>(kTraits.bits) / 8;
  }

  const BlockScaledParams& p_;
  const Work<kConfig>& work_;
  const Shared<kConfig>& shared_;
  device::StagePlace place_;
};

}  // namespace blockscale::block_scaled
