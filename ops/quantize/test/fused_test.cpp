// Fused inputs: every byte of a fused call against the quantizer's own of a matrix that the test
// computes element by element with core/math.h, whose functions core/math_test.cpp checks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "blockscale/quantize.h"
#include "core/math.h"
#include "ops/quantize/test/inputs.h"
#include "ops/quantize/test/support.h"
#include "tests/simd_targets.h"

namespace blockscale {
namespace {

using test::Data;

/// A fused call: x, operands, and the sizes of its result.
struct Case {
  InputTransform transform = InputTransform::identity;
  std::int64_t rows = 1, k = 1, batch = 1;
  Format dtype = Format::f32;
  Format operand_dtype = Format::f32;
  Data data = Data::normal;
  bool strided = false;
  GateOrder order = GateOrder::gate_first;
  std::int64_t group = 0;
  std::int64_t groups = 1;
  float epsilon = 1e-6f;
  std::uint32_t seed = 1;
  float limit = std::numeric_limits<float>::infinity(), alpha = 1, up_shift = 0;  // swiglu
};

std::string describe(const Case& c) {
  return std::string(kInputTransformNames[static_cast<int>(c.transform)]) + " " +
         format_traits(c.dtype).name + " " + std::to_string(c.batch) + " x " +
         std::to_string(c.rows) + " x " + std::to_string(c.k) + " " + test::data_name(c.data) +
         " group " + std::to_string(c.group) + " groups " + std::to_string(c.groups) + " alpha " +
         std::to_string(c.alpha);
}

/// Column of x that holds gate (or up) of column `c` of the result, spelled out for each form.
std::int64_t source_column(const Case& test_case, std::int64_t c, bool gate) {
  const bool second = gate != (test_case.order == GateOrder::gate_first);
  switch (test_case.group) {
    case 0: return second ? test_case.k + c : c;
    case 1: return 2 * c + (second ? 1 : 0);
    default: return c / 64 * 128 + c % 64 + (second ? 64 : 0);
  }
}

/// swiglu as docs/numerics.md states it, of any numbers.
float swiglu(const Case& c, float gate, float up) {
  const bool usual = std::isinf(c.limit) && c.alpha == 1 && c.up_shift == 0;
  if (usual) return math::silu(gate) * up;
  if (gate > c.limit) gate = c.limit;
  if (up > c.limit) up = c.limit;
  if (up < -c.limit) up = -c.limit;
  if (c.up_shift != 0) up = up + c.up_shift;
  return math::silu(c.alpha * gate) * (1 / c.alpha) * up;
}

/// The sum of squares of rms_norm as docs/numerics.md states it.
float sum_of_squares(const float* x, std::int64_t count) {
  float total = 0;
  for (std::int64_t segment = 0; segment < count; segment += 8192) {
    std::vector<float> sums;
    for (std::int64_t run = segment; run < segment + 8192; run += 4) {
      float sum = 0;
      for (std::int64_t i = run; i < run + 4; ++i) {
        const float value = i < count ? x[i] : 0.0f;
        sum = std::fma(value, value, sum);
      }
      sums.push_back(sum);
    }
    while (sums.size() > 1) {
      std::vector<float> half;
      for (std::size_t j = 0; j < sums.size(); j += 2) half.push_back(sums[j] + sums[j + 1]);
      sums = half;
    }
    total += sums[0];
  }
  return total;
}

/// x, its operands, and the f32 matrices that a fused call must quantize.
class Problem {
 public:
  explicit Problem(const Case& c)
      : case_(c),
        x_(c.dtype, c.rows, c.transform == InputTransform::swiglu ? 2 * c.k : c.k, c.batch,
           c.strided ? 3 : 0, c.data, c.seed),
        scale_(c.operand_dtype, c.groups, c.k, 1, c.strided ? 5 : 0, c.data, c.seed + 1),
        shift_(c.operand_dtype, c.groups, c.k, 1, c.strided ? 1 : 0, Data::normal, c.seed + 2),
        weight_(c.operand_dtype, 1, c.k, 1, 0, Data::normal, c.seed + 3) {
    const std::vector<float> scale = scale_.values(0);
    const std::vector<float> shift = shift_.values(0);
    const std::vector<float> weight = weight_.values(0);
    for (std::int64_t b = 0; b < c.batch; ++b) {
      const std::vector<float> x = x_.values(b);
      const std::int64_t columns = x_.view().columns;
      for (std::int64_t r = 0; r < c.rows; ++r) {
        const float* const row = x.data() + r * columns;
        const float reciprocal = 1.0f / static_cast<float>(c.k);
        const float factor =
            1.0f / std::sqrt(std::fma(sum_of_squares(row, c.k), reciprocal, c.epsilon));
        const std::int64_t group =
            (b * c.rows + r) / std::max<std::int64_t>(1, c.batch * c.rows / c.groups);
        for (std::int64_t k = 0; k < c.k; ++k) {
          const auto operand = static_cast<std::size_t>(group * c.k + k);
          expected_.push_back(element(row, k, scale[operand], shift[operand],
                                      weight[static_cast<std::size_t>(k)], factor));
        }
      }
    }
  }

