// What becomes of grouped products, and products whose groups divide k, as the GPU's kernels
// compute them, in the emulator.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "ops/gemm/test/transformed.h"
#include "ops/grouped_gemm/cuda/plan.h"
#include "ops/grouped_gemm/test/emulation.h"
#include "ops/grouped_gemm/test/k_grouped_reference.h"
#include "ops/grouped_gemm/test/launched_problem.h"
#include "tests/chip.h"

namespace blockscale {
namespace {

using grouped_gemm_detail::GroupedPlan;
using test::GroupedCase;
using test::InputFamily;
using test::LaunchedProblem;
using test::Random;

/// D in f32 of a problem's product, without what comes behind it.
std::vector<float> product_of(const GroupedGemmArguments& arguments,
                              std::vector<emulator::Buffer> buffers) {
  GroupedGemmArguments x = arguments;
  x.quantized.reset();
  x.transform = Identity{};
  x.destinations = nullptr;
  x.weights = nullptr;
  const std::int64_t rows = x.rows != 0 ? x.rows : x.a.rows;
  std::vector<float> numbers(static_cast<std::size_t>(x.a.batch * rows * x.b.rows), NAN);
  x.d = {numbers.data(), Format::f32, rows, x.b.rows, x.b.rows};
  x.d.batch = x.a.batch;
  x.d.batch_stride = rows * x.b.rows;
  buffers.push_back(emulator::output("numbers", numbers));
  EXPECT_TRUE(test::emulate(grouped_gemm_detail::validated(x), test::chip_of(3), buffers,
                            emulator::in_order()));
  return numbers;
}

/// Rows of groups, of all that lie one behind the other: `of_matrix` in a matrix, if each has one.
std::vector<std::int64_t> rows_of_groups(const std::vector<std::int32_t>& counts,
                                         std::int64_t of_matrix) {
  std::vector<std::int64_t> rows;
  for (std::size_t g = 0; g < counts.size(); ++g) {
    const std::int64_t first =
        of_matrix != 0 ? static_cast<std::int64_t>(g) * of_matrix : std::ssize(rows);
    for (std::int64_t i = 0; i < counts[g]; ++i) rows.push_back(first + i);
  }
  return rows;
}

/// Few enough for kernels that read B once for eight of them.
const std::vector<std::int32_t> kFewRows = {1, 0, 9, 0, 0, 0, 2, 0, 0, 0,
                                            0, 0, 0, 0, 0, 0, 0, 0, 0, 0};

/// The columns of D that the kernel of few rows stores; 0 where another one computes the product,
/// or another transforms it.
std::int64_t columns_of_few_rows(const GroupedPlan& plan) {
  const auto* const p = std::get_if<Fp8FewRowsParams>(&plan.steps.at(0).params);
  return p == nullptr || !p->is_transformed ? 0 : p->epilogue.d.row_stride;
}

TEST(EmulatedGroupResults, AreTransformed) {
  struct Case {
    Recipe a, b;
    std::vector<std::int32_t> rows;
    std::int64_t n = 128, k = 128;
    bool is_few = false, masked = false;
  };
  const Case cases[] = {{Recipe::fp8_1x128, Recipe::fp8_128x128, {3, 0, 37, 20}},
                        {Recipe::fp8_1x128, Recipe::fp8_128x128, kFewRows, 384, 272, true},
                        {Recipe::fp8_1x128, Recipe::fp8_128x128, {1, 0, 2}, 128, 272, true, true},
                        {Recipe::bf16, Recipe::mxfp4, {3, 0, 37, 20}}};
  for (const Case& given : cases) {
    const bool is_few = given.is_few;
    for (const test::TransformCase& transform : test::kTransformCases) {
      for (const bool scattered : {false, true}) {
        if (is_few && scattered) continue;  // the transform is then a launch, as of other rows
        SCOPED_TRACE(std::string(transform.name) + (scattered ? ", scattered" : "") +
                     (is_few ? ", few rows" : ""));
        Random random(3);
        GroupedCase of = {.a = given.a,
                          .b = given.b,
                          .rows = given.rows,
                          .n = given.n,
                          .k = given.k,
                          .family = InputFamily::normal,
                          .masked = given.masked,
                          .bias = true,
                          .scattered = scattered};
        LaunchedProblem problem(random, of);
        GroupedGemmArguments& x = problem.x();
        if (is_few) x.expected_rows = 1;
        const std::vector<float> numbers = product_of(x, problem.buffers());
        test::TestMatrix d(Format::bf16, x.d.rows, transform.columns(of.n), x.d.batch);
        x.transform = transform.input;
        x.d = d.view();
        const GroupedGemmArguments checked = grouped_gemm_detail::validated(x);
        const GroupedPlan plan = grouped_gemm_detail::plan_grouped(checked, test::chip_of(3));
        EXPECT_EQ(columns_of_few_rows(plan), is_few ? x.d.columns : 0);
        ASSERT_TRUE(
            test::emulate(checked, test::chip_of(3), problem.buffers(), emulator::random_order(4)));
        test::TestMatrix expected(Format::bf16, x.d.rows, x.d.columns, x.d.batch);
        for (const std::int64_t r : rows_of_groups(given.rows, given.masked ? x.d.rows : 0)) {
          const std::int64_t to = scattered ? x.destinations[r] : r;
          if (to < 0) continue;
          for (std::int64_t c = 0; c < x.d.columns; ++c) {
            float y = test::transformed(x.transform, numbers.data() + r * of.n, of.n, c);
            if (scattered) y *= x.weights[r];
            const auto code =
                static_cast<std::uint16_t>(encode(Format::bf16, y, Overflow::propagate));
            static_cast<std::uint16_t*>(expected.view().data)[to * x.d.columns + c] = code;
          }
        }
        EXPECT_EQ(d.bytes(), expected.bytes());
      }
    }
  }
}

/// A tensor of poison.
struct Quantized {
  Quantized(Recipe recipe, std::int64_t rows, std::int64_t k, ScaleLayout layout) {
    view.recipe = recipe;
    view.rows = rows;
    view.k = k;
    view.layout = layout;
    values.assign(static_cast<std::size_t>(value_bytes(recipe, rows, k)), 0xA5);
    scales.assign(static_cast<std::size_t>(scale_bytes(recipe, layout, rows, k)), 0xA5);
    view.values = values.data();
    view.scales = scales.data();
    view = resolved(view, "quantized");
  }
  std::vector<std::uint8_t> values, scales;
  float tensor_scale = 1;
  MutableScaledTensorView view;
};

TEST(EmulatedGroupResults, AreQuantized) {
  struct Case {
    Recipe b, result;
    QuantizeInput input;
    ScaleLayout layout;
    std::vector<std::int32_t> rows;
    bool gathered = false;
    bool in_epilogue = true;  // of FP8 kernels
  };
  const std::vector<Case> cases = {
      {Recipe::fp8_128x128,
       Recipe::fp8_1x128,
       Swiglu{},
       ScaleLayout::row_major,
       {201, 0, 150, 1},
       true},
      {Recipe::fp8_128x128, Recipe::fp8_1x128, Swiglu{}, ScaleLayout::row_major, kFewRows, true,
       false},
      {Recipe::fp8_128x128, Recipe::fp8_1x128, Swiglu{GateOrder::up_first, 64, 7, 1.702f, 1},
       ScaleLayout::mn_major, kFewRows, false, false},
      {Recipe::fp8_128x128, Recipe::fp8_1x128, Swiglu{}, ScaleLayout::row_major, {3, 0, 37, 20}},
      {Recipe::fp8_128x128, Recipe::fp8_1x128, Swiglu{}, ScaleLayout::mn_major, {3, 0, 137, 70}},
      {Recipe::fp8_128x128, Recipe::mxfp8_e4m3, Identity{}, ScaleLayout::row_major, {20, 0, 33}},
      {Recipe::fp8_128x128, Recipe::mxfp8_e4m3, Gelu{}, ScaleLayout::swizzled_128x4, {20, 0, 33}},
      {Recipe::fp8_128x128,
       Recipe::fp8_1x128_ue8m0,
       Swiglu{GateOrder::up_first, 64},
       ScaleLayout::row_major,
       {150, 1}},
      {Recipe::fp8_1x128,
       Recipe::fp8_1x128,
       Swiglu{GateOrder::gate_first, 1},
       ScaleLayout::row_major,
       {20, 0, 33},
       true},
      {Recipe::fp8_128x128,
       Recipe::fp8_1x128,
       Swiglu{GateOrder::up_first, 1, 7, 1.702f, 1},
       ScaleLayout::row_major,
       {3, 0, 37, 20}},
      // By a quantizer behind the kernels of tiles and of few rows.
      {Recipe::fp8_128x128,
       Recipe::fp8_1x128,
       Silu{},
       ScaleLayout::mn_major,
       {3, 0, 137, 70},
       false,
       false},
      {Recipe::fp8_128x128, Recipe::mxfp8_e4m3, Silu{}, ScaleLayout::swizzled_128x4, kFewRows, true,
       false},
      // A scale of a whole row.
      {Recipe::fp8_128x128,
       Recipe::fp8_row,
       Swiglu{},
       ScaleLayout::mn_major,
       {3, 0, 137, 70},
       false,
       false},
      {Recipe::fp8_128x128, Recipe::fp8_row, Swiglu{GateOrder::gate_first, 1, 7, 1.702f, 1},
       ScaleLayout::row_major, kFewRows, true, false},
      // By plain kernels, and a quantizer behind them.
      {Recipe::mxfp4, Recipe::fp8_row, Swiglu{}, ScaleLayout::row_major, {20, 0, 33}},
      {Recipe::mxfp4, Recipe::mxfp8_e4m3, Silu{}, ScaleLayout::row_major, {20, 0, 33}},
      {Recipe::mxfp4, Recipe::mxfp8_e4m3, Swiglu{}, ScaleLayout::swizzled_128x4, {20, 0, 33}},
      {Recipe::mxfp4,
       Recipe::mxfp8_e4m3,
       Swiglu{GateOrder::gate_first, 1, 7, 1.702f, 1},
       ScaleLayout::swizzled_128x4,
       {20, 0, 33}},
      {Recipe::nvfp4, Recipe::nvfp4, Gelu{}, ScaleLayout::row_major, {2, 0, 3}, true},
      {Recipe::mxfp4, Recipe::fp8_1x128, Identity{}, ScaleLayout::mn_major, {20, 0, 33}}};
  for (const Case& c : cases) {
    Random random(3);
    const bool is_fp8 = recipe_traits(c.b).family == Family::fp8;
    const std::int64_t n = std::holds_alternative<Swiglu>(c.input) ? 512 : 256;
    LaunchedProblem problem(random, {.a = is_fp8 ? Recipe::fp8_1x128 : Recipe::bf16,
                                     .b = c.b,
                                     .rows = c.rows,
                                     .n = n,
                                     .k = 256,
                                     .family = InputFamily::normal,
                                     .bias = true,
                                     .gathered = c.gathered});
    GroupedGemmArguments& x = problem.x();
    const std::vector<float> numbers = product_of(x, problem.buffers());
    const std::int64_t rows = x.d.rows, columns = n == 512 ? n / 2 : n;
    Quantized out(c.result, rows, columns, c.layout), all(c.result, rows, columns, c.layout);
    QuantizeOptions options;
    options.input = c.input;
    if (c.result == Recipe::nvfp4) {
      options.scale_source = ScaleSource::given;
      out.view.tensor_scale = all.view.tensor_scale = &out.tensor_scale;
      out.tensor_scale = 37;
    }
    quantize(MatrixView{numbers.data(), Format::f32, rows, n}, all.view, options);
    x.quantized = {out.view, options};
    const GroupedGemmArguments checked = grouped_gemm_detail::validated(x);
    const GroupedPlan plan = grouped_gemm_detail::plan_grouped(checked, test::chip_of(3));
    EXPECT_EQ(plan.workspace_bytes == 0, is_fp8 && c.in_epilogue);
    EXPECT_EQ(columns_of_few_rows(plan), c.rows == kFewRows ? columns : 0);
    ASSERT_TRUE(
        test::emulate(checked, test::chip_of(3), problem.buffers(), emulator::random_order(4)));
    std::int64_t behind = 0;
    for (const std::int32_t count : c.rows) behind += count;
    const std::int64_t row_bytes_of = out.view.value_row_stride;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i < row_bytes_of; ++i) {
        const auto at = static_cast<std::size_t>(r * row_bytes_of + i);
        ASSERT_EQ(out.values[at], r < behind ? all.values[at] : 0xA5) << r << ", " << i;
      }
      const ScaleGrid grid = scale_grid(c.result, rows, columns);
      const auto size =
          static_cast<std::int64_t>(format_traits(recipe_traits(c.result).scale).bits / 8);
      for (std::int64_t j = 0; j < grid.columns * size; ++j) {
        const auto at = static_cast<std::size_t>(
            scale_offset(c.layout, r, j / size, out.view.scale_leading_stride) * size + j % size);
        ASSERT_EQ(out.scales[at], r < behind ? all.scales[at] : 0xA5) << r << ", scale " << j;
      }
    }
  }
}

