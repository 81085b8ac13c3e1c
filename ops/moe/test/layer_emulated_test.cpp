// The layer as the GPU's kernels compute it, in the emulator.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "ops/moe/test/layer_emulation.h"
#include "ops/moe/test/layer_problem.h"
#include "tests/chip.h"

namespace blockscale {
namespace {

using gemm_detail::GemmPath;
using moe_detail::Gather;
using moe_detail::MoePlan;
using test::EmulatedLayer;
using test::LayerCase;
using test::LayerPlant;
using test::LayerProblem;
using test::Random;
using test::Routing;

/// Of the second product of shared experts; without them nobody asks.
GemmPath shared_path_of(const moe_detail::MoePartPlan& part) {
  return part.shared ? part.shared->down.path() : GemmPath::plain;
}

/// Checks each step of a layer that ran.
void check_steps(LayerProblem& problem, const EmulatedLayer& ran, const cuda::Chip& chip) {
  ASSERT_EQ(ran.plan.parts.size(), 1u);
  EXPECT_TRUE(problem.y().is_poison_intact());
  const auto multiply = [&](const GroupedGemmArguments& up) {
    const GroupedGemmArguments product = grouped_gemm_detail::validated(up);
    std::vector<emulator::Buffer> all = ran.buffers;
    all.push_back(emulator::buffer("sums", up.d.data,
                                   static_cast<std::size_t>(up.d.rows * up.d.columns * 4),
                                   emulator::BufferUse::output));
    EXPECT_TRUE(test::emulate(product, chip, all, emulator::in_order()));
  };
  const moe_detail::MoePartPlan& part = ran.plan.parts[0];
  const MoeArguments before = problem.arguments_before();
  test::expect_layer(before, ran.workspace.get(), ran.gather, multiply, part.up.path(),
                     part.down.path(), shared_path_of(part));
}

/// Runs a layer and checks each of its steps. One that is not sorted has the bits of the same that
/// is, whose steps are checked.
void check(const LayerCase& of, const emulator::Options& options = emulator::random_order(1),
           const cuda::Chip& chip = test::chip_of(3)) {
  SCOPED_TRACE(test::text_of(of) + ", " + chip.name);
  Random random(2);
  LayerProblem problem(random, of);
  const EmulatedLayer ran = test::emulate(problem, chip, options);
  if (ran.gather != Gather::entries) return check_steps(problem, ran, chip);
  ASSERT_FALSE(of.in_place);
  const std::vector<std::uint8_t> unsorted = problem.y().bytes();
  problem.map_ids();
  check_steps(problem, test::emulate(problem, chip, options), chip);
  EXPECT_EQ(problem.y().bytes(), unsorted);
}

TEST(EmulatedMoe, EveryRouting) {
  for (const Routing routing : test::kRoutings) {
    check({.tokens = 11, .routing = routing, .residual = routing == Routing::elsewhere});
  }
  check({.tokens = 11}, emulator::in_order());
}

/// Checks a layer whose products read an expert's weights for each eight of its rows, by kernels
/// that are launched with `Params`.
template <class Params>
void check_few(const LayerCase& of, std::optional<Gather> gather = {},
               const cuda::Chip& chip = test::chip_of(3)) {
  Random random(2);
  LayerProblem problem(random, of);
  const MoeArguments x = moe_detail::validated(problem.arguments(), {});
  const moe_detail::MoeParts parts = moe_detail::parts_of(x, {}, chip);
  const MoePlan plan = moe_detail::plan_moe(x, parts, chip);
  EXPECT_EQ(parts.gather, gather.value_or(parts.gather));
  for (const auto* const product : {&plan.parts.at(0).up, &plan.parts.at(0).down}) {
    EXPECT_TRUE(std::holds_alternative<Params>(product->steps.front().params)) << product->str();
  }
  check(of, emulator::random_order(1), chip);
}

TEST(EmulatedMoe, FewRows) {
  for (const Routing routing : test::kRoutings) {
    check_few<Fp8FewRowsParams>(
        {.tokens = 3, .hidden = 272, .inner = 256, .experts = 12, .routing = routing});
  }
  check_few<Fp8FewRowsParams>({.w13 = Recipe::fp8_tensor,
                               .w2 = Recipe::fp8_128x128_ue8m0,
                               .tokens = 1,
                               .hidden = 528,
                               .inner = 304,
                               .experts = 8,
                               .alphas = true,
                               .bias = true});
  check_few<Fp8FewRowsParams>(
      {.tokens = 4, .hidden = 256, .inner = 320, .experts = 12, .apart = true});
  check_few<Fp8FewRowsParams>({.tokens = 3,
                               .hidden = 272,
                               .inner = 256,
                               .experts = 12,
                               .transform = Swiglu{GateOrder::up_first, 64}});
  check_few<Fp8FewRowsParams>({.tokens = 3,
                               .hidden = 272,
                               .inner = 288,
                               .experts = 12,
                               .transform = Swiglu{GateOrder::gate_first, 1, 0.7f, 1.702f, 1},
                               .alphas = true,
                               .bias = true});
}

// gpt-oss's layers, and those of NVFP4 with a tensor scale an expert, as decode has them.
TEST(EmulatedMoe, FewRowsOfFp4) {
  const Swiglu clamped = {GateOrder::gate_first, 1, 0.7f, 1.702f, 1};
  for (const std::int64_t tokens : {1, 4}) {
    check_few<Fp4FewRowsParams>({.w13 = Recipe::mxfp4,
                                 .w2 = Recipe::mxfp4,
                                 .tokens = tokens,
                                 .hidden = 160,
                                 .inner = 96,
                                 .experts = 4,
                                 .transform = clamped,
                                 .bias = true});
  }
  check_few<Fp4FewRowsParams>({.w13 = Recipe::mxfp4,
                               .w2 = Recipe::mxfp4,
                               .activations = Recipe::fp8_row,
                               .tokens = 3,
                               .hidden = 160,
                               .inner = 96,
                               .experts = 3,
                               .transform = clamped});
  for (const Recipe activations : {Recipe::bf16, Recipe::fp8_1x128}) {
    check_few<Fp4FewRowsParams>({.w13 = Recipe::nvfp4,
                                 .w2 = Recipe::nvfp4,
                                 .activations = activations,
                                 .tokens = 3,
                                 .hidden = 160,
                                 .inner = 96,
                                 .experts = 3,
                                 .alphas = true});
  }
}

// Each entry is a group of the products, which say whose weights it has, and of which token its row
// is: entries that share an expert, that are dropped, with shared experts and a residual beside
// them.
TEST(EmulatedMoe, FewEntriesAreNotSorted) {
  LayerCase of = {
      .tokens = 3, .hidden = 272, .inner = 256, .top_k = 2, .first_expert = 5, .all_experts = 24};
  for (const Routing routing :
       {Routing::uniform, Routing::duplicates, Routing::elsewhere, Routing::half_of_it}) {
    of.routing = routing;
    check_few<Fp8FewRowsParams>(of, Gather::entries);
  }
  of.x = Recipe::fp8_1x128;
  of.shared = 1;
  of.alphas = of.bias = of.residual = true;
  check_few<Fp8FewRowsParams>(of, Gather::entries);
  of.x = Recipe::bf16;
  of.hidden = 160;
  of.inner = 96;
  of.w13 = of.w2 = Recipe::nvfp4;
  for (const Recipe activations : {Recipe::fp8_1x128, Recipe::fp8_row}) {
    of.activations = activations;
    check_few<Fp4FewRowsParams>(of, Gather::entries);
  }
  of.w13 = of.w2 = Recipe::mxfp4;
  of.activations = Recipe::bf16;
  of.transform = Swiglu{GateOrder::gate_first, 1, 0.7f, 1.702f, 1};
  check_few<Fp4FewRowsParams>(of, Gather::entries);
  check_few<Fp4FewRowsParams>(of, Gather::entries, test::sm120_of(3));
}

// Both products by the kernels of products that take scales: rows of FP8 come quantized, those of
// MX are gathered with their scales.
TEST(EmulatedMoe, BlockScaledOnSm120) {
  const cuda::Chip chip = test::sm120_of(3);
  LayerCase of = {.tokens = 11, .hidden = 256, .inner = 256, .shared = 1, .residual = true};
  for (const auto& [weights, activations] :
       {std::pair{Recipe::fp8_128x128, Recipe::fp8_1x128}, {Recipe::mxfp4, Recipe::mxfp8_e4m3}}) {
    of.w13 = of.w2 = weights;
    of.activations = activations;
    Random random(2);
    LayerProblem problem(random, of);
    const MoeArguments x = moe_detail::validated(problem.arguments(), {});
    const MoePlan plan = moe_detail::plan_moe(x, moe_detail::parts_of(x, {}, chip), chip);
    for (const auto* const product : {&plan.parts.at(0).up, &plan.parts.at(0).down}) {
      EXPECT_EQ(product->path(), GemmPath::sm120_block_scaled) << product->str();
    }
    check(of, emulator::random_order(1), chip);
    of.routing = Routing::half_of_it;
  }
}

TEST(EmulatedMoe, KindsOfWeight) {
  for (const Recipe recipe : {Recipe::fp8_tensor, Recipe::fp8_row, Recipe::fp8_1x128,
                              Recipe::fp8_128x128_ue8m0, Recipe::nvfp4, Recipe::mxfp4}) {
    check({.w13 = recipe, .w2 = recipe, .tokens = 7, .alphas = true, .bias = true});
  }
  check(
      {.w13 = Recipe::nvfp4, .w2 = Recipe::mxfp4, .activations = Recipe::mxfp8_e4m3, .tokens = 5});
}

// A scale follows from all of a row: no epilogue has it, and no quantizer that gathers.
TEST(EmulatedMoe, ActivationsWithAScaleARow) {
  constexpr Recipe kRow = Recipe::fp8_row;
  LayerCase of = {.activations = kRow, .tokens = 60, .experts = 3, .shared = 1};
  for (const Recipe recipe : {Recipe::mxfp4, Recipe::nvfp4, kRow}) {
    of.w13 = of.w2 = recipe;
    check(of);
    of.routing = Routing::half_of_it;
  }
  of.tokens = 9;
  of.transform = Swiglu{GateOrder::gate_first, 1, 0.7f, 1.702f, 1};
  of.weights_on_input = true;
  check(of);
  of.weights_on_input = false;
  for (const Recipe recipe : {kRow, Recipe::mxfp4}) {
    of.w13 = of.w2 = recipe;
    check(of, emulator::random_order(1), test::sm120_of(3));
  }
  check(
      {.x = kRow, .w13 = kRow, .w2 = kRow, .activations = kRow, .tokens = 5, .transform = Silu{}});
}

TEST(EmulatedMoe, Transforms) {
  for (const Recipe activations : {Recipe::fp8_1x128, Recipe::bf16}) {
    check({.activations = activations, .tokens = 6, .transform = Gelu{}});
    check({.activations = activations, .tokens = 6, .transform = Identity{}, .bias = true});
    check({.activations = activations, .tokens = 6, .transform = Swiglu{GateOrder::up_first, 64}});
  }
}

TEST(EmulatedMoe, SiluOfEveryKindOfWeightAndInput) {
  for (const Recipe recipe : {Recipe::fp8_tensor, Recipe::fp8_row, Recipe::fp8_1x128,
                              Recipe::fp8_128x128, Recipe::nvfp4, Recipe::mxfp4}) {
    check({.w13 = recipe, .w2 = recipe, .tokens = 6, .transform = Silu{}, .bias = true});
  }
  for (const Recipe x : {Recipe::bf16, Recipe::fp8_1x128}) {
    check({.x = x, .activations = Recipe::fp8_1x128, .tokens = 70, .transform = Silu{}});
  }
  check({.activations = Recipe::bf16, .tokens = 6, .transform = Silu{}});
  check({.w13 = Recipe::mxfp4,
         .w2 = Recipe::mxfp4,
         .activations = Recipe::mxfp8_e4m3,
         .tokens = 5,
         .transform = Silu{}});
}

TEST(EmulatedMoe, ShardsWhoseGatesNoBlockDivides) {
  for (const std::int64_t inner : {64, 80, 192}) {
    check({.tokens = 5, .inner = inner, .apart = true});
    check({.tokens = 5, .inner = inner, .apart = true, .layout = ScaleLayout::mn_major});
  }
  check({.w13 = Recipe::fp8_128x128_ue8m0, .tokens = 5, .inner = 80, .apart = true});
}

TEST(EmulatedMoe, ResidualsAndTypes) {
  for (const Format y : {Format::f32, Format::f16, Format::bf16}) {
    check({.tokens = 5, .y = y, .residual = true});
    check({.tokens = 5, .y = y, .residual = true, .in_place = true});
    check({.tokens = 5, .hidden = 161, .y = y, .weights = false, .residual = true});
  }
  check({.x = Recipe::fp8_1x128, .tokens = 5});
}

TEST(EmulatedMoe, WeightsOnTheInput) {
  for (const Routing routing : test::kRoutings) {
    check({.tokens = 6, .routing = routing, .weights_on_input = true});
  }
  for (const Recipe x : {Recipe::f32, Recipe::f16, Recipe::bf16}) {
    check({.x = x, .tokens = 5, .top_k = 1, .bias = true, .weights_on_input = true});
    check({.x = x, .activations = Recipe::bf16, .tokens = 5, .weights_on_input = true});
  }
  check({.tokens = 5, .hidden = 161, .weights_on_input = true});
  check({.tokens = 5, .weights = false, .weights_on_input = true});
  check({.tokens = 3, .hidden = 1040, .inner = 128, .residual = true, .weights_on_input = true});
}

TEST(EmulatedMoe, SharedExperts) {
  for (const std::int64_t shared : {1, 3}) {
    check({.tokens = 7, .shared = shared});
    check({.tokens = 7, .shared = shared, .shared_inner = 128, .residual = true, .in_place = true});
    check({.activations = Recipe::bf16, .tokens = 7, .shared = shared});
    check({.tokens = 7, .shared = shared, .weights_on_input = true});
  }
  check({.x = Recipe::fp8_1x128, .tokens = 70, .shared = 2, .routing = Routing::elsewhere});
  check({.w13 = Recipe::nvfp4, .w2 = Recipe::nvfp4, .tokens = 5, .shared = 1});
  check({.tokens = 5, .shared = 2, .transform = Gelu{}, .y = Format::f32});
  check({.tokens = 5, .shared = 2, .transform = Silu{}});
  check({.tokens = 5, .hidden = 168, .inner = 80, .shared = 1, .apart = true});
  check({.tokens = 3, .hidden = 1040, .inner = 128, .shared = 2, .y = Format::f16});
}

TEST(EmulatedMoe, MoreRowsThanATileAndMoreColumnsThanARun) {
  check({.tokens = 90, .hidden = 1040, .inner = 128, .experts = 2, .top_k = 2});
  check({.tokens = 5, .hidden = 1040, .inner = 128, .experts = 4, .top_k = 1});
  check({.tokens = 3, .experts = 40, .top_k = 16});
}

TEST(EmulatedMoe, BatchInvariantTokens) {
  // Rows of w13 begin at multiples of 16 bytes, those of x do not: neither one row of it nor many
  // are taken by kernels that others are not.
  struct Case {
    Recipe recipe;
    std::int64_t hidden, few;
    bool batch_invariant, is_equal;
  };
  const Case cases[] = {{Recipe::fp8_128x128, 136, 1, true, true},
                        {Recipe::nvfp4, 512, 12, true, true},
                        {Recipe::nvfp4, 512, 8, false, false}};
  for (const Case& of : cases) {
    const auto first_rows = [&](std::int64_t tokens) {
      Random random(2);
      LayerProblem problem(random, {.w13 = of.recipe,
                                    .w2 = of.recipe,
                                    .tokens = 140,
                                    .hidden = of.hidden,
                                    .inner = 256,
                                    .experts = 1,
                                    .top_k = 1,
                                    .y = Format::f32,
                                    .batch_invariant = of.batch_invariant});
      MoeArguments& x = problem.arguments();
      x.x.rows = x.y.rows = tokens;
      const EmulatedLayer ran = test::emulate(problem, test::chip_of(3), emulator::in_order());
      // What stands between the products, in bf16 or FP8, has more bits of it than y.
      const MoeArguments all = moe_detail::validated(x, {});
      const ScaledTensorView inner =
          moe_detail::part_of(all, 0, tokens, ran.workspace.get(), ran.gather).down.a;
      const auto* const first = static_cast<const std::uint8_t*>(inner.values);
      return std::vector<std::uint8_t>(first, first + of.few * inner.value_row_stride);
    };
    EXPECT_EQ(first_rows(of.few) == first_rows(140), of.is_equal)
        << recipe_traits(of.recipe).name << (of.batch_invariant ? ", batch-invariant" : "");
  }
}

TEST(EmulatedMoe, MapsAndClampedSwiglu) {
  check({.tokens = 6, .transform = Swiglu{GateOrder::gate_first, 1, 0.7f, 1.702f, 1}});
  check({.w13 = Recipe::mxfp4,
         .w2 = Recipe::mxfp4,
         .tokens = 6,
         .transform = Swiglu{GateOrder::gate_first, 1, 0.7f, 1.702f, 1},
         .bias = true});
  // Ids by a map, as ids that are what it says.
  const auto bytes_with = [](const std::vector<std::int32_t>& map) {
    Random random(2);
    LayerProblem problem(random, {.tokens = 6});
    if (!map.empty()) {
      for (std::int32_t& id : problem.ids()) id = 3 - id;
      problem.arguments().expert_map = map.data();
      problem.arguments().mapped_ids = std::ssize(map);
    }
    test::emulate(problem, test::chip_of(3), emulator::in_order());
    return problem.y().bytes();
  };
  EXPECT_EQ(bytes_with({3, 2, 1, 0}), bytes_with({}));
  EXPECT_NE(bytes_with({3, 2, 1}), bytes_with({}));
}

/// Of a layer that adds rows, beside the same in order.
std::int64_t count_far(LayerCase of, const LayerPlant& plant = [](moe_detail::MoePartPlan&) {}) {
  SCOPED_TRACE(test::text_of(of));
  const cuda::Chip chip = test::chip_of(3);
  Random random(2), again(2);
  LayerProblem ordered(random, of);
  const EmulatedLayer ran = test::emulate(ordered, chip, emulator::in_order());
  of.deterministic = false;
  LayerProblem added(again, of);
  const EmulatedLayer adding = test::emulate(added, chip, emulator::random_order(1), {}, plant);
  EXPECT_TRUE(adding.plan.parts.at(0).adds && !ran.plan.parts.at(0).adds);
  EXPECT_LT(adding.plan.workspace_bytes, ran.plan.workspace_bytes);
  EXPECT_TRUE(added.y().is_poison_intact());
  const MoeArguments x = moe_detail::validated(ordered.arguments_before(), {});
  MoeArguments with_y = x;
  with_y.y = moe_detail::validated(ordered.arguments(), {}).y;
  const auto part = moe_detail::part_of(with_y, 0, of.tokens, ran.workspace.get(), ran.gather);
  return test::count_far(part, x, moe_detail::validated(added.arguments(), {}).y);
}

TEST(EmulatedMoe, RowsThatAreAdded) {
  const LayerCase of = {.tokens = 66, .hidden = 96, .inner = 512, .experts = 2, .top_k = 2};
  const auto with = [&](const auto& change) {
    LayerCase changed = of;
    change(changed);
    return count_far(changed);
  };
  for (const Format y : {Format::f32, Format::f16, Format::bf16}) {
    EXPECT_EQ(with([&](LayerCase& c) {
                c.y = y;
                c.bias = c.residual = true;
                c.largest_weight = 0x1p-26;  // of f16's range
              }),
              0)
        << format_traits(y).name;
  }
  EXPECT_EQ(with([](LayerCase& c) {
              c.hidden = 97;
              c.y = Format::f32;
              c.routing = Routing::one_hot;
            }),
            0);
  EXPECT_EQ(with([](LayerCase& c) {
              c.w13 = c.w2 = Recipe::nvfp4;
              c.routing = Routing::half_of_it;
              c.residual = c.in_place = true;
            }),
            0);
  EXPECT_EQ(with([](LayerCase& c) {
              c.shared = 2;
              c.weights = false;
              c.routing = Routing::elsewhere;
            }),
            0);
  EXPECT_EQ(with([](LayerCase& c) { c.weights_on_input = true; }), 0);
}

TEST(EmulatedMoe, PlantedBugsOfRowsThatAreAdded) {
  const auto product = [](auto& part) -> auto& {
    return std::get<Fp8GroupedParams>(part.down.steps.front().params).order.map;
  };
  const std::pair<const char*, LayerPlant> plants[] = {
      {"no weights", [&](auto& part) { product(part).weights = nullptr; }},
      {"a row is not added", [&](auto& part) { --product(part).rows; }},
  };
  const LayerCase of = {.tokens = 66, .hidden = 96, .inner = 512, .experts = 2, .top_k = 2};
  for (const auto& [name, plant] : plants) EXPECT_GT(count_far(of, plant), 20) << name;
}

// Where experts have few rows or short products, or chunks of rows are not whole, they are added in
// order though they need not be.
TEST(EmulatedMoe, RowsThatAreAddedInOrderAnyhow) {
  const auto adds = [](std::int64_t tokens, std::int64_t hidden, std::int64_t inner) {
    Random random(2);
    LayerProblem problem(random, {.tokens = tokens,
                                  .hidden = hidden,
                                  .inner = inner,
                                  .experts = 2,
                                  .top_k = 2,
                                  .deterministic = false});
    const MoeArguments x = moe_detail::validated(problem.arguments(), {});
    const cuda::Chip chip = test::chip_of(3);
    return moe_detail::plan_moe(x, moe_detail::parts_of(x, {}, chip), chip).parts.at(0).adds;
  };
  EXPECT_TRUE(adds(64, 96, 512));
  EXPECT_FALSE(adds(63, 96, 512));
  EXPECT_FALSE(adds(64, 97, 512));
  EXPECT_FALSE(adds(64, 96, 384));
}

TEST(EmulatedMoe, EveryArchitecture) {
  for (const cuda::Chip& chip : test::chips_of_every_architecture()) {
    cuda::Chip few = chip;
    few.multiprocessors = 3;
    check({.tokens = 5, .hidden = 64, .inner = 64, .shared = 1}, emulator::random_order(3), few);
  }
}

TEST(EmulatedMoe, PartsChangeNothing) {
  const LayerCase of = {.w13 = Recipe::nvfp4,
                        .w2 = Recipe::nvfp4,
                        .tokens = 140,
                        .hidden = 512,
                        .inner = 64,
                        .experts = 8,
                        .top_k = 1,
                        .apart = true};
  const auto result_of = [&](std::int64_t limit, std::size_t parts) {
    Random random(2);
    LayerProblem problem(random, of);
    MoeOptions limits;
    limits.workspace_limit = limit;
    const EmulatedLayer ran =
        test::emulate(problem, test::chip_of(3), emulator::in_order(), limits);
    EXPECT_EQ(ran.plan.parts.size(), parts) << ran.plan.str();
    return problem.y().bytes();
  };
  EXPECT_EQ(result_of(1, 2), result_of(std::int64_t{1} << 30, 1));
}

}  // namespace
}  // namespace blockscale
