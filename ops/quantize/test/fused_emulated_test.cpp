// Fused inputs of the CUDA quantizers in the emulator.
#include <gtest/gtest.h>

#include <cstdint>

#include "ops/quantize/test/emulated_cases.h"

namespace blockscale {
namespace {

using test::Case;
using test::check;
using test::Data;
using test::fused_case;
using test::layouts_of;
using test::scaled_recipes;

class FusedInput : public testing::TestWithParam<InputTransform> {
 protected:
  Case a_case(Recipe recipe) const {
    Case c = fused_case(recipe, GetParam());
    c.operand_dtype = Format::f32;
    return c;
  }
};

TEST_P(FusedInput, WritesTheBytesOfTheCpuForEveryRecipe) {
  for (const Recipe recipe : scaled_recipes()) {
    for (const Format dtype : {Format::bf16, Format::f16, Format::f32}) {
      Case c = a_case(recipe);
      c.dtype = dtype;
      c.rows = 6;
      c.k = 160;
      c.groups = 3;
      c.operand_dtype = dtype;
      c.layout = layouts_of(recipe).back();
      check(c);
    }
  }
}

TEST_P(FusedInput, TakesEveryKindOfData) {
  for (const Recipe recipe : {Recipe::mxfp4, Recipe::nvfp4, Recipe::fp8_1x128, Recipe::fp8_row,
                              Recipe::fp8_tensor, Recipe::fp8_64x128}) {
    for (const Data data : test::kAllData) {
      Case c = a_case(recipe);
      c.rows = 4;
      c.k = 96;
      c.data = data;
      check(c);
      c.dtype = Format::f32;
      check(c);
    }
  }
}

TEST_P(FusedInput, TakesAnyShapeAndStride) {
  for (const Recipe recipe : {Recipe::mxfp6_e3m2, Recipe::fp8_1x128_ue8m0, Recipe::fp8_row,
                              Recipe::fp8_tensor, Recipe::fp8_32x128}) {
    for (const std::int64_t k : {32, 160, 17, 2080}) {
      const RecipeTraits& t = recipe_traits(recipe);
      if (!t.ragged && k % t.block_k != 0) continue;
      Case c = a_case(recipe);
      c.rows = 3;
      c.k = k;
      c.batch = 2;
      c.groups = 2;
      c.x_padding = k % 2;
      c.value_padding = k % 3;
      c.operand_dtype = Format::bf16;
      check(c);
    }
  }
}

TEST_P(FusedInput, ComputesTheWholeTensorsScaleFromItsResult) {
  for (const Recipe recipe : {Recipe::nvfp4, Recipe::fp8_tensor_e5m2}) {
    for (const std::int64_t stride : {0, 1}) {
      Case c = a_case(recipe);
      c.rows = 40;
      c.k = 512;
      c.batch = 2;
      c.tensor_scale_stride = stride;
      check(c);
    }
  }
}

/// Matrices of so few rows that kernels take blocks of fewer than the recipe's.
TEST_P(FusedInput, LeavesOutRowsOfBlocksThatDoNotExist) {
  for (const Recipe recipe : {Recipe::fp8_128x128, Recipe::fp8_128x128_ue8m0, Recipe::fp8_64x128}) {
    for (const std::int64_t rows : {1, 32, 33, 64, 65}) {
      Case c = a_case(recipe);
      c.rows = rows;
      c.k = 200;
      c.batch = 2;
      c.groups = 2;
      c.layout = layouts_of(recipe)[static_cast<std::size_t>(rows) % layouts_of(recipe).size()];
      c.seed = static_cast<std::uint64_t>(rows) % 3;
      check(c);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, FusedInput,
                         testing::Values(InputTransform::gelu_tanh, InputTransform::gelu_erf,
                                         InputTransform::silu, InputTransform::swiglu,
                                         InputTransform::modulate, InputTransform::rms_norm),
                         [](const auto& p) {
                           return kInputTransformNames[static_cast<int>(p.param)];
                         });

TEST(CudaFusedInput, TakesGatesAndUpsInEveryOrder) {
  for (const GateOrder order : {GateOrder::gate_first, GateOrder::up_first}) {
    for (const std::int64_t group : {0, 1, 64}) {
      for (const Recipe recipe : {Recipe::mxfp4, Recipe::fp8_1x128, Recipe::fp8_row}) {
        Case c = fused_case(recipe, InputTransform::swiglu);
        c.rows = 3;
        c.k = 192;
        c.options.input = Swiglu{order, group};
        check(c);
        c.x_padding = 1;
        check(c);
      }
    }
  }
}

/// Groups that end between the rows of a warp, of a CTA, and of neither.
TEST(CudaFusedInput, ModulatesRowsOfManyGroups) {
  for (const Recipe recipe : {Recipe::mxfp4, Recipe::nvfp4, Recipe::fp8_1x128_ue8m0,
                              Recipe::fp8_32x128, Recipe::fp8_128x128}) {
    for (const std::int64_t groups : {1, 2, 5, 28, 140}) {
      for (const Format dtype : {Format::bf16, Format::f32}) {
        Case c = fused_case(recipe, InputTransform::modulate, dtype);
        c.rows = 70;
        c.k = 288;
        c.batch = 2;
        c.groups = groups;
        c.data = groups == 2 ? Data::any_bits : Data::normal;
        c.layout = layouts_of(recipe)[static_cast<std::size_t>(groups) % 2];
        c.seed = static_cast<std::uint64_t>(groups);
        check(c);
      }
    }
  }
}

TEST(CudaFusedInput, EncodesGelu) {
  for (const InputTransform transform : {InputTransform::gelu_tanh, InputTransform::gelu_erf}) {
    for (const Recipe recipe : {Recipe::nvfp4, Recipe::fp8_1x128, Recipe::fp8_row,
                                Recipe::fp8_128x128, Recipe::fp8_tensor}) {
      for (const Format dtype : {Format::bf16, Format::f16}) {
        Case c = fused_case(recipe, transform, dtype);
        c.rows = 64;
        c.k = 4096;
        c.seed = dtype == Format::f16 ? 5 : 0;
        check(c);
      }
    }
  }
}

/// The amax of the tensor follows from the largest x, or from all values where no x is large
/// enough.
TEST(CudaFusedInput, EncodesSmallGelu) {
  for (const InputTransform transform : {InputTransform::gelu_tanh, InputTransform::gelu_erf}) {
    for (const Format dtype : {Format::bf16, Format::f16}) {
      for (const Data data : {Data::tails, Data::any_bits, Data::huge}) {
        Case c = fused_case(Recipe::nvfp4, transform, dtype);
        c.rows = 20;
        c.k = 1024;
        c.data = data;
        c.seed = 11;
        check(c);
      }
    }
  }
}

TEST(CudaFusedInput, KeepsOperandsFromRowToRow) {
  // CTAs have several rows at once; groups of modulate begin within them.
  for (const InputTransform transform : {InputTransform::modulate, InputTransform::rms_norm}) {
    for (const std::int64_t k : {64, 1056, 8192}) {
      for (const Format dtype : {Format::bf16, Format::f32}) {
        Case c = fused_case(Recipe::fp8_row, transform, dtype);
        c.rows = 21;
        c.k = k;
        c.batch = 2;
        c.groups = 6;
        c.seed = k == 1056 ? 3 : 0;
        check(c);
      }
    }
  }
}

/// Chunks beyond a row and rows beyond a tile, padding of scales, rows of one and of several warps,
/// groups that begin with tiles.
TEST(CudaFusedInput, TakesRowsOfAnyNumberOfWarps) {
  for (const Recipe recipe : {Recipe::mxfp4, Recipe::mxfp6_e2m3, Recipe::mxfp8_e5m2,
                              Recipe::fp8_1x128, Recipe::fp8_1x128_ue8m0, Recipe::fp8_row}) {
    for (const InputTransform transform : {InputTransform::modulate, InputTransform::rms_norm}) {
      for (const std::int64_t k : {32, 672, 8192, 9248}) {
        Case c = fused_case(recipe, transform, k == 672 ? Format::f16 : Format::bf16);
        c.rows = k > 8000 ? 3 : 38;
        c.k = k;
        c.batch = 2;
        c.groups = k > 8000 ? 1 : 2;
        c.layout = layouts_of(recipe)[static_cast<std::size_t>(k / 32) % layouts_of(recipe).size()];
        c.seed = static_cast<std::uint64_t>(k) % 5;
        check(c);
      }
    }
  }
}

TEST(CudaFusedInput, TakesEveryKindOfDataWithOperands) {
  for (const Recipe recipe :
       {Recipe::mxfp4, Recipe::mxfp8_e4m3, Recipe::fp8_1x128, Recipe::fp8_row}) {
    for (const InputTransform transform : {InputTransform::modulate, InputTransform::rms_norm}) {
      for (const Data data : test::kAllData) {
        Case c = fused_case(recipe, transform);
        c.rows = 5;
        c.k = 1056;
        c.data = data;
        check(c);
        c.operand_dtype = Format::f32;
        check(c);
      }
    }
  }
}

/// Rows of one and of several warps and of two segments, tiles that CTAs go on to, rows
/// and chunks beyond a tile; in turn with what takes rows that are no whole chunks.
TEST(CudaFusedInput, FindsAmaxesOfWholeRows) {
  for (const Recipe recipe : {Recipe::nvfp4, Recipe::fp8_tensor}) {
    for (const std::int64_t k : {16, 672, 1088, 8192, 9248, 16384}) {
      Case c = fused_case(recipe, InputTransform::rms_norm, k == 672 ? Format::f16 : Format::bf16);
      c.rows = k > 8000 ? 17 : 147;
      c.k = k;
      c.batch = 2;
      c.seed = static_cast<std::uint64_t>(k) % 5;
      check(c);
    }
    for (const Data data : test::kAllData) {
      Case c = fused_case(recipe, InputTransform::rms_norm);
      c.rows = 5;
      c.k = 1056;
      c.data = data;
      check(c);
    }
  }
}

TEST(CudaFusedInput, TakesOperandsBehindAnAmax) {
  for (const Recipe recipe : {Recipe::nvfp4, Recipe::fp8_tensor}) {
    for (const InputTransform transform : {InputTransform::modulate, InputTransform::rms_norm}) {
      for (const Format dtype : {Format::bf16, Format::f32}) {
        for (const std::int64_t rows : {1, 64, 203}) {
          Case c = fused_case(recipe, transform, dtype);
          c.rows = rows;
          c.k = rows == 64 ? 512 : 304;
          c.batch = rows == 64 ? 3 : 1;
          c.groups = rows == 203 ? 7 : rows == 64 ? 3 : 1;
          c.layout = layouts_of(recipe)[static_cast<std::size_t>(rows) % layouts_of(recipe).size()];
          c.seed = static_cast<std::uint64_t>(rows) % 7;
          check(c);
        }
      }
    }
  }
}

TEST(CudaFusedInput, SumsRowsOfManySegments) {
  for (const std::int64_t k : {2048, 2080, 6144, 16416, 40000}) {
    for (const Recipe recipe : {Recipe::mxfp8_e4m3, Recipe::fp8_row}) {
      Case c = fused_case(recipe, InputTransform::rms_norm);
      c.rows = 2;
      c.k = k;
      check(c);
      c.x_padding = 1;
      check(c);
    }
  }
}

}  // namespace
}  // namespace blockscale
