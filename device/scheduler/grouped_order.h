// Tiles of groups of rows whose sizes are known on the device alone. A block finds its tiles by
// itself: no kernel before it makes a table of them, and none lies in memory.
//
// Tile rows are counted through all groups, 32 groups at a time: a warp looks at them together,
// each lane at one. Where there are more, the block first counts the tile rows of each 32, in
// shared memory. Within a group tiles go down a band of rows and on to the next column, as
// DenseOrder's do.
#pragma once

#include "core/divisor.h"
#include "core/group_rows.h"
#include "device/kernel.h"
#include "device/ptx/barrier.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "device/scheduler/rows.h"
#include "device/scheduler/tile.h"

namespace blockscale {

/// Where the groups' rows are said, on the device: GroupedGemmArguments has the words.
struct RowGroups {
  const int32_t* offsets = nullptr;  // null: group g has the first rows of matrix g
  const int32_t* lengths = nullptr;
  uint32_t groups = 0;
  uint32_t rows = 0;  // that there are, of each matrix

  BLOCKSCALE_DEVICE GroupRows of(uint32_t group) const {
    if (offsets == nullptr) return group_rows(0, ptx::ld_global(lengths + group), rows);
    const int64_t first = ptx::ld_global(offsets + group);
    const int64_t behind = lengths == nullptr ? int64_t{ptx::ld_global(offsets + group + 1)}
                                              : first + ptx::ld_global(lengths + group);
    return group_rows(first, behind, rows);
  }
  /// Whether group g has rows of matrix g of A and D.
  BLOCKSCALE_HD constexpr bool are_matrices() const { return offsets == nullptr; }
};

/// The same; or, with `ids`, entries of a mixture of experts, each of which is a group: entry e has
/// row e alone, and matrix ids[e] - first_id of B; no row where B has no such matrix. So
/// nothing needs to be sorted, and what two entries share is read twice.
struct EntryGroups : RowGroups {
  const int32_t* ids = nullptr;
  uint32_t first_id = 0;
  uint32_t matrices = 0;  // of B

  BLOCKSCALE_DEVICE GroupRows of(uint32_t entry) const {
    if (ids == nullptr) return RowGroups::of(entry);
    return {entry, entry + (b_of(entry) < matrices ? 1u : 0u)};
  }
  BLOCKSCALE_HD constexpr bool are_matrices() const {
    return ids == nullptr && RowGroups::are_matrices();
  }
  /// Which matrix of B a group has.
  BLOCKSCALE_DEVICE uint32_t b_of(uint32_t entry) const {
    return ids == nullptr ? entry : static_cast<uint32_t>(ptx::ld_global(ids + entry)) - first_id;
  }
};

/// Tile `place` of a group of `rows` rows: pure, for tests of the order.
struct GroupedPlace {
  uint32_t n;    // tile column
  uint32_t row;  // tile row of the group
};
BLOCKSCALE_HD constexpr GroupedPlace grouped_place(uint32_t place, uint32_t tile_rows,
                                                   uint32_t tiles_n, uint32_t band_rows) {
  const uint32_t band_tiles = band_rows * tiles_n;
  const uint32_t band = tile_rows <= band_rows ? 0 : place / band_tiles;
  const uint32_t rest = place - band * band_tiles, first = band * band_rows;
  const uint32_t height = tile_rows - first < band_rows ? tile_rows - first : band_rows;
  const uint32_t n = rest / height;
  return {n, first + rest - n * height};
}

template <class Groups>
class GroupedOrderOf {
 public:
  static constexpr bool kGroupsAreMatrices = false;
  static constexpr bool kIsKnownAtLaunch = false;
  static constexpr bool kGathersRows = true;
  using RowMap = MappedRows;
  static constexpr uint32_t kChunk = 32;                // groups that a warp looks at together
  static constexpr uint32_t kMany = uint32_t{1} << 30;  // no tile, and no tile row, has this number

  Groups groups;
  uint32_t tiles_n = 0;
  Divisor columns;         // tiles_n
  uint32_t band_rows = 1;  // tile rows
  /// Tile rows are counted up to here, so that tiles are fewer than 2^30. There are no more unless
  /// groups share rows; the last groups then are left out.
  uint32_t most_tile_rows = 0;
  MappedRows map;

  GroupedOrderOf() = default;
  /// Of fewer than 2^30 tiles where groups share no rows.
  BLOCKSCALE_HD constexpr GroupedOrderOf(const Groups& of, uint32_t columns_of_tiles,
                                         uint32_t rows_of_band)
      : groups(of),
        tiles_n(columns_of_tiles),
        columns(columns_of_tiles),
        band_rows(rows_of_band),
        most_tile_rows(kMany / columns_of_tiles) {}

  BLOCKSCALE_HD constexpr uint32_t chunks() const { return (groups.groups + kChunk - 1) / kChunk; }
  /// Of shared memory: tile rows before each chunk, and of all.
  BLOCKSCALE_HD constexpr uint32_t shared_bytes() const {
    return chunks() == 1 ? 0 : (chunks() + 1) * 4;
  }
  BLOCKSCALE_HD constexpr const MappedRows& row_map() const { return map; }
  BLOCKSCALE_HD constexpr uint32_t matrix_of(const Tile& tile) const {
    return groups.are_matrices() ? tile.group : 0;
  }
  /// The number of B's matrix, bias and factor of alpha: the tile's group, unless that is an entry.
  BLOCKSCALE_DEVICE uint32_t b_of(const Tile& tile) const { return groups.b_of(tile.group); }

