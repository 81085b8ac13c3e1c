// Every byte that `quantize` writes against the oracle: recipes x dtypes x layouts x shapes x
// strides x instruction sets x threads, in poisoned buffers with guards around them.
#include "blockscale/quantize.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "ops/quantize/test/support.h"
#include "tests/oracles/quantize_oracle.h"
#include "tests/simd_targets.h"

namespace blockscale {
namespace {

using test::Data;

/// The oracle's result as the bytes that a layout with the given strides must hold, laid over
/// `image`. Offsets are spelled out here on purpose.
void put_scales(std::vector<std::uint8_t>& image, const oracle::Result& r, ScaleLayout layout,
                std::int64_t leading, std::int64_t base, std::int64_t size) {
  const auto put = [&](std::int64_t offset, std::uint32_t value) {
    std::memcpy(image.data() + (base + offset) * size, &value, static_cast<std::size_t>(size));
  };
  if (layout == ScaleLayout::swizzled_128x4 || layout == ScaleLayout::swizzled_8x4) {
    const std::int64_t tile = layout == ScaleLayout::swizzled_8x4 ? 8 : 128;
    const std::int64_t padded = (r.grid_rows + tile - 1) / tile * tile;
    for (std::int64_t n = 0; n < padded * leading * 4; ++n) put(n, 0);
  }
  for (std::int64_t i = 0; i < r.grid_rows; ++i) {
    for (std::int64_t j = 0; j < r.grid_columns; ++j) {
      std::int64_t offset = i * leading + j;
      if (layout == ScaleLayout::mn_major) offset = j * leading + i;
      if (layout == ScaleLayout::swizzled_8x4) {
        offset = (i / 8 * leading + j / 4) * 32 + i % 8 * 4 + j % 4;
      }
      if (layout == ScaleLayout::swizzled_128x4) {
        const std::int64_t row = i % 128;
        offset = (i / 128 * leading + j / 4) * 512 + row % 32 * 16 + row / 32 * 4 + j % 4;
      }
      put(offset, r.scales[static_cast<std::size_t>(i * r.grid_columns + j)]);
    }
  }
}

/// Codes of a row into consecutive bits.
void put_codes(std::vector<std::uint8_t>& image, const oracle::Result& r, int bits,
               std::int64_t row_stride, std::int64_t base) {
  for (std::int64_t i = 0; i < r.rows; ++i) {
    for (std::int64_t c = 0; c < r.k; ++c) {
      const int code = r.codes[static_cast<std::size_t>(i * r.k + c)];
      for (int b = 0; b < bits; ++b) {
        const std::int64_t bit = c * bits + b;
        auto& byte = image[static_cast<std::size_t>(base + i * row_stride + bit / 8)];
        const int mask = 1 << (bit % 8);
        byte = static_cast<std::uint8_t>((code >> b & 1) != 0 ? byte | mask : byte & ~mask);
      }
    }
  }
}

struct Shape {
  std::int64_t rows, k, batch;
  bool strided;
};

std::vector<Shape> shapes_for(const oracle::Rules& rules) {
  if (rules.kind == oracle::Kind::mx || rules.kind == oracle::Kind::nvfp4) {
    return {{1, 32, 1, false},  {7, 96, 2, true},  {33, 160, 1, false}, {130, 64, 2, true},
            {3, 4192, 1, true}, {0, 64, 1, false}, {5, 0, 1, false},    {4, 32, 0, false}};
  }
  return {{1, 1, 1, false},   {3, 17, 2, true},    {130, 129, 1, false}, {33, 300, 2, true},
          {2, 4113, 1, true}, {257, 16, 1, false}, {0, 5, 1, false},     {5, 0, 2, false}};
}

std::vector<ScaleLayout> layouts_for(const oracle::Rules& rules) {
  std::vector<ScaleLayout> layouts = {ScaleLayout::row_major, ScaleLayout::mn_major};
  if (rules.byte_scales && rules.block_rows == 1) {
    layouts.push_back(ScaleLayout::swizzled_128x4);
    layouts.push_back(ScaleLayout::swizzled_8x4);
  }
  return layouts;
}

Recipe recipe_named(const std::string& name) {
  for (const RecipeTraits& t : kRecipes) {
    if (t.name == name) return t.recipe;
  }
  ADD_FAILURE() << "no recipe " << name;
  return Recipe::f32;
}

/// A case of the comparison: input, what the oracle makes of it, and how to call the library.
struct Case {
  oracle::Rules rules;
  Shape shape;
  Format dtype;
  Data data;
  QuantizeOptions options;
  oracle::Options oracle_options;
  TensorScaleSense sense = TensorScaleSense::divisor;
  std::vector<float> given_tensor_scale = {};  // as stored, one for each matrix
  std::uint32_t seed = 1;
};

std::string describe(const Case& c) {
  return c.rules.name + " " + format_traits(c.dtype).name + " " + std::to_string(c.shape.rows) +
         "x" + std::to_string(c.shape.k) + " batch " + std::to_string(c.shape.batch) + " " +
         test::data_name(c.data) + " mode " +
         std::to_string(static_cast<int>(c.options.mx_scale_mode)) + " threads " +
         std::to_string(c.options.threads);
}

/// Runs one case in every layout and on every instruction set.
void check_case(const Case& c) {
  const auto [rows, k, batch, strided] = c.shape;
  const Recipe recipe = recipe_named(c.rules.name);
  const test::Matrix x(c.dtype, rows, k, batch, strided ? 3 : 0, c.data, c.seed);
  std::vector<oracle::Result> expected;
  for (std::int64_t b = 0; b < batch; ++b) {
    oracle::Options options = c.oracle_options;
    if (!c.given_tensor_scale.empty()) {
      const float given = c.given_tensor_scale[static_cast<std::size_t>(b)];
      const bool multiplier = c.sense == TensorScaleSense::multiplier;
      options.given = {multiplier ? std::min(1.0f / given, oracle::kLargest) : given};
    }
    expected.push_back(oracle::quantize(x.values(b), rows, k, c.rules, options));
  }
  const std::int64_t size = c.rules.byte_scales ? 1 : 4;
  const int bits = c.rules.element->bits();
  for (const ScaleLayout layout : layouts_for(c.rules)) {
    const ScaleGrid grid = expected.empty()
                               ? ScaleGrid{0, 0}
                               : ScaleGrid{expected[0].grid_rows, expected[0].grid_columns};
    const bool swizzled = is_swizzled(layout);
    const std::int64_t row_stride = (k * bits + 7) / 8 + (strided ? 5 : 0);
    const std::int64_t leading = layout == ScaleLayout::row_major  ? grid.columns
                                 : layout == ScaleLayout::mn_major ? grid.rows
                                                                   : (grid.columns + 3) / 4;
    const std::int64_t used_leading = leading + (strided && !swizzled ? 3 : 0);
    const std::int64_t lines = layout == ScaleLayout::mn_major    ? grid.columns
                               : layout == ScaleLayout::row_major ? grid.rows
                                                                  : (grid.rows + 127) / 128 * 512;
    const std::int64_t scale_batch = lines * used_leading + (strided ? 7 : 0);
    const std::int64_t value_batch = rows * row_stride + (strided ? 9 : 0);
    for (const std::int64_t target : test::simd_targets()) {
      const test::UseSimdTarget use(target);
      test::GuardedBytes values(batch * value_batch);
      test::GuardedBytes scales(batch * scale_batch * size);
      std::vector<float> tensor_scale(static_cast<std::size_t>(batch) + 1, -77.0f);
      MutableScaledTensorView out;
      out.recipe = recipe;
      out.rows = rows;
      out.k = k;
      out.batch = batch;
      out.values = values.data();
      out.value_row_stride = row_stride;
      out.value_batch_stride = value_batch;
      out.scales = scales.data();
      out.layout = layout;
      out.scale_leading_stride = used_leading;
      out.scale_batch_stride = scale_batch;
      if (c.rules.kind == oracle::Kind::nvfp4) {
        out.tensor_scale = tensor_scale.data();
        out.tensor_scale_batch_stride = 1;
        out.sense = c.sense;
        std::copy(c.given_tensor_scale.begin(), c.given_tensor_scale.end(), tensor_scale.begin());
      }
      const bool fp8_given = !c.oracle_options.given.empty();
      std::vector<std::uint8_t> want_values = values.bytes();
      std::vector<std::uint8_t> want_scales = scales.bytes();
      for (std::int64_t b = 0; b < batch; ++b) {
        const auto& result = expected[static_cast<std::size_t>(b)];
        put_codes(want_values, result, bits, row_stride, test::kGuard + b * value_batch);
        put_scales(want_scales, result, layout, used_leading, test::kGuard / size + b * scale_batch,
                   size);
      }
      if (fp8_given) scales.assign(want_scales);
      quantize(x.view(), out, c.options);
      ASSERT_EQ(values.bytes(), want_values) << describe(c) << " " << hwy::TargetName(target) << " "
                                             << scale_layout_traits(layout).name;
      ASSERT_EQ(scales.bytes(), want_scales) << describe(c) << " " << hwy::TargetName(target) << " "
                                             << scale_layout_traits(layout).name;
      if (c.rules.kind != oracle::Kind::nvfp4) continue;
      for (std::int64_t b = 0; b < batch; ++b) {
        const float stored = tensor_scale[static_cast<std::size_t>(b)];
        if (!c.given_tensor_scale.empty()) {
          EXPECT_EQ(stored, c.given_tensor_scale[static_cast<std::size_t>(b)]);
          continue;
        }
        const float s = expected[static_cast<std::size_t>(b)].s_tensor;
        const float amax = oracle::amax_of(x.values(b));
        const float t = amax == 0 ? 1.0f : s == oracle::kLargest ? 1.0f / s : amax / 2688.0f;
        EXPECT_EQ(stored, c.sense == TensorScaleSense::divisor ? s : t) << describe(c);
      }
      EXPECT_EQ(tensor_scale.back(), -77.0f);
    }
  }
}

class QuantizeBytes : public testing::TestWithParam<oracle::Rules> {};

TEST_P(QuantizeBytes, EveryShapeDtypeLayoutAndTarget) {
  std::uint32_t seed = 0;
  for (const Shape& shape : shapes_for(GetParam())) {
    for (const Format dtype : {Format::f32, Format::f16, Format::bf16}) {
      Case c{GetParam(), shape, dtype, test::kAllData[seed % test::kAllData.size()], {}, {}};
      c.seed = ++seed;
      c.options.threads = static_cast<int>(seed % 3) + 1;
      check_case(c);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(QuantizeBytes, EveryKindOfData) {
  std::uint32_t seed = 100;
  for (const Data data : test::kAllData) {
    for (const Format dtype : {Format::f32, Format::f16, Format::bf16}) {
      for (const MxScaleMode mode :
           {MxScaleMode::floor, MxScaleMode::ceil, MxScaleMode::even, MxScaleMode::even_e2m1}) {
        const bool is_mx = GetParam().kind == oracle::Kind::mx;
        if (!is_mx && mode != MxScaleMode::ceil) continue;
        Case c{GetParam(), {8, 256, 1, false}, dtype, data, {}, {}};
        c.seed = ++seed;
        c.options.mx_scale_mode = mode;
        c.options.threads = 1;
        c.oracle_options.mode = static_cast<oracle::Mode>(static_cast<int>(mode));
        check_case(c);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(QuantizeBytes, AmaxFloor) {
  for (const Data data : {Data::normal, Data::tiny, Data::zero, Data::mixed}) {
    Case c{GetParam(), {3, 256, 1, false}, Format::f32, data, {}, {}};
    c.options.fp8_amax_floor = 1e-4f;
    c.oracle_options.amax_floor = 1e-4f;
    check_case(c);
    if (HasFatalFailure()) return;
  }
}

using GivenFp8Scales = QuantizeBytes;
TEST_P(GivenFp8Scales, AreUsedAsTheyAre) {
  for (const float scale : {1.0f, 0.37f, 1e-3f, 3e30f, 0x1p-90f, 0x1.8p-91f, 0x1p-127f, 1e-42f}) {
    for (const Data data : test::kAllData) {
      Case c{GetParam(), {4, 150, 1, true}, Format::f32, data, {}, {}};
      c.options.scale_source = ScaleSource::given;
      for (int row = 0; row < 4; ++row) {
        c.oracle_options.given.push_back(scale * (1.0f + 0.25f * static_cast<float>(row)));
      }
      check_case(c);
      if (HasFatalFailure()) return;
    }
  }
}

using Nvfp4TensorScale = QuantizeBytes;
TEST_P(Nvfp4TensorScale, IsUsedInItsSense) {
  for (const TensorScaleSense sense : {TensorScaleSense::divisor, TensorScaleSense::multiplier}) {
    for (const float scale : {1.0f, 0.013f, 3000.0f, 1e30f, 1e-30f, 0x1p-128f, 3.4e38f}) {
      for (const Data data : test::kAllData) {
        Case c{GetParam(), {4, 160, 2, true}, Format::bf16, data, {}, {}};
        c.options.scale_source = ScaleSource::given;
        c.sense = sense;
        c.given_tensor_scale = {scale, scale * 0.75f + scale / 4};
        check_case(c);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(Nvfp4TensorScale, IsStoredAsMultiplierWhenAsked) {
  for (const Data data : test::kAllData) {
    Case c{GetParam(), {4, 160, 2, true}, Format::f32, data, {}, {}};
    c.sense = TensorScaleSense::multiplier;
    check_case(c);
    if (HasFatalFailure()) return;
  }
}

std::string rule_name(const testing::TestParamInfo<oracle::Rules>& param_info) {
  return param_info.param.name;
}
INSTANTIATE_TEST_SUITE_P(Recipes, QuantizeBytes, testing::ValuesIn(oracle::all_rules()), rule_name);
INSTANTIATE_TEST_SUITE_P(Recipes, GivenFp8Scales,
                         testing::Values(oracle::rules_of("fp8_tensor"),
                                         oracle::rules_of("fp8_tensor_e5m2"),
                                         oracle::rules_of("fp8_row")),
                         rule_name);
INSTANTIATE_TEST_SUITE_P(Recipes, Nvfp4TensorScale, testing::Values(oracle::rules_of("nvfp4")),
                         rule_name);

TEST(Quantize, OracleKnowsEveryRecipe) {
  EXPECT_EQ(oracle::all_rules().size() + 3, static_cast<std::size_t>(kRecipeCount));
}

/// Quotients next to a rounding boundary of e4m3, where an inexact division would show.
TEST(Quantize, Fp8DividesExactly) {
  std::mt19937 random(7);
  const oracle::Rules rules = oracle::rules_of("fp8_row");
  for (const std::int64_t target : test::simd_targets()) {
    const test::UseSimdTarget use(target);
    for (int trial = 0; trial < 200; ++trial) {
      const int exponent = static_cast<int>(random() % 200) - 95;
      const float scale = std::ldexp(1.0f + static_cast<float>(random() >> 9) * 0x1p-23f, exponent);
      std::vector<float> x;
      for (int code = 0; code < 0x7E; ++code) {
        const double boundary = (oracle::kE4M3.values[static_cast<std::size_t>(code)] +
                                 oracle::kE4M3.values[static_cast<std::size_t>(code) + 1]) /
                                2;
        const float near = static_cast<float>(boundary * static_cast<double>(scale));
        for (const float v : {near, std::nextafter(near, 0.0f), std::nextafter(near, INFINITY)}) {
          x.push_back(v);
        }
      }
      const auto k = static_cast<std::int64_t>(x.size());
      oracle::Options options;
      options.given = {scale};
      const oracle::Result expected = oracle::quantize(x, 1, k, rules, options);
      std::vector<std::uint8_t> codes(x.size());
      float stored = scale;
      MutableScaledTensorView out;
      out.recipe = Recipe::fp8_row;
      out.rows = 1;
      out.k = k;
      out.values = codes.data();
      out.scales = &stored;
      QuantizeOptions given;
      given.scale_source = ScaleSource::given;
      given.threads = 1;
      quantize(MatrixView{x.data(), Format::f32, 1, k}, out, given);
      ASSERT_EQ(codes, expected.codes) << "scale " << scale << " " << hwy::TargetName(target);
    }
  }
}

TEST(Quantize, OneTensorScaleForAllMatrices) {
  const test::Matrix x(Format::f32, 4, 64, 3, 0, Data::normal, 3);
  std::vector<float> all;
  for (int b = 0; b < 3; ++b) {
    const std::vector<float> values = x.values(b);
    all.insert(all.end(), values.begin(), values.end());
  }
  ScaledTensor tensor(Recipe::nvfp4, 4, 64, ScaleLayout::row_major, 3);
  MutableScaledTensorView out = tensor.view();
  out.tensor_scale_batch_stride = 0;
  quantize(x.view(), out);
  EXPECT_EQ(out.tensor_scale[0], oracle::nvfp4_scale(oracle::amax_of(all)));
  EXPECT_EQ(out.tensor_scale[1], 1.0f);  // not written
  const oracle::Result expected =
      oracle::quantize(all, 12, 64, oracle::rules_of("nvfp4"), oracle::Options{});
  EXPECT_EQ(
      0, std::memcmp(
             out.scales,
             std::vector<std::uint8_t>(expected.scales.begin(), expected.scales.end()).data(), 48));
}

TEST(Quantize, NewTensorEqualsGivenView) {
  const test::Matrix x(Format::bf16, 40, 96, 2, 0, Data::mixed, 5);
  const ScaledTensor made = quantize(x.view(), Recipe::nvfp4, ScaleLayout::swizzled_128x4, {}, 0.5f,
                                     TensorScaleSense::multiplier);
  ScaledTensor tensor(Recipe::nvfp4, 40, 96, ScaleLayout::swizzled_128x4, 2,
                      TensorScaleSense::multiplier);
  tensor.view().tensor_scale[0] = tensor.view().tensor_scale[1] = 0.5f;
  QuantizeOptions options;
  options.scale_source = ScaleSource::given;
  quantize(x.view(), tensor.view(), options);
  EXPECT_EQ(made.view().tensor_scale[1], 0.5f);
  EXPECT_EQ(0, std::memcmp(made.view().values, tensor.view().values, 2 * 40 * 48));
  EXPECT_EQ(0, std::memcmp(made.view().scales, tensor.view().scales, 2 * 128 * 8));
}

/// A caller that flushes subnormals, or rounds another way, gets the same bytes.
TEST(Quantize, IgnoresTheCallersFloatEnvironment) {
#if defined(__SSE2__)
  const test::Matrix x(Format::f32, 16, 512, 1, 0, Data::denormal, 9);
  for (const Recipe recipe : {Recipe::nvfp4, Recipe::mxfp8_e5m2, Recipe::fp8_1x128}) {
    const ScaledTensor want = quantize(x.view(), recipe);
    const unsigned int saved = _mm_getcsr();
    _mm_setcsr(saved | 0x8040u | 0x6000u);  // FTZ, DAZ, round toward zero
    const ScaledTensor got = quantize(x.view(), recipe);
    EXPECT_EQ(_mm_getcsr() & 0xE040u, 0xE040u);
    _mm_setcsr(saved);
    const std::int64_t bytes = value_bytes(recipe, 16, 512);
    EXPECT_EQ(0,
              std::memcmp(got.view().values, want.view().values, static_cast<std::size_t>(bytes)));
    const std::int64_t scales = scale_bytes(recipe, ScaleLayout::row_major, 16, 512);
    EXPECT_EQ(0,
              std::memcmp(got.view().scales, want.view().scales, static_cast<std::size_t>(scales)));
    if (recipe == Recipe::nvfp4) {
      EXPECT_EQ(got.view().tensor_scale[0], want.view().tensor_scale[0]);
    }
  }
#else
  GTEST_SKIP() << "no MXCSR";
#endif
}

TEST(AbsoluteMaximum, EveryKindOfData) {
  for (const std::int64_t target : test::simd_targets()) {
    const test::UseSimdTarget use(target);
    for (const Format dtype : {Format::f32, Format::f16, Format::bf16}) {
      for (const Data data : test::kAllData) {
        for (const std::int64_t pad : {0, 3}) {
          const test::Matrix x(dtype, 37, 131, 2, pad, data, 11);
          float got[3] = {-1, -1, -7};
          absolute_maximum(x.view(), got, 2);
          EXPECT_EQ(got[0], oracle::amax_of(x.values(0)));
          EXPECT_EQ(got[1], oracle::amax_of(x.values(1)));
          EXPECT_EQ(got[2], -7.0f);
        }
      }
    }
  }
  float nothing = -1;
  absolute_maximum(MatrixView{nullptr, Format::f32, 0, 5}, &nothing);
  EXPECT_EQ(nothing, 0.0f);
}

TEST(TensorScale, IsPinned) {
  EXPECT_EQ(nvfp4_tensor_scale(2688.0f), 1.0f);
  EXPECT_EQ(nvfp4_tensor_scale(0.0f), 1.0f);
  EXPECT_EQ(nvfp4_tensor_scale(1e-40f), oracle::kLargest);
  EXPECT_EQ(nvfp4_tensor_scale(INFINITY), 2688.0f / oracle::kLargest);
  EXPECT_EQ(nvfp4_tensor_multiplier(0.0f), 1.0f);
  EXPECT_EQ(nvfp4_tensor_multiplier(3.0f), 3.0f / 2688.0f);
  EXPECT_EQ(nvfp4_tensor_multiplier(1e-40f), 0x1p-128f);
}

}  // namespace
}  // namespace blockscale
