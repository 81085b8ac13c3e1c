// Entries sorted by expert, those of one expert in their order: a counting sort without atomics, in
// one launch. Block c places the entries of class c, which is an expert's number or, behind the
// last, that of what is dropped. Blocks exchange nothing: each one counts, through all entries,
// those of the classes before its own.
#pragma once

#include "core/divisor.h"
#include "device/kernel.h"
#include "device/ptx/barrier.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "ops/moe/routing.h"

namespace blockscale {

inline constexpr int kSortThreads = 512;
inline constexpr uint32_t kSortWarps = kSortThreads / 32;
inline constexpr uint32_t kSortEntries = 16;  // side by side, of a thread in a step
inline constexpr uint32_t kSortStep = kSortThreads * kSortEntries;
/// Of shared memory: counts of warps, twice.
inline constexpr uint32_t kSortSharedBytes = 2 * kSortWarps * 4;

/// Without padding. Results that are null are not made.
struct SortParams {
  const int32_t* ids = nullptr;
  uint32_t entries = 0;  // at most 2^24
  Divisor top_k;
  uint32_t experts = 0;
  uint32_t first_expert = 0;
  const int32_t* expert_map = nullptr;  // of ids below mapped_ids; null: ids are as they are
  uint32_t mapped_ids = 0;
  int32_t* offsets = nullptr;       // [experts + 1]
  int32_t* row_of_entry = nullptr;  // [entries]
  int32_t* entry_of_row = nullptr;  // [entries], -1 behind the last row
  int32_t* token_of_row = nullptr;
  int32_t* rows = nullptr;         // [1]
  const float* weights = nullptr;  // [entries]
  float* weight_of_row = nullptr;  // [entries], of weights; as it was behind the last row
};

namespace sorting {

struct Classes {
  uint32_t of[kSortEntries];
};

/// The class of an entry.
BLOCKSCALE_DEVICE uint32_t class_of(const SortParams& p, int32_t id) {
  if (p.expert_map != nullptr) {
    const bool is_mapped = static_cast<uint32_t>(id) < p.mapped_ids;
    id = is_mapped ? ptx::ld_global(p.expert_map + id) : -1;
  }
  return routing::class_of(id, p.first_expert, p.experts);
}

struct alignas(16) Ids {
  int32_t at[4];
};

/// Of entries from `first` on, a multiple of 4; behind the last one 0.
BLOCKSCALE_DEVICE Ids load_ids(const SortParams& p, uint32_t first) {
  Ids ids = {};
  if (reinterpret_cast<uint64_t>(p.ids) % 16 == 0 && first + 4 <= p.entries) {
    return ptx::ld_global(reinterpret_cast<const Ids*>(p.ids + first));
  }
  BLOCKSCALE_UNROLL
  for (uint32_t i = 0; i < 4; ++i) {
    if (first + i < p.entries) ids.at[i] = ptx::ld_global(p.ids + first + i);
  }
  return ids;
}

/// Of a thread's entries from `first` on; behind the last entry a class that no block has.
BLOCKSCALE_DEVICE Classes load_classes(const SortParams& p, uint32_t first) {
  constexpr uint32_t kLoads = kSortEntries / 4;
  Ids ids[kLoads];
  BLOCKSCALE_UNROLL
  for (uint32_t i = 0; i < kLoads; ++i) ids[i] = load_ids(p, first + i * 4);
  Classes classes;
  BLOCKSCALE_UNROLL
  for (uint32_t i = 0; i < kSortEntries; ++i) {
    const bool exists = first + i < p.entries;
    classes.of[i] = exists ? class_of(p, ids[i / 4].at[i % 4]) : p.experts + 1;
  }
  return classes;
}

/// Sums of the warps' `own`, over those before this warp and over all. By all threads; one barrier,
/// if calls alternate between two halves of shared memory.
struct Sums {
  uint32_t before;
  uint32_t all;
};
BLOCKSCALE_DEVICE Sums sums_of_warps(uint32_t own, ptx::SharedAddress counts) {
  const uint32_t warp = device::warp_index(), lane = ptx::laneid();
  if (lane == 0) ptx::st_shared(counts + warp * 4, own);
  ptx::barrier_sync_all();
  const uint32_t count = lane < kSortWarps ? ptx::ld_shared<uint32_t>(counts + lane * 4) : 0;
  return {ptx::redux_sync_add(ptx::kFullMask, lane < warp ? count : 0),
          ptx::redux_sync_add(ptx::kFullMask, count)};
}

/// Of this lane and those before it.
BLOCKSCALE_DEVICE uint32_t inclusive_sum(uint32_t value) {
  BLOCKSCALE_UNROLL
  for (uint32_t delta = 1; delta < 32; delta *= 2) {
    const uint32_t below = ptx::shfl_sync_up(ptx::kFullMask, value, delta);
    if (ptx::laneid() >= delta) value += below;
  }
  return value;
}

/// Entries of classes before `own`.
BLOCKSCALE_DEVICE uint32_t count_before(const SortParams& p, uint32_t own,
                                        ptx::SharedAddress counts) {
  uint32_t count = 0;
  BLOCKSCALE_NO_UNROLL
  for (uint32_t first = ptx::tid_x() * kSortEntries; first < p.entries; first += kSortStep) {
    const Classes classes = load_classes(p, first);
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kSortEntries; ++i) count += classes.of[i] < own ? 1 : 0;
  }
  return sums_of_warps(ptx::redux_sync_add(ptx::kFullMask, count), counts).all;
}

BLOCKSCALE_DEVICE void place(const SortParams& p, uint32_t entry, uint32_t row) {
  const auto number = static_cast<int32_t>(entry);
  if (p.row_of_entry != nullptr) ptx::st_global(p.row_of_entry + entry, static_cast<int32_t>(row));
  if (p.entry_of_row != nullptr) ptx::st_global(p.entry_of_row + row, number);
  if (p.token_of_row != nullptr) {
    ptx::st_global(p.token_of_row + row, static_cast<int32_t>(p.top_k.quotient(entry)));
  }
  if (p.weight_of_row != nullptr) {
    ptx::st_global(p.weight_of_row + row, ptx::ld_global(p.weights + entry));
  }
}

/// The entries of an expert to rows from `row` on.
BLOCKSCALE_DEVICE void place_all(const SortParams& p, uint32_t own, uint32_t row,
                                 ptx::SharedAddress counts) {
  uint32_t half = kSortWarps * 4;  // count_before had the first
  Classes next = load_classes(p, ptx::tid_x() * kSortEntries);
  BLOCKSCALE_NO_UNROLL
  for (uint32_t step = 0; step < p.entries; step += kSortStep) {
    const uint32_t first = step + ptx::tid_x() * kSortEntries;
    const Classes classes = next;
    next = load_classes(p, first + kSortStep);  // which come while these are placed
    uint32_t count = 0;
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kSortEntries; ++i) count += classes.of[i] == own ? 1 : 0;
    const uint32_t behind = inclusive_sum(count);
    const Sums sums = sums_of_warps(ptx::shfl_sync_idx(ptx::kFullMask, behind, 31), counts + half);
    half = kSortWarps * 4 - half;
    uint32_t to = row + sums.before + behind - count;
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kSortEntries; ++i) {
      if (classes.of[i] == own) place(p, first + i, to++);
    }
    row += sums.all;
  }
}

