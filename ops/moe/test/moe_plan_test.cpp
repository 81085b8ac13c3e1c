// Plans of layers: which kernels, how much memory, and what they say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <variant>

#include "blockscale/cuda.h"
#include "ops/moe/cuda/plan.h"
#include "ops/moe/cuda/roofline.h"
#include "ops/moe/test/layer_problem.h"
#include "tests/chip.h"

namespace blockscale {
namespace {

using test::LayerCase;
using test::LayerProblem;
using test::Random;
using ::testing::HasSubstr;
using ::testing::Not;

std::string plan_text(const LayerCase& of, const char* chip = "H200") {
  Random random(1);
  LayerProblem problem(random, of);
  return cuda::describe_moe(problem.arguments(), {}, cuda::chip_named(chip));
}

TEST(MoePlan, SaysItsLaunches) {
  const std::string text = plan_text({.hidden = 256, .inner = 256});
  EXPECT_THAT(text, HasSubstr("moe_sort: 57 entries"));
  EXPECT_THAT(text, HasSubstr("\nquantize_blocks_fp8_e4m3_128_bf16"));
  EXPECT_THAT(text, HasSubstr("grouped_gemm_fp8_64x128_blocks_quantized"));
  EXPECT_THAT(text, HasSubstr("moe_finalize: 19 runs"));
  EXPECT_THAT(text, HasSubstr("4.0 experts are hit"));
  EXPECT_THAT(text, HasSubstr("all: at least"));
  EXPECT_THAT(text, Not(HasSubstr("moe_join_scales")));
  EXPECT_THAT(plan_text({.inner = 80, .apart = true}), HasSubstr("moe_join_scales: 640 rows"));
  EXPECT_EQ(plan_text({.tokens = 0}), "nothing to launch\n");
  // Rates of plain kernels are not known.
  const std::string plain = plan_text({.w13 = Recipe::bf16, .w2 = Recipe::bf16});
  EXPECT_THAT(plain, HasSubstr("grouped_gemm_plain"));
  EXPECT_THAT(plain, Not(HasSubstr("all: at least")));
  EXPECT_THAT(plan_text({}, "RTX 5090"), Not(HasSubstr(" us\n")));
}

TEST(MoePlan, OnSm120FewRowsReadFp4WeightsOnce) {
  const std::string text =
      plan_text({.w13 = Recipe::mxfp4, .w2 = Recipe::mxfp4, .tokens = 3}, "RTX 5090");
  EXPECT_THAT(text, HasSubstr("grouped_gemm_few_rows_mxfp4_8: "));
  EXPECT_THAT(text, Not(HasSubstr("plain")));
}

TEST(MoePlan, OnSm120KernelsThatTakeScalesTakeBothProducts) {
  LayerCase of = {.hidden = 256, .inner = 256};
  const std::string fp8 = plan_text(of, "RTX 5090");
  EXPECT_THAT(fp8, HasSubstr("quantize_gathered_fp8_e4m3_128_bf16"));
  of.w13 = of.w2 = Recipe::mxfp4;
  of.activations = Recipe::mxfp8_e4m3;
  const std::string mx = plan_text(of, "RTX 5090");
  EXPECT_THAT(mx, HasSubstr("those of groups gathered to the workspace"));
  EXPECT_THAT(mx, HasSubstr("gemm_block_scaled_mxfp8_e4m3_mxfp4_32x128: "));
  for (const std::string& text : {fp8, mx}) EXPECT_THAT(text, Not(HasSubstr("plain")));
}

TEST(MoePlan, TheFirstProductGathers) {
  EXPECT_THAT(plan_text({.x = Recipe::fp8_1x128, .hidden = 256}), HasSubstr("A gathered"));
  for (const Recipe activations : {Recipe::fp8_1x128, Recipe::fp8_1x128_pow2, Recipe::bf16}) {
    EXPECT_THAT(plan_text({.activations = activations}), HasSubstr("A gathered"));
  }
  const auto of_mxfp4 = [](Recipe activations) {
    return plan_text({.w13 = Recipe::mxfp4, .w2 = Recipe::mxfp4, .activations = activations});
  };
  EXPECT_THAT(of_mxfp4(Recipe::mxfp8_e4m3), HasSubstr("A gathered"));
  // Beside FP4 weights, rows in FP8 are those of tensor copies, which take them in a row.
  EXPECT_THAT(of_mxfp4(Recipe::fp8_row), HasSubstr("those of groups gathered to the workspace"));
  // The kernel gathers 16 bytes at a time; elsewhere, and by other kernels, the quantizer does.
  for (const std::string& text : {plan_text({.hidden = 264}), plan_text({}, "B200")}) {
    EXPECT_THAT(text, HasSubstr("quantize_gathered_fp8_e4m3_128_bf16"));
    EXPECT_THAT(text, Not(HasSubstr("A gathered")));
  }
}

TEST(MoePlan, WeightedRowsAreNotGathered) {
  const std::string text = plan_text({.hidden = 256, .inner = 256, .weights_on_input = true});
  EXPECT_THAT(text, HasSubstr("moe_weigh: 57 runs"));
  EXPECT_THAT(text, HasSubstr("  weigh: "));
  EXPECT_THAT(text, Not(HasSubstr("A gathered")));
}

TEST(MoePlan, SharedExpertsAreDenseProducts) {
  const std::string text = plan_text({.hidden = 256, .inner = 256, .shared = 2});
  EXPECT_THAT(text, HasSubstr("\ngemm_fp8_"));
  EXPECT_THAT(text, HasSubstr("  first product of shared experts: "));
  EXPECT_THAT(text, HasSubstr("all: at least"));
}

TEST(MoePlan, TilesAreThoseOfTheRowsThatAreExpected) {
  Random random(1);
  LayerProblem problem(random, {.tokens = 512, .hidden = 256, .inner = 256});
  const auto text_with = [&](std::int64_t all_experts) {
    problem.arguments().all_experts = all_experts;
    return cuda::describe_moe(problem.arguments(), {}, cuda::chip_named("H200"));
  };
  EXPECT_THAT(text_with(0), HasSubstr("192x128_blocks_quantized"));
  EXPECT_THAT(text_with(4), HasSubstr("192x128_blocks_quantized"));
  EXPECT_THAT(text_with(64), HasSubstr("64x128_blocks_quantized"));
}

TEST(MoePlan, WorkIsOfExpertsThatAreHit) {
  Random random(1);
  LayerProblem problem(random,
                       {.tokens = 2, .hidden = 256, .inner = 128, .experts = 64, .top_k = 1});
  const MoeArguments x = moe_detail::validated(problem.arguments(), {});
  const moe_detail::MoeParts parts = {2, 0, moe_detail::Gather::quantize};
  const moe_detail::LayerWork work = moe_detail::work_of(x, parts);
  EXPECT_NEAR(work.experts_hit, 2 - 1.0 / 64, 1e-9);
  ASSERT_EQ(work.launches.size(), 5u);
  EXPECT_EQ(work.launches[2].operations, 2.0 * 2 * 256 * 256);
  EXPECT_EQ(work.launches[3].operations, 2.0 * 2 * 256 * 128);
  const double weights = 256 * 256 + 2 * 2 * 4;
  const double tokens = 2 * (256 + 2 * 4), between = 2 * (128 + 4);
  EXPECT_NEAR(work.launches[2].bytes, work.experts_hit * weights + tokens + between, 1e-6);
}

TEST(MoePlan, NoPartTakesTheKernelOfFewRows) {
  Random random(1);
  LayerProblem problem(random,
                       {.tokens = 130, .hidden = 256, .inner = 256, .experts = 70, .top_k = 1});
  const cuda::Chip chip = cuda::chip_named("H200");
  const auto takes_it = [&](std::int64_t tokens, const MoeOptions& options) {
    MoeArguments x = moe_detail::validated(problem.arguments(), options);
    x.x.rows = x.y.rows = tokens;
    const moe_detail::MoePlan plan =
        moe_detail::plan_moe(x, moe_detail::parts_of(x, options, chip), chip);
    EXPECT_EQ(plan.parts.size(), options.workspace_limit == 1 && tokens > 128 ? 2u : 1u);
    return std::holds_alternative<Fp8FewRowsParams>(plan.parts.back().up.steps.front().params);
  };
  EXPECT_TRUE(takes_it(2, {}));
  EXPECT_FALSE(takes_it(130, {}));
  EXPECT_FALSE(takes_it(130, {.workspace_limit = 1}));
}

TEST(MoePlan, FewEntriesAreNotSorted) {
  const LayerCase of = {.tokens = 1, .hidden = 256, .inner = 256, .experts = 3};
  const std::string text = plan_text(of);
  EXPECT_TRUE(
      text.starts_with("nothing is sorted: each entry has the row of its number\n"
                       "quantize_blocks_"))
      << text;
  EXPECT_THAT(
      text, HasSubstr("few_rows: at most 12 tiles of 8 x 128, each of an entry, K divided among 1 "
                      "warps, D transformed"));
  EXPECT_THAT(text, HasSubstr("moe_finalize: 1 runs"));
  EXPECT_THAT(text, Not(HasSubstr("sort: ")));
  EXPECT_THAT(text, Not(HasSubstr("gathered")));
  EXPECT_THAT(plan_text(of, "B200"), HasSubstr("moe_sort: 3 entries"));
}

// Of several tokens those are sorted that are to share experts, and those with more than 32.
TEST(MoePlan, EntriesAreSortedByHowManyTheyAreAndByWhatTheLayerIs) {
  Random random(1);
  LayerProblem problem(random, {.tokens = 11, .hidden = 256, .inner = 256, .experts = 3});
  const auto is_sorted = [&](std::int64_t tokens, std::int64_t all_experts, const auto& change) {
    MoeArguments x = problem.arguments();
    x.x.rows = x.y.rows = tokens;
    x.all_experts = all_experts;
    change(x);
    x = moe_detail::validated(x, {});
    const cuda::Chip chip = cuda::chip_named("H200");
    const moe_detail::MoeParts parts = moe_detail::parts_of(x, {}, chip);
    const bool sorts = moe_detail::plan_moe(x, parts, chip).parts.at(0).sort.has_value();
    EXPECT_EQ(parts.gather != moe_detail::Gather::entries, sorts);
    return sorts;
  };
  const auto nothing = [](MoeArguments&) {};
  EXPECT_FALSE(is_sorted(1, 0, nothing));
  EXPECT_FALSE(is_sorted(2, 24, nothing));
  EXPECT_TRUE(is_sorted(2, 23, nothing));
  EXPECT_FALSE(is_sorted(10, 1000, nothing));
  EXPECT_TRUE(is_sorted(11, 1000, nothing));
  EXPECT_TRUE(is_sorted(1, 0, [](MoeArguments& x) { x.weights_on_input = true; }));
  EXPECT_TRUE(is_sorted(1, 0, [](MoeArguments& x) { x.batch_invariant = true; }));
  EXPECT_TRUE(is_sorted(1, 0, [](MoeArguments& x) { x.activations = Recipe::bf16; }));
  const std::int32_t map[] = {2, 1, 0};
  EXPECT_TRUE(is_sorted(1, 0, [&](MoeArguments& x) {
    x.expert_map = map;
    x.mapped_ids = 3;
  }));
}

TEST(MoePlan, EveryPartTakesTheKernelOfFewRowsOfFp4) {
  Random random(1);
  LayerProblem problem(random, {.w13 = Recipe::mxfp4,
                                .w2 = Recipe::mxfp4,
                                .tokens = 130,
                                .hidden = 256,
                                .inner = 256,
                                .experts = 70,
                                .top_k = 4});
  const cuda::Chip chip = cuda::chip_named("H200");
  const MoeOptions options = {.workspace_limit = 1};
  const MoeArguments x = moe_detail::validated(problem.arguments(), options);
  const moe_detail::MoePlan plan =
      moe_detail::plan_moe(x, moe_detail::parts_of(x, options, chip), chip);
  ASSERT_EQ(plan.parts.size(), 2u);
  for (const moe_detail::MoePartPlan& part : plan.parts) {
    EXPECT_THAT(part.up.str(), HasSubstr("grouped_gemm_few_rows_mxfp4_8"));
    EXPECT_THAT(part.down.str(), HasSubstr("grouped_gemm_few_rows_mxfp4_8"));
  }
}

TEST(MoePlan, MemoryIsOfShapesAlone) {
  Random random(1);
  LayerProblem problem(random, {.tokens = 500, .hidden = 512, .inner = 256});
  MoeArguments x = moe_detail::validated(problem.arguments(), {});
  const cuda::Chip chip = cuda::chip_named("H200");
  const std::int64_t whole = moe_detail::parts_of(x, {}, chip).workspace_bytes;
  // Rows of both products; x's rows are where the second one's will be, and none is of twice I.
  const std::int64_t entries = 1500, rows = entries * (512 * 2 + 256 + 16);
  EXPECT_GE(whole, rows);
  EXPECT_LE(whole, rows + 2 * entries * 4 + 4096);
  for (const std::int64_t limit : {whole, whole - 1, whole / 2, whole / 3, std::int64_t{1}}) {
    const moe_detail::MoeParts parts = moe_detail::parts_of(x, {.workspace_limit = limit}, chip);
    EXPECT_TRUE(parts.workspace_bytes <= limit || parts.tokens == moe_detail::kPartTokens);
    EXPECT_EQ(parts.tokens == 500, limit == whole) << limit;
    EXPECT_EQ(parts.workspace_bytes % 16, 0);
  }
}

}  // namespace
}  // namespace blockscale
