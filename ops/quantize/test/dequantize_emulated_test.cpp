// dequantize's CUDA kernels in the emulator: every byte equal to the CPU's, and nothing to report.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <set>
#include <utility>

#include "device/emulator/emulator.h"
#include "device/encode/store.cuh"
#include "ops/quantize/cuda/dequantize_plan.h"
#include "ops/quantize/kernels/dequantize.cuh"
#include "ops/quantize/test/emulation.h"
#include "ops/quantize/test/support.h"
#include "tests/chip.h"

namespace blockscale {
namespace {

struct Case {
  Recipe recipe;
  Format output = Format::bf16;
  std::int64_t rows = 5, k = 160, batch = 1;
  std::int64_t padding = 0;  // bytes behind each row of values, elements behind each of the output
  ScaleLayout layout = ScaleLayout::row_major;
  TensorScaleSense sense = TensorScaleSense::divisor;
  std::int64_t tensor_scale_stride = 1;
  bool null_tensor_scale = false;
  bool calm = false;  // scales near 1; else any bits
  cuda::Chip chip = {};
};

std::string describe(const Case& c) {
  return std::string(recipe_traits(c.recipe).name) + " to " + format_traits(c.output).name + " " +
         std::to_string(c.rows) + "x" + std::to_string(c.k) + " padding " +
         std::to_string(c.padding) + " " + scale_layout_traits(c.layout).name;
}

/// Random bits as codes and scales: all of them have a meaning. The index of the kernel that has
/// run, -1 for none.
int check(const Case& c) {
  const RecipeTraits& t = recipe_traits(c.recipe);
  std::mt19937 random(static_cast<std::uint32_t>(c.rows * 1000 + c.k));
  const std::int64_t row = row_bytes(c.recipe, c.k) + c.padding * 4;
  std::vector<std::uint8_t> values(static_cast<std::size_t>(c.batch * c.rows * row));
  for (auto& byte : values) byte = static_cast<std::uint8_t>(random());
  const ScaleGrid grid = scale_grid(c.recipe, c.rows, c.k);
  const std::int64_t leading = default_leading_stride(c.layout, grid.rows, grid.columns);
  const std::int64_t count = default_batch_stride(c.layout, grid.rows, grid.columns, leading);
  std::vector<std::uint32_t> scales(static_cast<std::size_t>(c.batch * count) + 1);
  for (auto& word : scales) {
    word = static_cast<std::uint32_t>(random());
    if (c.calm)
      word = t.scale == Format::f32 ? 0x3F800000u | (word >> 9) : 0x7E807F7Eu & 0x7F7F7F7Fu;
  }
  std::vector<float> tensor_scale(static_cast<std::size_t>(c.batch) + 1);
  for (float& s : tensor_scale) s = 0.37f + static_cast<float>(random() % 1000);

  ScaledTensorView x;
  x.recipe = c.recipe;
  x.rows = c.rows;
  x.k = c.k;
  x.batch = c.batch;
  x.values = values.data();
  x.value_row_stride = row;
  x.scales = scales.data();
  x.layout = c.layout;
  if (t.tensor_scale && !c.null_tensor_scale) x.tensor_scale = tensor_scale.data();
  x.sense = c.sense;
  x.tensor_scale_batch_stride = c.tensor_scale_stride;

  const std::int64_t stride = c.k + c.padding;
  const std::int64_t bytes = c.batch * c.rows * stride * (format_traits(c.output).bits / 8);
  test::GuardedBytes expected(bytes);
  test::GuardedBytes actual(bytes);
  MutableMatrixView out{expected.data(), c.output, c.rows, c.k, stride, c.batch};
  dequantize(x, out, 1);
  out.data = actual.data();
  const auto plan = plan_dequantize(quantize_detail::validated(x, out, 0), c.chip);
  if (plan.kernel >= 0) {
    std::vector<emulator::Buffer> buffers = {
        emulator::input("values", values),
        emulator::buffer("out", actual.data(), static_cast<std::size_t>(bytes),
                         emulator::BufferUse::output)};
    if (t.family != Family::plain) {
      buffers.push_back(emulator::input("scales", scales));
      buffers.push_back(emulator::input("tensor_scale", tensor_scale));
    }
    const test::DequantizeFunction function = test::dequantize_function(plan.kernel);
    const emulator::Report report =
        emulator::launch(plan.shape, buffers, emulator::compiled_for(plan.architecture, {}),
                         [&] { function(plan.params); });
    EXPECT_TRUE(report.ok()) << describe(c) << "\n" << plan.str() << report.text();
  }
  EXPECT_EQ(actual.bytes(), expected.bytes()) << describe(c);
  return plan.kernel;
}

class Dequantize : public testing::TestWithParam<Recipe> {};

TEST_P(Dequantize, WritesTheBytesOfTheCpu) {
  for (const ScaleLayout layout : test::layouts_of(GetParam())) {
    for (const Format output : {Format::bf16, Format::f16, Format::f32}) {
      for (const bool calm : {false, true}) {
        Case c{GetParam(), output};
        c.layout = layout;
        c.calm = calm;
        check(c);
      }
    }
  }
}

TEST_P(Dequantize, RunsOnEveryArchitecture) {
  for (const cuda::Chip& chip : test::chips_of_every_architecture()) {
    Case c{GetParam()};
    c.chip = chip;
    check(c);
  }
}

TEST_P(Dequantize, TakesAnyShapeAndStride) {
  for (const std::int64_t k : {16, 32, 96, 17, 131, 300}) {
    const RecipeTraits& t = recipe_traits(GetParam());
    if (!t.ragged && k % t.block_k != 0) continue;
    for (const std::int64_t rows : {1, 3, 130, 0}) {
      Case c{GetParam()};
      c.rows = rows;
      c.k = k;
      c.batch = 1 + rows % 2;
      c.padding = rows % 3;
      check(c);
      c.output = Format::f32;
      check(c);
    }
  }
}

TEST_P(Dequantize, AppliesTheTensorScaleAsItIsStored) {
  if (!recipe_traits(GetParam()).tensor_scale) return;
  for (const TensorScaleSense sense : {TensorScaleSense::divisor, TensorScaleSense::multiplier}) {
    for (const std::int64_t stride : {0, 1}) {
      for (const bool null : {false, true}) {
        Case c{GetParam(), Format::f32};
        c.batch = 2;
        c.sense = sense;
        c.tensor_scale_stride = stride;
        c.null_tensor_scale = null;
        check(c);
      }
    }
  }
}

std::vector<Recipe> all_recipes() {
  std::vector<Recipe> result;
  for (const RecipeTraits& t : kRecipes) result.push_back(t.recipe);
  return result;
}
INSTANTIATE_TEST_SUITE_P(Cuda, Dequantize, testing::ValuesIn(all_recipes()),
                         [](const auto& p) { return recipe_traits(p.param).name; });

TEST(CudaDequantize, RunsEveryKernelOfTheList) {
  std::set<int> emulated;
  for (const Recipe recipe : all_recipes()) {
    for (const Format output : {Format::bf16, Format::f16, Format::f32}) {
      emulated.insert(check({recipe, output}));
    }
  }
  for (int i = 0; i < kDequantizeKernels.count; ++i) {
    EXPECT_TRUE(emulated.contains(i)) << format_traits(kDequantizeKernels[i].element).name;
  }
}

/// Of every code and scale of MX: what bf16 has are multiples of 2^-133 with eight bits, below
/// 2^128.
TEST(CudaDequantize, FindsWhatBf16Lacks) {
  for (const Format format :
       {Format::e2m1, Format::e2m3, Format::e3m2, Format::e4m3, Format::e5m2}) {
    std::int64_t lacking = 0;
    for (std::uint32_t code = 0; code < 1u << format_traits(format).bits; ++code) {
      for (std::uint32_t scale = 0; scale < 256; ++scale) {
        const float elements[] = {decode(format, code)};
        const float of_block = decode(Format::ue8m0, scale);
        const double product = double{elements[0]} * double{of_block};
        bool is_in = product == 0 || std::isnan(product) || std::isinf(product);
        if (!is_in) {
          const double unit = std::ldexp(1.0, std::max(-133, std::ilogb(product) - 7));
          is_in = std::abs(product) < 0x1p128 && std::fmod(product, unit) == 0;
        }
        ASSERT_EQ(quantizer::are_in_bf16(elements, of_block), is_in) << code << " " << scale;
        lacking += is_in ? 0 : 1;
      }
    }
    EXPECT_GT(lacking, 0) << format_traits(format).name;
  }
}

/// Codes come and go byte by byte, as many as there are: rows may go on for 2^30 - 1 more.
template <Format kElement>
void check_code_bytes() {
  constexpr int kCodes = 16, kBits = format_traits(kElement).bits, kBytes = kCodes * kBits / 8;
  std::array<std::uint8_t, kBytes> codes;
  for (std::size_t i = 0; i < kBytes; ++i) codes[i] = static_cast<std::uint8_t>(1 + i);
  for (const std::int32_t count :
       {0, 1, 2, 7, 15, 16, 17, 1 << 27, 1 << 28, 1 << 29, (1 << 30) - 1}) {
    std::array<std::uint8_t, kBytes> copy = {};
    const emulator::Report report = emulator::launch(
        {.block = {32}}, {emulator::input("codes", codes), emulator::output("copy", copy)},
        emulator::in_order(), [&] {
          if (ptx::tid_x() != 0) return;
          encoding::Codes<kElement, kCodes> loaded;
          quantizer::load_codes(loaded, codes.data(), count, false);
          encoding::store_code_bytes(loaded, count, copy.data());
        });
    EXPECT_TRUE(report.ok()) << report.text();
    const int bytes = (std::min(count, kCodes) * kBits + 7) / 8;
    for (int i = 0; i < kBytes; ++i) {
      const auto at = static_cast<std::size_t>(i);
      EXPECT_EQ(copy[at], i < bytes ? codes[at] : 0) << kBits << " bits, " << count << " codes";
    }
  }
}

TEST(CudaCodes, AreLoadedAndStoredHoweverLongTheRowIs) {
  check_code_bytes<Format::e2m1>();
  check_code_bytes<Format::e3m2>();
  check_code_bytes<Format::e5m2>();
}

TEST(DequantizePlan, SaysWhatItDoes) {
  ScaledTensor x(Recipe::mxfp4, 64, 4096);
  std::vector<std::uint16_t> out(64 * 4096);
  const auto plan = plan_dequantize(
      quantize_detail::validated(std::as_const(x).view(),
                                 MutableMatrixView{out.data(), Format::bf16, 64, 4096}, 0),
      {});
  EXPECT_NE(plan.str().find("dequantize_e2m1_bf16: 64 tiles of 1 rows"), std::string::npos)
      << plan.str();
}

TEST(DequantizePlan, TakesNoStrideOfOneRowOrMatrix) {
  ScaledTensor one_row(Recipe::mxfp4, 1, 4096);
  ScaledTensorView x = std::as_const(one_row).view();
  x.value_row_stride = (std::int64_t{1} << 40) + 1;
  std::vector<std::uint16_t> out(4096);
  const auto plan = plan_dequantize(
      quantize_detail::validated(x, MutableMatrixView{out.data(), Format::bf16, 1, 4096}, 0), {});
  EXPECT_EQ(plan.params.value_row_stride, 0);
  EXPECT_EQ(plan.params.value_batch_stride, 0);
  EXPECT_TRUE(plan.params.value_vectors);
}

}  // namespace
}  // namespace blockscale
