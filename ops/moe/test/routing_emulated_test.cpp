// Routing and sorting as the GPU's kernels do it, in the emulator, under random schedules: the
// bytes that the CPU gives, on each architecture; and that bugs which could be in their parameters
// are found.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "ops/moe/cuda/routing.h"
#include "ops/moe/cuda/specs.h"
#include "ops/moe/test/emulation.h"
#include "ops/moe/test/routing_problem.h"
#include "tests/chip.h"

namespace blockscale {
namespace {

using emulator::FindingKind;
using moe_detail::RoutePlan;
using moe_detail::SortPlan;
using test::LogitFamily;
using test::Random;
using test::RouteProblem;
using test::RouteResults;
using test::SortProblem;
using test::SortResults;

/// Chips of every architecture in turn, with few multiprocessors: blocks then have more to do.
cuda::Chip chip_of(int i, int multiprocessors) {
  const std::vector<cuda::Chip> chips = test::chips_of_every_architecture();
  cuda::Chip chip = chips.at(static_cast<std::size_t>(i) % chips.size());
  chip.multiprocessors = multiprocessors;
  return chip;
}

bool has(const emulator::Report& report, FindingKind kind) {
  return std::any_of(report.findings.begin(), report.findings.end(),
                     [&](const emulator::Finding& finding) { return finding.kind == kind; });
}

std::vector<emulator::Buffer> buffers_of(const RouteProblem& problem, RouteResults& results) {
  return {emulator::input("logits", problem.logits()), emulator::input("bias", problem.bias()),
          emulator::output("ids", results.ids), emulator::output("weights", results.weights)};
}

void expect_cpus_routes(const RouteProblem& problem, const cuda::Chip& chip, std::uint64_t seed) {
  RouteArguments x = problem.arguments();
  RouteResults expected(x), results(x);
  expected.set(x);
  route(x);
  results.set(x);
  const RoutePlan plan = moe_detail::plan_route(moe_detail::validated(x), chip);
  ASSERT_TRUE(test::emulate(plan, buffers_of(problem, results), emulator::random_order(seed)))
      << problem.text();
  EXPECT_EQ(results.ids, expected.ids) << problem.text();
  EXPECT_EQ(results.weight_bits(), expected.weight_bits()) << problem.text();
}

TEST(EmulatedRoute, GivesTheCpusBytes) {
  Random random(1);
  for (int i = 0; i < 300; ++i) {
    const RouteProblem problem(random);
    expect_cpus_routes(problem, chip_of(i, 1 + i % 2), static_cast<std::uint64_t>(i));
    if (HasFatalFailure()) return;
  }
}

TEST(EmulatedRoute, OfManyTokensAndDeepSeek) {
  Random random(2);
  RouteArguments x;
  x.logits.rows = 150;  // more than there are warps
  x.logits.columns = 256;
  x.top_k = 8;
  x.score = RouterScore::sigmoid;
  x.groups = 8;
  x.top_groups = 4;
  x.scale = 2.5f;
  for (const LogitFamily family : {LogitFamily::normal, LogitFamily::tied, LogitFamily::special}) {
    expect_cpus_routes(RouteProblem(random, x, family, true), chip_of(0, 1), 3);
  }
}

/// Memory of a sort on the device.
struct SortMemory {
  struct alignas(16) Quad {
    std::int32_t at[4];
  };

  explicit SortMemory(SortProblem of) : problem(std::move(of)), x(problem.arguments()), results(x) {
    results.set(x);
    x = moe_detail::validated(x);
  }

  /// On a chip, with a workspace of what the plan needs.
  SortPlan plan(const cuda::Chip& chip) {
    const std::int64_t bytes = moe_detail::plan_sort(x, chip).workspace_bytes;
    workspace.assign(static_cast<std::size_t>(bytes / 16), {test::kPoison, 0, -1, 1});
    return moe_detail::plan_sort(x, chip, workspace.data());
  }

  std::vector<emulator::Buffer> buffers() {
    std::vector<emulator::Buffer> all;
    const auto entries = static_cast<std::size_t>(x.tokens * x.top_k);
    all.push_back(emulator::buffer("ids", x.ids, entries * 4, emulator::BufferUse::input));
    all.push_back(emulator::buffer("expert_map", x.expert_map,
                                   static_cast<std::size_t>(x.mapped_ids) * 4,
                                   emulator::BufferUse::input));
    // The second launch reads what the first one wrote there.
    all.push_back(emulator::in_out("workspace", workspace));
    // The second launch writes rows of entries again.
    all.push_back(emulator::output("row_of_entry", results.row_of_entry));
    all.push_back(emulator::output("offsets", results.offsets));
    all.push_back(emulator::output("entry_of_row", results.entry_of_row));
    all.push_back(emulator::output("token_of_row", results.token_of_row));
    all.push_back(emulator::output("expert_of_tile", results.expert_of_tile));
    all.push_back(emulator::output("row_limit_of_tile", results.row_limit_of_tile));
    all.push_back(emulator::output("padded_rows", results.padded_rows));
    all.push_back(emulator::output("tiles", results.tiles));
    return all;
  }

