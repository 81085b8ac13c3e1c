#include "ops/gemm/cuda/specs.h"

#include <utility>

#include "ops/gemm/kernels/align_rows.cuh"
#include "ops/gemm/kernels/gemv_fp8.cuh"
#include "ops/gemm/kernels/sm90/fp8_params.h"
#include "ops/gemm/kernels/transform.cuh"

namespace blockscale::gemm_detail {

std::string fp8_gemm_kernel_name(const Fp8GemmConfig& c) {
  return "gemm_fp8_" + std::to_string(c.rows) + "x" + std::to_string(c.columns) +
         (c.promotion == Promotion::blocks ? "_blocks" : "_columns") +
         (c.quantizes ? "_quantized" : "") + (c.copies_scales ? "_copied" : "") +
         (c.leaves_scales ? "_whole" : "");
}

std::string fp8_gemm_config_source(const Fp8GemmConfig& c) {
  const auto is = [](bool value) { return value ? "true" : "false"; };
  return "blockscale::Fp8GemmConfig{.rows = " + std::to_string(c.rows) +
         ", .columns = " + std::to_string(c.columns) + ", .promotion = blockscale::Promotion(" +
         std::to_string(static_cast<int>(c.promotion)) + "), .quantizes = " + is(c.quantizes) +
         ", .copies_scales = " + is(c.copies_scales) + ", .leaves_scales = " + is(c.leaves_scales) +
         "}";
}

std::vector<runtime::KernelSpec> fp8_gemm_kernel_specs() {
  std::vector<runtime::KernelSpec> specs;
  for (const Fp8GemmConfig& c : kFp8GemmKernels.at) {
    specs.push_back(runtime::with_parameters<Fp8GemmParams>(
        {.name = fp8_gemm_kernel_name(c),
         .header = "ops/gemm/kernels/sm90/fp8_entry.cuh",
         .call = "blockscale::fp8_gemm_kernel<" + fp8_gemm_config_source(c) + ">",
         .threads = threads_of(c),
         .min_blocks_per_multiprocessor = blocks_per_multiprocessor(c)},
        "blockscale::Fp8GemmParams"));
  }
  specs = runtime::for_architectures(specs, kWgmmaArchitectures);
  const std::vector<runtime::KernelSpec> others = {
      runtime::with_parameters<AlignRowsParams>({.name = "gemm_align_rows",
                                                 .header = "ops/gemm/kernels/align_rows.cuh",
                                                 .call = "blockscale::align_rows_kernel",
                                                 .threads = kAlignRowsThreads},
                                                "blockscale::AlignRowsParams"),
      runtime::with_parameters<Fp8GemvParams>(
          {.name = "gemm_fp8_one_row",
           .header = "ops/gemm/kernels/gemv_fp8.cuh",
           .call = "blockscale::fp8_gemv_kernel",
           .threads = 32 * kGemvWarps,
           .min_blocks_per_multiprocessor = kGemvBlocksPerMultiprocessor},
          "blockscale::Fp8GemvParams"),
      runtime::with_parameters<TransformParams>({.name = "gemm_transform",
                                                 .header = "ops/gemm/kernels/transform.cuh",
                                                 .call = "blockscale::transform_kernel",
                                                 .threads = kTransformThreads},
                                                "blockscale::TransformParams")};
  for (runtime::KernelSpec& spec : runtime::for_architectures(others, kAnyArchitectures)) {
    specs.push_back(std::move(spec));
  }
  return specs;
}

}  // namespace blockscale::gemm_detail
