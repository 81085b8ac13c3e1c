// How cuda::quantize_rows_and_columns becomes launches, and what it needs for them.
#include "ops/quantize/cuda/rows_and_columns_plan.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "blockscale/quantize.h"
#include "tests/expect_error.h"

namespace blockscale {
namespace {

/// A call on memory that is never touched.
struct RowsAndColumns {
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
  const RowsAndColumns problem;
  const auto plan = problem.plan();
  EXPECT_EQ(plan.str(),
            "quantize_rows_and_columns_fp8_e4m3_bf16: 6 tiles, vector loads, vector stores "
            "of rows, vector stores of columns, scales row_major and row_major\n");
  EXPECT_EQ(plan.shape.grid.x, 6u);
  EXPECT_EQ(plan.shape.block.x, 256u);
  EXPECT_EQ(plan.shape.dynamic_shared_bytes, 18464u);
}

TEST(CudaRowsAndColumnsPlan, RefusesMoreMatricesThanKernelsNumber) {
  RowsAndColumns problem;
  problem.resize(1, 1);
  problem.x.batch = problem.rows.batch = problem.columns.batch = (std::int64_t{1} << 32) + 1;
  test::expect_error(ErrorCode::unsupported, "x", "4294967297 matrices", [&] { problem.plan(); });
}

TEST(CudaRowsAndColumnsPlan, HasNothingToDoForEmptyMatrices) {
  RowsAndColumns problem;
  problem.x.rows = problem.rows.rows = problem.columns.k = 0;
  EXPECT_EQ(problem.plan().kernel, -1);
  EXPECT_EQ(problem.plan().str(), "nothing to do\n");
}

TEST(CudaRowsAndColumnsPlan, FindsTheRstdOfRmsNormBefore) {
  RowsAndColumns problem;
  problem.options.input =
      RmsNorm{{reinterpret_cast<const void*>(std::uintptr_t{1} << 39), Format::f32, 1, 384}};
  const auto plan = problem.plan();
  EXPECT_EQ(plan.rstd.count, 1);
  EXPECT_EQ(plan.rstd.workspace_bytes, 256 * 4);
  problem.options.input = {};
  EXPECT_EQ(problem.plan().rstd.count, 0);
  EXPECT_EQ(problem.plan().rstd.workspace_bytes, 0);
}

void expect_unsupported(const RowsAndColumns& problem, const char* argument, const char* message) {
  test::expect_error(ErrorCode::unsupported, argument, message, [&] { (void)problem.plan(); });
}

TEST(CudaRowsAndColumnsPlan, RefusesWhatHasNoKernel) {
  RowsAndColumns wide;
  wide.resize(1, std::int64_t{1} << 30);
  expect_unsupported(wide, "out_rows.k", "is 1073741824, must be below 2^30");
  RowsAndColumns large;
  large.resize(std::int64_t{1} << 25, std::int64_t{1} << 25);
  large.rows.values = reinterpret_cast<void*>(std::uintptr_t{1} << 52);
  large.columns.values = reinterpret_cast<void*>(std::uintptr_t{1} << 54);
  large.rows.scales = reinterpret_cast<void*>(std::uintptr_t{1} << 56);
  large.columns.scales = reinterpret_cast<void*>(std::uintptr_t{1} << 58);
  expect_unsupported(large, "x", "tiles");
  RowsAndColumns clamped;
  clamped.options.input = Swiglu{{}, 0, 7};
  clamped.x.columns *= 2;
  expect_unsupported(clamped, "options.input.limit", "is not the usual one");
}

}  // namespace
}  // namespace blockscale
