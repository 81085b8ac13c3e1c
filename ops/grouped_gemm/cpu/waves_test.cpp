// How rows of groups are divided: every row once, in pieces that keep the bits of a group.
#include "ops/grouped_gemm/cpu/waves.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/gemm/cpu/plan.h"

namespace blockscale::grouped_gemm_detail {
namespace {

GroupedGemmArguments arguments(const std::vector<std::int32_t>& offsets, std::int64_t rows) {
  GroupedGemmArguments x;
  x.a = {Recipe::bf16, rows, 512};
  x.b = {Recipe::bf16, 4096, 512, std::ssize(offsets) - 1};
  x.offsets = offsets.data();
  x.rows = rows;
  return x;
}

TEST(RowWaves, HoldEachRowOnceAndNoMoreThanAsked) {
  const std::vector<std::int32_t> offsets = {3, 3, 700, 705, 705, 2000, 2010};
  const GroupedGemmArguments x = arguments(offsets, 3000);
  for (const std::int64_t most : {1, 100, 256, 300, 1000, 100'000}) {
    std::vector<int> times(3000);
    const std::vector<RowWave> waves = row_waves(x, most);
    for (const RowWave& wave : waves) {
      std::int64_t rows = 0;
      for (const Part& part : wave.parts) {
        EXPECT_EQ(part.first, rows);
        const std::int64_t count = part.rows.end - part.rows.begin;
        for (std::int64_t r = 0; r < count; ++r) {
          EXPECT_EQ(&wave.part_of(rows + r), &part);
          ++times[static_cast<std::size_t>(part.rows.begin + r)];
        }
        rows += count;
        const GroupRows group = rows_of_group(x, part.group);
        EXPECT_EQ(part.group_rows, group.end - group.begin);
        const auto plan = gemm_detail::cpu_plan(part.group_rows, x.b.rows, x.a.k);
        EXPECT_EQ((part.rows.begin - group.begin) % plan.band_rows, 0);
        EXPECT_TRUE(count <= most || count <= plan.band_rows);
      }
      EXPECT_EQ(wave.rows, rows);
      EXPECT_TRUE(wave.rows <= most || wave.parts.size() == 1);
    }
    for (std::int64_t r = 0; r < 3000; ++r) {
      ASSERT_EQ(times[static_cast<std::size_t>(r)], r >= 3 && r < 2010 ? 1 : 0) << r;
    }
  }
  EXPECT_EQ(row_waves(x, 100'000).size(), 1u);
}

TEST(RowWaves, OfGroupsThatShareRowsComeOneAfterTheOther) {
  const std::vector<std::int32_t> offsets = {50, 0, 20, 0}, lengths = {20, 60, 10, 5};
  GroupedGemmArguments x = arguments(offsets, 100);
  x.b.batch = 4;
  x.lengths = lengths.data();
  const std::vector<RowWave> waves = row_waves(x, 1000);
  ASSERT_EQ(waves.size(), 4u);
  for (std::int64_t g = 0; g < 4; ++g) {
    ASSERT_EQ(waves[static_cast<std::size_t>(g)].parts.size(), 1u);
    EXPECT_EQ(waves[static_cast<std::size_t>(g)].parts[0].group, g);
  }
  const std::vector<std::int32_t> owners = owners_of_shared_rows(x);
  EXPECT_EQ(std::count(owners.begin(), owners.end(), 0), 10);
  EXPECT_EQ(std::count(owners.begin(), owners.end(), 1), 45);
  EXPECT_EQ(std::count(owners.begin(), owners.end(), 2), 10);
  EXPECT_EQ(std::count(owners.begin(), owners.end(), 3), 5);
  EXPECT_EQ(std::count(owners.begin(), owners.end(), -1), 30);
}

TEST(RowWaves, OfNoRowsAreNone) {
  const std::vector<std::int32_t> offsets = {5, 5, 3, 2};
  const GroupedGemmArguments x = arguments(offsets, 100);
  EXPECT_TRUE(row_waves(x, 10).empty());
  EXPECT_TRUE(owners_of_shared_rows(x).empty());
}

}  // namespace
}  // namespace blockscale::grouped_gemm_detail
