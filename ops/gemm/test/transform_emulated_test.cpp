// What follows a product with a transform, in the emulator: the bytes of the CPU's gemm.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "device/emulator/emulator.h"
#include "ops/gemm/cuda/transform.h"
#include "ops/gemm/validate.h"
#include "tests/chip.h"
#include "tests/gemm_problem.h"

namespace blockscale {
namespace {

using gemm_detail::TransformPlan;
using test::Random;
using test::TestMatrix;
using test::TestOperand;

struct Case {
  QuantizeInput transform;
  std::int64_t m, columns, batch;
  Format dtype;
};

/// The arguments of a product of one block of K, and its D in f32.
class Problem {
 public:
  explicit Problem(const Case& c)
      : n_(std::holds_alternative<Swiglu>(c.transform) ? 2 * c.columns : c.columns),
        a_(random_, Recipe::mxfp8_e4m3, c.m, 32, test::InputFamily::normal, {.batch = c.batch}),
        b_(random_, Recipe::mxfp4, n_, 32, test::InputFamily::normal, {.batch = c.batch}),
        d_(c.dtype, c.m, c.columns, c.batch, 3, 5),
        expected_(c.dtype, c.m, c.columns, c.batch, 3, 5),
        numbers_(static_cast<std::size_t>(c.batch * c.m * n_)) {
    GemmArguments x;
    x.a = a_.view();
    x.b = b_.view();
    x.d = expected_.view();
    x.transform = c.transform;
    gemm(x);
    x.d = d_.view();
    x_ = gemm_detail::validated(x, {});
    gemm(gemm_detail::before_transform(x_, numbers_.data()));
  }

  /// Runs the launch on a chip of so many multiprocessors; `change` may spoil it.
  template <class Change>
  emulator::Report run(int multiprocessors, const Change& change) {
    TransformPlan plan =
        gemm_detail::plan_transform(x_, numbers_.data(), test::chip_of(multiprocessors));
    change(plan.params);
    return emulator::launch(
        plan.shape,
        {emulator::buffer("numbers", numbers_.data(), numbers_.size() * 4,
                          emulator::BufferUse::input),
         emulator::buffer("d", d_.bytes().data(), d_.bytes().size(), emulator::BufferUse::output)},
        emulator::in_order(), [&] { transform_kernel(plan.params); });
  }

  bool is_right() { return d_.bytes() == expected_.bytes(); }

 private:
  Random random_{5};
  std::int64_t n_;
  TestOperand a_, b_;
  TestMatrix d_, expected_;
  std::vector<float> numbers_;
  GemmArguments x_;
};

const Case kCases[] = {
    {Gelu{GeluForm::tanh}, 3, 1500, 2, Format::bf16},
    {Gelu{GeluForm::erf}, 1, 2049, 1, Format::f16},
    {Gelu{GeluForm::erf}, 5, 1, 3, Format::f32},
    {Swiglu{}, 2, 1030, 2, Format::bf16},
    {Swiglu{GateOrder::up_first}, 3, 7, 1, Format::f32},
    {Swiglu{GateOrder::gate_first, 1}, 2, 1025, 1, Format::f16},
    {Swiglu{GateOrder::up_first, 64}, 2, 1088, 2, Format::bf16},
    {Swiglu{GateOrder::gate_first, 1, 7, 1.702f, 1}, 2, 1025, 1, Format::f32},
    {Swiglu{GateOrder::up_first, 0, 0.5f, -0.8f, -0.25f}, 2, 1030, 1, Format::f16},
    {Silu{}, 3, 1025, 2, Format::bf16},
};

TEST(EmulatedTransform, HasTheBytesOfTheCpu) {
  for (const Case& c : kCases) {
    for (const int multiprocessors : {1, 132}) {  // a block takes several runs, or one
      Problem problem(c);
      const emulator::Report report = problem.run(multiprocessors, [](TransformParams&) {});
      EXPECT_TRUE(report.ok()) << report.text();
      EXPECT_TRUE(problem.is_right()) << &c - kCases << ", " << multiprocessors;
    }
  }
}

/// What a wrong launch gives is not taken for right.
TEST(EmulatedTransform, MutantsAreRejected) {
  const auto is_rejected = [](const Case& c, const auto& change) {
    Problem problem(c);
    const bool is_clean = problem.run(2, change).ok();
    return !is_clean || !problem.is_right();
  };
  const Case &gelu = kCases[0], &swiglu = kCases[6], &clamped = kCases[8], &silu = kCases[9];
  EXPECT_TRUE(is_rejected(gelu, [](TransformParams& p) { p.of_result.gelu = math::kGeluErf; }));
  EXPECT_TRUE(is_rejected(gelu, [](TransformParams& p) { --p.columns; }));
  EXPECT_TRUE(is_rejected(gelu, [](TransformParams& p) { ++p.columns; }));
  EXPECT_TRUE(is_rejected(gelu, [](TransformParams& p) { --p.runs; }));
  EXPECT_TRUE(is_rejected(gelu, [](TransformParams& p) { p.d.row_stride++; }));
  EXPECT_TRUE(
      is_rejected(swiglu, [](TransformParams& p) { p.of_result.gate_group = Divisor(32); }));
  EXPECT_TRUE(is_rejected(
      swiglu, [](TransformParams& p) { p.of_result.gate_order = GateOrder::gate_first; }));
  EXPECT_TRUE(is_rejected(swiglu, [](TransformParams& p) { p.number_columns -= 2; }));
  EXPECT_TRUE(is_rejected(clamped, [](TransformParams& p) { p.of_result.is_clamped = false; }));
  EXPECT_TRUE(is_rejected(clamped, [](TransformParams& p) { p.of_result.swiglu.limit = 1; }));
  EXPECT_TRUE(is_rejected(clamped, [](TransformParams& p) { p.of_result.swiglu.alpha = 1; }));
  EXPECT_TRUE(
      is_rejected(clamped, [](TransformParams& p) { p.of_result.swiglu.reciprocal_alpha = 1; }));
  EXPECT_TRUE(is_rejected(clamped, [](TransformParams& p) { p.of_result.swiglu.up_shift = 0; }));
  EXPECT_TRUE(is_rejected(silu, [](TransformParams& p) {
    p.of_result.is_gelu = true;
    p.of_result.gelu = math::kGeluTanh;
  }));
  EXPECT_TRUE(is_rejected(silu, [](TransformParams& p) {
    p.of_result.is_gated = true;
    p.of_result.gate_group = Divisor(1);
  }));
}

}  // namespace
}  // namespace blockscale
