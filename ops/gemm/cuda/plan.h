// How a product becomes a kernel launch: a pure function of shapes, recipes, strides and the chip,
// so it is tested without a GPU.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "blockscale/gemm.h"
#include "core/launch_shape.h"
#include "ops/gemm/cuda/division.h"
#include "ops/gemm/kernels/align_rows.cuh"
#include "ops/gemm/kernels/fp8_one_row.cuh"
#include "ops/gemm/kernels/params.h"
#include "runtime/kernels/kernel_spec.h"

namespace blockscale::gemm_detail {

/// One kernel's launch: some columns of D.
struct Fp8GemmLaunch {
  int kernel = -1;  // index into kFp8GemmKernels
  LaunchShape shape;
  Fp8GemmChoice choice;
  // Of rank 0 where it is not used; a_last where it is a, b_second where it is b.
  TensorMapDescription a, a_last, b, b_second, a_scales, b_scales, d;
  Fp8GemmParams params;  // but for the tensor maps
};

/// A copy of an operand in the workspace, by kernel kAlignRowsKernel, before anything else.
struct OperandCopy {
  AlignRowsParams params;
  LaunchShape shape;
};
inline constexpr std::size_t kAlignRowsKernel = Fp8GemmKernelList::kCount;

/// A product whose A has one row, by kernel kFp8RowKernel.
struct Fp8RowLaunch {
  Fp8RowParams params;
  LaunchShape shape;
};
inline constexpr std::size_t kFp8RowKernel = kAlignRowsKernel + 1;

struct Fp8GemmPlan {
  int architecture = 0;  // of the chip that it is for
  std::size_t copy_count = 0;
  std::array<OperandCopy, 2> copies;
  std::int64_t workspace_bytes = 0;
  std::optional<Fp8RowLaunch> row;  // instead of launches
  std::size_t count = 0;            // of launches
  std::array<Fp8GemmLaunch, 2> launches;
  std::array<std::int64_t, 2> columns = {};  // of D, of each
  std::string quantization;                  // what becomes of D, as text
  double expected_seconds = 0;
  bool batch_invariant = false;
  double batch_invariant_seconds = 0;  // what that is expected to cost

  std::string str() const;
};

/// What a division of the product depends on.
Fp8GemmSize size_of(const GemmArguments& validated);

/// The plan of a product of FP8 operands, the one that is expected to be fastest, or one launch of
/// tiles by `choice`. Operands whose rows begin where tensor copies cannot read are copied to
/// `workspace`, which is not looked at. Throws `unsupported` for recipes and chips without a
/// kernel, and for sizes beyond 2^31.
Fp8GemmPlan plan_fp8_gemm(const GemmArguments& validated, const cuda::Chip& chip,
                          const std::optional<Fp8GemmChoice>& choice = std::nullopt,
                          void* workspace = nullptr);

std::string fp8_gemm_kernel_name(const Fp8GemmConfig& config);

/// What kernels with wgmma are compiled for, and what those are that need nothing of Hopper.
inline constexpr const char* kWgmmaArchitectures[] = {"sm_90a"};
inline constexpr const char* kAnyArchitectures[] = {"sm_90a", "sm_100f", "sm_120f"};

/// What the kernel pack compiles for this operation: kFp8GemmKernels, kAlignRowsKernel,
/// kFp8RowKernel.
std::vector<runtime::KernelSpec> fp8_gemm_kernel_specs();

}  // namespace blockscale::gemm_detail
