// quantize_rows_and_columns: both results have the bytes of `quantize` of the matrix and of its
// transpose; what it refuses.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "blockscale/quantize.h"
#include "core/math.h"
#include "ops/quantize/test/inputs.h"
#include "ops/quantize/test/rows_and_columns_support.h"
#include "ops/quantize/test/support.h"
#include "tests/expect_error.h"
#include "tests/simd_targets.h"

namespace blockscale {
namespace {

using test::Data;
using test::expect_invalid;
using Output = test::GuardedOutput;

/// The transposes of a batch of matrices, packed.
class Transposed {
 public:
  explicit Transposed(const MatrixView& x)
      : size_(format_traits(x.dtype).bits / 8),
        bytes_(static_cast<std::size_t>(x.batch * x.rows * x.columns * size_)),
        view_{bytes_.data(), x.dtype, x.columns, x.rows, 0, x.batch} {
    const auto* const from = static_cast<const std::uint8_t*>(x.data);
    for (std::int64_t b = 0; b < x.batch; ++b) {
      for (std::int64_t r = 0; r < x.rows; ++r) {
        for (std::int64_t c = 0; c < x.columns; ++c) {
          std::memcpy(bytes_.data() + ((b * x.columns + c) * x.rows + r) * size_,
                      from + (b * x.batch_stride + r * x.row_stride + c) * size_,
                      static_cast<std::size_t>(size_));
        }
      }
    }
  }
  MatrixView view() const { return view_; }

