// The quantisers' CUDA kernels in the emulator: every byte equal to the CPU's, and no race, no byte
// out of bounds, no divergent collective.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "blockscale/quantize.h"
#include "core/recipe.h"
#include "ops/quantize/cuda_test_emulation.h"
#include "ops/quantize/test_support.h"

namespace blockscale {
namespace {

using test::Data;
using test::layouts_of;
using test::scaled_recipes;

struct Case {
  Recipe recipe;
  Format dtype = Format::bf16;
  std::int64_t rows = 1, k = 128, batch = 1;
  /// Elements of padding behind each row of x, bytes behind each row of values.
  std::int64_t x_padding = 0, value_padding = 0;
  ScaleLayout layout = ScaleLayout::row_major;
  Data data = Data::mixed;
  QuantizeOptions options = {};
  TensorScaleSense sense = TensorScaleSense::divisor;
  std::int64_t tensor_scale_stride = 1;
  float given = 0;  // tensor scale or scales, where options say so
  std::uint64_t seed = 0;
  /// What is fused: options.input's operands are made by `check`.
  Format operand_dtype = Format::f32;
  std::int64_t groups = 1;
  quantize_detail::Choice table = quantize_detail::Choice::by_size;
  quantize_detail::Choice large = quantize_detail::Choice::by_size;
};

std::string describe(const Case& c) {
  return std::string(recipe_traits(c.recipe).name) + " " + format_traits(c.dtype).name + " " +
         std::to_string(c.rows) + "x" + std::to_string(c.k) + " batch " + std::to_string(c.batch) +
         " padding " + std::to_string(c.x_padding) + "/" + std::to_string(c.value_padding) + " " +
         scale_layout_traits(c.layout).name + " " + test::data_name(c.data) + " mode " +
         std::to_string(static_cast<int>(c.options.mx_scale_mode)) + " source " +
         std::to_string(static_cast<int>(c.options.scale_source)) + " " +
         kInputTransformNames[static_cast<int>(c.options.input.transform)] + " group " +
         std::to_string(c.options.input.gate_group) +
         (c.table == quantize_detail::Choice::always ? " table" : "") +
         (c.large == quantize_detail::Choice::always ? " large" : "") + " seed " +
         std::to_string(c.seed);
}

/// Outputs of one call, with garbage around and between them.
struct Output {
  Output(const Case& c, const MutableScaledTensorView& shape)
      : values(c.batch * c.rows * shape.value_row_stride),
        scales(c.batch * shape.scale_batch_stride * scale_size(c)),
        tensor_scale(static_cast<std::size_t>(c.batch) + 1, c.given),
        view(shape) {
    view.values = values.data();
    view.scales = scales.data();
    if (recipe_traits(c.recipe).tensor_scale) view.tensor_scale = tensor_scale.data();
    const bool fp8_given = c.options.scale_source == ScaleSource::given &&
                           recipe_traits(c.recipe).family == Family::fp8;
    if (!fp8_given) return;
    const ScaleGrid grid = scale_grid(c.recipe, c.rows, c.k);
    for (std::int64_t b = 0; b < c.batch; ++b) {
      for (std::int64_t i = 0; i < grid.rows; ++i) {
        auto* const at = reinterpret_cast<float*>(scales.data()) + b * shape.scale_batch_stride;
        at[scale_offset(c.layout, i, 0, shape.scale_leading_stride)] =
            c.given * static_cast<float>(1 + i % 3);
      }
    }
  }
  static std::int64_t scale_size(const Case& c) {
    return format_traits(recipe_traits(c.recipe).scale).bits / 8;
  }

