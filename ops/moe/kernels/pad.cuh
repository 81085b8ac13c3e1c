// Sorted entries with each expert's rows padded to whole tiles, from what moe_sort_kernel makes
// without padding. Each block counts all experts' tiles for itself; then threads take rows, and
// find whose they are.
#pragma once

#include "core/divisor.h"
#include "device/kernel.h"
#include "device/ptx/barrier.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "ops/moe/kernels/sort.cuh"

namespace blockscale {

inline constexpr int kPadThreads = 256;

/// Results that are null are not made.
struct PadParams {
  const int32_t* sorted_offsets = nullptr;  // [experts + 1], without padding
  const int32_t* sorted_entries = nullptr;
  uint32_t experts = 0;
  Divisor tile;
  Divisor top_k;
  uint32_t rows = 0;  // that results have
  int32_t* offsets = nullptr;
  int32_t* row_of_entry = nullptr;  // but for dropped entries, which have theirs
  int32_t* entry_of_row = nullptr;
  int32_t* token_of_row = nullptr;
  int32_t* expert_of_tile = nullptr;
  int32_t* row_limit_of_tile = nullptr;
  int32_t* padded_rows = nullptr;
  int32_t* tiles = nullptr;

  /// Of shared memory: an expert's first row without padding and its first tile; and those behind
  /// the last.
  BLOCKSCALE_HD constexpr uint32_t shared_bytes() const { return (experts + 1) * 8; }
};

namespace padding {

class Experts {
 public:
  BLOCKSCALE_DEVICE Experts(const PadParams& params, ptx::SharedAddress shared)
      : p_(params), shared_(shared) {}

  /// By all threads, before anything is asked for.
  BLOCKSCALE_DEVICE void begin() const {
    BLOCKSCALE_NO_UNROLL
    for (uint32_t e = ptx::tid_x(); e <= p_.experts; e += kPadThreads) {
      ptx::st_shared(sorted_row_at(e),
                     static_cast<uint32_t>(ptx::ld_global(p_.sorted_offsets + e)));
    }
    ptx::barrier_sync_all();
    if (device::warp_index() == 0) count_tiles();
    ptx::barrier_sync_all();
  }

  BLOCKSCALE_DEVICE uint32_t first_tile(uint32_t expert) const {
    return ptx::ld_shared<uint32_t>(tile_at(expert));
  }
  BLOCKSCALE_DEVICE uint32_t sorted_row(uint32_t expert) const {
    return ptx::ld_shared<uint32_t>(sorted_row_at(expert));
  }
  BLOCKSCALE_DEVICE uint32_t entries(uint32_t expert) const {
    return sorted_row(expert + 1) - sorted_row(expert);
  }
  /// Of all experts.
  BLOCKSCALE_DEVICE uint32_t tiles() const { return first_tile(p_.experts); }

  /// Whose tile this is, tile < tiles(): the last expert that begins there or before.
  BLOCKSCALE_DEVICE uint32_t of_tile(uint32_t tile) const {
    uint32_t begun = 0, behind = p_.experts;  // has begun; has not
    while (behind - begun > 1) {
      const uint32_t middle = (begun + behind) / 2;
      if (first_tile(middle) <= tile) {
        begun = middle;
      } else {
        behind = middle;
      }
    }
    return begun;
  }

 private:
  BLOCKSCALE_DEVICE ptx::SharedAddress sorted_row_at(uint32_t expert) const {
    return shared_ + expert * 4;
  }
  BLOCKSCALE_DEVICE ptx::SharedAddress tile_at(uint32_t expert) const {
    return shared_ + (p_.experts + 1 + expert) * 4;
  }

  /// By one warp, 32 experts at a time.
  BLOCKSCALE_DEVICE void count_tiles() const {
    const uint32_t lane = ptx::laneid();
    uint32_t before = 0;
    BLOCKSCALE_NO_UNROLL
    for (uint32_t first = 0; first <= p_.experts; first += 32) {
      const uint32_t expert = first + lane;
      uint32_t own = 0;
      if (expert < p_.experts) {
        own = p_.tile.quotient(entries(expert) + p_.tile.divisor - 1);
      }
      const uint32_t behind = sorting::inclusive_sum(own);
      if (expert <= p_.experts) ptx::st_shared(tile_at(expert), before + behind - own);
      before += ptx::shfl_sync_idx(ptx::kFullMask, behind, 31);
    }
  }

