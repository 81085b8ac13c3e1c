// Values of every recipe, layout and dtype against the oracle: any codes, any scales (NaN, zero and
// overflowing ones too), in poisoned buffers with guards, on every instruction set.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "blockscale/quantize.h"
#include "ops/quantize/test/support.h"
#include "tests/oracles/quantize_oracle.h"
#include "tests/simd_targets.h"

namespace blockscale {
namespace {

const oracle::MiniFloat kHalf{5, 10, 15, 0x7BFF, 0x7E00};
const oracle::MiniFloat kBrain{8, 7, 127, 0x7F7F, 0x7FC0};

/// Bits of `value` rounded once to `dtype`; infinity beyond its range, NaN canonical.
std::uint32_t rounded_bits(Format dtype, float value) {
  if (dtype == Format::f32) {
    return std::isnan(value) ? 0x7FC00000u : std::bit_cast<std::uint32_t>(value);
  }
  const oracle::MiniFloat& format = dtype == Format::f16 ? kHalf : kBrain;
  if (std::isnan(value)) return static_cast<std::uint32_t>(format.nan_code);
  const double magnitude = std::fabs(static_cast<double>(value));
  const double last_step = format.max() - format.values[format.values.size() - 2];
  int code = format.nearest(magnitude);
  if (magnitude >= format.max() + last_step / 2) code = format.largest_code + 1;
  return static_cast<std::uint32_t>(code) | (std::signbit(value) ? 0x8000u : 0u);
}

/// Offset of a scale, spelled out.
std::int64_t offset_of(ScaleLayout layout, std::int64_t i, std::int64_t j, std::int64_t leading) {
  switch (layout) {
    case ScaleLayout::row_major: return i * leading + j;
    case ScaleLayout::mn_major: return j * leading + i;
    case ScaleLayout::swizzled_8x4: return (i / 8 * leading + j / 4) * 32 + i % 8 * 4 + j % 4;
    case ScaleLayout::swizzled_128x4:
      return (i / 128 * leading + j / 4) * 512 + i % 32 * 16 + i % 128 / 32 * 4 + j % 4;
  }
  return 0;
}

int code_at(const std::uint8_t* row, std::int64_t index, int bits) {
  int code = 0;
  for (int b = 0; b < bits; ++b) {
    const std::int64_t bit = index * bits + b;
    code |= (row[bit / 8] >> (bit % 8) & 1) << b;
  }
  return code;
}

float scale_value(const RecipeTraits& t, const std::uint8_t* scale) {
  if (t.scale == Format::f32) {
    float value;
    std::memcpy(&value, scale, sizeof(value));
    return value;
  }
  if (t.scale == Format::ue8m0) return *scale == 0xFF ? NAN : std::ldexp(1.0f, *scale - 127);
  return static_cast<float>(oracle::value_of(oracle::kE4M3, *scale & 0x7F));
}

/// A quantized tensor of random bytes.
struct Operand {
  std::vector<std::uint8_t> values, scales;
  std::vector<float> tensor_scale;
  ScaledTensorView view;

  Operand(Recipe recipe, ScaleLayout layout, std::int64_t rows, std::int64_t k, bool strided,
          TensorScaleSense sense, std::uint32_t seed) {
    const RecipeTraits& t = recipe_traits(recipe);
    std::mt19937 random(seed);
    view.recipe = recipe;
    view.rows = rows;
    view.k = k;
    view.batch = 2;
    view.layout = layout;
    view.value_row_stride = row_bytes(recipe, k) + (strided ? 3 : 0);
    view = resolved_without_data(view);
    const std::int64_t size = format_traits(t.scale).bits / 8;
    if (strided && !is_swizzled(layout)) {
      const ScaleGrid grid = scale_grid(recipe, rows, k);
      view.scale_leading_stride = default_leading_stride(layout, grid.rows, grid.columns) + 2;
    }
    values.resize(static_cast<std::size_t>(2 * rows * view.value_row_stride));
    for (auto& byte : values) byte = static_cast<std::uint8_t>(random());
    scales.resize(static_cast<std::size_t>(2 * (rows + 128) * (k / 16 + 8) * size));
    for (std::size_t i = 0; i < scales.size(); i += static_cast<std::size_t>(size)) {
      std::uint32_t bits = static_cast<std::uint32_t>(random());
      if (size == 4 && random() % 4 != 0) {
        bits = std::bit_cast<std::uint32_t>(std::ldexp(1.3f, static_cast<int>(random() % 40) - 20));
      }
      std::memcpy(scales.data() + i, &bits, static_cast<std::size_t>(size));
    }
    view.values = values.data();
    view.scales = scales.data();
    view.scale_batch_stride = static_cast<std::int64_t>(scales.size()) / size / 2;
    if (t.tensor_scale) {
      tensor_scale = {0.37f, 3e-5f};
      view.tensor_scale = tensor_scale.data();
      view.tensor_scale_batch_stride = 1;
      view.sense = sense;
    }
  }

  static ScaledTensorView resolved_without_data(ScaledTensorView v) {
    v.value_batch_stride = v.rows * v.value_row_stride;
    return v;
  }

