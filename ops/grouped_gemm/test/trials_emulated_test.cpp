// The grouped products by which kernels are tried, in the emulator on an SM120: the kernel and the
// plain one give the same bits, and a kernel that is wrong in one place does not.
#include "ops/grouped_gemm/cuda/trials.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>
#include <variant>
#include <vector>

#include "ops/gemm/cuda/trials.h"
#include "ops/gemm/test/plain_problem.h"
#include "ops/grouped_gemm/cuda/specs.h"
#include "ops/grouped_gemm/test/emulation.h"
#include "ops/grouped_gemm/validate.h"
#include "tests/chip.h"

namespace blockscale {
namespace {

using grouped_gemm_detail::GroupedPlan;

class Trial {
 public:
  explicit Trial(const grouped_gemm_detail::TrialGroups& of)
      : offsets_(grouped_gemm_detail::offsets_of(of)),
        a_(gemm_detail::trial_operand(of.a, offsets_.back(), of.k, 1)),
        b_(gemm_detail::trial_operand(of.b, of.columns, of.k, 2, std::ssize(offsets_) - 1,
                                      of.b_layout)),
        d_(static_cast<std::size_t>(offsets_.back() * of.columns)) {
    x_.a = a_.view();
    x_.b = b_.view();
    x_.d = {d_.data(), Format::f32, x_.a.rows, of.columns};
    x_.offsets = offsets_.data();
    x_.expected_rows = of.expected_rows;
    x_ = grouped_gemm_detail::validated(x_);
  }

  GroupedPlan plan_on(const cuda::Chip& chip) const {
    return grouped_gemm_detail::plan_grouped(x_, chip);
  }

  std::vector<float> result_of(GroupedPlan plan) {
    const auto bytes = [](std::int64_t count) { return static_cast<std::size_t>(count); };
    const ScaledTensorView &a = x_.a, &b = x_.b;
    std::vector<emulator::Buffer> buffers = {
        emulator::buffer("a", a.values, bytes(a.rows * a.value_row_stride),
                         emulator::BufferUse::input),
        emulator::buffer("a scales", a.scales, bytes(test::extent_of_scales(a)),
                         emulator::BufferUse::input),
        emulator::buffer("a tensor scale", a.tensor_scale, sizeof(float),
                         emulator::BufferUse::input),
        emulator::buffer("b", b.values, bytes(b.batch * b.value_batch_stride),
                         emulator::BufferUse::input),
        emulator::buffer("b scales", b.scales, bytes(test::extent_of_scales(b)),
                         emulator::BufferUse::input),
        emulator::buffer("b tensor scale", b.tensor_scale,
                         bytes(4 * ((b.batch - 1) * b.tensor_scale_batch_stride + 1)),
                         emulator::BufferUse::input),
        emulator::input("offsets", offsets_),
        emulator::output("d", d_)};
    std::erase_if(buffers, [](const auto& buffer) { return buffer.data == nullptr; });
    std::fill(d_.begin(), d_.end(), -1.0f);
    EXPECT_TRUE(test::emulate(plan, buffers, emulator::in_order()));
    return d_;
  }

 private:
  std::vector<std::int32_t> offsets_;
  ScaledTensor a_, b_;
  std::vector<float> d_;
  GroupedGemmArguments x_;
};

TEST(EmulatedGroupTrials, FewRowsAgreeUnlessAKernelIsWrong) {
  const std::pair<const char*, std::function<void(Fp4FewRowsParams&)>> mutants[] = {
      {"groups have the weights of the first", [](auto& p) { p.b_batch_stride = 0; }},
      {"groups have the scales of the first", [](auto& p) { p.scales.batch_stride = 0; }},
      {"a block of K is left out", [](auto& p) { --p.pieces; }},
  };
  const cuda::Chip chip = test::sm120_of(3);
  cuda::Chip plain = chip;
  plain.plain_only = true;
  std::size_t tried = 0;
  for (int kernel = 0; kernel < kFp4GroupedKernels.kCount; ++kernel) {
    if (!kFp4GroupedKernels[kernel].is_pair_of_sm120()) continue;
    ++tried;
    for (const Recipe a : gemm_detail::kTrialFormats) {
      Trial trial(grouped_gemm_detail::trial_groups_of_few_rows(kernel, a));
      const GroupedPlan plan = trial.plan_on(chip);
      ASSERT_EQ(plan.steps.at(0).kernel, grouped_gemm_detail::fp4_few_rows_kernel(kernel));
      ASSERT_EQ(trial.plan_on(plain).path(), gemm_detail::GemmPath::plain);
      const std::vector<float> expected = trial.result_of(trial.plan_on(plain));
      EXPECT_GT(std::count_if(expected.begin(), expected.end(), [](float x) { return x > 0; }),
                expected.size() / 3);
      EXPECT_EQ(trial.result_of(plan), expected);
      for (const auto& [name, change] : mutants) {
        GroupedPlan changed = plan;
        change(std::get<Fp4FewRowsParams>(changed.steps[0].params));
        EXPECT_NE(trial.result_of(changed), expected) << name;
      }
    }
  }
  EXPECT_EQ(tried + kBlockScaledKernels.kCount, grouped_gemm_detail::trials_on(chip).size());
}

TEST(EmulatedGroupTrials, BlockScalesAgreeUnlessAKernelIsWrong) {
  const std::pair<const char*, std::function<void(BlockScaledParams&)>> mutants[] = {
      {"groups have the weights of the first", [](auto& p) { p.b_batched = false; }},
      {"groups have the scales of the first", [](auto& p) { p.b_scales.at.batch_stride = 0; }},
      {"rows have the scales of the first", [](auto& p) { p.a_scales.at.row_stride = 0; }},
  };
  const cuda::Chip chip = test::sm120_of(1);
  cuda::Chip plain = chip;
  plain.plain_only = true;
  for (int kernel = 0; kernel < kBlockScaledKernels.kCount; ++kernel) {
    SCOPED_TRACE(kernel);
    Trial trial(grouped_gemm_detail::trial_groups_of_block_scales(kernel));
    const GroupedPlan plan = trial.plan_on(chip);
    ASSERT_EQ(plan.path(), gemm_detail::GemmPath::sm120_block_scaled);
    ASSERT_EQ(plan.steps.at(0).kernel, static_cast<std::size_t>(kernel));
    const std::vector<float> expected = trial.result_of(trial.plan_on(plain));
    EXPECT_GT(std::count_if(expected.begin(), expected.end(), [](float x) { return x > 0; }),
              expected.size() / 3);
    EXPECT_EQ(trial.result_of(plan), expected);
    if (kernel % 2 != 0) continue;  // of a pair the kernel of few rows, in one of the places
    const auto& [name, change] = mutants[static_cast<std::size_t>(kernel) / 2 % std::size(mutants)];
    GroupedPlan changed = plan;
    change(std::get<BlockScaledParams>(changed.steps[0].params));
    EXPECT_NE(trial.result_of(changed), expected) << name;
  }
}

}  // namespace
}  // namespace blockscale
