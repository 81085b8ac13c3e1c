#include "ops/grouped_gemm/cuda/specs.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "ops/gemm/cuda/fp4_plan.h"
#include "ops/gemm/cuda/plain_plan.h"
#include "ops/gemm/cuda/specs.h"
#include "ops/grouped_gemm/kernels/copy_rows.cuh"
#include "ops/grouped_gemm/kernels/fp4_few_rows.cuh"
#include "ops/grouped_gemm/kernels/fp8.cuh"
#include "ops/grouped_gemm/kernels/fp8_few_rows.cuh"
#include "ops/grouped_gemm/kernels/plain.cuh"
#include "ops/grouped_gemm/kernels/transform.cuh"

namespace blockscale::grouped_gemm_detail {
namespace {

constexpr std::size_t kFp8 = Fp8GroupedKernelList::kCount + 1;
constexpr std::size_t kFp4FewRows = Fp4GroupedKernelList::kCount;
constexpr std::size_t kFast = kFp8 + kFp4FewRows;
constexpr std::size_t kPlain = 2 * std::size(kPlainGroupedTiles);
constexpr std::size_t kPlainK = 2 * std::size(kPlainKGroupedTiles);

std::size_t place_in(std::span<const PlainTile> tiles, PlainTile tile, Format form) {
  const auto at = std::find(tiles.begin(), tiles.end(), tile) - tiles.begin();
  return static_cast<std::size_t>(at) * 2 + (form == Format::f16 ? 1 : 0);
}

/// A family of plain kernels, of `tiles` in both forms.
template <class Params>
void add_plain(std::span<const PlainTile> tiles, const std::string& prefix,
               const std::string& function, const std::string& params,
               std::vector<runtime::KernelSpec>& specs) {
  for (const PlainTile tile : tiles) {
    for (const Format form : {Format::bf16, Format::f16}) {
      const int index = kPlainGemmKernels.index(tile, form);
      specs.push_back(runtime::with_parameters<Params>(
          {.name = prefix + gemm_detail::plain_gemm_kernel_name(kPlainGemmKernels[index]),
           .header = "ops/grouped_gemm/kernels/plain.cuh",
           .call = "blockscale::" + function + "<" + std::to_string(index) + ">",
           .threads = threads_of(kPlainGemmKernels[index])},
          "blockscale::" + params));
    }
  }
}

}  // namespace

std::size_t few_rows_kernel() {
  return kFp8 - 1;
}
std::size_t fp4_few_rows_kernel(int index) {
  return kFp8 + static_cast<std::size_t>(index);
}
std::size_t plain_kernel(PlainTile tile, Format form) {
  return kFast + place_in(kPlainGroupedTiles, tile, form);
}
std::size_t plain_k_kernel(PlainTile tile, Format form) {
  return kFast + kPlain + place_in(kPlainKGroupedTiles, tile, form);
}
std::size_t transform_kernel() {
  return kFast + kPlain + kPlainK;
}
std::size_t copy_rows_kernel_index() {
  return transform_kernel() + 1;
}

std::vector<runtime::KernelSpec> kernel_specs() {
  std::vector<runtime::KernelSpec> specs, any;
  const auto add = [&](const runtime::KernelSpec& spec) {
    runtime::add_for_architectures(spec, gemm_detail::kWgmmaArchitectures, specs);
  };
  for (int i = 0; i < kFp8GroupedKernels.kCount; ++i) {
    const Fp8GemmConfig& c = kFp8GroupedKernels[i];
    add(runtime::with_parameters<Fp8GroupedParams>(
        {.name = "grouped_" + gemm_detail::fp8_gemm_kernel_name(c),
         .header = "ops/grouped_gemm/kernels/fp8.cuh",
         .call = "blockscale::fp8_grouped_kernel<" + std::to_string(i) + ">",
         .threads = threads_of(c),
         .min_blocks_per_multiprocessor = blocks_per_multiprocessor(c)},
        "blockscale::Fp8GroupedParams"));
  }
  add(runtime::with_parameters<Fp8FewRowsParams>(
      {.name = "grouped_gemm_fp8_few_rows",
       .header = "ops/grouped_gemm/kernels/fp8_few_rows.cuh",
       .call = "blockscale::fp8_few_rows_kernel",
       .threads = kFewThreads,
       .min_blocks_per_multiprocessor = kFewBlocksPerMultiprocessor},
      "blockscale::Fp8FewRowsParams"));
  for (int i = 0; i < kFp4GroupedKernels.kCount; ++i) {
    const runtime::KernelSpec spec = runtime::with_parameters<Fp4FewRowsParams>(
        {.name = "grouped_" + gemm_detail::fp4_gemm_kernel_name(kFp4GroupedKernels[i]),
         .header = "ops/grouped_gemm/kernels/fp4_few_rows.cuh",
         .call = "blockscale::fp4_few_rows_grouped_kernel<blockscale::kFp4GroupedKernels[" +
                 std::to_string(i) + "]>"},
        "blockscale::Fp4FewRowsParams");
    specs.push_back(gemm_detail::fp4_spec_for(false, spec));
    if (kFp4GroupedKernels[i].is_pair_of_sm120()) {
      specs.push_back(gemm_detail::fp4_spec_for(true, spec));
    }
  }
  add_plain<PlainGroupedParams>(kPlainGroupedTiles, "grouped_", "plain_grouped_kernel",
                                "PlainGroupedParams", any);
  add_plain<PlainKGroupedParams>(kPlainKGroupedTiles, "k_grouped_", "plain_k_grouped_kernel",
                                 "PlainKGroupedParams", any);
  any.push_back(runtime::with_parameters<GroupedTransformParams>(
      {.name = "grouped_gemm_transform",
       .header = "ops/grouped_gemm/kernels/transform.cuh",
       .call = "blockscale::grouped_transform_kernel",
       .threads = kTransformThreads},
      "blockscale::GroupedTransformParams"));
  any.push_back(
      runtime::with_parameters<CopyRowsParams>({.name = "grouped_gemm_copy_rows",
                                                .header = "ops/grouped_gemm/kernels/copy_rows.cuh",
                                                .call = "blockscale::copy_rows_kernel",
                                                .threads = kCopyRowsThreads},
                                               "blockscale::CopyRowsParams"));
  for (runtime::KernelSpec& spec :
       runtime::for_architectures(any, gemm_detail::kAnyArchitectures)) {
    specs.push_back(std::move(spec));
  }
  return specs;
}

std::string kernel_name(std::size_t kernel) {
  // Those of one kernel follow one another.
  std::vector<std::string> names;
  for (const runtime::KernelSpec& spec : kernel_specs()) {
    if (names.empty() || names.back() != spec.name) names.push_back(spec.name);
  }
  return names.at(kernel);
}

}  // namespace blockscale::grouped_gemm_detail
