// Cases of the CUDA quantizers for tests in the emulator: every byte equal to the CPU's, and no
// race, no byte out of bounds, no divergent collective.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "blockscale/quantize.h"
#include "core/recipe.h"
#include "ops/quantize/test/emulation.h"
#include "ops/quantize/test/inputs.h"
#include "ops/quantize/test/support.h"

namespace blockscale::test {

/// A call of `quantize`.
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
  std::function<float(std::int64_t row, std::int64_t column)> value_of = {};  // instead of `data`
  /// What is fused: options.input's operands are made by `check`.
  Format operand_dtype = Format::f32;
  std::function<float(std::int64_t row, std::int64_t column)> weight_of = {};
  std::int64_t groups = 1;
  cuda::Chip chip = chip_of(3);
};

/// What is fused has operands of the type of x.
inline Case fused_case(Recipe recipe, InputTransform transform, Format dtype = Format::bf16) {
  Case c{recipe, dtype};
  c.options.input = input_of(transform);
  c.operand_dtype = dtype;
  c.data = Data::normal;
  return c;
}

inline std::string describe(const Case& c) {
  return std::string(recipe_traits(c.recipe).name) + " " + format_traits(c.dtype).name + " " +
         std::to_string(c.rows) + "x" + std::to_string(c.k) + " batch " + std::to_string(c.batch) +
         " padding " + std::to_string(c.x_padding) + "/" + std::to_string(c.value_padding) + " " +
         scale_layout_traits(c.layout).name + " " + data_name(c.data) + " mode " +
         std::to_string(static_cast<int>(c.options.mx_scale_mode)) + " source " +
         std::to_string(static_cast<int>(c.options.scale_source)) + " " +
         describe(c.options.input) + " seed " + std::to_string(c.seed);
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

  GuardedBytes values;
  GuardedBytes scales;
  std::vector<float> tensor_scale;
  MutableScaledTensorView view;
};

inline MutableScaledTensorView shape_of(const Case& c) {
  MutableScaledTensorView v = output_with_gaps(c.recipe, c.rows, c.k, c.batch, c.layout,
                                               c.value_padding, c.value_padding != 0 ? 3 : 0);
  v.sense = c.sense;
  v.tensor_scale_batch_stride = c.tensor_scale_stride;
  return v;
}

inline std::int64_t bytes_of(const MatrixView& m) {
  return m.batch * m.rows * m.row_stride * (format_traits(m.dtype).bits / 8);
}

/// Quantizes on the CPU and in the emulator: both must write the same bytes.
inline void check(Case c) {
  const std::int64_t x_columns = is_gated(c.options.input) ? 2 * c.k : c.k;
  const auto seed = static_cast<std::uint32_t>(c.seed + 11);
  Matrix x(c.dtype, c.rows, x_columns, c.batch, c.x_padding, c.data, seed);
  if (c.value_of) x.assign(c.value_of);
  const Matrix scale(c.operand_dtype, c.groups, c.k, 1, c.x_padding, Data::normal, seed + 1);
  const Matrix shift(c.operand_dtype, c.groups, c.k, 1, 0, Data::normal, seed + 2);
  Matrix weight(c.operand_dtype, 1, c.k, 1, 0, Data::normal, seed + 3);
  if (c.weight_of) weight.assign(c.weight_of);
  set_operands(c.options.input, scale.view(), shift.view(), weight.view());
  const MutableScaledTensorView shape = shape_of(c);
  Output expected(c, shape);
  Output actual(c, shape);
  QuantizeOptions cpu = c.options;
  cpu.threads = 1;
  quantize(x.view(), expected.view, cpu);

  const bool given = c.options.scale_source == ScaleSource::given;
  const bool scales_read = given && recipe_traits(c.recipe).family == Family::fp8;
  PlanBuffers buffers;
  const std::initializer_list<std::pair<const char*, const Matrix*>> inputs = {
      {"x", &x}, {"scale", &scale}, {"shift", &shift}, {"weight", &weight}};
  for (const auto& [name, matrix] : inputs) {
    buffers.add(name, matrix->view().data, bytes_of(matrix->view()), emulator::BufferUse::input);
  }
  buffers.add("values", actual.view.values, c.batch * c.rows * shape.value_row_stride,
              emulator::BufferUse::output);
  buffers.add("scales", actual.view.scales,
              c.batch * shape.scale_batch_stride * Output::scale_size(c),
              scales_read ? emulator::BufferUse::input : emulator::BufferUse::output);
  buffers.add("tensor_scale", actual.view.tensor_scale, (c.batch + 1) * 4,
              given ? emulator::BufferUse::input : emulator::BufferUse::output);
  ASSERT_TRUE(emulate_quantize(x.view(), actual.view, c.options, buffers, c.seed, c.chip))
      << describe(c);
  ASSERT_EQ(actual.scales.bytes(), expected.scales.bytes()) << describe(c);
  ASSERT_EQ(actual.values.bytes(), expected.values.bytes()) << describe(c);
  ASSERT_EQ(actual.tensor_scale, expected.tensor_scale) << describe(c);
}

}  // namespace blockscale::test
