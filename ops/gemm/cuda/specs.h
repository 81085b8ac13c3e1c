// The kernels of products as the kernel pack compiles them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ops/gemm/kernels/sm90/fp8_config.h"
#include "runtime/kernels/kernel_spec.h"

namespace blockscale::gemm_detail {

/// What kernels with wgmma are compiled for, those with products that take scales, and those that
/// need nothing of one chip.
inline constexpr const char* kSm120Architecture = "sm_120f";
inline constexpr const char* kWgmmaArchitectures[] = {"sm_90a"};
inline constexpr const char* kBlockScaledArchitectures[] = {kSm120Architecture};
inline constexpr const char* kAnyArchitectures[] = {"sm_90a", "sm_100f", kSm120Architecture};

/// Kernels are numbered in the order of fp8_gemm_kernel_specs(): those of kFp8GemmKernels, then one
/// of each of these families.
inline constexpr std::size_t kAlignRowsKernel = Fp8GemmKernelList::kCount;
inline constexpr std::size_t kFp8GemvKernel = kAlignRowsKernel + 1;
inline constexpr std::size_t kTransformKernel = kFp8GemvKernel + 1;

std::string fp8_gemm_kernel_name(const Fp8GemmConfig& config);
/// A configuration as C++ source.
std::string fp8_gemm_config_source(const Fp8GemmConfig& config);

/// What the kernel pack compiles for this operation: each kernel for all of its architectures.
std::vector<runtime::KernelSpec> fp8_gemm_kernel_specs();

}  // namespace blockscale::gemm_detail
