// Fused inputs of the CUDA quantisers in the emulator, computed and looked up in tables.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <utility>

#include "ops/quantize/cuda_test_cases.h"

namespace blockscale {
namespace {

using test::Case;
using test::check;
using test::check_forms;
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
      check_forms(c);
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
      check_forms(c);
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
      check_forms(c);
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
      check_forms(c);
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
      check_forms(c);
    }
  }
}

/// The half that a thread block does not encode may have the largest magnitude, or none, or not
/// exist.
TEST(CudaFusedInput, HalvesBlocksOfGelu) {
  const auto largest_in = [](std::int64_t half, float largest, float others) {
    return [=](std::int64_t row, std::int64_t column) {
      const bool is_largest = row % 128 == 64 * half + 5 && column % 128 == 77;
      return is_largest ? largest : others * static_cast<float>(1 + (row + column) % 5);
    };
  };
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const InputTransform transform : {InputTransform::gelu_tanh, InputTransform::gelu_erf}) {
    for (const Format dtype : {Format::bf16, Format::f16}) {
      Case c = fused_case(Recipe::fp8_128x128, transform, dtype);
      c.large = quantize_detail::Choice::never;
      c.table = quantize_detail::Choice::never;
      for (const std::int64_t half : {0, 1}) {
        // From 0.28125 on the largest x tells; other warps need not have such a one.
        for (const auto& [largest, others] : {std::pair{7.0f, 0.5f},
                                              {7.0f, -0.0625f},
                                              {0.28125f, -0.75f},
                                              {0.2f, 0.01f},
                                              {-0.75f, -0.0625f},
                                              {kInfinity, -0.0625f},
                                              {-kInfinity, 0.0f},
                                              {kNan, 0.5f},
                                              {kNan, -0.0625f}}) {
          c.k = 256;
          c.rows = 206;
          c.x_padding = 0;
          c.value_of = largest_in(half, largest, others);
          check(c);
          c.k = 136;
          c.rows = 72;
          c.x_padding = 1;  // no vectors
          check(c);
        }
      }
      // The last block of the first matrix has one half, and the next matrix comes behind it.
      c.k = 256;
      c.rows = 128 + 40;
      c.batch = 2;
      c.x_padding = 0;
      c.value_of = {};
      c.data = Data::outlier;
      check(c);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, FusedInput,
                         testing::Values(InputTransform::gelu_tanh, InputTransform::gelu_erf,
                                         InputTransform::swiglu, InputTransform::modulate,
                                         InputTransform::rms_norm),
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
        c.options.input.gate_order = order;
        c.options.input.gate_group = group;
        check(c);
        c.table = quantize_detail::Choice::always;
        check(c);
        c.x_padding = 1;
        check(c);
      }
    }
  }
}

/// Groups that end between the rows of a thread, of a thread block, and of neither.
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
        check_forms(c);
      }
    }
  }
}

/// Kernels with a table, on rows of several tiles, in batches, with chunks that exist in part, and
/// with elements that have no entry.
class Tabulated : public testing::TestWithParam<InputTransform> {
 protected:
  Case a_case(Recipe recipe, Format dtype) const {
    Case c = fused_case(recipe, GetParam(), dtype);
    c.table = quantize_detail::Choice::always;
    return c;
  }
};

TEST_P(Tabulated, TakesSeveralTilesEachWay) {
  for (const ScaleLayout layout : {ScaleLayout::row_major, ScaleLayout::mn_major}) {
    Case c = a_case(Recipe::mxfp4, Format::bf16);
    c.rows = 70;
    c.k = 1312;
    c.batch = 2;
    c.layout = layout;
    c.seed = layout == ScaleLayout::mn_major ? 3 : 0;
    check(c);
  }
  Case c = a_case(Recipe::fp8_1x128, Format::f16);
  c.rows = 300;
  c.k = 656;  // the last chunk exists in part
  c.x_padding = 8;
  c.value_padding = 16;
  check(c);
}

/// Rows of more chunks than a thread block has threads, whose number need not be a power of two.
TEST_P(Tabulated, TakesWideRows) {
  for (const Recipe recipe :
       {Recipe::nvfp4, Recipe::mxfp8_e4m3, Recipe::fp8_1x128, Recipe::fp8_tensor}) {
    Case c = a_case(recipe, Format::bf16);
    c.rows = 3;
    c.k = 16384;
    check(c);
  }
}

TEST_P(Tabulated, TakesEveryKindOfData) {
  for (const Data data : test::kAllData) {
    for (const Recipe recipe : {Recipe::mxfp4, Recipe::nvfp4, Recipe::fp8_1x128, Recipe::fp8_row,
                                Recipe::fp8_64x128, Recipe::fp8_tensor}) {
      Case c = a_case(recipe, data == Data::normal ? Format::f16 : Format::bf16);
      c.rows = 12;
      c.k = 512;
      c.data = data;
      check(c);
    }
  }
}