  /// The f32 value of element (i, c), by the rules.
  float value(std::int64_t b, std::int64_t i, std::int64_t c, const oracle::Rules& rules) const {
    const RecipeTraits& t = recipe_traits(view.recipe);
    const std::int64_t gi = i / (t.block_rows == 0 ? view.rows : t.block_rows);
    const std::int64_t gj = c / (t.block_k == 0 ? view.k : t.block_k);
    const ScaleGrid grid = scale_grid(view.recipe, view.rows, view.k);
    const std::int64_t leading = view.scale_leading_stride != 0         ? view.scale_leading_stride
                                 : is_swizzled(view.layout)             ? (grid.columns + 3) / 4
                                 : view.layout == ScaleLayout::mn_major ? grid.rows
                                                                        : grid.columns;
    const std::int64_t at = b * view.scale_batch_stride + offset_of(view.layout, gi, gj, leading);
    float factor = scale_value(t, scales.data() + at * (format_traits(t.scale).bits / 8));
    if (view.tensor_scale != nullptr) {
      const float stored = view.tensor_scale[b];
      factor = view.sense == TensorScaleSense::multiplier ? factor * stored : factor / stored;
    }
    const std::uint8_t* const row =
        values.data() + b * view.value_batch_stride + i * view.value_row_stride;
    const int code = code_at(row, c, rules.element->bits());
    return static_cast<float>(oracle::value_of(*rules.element, code)) * factor;
  }
};

void check(const oracle::Rules& rules, Recipe recipe, ScaleLayout layout, Format dtype,
           std::int64_t rows, std::int64_t k, bool strided, TensorScaleSense sense,
           std::uint32_t seed) {
  const Operand x(recipe, layout, rows, k, strided, sense, seed);
  const auto size = static_cast<std::size_t>(format_traits(dtype).bits / 8);
  const std::int64_t row_stride = k + (strided ? 5 : 0);
  for (const std::int64_t target : test::simd_targets()) {
    const test::UseSimdTarget use(target);
    test::GuardedBytes out(2 * rows * row_stride * static_cast<std::int64_t>(size));
    std::vector<std::uint8_t> want = out.bytes();
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t c = 0; c < k; ++c) {
          const std::uint32_t bits = rounded_bits(dtype, x.value(b, i, c, rules));
          const auto at = static_cast<std::size_t>((b * rows + i) * row_stride + c);
          std::memcpy(want.data() + test::kGuard + at * size, &bits, size);
        }
      }
    }
    dequantize(x.view, MutableMatrixView{out.data(), dtype, rows, k, row_stride, 2, 0}, 2);
    ASSERT_EQ(out.bytes(), want) << rules.name << " " << format_traits(dtype).name << " "
                                 << scale_layout_traits(layout).name << " " << rows << "x" << k
                                 << " " << hwy::TargetName(target);
  }
}

class Dequantize : public testing::TestWithParam<oracle::Rules> {};

TEST_P(Dequantize, EveryLayoutAndDtype) {
  const oracle::Rules& rules = GetParam();
  Recipe recipe = Recipe::f32;
  for (const RecipeTraits& t : kRecipes) {
    if (t.name == rules.name) recipe = t.recipe;
  }
  const bool blocks = rules.kind == oracle::Kind::mx || rules.kind == oracle::Kind::nvfp4;
  const std::vector<std::pair<std::int64_t, std::int64_t>> shapes =
      blocks ? std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 32}, {133, 96}, {3, 4160}}
             : std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 1}, {133, 200}, {3, 4113}};
  std::uint32_t seed = 1;
  for (int layout = 0; layout < kScaleLayoutCount; ++layout) {
    const auto scale_layout = static_cast<ScaleLayout>(layout);
    if (is_swizzled(scale_layout) && !(rules.byte_scales && rules.block_rows == 1)) continue;
    for (const Format dtype : {Format::f32, Format::f16, Format::bf16}) {
      for (const auto& [rows, k] : shapes) {
        const auto sense = static_cast<TensorScaleSense>(seed % 2);
        check(rules, recipe, scale_layout, dtype, rows, k, seed % 3 != 0, sense, seed);
        ++seed;
        if (HasFatalFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, Dequantize, testing::ValuesIn(oracle::all_rules()),
                         [](const auto& param_info) { return param_info.param.name; });

/// Plain matrices change their dtype with one rounding.
TEST(DequantizePlain, EveryPairOfDtypes) {
  for (const std::int64_t target : test::simd_targets()) {
    const test::UseSimdTarget use(target);
    for (const Format from : {Format::f32, Format::f16, Format::bf16}) {
      for (const Format to : {Format::f32, Format::f16, Format::bf16}) {
        for (const test::Data data : test::kAllData) {
          const test::Matrix x(from, 5, 77, 1, 2, data, 21);
          const auto size = static_cast<std::size_t>(format_traits(to).bits / 8);
          std::vector<std::uint8_t> out(5 * 77 * size, 0xA5);
          std::vector<std::uint8_t> want = out;
          const std::vector<float> values = x.values(0);
          for (std::size_t i = 0; i < values.size(); ++i) {
            const std::uint32_t bits = rounded_bits(to, values[i]);
            std::memcpy(want.data() + i * size, &bits, size);
          }
          dequantize(as_scaled(x.view()), MutableMatrixView{out.data(), to, 5, 77});
          ASSERT_EQ(out, want) << format_traits(from).name << " to " << format_traits(to).name
                               << " " << test::data_name(data);
        }
      }
    }
  }
}

TEST(DequantizeTensorScale, NullReadsAsOne) {
  ScaledTensor tensor(Recipe::nvfp4, 1, 16);
  static_cast<std::uint8_t*>(tensor.view().values)[0] = 0x72;  // 1 and 6
  static_cast<std::uint8_t*>(tensor.view().scales)[0] = 0x40;  // 2
  ScaledTensorView view = tensor.view();
  view.tensor_scale = nullptr;
  float out[16];
  dequantize(view, MutableMatrixView{out, Format::f32, 1, 16});
  EXPECT_EQ(out[0], 2.0f);
  EXPECT_EQ(out[1], 12.0f);
}

}  // namespace
}  // namespace blockscale
