// The kernels of grouped products as the kernel pack compiles them, and their numbers.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ops/grouped_gemm/kernels/config.h"
#include "runtime/kernels/kernel_spec.h"

namespace blockscale::grouped_gemm_detail {

/// Kernels are numbered family by family: FP8 ones as kFp8GroupedKernels, that of few rows, those
/// of few rows with weights in FP4 as kFp4GroupedKernels, the plain ones of tiles in both forms,
/// those of groups of k, the transform, and the copy of rows.
std::size_t few_rows_kernel();
std::size_t fp4_few_rows_kernel(int index);
std::size_t plain_kernel(PlainTile tile, Format form);
std::size_t plain_k_kernel(PlainTile tile, Format form);
std::size_t transform_kernel();
std::size_t copy_rows_kernel_index();

/// What the kernel pack compiles for this operation: each kernel for all of its architectures.
std::vector<runtime::KernelSpec> kernel_specs();

/// By its number.
std::string kernel_name(std::size_t kernel);

}  // namespace blockscale::grouped_gemm_detail
