// Calls on a GPU with gaps between rows of x, of values and of scales: every byte equal to the
// CPU's, those in the gaps and around the outputs too. Skipped, and says so, without a GPU.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/quantize/test/gpu_support.h"
#include "ops/quantize/test/random_blocks.h"
#include "tests/gpu.h"

namespace blockscale {
namespace {

using runtime::DeviceBuffer;
using test::Case;
using test::check;
using test::element_bytes;
using test::layouts_of;
using test::Operands;
using test::OutputBytes;
using test::random_blocks;
using test::scaled_recipes;
using test::size_of;

using CudaGpuStrides = test::OnGpu;

/// As in Case.
struct Strides {
  std::int64_t x_shift, x_padding, value_padding, scale_padding;
};

/// Rows that begin anywhere, of x, of the values, or of both; and where vectors of 16 bytes do.
constexpr Strides kOdd = {1, 3, 1, 3}, kAligned = {8, 16, 16, 4};
constexpr Strides kStrides[] = {kOdd,         kAligned,     {0, 1, 0, 0}, {0, 0, 3, 1},
                                {1, 0, 0, 0}, {0, 8, 1, 2}, {3, 5, 8, 0}};

void stride(Case& c, const Strides& strides) {
  c.x_shift = strides.x_shift;
  c.x_padding = strides.x_padding;
  c.value_padding = strides.value_padding;
  c.scale_padding = strides.scale_padding;
}

TEST_F(CudaGpuStrides, AreTakenByEveryRecipeAndLayout) {
  for (const Recipe recipe : scaled_recipes()) {
    for (const ScaleLayout layout : layouts_of(recipe)) {
      for (const Format dtype : {Format::bf16, Format::f16, Format::f32}) {
        Case c{recipe, dtype, 37, 736, 4, layout};
        const std::vector<std::uint8_t> elements = random_blocks(c, 1);
        for (const Strides& strides : kStrides) {
          stride(c, strides);
          check(c, elements);
          ASSERT_FALSE(HasFailure());
        }
      }
    }
  }
}

/// Rows that are no whole vectors, packed and from where vectors begin.
TEST_F(CudaGpuStrides, AreTakenOfRaggedRows) {
  for (const Recipe recipe : scaled_recipes()) {
    if (!recipe_traits(recipe).ragged) continue;
    for (const Format dtype : {Format::bf16, Format::f16, Format::f32}) {
      Case c{recipe, dtype, 70, 1001, 2};
      const std::vector<std::uint8_t> elements = random_blocks(c, 2);
      for (const Strides& strides : {Strides{0, 7, 7, 0}, Strides{0, 7, 0, 0}, Strides{0, 0, 7, 2},
                                     Strides{8, 23, 15, 1}, kOdd}) {
        stride(c, strides);
        check(c, elements);
        ASSERT_FALSE(HasFailure());
      }
    }
  }
}

TEST_F(CudaGpuStrides, AreTakenByFusedInputs) {
  for (const Format dtype : {Format::bf16, Format::f16, Format::f32}) {
    const Operands operands(dtype, 2, 512, 8), odd_operands(dtype, 2, 512, 3);
    for (int t = 1; t < kInputTransformCount; ++t) {
      for (const Recipe recipe :
           {Recipe::mxfp4, Recipe::mxfp6_e2m3, Recipe::nvfp4, Recipe::fp8_row, Recipe::fp8_tensor,
            Recipe::fp8_1x128, Recipe::fp8_32x128, Recipe::fp8_128x128_ue8m0}) {
        Case c{recipe, dtype, 70, 512, 2};
        for (const Operands* const some : {&operands, &odd_operands}) {
          some->use(c, static_cast<InputTransform>(t));
          const std::vector<std::uint8_t> elements = random_blocks(c, 3);
          for (const Strides& strides : {kOdd, kAligned, Strides{0, 8, 1, 0}}) {
            stride(c, strides);
            check(c, elements);
            ASSERT_FALSE(HasFailure());
          }
        }
      }
    }
  }
}

/// Of more than 64 Ki elements for each SM, where calls do not let the next one start.
TEST_F(CudaGpuStrides, AreTakenByLargeInputs) {
  for (const Recipe recipe : scaled_recipes()) {
    for (const Strides& strides : {kOdd, kAligned}) {
      Case c{recipe, Format::bf16, 1100, 4096, 2};
      stride(c, strides);
      check(c, random_blocks(c, 4));
      ASSERT_FALSE(HasFailure());
    }
  }
  const Operands operands(Format::bf16, 1, 8192, 8);
  for (int t = 1; t < kInputTransformCount; ++t) {
    for (const Recipe recipe : {Recipe::mxfp8_e4m3, Recipe::nvfp4, Recipe::fp8_128x128}) {
      for (const Strides& strides : {kOdd, kAligned}) {
        Case c{recipe, Format::bf16, 1100, 8192};
        stride(c, strides);
        operands.use(c, static_cast<InputTransform>(t));
        check(c, random_blocks(c, 5));
        ASSERT_FALSE(HasFailure());
      }
    }
  }
}

/// Random values and scales of a case's output; scales that are not there are not read.
void check_dequantize(const Case& c, Format output, std::int64_t out_shift,
                      std::int64_t out_padding) {
  MutableScaledTensorView v = test::shape_of(c);
  const bool plain = is_plain(c.recipe);
  const auto random_bytes = [](std::int64_t count, std::uint64_t seed) {
    std::vector<std::uint8_t> bytes(size_of(count));
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::uint8_t>(test::mixed(seed + i));
    }
    return bytes;
  };
  std::vector<std::uint8_t> values = random_bytes(c.batch * v.value_batch_stride, 100);
  std::vector<std::uint8_t> scales = random_bytes(
      plain ? 0 : c.batch * v.scale_batch_stride * element_bytes(recipe_traits(c.recipe).scale),
      200);
  std::vector<float> tensor_scales = {0.37f, 1e4f, 1.0f, 3e-5f};
  ASSERT_LE(c.batch, 4);
  const std::int64_t size = element_bytes(output), line = c.k + out_padding;
  OutputBytes out((out_shift + c.batch * c.rows * line) * size);
  const auto out_at = [&](void* data) {
    return MutableMatrixView{
        static_cast<std::uint8_t*>(data) + out_shift * size, output, c.rows, c.k, line, c.batch};
  };
  if (plain) v.scale_leading_stride = v.scale_batch_stride = 0;
  ScaledTensorView here = v;
  here.values = values.data();
  here.scales = plain ? nullptr : scales.data();
  if (recipe_traits(c.recipe).tensor_scale) here.tensor_scale = tensor_scales.data();
  const test::TensorOnDevice there(here, static_cast<std::int64_t>(values.size()),
                                   static_cast<std::int64_t>(scales.size()), 4);
  dequantize(here, out_at(out.host()));
  runtime::wait_for_device();
  const runtime::DeviceStream stream;
  cuda::dequantize(there.view(), out_at(out.device()), {stream.handle(), nullptr, 0});
  stream.wait();
  out.expect_equal(describe(c) + " to " + format_traits(output).name + " padding " +
                   std::to_string(out_padding));
}

TEST_F(CudaGpuStrides, AreTakenByDequantize) {
  for (const RecipeTraits& t : kRecipes) {
    for (const ScaleLayout layout : layouts_of(t.recipe)) {
      for (const Format output : {Format::bf16, Format::f16, Format::f32}) {
        for (const Strides& strides : kStrides) {
          for (const auto sense : {TensorScaleSense::divisor, TensorScaleSense::multiplier}) {
            if (!t.tensor_scale && sense != TensorScaleSense::divisor) continue;
            Case c{t.recipe, Format::bf16, 67, 1056, 2, layout};
            stride(c, strides);
            // Rows of plain recipes are whole elements apart.
            if (is_plain(t.recipe)) c.value_padding *= element_bytes(t.element);
            c.sense = sense;
            c.tensor_scale_stride = strides.x_padding % 2;
            check_dequantize(c, output, strides.x_shift, strides.x_padding);
            ASSERT_FALSE(HasFailure());
          }
        }
      }
    }
    if (!t.ragged) continue;
    for (const Strides& strides : {Strides{0, 7, 7, 0}, Strides{0, 0, 0, 0}, kOdd}) {
      Case c{t.recipe, Format::bf16, 130, 1001, 2};
      stride(c, strides);
      if (is_plain(t.recipe)) c.value_padding *= element_bytes(t.element);
      check_dequantize(c, Format::bf16, strides.x_shift, strides.x_padding);
      ASSERT_FALSE(HasFailure());
    }
  }
}

/// What lies between the rows is large, and would be found.
TEST_F(CudaGpuStrides, AreTakenByAbsoluteMaximum) {
  for (const Format dtype : {Format::bf16, Format::f16, Format::f32}) {
    const Operands operands(dtype, 3, 1000, 3);
    for (int t = 0; t < kInputTransformCount; ++t) {
      for (const Strides& strides : {kOdd, kAligned, Strides{0, 0, 0, 0}}) {
        Case c{Recipe::fp8_tensor, dtype, 300, 1000, 3};
        operands.use(c, static_cast<InputTransform>(t));
        const std::int64_t size = element_bytes(dtype), columns = columns_of(c);
        const std::int64_t line = columns + strides.x_padding;
        const std::int64_t before = strides.x_shift * size;
        const std::vector<std::uint8_t> packed = random_blocks(c, 6);
        std::vector<std::uint8_t> x(size_of(before + c.batch * c.rows * line * size), 0x7B);
        for (std::int64_t i = 0; i < c.batch * c.rows; ++i) {
          std::memcpy(x.data() + before + i * line * size, packed.data() + i * columns * size,
                      size_of(columns * size));
        }
        MatrixView view{x.data() + before, dtype, c.rows, columns, line, c.batch};
        OutputBytes out(12);
        absolute_maximum(view, c.options.input, reinterpret_cast<float*>(out.host()));
        DeviceBuffer there(x.size());
        there.copy_from_host(x.data(), x.size());
        view.data = there.data() + before;
        const std::int64_t bytes =
            cuda::absolute_maximum_workspace_bytes(view, c.options_gpu.input);
        DeviceBuffer workspace(size_of(bytes));
        workspace.fill(0xFF);
        const runtime::DeviceStream stream;
        cuda::absolute_maximum(view, c.options_gpu.input, reinterpret_cast<float*>(out.device()),
                               {stream.handle(), workspace.data(), bytes});
        stream.wait();
        out.expect_equal(describe(c));
        ASSERT_FALSE(HasFailure());
      }
    }
  }
}

}  // namespace
}  // namespace blockscale
