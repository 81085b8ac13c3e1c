#include "ops/grouped_gemm/cuda/trials.h"

#include <algorithm>

#include "ops/common/cuda/trial_results.h"
#include "ops/gemm/cuda/trials.h"
#include "ops/grouped_gemm/call_memory.h"
#include "ops/grouped_gemm/cuda/launch.h"
#include "ops/grouped_gemm/cuda/specs.h"
#include "ops/grouped_gemm/validate.h"

namespace blockscale::grouped_gemm_detail {
namespace {

bool few_rows_agree(std::size_t kernel) {
  return std::ranges::all_of(gemm_detail::kTrialFormats, [&](Recipe a) {
    return agrees_with_plain(
        trial_groups_of_few_rows(static_cast<int>(kernel - fp4_few_rows_kernel(0)), a));
  });
}

bool block_scales_agree(std::size_t kernel) {
  return agrees_with_plain(trial_groups_of_block_scales(static_cast<int>(kernel)));
}

}  // namespace

std::vector<std::int32_t> offsets_of(const TrialGroups& groups) {
  return {0, 1, 1, 1 + groups.rows, 4 + groups.rows};
}

bool agrees_with_plain(const TrialGroups& of) {
  const std::vector<std::int32_t> offsets = offsets_of(of);
  const std::int64_t rows = offsets.back(), groups = std::ssize(offsets) - 1;
  const ScaledTensor a = gemm_detail::trial_operand(of.a, rows, of.k, 1);
  const ScaledTensor b = gemm_detail::trial_operand(of.b, of.columns, of.k, 2, groups, of.b_layout);
  std::vector<float> d(static_cast<std::size_t>(rows * of.columns));
  GroupedGemmArguments host;
  host.a = a.view();
  host.b = b.view();
  host.d = {d.data(), Format::f32, rows, of.columns};
  host.offsets = offsets.data();
  host.expected_rows = of.expected_rows;
  cuda::TrialMemory<GroupedGemmArguments> memory(
      validated(host), [](auto& x, const auto& visit) { for_each_memory(x, visit); });
  cuda::Chip chip = cuda::current_device();
  if (of.expected_rows != 0) chip.multiprocessors = 1;
  const auto result = [&] {
    return memory.result_of([&](const GroupedGemmArguments& x, const cuda::Execution& execution) {
      GroupedPlan plan = plan_grouped(x, chip);
      if (!chip.plain_only && plan.path() == gemm_detail::GemmPath::plain) {
        throw Error(ErrorCode::unsupported, "kernel", "does not take the groups of its trial");
      }
      find_tensor_maps(plan);
      launch_steps(plan, execution);
    });
  };
  const std::vector<std::byte> own = result();
  chip.plain_only = true;
  return own == result();
}

TrialGroups trial_groups_of_few_rows(int kernel, Recipe a) {
  return {a, kFp4GroupedKernels[kernel].b, kFp4GroupedRows + 3, 40, 672};
}

cuda::Trial trial_of_few_rows(std::size_t kernel) {
  return {&kernels(), kernel, few_rows_agree};
}

TrialGroups trial_groups_of_block_scales(int kernel) {
  const gemm_detail::TrialProduct of_dense = gemm_detail::trial_product_of_block_scales(kernel);
  // The largest group has a tile that is full and one that is not. More stages than one are the
  // dense product's.
  const int rows = kBlockScaledKernels[kernel].rows;
  return {of_dense.a, of_dense.b, rows + 3, 40, 128, of_dense.b_layout, rows};
}

cuda::Trial trial_of_block_scales(std::size_t kernel) {
  return {&gemm_detail::block_scaled_kernels(), kernel, block_scales_agree, " for groups"};
}

std::vector<cuda::Trial> trials_on(const cuda::Chip& chip) {
  std::vector<cuda::Trial> trials;
  for (int i = 0; i < kFp4GroupedKernels.kCount && gemm_detail::is_sm120(chip); ++i) {
    if (kFp4GroupedKernels[i].is_pair_of_sm120()) {
      trials.push_back(trial_of_few_rows(fp4_few_rows_kernel(i)));
    }
  }
  for (std::size_t i = 0; i < kBlockScaledKernels.kCount && gemm_detail::is_sm120(chip); ++i) {
    trials.push_back(trial_of_block_scales(i));
  }
  return trials;
}

}  // namespace blockscale::grouped_gemm_detail
