// What plans of products of groups say.
#include "ops/gemm/cuda/fp4_plan.h"
#include "ops/gemm/cuda/sm120/block_scaled_plan.h"
#include "ops/gemm/cuda/sm90/fp4_tiles_plan.h"
#include "ops/grouped_gemm/cuda/plan.h"
#include "ops/grouped_gemm/cuda/specs.h"

namespace blockscale::grouped_gemm_detail {

using namespace gemm_detail;

namespace {

std::string text_of(const GroupedOrder& order) {
  return ", " + std::to_string(order.band_rows) + " rows of them in a band";
}
std::string text_of(const Fp8GroupedParams& p) {
  return text_of(p.order) + ", " + std::to_string(p.stages) + " stages" +
         (p.gather.index != nullptr ? ", A gathered" : "") +
         (p.a_scales.data == nullptr ? ", scales at the end" : "") +
         (!p.epilogue.d.chunks  ? ""
          : p.order.map.moves() ? ", rows moved in chunks of 16 bytes"
                                : ", stored as boxes but for last rows");
}
std::string text_of(const EntryOrder& order) {
  return order.groups.ids != nullptr ? ", each of an entry" : "";
}
std::string text_of(const Fp8FewRowsParams& p) {
  return text_of(p.order) + ", K divided among " + std::to_string(1u << p.division_shift) +
         " warps" + (p.source.index != nullptr ? ", A gathered" : "") +
         (p.is_transformed ? ", D transformed" : "");
}
std::string text_of(const Fp4TilesParams& p) {
  return text_of(p.order.grouped) + ", " + std::to_string(p.stages) + " stages" +
         (!p.epilogue.d.chunks          ? ""
          : p.order.grouped.map.moves() ? ", rows moved in chunks of 16 bytes"
          : p.is_direct                 ? ", stored as boxes but for last rows, directly"
                                        : ", stored as boxes but for last rows");
}
std::string text_of(const Fp4FewRowsParams& p) {
  return text_of(p.order) + ", " + text_of_fp4_division(p) +
         (p.source.index != nullptr ? ", A gathered" : "");
}
std::string text_of(const BlockScaledParams& p) {
  return text_of(p.order.grouped) + ", " + text_of_block_scaled(p) + "; " +
         std::to_string(p.stages) + " stages" +
         (!p.epilogue.d.chunks          ? ""
          : p.order.grouped.map.moves() ? ", rows moved in chunks of 16 bytes"
                                        : ", stored as boxes but for last rows");
}
std::string text_of(const PlainGroupedParams& p) {
  return text_of(p.order) + ", " + std::to_string(p.stages) + " stages" +
         (p.a_index != nullptr ? ", A gathered" : "");
}
std::string text_of(const PlainKGroupedParams& p) {
  return ", each of its group's k, " + std::to_string(p.stages) + " stages";
}
std::string text_of(const GroupedTransformParams& p) {
  return text_of(p.order) + ", of D in f32 in the workspace";
}
std::string text_of(const CopyRowsParams& p) {
  return p.source.index != nullptr ? ", those of groups gathered to the workspace"
                                   : ", those of groups from all rows in the workspace";
}

std::string name_of(const GroupedStep& step) {
  const auto index = static_cast<int>(step.kernel);
  if (std::holds_alternative<Fp4TilesParams>(step.params)) {
    return fp4_tiles_kernel_name(kFp4TilesKernels[index]);
  }
  if (std::holds_alternative<BlockScaledParams>(step.params)) {
    return block_scaled_kernel_name(kBlockScaledKernels[index]);
  }
  return kernel_name(step.kernel);
}

}  // namespace

std::string GroupedStep::str() const {
  return name_of(*this) + ": at most " + std::to_string(most_tiles) + " tiles of " +
         std::to_string(rows) + " x " + std::to_string(columns) +
         std::visit([](const auto& p) { return text_of(p); }, params) + "; " +
         std::to_string(product(shape.grid)) + " x " + std::to_string(shape.block.x) +
         " threads, " + std::to_string(shape.dynamic_shared_bytes) + " bytes shared" +
         (expected_seconds == 0 ? "" : text_of_expected(expected_seconds)) + "\n";
}

std::string GroupedPlan::str() const {
  if (steps.empty()) return "nothing to do: D has no element\n";
  std::string text;
  for_each_launch(*this, [&](const auto& launch) { text += launch.str(); });
  return text + "workspace " + std::to_string(workspace_bytes) + " bytes\n";
}

}  // namespace blockscale::grouped_gemm_detail
