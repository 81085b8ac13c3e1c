// Random elements on a GPU, in large numbers: every byte equal to the CPU's. Skipped, and says so,
// without one.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "ops/quantize/test/gpu_support.h"
#include "ops/quantize/test/random_blocks.h"
#include "tests/gpu.h"

namespace blockscale {
namespace {

using test::Case;
using test::check;
using test::layouts_of;
using test::Operands;
using test::random_blocks;
using test::scaled_recipes;

/// Batches of four matrices, each of another kind of numbers (RandomBlocks).
class CudaGpuRandom : public test::OnGpu {
 protected:
  static constexpr std::int64_t kMatrices = 4;

  /// Checks a case of these rows for each matrix, with new elements.
  void check_new(Case c, std::int64_t rows) {
    c.rows = rows;
    c.batch = kMatrices;
    check(c, random_blocks(c, ++seed_));
    elements_ += c.batch * c.rows * c.k;
  }
  /// In every layout; `rows` are those of all layouts together.
  void check_layouts(Case c, std::int64_t rows) {
    const std::vector<ScaleLayout> layouts = layouts_of(c.recipe);
    for (const ScaleLayout layout : layouts) {
      c.layout = layout;
      check_new(c, rows / static_cast<std::int64_t>(layouts.size()) + 1);
    }
  }

  /// And from every dtype.
  void check_dtypes(Case c, std::int64_t rows) {
    for (const Format dtype : {Format::bf16, Format::f16, Format::f32}) {
      c.dtype = dtype;
      check_layouts(c, rows);
      ASSERT_FALSE(HasFailure());
    }
  }