  MatrixView x() const { return x_.view(); }
  MatrixView expected() const {
    return {expected_.data(), Format::f32, case_.rows, case_.k, 0, case_.batch};
  }
  QuantizeInput input() const {
    if (case_.transform == InputTransform::swiglu) {
      return Swiglu{case_.order, case_.group, case_.limit, case_.alpha, case_.up_shift};
    }
    if (case_.transform == InputTransform::rms_norm) return RmsNorm{weight_.view(), case_.epsilon};
    return test::input_of(case_.transform, scale_.view(), shift_.view());
  }

 private:
  float element(const float* row, std::int64_t k, float scale, float shift, float weight,
                float factor) const {
    switch (case_.transform) {
      case InputTransform::identity: return row[k];
      case InputTransform::gelu_tanh: return math::gelu_tanh(row[k]);
      case InputTransform::gelu_erf: return math::gelu_erf(row[k]);
      case InputTransform::silu: return math::silu(row[k]);
      case InputTransform::swiglu:
        return swiglu(case_, row[source_column(case_, k, true)],
                      row[source_column(case_, k, false)]);
      case InputTransform::modulate: return std::fma(row[k], 1.0f + scale, shift);
      case InputTransform::rms_norm: return row[k] * factor * weight;
    }
    return 0;
  }