/// This block's share of the entries that are dropped.
BLOCKSCALE_DEVICE void mark_dropped(const SortParams& p, uint32_t own) {
  if (p.row_of_entry == nullptr) return;
  const uint32_t step = ptx::nctaid_x() * kSortThreads;
  BLOCKSCALE_NO_UNROLL
  for (uint32_t entry = own * kSortThreads + ptx::tid_x(); entry < p.entries; entry += step) {
    const bool is_dropped = class_of(p, ptx::ld_global(p.ids + entry)) == p.experts;
    if (is_dropped) ptx::st_global(p.row_of_entry + entry, -1);
  }
}

/// Rows behind the last, of which there are `rows`.
BLOCKSCALE_DEVICE void mark_no_rows(const SortParams& p, uint32_t rows) {
  BLOCKSCALE_NO_UNROLL
  for (uint32_t row = rows + ptx::tid_x(); row < p.entries; row += kSortThreads) {
    if (p.entry_of_row != nullptr) ptx::st_global(p.entry_of_row + row, -1);
    if (p.token_of_row != nullptr) ptx::st_global(p.token_of_row + row, -1);
  }
}

}  // namespace sorting

BLOCKSCALE_DEVICE void moe_sort_kernel(const SortParams& p) {
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  const ptx::SharedAddress counts = device::shared_base();
  const uint32_t own = ptx::ctaid_x();
  const uint32_t row = sorting::count_before(p, own, counts);
  const bool is_last = own == p.experts;
  if (ptx::tid_x() == 0) {
    const auto number = static_cast<int32_t>(row);
    if (p.offsets != nullptr) ptx::st_global(p.offsets + own, number);
    if (is_last && p.rows != nullptr) ptx::st_global(p.rows, number);
  }
  sorting::mark_dropped(p, own);
  if (is_last) {
    sorting::mark_no_rows(p, row);
  } else if (p.row_of_entry != nullptr || p.entry_of_row != nullptr || p.token_of_row != nullptr) {
    sorting::place_all(p, own, row, counts);
  }
}

}  // namespace blockscale
