#include "ops/moe/cuda/specs.h"

#include "ops/gemm/cuda/specs.h"
#include "ops/moe/kernels/finalize.cuh"
#include "ops/moe/kernels/join_scales.cuh"
#include "ops/moe/kernels/pad.cuh"
#include "ops/moe/kernels/route.cuh"
#include "ops/moe/kernels/row_runs.cuh"
#include "ops/moe/kernels/sort.cuh"
#include "ops/moe/kernels/weigh.cuh"

namespace blockscale::moe_detail {
namespace {

/// Whatever the architecture.
std::vector<runtime::KernelSpec> one_of_each() {
  return {runtime::with_parameters<RouteParams>({.name = "moe_route",
                                                 .header = "ops/moe/kernels/route.cuh",
                                                 .call = "blockscale::moe_route_kernel",
                                                 .threads = kRouteThreads},
                                                "blockscale::RouteParams"),
          runtime::with_parameters<SortParams>({.name = "moe_sort",
                                                .header = "ops/moe/kernels/sort.cuh",
                                                .call = "blockscale::moe_sort_kernel",
                                                .threads = kSortThreads},
                                               "blockscale::SortParams"),
          runtime::with_parameters<PadParams>({.name = "moe_pad",
                                               .header = "ops/moe/kernels/pad.cuh",
                                               .call = "blockscale::moe_pad_kernel",
                                               .threads = kPadThreads},
                                              "blockscale::PadParams"),
          runtime::with_parameters<FinalizeParams>({.name = "moe_finalize",
                                                    .header = "ops/moe/kernels/finalize.cuh",
                                                    .call = "blockscale::moe_finalize_kernel",
                                                    .threads = kRowRunThreads},
                                                   "blockscale::FinalizeParams"),
          runtime::with_parameters<JoinScalesParams>({.name = "moe_join_scales",
                                                      .header = "ops/moe/kernels/join_scales.cuh",
                                                      .call = "blockscale::moe_join_scales_kernel",
                                                      .threads = kJoinScalesThreads},
                                                     "blockscale::JoinScalesParams"),
          runtime::with_parameters<WeighParams>({.name = "moe_weigh",
                                                 .header = "ops/moe/kernels/weigh.cuh",
                                                 .call = "blockscale::moe_weigh_kernel",
                                                 .threads = kRowRunThreads},
                                                "blockscale::WeighParams")};
}

}  // namespace

std::vector<runtime::KernelSpec> kernel_specs() {
  return runtime::for_architectures(one_of_each(), gemm_detail::kAnyArchitectures);
}

std::string kernel_name(std::size_t kernel) {
  return one_of_each().at(kernel).name;
}

}  // namespace blockscale::moe_detail
