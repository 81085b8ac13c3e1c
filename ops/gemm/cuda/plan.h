// How a product becomes a kernel launch: a pure function of shapes, recipes, strides and the chip,
// so it is tested without a GPU.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "blockscale/gemm.h"
#include "core/launch_shape.h"
#include "ops/gemm/kernels/config.h"
#include "ops/gemm/kernels/params.h"
#include "runtime/kernels/kernel_spec.h"

namespace blockscale::gemm_detail {

/// What is left to choose: a kernel of kFp8GemmKernels with B's promotion, and its run-time values.
struct Fp8GemmChoice {
  int rows = 128;     // of a tile
  int columns = 128;  // of a tile
  std::uint32_t stages = 0;
  std::uint32_t split = 1;   // blocks of a cluster, each with a part of K
  std::uint32_t per_sm = 1;  // blocks that a multiprocessor holds at a time

  friend bool operator==(const Fp8GemmChoice&, const Fp8GemmChoice&) = default;
};

struct Fp8GemmPlan {
  int kernel = -1;  // index into kFp8GemmKernels; -1: nothing to do
  LaunchShape shape;
  double expected_seconds = 0;

  Fp8GemmChoice choice;
  TensorMapDescription a, b, d;  // of rank 0 where it is not used
  Fp8GemmParams params;          // but for the tensor maps

  std::string str() const;
};

/// Every choice that can compute the product on a chip with so many multiprocessors; never empty.
std::vector<Fp8GemmChoice> fp8_gemm_choices(const GemmArguments& validated, int multiprocessors);

/// The plan of a product of FP8 operands, the one that is expected to be fastest, or
/// that of `choice`. Throws `unsupported` for recipes and alignments without a kernel, and for
/// sizes beyond 2^31.
Fp8GemmPlan plan_fp8_gemm(const GemmArguments& validated, int multiprocessors,
                          const std::optional<Fp8GemmChoice>& choice = std::nullopt);

std::string fp8_gemm_kernel_name(const Fp8GemmConfig& config);

/// What the kernel pack compiles for this operation.
std::vector<runtime::KernelSpec> fp8_gemm_kernel_specs();

}  // namespace blockscale::gemm_detail