  SortProblem problem;  // whose memory x reads
  MoeSortArguments x;
  SortResults results;
  std::vector<Quad> workspace;
};

void expect_cpus_rows(const SortProblem& problem, const cuda::Chip& chip, std::uint64_t seed) {
  SortMemory memory(problem);
  MoeSortArguments x = problem.arguments();
  SortResults expected(x);
  expected.set(x);
  moe_sort(x);
  const SortPlan plan = memory.plan(chip);
  ASSERT_TRUE(test::emulate(plan, memory.buffers(), emulator::random_order(seed)))
      << problem.text();
  EXPECT_TRUE(memory.results == expected) << problem.text();
}

TEST(EmulatedSort, GivesTheCpusNumbers) {
  Random random(3);
  constexpr int kTiles[] = {1, 8, 128, 256, 1, 12};
  for (int i = 0; i < 72; ++i) {
    const SortProblem problem(random, 12, 6, kTiles[i % 6]);
    expect_cpus_rows(problem, chip_of(i / 6, 1), static_cast<std::uint64_t>(i));
    if (HasFatalFailure()) return;
  }
}

TEST(EmulatedSort, OfManyEntriesAndExperts) {
  Random random(4);
  std::size_t most = 0;
  for (int i = 0; i < 4; ++i) {
    // Several steps of a block, and more experts than a warp looks at together.
    const SortProblem many(random, 12000, 4, i % 2 == 0 ? 1 : 128);
    most = std::max(most, many.entries());
    expect_cpus_rows(many, chip_of(i, 1), 5);
    expect_cpus_rows(SortProblem(random, 60, 70, i % 2 == 0 ? 1 : 8), chip_of(i, 1), 5);
  }
  EXPECT_GT(most, 2 * kSortStep);
}

TEST(EmulatedSort, MakesOnlyWhatTheLayerAsksFor) {
  Random random(5);
  for (int i = 0; i < 20; ++i) {
    const SortProblem problem(random, 12, 6, 1);
    SortMemory memory(problem);
    memory.x.entry_of_row = memory.x.padded_rows = nullptr;
    ASSERT_TRUE(test::emulate(memory.plan(chip_of(i, 1)), memory.buffers(),
                              emulator::random_order(static_cast<std::uint64_t>(i))));
    SortResults expected = test::sort_reference(problem);
    const SortResults untouched(problem.x);
    expected.entry_of_row = untouched.entry_of_row;
    expected.padded_rows = untouched.padded_rows;
    EXPECT_TRUE(memory.results == expected) << problem.text();
  }
}

/// 40 entries of 3 experts.
SortProblem some_entries(int tile) {
  MoeSortArguments x;
  x.tokens = 20;
  x.top_k = 2;
  x.experts = 3;
  x.tile = tile;
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 40; ++i) ids.push_back((i * 7 + i / 5) % 4);  // 3 is dropped
  return SortProblem(x, ids);
}

TEST(PlantedRouting, RightParametersAreClean) {
  for (const int tile : {1, 8}) expect_cpus_rows(some_entries(tile), test::chip_of(1), 1);
}

TEST(PlantedRouting, AnEntryTooManyIsFound) {
  SortMemory memory(some_entries(1));
  SortPlan plan = memory.plan(test::chip_of(1));
  ++std::get<SortParams>(plan.steps.at(0).params).entries;
  const emulator::Report report =
      test::report_of(plan.steps[0], 90, memory.buffers(), emulator::random_order(1));
  EXPECT_TRUE(has(report, FindingKind::out_of_bounds)) << report.text();
}

TEST(PlantedRouting, ABlockTooManyOrTooFewIsFound) {
  // One too many has a class that there is not, and writes an offset of it.
  SortMemory memory(some_entries(1));
  SortPlan plan = memory.plan(test::chip_of(1));
  ++plan.steps.at(0).shape.grid.x;
  emulator::Report report =
      test::report_of(plan.steps[0], 90, memory.buffers(), emulator::random_order(1));
  EXPECT_TRUE(has(report, FindingKind::out_of_bounds)) << report.text();
  // One too few: what is dropped stays as it was.
  SortMemory fewer(some_entries(1));
  plan = fewer.plan(test::chip_of(1));
  --plan.steps.at(0).shape.grid.x;
  report = test::report_of(plan.steps[0], 90, fewer.buffers(), emulator::random_order(1));
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_FALSE(fewer.results == test::sort_reference(some_entries(1)));
}

TEST(PlantedRouting, SharedMemoryTooSmallIsFound) {
  SortMemory memory(some_entries(8));
  SortPlan plan = memory.plan(test::chip_of(1));
  ASSERT_TRUE(
      test::report_of(plan.steps.at(0), 90, memory.buffers(), emulator::random_order(1)).ok());
  plan.steps.at(1).shape.dynamic_shared_bytes -= 4;
  emulator::Report report =
      test::report_of(plan.steps[1], 90, memory.buffers(), emulator::random_order(1));
  EXPECT_TRUE(has(report, FindingKind::out_of_bounds)) << report.text();
}

TEST(PlantedRouting, AnotherTileIsFound) {
  SortMemory memory(some_entries(8));
  SortPlan plan = memory.plan(test::chip_of(1));
  std::get<PadParams>(plan.steps.at(1).params).tile = Divisor(9);
  for (const auto& step : plan.steps) {
    (void)test::report_of(step, 90, memory.buffers(), emulator::random_order(1));
  }
  EXPECT_FALSE(memory.results == test::sort_reference(some_entries(8)));
}

TEST(PlantedRouting, WarpsThatShareMemoryAreFound) {
  Random random(6);
  RouteArguments x;
  x.logits.rows = 4;
  x.logits.columns = 64;
  x.top_k = 4;
  const RouteProblem problem(random, x, LogitFamily::normal, true);
  RouteArguments of = problem.arguments();
  RouteResults results(of);
  results.set(of);
  const RoutePlan plan = moe_detail::plan_route(moe_detail::validated(of), test::chip_of(1));
  const auto report_with = [&](std::uint32_t bytes_of_warp) {
    return emulator::launch(
        plan.shape, buffers_of(problem, results), emulator::random_order(1), [&] {
          ptx::griddepcontrol_wait();
          const std::uint32_t warp = device::warp_index();
          const ptx::SharedAddress shared = device::shared_base();
          routing::RouteWarp(plan.params, shared + warp * bytes_of_warp).route(warp);
        });
  };
  const emulator::Report right = report_with(64 * 8);
  EXPECT_TRUE(right.ok()) << right.text();
  EXPECT_TRUE(has(report_with(64 * 4), FindingKind::race));
}

TEST(RoutingPlans, AreOfTheLaunchesThatTheyShouldBe) {
  const cuda::Chip chip = test::chip_of(132);
  SortMemory plain(some_entries(1)), tiled(some_entries(8));
  SortPlan plan = plain.plan(chip);
  ASSERT_EQ(plan.steps.size(), 1u);
  EXPECT_EQ(plan.workspace_bytes, 0);
  EXPECT_EQ(plan.str(),
            "moe_sort: 40 entries, a block for each of 3 experts and one for what is dropped; "
            "4 x 512 threads, 128 bytes shared\n");
  plan = tiled.plan(chip);
  ASSERT_EQ(plan.steps.size(), 2u);
  EXPECT_EQ(plan.workspace_bytes, 16 + 160);
  EXPECT_EQ(plan.steps[1].str(),
            "moe_pad: at most 56 rows in tiles of 8, from those without padding in the workspace; "
            "1 x 256 threads, 32 bytes shared\n");
  MoeSortArguments nothing = some_entries(1).x;
  EXPECT_TRUE(moe_detail::plan_sort(nothing, chip).steps.empty());

  RouteArguments x;
  x.logits.rows = 1 << 20;
  x.logits.columns = 256;
  RoutePlan of_route = moe_detail::plan_route(x, chip);
  EXPECT_EQ(of_route.str(),
            "moe_route: 1048576 tokens, 256 experts, a warp for each token; 2112 x 128 threads, "
            "8192 bytes shared\n");
  x.logits.rows = 0;
  EXPECT_FALSE(moe_detail::plan_route(x, chip).is_needed());
  EXPECT_EQ(moe_detail::kernel_name(moe_detail::kRouteKernel), "moe_route");
  EXPECT_EQ(moe_detail::kernel_name(moe_detail::kSortKernel), "moe_sort");
  EXPECT_EQ(moe_detail::kernel_name(moe_detail::kPadKernel), "moe_pad");
}

}  // namespace
}  // namespace blockscale
