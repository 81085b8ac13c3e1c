#include "ops/gemm/cuda/transform.h"

#include <algorithm>

#include "blockscale/error.h"
#include "ops/gemm/cuda/problem.h"
#include "ops/gemm/validate.h"

namespace blockscale::gemm_detail {

std::int64_t transform_workspace_bytes(const GemmArguments& x) {
  return ceil_div(numbers_before_transform(x) * 4, 16) * 16;
}

ResultTransform result_transform_of(const GemmArguments& x) {
  const quantize_detail::FusedInput input = transform_of_result(x);
  ResultTransform t;
  t.is_gated = input.transform == InputTransform::swiglu;
  if (t.is_gated) {
    t.is_clamped = input.is_clamped;
    t.swiglu = input.swiglu;
    t.gate_order = input.gate_order;
    t.gate_group = Divisor(static_cast<std::uint32_t>(input.gate_group));
  } else if (is_gelu(input.transform)) {
    t.is_gelu = true;
    t.gelu = input.transform == InputTransform::gelu_tanh ? math::kGeluTanh : math::kGeluErf;
  }
  return t;
}

TransformPlan plan_transform(const GemmArguments& x, const float* numbers, const cuda::Chip& chip) {
  TransformPlan plan;
  plan.architecture = chip.architecture;
  if (x.d.rows == 0 || x.d.columns == 0 || x.d.batch == 0) return plan;
  check_size("d.rows", x.d.rows);
  check_size("b.rows", x.b.rows);
  const std::int64_t of_row = ceil_div(x.d.columns, std::int64_t{kTransformRun});
  if (x.d.rows * of_row > (kMostElements - 1) / x.d.batch) {
    throw Error(ErrorCode::unsupported, "d",
                "has 2^31 runs of " + std::to_string(kTransformRun) + " columns or more");
  }
  plan.transform = transform_of_result(x).transform;
  TransformParams& p = plan.params;
  p.numbers = numbers;
  p.number_columns = x.b.rows;
  p.d = epilogue_of(x).d;
  p.columns = static_cast<std::uint32_t>(x.d.columns);
  p.runs = static_cast<std::uint32_t>(x.d.batch * x.d.rows * of_row);
  p.runs_of_row = Divisor(static_cast<std::uint32_t>(of_row));
  p.rows_of_matrix = Divisor(static_cast<std::uint32_t>(x.d.rows));
  p.of_result = result_transform_of(x);
  constexpr std::uint32_t kBlocksOfMultiprocessor = 8;
  plan.shape.grid = {
      std::min(p.runs, kBlocksOfMultiprocessor * static_cast<std::uint32_t>(chip.multiprocessors))};
  plan.shape.block = {kTransformThreads};
  plan.shape.programmatic_dependent_launch = true;
  return plan;
}

std::string TransformPlan::str() const {
  if (!is_needed()) return "";
  return std::string("D in f32 in the workspace, then ") +
         kInputTransformNames[static_cast<int>(transform)] + ": " + std::to_string(params.runs) +
         " runs of " + std::to_string(kTransformRun) + " columns, " + std::to_string(shape.grid.x) +
         " blocks\n";
}

}  // namespace blockscale::gemm_detail