TEST_P(Tabulated, SharesScalesInGroupsOfWarps) {
  for (const Recipe recipe :
       {Recipe::fp8_32x128, Recipe::fp8_64x128_ue8m0, Recipe::fp8_128x128, Recipe::fp8_row}) {
    for (const std::int64_t k : {400, 1312, 5120}) {
      Case c = a_case(recipe, k == 400 ? Format::f16 : Format::bf16);
      c.rows = k == 400 ? 150 : 5;
      c.k = k;
      c.batch = k == 400 ? 1 : 2;
      c.seed = k == 5120 ? 7 : 0;
      check(c);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, Tabulated,
                         testing::Values(InputTransform::gelu_tanh, InputTransform::gelu_erf,
                                         InputTransform::swiglu),
                         [](const auto& p) {
                           return kInputTransformNames[static_cast<int>(p.param)];
                         });

/// So many elements that some have codes which approximate values leave open.
TEST(CudaFusedInput, EncodesGeluFromApproximateValues) {
  for (const InputTransform transform : {InputTransform::gelu_tanh, InputTransform::gelu_erf}) {
    for (const Recipe recipe : {Recipe::nvfp4, Recipe::fp8_1x128, Recipe::fp8_row,
                                Recipe::fp8_128x128, Recipe::fp8_tensor}) {
      for (const Format dtype : {Format::bf16, Format::f16}) {
        Case c = fused_case(recipe, transform, dtype);
        c.rows = 64;
        c.k = 4096;
        c.seed = dtype == Format::f16 ? 5 : 0;
        c.table = quantize_detail::Choice::never;
        check_forms(c);
      }
    }
  }
}

/// Blocks whose largest magnitude is so small that the error of approximate values decides, or that
/// of what is far below it.
TEST(CudaFusedInput, EncodesSmallGelu) {
  for (const InputTransform transform : {InputTransform::gelu_tanh, InputTransform::gelu_erf}) {
    for (const Format dtype : {Format::bf16, Format::f16}) {
      for (const Data data : {Data::tails, Data::any_bits, Data::huge}) {
        Case c = fused_case(Recipe::nvfp4, transform, dtype);
        c.rows = 20;
        c.k = 1024;
        c.data = data;
        c.seed = 11;
        check_forms(c);
      }
    }
  }
}

TEST(CudaFusedInput, KeepsOperandsFromRowToRow) {
  // Thread blocks have several rows at once, or several one after the other; groups of modulate
  // begin within them.
  for (const InputTransform transform : {InputTransform::modulate, InputTransform::rms_norm}) {
    for (const std::int64_t k : {64, 1056, 8192}) {
      for (const Format dtype : {Format::bf16, Format::f32}) {
        Case c = fused_case(Recipe::fp8_row, transform, dtype);
        c.rows = 21;
        c.k = k;
        c.batch = 2;
        c.groups = 6;
        c.seed = k == 1056 ? 3 : 0;
        check_forms(c);
      }
    }
  }
}

/// The forms for small inputs that load everything at once: chunks beyond a row and rows beyond a
/// tile, padding of scales, rows of one and of several warps, groups that begin with tiles.
TEST(CudaFusedInput, LoadsSmallInputsAtOnce) {
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
        c.large = quantize_detail::Choice::never;
        check(c);
      }
    }
  }
}

TEST(CudaFusedInput, LoadsEveryKindOfDataAtOnce) {
  for (const Recipe recipe :
       {Recipe::mxfp4, Recipe::mxfp8_e4m3, Recipe::fp8_1x128, Recipe::fp8_row}) {
    for (const InputTransform transform : {InputTransform::modulate, InputTransform::rms_norm}) {
      for (const Data data : test::kAllData) {
        Case c = fused_case(recipe, transform);
        c.rows = 5;
        c.k = 1056;
        c.data = data;
        c.large = quantize_detail::Choice::never;
        check(c);
        c.operand_dtype = Format::f32;
        check(c);
      }
    }
  }
}

/// Rows of one and of several warps and of two segments, tiles that thread blocks go on to, rows
/// and chunks beyond a tile; in turn with what takes rows that are no whole chunks.
TEST(CudaFusedInput, FindsMaximaOfWholeRows) {
  for (const Recipe recipe : {Recipe::nvfp4, Recipe::fp8_tensor}) {
    for (const std::int64_t k : {16, 672, 1088, 8192, 9248, 16384}) {
      Case c = fused_case(recipe, InputTransform::rms_norm, k == 672 ? Format::f16 : Format::bf16);
      c.rows = k > 8000 ? 17 : 147;
      c.k = k;
      c.batch = 2;
      c.seed = static_cast<std::uint64_t>(k) % 5;
      check_forms(c);
    }
    for (const Data data : test::kAllData) {
      Case c = fused_case(recipe, InputTransform::rms_norm);
      c.rows = 5;
      c.k = 1056;
      c.data = data;
      check_forms(c);
    }
  }
}

/// Threads with several rows, in the first kernel and in the second.
TEST(CudaFusedInput, SharesOperandsAmongRowsBehindAMaximum) {
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
      check_forms(c);
      c.x_padding = 1;
      check_forms(c);
    }
  }
}

}  // namespace
}  // namespace blockscale