  std::uint64_t seed_ = 0;
  std::int64_t elements_ = 0;  // of x that were quantized, gates and their values as one
};

/// In calls of some 12 and 24 million elements: those for which plans take the forms for large
/// inputs.
TEST_F(CudaGpuRandom, TakesABillionOfBf16) {
  for (const Recipe recipe : scaled_recipes()) {
    check_layouts({recipe, Format::bf16, 1, 8192}, 1'470);
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GE(elements_, 1'000'000'000);
}

/// And in small calls, of rows of several lengths.
TEST_F(CudaGpuRandom, TakesSmallCalls) {
  for (const Recipe recipe : scaled_recipes()) {
    for (const std::int64_t k : {96, 736, 1056, 2880, 5120}) {
      check_dtypes({recipe, Format::bf16, 1, k}, 300'000 / k);
      ASSERT_FALSE(HasFailure());
    }
  }
  EXPECT_GE(elements_, 300'000'000);
}

TEST_F(CudaGpuRandom, TakesF16) {
  for (const Recipe recipe : scaled_recipes()) {
    check_layouts({recipe, Format::f16, 1, 8192}, 300);
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GE(elements_, 200'000'000);
}

TEST_F(CudaGpuRandom, TakesF32) {
  for (const Recipe recipe : scaled_recipes()) {
    check_layouts({recipe, Format::f32, 1, 4096}, 600);
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GE(elements_, 200'000'000);
}

/// What is fused, with operands of the type of x in half of the calls.
class CudaGpuRandomFused : public CudaGpuRandom,
                           public testing::WithParamInterface<InputTransform> {};

TEST_P(CudaGpuRandomFused, IsTaken) {
  constexpr std::int64_t kLarge = 4096, kSmall = 1024;
  for (const Format dtype : {Format::bf16, Format::f16, Format::f32}) {
    // Groups of rows: each matrix is one, or two of them are.
    const Operands of_x(dtype, kMatrices, kLarge), small_of_x(dtype, 2, kSmall);
    const Operands other(dtype == Format::f32 ? Format::bf16 : Format::f32, 2, kSmall);
    for (const Recipe recipe : scaled_recipes()) {
      Case c{recipe, dtype, 1, kLarge};
      c.layout = layouts_of(recipe).back();
      of_x.use(c, GetParam());
      check_new(c, dtype == Format::bf16 ? 530 : 200);
      c.k = kSmall;
      c.layout = ScaleLayout::row_major;
      small_of_x.use(c, GetParam());
      check_new(c, 140);
      other.use(c, GetParam());
      check_new(c, 140);
      ASSERT_FALSE(HasFailure());
    }
  }
  EXPECT_GE(elements_, 300'000'000);
}

INSTANTIATE_TEST_SUITE_P(Transforms, CudaGpuRandomFused,
                         testing::Values(InputTransform::gelu_tanh, InputTransform::gelu_erf,
                                         InputTransform::silu, InputTransform::swiglu,
                                         InputTransform::modulate, InputTransform::rms_norm),
                         [](const auto& transform) {
                           return kInputTransformNames[static_cast<int>(transform.param)];
                         });

/// Both orders of gate and up, alone, in runs of 64 and in halves.
TEST_F(CudaGpuRandom, TakesGatesOfEveryOrder) {
  for (const Recipe recipe : scaled_recipes()) {
    for (const Format dtype : {Format::bf16, Format::f16, Format::f32}) {
      for (const std::int64_t group : {0, 1, 64}) {
        for (const GateOrder order : {GateOrder::gate_first, GateOrder::up_first}) {
          Case c{recipe, dtype, 1, 1024};
          c.options.input = c.options_gpu.input = Swiglu{order, group};
          check_new(c, 70);
          ASSERT_FALSE(HasFailure());
        }
      }
    }
  }
  EXPECT_GE(elements_, 100'000'000);
}

TEST_F(CudaGpuRandom, TakesEveryModeOfMx) {
  for (const Recipe recipe : scaled_recipes()) {
    if (recipe_traits(recipe).family != Family::mx) continue;
    for (const MxScaleMode mode : {MxScaleMode::floor, MxScaleMode::even}) {
      Case c{recipe, Format::bf16, 1, 4096};
      c.options.mx_scale_mode = mode;
      check_dtypes(c, 700);
      ASSERT_FALSE(HasFailure());
    }
  }
  EXPECT_GE(elements_, 300'000'000);
}

/// Floors below, among and above the magnitudes of blocks, subnormal ones too.
TEST_F(CudaGpuRandom, TakesFloorsOfFp8) {
  for (const Recipe recipe : scaled_recipes()) {
    if (recipe_traits(recipe).family != Family::fp8) continue;
    for (const float floor : {1e-4f, 2.5f, 0x1p-140f, 3e38f}) {
      Case c{recipe, Format::bf16, 1, 2048};
      c.options.fp8_amax_floor = floor;
      check_dtypes(c, 140);
      ASSERT_FALSE(HasFailure());
    }
  }
  EXPECT_GE(elements_, 200'000'000);
}

/// In both senses, one for each matrix and one for all, from the data and given; and given scales
/// of FP8.
TEST_F(CudaGpuRandom, TakesTensorScales) {
  for (const TensorScaleSense sense : {TensorScaleSense::divisor, TensorScaleSense::multiplier}) {
    for (const std::int64_t stride : {0, 1}) {
      for (const float given : {0.0f, 0.37f, 3000.0f, 0x1.8p-100f, 0x1.3p120f}) {
        Case c{Recipe::nvfp4, Format::bf16, 1, 4096};
        c.sense = sense;
        c.tensor_scale_stride = stride;
        c.given = given;
        if (given > 0) c.options.scale_source = ScaleSource::given;
        check_dtypes(c, 140);
        ASSERT_FALSE(HasFailure());
      }
    }
  }
  for (const Recipe recipe : {Recipe::fp8_tensor, Recipe::fp8_tensor_e5m2, Recipe::fp8_row}) {
    for (const float given : {0.37f, 3000.0f, 0x1.8p-100f, 0x1.3p120f}) {
      Case c{recipe, Format::bf16, 1, 4096};
      c.given = given;
      c.options.scale_source = ScaleSource::given;
      check_dtypes(c, 140);
      ASSERT_FALSE(HasFailure());
    }
  }
  EXPECT_GE(elements_, 200'000'000);
}

}  // namespace
}  // namespace blockscale
