// The products by which kernels are tried, in the emulator on an SM120: the kernel and the plain
// one give the same bits, and a kernel that is wrong in one place does not.
#include "ops/gemm/cuda/trials.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "ops/gemm/test/emulation.h"
#include "ops/gemm/test/plain_emulation.h"
#include "ops/gemm/test/plain_problem.h"
#include "ops/gemm/validate.h"
#include "tests/chip.h"

namespace blockscale {
namespace {

using gemm_detail::TrialProduct;

class Trial {
 public:
  explicit Trial(const TrialProduct& of)
      : a_(gemm_detail::trial_operand(of.a, of.rows, of.k, 1)),
        b_(gemm_detail::trial_operand(of.b, of.columns, of.k, 2, 1, of.b_layout)),
        d_(static_cast<std::size_t>(of.rows * of.columns)) {
    x_.a = a_.view();
    x_.b = b_.view();
    x_.d = {d_.data(), Format::f32, of.rows, of.columns};
    x_ = gemm_detail::validated(x_, {});
  }

  const GemmArguments& arguments() const { return x_; }

  /// D by a launch.
  template <class Params>
  std::vector<float> result_of(const LaunchShape& shape, int kernel, const Params& params) {
    const auto of_operand = [](const char* name, const ScaledTensorView& x) {
      return emulator::buffer(name, x.values, static_cast<std::size_t>(x.rows * x.value_row_stride),
                              emulator::BufferUse::input);
    };
    const auto of_scales = [](const char* name, const ScaledTensorView& x) {
      return emulator::buffer(
          name, x.scales,
          x.scales == nullptr ? 0 : static_cast<std::size_t>(test::extent_of_scales(x)),
          emulator::BufferUse::input);
    };
    const auto of_tensor_scale = [](const char* name, const ScaledTensorView& x) {
      return emulator::buffer(name, x.tensor_scale, x.tensor_scale == nullptr ? 0 : sizeof(float),
                              emulator::BufferUse::input);
    };
    const std::vector<emulator::Buffer> buffers = {
        of_operand("a", x_.a),       of_operand("b", x_.b),        of_scales("a scales", x_.a),
        of_scales("b scales", x_.b), of_tensor_scale("a's", x_.a), of_tensor_scale("b's", x_.b),
        emulator::output("d", d_)};
    std::fill(d_.begin(), d_.end(), -1.0f);
    const emulator::Report report =
        emulator::launch(shape, buffers, emulator::compiled_for(120, emulator::in_order()),
                         [&] { test::run_kernel(static_cast<std::size_t>(kernel), params); });
    EXPECT_TRUE(report.ok()) << report.text();
    return d_;
  }

 private:
  ScaledTensor a_, b_;
  std::vector<float> d_;
  GemmArguments x_;
};

TEST(EmulatedTrials, FewRowsAgreeUnlessAKernelIsWrong) {
  const cuda::Chip chip = test::sm120_of(3);
  std::size_t tried = 0;
  for (int kernel = 0; kernel < kFp4GemmKernels.kCount; ++kernel) {
    if (!kFp4GemmKernels.is_of_sm120(kernel)) continue;
    ++tried;
    for (const Recipe a : gemm_detail::kTrialFormats) {
      Trial trial(gemm_detail::trial_product_of_few_rows(kernel, a));
      const auto plain = gemm_detail::plan_plain_gemm(trial.arguments(), chip);
      const std::vector<float> expected =
          trial.result_of(plain.product->shape, plain.product->kernel, plain.product->params);
      EXPECT_GT(std::count_if(expected.begin(), expected.end(), [](float x) { return x > 0; }),
                100);
      const auto plan = gemm_detail::plan_fp4_gemm(trial.arguments(), chip);
      ASSERT_TRUE(plan);
      ASSERT_EQ(plan->kernel, kernel);
      EXPECT_EQ(trial.result_of(plan->shape, kernel, plan->params), expected);
      std::vector<test::Mutant<Fp4GemmParams>> mutants = test::scale_mutants<Fp4GemmParams>();
      mutants.pop_back();  // of tensor scales, which are 1
      mutants.push_back({"a block of K is left out", [](auto& p) { --p.pieces; }});
      for (const auto& mutant : mutants) {
        Fp4GemmParams params = plan->params;
        mutant.change(params);
        EXPECT_NE(trial.result_of(plan->shape, kernel, params), expected) << mutant.name;
      }
    }
  }
  EXPECT_EQ(tried + kBlockScaledKernels.kCount, gemm_detail::trials_on(chip).size());
}

TEST(EmulatedTrials, BlockScalesAgreeUnlessAKernelIsWrong) {
  const cuda::Chip chip = test::sm120_of(1);
  for (int kernel = 0; kernel < kBlockScaledKernels.kCount; ++kernel) {
    SCOPED_TRACE(kernel);
    Trial trial(gemm_detail::trial_product_of_block_scales(kernel));
    const auto plain = gemm_detail::plan_plain_gemm(trial.arguments(), chip);
    const std::vector<float> expected =
        trial.result_of(plain.product->shape, plain.product->kernel, plain.product->params);
    EXPECT_GT(std::count_if(expected.begin(), expected.end(), [](float x) { return x > 0; }), 100);
    std::optional<gemm_detail::BlockScaledPlan> plan =
        gemm_detail::plan_block_scaled(trial.arguments(), chip);
    ASSERT_TRUE(plan);
    ASSERT_EQ(plan->kernel, kernel);
    gemm_detail::resolve_tensor_maps(plan->maps, emulator::encode_tensor_map, plan->params);
    EXPECT_EQ(trial.result_of(plan->shape, kernel, plan->params), expected);
    if (kernel % 2 != 0) continue;  // of a pair the kernel of few rows
    for (const auto& change : {+[](BlockScaledParams& p) { --p.k_stages; },
                               +[](BlockScaledParams& p) { p.a_scales.at.row_stride = 0; }}) {
      BlockScaledParams params = plan->params;
      change(params);
      EXPECT_NE(trial.result_of(plan->shape, kernel, params), expected);
    }
  }
}

}  // namespace
}  // namespace blockscale
