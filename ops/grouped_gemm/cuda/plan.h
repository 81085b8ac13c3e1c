// How a grouped product becomes kernel launches: a pure function of shapes, recipes, strides and
// the chip, so it is tested without a GPU. What offsets and lengths say is not known here: tiles
// are chosen by the rows that groups have on average, and blocks by the most tiles that there can
// be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "blockscale/device.h"
#include "blockscale/grouped_gemm.h"
#include "core/launch_shape.h"
#include "ops/gemm/cuda/tensor_maps.h"
#include "ops/gemm/kernels/sm120/block_scaled_params.h"
#include "ops/gemm/kernels/sm90/fp4_tiles_params.h"
#include "ops/gemm/path.h"
#include "ops/grouped_gemm/kernels/copy_rows.cuh"
#include "ops/grouped_gemm/kernels/fp4_few_rows.cuh"
#include "ops/grouped_gemm/kernels/fp8.cuh"
#include "ops/grouped_gemm/kernels/fp8_few_rows.cuh"
#include "ops/grouped_gemm/kernels/plain.cuh"
#include "ops/grouped_gemm/kernels/transform.cuh"
#include "ops/quantize/cuda/plan.h"

namespace blockscale::grouped_gemm_detail {

/// One launch: a kernel of kernel_specs() with the parameters of its family, or one of dense
/// products that takes groups too: of kFp4TilesKernels or kBlockScaledKernels.
struct GroupedStep {
  std::size_t kernel = 0;
  LaunchShape shape;
  std::variant<Fp8GroupedParams, Fp8FewRowsParams, Fp4TilesParams, Fp4FewRowsParams,
               BlockScaledParams, PlainGroupedParams, PlainKGroupedParams, GroupedTransformParams,
               CopyRowsParams>
      params;                               // but for the tensor maps
  gemm_detail::TensorMapDescriptions maps;  // of params.maps
  std::int64_t most_tiles = 0;              // that there can be
  int rows = 0;                             // of a tile
  int columns = 0;
  /// Of groups that all have the average rows, by public figures (sm120/block_scaled_model.h); 0
  /// where no model says.
  double expected_seconds = 0;

  /// The arithmetic of a product's step.
  gemm_detail::GemmPath path() const;
  std::string str() const;
};

struct GroupedPlan {
  int architecture = 0;            // of the chip that it is for
  std::vector<GroupedStep> steps;  // in order; none where D has no element
  /// Behind so many steps, where no epilogue quantizes: of all rows. A last step then brings those
  /// of groups from the workspace to the result, unless all rows of that are the call's.
  std::optional<quantize_detail::QuantizePlan> quantization;
  std::size_t products = 0;
  std::int64_t workspace_bytes = 0;

  /// By which the product goes, of which there is one.
  gemm_detail::GemmPath path() const;
  /// Whether tensor cores multiply FP8 codes.
  bool is_fp8() const { return path() == gemm_detail::GemmPath::sm90_fp8; }
  std::string str() const;
};

/// visit(each step, or the quantization), in their order.
template <class Plan, class Visit>
void for_each_launch(Plan& plan, const Visit& visit) {
  for (std::size_t i = 0; i <= plan.steps.size(); ++i) {
    if (plan.quantization && i == plan.products) visit(*plan.quantization);
    if (i < plan.steps.size()) visit(plan.steps[i]);
  }
}

/// Whether kernels take rows that are entries, of validated arguments.
bool takes_entries(const GroupedGemmArguments& validated, const cuda::Chip& chip);

/// Whether an FP8 kernel of sm_90 computes the product: those gather rows of A by themselves.
bool gathers_rows(const GroupedGemmArguments& validated, const cuda::Chip& chip);

/// Of validated arguments. `workspace` is not looked at. Throws `unsupported` for sizes and numbers
/// of tiles beyond what kernels count, and for entries that no kernel takes.
GroupedPlan plan_grouped(const GroupedGemmArguments& validated, const cuda::Chip& chip,
                         void* workspace = nullptr);
GroupedPlan plan_k_grouped(const KGroupedGemmArguments& validated, const cuda::Chip& chip);

}  // namespace blockscale::grouped_gemm_detail
