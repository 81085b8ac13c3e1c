// Largest magnitudes as CUDA kernels find them, in the emulator, against the CPU's.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/format.h"
#include "ops/quantize/cuda_test_cases.h"

namespace blockscale {
namespace {

using test::Case;
using test::Data;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// A batch of matrices of 16-bit numbers, packed, and what is fused with them.
struct Problem {
  Format dtype;
  std::int64_t batch, rows, columns;
  InputTransform transform;
  std::vector<std::uint16_t> x;
  std::vector<float> scale, shift;  // modulate: a row for each group; rms_norm: scale is the weight

  Problem(Format format, std::int64_t matrices, std::int64_t height, std::int64_t width,
          InputTransform function, std::int64_t groups = 1)
      : dtype(format), batch(matrices), rows(height), columns(width), transform(function) {
    const auto count = static_cast<std::size_t>(groups * columns);
    for (std::size_t i = 0; i < count; ++i) {
      scale.push_back(static_cast<float>(i % 7) - 3.5f);
      shift.push_back(static_cast<float>(i % 5) - 2.0f);
    }
    x.assign(static_cast<std::size_t>(batch * rows * columns), 0);
    for (std::size_t i = 0; i < x.size(); ++i) set(i, static_cast<float>(i % 9) / 64 - 0.0625f);
  }

  void set(std::size_t element, float value) {
    x[element] = static_cast<std::uint16_t>(encode(dtype, value));
  }

  MatrixView view() const {
    return {x.data(), dtype, rows, columns, columns, batch, rows * columns};
  }
  MatrixView operand(const std::vector<float>& values) const {
    const auto groups = static_cast<std::int64_t>(values.size()) / columns;
    return {values.data(), Format::f32, groups, columns, columns};
  }
  QuantizeInput input() const {
    QuantizeInput input;
    input.transform = transform;
    if (transform == InputTransform::modulate) {
      input.scale = operand(scale);
      input.shift = operand(shift);
    }
    if (transform == InputTransform::rms_norm) input.weight = operand(scale);
    return input;
  }
};

/// One result for each matrix, with the bits of those of the CPU.
void check(const Problem& p, const std::string& what) {
  const auto count = static_cast<std::size_t>(p.batch);
  std::vector<float> expected(count, -1.0f), actual(count, -1.0f);
  const QuantizeInput input = p.input();
  absolute_maximum(p.view(), input, expected.data(), 1);
  test::PlanBuffers buffers;
  using emulator::BufferUse;
  buffers.add("x", p.x.data(), test::bytes_of(p.view()), BufferUse::input);
  const auto operand_bytes = static_cast<std::int64_t>(p.scale.size() * sizeof(float));
  buffers.add("scale", p.scale.data(), operand_bytes, BufferUse::input);
  buffers.add("shift", p.shift.data(), operand_bytes, BufferUse::input);
  buffers.add("out", actual.data(), p.batch * 4, BufferUse::output);
  const auto a = quantize_detail::validated(p.view(), input, actual.data(), 0);
  ASSERT_TRUE(test::emulate_plan(
      [&](void* workspace) {
        return quantize_detail::plan_absolute_maximum(a, actual.data(), {3}, workspace);
      },
      buffers, 0))
      << what;
  ASSERT_EQ(actual, expected) << what;
}

class Maximum : public testing::TestWithParam<InputTransform> {};

TEST_P(Maximum, IsFoundWhereverItIs) {
  for (const Format dtype : {Format::bf16, Format::f16}) {
    for (const std::int64_t columns : {96, 99}) {
      const std::int64_t groups = GetParam() == InputTransform::modulate ? 4 : 1;
      Problem p(dtype, 2, 26, columns, GetParam(), groups);
      for (std::size_t at = 0; at < p.x.size(); at += 131) {
        for (const float value : {11.0f, -11.0f}) {
          const std::uint16_t before = p.x[at];
          p.set(at, value);
          check(p, std::to_string(columns) + " columns, element " + std::to_string(at));
          p.x[at] = before;
        }
      }
    }
  }
}

TEST_P(Maximum, CountsNoNanAndEveryInfinity) {
  for (const Format dtype : {Format::bf16, Format::f16}) {
    for (const std::vector<float>& values :
         {std::vector{kNan}, std::vector{kInfinity}, std::vector{-kInfinity},
          std::vector{kInfinity, -kInfinity}, std::vector{kInfinity, -kInfinity, 0.5f},
          std::vector{kNan, -3.0f}, std::vector{-0.0f, 0.0f}}) {
      Problem p(dtype, 2, 19, 32, GetParam());
      for (std::size_t i = 0; i < p.x.size(); ++i) p.set(i, values[i / 32 % values.size()]);
      check(p, "computed");
      // modulate: x times 0.
      p.scale.assign(p.scale.size(), -1.0f);
      check(p, "times 0");
      p.shift[3] = kInfinity;
      p.scale[5] = kInfinity;
      p.scale[6] = p.shift[7] = kNan;
      check(p, "operands that are not finite");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, Maximum,
                         testing::Values(InputTransform::identity, InputTransform::gelu_tanh,
                                         InputTransform::gelu_erf, InputTransform::modulate,
                                         InputTransform::rms_norm),
                         [](const auto& p) {
                           return kInputTransformNames[static_cast<int>(p.param)];
                         });

/// One scale for all matrices, whose rows thread blocks share in turn.
TEST(CudaMaximum, GoesThroughAllMatricesOfOneScale) {
  for (const InputTransform transform : {InputTransform::gelu_tanh, InputTransform::modulate}) {
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      Case c{Recipe::nvfp4};
      c.rows = 1 + static_cast<std::int64_t>(seed % 4) * 9;
      c.k = seed % 2 == 0 ? 96 : 544;
      c.batch = 5;
      c.groups = seed % 3 == 0 ? 5 : 1;
      c.data = Data::normal;
      c.tensor_scale_stride = 0;
      c.seed = seed;
      c.options.input.transform = transform;
      test::check(c);
    }
  }
}

}  // namespace
}  // namespace blockscale
