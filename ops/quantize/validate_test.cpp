// Every argument that quantize, dequantize and absolute_maximum refuse: the error names it, and
// nothing is written.
#include "ops/quantize/validate.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "blockscale/bench.h"
#include "ops/common/overlap.h"
#include "ops/quantize/bench/cuda_measure.h"
#include "tests/expect_error.h"

namespace blockscale {
namespace {

using test::expect_invalid;

/// A valid call, to be spoiled; its output is poisoned and must stay so.
struct Call {
  std::array<float, 4 * 128> data{};
  std::array<std::uint8_t, 4096> values, scales;
  std::array<float, 4> tensor_scale{0.5f, 0.5f, 0.5f, 0.5f};
  MatrixView x{data.data(), Format::f32, 4, 128};
  MutableScaledTensorView out;
  QuantizeOptions options;

  explicit Call(Recipe recipe) {
    values.fill(0xA5);
    scales.fill(0xA5);
    out.recipe = recipe;
    out.rows = 4;
    out.k = 128;
    out.values = values.data();
    out.scales = scales.data();
    if (recipe_traits(recipe).tensor_scale) out.tensor_scale = tensor_scale.data();
  }
  float* f32_scales() { return reinterpret_cast<float*>(scales.data()); }
};

template <class Edit>
void expect_refused(Recipe recipe, const char* argument, const char* part_of_message,
                    const Edit& edit) {
  Call call(recipe);
  edit(call);
  const Call before = call;
  expect_invalid(argument, part_of_message, [&] { quantize(call.x, call.out, call.options); });
  EXPECT_EQ(call.values, before.values);
  EXPECT_EQ(call.scales, before.scales);
  EXPECT_EQ(0, std::memcmp(call.tensor_scale.data(), before.tensor_scale.data(), 16));
}

TEST(QuantizeErrors, ShapesAndRecipe) {
  expect_refused(Recipe::mxfp4, "x.row_stride", "is 5", [](Call& c) { c.x.row_stride = 5; });
  expect_refused(Recipe::mxfp4, "x.dtype", "e4m3", [](Call& c) { c.x.dtype = Format::e4m3; });
  expect_refused(Recipe::mxfp4, "x.data", "null", [](Call& c) { c.x.data = nullptr; });
  expect_refused(Recipe::bf16, "out.recipe", "bf16", [](Call&) {});
  expect_refused(Recipe::mxfp4, "out.rows", "is 3, must be 4", [](Call& c) { c.out.rows = 3; });
  expect_refused(Recipe::mxfp4, "out.k", "is 96, must be 128", [](Call& c) { c.out.k = 96; });
  expect_refused(Recipe::mxfp4, "out.k", "multiple of 32", [](Call& c) { c.out.k = 100; });
  expect_refused(Recipe::mxfp4, "out.batch", "is 2, must be 1", [](Call& c) { c.out.batch = 2; });
  expect_refused(Recipe::mxfp4, "out.values", "null", [](Call& c) { c.out.values = nullptr; });
  expect_refused(Recipe::mxfp4, "out.scales", "null", [](Call& c) { c.out.scales = nullptr; });
  expect_refused(Recipe::fp8_1x128, "out.scales", "multiple of 4",
                 [](Call& c) { c.out.scales = c.scales.data() + 1; });
  expect_refused(Recipe::fp8_1x128, "out.layout", "swizzled_8x4",
                 [](Call& c) { c.out.layout = ScaleLayout::swizzled_8x4; });
  expect_refused(Recipe::fp8_128x128_ue8m0, "out.layout", "one row each",
                 [](Call& c) { c.out.layout = ScaleLayout::swizzled_128x4; });
  expect_refused(Recipe::mxfp4, "out.scale_leading_stride", "is 2",
                 [](Call& c) { c.out.scale_leading_stride = 2; });
  expect_refused(Recipe::mxfp4, "out.tensor_scale", "has none",
                 [](Call& c) { c.out.tensor_scale = c.tensor_scale.data(); });
  expect_refused(Recipe::nvfp4, "out.tensor_scale", "null",
                 [](Call& c) { c.out.tensor_scale = nullptr; });
}

TEST(QuantizeErrors, Options) {
  expect_refused(Recipe::mxfp4, "options.threads", "is -1",
                 [](Call& c) { c.options.threads = -1; });
  expect_refused(Recipe::mxfp4, "options.mx_scale_mode", "is 7",
                 [](Call& c) { c.options.mx_scale_mode = static_cast<MxScaleMode>(7); });
  expect_refused(Recipe::mxfp4, "options.scale_source", "is 9",
                 [](Call& c) { c.options.scale_source = static_cast<ScaleSource>(9); });
  for (const float floor : {-1.0f, NAN, INFINITY}) {
    expect_refused(Recipe::fp8_1x128, "options.fp8_amax_floor", "at least 0",
                   [floor](Call& c) { c.options.fp8_amax_floor = floor; });
  }
  for (const Recipe recipe : {Recipe::mxfp4, Recipe::fp8_1x128, Recipe::fp8_128x128_ue8m0}) {
    expect_refused(recipe, "options.scale_source", recipe_traits(recipe).name,
                   [](Call& c) { c.options.scale_source = ScaleSource::given; });
  }
}

TEST(QuantizeErrors, GivenScales) {
  const float bad[] = {NAN, INFINITY, 0.0f, -1.0f};
  for (const float scale : bad) {
    expect_refused(Recipe::nvfp4, "out.tensor_scale", "must be finite", [scale](Call& c) {
      c.options.scale_source = ScaleSource::given;
      c.tensor_scale[0] = scale;
    });
    expect_refused(Recipe::fp8_row, "out.scales", "row 3", [scale](Call& c) {
      c.options.scale_source = ScaleSource::given;
      std::fill_n(c.f32_scales(), 4, 1.0f);
      c.f32_scales()[3] = scale;
    });
    expect_refused(Recipe::fp8_tensor, "out.scales", "must be finite", [scale](Call& c) {
      c.options.scale_source = ScaleSource::given;
      c.f32_scales()[0] = scale;
    });
  }
  expect_refused(Recipe::nvfp4, "out.tensor_scale", "at least", [](Call& c) {
    c.options.scale_source = ScaleSource::given;
    c.out.sense = TensorScaleSense::multiplier;
    c.tensor_scale[0] = 0x1p-129f;  // its inverse is infinite
  });
}

TEST(QuantizeErrors, Overlap) {
  expect_refused(Recipe::mxfp4, "out.values", "overlaps x.data", [](Call& c) {
    c.x.data = c.values.data();
    c.x.rows = c.out.rows = 1;
    c.out.values = c.values.data() + 511;
  });
  expect_refused(Recipe::mxfp4, "out.scales", "overlaps x.data",
                 [](Call& c) { c.x.data = c.scales.data(); });
  expect_refused(Recipe::nvfp4, "out.tensor_scale", "overlaps x.data", [](Call& c) {
    c.x.data = c.tensor_scale.data();
    c.x.rows = c.out.rows = 1;
    c.x.columns = c.out.k = 16;
    c.x.data = c.data.data();
    c.out.tensor_scale = c.data.data() + 15;
  });
  expect_refused(Recipe::mxfp4, "out.scales", "overlaps out.values",
                 [](Call& c) { c.out.scales = c.values.data() + 255; });
  expect_refused(Recipe::nvfp4, "out.tensor_scale", "overlaps out.values",
                 [](Call& c) { c.out.tensor_scale = reinterpret_cast<float*>(c.values.data()); });
  expect_refused(Recipe::nvfp4, "out.tensor_scale", "overlaps out.scales", [](Call& c) {
    c.out.tensor_scale = reinterpret_cast<float*>(c.scales.data() + 28);
  });
}

/// Memory that a call on a GPU is given besides.
TEST(QuantizeErrors, WorkspaceIsApart) {
  const Call call(Recipe::nvfp4);
  const auto regions = regions_of(quantize_detail::validated(call.x, call.out, call.options));
  const auto check = [&](const void* memory) {
    check_apart({"execution.workspace", line_of(memory, 16)}, regions);
  };
  const std::array<float, 4> elsewhere{};
  check(elsewhere.data());
  check(call.values.data() + 4 * 128 / 2);  // right behind the codes
  const auto refused = [&](const char* part_of_message, const void* memory) {
    expect_invalid("execution.workspace", part_of_message, [&] { check(memory); });
  };
  refused("overlaps out.values", call.values.data() + 4 * 128 / 2 - 1);
  refused("overlaps out.scales", call.scales.data());
  refused("overlaps out.tensor_scale", call.tensor_scale.data());
  refused("overlaps x.data", call.data.data());
}

/// Values and scales of a row side by side in one record do not overlap.
TEST(QuantizeErrors, InterleavedLinesAreAllowed) {
  Call call(Recipe::mxfp4);
  call.out.value_row_stride = 68;
  call.out.scales = call.values.data() + 64;
  call.out.scale_leading_stride = 68;
  quantize(call.x, call.out, call.options);
  EXPECT_EQ(call.values[63], 0);
  EXPECT_EQ(call.values[64], 0);
  EXPECT_EQ(call.values[4 * 68], 0xA5);
  call.out.scales = call.values.data() + 63;
  expect_invalid("out.scales", "overlaps", [&] { quantize(call.x, call.out, call.options); });
}

TEST(QuantizeErrors, NewTensor) {
  const std::array<float, 64> data{};
  const MatrixView x{data.data(), Format::f32, 2, 32};
  expect_invalid("tensor_scale", "has none",
                 [&] { quantize(x, Recipe::mxfp4, ScaleLayout::row_major, {}, 1.0f); });
  expect_invalid("out.tensor_scale", "is 0",
                 [&] { quantize(x, Recipe::nvfp4, ScaleLayout::row_major, {}, 0.0f); });
  QuantizeOptions given;
  given.scale_source = ScaleSource::given;
  expect_invalid("options.scale_source", "no scales",
                 [&] { quantize(x, Recipe::fp8_row, ScaleLayout::row_major, given); });
  expect_invalid("out.recipe", "f32", [&] { quantize(x, Recipe::f32); });
}

TEST(DequantizeErrors, Arguments) {
  const ScaledTensor tensor(Recipe::nvfp4, 2, 32);
  const ScaledTensorView x = tensor.view();
  std::array<float, 64> out{};
  const MutableMatrixView good{out.data(), Format::f32, 2, 32};
  const auto refused = [&](const char* argument, const char* message, ScaledTensorView in,
                           MutableMatrixView to, int threads = 0) {
    expect_invalid(argument, message, [&] { dequantize(in, to, threads); });
  };
  MutableMatrixView to = good;
  to.rows = 1;
  refused("out.rows", "is 1, must be 2", x, to);
  to = good;
  to.columns = 31;
  refused("out.columns", "is 31, must be 32", x, to);
  to = good;
  to.batch = 0;
  refused("out.batch", "is 0, must be 1", x, to);
  to = good;
  to.data = nullptr;
  refused("out.data", "null", x, to);
  to = good;
  to.dtype = Format::e5m2;
  refused("out.dtype", "e5m2", x, to);
  refused("threads", "is -3", x, good, -3);
  ScaledTensorView from = x;
  from.values = out.data();
  refused("out.data", "x.values", from, good);
  from = x;
  from.scales = out.data();
  refused("out.data", "x.scales", from, good);
  from = x;
  from.tensor_scale = out.data() + 63;
  refused("out.data", "x.tensor_scale", from, good);
  from = x;
  from.recipe = static_cast<Recipe>(200);
  refused("x.recipe", "is 200", from, good);
}

TEST(AbsoluteMaximumErrors, Arguments) {
  std::array<float, 8> data{};
  const MatrixView x{data.data(), Format::f32, 2, 4};
  float out = 0;
  expect_invalid("out", "null", [&] { absolute_maximum(x, nullptr); });
  expect_invalid("out", "overlaps x.data", [&] { absolute_maximum(x, data.data() + 3); });
  auto* const odd = reinterpret_cast<float*>(reinterpret_cast<std::uintptr_t>(&out) + 2);
  expect_invalid("out", "misaligned", [&] { absolute_maximum(x, odd); });
  expect_invalid("threads", "is -1", [&] { absolute_maximum(x, &out, -1); });
  expect_invalid("x.columns", "is -4",
                 [&] { absolute_maximum(MatrixView{data.data(), Format::f32, 2, -4}, &out); });
}

TEST(BenchmarkErrors, Options) {
  QuantizeBenchmarkOptions options;
  options.rows = 0;
  expect_invalid("options.rows", "is 0", [&] { benchmark_quantize(options); });
  options.rows = 2;
  options.k = std::numeric_limits<std::int64_t>::max();
  expect_invalid("options.k", "2^40", [&] { benchmark_quantize(options); });
  options.k = 16;
  options.threads = -1;
  expect_invalid("options.threads", "is -1", [&] { benchmark_quantize(options); });
  options.threads = 1;
  options.repeats = 0;
  expect_invalid("options.repeats", "is 0", [&] { benchmark_quantize(options); });
  options.repeats = 1;
  options.dtypes = {Format::e2m1};
  expect_invalid("options.dtypes", "e2m1", [&] { benchmark_quantize(options); });
  options.dtypes = {};
  options.recipes = {Recipe::f16};
  expect_invalid("options.recipes", "f16", [&] { benchmark_quantize(options); });
}

TEST(BenchmarkErrors, DequantizeOptions) {
  QuantizeBenchmarkOptions options;
  options.rows = 2;
  options.k = 0;
  expect_invalid("options.k", "at least 1", [&] { benchmark_dequantize(options); });
  options.k = 16;
  options.transforms = {InputTransform::identity, InputTransform::swiglu};
  expect_invalid("options.transforms", "has swiglu, must be identity",
                 [&] { benchmark_dequantize(options); });
}

TEST(BenchmarkErrors, CudaOptions) {
  cuda::QuantizeBenchmarkOptions options;
  options.k = 1 << 30;
  expect_invalid("options.k", "in 1..2^30-1", [&] { cuda::benchmark_quantize(options); });
  options.k = 16;
  options.input_bytes = {0};
  expect_invalid("options.input_bytes", "is 0", [&] { cuda::benchmark_quantize(options); });
  options.input_bytes = {};
  options.dtypes = {Format::e2m1};
  expect_invalid("options.dtypes", "e2m1", [&] { cuda::benchmark_quantize(options); });
  options.dtypes = {};
  options.recipes = {Recipe::f16};
  expect_invalid("options.recipes", "f16", [&] { cuda::benchmark_quantize(options); });
}

TEST(Benchmark, HasARowForEveryCase) {
  QuantizeBenchmarkOptions options;
  options.rows = 4;
  options.k = 128;
  options.repeats = 1;
  options.layouts = {ScaleLayout::row_major, ScaleLayout::swizzled_8x4};
  options.recipes = {Recipe::nvfp4, Recipe::fp8_1x128};
  const std::vector<QuantizeBenchmarkRow> rows = benchmark_quantize(options);
  ASSERT_EQ(rows.size(), 3u);  // fp8_1x128 has f32 scales, which no swizzled layout holds
  EXPECT_EQ(rows[1].layout, ScaleLayout::swizzled_8x4);
  EXPECT_EQ(rows[2].recipe, Recipe::fp8_1x128);
  EXPECT_GT(rows[2].memcpy_share, 0.0);
}

TEST(Benchmark, OfDequantizeCountsTheBytesOfBoth) {
  QuantizeBenchmarkOptions options;
  options.rows = 4;
  options.k = 128;
  options.repeats = 1;
  options.dtypes = {Format::bf16, Format::f32};
  options.recipes = {Recipe::mxfp4};
  const std::vector<QuantizeBenchmarkRow> rows = benchmark_dequantize(options);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].dtype, Format::f32);
  const double bytes = 4 * 128 * 2 + 4 * 64 + 512;  // a tile of scales
  EXPECT_NEAR(rows[0].bytes_per_second * rows[0].seconds, bytes, 1e-6);
  EXPECT_NEAR(rows[0].input_gb_per_second * rows[0].seconds, 4 * 128 * 2e-9, 1e-12);
  EXPECT_GT(rows[1].memcpy_share, 0.0);
}