 private:
  std::int64_t size_;
  std::vector<std::uint8_t> bytes_;
  MatrixView view_;
};

struct Shape {
  std::int64_t rows, k, batch;
};

void check(const MatrixView& x, const MatrixView& computed, const QuantizeOptions& options,
           Recipe recipe, ScaleLayout layout, bool strided) {
  const Transposed transposed(computed);
  const std::int64_t rows = computed.rows, k = computed.columns, batch = computed.batch;
  QuantizeOptions plain = options;
  plain.input = {};
  Output want_rows(recipe, layout, rows, k, batch, strided);
  Output want_columns(recipe, layout, k, rows, batch, strided);
  quantize(computed, want_rows.view(), plain);
  quantize(transposed.view(), want_columns.view(), plain);
  for (const std::int64_t target : test::simd_targets()) {
    const test::UseSimdTarget use(target);
    const std::string text = std::string(recipe_traits(recipe).name) + " " +
                             scale_layout_traits(layout).name + " " + std::to_string(rows) + " x " +
                             std::to_string(k) + " " + hwy::TargetName(target);
    Output along_rows(recipe, layout, rows, k, batch, strided);
    Output along_columns(recipe, layout, k, rows, batch, strided);
    quantize_rows_and_columns(x, along_rows.view(), along_columns.view(), options);
    ASSERT_EQ(along_rows.values(), want_rows.values()) << text;
    ASSERT_EQ(along_rows.scales(), want_rows.scales()) << text;
    ASSERT_EQ(along_columns.values(), want_columns.values()) << text;
    ASSERT_EQ(along_columns.scales(), want_columns.scales()) << text;
  }
}

TEST(RowsAndColumns, HaveTheBytesOfTwoCalls) {
  const Shape shapes[] = {{1, 1, 1},   {128, 128, 1}, {3, 300, 2},
                          {300, 3, 2}, {257, 513, 1}, {640, 1100, 1}};
  std::uint32_t seed = 0;
  for (const Recipe recipe : {Recipe::fp8_1x128, Recipe::fp8_1x128_pow2, Recipe::fp8_1x128_ue8m0}) {
    for (const Shape& s : shapes) {
      for (const ScaleLayout layout : {ScaleLayout::row_major, ScaleLayout::mn_major,
                                       ScaleLayout::swizzled_128x4, ScaleLayout::swizzled_8x4}) {
        if (is_swizzled(layout) && recipe != Recipe::fp8_1x128_ue8m0) continue;
        const Format dtype = std::array{Format::bf16, Format::f32, Format::f16}[seed % 3];
        const Data data = test::kAllData[seed % test::kAllData.size()];
        ++seed;
        const test::Matrix x(dtype, s.rows, s.k, s.batch, seed % 2 == 0 ? 0 : 3, data, seed);
        QuantizeOptions options;
        options.threads = static_cast<int>(seed % 3) + 1;
        options.fp8_amax_floor = seed % 5 == 0 ? 1e-4f : 0.0f;
        check(x.view(), x.view(), options, recipe, layout, seed % 2 == 0);
        if (HasFatalFailure()) return;
      }
    }
  }
}

/// rms_norm's factor of a row of less than a segment (fused_test.cpp tests longer ones).
float rms_factor(const float* row, int count, float epsilon) {
  std::array<float, 256> sums{};
  for (int i = 0; i < count; ++i) {
    auto& sum = sums[static_cast<std::size_t>(i / 4)];
    sum = std::fma(row[i], row[i], sum);
  }
  for (std::size_t half = 128; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) sums[j] = sums[2 * j] + sums[2 * j + 1];
  }
  return math::reciprocal_sqrt(std::fma(sums[0], 1.0f / static_cast<float>(count), epsilon));
}

TEST(RowsAndColumns, OfAFusedInput) {
  constexpr int kRows = 150, kColumns = 660;
  const test::Matrix x(Format::bf16, kRows, kColumns, 2, 1, Data::normal, 5);
  const test::Matrix weight(Format::f32, 1, kColumns, 1, 0, Data::normal, 6);
  const std::vector<float> weights = weight.values(0);
  for (const InputTransform transform :
       {InputTransform::gelu_erf, InputTransform::swiglu, InputTransform::rms_norm}) {
    QuantizeOptions options;
    options.input = test::input_of(transform, {}, {}, weight.view());
    const int k = transform == InputTransform::swiglu ? kColumns / 2 : kColumns;
    std::vector<float> computed;
    for (std::int64_t b = 0; b < 2; ++b) {
      const std::vector<float> values = x.values(b);
      for (int r = 0; r < kRows; ++r) {
        const float* const row = values.data() + r * kColumns;
        const float factor = rms_factor(row, kColumns, RmsNorm{}.epsilon);
        for (int c = 0; c < k; ++c) {
          computed.push_back(
              transform == InputTransform::gelu_erf ? math::gelu_erf(row[c])
              : transform == InputTransform::swiglu
                  ? math::swiglu(row[c], row[c + k])
                  : math::rms_norm(row[c], factor, weights[static_cast<std::size_t>(c)]));
        }
      }
    }
    const MatrixView result{computed.data(), Format::f32, kRows, k, k, 2, kRows * k};
    for (const int threads : {1, 3}) {
      options.threads = threads;
      check(x.view(), result, options, Recipe::fp8_1x128_ue8m0, ScaleLayout::swizzled_128x4, false);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(RowsAndColumns, EmptyMatricesAreNothingToDo) {
  for (const Shape& s : {Shape{0, 5, 1}, {5, 0, 1}, {4, 4, 0}}) {
    const test::Matrix x(Format::f32, s.rows, s.k, s.batch, 0, Data::normal, 1);
    check(x.view(), x.view(), {}, Recipe::fp8_1x128, ScaleLayout::row_major, false);
  }
}

/// A valid call, to be spoiled.
struct Call {
  std::array<float, 4 * 128> data{};
  Output rows{Recipe::fp8_1x128, ScaleLayout::row_major, 4, 128, 1, false};
  Output columns{Recipe::fp8_1x128, ScaleLayout::row_major, 128, 4, 1, false};
  MatrixView x{data.data(), Format::f32, 4, 128};
  MutableScaledTensorView out_rows = rows.view(), out_columns = columns.view();
  QuantizeOptions options;
};

template <class Edit>
void expect_refused(const char* argument, const char* part_of_message, const Edit& edit) {
  Call call;
  const auto before = call.rows.values();
  edit(call);
  expect_invalid(argument, part_of_message, [&] {
    quantize_rows_and_columns(call.x, call.out_rows, call.out_columns, call.options);
  });
  EXPECT_EQ(call.rows.values(), before);
  EXPECT_EQ(call.columns.values(), Call().columns.values());
}

TEST(RowsAndColumnsErrors, Arguments) {
  expect_refused("out_rows.recipe", "is mxfp4, must be fp8_1x128", [](Call& c) {
    c.out_rows.recipe = c.out_columns.recipe = Recipe::mxfp4;
    c.out_columns.k = 32;
  });
  expect_refused("out_rows.recipe", "is fp8_128x128",
                 [](Call& c) { c.out_rows.recipe = c.out_columns.recipe = Recipe::fp8_128x128; });
  expect_refused("out_columns.recipe", "is fp8_1x128_pow2, must be fp8_1x128",
                 [](Call& c) { c.out_columns.recipe = Recipe::fp8_1x128_pow2; });
  expect_refused("out_rows.rows", "is 3, must be 4", [](Call& c) { c.out_rows.rows = 3; });
  expect_refused("out_rows.k", "is 64, must be 128", [](Call& c) { c.out_rows.k = 64; });
  expect_refused("out_columns.rows", "is 64, must be 128",
                 [](Call& c) { c.out_columns.rows = 64; });
  expect_refused("out_columns.k", "is 3, must be 4 (x.rows)", [](Call& c) { c.out_columns.k = 3; });
  expect_refused("out_columns.batch", "is 2, must be 1", [](Call& c) { c.out_columns.batch = 2; });
  expect_refused("out_columns.values", "null", [](Call& c) { c.out_columns.values = nullptr; });
  expect_refused("out_rows.scales", "null", [](Call& c) { c.out_rows.scales = nullptr; });
  expect_refused("options.scale_source", "is given",
                 [](Call& c) { c.options.scale_source = ScaleSource::given; });
  expect_refused("options.threads", "is -1", [](Call& c) { c.options.threads = -1; });
  expect_refused("options.input.weight.columns", "is 0",
                 [](Call& c) { c.options.input = RmsNorm{}; });
}

TEST(RowsAndColumnsErrors, Overlap) {
  expect_refused("out_columns.values", "overlaps out_rows.values",
                 [](Call& c) { c.out_columns.values = c.out_rows.values; });
  expect_refused("out_columns.scales", "overlaps out_rows.scales",
                 [](Call& c) { c.out_columns.scales = c.out_rows.scales; });
  expect_refused("out_columns.scales", "overlaps x.data",
                 [](Call& c) { c.out_columns.scales = c.data.data(); });
}

}  // namespace
}  // namespace blockscale