  /// By all threads of the block, before tiles are asked for. `shared`: shared_bytes().
  template <uint32_t kRows>
  BLOCKSCALE_DEVICE void begin(ptx::SharedAddress shared) const {
    if (chunks() == 1) return;
    const uint32_t warps = ptx::ntid_x() / 32, warp = device::warp_index();
    BLOCKSCALE_NO_UNROLL
    for (uint32_t chunk = warp; chunk < chunks(); chunk += warps) {
      const uint32_t count = inclusive_sum(lane_of<kRows>(chunk).tile_rows);
      if (ptx::laneid() == 31) ptx::st_shared(shared + chunk * 4, count);
    }
    ptx::barrier_sync_all();
    if (warp == 0) add_chunks_up(shared);
    ptx::barrier_sync_all();
  }

  /// How many tiles there are. By whole warps, as all that follows.
  template <uint32_t kRows>
  BLOCKSCALE_DEVICE uint32_t count(ptx::SharedAddress shared) const {
    uint32_t rows = 0;
    if (chunks() == 1) {
      rows = ptx::shfl_sync_idx(ptx::kFullMask, inclusive_sum(lane_of<kRows>(0).tile_rows), 31);
    } else {
      rows = ptx::ld_shared<uint32_t>(shared + chunks() * 4);
    }
    return least(rows, most_tile_rows) * tiles_n;
  }

  /// Of kRows rows; index < count().
  template <uint32_t kRows>
  BLOCKSCALE_DEVICE Tile tile(ptx::SharedAddress shared, uint32_t index) const {
    uint32_t row = columns.quotient(index);
    const uint32_t chunk = chunk_of(shared, row);
    if (chunks() > 1) row -= ptx::ld_shared<uint32_t>(shared + chunk * 4);
    const Lane lane = lane_of<kRows>(chunk);
    const uint32_t behind = inclusive_sum(lane.tile_rows);
    // Groups that end before this tile row come before its own.
    const uint32_t owner = ptx::redux_sync_add(ptx::kFullMask, behind <= row ? 1 : 0);
    const auto of_owner = [&](uint32_t value) {
      return ptx::shfl_sync_idx(ptx::kFullMask, value, owner);
    };
    const uint32_t before = ptx::shfl_sync_idx(ptx::kFullMask, behind, owner - 1);
    const uint32_t in_group = row - (owner == 0 ? 0 : before);
    const uint32_t place = in_group * tiles_n + columns.remainder(index);
    const GroupedPlace at = grouped_place(place, of_owner(lane.tile_rows), tiles_n, band_rows);
    return {chunk * kChunk + owner, at.n, of_owner(lane.begin) + at.row * kRows,
            of_owner(lane.end)};
  }

 private:
  /// A lane's group of a chunk: none behind the last.
  struct Lane {
    uint32_t begin, end, tile_rows;
  };
  template <uint32_t kRows>
  BLOCKSCALE_DEVICE Lane lane_of(uint32_t chunk) const {
    const uint32_t group = chunk * kChunk + ptx::laneid();
    if (group >= groups.groups) return {0, 0, 0};
    const GroupRows rows = groups.of(group);
    const uint32_t begin = static_cast<uint32_t>(rows.begin);
    const uint32_t end = static_cast<uint32_t>(rows.end);
    return {begin, end, (end - begin + kRows - 1) / kRows};
  }

  BLOCKSCALE_HD static constexpr uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

  /// Of this lane and those before it, or kMany. (Groups that share rows may have any number of
  /// them together.)
  BLOCKSCALE_DEVICE static uint32_t inclusive_sum(uint32_t value) {
    value = least(value, kMany);
    BLOCKSCALE_UNROLL
    for (uint32_t delta = 1; delta < 32; delta *= 2) {
      const uint32_t below = ptx::shfl_sync_up(ptx::kFullMask, value, delta);
      if (ptx::laneid() >= delta) value = least(value + below, kMany);
    }
    return value;
  }

  /// Counts of chunks become counts before them, the last one that of all.
  BLOCKSCALE_DEVICE void add_chunks_up(ptx::SharedAddress shared) const {
    const uint32_t lane = ptx::laneid();
    uint32_t before = 0;
    BLOCKSCALE_NO_UNROLL
    for (uint32_t first = 0; first <= chunks(); first += 32) {
      const uint32_t chunk = first + lane;
      const uint32_t own = chunk < chunks() ? ptx::ld_shared<uint32_t>(shared + chunk * 4) : 0;
      const uint32_t behind = inclusive_sum(own);
      const uint32_t of_others = ptx::shfl_sync_up(ptx::kFullMask, behind, 1);
      if (chunk <= chunks()) {
        ptx::st_shared(shared + chunk * 4, least(before + (lane == 0 ? 0 : of_others), kMany));
      }
      before = least(before + ptx::shfl_sync_idx(ptx::kFullMask, behind, 31), kMany);
    }
  }

  /// The chunk that has a tile row: the last one that begins there or before.
  BLOCKSCALE_DEVICE uint32_t chunk_of(ptx::SharedAddress shared, uint32_t row) const {
    if (chunks() == 1) return 0;
    uint32_t begun = 0;
    BLOCKSCALE_NO_UNROLL
    for (uint32_t first = 0; first < chunks(); first += 32) {
      const uint32_t chunk = first + ptx::laneid();
      const bool has_begun =
          chunk < chunks() && ptx::ld_shared<uint32_t>(shared + chunk * 4) <= row;
      const uint32_t count = ptx::redux_sync_add(ptx::kFullMask, has_begun ? 1 : 0);
      begun += count;
      if (count < 32) break;
    }
    return begun - 1;
  }
};

using GroupedOrder = GroupedOrderOf<RowGroups>;
/// Of few rows.
using EntryOrder = GroupedOrderOf<EntryGroups>;

}  // namespace blockscale