  Case case_;
  test::Matrix x_, scale_, shift_, weight_;
  std::vector<float> expected_;
};

/// Values, scales and tensor scale of a packed tensor.
std::vector<std::uint8_t> bytes_of(const ScaledTensorView& t) {
  const auto* const values = static_cast<const std::uint8_t*>(t.values);
  const auto* const scales = static_cast<const std::uint8_t*>(t.scales);
  std::vector<std::uint8_t> bytes(values, values + value_bytes(t.recipe, t.rows, t.k, t.batch));
  bytes.insert(bytes.end(), scales, scales + scale_bytes(t.recipe, t.layout, t.rows, t.k, t.batch));
  if (t.tensor_scale != nullptr) {
    const auto* const scale = reinterpret_cast<const std::uint8_t*>(t.tensor_scale);
    bytes.insert(bytes.end(), scale, scale + sizeof(float));
  }
  return bytes;
}

/// The same bytes fused and of the computed matrix, on every instruction set.
void check_case(const Case& c, Recipe recipe, ScaleLayout layout, int threads) {
  const Problem problem(c);
  QuantizeOptions options;
  options.threads = threads;
  const ScaledTensor plain = quantize(problem.expected(), recipe, layout, options);
  const std::vector<std::uint8_t> expected = bytes_of(plain.view());
  options.input = problem.input();
  for (const std::int64_t target : test::simd_targets()) {
    const test::UseSimdTarget use(target);
    const ScaledTensor fused = quantize(problem.x(), recipe, layout, options);
    ASSERT_EQ(fused.view().k, c.k);
    ASSERT_EQ(bytes_of(fused.view()), expected)
        << describe(c) << " " << recipe_traits(recipe).name << " " << hwy::TargetName(target);
  }
}

/// Forms of each transform.
std::vector<Case> forms() {
  std::vector<Case> result;
  for (const InputTransform transform :
       {InputTransform::gelu_tanh, InputTransform::gelu_erf, InputTransform::silu,
        InputTransform::modulate, InputTransform::rms_norm}) {
    result.push_back({transform});
  }
  for (const std::int64_t group : {0, 1, 64}) {
    for (const GateOrder order : {GateOrder::gate_first, GateOrder::up_first}) {
      Case c{InputTransform::swiglu};
      c.group = group;
      c.order = order;
      result.push_back(c);
      if (order == GateOrder::gate_first) {
        c.limit = 0.75f;  // else as usual
        if (group != 0) c.alpha = group == 1 ? 1.702f : -0.5f;
        if (group != 0) c.up_shift = group == 1 ? 1.0f : -0.25f;
        result.push_back(c);
      }
    }
  }
  return result;
}

TEST(FusedInput, EveryFormShapeAndDtype) {
  struct Shape {
    std::int64_t rows, k, batch, groups;
    bool strided;
  };
  const Shape shapes[] = {{1, 64, 1, 1, false},  {6, 192, 2, 4, true},  {33, 320, 1, 3, false},
                          {5, 2304, 1, 1, true}, {2, 8256, 1, 2, true}, {130, 576, 1, 2, false}};
  std::uint32_t seed = 0;
  for (const Case& form : forms()) {
    for (const Shape& shape : shapes) {
      for (const Format dtype : {Format::f32, Format::f16, Format::bf16}) {
        Case c = form;
        c.rows = shape.rows;
        c.k = shape.k;
        c.batch = shape.batch;
        c.groups = shape.groups;
        c.strided = shape.strided;
        c.dtype = dtype;
        c.operand_dtype = std::array{Format::bf16, Format::f32, Format::f16}[seed % 3];
        c.seed = ++seed;
        check_case(c, Recipe::mxfp8_e4m3,
                   seed % 2 == 0 ? ScaleLayout::row_major : ScaleLayout::swizzled_128x4,
                   static_cast<int>(seed % 3) + 1);
        if (HasFatalFailure()) return;
      }
    }
  }
}

/// Ragged rows and columns, which FP8 takes; K below and above a vector, a chunk and a segment.
TEST(FusedInput, RaggedColumns) {
  for (const Case& form : forms()) {
    for (const std::int64_t k : {1, 7, 17, 255, 257, 513, 2049, 4111}) {
      if (form.group == 64) continue;
      Case c = form;
      c.rows = 3;
      c.k = k;
      c.dtype = k % 3 == 0 ? Format::f32 : Format::bf16;
      c.strided = true;
      c.seed = static_cast<std::uint32_t>(k);
      check_case(c, Recipe::fp8_1x128, ScaleLayout::row_major, 1);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(FusedInput, EveryRecipe) {
  for (const RecipeTraits& t : kRecipes) {
    if (t.family == Family::plain) continue;
    for (const Case& form : forms()) {
      if (form.order == GateOrder::up_first) continue;
      Case c = form;
      c.rows = 150;
      c.k = 704;
      c.dtype = Format::bf16;
      check_case(c, t.recipe, ScaleLayout::mn_major, 2);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(FusedInput, EveryKindOfData) {
  for (const Case& form : forms()) {
    for (const Data data : test::kAllData) {
      for (const Format dtype : {Format::f32, Format::f16, Format::bf16}) {
        Case c = form;
        c.rows = 4;
        c.k = 256;
        c.dtype = dtype;
        c.data = data;
        check_case(c, Recipe::mxfp4, ScaleLayout::row_major, 1);
        check_case(c, Recipe::fp8_row, ScaleLayout::row_major, 1);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(FusedInput, EveryThreadCount) {
  for (const Case& form : forms()) {
    Case c = form;
    c.rows = 70;
    c.k = 1664;
    c.dtype = Format::f16;
    for (const int threads : {0, 1, 2, 5}) {
      check_case(c, Recipe::nvfp4, ScaleLayout::swizzled_8x4, threads);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(FusedInput, EmptyMatrices) {
  for (const Case& form : forms()) {
    Case c = form;
    c.rows = 0;
    c.k = 64;
    check_case(c, Recipe::nvfp4, ScaleLayout::row_major, 1);
    c.rows = 3;
    c.k = 0;
    c.groups = 3;
    check_case(c, Recipe::fp8_row, ScaleLayout::row_major, 1);
  }
}

/// The formulas themselves, in f64.
TEST(FusedInput, ValuesAreThoseOfTheFormulas) {
  for (const Case& form : forms()) {
    Case c = form;
    c.rows = 5;
    c.k = 256;
    c.seed = 99;
    const bool gated = c.transform == InputTransform::swiglu;
    const bool is_silu = c.transform == InputTransform::silu;
    const double error = gated || is_silu || is_gelu(c.transform) ? 0x1p-12 : 2e-6;
    const Problem problem(c);
    QuantizeOptions options;
    options.input = problem.input();
    options.scale_source = ScaleSource::dynamic;
    float amax = 0;
    absolute_maximum(problem.x(), options.input, &amax, 1);
    double largest = 0;
    const auto* const x = static_cast<const float*>(problem.x().data);
    const auto* const modulate = std::get_if<Modulate>(&options.input);
    const auto* const norm = std::get_if<RmsNorm>(&options.input);
    const auto at = [](const MatrixView& m, std::int64_t i) {
      return static_cast<double>(static_cast<const float*>(m.data)[i]);
    };
    for (std::int64_t r = 0; r < c.rows; ++r) {
      double squares = 0;
      for (std::int64_t k = 0; k < c.k; ++k)
        squares += std::pow(static_cast<double>(x[r * c.k + k]), 2);
      for (std::int64_t k = 0; k < c.k; ++k) {
        const std::int64_t columns = gated ? 2 * c.k : c.k;
        const double v =
            static_cast<double>(x[r * columns + (gated ? source_column(c, k, true) : k)]);
        double y = v;
        if (c.transform == InputTransform::gelu_tanh) {
          y = v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v))) / 2;
        } else if (c.transform == InputTransform::gelu_erf) {
          y = v * (1 + std::erf(v / std::sqrt(2.0))) / 2;
        } else if (is_silu) {
          y = v / (1 + std::exp(-v));
        } else if (gated) {
          const auto limit = static_cast<double>(c.limit);
          const auto up = static_cast<double>(x[r * columns + source_column(c, k, false)]);
          const double gate = std::min(v, limit);
          y = gate / (1 + std::exp(-static_cast<double>(c.alpha) * gate)) *
              (std::clamp(up, -limit, limit) + static_cast<double>(c.up_shift));
        } else if (modulate != nullptr) {
          y = v * (1 + at(modulate->scale, k)) + at(modulate->shift, k);
        } else if (norm != nullptr) {
          y = v / std::sqrt(squares / static_cast<double>(c.k) + 1e-6) * at(norm->weight, k);
        }
        largest = std::max(largest, std::fabs(y));
        const double computed = static_cast<const float*>(problem.expected().data)[r * c.k + k];
        EXPECT_NEAR(computed, y, error * std::fabs(y) + 2e-6) << describe(c);
      }
    }
    EXPECT_NEAR(static_cast<double>(amax), largest, error * largest) << describe(c);
  }
}

}  // namespace
}  // namespace blockscale
