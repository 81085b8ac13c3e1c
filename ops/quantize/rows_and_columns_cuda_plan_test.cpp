// How cuda::quantize_rows_and_columns becomes launches, and what it needs for them.
#include "ops/quantize/rows_and_columns_cuda_plan.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "blockscale/quantize.h"
#include "tests/expect_error.h"

namespace blockscale {
namespace {

/// A call on memory that is never touched.
struct Problem {
  MatrixView x{reinterpret_cast<const void*>(std::uintptr_t{1} << 40), Format::bf16, 256, 384};
  MutableScaledTensorView rows = output(256, 384, 41), columns = output(384, 256, 42);
  QuantizeOptions options;

  /// Makes it one of a [rows, k] matrix.
  void resize(std::int64_t rows_of_x, std::int64_t k) {
    x.rows = rows.rows = columns.k = rows_of_x;
    x.columns = rows.k = columns.rows = k;
  }

  static MutableScaledTensorView output(std::int64_t rows, std::int64_t k, int log2_address) {
    MutableScaledTensorView out;
    out.recipe = Recipe::fp8_1x128;
    out.rows = rows;
    out.k = k;
    out.values = reinterpret_cast<void*>(std::uintptr_t{1} << log2_address);
    out.scales = reinterpret_cast<void*>(std::uintptr_t{1} << (log2_address + 2));
    return out;
  }
  quantize_detail::RowsAndColumnsPlan plan() const {
    return plan_rows_and_columns(quantize_detail::validated(x, rows, columns, options), options, {},
                                 reinterpret_cast<void*>(std::uintptr_t{1} << 52));
  }
};

TEST(CudaRowsAndColumnsPlan, HasOneBlockForEachTile) {
  const Problem problem;
  const auto plan = problem.plan();
  EXPECT_EQ(
      plan.str(),
      "quantize_rows_and_columns_fp8_e4m3_bf16_identity: 6 tiles, vector loads, vector stores "
      "of rows, vector stores of columns, scales row_major and row_major\n");
  EXPECT_EQ(plan.launches[0].shape.grid.x, 6u);
  EXPECT_EQ(plan.launches[0].shape.block.x, 256u);
  EXPECT_EQ(plan.launches[0].shape.dynamic_shared_bytes, 19488u);
}

/// A square matrix of k columns.
Problem square(std::int64_t k, ScaleLayout layout) {
  Problem problem;
  problem.resize(k, k);
  problem.rows.layout = problem.columns.layout = layout;
  return problem;
}

TEST(CudaRowsAndColumnsPlan, GivesLargeInputsAFormOfTheirOwn) {
  const auto plan = square(8192, ScaleLayout::mn_major).plan();
  EXPECT_EQ(plan.str(),
            "quantize_rows_and_columns_fp8_e4m3_bf16_identity_large: 4096 tiles, vector loads, "
            "vector stores of rows, vector stores of columns, scales mn_major and mn_major\n");
  EXPECT_EQ(plan.workspace_bytes, 0);
  ASSERT_EQ(plan.launches.size(), 1u);
  EXPECT_EQ(plan.launches[0].shape.grid.x, 4096u);
  EXPECT_EQ(plan.launches[0].shape.block.x, 128u);
  EXPECT_FALSE(plan.launches[0].params.rows.lets_next_start);
}

TEST(CudaRowsAndColumnsPlan, DividesLargeInputsWithScalesOfRowMajor) {
  const auto plan = square(8192, ScaleLayout::row_major).plan();
  const std::string kernel = "quantize_rows_and_columns_fp8_e4m3_bf16_identity_large: ";
  const std::string stores =
      " tiles, vector loads, vector stores of rows, vector stores of columns, scales ";
  EXPECT_EQ(plan.str(), kernel + "2048" + stores + "mn_major and mn_major\n" +  //
                            kernel + "1536" + stores +
                            "mn_major and mn_major, 128 thread blocks move scales\n" +  //
                            kernel + "512" + stores +
                            "row_major and row_major, 112 thread blocks move scales\n");
  // Two places for 32 x 64 tiles with 256 scales each.
  EXPECT_EQ(plan.workspace_bytes, 2 * 2048 * 256 * 4);
  ASSERT_EQ(plan.launches.size(), 3u);
  EXPECT_EQ(plan.launches[1].shape.grid.x, 1536u + 128u);
  for (std::size_t i = 0; i < plan.launches.size(); ++i) {
    EXPECT_EQ(plan.launches[i].params.moving_blocks() > 0, i > 0);
    EXPECT_EQ(plan.launches[i].params.rows.lets_next_start, i < 2);
    EXPECT_EQ(plan.launches[i].shape.block.x, 128u);
  }
}

/// The places of three parts are used in turns: what a launch overwrites, the one before the last
/// has moved, and the launch in between has waited for that.
TEST(CudaRowsAndColumnsPlan, HasThreePlacesForScales) {
  Problem problem;
  problem.resize(65536, 4096);
  const auto plan = problem.plan();
  ASSERT_EQ(plan.launches.size(), 9u);
  const auto of = [&](std::size_t i) { return plan.launches[i].params.rows.scales; };
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(plan.launches[i + 1].params.row_scales.from, of(i));
    for (std::size_t j = 0; j < i; ++j) EXPECT_EQ(of(i) == of(j), (i - j) % 3 == 0);
  }
  // The last part's go where they belong: to rows of 32 scales.
  EXPECT_EQ(of(8), plan.launches[1].params.row_scales.to + (65536 - 16 * 128) * 32 * 4);
}

TEST(CudaRowsAndColumnsPlan, DividesTheSideThatLeavesLess) {
  Problem problem;
  problem.resize(1024, 32768);
  const auto plan = problem.plan();
  ASSERT_EQ(plan.launches.size(), 2u);
  for (const auto& launch : plan.launches) EXPECT_EQ(launch.params.rows.rows, 1024u);
  EXPECT_EQ(plan.launches[0].params.rows.k, 200u * 128);
  EXPECT_EQ(plan.launches[1].params.rows.k, 56u * 128);
}

TEST(CudaRowsAndColumnsPlan, DividesIntoEvenPartsOfWholeSectors) {
  const auto plan = square(16384, ScaleLayout::row_major).plan();
  ASSERT_EQ(plan.launches.size(), 9u);
  for (std::size_t i = 0; i < 7; ++i) EXPECT_EQ(plan.launches[i].params.rows.rows, 16u * 128);
  EXPECT_EQ(plan.launches[7].params.rows.rows, 8u * 128);
  EXPECT_EQ(plan.launches[8].params.rows.rows, 8u * 128);
}

/// What rows_and_columns_cuda_gpu_test.cpp takes for calls of so many launches.
TEST(CudaRowsAndColumnsPlan, DividesWhatIsTestedOnAGpu) {
  const auto launches = [](std::int64_t rows, std::int64_t k) {
    Problem problem;
    problem.resize(rows, k);
    return problem.plan().launches.size();
  };
  EXPECT_EQ(launches(4096, 7168), 2u);
  EXPECT_EQ(launches(32768, 4096), 5u);
  EXPECT_EQ(launches(9216, 3072), 2u);
}

/// What cuda.h says.
TEST(CudaRowsAndColumnsPlan, NeedsAtMostTwoKibibytesForATile) {
  int divided = 0;
  for (std::int64_t down = 8; down <= 200; down = down * 9 / 8 + 1) {
    for (std::int64_t across = 8; across <= 200; across = across * 9 / 8 + 1) {
      for (const std::int64_t batch : {1, 7}) {
        Problem problem;
        problem.resize(down * 128 - 100, across * 128 - 100);
        problem.x.batch = problem.rows.batch = problem.columns.batch = batch;
        problem.columns.values = reinterpret_cast<void*>(std::uintptr_t{1} << 56);
        problem.columns.scales = reinterpret_cast<void*>(std::uintptr_t{1} << 58);
        const auto plan = problem.plan();
        divided += plan.launches.size() > 1 ? 1 : 0;
        EXPECT_LE(plan.workspace_bytes, 2048 * down * across * batch) << down << " x " << across;
        EXPECT_EQ(plan.workspace_bytes > 0, plan.launches.size() > 1);
      }
    }
  }
  EXPECT_GT(divided, 30);
}

TEST(CudaRowsAndColumnsPlan, RefusesMoreMatricesThanKernelsNumber) {
  Problem problem;
  problem.resize(1, 1);
  problem.x.batch = problem.rows.batch = problem.columns.batch = (std::int64_t{1} << 32) + 1;
  test::expect_error(ErrorCode::unsupported, "x", "4294967297 matrices", [&] { problem.plan(); });
}

TEST(CudaRowsAndColumnsPlan, HasNothingToDoForEmptyMatrices) {
  Problem problem;
  problem.x.rows = problem.rows.rows = problem.columns.k = 0;
  EXPECT_EQ(problem.plan().kernel, -1);
  EXPECT_EQ(problem.plan().str(), "nothing to do\n");
}

TEST(CudaRowsAndColumnsPlan, FindsTheFactorsOfRmsNormBefore) {
  Problem problem;
  problem.options.input.transform = InputTransform::rms_norm;
  problem.options.input.weight = {reinterpret_cast<const void*>(std::uintptr_t{1} << 39),
                                  Format::f32, 1, 384};
  const auto plan = problem.plan();
  EXPECT_EQ(plan.factors.count, 1);
  EXPECT_EQ(plan.factors.workspace_bytes, 256 * 4);
  problem.options.input = {};
  EXPECT_EQ(problem.plan().factors.count, 0);
  EXPECT_EQ(problem.plan().factors.workspace_bytes, 0);
}

void expect_unsupported(const Problem& problem, const char* argument, const char* message) {
  test::expect_error(ErrorCode::unsupported, argument, message, [&] { (void)problem.plan(); });
}

TEST(CudaRowsAndColumnsPlan, RefusesWhatHasNoKernel) {
  Problem wide;
  wide.resize(1, std::int64_t{1} << 30);
  expect_unsupported(wide, "out_rows.k", "is 1073741824, must be below 2^30");
  Problem large;
  large.resize(std::int64_t{1} << 25, std::int64_t{1} << 25);
  large.rows.values = reinterpret_cast<void*>(std::uintptr_t{1} << 52);
  large.columns.values = reinterpret_cast<void*>(std::uintptr_t{1} << 54);
  large.rows.scales = reinterpret_cast<void*>(std::uintptr_t{1} << 56);
  large.columns.scales = reinterpret_cast<void*>(std::uintptr_t{1} << 58);
  expect_unsupported(large, "x", "tiles");
}

}  // namespace
}  // namespace blockscale
