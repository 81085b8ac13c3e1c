// The order of groups' tiles, as blocks find it in the emulator: each tile of each group once, in
// bands, whatever the groups are.
#include "device/scheduler/grouped_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "device/emulator/emulator.h"
#include "device/scheduler/block_tiles.h"

namespace blockscale {
namespace {

using Random = std::mt19937_64;
constexpr std::uint32_t kRows = 64;  // of a tile

std::uint32_t below(Random& random, std::uint32_t end) {
  return static_cast<std::uint32_t>(random() % end);
}

/// Where groups lie, by offsets or masked.
struct Routing {
  std::vector<std::int32_t> offsets, lengths;
  GroupedOrder order;

  /// Rows of groups that are alike, few of them large, one of them everything, or half of them
  /// none.
  Routing(Random& random, std::uint32_t groups, bool masked) {
    const std::uint32_t kind = below(random, 4), hot = below(random, groups);
    std::int32_t first = 0;
    std::uint32_t most = 0;
    for (std::uint32_t g = 0; g < groups; ++g) {
      const std::uint32_t rows = kind == 0   ? below(random, 100)
                                 : kind == 1 ? 400 / (1 + (g * 7 + hot) % groups)
                                 : kind == 2 ? (g == hot ? 900 : 0)
                                             : g % 2 * below(random, 80);
      offsets.push_back(first);
      lengths.push_back(static_cast<std::int32_t>(rows));
      first += static_cast<std::int32_t>(rows);
      most = std::max(most, rows);
    }
    offsets.push_back(first);
    RowGroups of;
    of.offsets = masked ? nullptr : offsets.data();
    of.lengths = masked ? lengths.data() : nullptr;
    of.groups = groups;
    of.rows = masked ? most : static_cast<std::uint32_t>(first);
    order = GroupedOrder(of, 1 + below(random, 5), 1 + below(random, 4));
  }
  GroupRows rows_of(std::uint32_t group) const {
    if (order.groups.offsets == nullptr) return {0, lengths[group]};
    return {offsets[group], offsets[group + 1]};
  }
};

/// The tiles of each routing, as one block of `warps` warps finds them.
std::vector<std::vector<Tile>> tiles_of(std::vector<Routing>& routings, std::uint32_t warps) {
  std::vector<std::vector<Tile>> found(routings.size());
  std::vector<emulator::Buffer> buffers;
  std::uint32_t shared = 0;
  for (const Routing& routing : routings) {
    buffers.push_back(emulator::input("offsets", routing.offsets));
    buffers.push_back(emulator::input("lengths", routing.lengths));
    shared = std::max(shared, routing.order.shared_bytes());
  }
  LaunchShape shape;
  shape.grid = {static_cast<std::uint32_t>(routings.size())};
  shape.block = {warps * 32};
  shape.dynamic_shared_bytes = shared;
  const emulator::Report report =
      emulator::launch(shape, buffers, emulator::random_order(warps), [&] {
        BlockTiles<GroupedOrder, kRows> tiles(routings[ptx::ctaid_x()].order,
                                              device::shared_base());
        tiles.begin();
        for (std::uint32_t i = 0; i < tiles.count(); ++i) {
          const Tile tile = tiles.tile(i);
          if (ptx::tid_x() == 0) found[ptx::ctaid_x()].push_back(tile);
        }
      });
  EXPECT_TRUE(report.ok()) << report.text();
  return found;
}

/// Each tile of the routing once, and none that it has not: group by group, a band of tile rows
/// after the other, columns of a band one by one.
void expect_in_order(const Routing& routing, const std::vector<Tile>& tiles) {
  std::size_t next = 0;
  const GroupedOrder& order = routing.order;
  for (std::uint32_t group = 0; group < order.groups.groups; ++group) {
    const GroupRows rows = routing.rows_of(group);
    const std::int64_t band_rows = std::int64_t{order.band_rows} * kRows;
    for (std::int64_t band = rows.begin; band < rows.end; band += band_rows) {
      for (std::uint32_t n = 0; n < order.tiles_n; ++n) {
        for (std::int64_t row = band; row < std::min(rows.end, band + band_rows); row += kRows) {
          ASSERT_LT(next, tiles.size());
          const Tile& tile = tiles[next++];
          ASSERT_EQ(tile.group, group);
          ASSERT_EQ(tile.n, n);
          ASSERT_EQ(tile.first_row, row);
          ASSERT_EQ(tile.end_row, rows.end);
        }
      }
    }
  }
  EXPECT_EQ(next, tiles.size());
}

std::vector<Routing> random_routings(std::uint32_t count, std::uint32_t groups) {
  Random random(groups);
  std::vector<Routing> routings;
  routings.reserve(count);  // their orders point into them
  for (std::uint32_t i = 0; i < count; ++i) {
    routings.emplace_back(random, 1 + below(random, groups), i % 3 == 0);
  }
  return routings;
}

void check_blocks(std::uint32_t count, std::uint32_t groups, std::uint32_t warps) {
  std::vector<Routing> routings = random_routings(count, groups);
  const auto found = tiles_of(routings, warps);
  for (std::size_t i = 0; i < count; ++i) expect_in_order(routings[i], found[i]);
}

TEST(GroupedOrder, OfBlocksHasEachTileOnce) {
  check_blocks(250, 12, 1);
  check_blocks(40, 100, 2);
  check_blocks(3, 2500, 4);
}

/// Groups of all rows each, so many that their tile rows together are more than are counted: tiles
/// are those of the first ones, and none lies outside of its group.
TEST(GroupedOrder, CountsNoMoreThanItCan) {
  for (const std::uint32_t groups : {9u, 40u}) {
    std::vector<std::int32_t> offsets(groups, 0), lengths(groups, 2'147'483'647);
    RowGroups of;
    of.offsets = offsets.data();
    of.lengths = lengths.data();
    of.groups = groups;
    of.rows = 2'000'000'000;
    const GroupedOrder order(of, 3, 2);
    LaunchShape shape;
    shape.block = {64};
    shape.dynamic_shared_bytes = order.shared_bytes();
    std::uint32_t count = 0;
    std::vector<Tile> last;
    const emulator::Report report = emulator::launch(
        shape, {emulator::input("offsets", offsets), emulator::input("lengths", lengths)},
        emulator::in_order(), [&] {
          BlockTiles<GroupedOrder, 1> tiles(order, device::shared_base());
          tiles.begin();
          const std::uint32_t all = tiles.count();
          const Tile tile = tiles.tile(all - 1);
          if (ptx::tid_x() == 0) {
            count = all;
            last.push_back(tile);
          }
        });
    EXPECT_TRUE(report.ok()) << report.text();
    EXPECT_EQ(count, (1u << 30) / 3 * 3);
    EXPECT_EQ(last.at(0).group, 0u);
    EXPECT_LT(last.at(0).first_row, of.rows);
  }
}

/// What a warp does, by one thread.
std::vector<Tile> tiles_by_host(const Routing& routing) {
  std::vector<Tile> tiles;
  const GroupedOrder& order = routing.order;
  std::vector<std::uint32_t> behind;  // tile rows
  for (std::uint32_t group = 0; group < order.groups.groups; ++group) {
    const GroupRows rows = routing.rows_of(group);
    behind.push_back((behind.empty() ? 0 : behind.back()) +
                     static_cast<std::uint32_t>(ceil_div(rows.end - rows.begin, kRows)));
  }
  for (std::uint32_t i = 0; i < behind.back() * order.tiles_n; ++i) {
    const auto at = std::upper_bound(behind.begin(), behind.end(), order.columns.quotient(i));
    const auto group = static_cast<std::uint32_t>(at - behind.begin());
    const std::uint32_t first = group == 0 ? 0 : behind[group - 1];
    const GroupRows rows = routing.rows_of(group);
    const GroupedPlace place =
        grouped_place(i - first * order.tiles_n, *at - first, order.tiles_n, order.band_rows);
    tiles.push_back({group, place.n, static_cast<std::uint32_t>(rows.begin) + place.row * kRows,
                     static_cast<std::uint32_t>(rows.end)});
  }
  return tiles;
}

TEST(GroupedOrder, HasEachTileOnce) {
  for (const Routing& routing : random_routings(10'000, 60)) {
    expect_in_order(routing, tiles_by_host(routing));
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace blockscale