TEST(Benchmark, OfCudaHasAProblemForEveryCase) {
  cuda::QuantizeBenchmarkOptions options;
  options.recipes = {Recipe::nvfp4, Recipe::fp8_1x128};
  options.layouts = {ScaleLayout::row_major, ScaleLayout::swizzled_8x4};
  options.transforms = {InputTransform::swiglu};
  options.input_bytes = {1, 1 << 20};
  const auto problems = quantize_detail::measured_problems(options);
  ASSERT_EQ(problems.size(), 6u);
  EXPECT_EQ(problems[0].rows, 1);
  EXPECT_EQ(problems[1].rows, 32);  // of 2 x 8192 bf16 each
  EXPECT_EQ(problems[2].layout, ScaleLayout::swizzled_8x4);
  EXPECT_EQ(problems[5].recipe, Recipe::fp8_1x128);
  for (const auto& problem : problems) EXPECT_EQ(problem.transform, InputTransform::swiglu);
}

TEST(Overlap, OfLines) {
  const MemoryLines rows{1000, 10, 5, 40, 2, 400};  // [1000, 1010), [1040, 1050), ...
  MemoryLines other{1010, 30, 5, 40, 2, 400};
  EXPECT_FALSE(overlap(rows, other));
  EXPECT_FALSE(overlap(other, rows));
  other.bytes = 31;
  EXPECT_TRUE(overlap(rows, other));
  EXPECT_TRUE(overlap(other, rows));
  EXPECT_TRUE(overlap(rows, MemoryLines{1569, 1, 1, 1, 1, 1}));
  EXPECT_FALSE(overlap(rows, MemoryLines{1570, 1, 1, 1, 1, 1}));
  EXPECT_FALSE(overlap(rows, MemoryLines{1200, 200, 1, 200, 1, 200}));
  EXPECT_FALSE(overlap(rows, MemoryLines{1000, 10, 0, 40, 1, 0}));
  EXPECT_FALSE(overlap(rows, MemoryLines{0, 4, 1, 4, 1, 4}));  // null
}

}  // namespace
}  // namespace blockscale
