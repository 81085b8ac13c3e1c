// Bugs that a grouped kernel could have, planted: the emulator or the check of elements finds each.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ops/grouped_gemm/check.h"
#include "ops/grouped_gemm/cuda/plan.h"
#include "ops/grouped_gemm/test/emulation.h"
#include "ops/grouped_gemm/test/launched_problem.h"
#include "tests/chip.h"

namespace blockscale {
namespace {

using emulator::FindingKind;
using test::LaunchedProblem;
using test::Random;

/// The order as it should be.
struct RightOrder : GroupedOrder {};

/// A tile of the other rows in the place of each block's first.
struct TwiceOrder : GroupedOrder {
  template <uint32_t kRows>
  BLOCKSCALE_DEVICE Tile tile(ptx::SharedAddress shared, uint32_t index) const {
    return GroupedOrder::tile<kRows>(shared, index == 0 ? 2 * tiles_n : index);
  }
};

/// Groups that end where a matrix does, it says.
struct WholeBoxOrder : GroupedOrder {
  static constexpr bool kGroupsAreMatrices = true;
};

/// The weight and the scales of the group before.
struct NeighbourOrder : GroupedOrder {
  template <uint32_t kRows>
  BLOCKSCALE_DEVICE Tile tile(ptx::SharedAddress shared, uint32_t index) const {
    Tile tile = GroupedOrder::tile<kRows>(shared, index);
    if (tile.group > 0) --tile.group;
    return tile;
  }
};

/// A row too many of each group but the last.
struct LongOrder : GroupedOrder {
  template <uint32_t kRows>
  BLOCKSCALE_DEVICE Tile tile(ptx::SharedAddress shared, uint32_t index) const {
    Tile tile = GroupedOrder::tile<kRows>(shared, index);
    if (tile.group + 1 < groups.groups) ++tile.end_row;
    return tile;
  }
};

struct Outcome {
  emulator::Report report;
  bool is_right = false;  // every element within its bound
  bool others_untouched = false;

  bool has(FindingKind kind) const {
    for (const emulator::Finding& finding : report.findings) {
      if (finding.kind == kind) return true;
    }
    return false;
  }
};

/// A product of three groups by the FP8 kernel of 64 rows in this order.
template <class Order>
Outcome run() {
  Random random(3);
  LaunchedProblem problem(random, {.rows = {21, 70, 5}, .n = 256, .k = 272});
  const GroupedGemmArguments x = problem.validated();
  grouped_gemm_detail::GroupedPlan plan = grouped_gemm_detail::plan_grouped(x, test::chip_of(3));
  grouped_gemm_detail::GroupedStep& step = plan.steps.at(0);
  auto& right = std::get<Fp8GroupedParams>(step.params);
  gemm_detail::resolve_tensor_maps(step.maps, emulator::encode_tensor_map, right);
  Fp8GemmParamsOf<Order> params;
  static_cast<Fp8GemmParts&>(params) = right;
  static_cast<GroupedOrder&>(params.order) = right.order;
  Outcome outcome;
  outcome.report = emulator::launch(step.shape, problem.buffers(), emulator::random_order(2),
                                    [&] { fp8_gemm_kernel<detail::by_blocks(64, 128)>(params); });
  outcome.is_right =
      grouped_gemm_detail::check_elements(x, 1 << 20, gemm_detail::GemmPath::sm90_fp8).passed();
  outcome.others_untouched = problem.are_others_untouched();
  return outcome;
}

TEST(PlantedGroups, RightOrderIsClean) {
  const Outcome outcome = run<RightOrder>();
  EXPECT_TRUE(outcome.report.ok()) << outcome.report.text();
  EXPECT_TRUE(outcome.is_right && outcome.others_untouched);
}

TEST(PlantedGroups, ATileDoneTwice) {
  const Outcome outcome = run<TwiceOrder>();
  EXPECT_TRUE(outcome.has(FindingKind::race));
  EXPECT_FALSE(outcome.is_right);
}

TEST(PlantedGroups, ABoxAcrossAGroupsEnd) {
  const Outcome outcome = run<WholeBoxOrder>();
  EXPECT_TRUE(outcome.has(FindingKind::race));
  EXPECT_FALSE(outcome.others_untouched);
}

TEST(PlantedGroups, ANeighboursWeightAndScale) {
  const Outcome outcome = run<NeighbourOrder>();
  EXPECT_TRUE(outcome.report.ok()) << outcome.report.text();
  EXPECT_FALSE(outcome.is_right);
}

/// A product whose rows are gathered, with or without the fence behind their copies.
emulator::Report run_gathered(std::vector<std::int32_t> rows, bool proxy_fences,
                              std::uint64_t seed) {
  Random random(3);
  LaunchedProblem problem(random, {.rows = std::move(rows), .n = 256, .k = 400, .gathered = true});
  grouped_gemm_detail::GroupedPlan plan =
      grouped_gemm_detail::plan_grouped(problem.validated(), test::chip_of(3));
  emulator::Options options = emulator::random_order(seed);
  options.proxy_fences = proxy_fences;
  return test::report_of(plan.steps.at(0), plan.architecture, problem.buffers(), options);
}

// Of two accumulators, and in ping-pong.
TEST(PlantedGroups, NoProxyFenceBehindAGather) {
  const std::pair<std::vector<std::int32_t>, std::uint64_t> cases[] = {
      {{21, 70, 5}, 1}, {{21, 70, 5}, 2}, {{150}, 3}};
  for (const auto& [rows, seed] : cases) {
    EXPECT_TRUE(run_gathered(rows, true, seed).ok());
    const emulator::Report report = run_gathered(rows, false, seed);
    const auto is_of_gather = [](const emulator::Finding& finding) {
      return finding.kind == FindingKind::missing_proxy_fence &&
             std::ranges::any_of(finding.lines, [](const SourceLocation& line) {
               return std::string(line.file_name()).ends_with("fp8_gather.cuh");
             });
    };
    EXPECT_TRUE(std::ranges::any_of(report.findings, is_of_gather)) << report.text();
  }
}

TEST(PlantedGroups, ARowTooMany) {
  EXPECT_TRUE(run<LongOrder>().has(FindingKind::race));
}

}  // namespace
}  // namespace blockscale