  test::GuardedBytes values;
  test::GuardedBytes scales;
  std::vector<float> tensor_scale;
  MutableScaledTensorView view;
};

MutableScaledTensorView shape_of(const Case& c) {
  MutableScaledTensorView v;
  v.recipe = c.recipe;
  v.rows = c.rows;
  v.k = c.k;
  v.batch = c.batch;
  v.value_row_stride = row_bytes(c.recipe, c.k) + c.value_padding;
  v.value_batch_stride = c.rows * v.value_row_stride;
  v.layout = c.layout;
  const ScaleGrid grid = scale_grid(c.recipe, c.rows, c.k);
  v.scale_leading_stride = default_leading_stride(c.layout, grid.rows, grid.columns);
  if (!is_swizzled(c.layout) && c.value_padding != 0) v.scale_leading_stride += 3;
  v.scale_batch_stride =
      default_batch_stride(c.layout, grid.rows, grid.columns, v.scale_leading_stride);
  v.sense = c.sense;
  v.tensor_scale_batch_stride = c.tensor_scale_stride;
  return v;
}

std::int64_t bytes_of(const MatrixView& m) {
  return m.batch * m.rows * m.row_stride * (format_traits(m.dtype).bits / 8);
}

void check(Case c) {
  const InputTransform transform = c.options.input.transform;
  const std::int64_t x_columns = transform == InputTransform::swiglu ? 2 * c.k : c.k;
  const auto seed = static_cast<std::uint32_t>(c.seed + 11);
  const test::Matrix x(c.dtype, c.rows, x_columns, c.batch, c.x_padding, c.data, seed);
  const test::Matrix scale(c.operand_dtype, c.groups, c.k, 1, c.x_padding, Data::normal, seed + 1);
  const test::Matrix shift(c.operand_dtype, c.groups, c.k, 1, 0, Data::normal, seed + 2);
  const test::Matrix weight(c.operand_dtype, 1, c.k, 1, 0, Data::normal, seed + 3);
  if (transform == InputTransform::modulate) {
    c.options.input.scale = scale.view();
    c.options.input.shift = shift.view();
  }
  if (transform == InputTransform::rms_norm) c.options.input.weight = weight.view();
  const MutableScaledTensorView shape = shape_of(c);
  Output expected(c, shape);
  Output actual(c, shape);
  QuantizeOptions cpu = c.options;
  cpu.threads = 1;
  quantize(x.view(), expected.view, cpu);

  const bool given = c.options.scale_source == ScaleSource::given;
  const bool scales_read = given && recipe_traits(c.recipe).family == Family::fp8;
  test::PlanBuffers buffers;
  for (const auto& [name, matrix] : {std::pair{"x", &x}, std::pair{"scale", &scale},
                                     std::pair{"shift", &shift}, std::pair{"weight", &weight}}) {
    buffers.add(name, matrix->view().data, bytes_of(matrix->view()), emulator::BufferUse::input);
  }
  buffers.add("values", actual.view.values, c.batch * c.rows * shape.value_row_stride,
              emulator::BufferUse::output);
  buffers.add("scales", actual.view.scales,
              c.batch * shape.scale_batch_stride * Output::scale_size(c),
              scales_read ? emulator::BufferUse::input : emulator::BufferUse::output);
  buffers.add("tensor_scale", actual.view.tensor_scale, (c.batch + 1) * 4,
              given ? emulator::BufferUse::input : emulator::BufferUse::output);
  quantize_detail::PlanTuning tuning;
  tuning.table = c.table;
  tuning.large = c.large;
  ASSERT_TRUE(test::emulate_quantize(x.view(), actual.view, c.options, buffers, c.seed, tuning))
      << describe(c);
  ASSERT_EQ(actual.scales.bytes(), expected.scales.bytes()) << describe(c);
  ASSERT_EQ(actual.values.bytes(), expected.values.bytes()) << describe(c);
  ASSERT_EQ(actual.tensor_scale, expected.tensor_scale) << describe(c);
}

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

/// More tiles than thread blocks of the first kernel take at once, in any order of threads.
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

/// Both forms of kernels that have two.
void check_forms(Case c) {
  for (const auto large : {quantize_detail::Choice::never, quantize_detail::Choice::always}) {
    c.large = large;
    check(c);
  }
}

TEST(CudaQuantize, TakesTallBlocksInBothForms) {
  for (const Recipe recipe : {Recipe::fp8_32x128, Recipe::fp8_64x128_ue8m0, Recipe::fp8_128x128}) {
    for (const Data data : {Data::normal, Data::any_bits, Data::tiny}) {
      Case c{recipe};
      c.rows = 150;
      c.k = 392;
      c.batch = 2;
      c.data = data;
      c.seed = 3;
      check_forms(c);
      c.dtype = Format::f32;
      c.k = 131;
      check_forms(c);
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
      check_forms(c);
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

class FusedInput : public testing::TestWithParam<InputTransform> {
 protected:
  Case a_case(Recipe recipe) const {
    Case c{recipe};
    c.options.input.transform = GetParam();
    c.data = Data::normal;
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

INSTANTIATE_TEST_SUITE_P(Cuda, FusedInput,
                         testing::Values(InputTransform::gelu_tanh, InputTransform::gelu_erf,
                                         InputTransform::swiglu, InputTransform::modulate,
                                         InputTransform::rms_norm),
                         [](const auto& p) {
                           return kInputTransformNames[static_cast<int>(p.param)];
                         });

TEST(CudaQuantize, TakesGatesAndUpsInEveryOrder) {
  for (const GateOrder order : {GateOrder::gate_first, GateOrder::up_first}) {
    for (const std::int64_t group : {0, 1, 64}) {
      for (const Recipe recipe : {Recipe::mxfp4, Recipe::fp8_1x128, Recipe::fp8_row}) {
        Case c{recipe};
        c.rows = 3;
        c.k = 192;
        c.data = Data::normal;
        c.options.input.transform = InputTransform::swiglu;
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
TEST(CudaQuantize, ModulatesRowsOfManyGroups) {
  for (const Recipe recipe : {Recipe::mxfp4, Recipe::nvfp4, Recipe::fp8_1x128_ue8m0,
                              Recipe::fp8_32x128, Recipe::fp8_128x128}) {
    for (const std::int64_t groups : {1, 2, 5, 28, 140}) {
      for (const Format dtype : {Format::bf16, Format::f32}) {
        Case c{recipe, dtype};
        c.rows = 70;
        c.k = 288;
        c.batch = 2;
        c.groups = groups;
        c.operand_dtype = dtype;
        c.data = groups == 2 ? Data::any_bits : Data::normal;
        c.layout = layouts_of(recipe)[static_cast<std::size_t>(groups) % 2];
        c.seed = static_cast<std::uint64_t>(groups);
        c.options.input.transform = InputTransform::modulate;
        check(c);
      }
    }
  }
}

void check_absolute_maximum(Data data, InputTransform transform, std::int64_t rows) {
  const test::Matrix x(Format::bf16, rows, 96, 3, 0, data, 9);
  const test::Matrix weight(Format::f32, 1, 96, 1, 0, Data::normal, 10);
  QuantizeInput input;
  input.transform = transform;
  if (transform == InputTransform::rms_norm) input.weight = weight.view();
  std::vector<float> expected(3, -1.0f), actual(3, -1.0f);
  absolute_maximum(x.view(), input, expected.data(), 1);
  test::PlanBuffers buffers;
  buffers.add("x", x.view().data, bytes_of(x.view()), emulator::BufferUse::input);
  buffers.add("weight", weight.view().data, 96 * 4, emulator::BufferUse::input);
  buffers.add("out", actual.data(), 12, emulator::BufferUse::output);
  const auto a = quantize_detail::validated(x.view(), input, actual.data(), 0);
  ASSERT_TRUE(test::emulate_plan(
      [&](void* workspace) {
        return quantize_detail::plan_absolute_maximum(a, actual.data(), {3}, workspace);
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

TEST(CudaQuantize, RunsEveryKernelOfTheList) {
  for (const Recipe recipe : scaled_recipes()) {
    for (const Format dtype : {Format::bf16, Format::f16, Format::f32}) {
      for (int transform = 0; transform < kInputTransformCount; ++transform) {
        Case c{recipe};
        c.dtype = dtype;
        c.rows = 2;
        c.k = 160;
        c.data = Data::normal;
        c.options.input.transform = static_cast<InputTransform>(transform);
        check(c);
        c.table = c.large = quantize_detail::Choice::always;
        check(c);
        const RecipeTraits& t = recipe_traits(recipe);
        if (t.block_k != 0 && !t.tensor_scale) continue;
        c.given = 0.5f;
        c.options.scale_source = ScaleSource::given;
        check(c);
        c.large = quantize_detail::Choice::never;
        check(c);
      }
    }
  }
  check_absolute_maximum(Data::normal, InputTransform::identity, 3);
  Case empty{Recipe::nvfp4};
  empty.rows = 0;
  check(empty);
  for (int i = 0; i < kQuantizeKernels.count; ++i) {
    EXPECT_TRUE(test::emulated_kernels().contains(i))
        << quantize_detail::quantize_kernel_name(kQuantizeKernels[i]);
  }
}

/// Kernels with a table, on rows of several tiles, in batches, with chunks that exist in part, and
/// with elements that have no entry.
class Tabulated : public testing::TestWithParam<InputTransform> {
 protected:
  Case a_case(Recipe recipe, Format dtype) const {
    Case c{recipe, dtype};
    c.options.input.transform = GetParam();
    c.data = Data::normal;
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

TEST(CudaQuantize, KeepsOperandsFromRowToRow) {
  // Thread blocks have several rows at once, or several one after the other; groups of modulate
  // begin within them.
  for (const InputTransform transform : {InputTransform::modulate, InputTransform::rms_norm}) {
    for (const std::int64_t k : {64, 1056, 8192}) {
      for (const Format dtype : {Format::bf16, Format::f32}) {
        Case c{Recipe::fp8_row, dtype};
        c.rows = 21;
        c.k = k;
        c.batch = 2;
        c.groups = 6;
        c.data = Data::normal;
        c.options.input.transform = transform;
        c.operand_dtype = dtype;
        c.seed = k == 1056 ? 3 : 0;
        check_forms(c);
      }
    }
  }
}

TEST(CudaQuantize, SumsRowsOfManySegments) {
  for (const std::int64_t k : {2048, 2080, 6144, 16416, 40000}) {
    for (const Recipe recipe : {Recipe::mxfp8_e4m3, Recipe::fp8_row}) {
      Case c{recipe};
      c.rows = 2;
      c.k = k;
      c.data = Data::normal;
      c.options.input.transform = InputTransform::rms_norm;
      c.operand_dtype = Format::bf16;
      check_forms(c);
      c.x_padding = 1;
      check_forms(c);
    }
  }
}

}  // namespace
}  // namespace blockscale