TEST(EmulatedGroupsOfK, BeginAndEndAnywhere) {
  struct Case {
    Recipe a, b;
    std::vector<std::int32_t> offsets;
    std::int64_t m = 37, n = 21, k = 320;
  };
  // The last one's sizes straddle groups where a peer has clusters.
  const std::vector<Case> cases = {{Recipe::fp8_1x128, Recipe::fp8_1x128, {0, 130, 130, 257, 320}},
                                   {Recipe::fp8_128x128, Recipe::fp8_128x128, {5, 6, 64, 320, 320}},
                                   {Recipe::fp8_row, Recipe::fp8_row, {0, 320, 320, 320, 320}},
                                   {Recipe::nvfp4, Recipe::nvfp4, {1, 15, 16, 100, 319}},
                                   {Recipe::mxfp6_e2m3, Recipe::mxfp6_e2m3, {0, 33, 95, 161, 400}},
                                   {Recipe::bf16, Recipe::bf16, {-7, 63, 64, 65, 200}},
                                   {Recipe::f16, Recipe::mxfp8_e4m3, {0, 31, 65, 66, 320}},
                                   {Recipe::f32, Recipe::f32, {0, 31, 65, 66, 320}},
                                   {Recipe::bf16, Recipe::bf16, {0, 128, 384}, 192, 3072, 384}};
  for (const Case& c : cases) {
    for (const bool adds : {false, true}) {
      if (adds && c.n > 1000) continue;  // the time of all others
      SCOPED_TRACE(std::string(recipe_traits(c.a).name) + (adds ? ", adds" : ""));
      Random random(8);
      test::OperandOptions options;
      options.smallest_scales = false;
      const test::TestOperand a(random, c.a, c.m, c.k, InputFamily::adversarial, options);
      const test::TestOperand b(random, c.b, c.n, c.k, InputFamily::adversarial, options);
      const auto groups = static_cast<std::int64_t>(c.offsets.size() - 1);
      std::vector<float> d(static_cast<std::size_t>(groups * c.m * c.n), NAN);
      if (adds) {
        for (float& x : d) x = static_cast<float>(test::normal_real(random));
      }
      const std::vector<float> before = d;
      KGroupedGemmArguments x;
      x.a = a.view();
      x.b = b.view();
      x.d = {d.data(), Format::f32, c.m, c.n, c.n, groups};
      x.offsets = c.offsets.data();
      x.alpha = 1.5f;
      x.adds = adds;
      x = grouped_gemm_detail::validated(x);
      GroupedPlan plan = grouped_gemm_detail::plan_k_grouped(x, test::chip_of(3));
      ASSERT_TRUE(test::emulate(plan, test::buffers_of(x), emulator::random_order(3)))
          << plan.str();
      const test::Rows a_rows = test::rows_of(a.view()), b_rows = test::rows_of(b.view());
      constexpr auto kPath = gemm_detail::GemmPath::plain;
      EXPECT_LE(test::of_usual(kPath, x, a_rows, b_rows, before), 1);
      EXPECT_GT(test::of_usual(kPath, x, a_rows, b_rows, before, 1), 1) << "accepts neighbours";
    }
  }
}

}  // namespace
}  // namespace blockscale
