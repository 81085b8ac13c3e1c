// The kernels of cuda::quantize_rows_and_columns in the emulator: every byte equal to the CPU's,
// and no race, no byte out of bounds, no divergent collective.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "blockscale/quantize.h"
#include "device/emulator/emulator.h"
#include "ops/quantize/cuda/rows_and_columns_plan.h"
#include "ops/quantize/kernels/rows_and_columns.cuh"
#include "ops/quantize/test/emulation.h"
#include "ops/quantize/test/inputs.h"
#include "ops/quantize/test/rows_and_columns_support.h"
#include "ops/quantize/test/support.h"

namespace blockscale {
namespace {

using test::Data;
using Output = test::GuardedOutput;

constexpr Recipe kRecipes1x128[] = {Recipe::fp8_1x128, Recipe::fp8_1x128_pow2,
                                    Recipe::fp8_1x128_ue8m0};
constexpr Format kInputs[] = {Format::bf16, Format::f16, Format::f32};
constexpr ScaleLayout kLayouts[] = {ScaleLayout::row_major, ScaleLayout::mn_major,
                                    ScaleLayout::swizzled_128x4, ScaleLayout::swizzled_8x4};
using Function = void (*)(const RowsAndColumnsParams&);

template <std::size_t... kIndices>
constexpr auto functions(std::index_sequence<kIndices...>) {
  return std::array<Function, sizeof...(kIndices)>{
      &quantize_transpose_tile<kRowsAndColumnsKernels[static_cast<int>(kIndices)]>...};
}
constexpr auto kFunctions =
    functions(std::make_index_sequence<static_cast<std::size_t>(kRowsAndColumnsKernels.count)>());

struct Case {
  Recipe recipe = Recipe::fp8_1x128;
  Format dtype = Format::bf16;
  std::int64_t rows = 128, k = 128, batch = 1;
  std::int64_t x_padding = 0;  // elements behind each row of x
  bool strided = false;        // gaps between the lines of the outputs
  ScaleLayout row_layout = ScaleLayout::row_major;
  ScaleLayout column_layout = ScaleLayout::row_major;
  Data data = Data::mixed;
  float floor = 0;
  std::uint64_t seed = 0;  // of the schedule; 0: in order
  /// What is fused; operands are made by `check`.
  QuantizeInput input = {};
  std::int64_t groups = 1;
  cuda::Chip chip = test::chip_of(1);
  std::function<float(std::int64_t row, std::int64_t column)> value_of = {};  // instead of `data`
};

std::string describe(const Case& c) {
  return std::string(recipe_traits(c.recipe).name) + " " + format_traits(c.dtype).name + " " +
         std::to_string(c.rows) + "x" + std::to_string(c.k) + " batch " + std::to_string(c.batch) +
         " padding " + std::to_string(c.x_padding) + " strided " + std::to_string(c.strided) + " " +
         scale_layout_traits(c.row_layout).name + "/" + scale_layout_traits(c.column_layout).name +
         " " + test::data_name(c.data) + " " + test::describe(c.input) + " groups " +
         std::to_string(c.groups) + " seed " + std::to_string(c.seed);
}

emulator::Buffer output_buffer(const char* name, const void* data,
                               const std::vector<std::uint8_t>& guarded) {
  return emulator::buffer(name, data, guarded.size() - 2 * test::kGuard,
                          emulator::BufferUse::output);
}

void check(const Case& c) {
  const auto seed = static_cast<std::uint32_t>(c.seed + 7);
  const std::int64_t x_columns = test::is_gated(c.input) ? 2 * c.k : c.k;
  test::Matrix x(c.dtype, c.rows, x_columns, c.batch, c.x_padding, c.data, seed);
  if (c.value_of) x.assign(c.value_of);
  const test::Matrix scale(c.dtype, c.groups, c.k, 1, 0, Data::normal, seed + 1);
  const test::Matrix shift(Format::f32, c.groups, c.k, 1, 0, Data::normal, seed + 2);
  const test::Matrix weight(c.dtype, 1, c.k, 1, 0, Data::normal, seed + 3);
  QuantizeOptions options;
  options.threads = 1;
  options.fp8_amax_floor = c.floor;
  options.input = c.input;
  test::set_operands(options.input, scale.view(), shift.view(), weight.view());
  const auto outputs = [&] {
    return std::array{Output(c.recipe, c.row_layout, c.rows, c.k, c.batch, c.strided),
                      Output(c.recipe, c.column_layout, c.k, c.rows, c.batch, c.strided)};
  };
  auto expected = outputs();
  auto actual = outputs();
  quantize_rows_and_columns(x.view(), expected[0].view(), expected[1].view(), options);

  const quantize_detail::RowsAndColumnsArguments a =
      quantize_detail::validated(x.view(), actual[0].view(), actual[1].view(), options);
  std::vector<float> workspace(static_cast<std::size_t>(
      plan_rows_and_columns(a, options, c.chip, nullptr).workspace_bytes / 4));
  const quantize_detail::RowsAndColumnsPlan plan =
      plan_rows_and_columns(a, options, c.chip, workspace.data());
  ASSERT_GE(plan.kernel, 0);
  std::vector<emulator::Buffer> buffers = {
      output_buffer("out_rows.values", actual[0].view().values, actual[0].values()),
      output_buffer("out_rows.scales", actual[0].view().scales, actual[0].scales()),
      output_buffer("out_columns.values", actual[1].view().values, actual[1].values()),
      output_buffer("out_columns.scales", actual[1].view().scales, actual[1].scales())};
  for (const test::Matrix* const matrix :
       std::array<const test::Matrix*, 4>{&x, &scale, &shift, &weight}) {
    const MatrixView& view = matrix->view();
    const std::int64_t elements = view.batch * view.rows * view.row_stride;
    buffers.push_back(emulator::buffer(
        "input", view.data, static_cast<std::size_t>(elements * format_traits(view.dtype).bits / 8),
        emulator::BufferUse::input));
  }
  buffers.push_back(emulator::buffer("workspace", workspace.data(), workspace.size() * 4,
                                     emulator::BufferUse::both));
  if (workspace.empty()) buffers.pop_back();
  const auto order = emulator::compiled_for(
      plan.architecture, c.seed == 0 ? emulator::in_order() : emulator::random_order(c.seed));
  const auto function = kFunctions[static_cast<std::size_t>(plan.kernel)];
  if (plan.rstd.count > 0) {
    const quantize_detail::QuantizePlan::Step& step = plan.rstd.steps[0];
    ASSERT_EQ(step.config().kernel, QuantizeKernel::rstd);
    const emulator::Report report = emulator::launch(
        step.shape, buffers, order, [&] { test::quantize_function(step.kernel)(step.params); });
    ASSERT_TRUE(report.ok()) << describe(c) << "\n" << plan.str() << report.text();
    // The kernel that comes next may read what the one before this one wrote.
    for (emulator::Buffer& buffer : buffers) {
      buffer.dependent = buffer.use != emulator::BufferUse::input;
    }
  }
  const emulator::Report report =
      emulator::launch(plan.shape, buffers, order, [&] { function(plan.params); });
  ASSERT_TRUE(report.ok()) << describe(c) << "\n" << plan.str() << report.text();
  ASSERT_EQ(actual[0].scales(), expected[0].scales()) << describe(c) << "\n" << plan.str();
  ASSERT_EQ(actual[0].values(), expected[0].values()) << describe(c) << "\n" << plan.str();
  ASSERT_EQ(actual[1].scales(), expected[1].scales()) << describe(c) << "\n" << plan.str();
  ASSERT_EQ(actual[1].values(), expected[1].values()) << describe(c) << "\n" << plan.str();
}

TEST(CudaRowsAndColumns, WriteTheBytesOfTheCpuInEveryLayout) {
  std::uint64_t seed = 0;
  for (const Recipe recipe : kRecipes1x128) {
    for (const Format dtype : kInputs) {
      for (const ScaleLayout layout : kLayouts) {
        if (is_swizzled(layout) && recipe != Recipe::fp8_1x128_ue8m0) continue;
        Case c{recipe, dtype};
        c.rows = 160;
        c.k = 144;
        c.batch = 2;
        c.row_layout = layout;
        c.column_layout = is_swizzled(layout) && seed % 2 == 0 ? ScaleLayout::mn_major : layout;
        c.seed = seed++ % 3;
        check(c);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(CudaRowsAndColumns, TakeEveryKindOfData) {
  for (const Data data : test::kAllData) {
    for (const Format dtype : kInputs) {
      Case c{Recipe::fp8_1x128, dtype};
      c.data = data;
      check(c);
      c.recipe = Recipe::fp8_1x128_ue8m0;
      c.floor = 1e-4f;
      check(c);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(CudaRowsAndColumns, TakeAnyShapeAndStride) {
  for (const std::int64_t rows : {1, 3, 127, 130}) {
    for (const std::int64_t k : {1, 17, 128, 272}) {
      for (const Format dtype : {Format::bf16, Format::f32}) {
        Case c{Recipe::fp8_1x128_pow2, dtype};
        c.rows = rows;
        c.k = k;
        c.x_padding = rows % 2 * (k % 2 == 0 ? 8 : 1);
        c.strided = rows == 3 || k == 128;
        c.batch = rows == 3 ? 3 : 1;
        check(c);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(CudaRowsAndColumns, FillThePaddingOfSwizzledScales) {
  for (const ScaleLayout layout : {ScaleLayout::swizzled_128x4, ScaleLayout::swizzled_8x4}) {
    for (const auto& [rows, k] : {std::pair{1, 1}, std::pair{129, 5}, std::pair{5, 700}}) {
      Case c{Recipe::fp8_1x128_ue8m0};
      c.rows = rows;
      c.k = k;
      c.batch = 2;
      c.row_layout = c.column_layout = layout;
      check(c);
      if (HasFatalFailure()) return;
    }
  }
}

/// Several tiles, with every way of storing their scales.
TEST(CudaRowsAndColumns, TakeSeveralTiles) {
  std::uint64_t seed = 0;
  for (const Format dtype : kInputs) {
    for (const std::int64_t rows : {512, 1024, 1400, 260}) {
      for (const ScaleLayout layout : kLayouts) {
        Case c{is_swizzled(layout) ? Recipe::fp8_1x128_ue8m0 : Recipe::fp8_1x128, dtype};
        c.rows = rows;
        c.k = 144;
        c.batch = rows == 260 ? 2 : 1;
        c.row_layout = c.column_layout = layout;
        c.data = seed % 4 == 3 ? Data::any_bits : Data::normal;
        c.seed = seed++ % 5;
        check(c);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(CudaRowsAndColumns, AreRightUnderEverySchedule) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    Case c;
    c.dtype = kInputs[seed % 3];
    c.rows = 200;
    c.k = 300;
    c.seed = seed;
    c.data = Data::normal;
    check(c);
    if (HasFatalFailure()) return;
  }
}

TEST(CudaRowsAndColumns, TakeEveryFusedInput) {
  for (int t = 1; t < kInputTransformCount; ++t) {
    for (const Format dtype : kInputs) {
      Case c{Recipe::fp8_1x128, dtype};
      c.input = test::input_of(static_cast<InputTransform>(t));
      c.rows = 136;
      c.k = 160;
      c.batch = 2;
      c.groups = 2;
      c.data = Data::normal;
      c.seed = static_cast<std::uint64_t>(t % 3);
      check(c);
      // Groups that end between the rows of a thread, and elements that are found one by one.
      c.groups = 8;
      c.k = 131;
      c.x_padding = 1;
      c.data = Data::any_bits;
      check(c);
      c.k = 144;
      c.x_padding = 0;
      check(c);
      if (HasFatalFailure()) return;
    }
  }
}

/// Behind the rstd of many rows.
TEST(CudaRowsAndColumns, TakeRmsNormOfManyRows) {
  for (const Format dtype : kInputs) {
    Case c{Recipe::fp8_1x128, dtype};
    c.input = RmsNorm{};
    c.rows = 264;
    c.k = 256;
    c.data = Data::normal;
    check(c);
    if (HasFatalFailure()) return;
  }
}

TEST(CudaRowsAndColumns, TakeGatesAndUpsInEveryOrder) {
  for (const std::int64_t group : {0, 1, 64}) {
    for (const GateOrder order : {GateOrder::gate_first, GateOrder::up_first}) {
      Case c{Recipe::fp8_1x128_ue8m0};
      c.input = Swiglu{order, group};
      c.rows = 40;
      c.k = 192;
      c.data = Data::normal;
      check(c);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace blockscale
