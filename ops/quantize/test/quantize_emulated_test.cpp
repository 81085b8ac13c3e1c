// The quantizers' CUDA kernels in the emulator: every byte equal to the CPU's, and no race, no byte
// out of bounds, no divergent collective.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "ops/quantize/test/emulated_cases.h"

namespace blockscale {
namespace {

using test::bytes_of;
using test::Case;
using test::check;
using test::Data;
using test::layouts_of;
using test::scaled_recipes;

class EveryRecipe : public testing::TestWithParam<Recipe> {
 protected:
  Case a_case() const {
    Case c;
    c.recipe = GetParam();
    return c;
  }
  bool ragged() const { return recipe_traits(GetParam()).ragged; }
};

TEST_P(EveryRecipe, WritesTheBytesOfTheCpuInEveryLayout) {
  for (const ScaleLayout layout : layouts_of(GetParam())) {
    for (const Format dtype : {Format::bf16, Format::f16, Format::f32}) {
      Case c = a_case();
      c.layout = layout;
      c.dtype = dtype;
      c.rows = 9;
      c.k = 416;
      c.seed = layout == ScaleLayout::row_major ? 5 : 0;
      check(c);
    }
  }
}

TEST_P(EveryRecipe, TakesEveryKindOfData) {
  for (const Data data : test::kAllData) {
    Case c = a_case();
    c.rows = 4;
    c.k = 256;
    c.data = data;
    check(c);
    c.dtype = Format::f16;
    check(c);
    c.dtype = Format::f32;
    check(c);
  }
}

TEST_P(EveryRecipe, RunsOnEveryArchitecture) {
  for (const cuda::Chip& chip : test::chips_of_every_architecture()) {
    Case c = a_case();
    c.chip = chip;
    c.rows = 9;
    c.k = 256;
    check(c);
  }
}

TEST_P(EveryRecipe, TakesAnyShapeAndStride) {
  for (const std::int64_t rows : {1, 2, 33}) {
    for (const std::int64_t k : {16, 32, 96, 160, 17, 131}) {
      const RecipeTraits& t = recipe_traits(GetParam());
      if (!t.ragged && k % t.block_k != 0) continue;
      Case c = a_case();
      c.rows = rows;
      c.k = k;
      c.x_padding = rows % 2;
      c.value_padding = rows % 3;
      c.batch = rows == 2 ? 3 : 1;
      check(c);
    }
  }
}

TEST_P(EveryRecipe, TakesEmptyMatrices) {
  for (const auto& [rows, k, batch] :
       {std::array{0, 64, 1}, std::array{3, 0, 2}, std::array{2, 64, 0}}) {
    Case c = a_case();
    c.rows = rows;
    c.k = k;
    c.batch = batch;
    check(c);
    c.tensor_scale_stride = 0;
    check(c);
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, EveryRecipe, testing::ValuesIn(scaled_recipes()),
                         [](const auto& p) { return recipe_traits(p.param).name; });

TEST(CudaQuantize, FollowsTheModeOfMx) {
  for (const Recipe recipe : {Recipe::mxfp8_e4m3, Recipe::mxfp8_e5m2, Recipe::mxfp6_e2m3,
                              Recipe::mxfp6_e3m2, Recipe::mxfp4}) {
    for (const MxScaleMode mode : {MxScaleMode::floor, MxScaleMode::even}) {
      for (const Data data : {Data::boundaries, Data::any_bits, Data::huge}) {
        for (const Format dtype : {Format::bf16, Format::f16, Format::f32}) {
          Case c{recipe, dtype};
          c.rows = 6;
          c.k = 160;
          c.data = data;
          c.options.mx_scale_mode = mode;
          check(c);
        }
      }
    }
  }
}

TEST(CudaQuantize, TakesTensorScalesAsGiven) {
  for (const TensorScaleSense sense : {TensorScaleSense::divisor, TensorScaleSense::multiplier}) {
    for (const float given : {1.0f, 0.37f, 1e6f, 1e-6f, 1e30f, 1e-30f}) {
      for (const Data data : {Data::normal, Data::any_bits}) {
        Case c{Recipe::nvfp4};
        c.rows = 5;
        c.k = 96;
        c.batch = 2;
        c.data = data;
        c.sense = sense;
        c.given = given;
        c.options.scale_source = ScaleSource::given;
        check(c);
        c.dtype = Format::f32;
        c.tensor_scale_stride = 0;
        check(c);
      }
    }
  }
}

/// More tiles than CTAs of the first kernel take at once, in any order of threads.
TEST(CudaQuantize, ComputesScalesOfManyTiles) {
  for (const Recipe recipe : {Recipe::nvfp4, Recipe::fp8_tensor, Recipe::fp8_tensor_e5m2}) {
    for (const Format dtype : {Format::bf16, Format::f32}) {
      for (const std::int64_t rows : {1, 40, 150}) {
        Case c{recipe, dtype};
        c.rows = rows;
        c.k = 1040;
        c.batch = 2;
        c.data = Data::normal;
        c.tensor_scale_stride = rows % 2;
        c.seed = static_cast<std::uint64_t>(rows);
        check(c);
      }
    }
  }
}

TEST(CudaQuantize, StoresTensorScalesInEitherSense) {
  for (const TensorScaleSense sense : {TensorScaleSense::divisor, TensorScaleSense::multiplier}) {
    for (const std::int64_t stride : {0, 1}) {
      for (const Data data : {Data::tiny, Data::denormal, Data::huge, Data::zero}) {
        Case c{Recipe::nvfp4};
        c.rows = 7;
        c.k = 64;
        c.batch = 3;
        c.data = data;
        c.sense = sense;
        c.tensor_scale_stride = stride;
        check(c);
        c.dtype = Format::f32;
        check(c);
      }
    }
  }
}

TEST(CudaQuantize, TakesFp8ScalesAsGiven) {
  for (const Recipe recipe : {Recipe::fp8_tensor, Recipe::fp8_tensor_e5m2, Recipe::fp8_row}) {
    for (const float given : {1.0f, 0.03f, 1e-20f, 1e-36f, 1e-43f, 1e37f}) {
      for (const Data data : {Data::normal, Data::any_bits, Data::tiny}) {
        Case c{recipe};
        c.rows = 5;
        c.k = 80;
        c.batch = 2;
        c.data = data;
        c.given = given;
        c.options.scale_source = ScaleSource::given;
        check(c);
        c.dtype = Format::f32;
        check(c);
      }
    }
  }
}

TEST(CudaQuantize, AppliesTheFloorOfFp8) {
  for (const Recipe recipe : {Recipe::fp8_1x128, Recipe::fp8_128x128_ue8m0, Recipe::fp8_row,
                              Recipe::fp8_tensor, Recipe::fp8_32x128_pow2}) {
    for (const Data data : {Data::zero, Data::tiny, Data::normal}) {
      Case c{recipe};
      c.rows = 3;
      c.k = 144;
      c.data = data;
      c.options.fp8_amax_floor = 1e-4f;
      check(c);
    }
  }
}

TEST(CudaQuantize, TakesBlocksOfSeveralRows) {
  for (const Recipe recipe : {Recipe::fp8_32x128, Recipe::fp8_64x128_ue8m0, Recipe::fp8_128x128}) {
    for (const Data data : {Data::normal, Data::any_bits, Data::tiny}) {
      Case c{recipe};
      c.rows = 150;
      c.k = 392;
      c.batch = 2;
      c.data = data;
      c.seed = 3;
      check(c);
      c.dtype = Format::f32;
      c.k = 131;
      check(c);
    }
  }
}

TEST(CudaQuantize, HoldsRowsOfManyRounds) {
  for (const std::int64_t k : {2048, 2056, 4097, 8190, 16384, 33000}) {
    for (const Format dtype : {Format::bf16, Format::f32}) {
      Case c{Recipe::fp8_row, dtype};
      c.rows = 3;
      c.k = k;
      c.x_padding = k == 8190 ? 2 : 0;
      check(c);
    }
  }
}

TEST(CudaQuantize, TakesSeveralTilesEachWay) {
  for (const Recipe recipe : {Recipe::mxfp4, Recipe::nvfp4, Recipe::fp8_1x128_ue8m0,
                              Recipe::fp8_32x128, Recipe::fp8_tensor, Recipe::mxfp6_e2m3}) {
    for (const ScaleLayout layout : {ScaleLayout::row_major, ScaleLayout::mn_major}) {
      Case c{recipe};
      c.rows = 70;
      c.k = 1312;
      c.batch = 2;
      c.layout = layout;
      c.data = Data::normal;
      check(c);
    }
  }
}

void check_absolute_maximum(Data data, InputTransform transform, std::int64_t rows) {
  const test::Matrix x(Format::bf16, rows, 96, 3, 0, data, 9);
  const test::Matrix weight(Format::f32, 1, 96, 1, 0, Data::normal, 10);
  const QuantizeInput input = test::input_of(transform, {}, {}, weight.view());
  std::vector<float> expected(3, -1.0f), actual(3, -1.0f);
  absolute_maximum(x.view(), input, expected.data(), 1);
  test::PlanBuffers buffers;
  buffers.add("x", x.view().data, bytes_of(x.view()), emulator::BufferUse::input);
  buffers.add("weight", weight.view().data, 96 * 4, emulator::BufferUse::input);
  buffers.add("out", actual.data(), 12, emulator::BufferUse::output);
  const auto a = quantize_detail::validated(x.view(), input, actual.data(), 0);
  ASSERT_TRUE(test::emulate_plan(
      [&](void* workspace) {
        return quantize_detail::plan_absolute_maximum(a, actual.data(), test::chip_of(3),
                                                      workspace);
      },
      buffers, 1));
  EXPECT_EQ(actual, expected) << test::data_name(data) << " " << rows;
}

TEST(CudaAbsoluteMaximum, IsThatOfTheCpu) {
  for (const Data data : test::kAllData) {
    for (const InputTransform transform : {InputTransform::identity, InputTransform::rms_norm}) {
      for (const std::int64_t rows : {37, 0}) check_absolute_maximum(data, transform, rows);
    }
  }
}

/// Rows of x by an index: each the bytes of that row of the CPU's result, or left as it was.
void check_gathered(Format dtype, std::int64_t k, std::int64_t x_padding, std::uint64_t seed) {
  const std::vector<std::int32_t> index = {3, -1, 0, 3, 6, -7, -1, 2, 5, 5, 0};
  constexpr std::int64_t kTokens = 7;
  const auto rows = std::ssize(index);
  const test::Matrix x(dtype, kTokens, k, 1, x_padding, Data::normal, 77);
  const ScaledTensor of_tokens = quantize(x.view(), Recipe::fp8_1x128);
  ScaledTensor result(Recipe::fp8_1x128, rows, k);
  const MutableScaledTensorView out = result.view();
  const std::int64_t columns = ceil_div(k, std::int64_t{128});
  auto* const values = static_cast<std::uint8_t*>(out.values);
  auto* const scales = static_cast<float*>(out.scales);
  std::fill(values, values + rows * k, std::uint8_t{0xA5});
  std::fill(scales, scales + rows * columns, -1.0f);

  const quantize_detail::QuantizeArguments a =
      quantize_detail::validated_gather(x.view(), index.data(), out, {});
  test::PlanBuffers buffers;
  buffers.add("x", x.view().data, bytes_of(x.view()), emulator::BufferUse::input);
  buffers.add("index", index.data(), 4 * rows, emulator::BufferUse::input);
  buffers.add("values", values, rows * k, emulator::BufferUse::both);
  buffers.add("scales", scales, 4 * rows * columns, emulator::BufferUse::both);
  ASSERT_TRUE(test::emulate_plan(
      [&](void* workspace) {
        return quantize_detail::plan_quantize(a, {}, test::chip_of(3), workspace);
      },
      buffers, seed));
  const auto* const token_values = static_cast<const std::uint8_t*>(of_tokens.view().values);
  const auto* const token_scales = static_cast<const float*>(of_tokens.view().scales);
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t token = index[static_cast<std::size_t>(r)];
    for (std::int64_t c = 0; c < k; ++c) {
      ASSERT_EQ(values[r * k + c], token < 0 ? 0xA5 : token_values[token * k + c]) << r << " " << c;
    }
    for (std::int64_t c = 0; c < columns; ++c) {
      ASSERT_EQ(scales[r * columns + c], token < 0 ? -1.0f : token_scales[token * columns + c])
          << r;
    }
  }
}

TEST(CudaQuantize, TakesRowsByAnIndex) {
  for (const Format dtype : {Format::bf16, Format::f16, Format::f32}) {
    for (const std::int64_t k : {128, 16, 200, 1024, 4224}) {
      for (const std::int64_t padding : {0, 1, 8}) check_gathered(dtype, k, padding, 0);
    }
    check_gathered(dtype, 640, 0, 5);
  }
}

TEST(CudaQuantize, OtherRecipesAreNotTakenByAnIndex) {
  const std::int32_t index[] = {0};
  const test::Matrix x(Format::bf16, 1, 128, 1, 0, Data::normal, 1);
  for (const Recipe recipe : scaled_recipes()) {
    const RecipeTraits& t = recipe_traits(recipe);
    const bool is_taken = t.family == Family::fp8 && t.block_rows == 1 && t.block_k == 128;
    ScaledTensor result(recipe, 1, 128);
    const quantize_detail::QuantizeArguments a =
        quantize_detail::validated_gather(x.view(), index, result.view(), {});
    const auto plan = [&] {
      (void)quantize_detail::plan_quantize(a, {}, test::chip_of(3), nullptr);
    };
    if (is_taken) {
      EXPECT_NO_THROW(plan()) << t.name;
    } else {
      EXPECT_THROW(plan(), Error) << t.name;
    }
  }
}

TEST(CudaQuantize, RunsEveryKernelOfTheList) {
  for (const Recipe recipe : scaled_recipes()) {
    for (const Format dtype : {Format::bf16, Format::f16, Format::f32}) {
      for (int transform = 0; transform < kInputTransformCount; ++transform) {
        Case c{recipe};
        c.dtype = dtype;
        c.rows = 2;
        c.k = 160;
        c.data = Data::normal;
        c.options.input = test::input_of(static_cast<InputTransform>(transform));
        c.operand_dtype = dtype;
        check(c);
        const RecipeTraits& t = recipe_traits(recipe);
        if (t.block_k != 0 && !t.tensor_scale) continue;
        c.given = 0.5f;
        c.options.scale_source = ScaleSource::given;
        check(c);
      }
    }
  }
  check_absolute_maximum(Data::normal, InputTransform::identity, 3);
  for (const Format dtype : {Format::bf16, Format::f16, Format::f32}) {
    check_gathered(dtype, 128, 0, 0);
  }
  Case empty{Recipe::nvfp4};
  empty.rows = 0;
  check(empty);
  for (int i = 0; i < kQuantizeKernels.count; ++i) {
    EXPECT_TRUE(test::emulated_kernels().contains(i))
        << quantize_detail::quantize_kernel_name(kQuantizeKernels[i]);
  }
}

}  // namespace
}  // namespace blockscale
