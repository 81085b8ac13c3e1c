// moe_sort against what its contract says, entry by entry.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "blockscale/moe.h"
#include "ops/moe/test/routing_problem.h"

namespace blockscale {
namespace {

using test::Random;
using test::SortProblem;
using test::SortResults;

SortResults sorted(const SortProblem& problem, int threads = 1) {
  MoeSortArguments x = problem.arguments();
  SortResults results(x);
  results.set(x);
  moe_sort(x, threads);
  return results;
}

TEST(MoeSort, IsWhatItsContractSays) {
  Random random(1);
  constexpr int kTiles[] = {1, 8, 128, 256};
  int dropped = 0;
  for (int i = 0; i < 10'000; ++i) {
    const SortProblem problem(random, 12, 10, kTiles[i % 4]);
    const SortResults results = sorted(problem);
    ASSERT_EQ(results, test::sort_reference(problem)) << problem.text();
    for (const std::int32_t row : results.row_of_entry) dropped += row == -1 ? 1 : 0;
  }
  EXPECT_GT(dropped, 1000);
}

TEST(MoeSort, OfManyEntriesForAnyNumberOfThreads) {
  Random random(2);
  for (const int tile : {1, 128}) {
    MoeSortArguments x;
    x.tokens = 60'000;  // more than a piece of the threads' work
    x.top_k = 6;
    x.experts = 40;
    x.first_expert = 20;
    x.tile = tile;
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < x.tokens * x.top_k; ++i) {
      ids.push_back(static_cast<std::int32_t>(test::uniform(random, 0, 79)));
    }
    const SortProblem problem(x, ids);
    const SortResults expected = test::sort_reference(problem);
    for (const int threads : {1, 2, 7}) EXPECT_TRUE(sorted(problem, threads) == expected);
  }
}

// A token and two experts of each; this device has experts 4 to 6 of them.
TEST(MoeSort, ByHand) {
  MoeSortArguments x;
  x.tokens = 4;
  x.top_k = 2;
  x.experts = 3;
  x.first_expert = 4;
  x.tile = 8;
  const SortProblem problem(x, {6, 4, 3, 6, 6, -1, 7, 4});
  const SortResults results = sorted(problem);
  std::vector<std::int32_t> entries(32, -1), tokens(32, -1);
  entries[0] = 1, entries[1] = 7, entries[8] = 0, entries[9] = 3, entries[10] = 4;
  tokens[0] = 0, tokens[1] = 3, tokens[8] = 0, tokens[9] = 1, tokens[10] = 2;
  entries.resize(24);  // 8 entries, and 7 rows of padding for each of 3 experts: 29, rounded down
  tokens.resize(24);
  EXPECT_EQ(results.expert_of_tile, (std::vector<std::int32_t>{0, 2, -1}));
  EXPECT_EQ(results.row_limit_of_tile, (std::vector<std::int32_t>{2, 11, 0}));
  EXPECT_EQ(results.row_of_entry, (std::vector<std::int32_t>{8, 0, -1, 9, 10, -1, -1, 1}));
  EXPECT_EQ(results.entry_of_row, entries);
  EXPECT_EQ(results.token_of_row, tokens);
  EXPECT_EQ(results.padded_rows, std::vector<std::int32_t>{16});
  EXPECT_EQ(results.tiles, std::vector<std::int32_t>{2});
  EXPECT_EQ(results.offsets, (std::vector<std::int32_t>{0, 8, 8, 16}));
}

TEST(MoeSort, RowsAreEnoughForTheWorstAndNoMore) {
  EXPECT_EQ(moe_sort_rows(0, 8, 256, 128), 0);
  EXPECT_EQ(moe_sort_rows(1, 1, 1, 1), 1);
  EXPECT_EQ(moe_sort_rows(1, 1, 256, 128), 128);
  EXPECT_EQ(moe_sort_rows(3, 1, 256, 128), 384);  // each to an expert of its own
  EXPECT_EQ(moe_sort_rows(129, 1, 1, 128), 256);
  EXPECT_EQ(moe_sort_rows(1 << 20, 16, 1024, 256), (1 << 24) + 1024 * 255 - 1024 * 255 % 256);
  // One expert has all but one of each other's entries.
  MoeSortArguments x;
  x.tokens = 131;
  x.experts = 4;
  x.tile = 128;
  std::vector<std::int32_t> ids(131, 3);
  ids[7] = 0, ids[9] = 1;
  const SortResults results = sorted(SortProblem(x, ids));
  EXPECT_EQ(results.padded_rows[0], 512);
  EXPECT_EQ(moe_sort_rows(131, 1, 4, 128), 512);
}

TEST(MoeSort, MakesWhatIsAskedFor) {
  Random random(3);
  const SortProblem problem(random, 12, 10, 8);
  const SortResults expected = test::sort_reference(problem);
  for (int only = 0; only < 8; ++only) {
    MoeSortArguments all = problem.arguments(), x = all;
    SortResults results(x);
    results.set(all);
    if (only == 0) x.offsets = all.offsets;
    if (only == 1) x.row_of_entry = all.row_of_entry;
    if (only == 2) x.entry_of_row = all.entry_of_row;
    if (only == 3) x.token_of_row = all.token_of_row;
    if (only == 4) x.expert_of_tile = all.expert_of_tile;
    if (only == 5) x.row_limit_of_tile = all.row_limit_of_tile;
    if (only == 6) x.padded_rows = all.padded_rows;
    if (only == 7) x.tiles = all.tiles;
    moe_sort(x);
    SortResults partly(problem.x);
    if (only == 0) partly.offsets = expected.offsets;
    if (only == 1) partly.row_of_entry = expected.row_of_entry;
    if (only == 2) partly.entry_of_row = expected.entry_of_row;
    if (only == 3) partly.token_of_row = expected.token_of_row;
    if (only == 4) partly.expert_of_tile = expected.expert_of_tile;
    if (only == 5) partly.row_limit_of_tile = expected.row_limit_of_tile;
    if (only == 6) partly.padded_rows = expected.padded_rows;
    if (only == 7) partly.tiles = expected.tiles;
    EXPECT_TRUE(results == partly) << only;
  }
}

}  // namespace
}  // namespace blockscale