  const PadParams& p_;
  ptx::SharedAddress shared_;
};

BLOCKSCALE_DEVICE void set_row(const PadParams& p, const Experts& experts, uint32_t row) {
  int32_t entry = -1;
  const uint32_t tile = p.tile.quotient(row);
  if (tile < experts.tiles()) {
    const uint32_t expert = experts.of_tile(tile);
    const uint32_t place = row - experts.first_tile(expert) * p.tile.divisor;
    if (place < experts.entries(expert)) {
      entry = ptx::ld_global(p.sorted_entries + experts.sorted_row(expert) + place);
      if (p.row_of_entry != nullptr) {
        ptx::st_global(p.row_of_entry + entry, static_cast<int32_t>(row));
      }
    }
  }
  if (p.entry_of_row != nullptr) ptx::st_global(p.entry_of_row + row, entry);
  if (p.token_of_row != nullptr) {
    int32_t token = -1;
    if (entry >= 0) token = static_cast<int32_t>(p.top_k.quotient(static_cast<uint32_t>(entry)));
    ptx::st_global(p.token_of_row + row, token);
  }
}

BLOCKSCALE_DEVICE void set_tile(const PadParams& p, const Experts& experts, uint32_t tile) {
  int32_t expert = -1;
  uint32_t limit = 0;
  if (tile < experts.tiles()) {
    const uint32_t owner = experts.of_tile(tile);
    const uint32_t behind_tile = (tile + 1) * p.tile.divisor;
    const uint32_t behind_entries =
        experts.first_tile(owner) * p.tile.divisor + experts.entries(owner);
    expert = static_cast<int32_t>(owner);
    limit = behind_tile < behind_entries ? behind_tile : behind_entries;
  }
  if (p.expert_of_tile != nullptr) ptx::st_global(p.expert_of_tile + tile, expert);
  if (p.row_limit_of_tile != nullptr) {
    ptx::st_global(p.row_limit_of_tile + tile, static_cast<int32_t>(limit));
  }
}

/// By the first block.
BLOCKSCALE_DEVICE void set_totals(const PadParams& p, const Experts& experts) {
  const auto rows_before = [&](uint32_t expert) {
    return static_cast<int32_t>(experts.first_tile(expert) * p.tile.divisor);
  };
  if (p.offsets != nullptr) {
    BLOCKSCALE_NO_UNROLL
    for (uint32_t e = ptx::tid_x(); e <= p.experts; e += kPadThreads) {
      ptx::st_global(p.offsets + e, rows_before(e));
    }
  }
  if (ptx::tid_x() != 0) return;
  if (p.padded_rows != nullptr) ptx::st_global(p.padded_rows, rows_before(p.experts));
  if (p.tiles != nullptr) ptx::st_global(p.tiles, static_cast<int32_t>(experts.tiles()));
}

}  // namespace padding

BLOCKSCALE_DEVICE void moe_pad_kernel(const PadParams& p) {
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  const padding::Experts experts(p, device::shared_base());
  experts.begin();
  const uint32_t first = ptx::ctaid_x() * kPadThreads + ptx::tid_x();
  const uint32_t stride = ptx::nctaid_x() * kPadThreads;
  BLOCKSCALE_NO_UNROLL
  for (uint32_t row = first; row < p.rows; row += stride) padding::set_row(p, experts, row);
  const uint32_t tiles = p.tile.quotient(p.rows);
  BLOCKSCALE_NO_UNROLL
  for (uint32_t tile = first; tile < tiles; tile += stride) padding::set_tile(p, experts, tile);
  if (ptx::ctaid_x() == 0) padding::set_totals(p, experts);
}

}  // namespace blockscale
