// Products by which kernels are tried (ops/common/cuda/trials.h), and the kernels of plans that
// are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "blockscale/gemm.h"
#include "blockscale/tensor.h"
#include "ops/common/cuda/trials.h"
#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/cuda/product_plan.h"
#include "runtime/kernels/architecture.h"

namespace blockscale::gemm_detail {

/// A product that only the kernel which is tried computes on its chips.
struct TrialProduct {
  Recipe a = Recipe::bf16, b = Recipe::nvfp4;
  std::int64_t rows = 1, columns = 1, k = 1;
  ScaleLayout b_layout = ScaleLayout::row_major;
  /// Planned as if there was one multiprocessor: many would have smaller tiles.
  bool is_for_one = false;
};

/// Of A, that kernels of few rows take and are tried for.
inline constexpr Recipe kTrialFormats[] = {Recipe::bf16, Recipe::f16};

/// An operand of a trial: whole numbers from -6 to 6, whose blocks have scales of 1, 2
/// and 4. Sums of products of two are exact in f32 in any order, for k below 2^14.
ScaledTensor trial_operand(Recipe recipe, std::int64_t rows, std::int64_t k, std::uint64_t seed,
                           std::int64_t batch = 1, ScaleLayout layout = ScaleLayout::row_major);

/// Whether a product has on the current device the bits that it has by plain kernels, D in f32.
bool agrees_with_plain(const TrialProduct& product);

TrialProduct trial_product_of_few_rows(int kernel, Recipe a);
cuda::Trial trial_of_few_rows(std::size_t kernel);
TrialProduct trial_product_of_block_scales(int kernel);
cuda::Trial trial_of_block_scales(std::size_t kernel);

/// visit(trial) of what a plan launches for a chip that nothing has run on.
template <class Visit>
void for_each_trial(const ProductPlan& plan, const Visit& visit) {
  if (const auto* const few_rows = std::get_if<Fp4GemmPlan>(&plan.product)) {
    visit(trial_of_few_rows(static_cast<std::size_t>(few_rows->kernel)));
  } else if (const auto* const scaled = std::get_if<BlockScaledPlan>(&plan.product)) {
    // Both kernels of the pair: a row's bits do not depend on the number of rows.
    const auto first = static_cast<std::size_t>(scaled->kernel / 2 * 2);
    visit(trial_of_block_scales(first));
    visit(trial_of_block_scales(first + 1));
  }
}

/// Those of all kernels for such a chip.
std::vector<cuda::Trial> trials_on(const cuda::Chip& chip);

}  // namespace blockscale::gemm_detail
