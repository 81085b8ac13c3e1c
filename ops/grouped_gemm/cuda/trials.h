// Grouped products by which kernels are tried (ops/common/cuda/trials.h), and the kernels of plans
// that are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "blockscale/grouped_gemm.h"
#include "ops/common/cuda/trials.h"
#include "ops/gemm/cuda/trials.h"
#include "ops/grouped_gemm/cuda/plan.h"

namespace blockscale::grouped_gemm_detail {

/// A product of four groups, of which one is empty, that only the kernel which is tried computes on
/// its chips.
struct TrialGroups {
  Recipe a = Recipe::bf16, b = Recipe::nvfp4;
  std::int32_t rows = 1;  // of the largest group
  std::int64_t columns = 1, k = 1;
  ScaleLayout b_layout = ScaleLayout::row_major;
  /// Planned as if there was one multiprocessor, and groups had so many rows: 0: as it is.
  std::int64_t expected_rows = 0;
};

/// Of its groups: of one row, of none, of the largest, of three.
std::vector<std::int32_t> offsets_of(const TrialGroups& groups);

/// Whether a product has on the current device the bits that it has by plain kernels, D in f32.
bool agrees_with_plain(const TrialGroups& groups);

/// `kernel` of kFp4GroupedKernels; the trial's is of kernel_specs().
TrialGroups trial_groups_of_few_rows(int kernel, Recipe a);
cuda::Trial trial_of_few_rows(std::size_t kernel);

/// `kernel` of kBlockScaledKernels, as products of groups use it: beside gemm's trial of it.
TrialGroups trial_groups_of_block_scales(int kernel);
cuda::Trial trial_of_block_scales(std::size_t kernel);

/// visit(trial) of what a plan launches for a chip that nothing has run on.
template <class Visit>
void for_each_trial(const GroupedPlan& plan, const Visit& visit) {
  for (const GroupedStep& step : plan.steps) {
    if (std::holds_alternative<Fp4FewRowsParams>(step.params)) {
      visit(trial_of_few_rows(step.kernel));
    } else if (std::holds_alternative<BlockScaledParams>(step.params)) {
      // Both kernels of the pair: a row's bits do not depend on the number of rows.
      const std::size_t first = step.kernel / 2 * 2;
      for (const std::size_t kernel : {first, first + 1}) {
        visit(gemm_detail::trial_of_block_scales(kernel));
        visit(trial_of_block_scales(kernel));
      }
    }
  }
}

/// Those of all kernels for such a chip.
std::vector<cuda::Trial> trials_on(const cuda::Chip& chip);

}  // namespace blockscale::grouped_gemm_detail
