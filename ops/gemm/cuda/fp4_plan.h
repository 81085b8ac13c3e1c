// How a product of few rows of A with weights in FP4 or MXFP8 becomes a launch on Hopper, or on
// SM120: a pure function of shapes, recipes, strides and the chip.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "blockscale/device.h"
#include "blockscale/gemm.h"
#include "core/launch_shape.h"
#include "ops/gemm/kernels/fp4_params.h"
#include "runtime/kernels/kernel_spec.h"

namespace blockscale::gemm_detail {

/// How tiles of B and K are divided.
struct Fp4Division {
  std::uint32_t blocks_k = 1;     // of a cluster
  std::uint32_t warps_k = 1;      // of a block
  std::uint32_t block_tiles = 1;  // warps_k times as many warps are a block
  /// Chunks of K that shared memory has A's rows of at a time, as many for each of warps_k warps;
  /// 0: all of a block's.
  std::uint32_t part_chunks = 0;
};

struct Fp4GemmPlan {
  int kernel = 0;  // index into kFp4GemmKernels
  LaunchShape shape;
  Fp4GemmParams params;
  int architecture = 0;  // of the chip that it is for
  std::int64_t workspace_bytes = 0;

  std::string str() const;
};

/// Whether four neighbouring blocks of K have scales side by side, and those of a piece of 32, of
/// NVFP4 two, begin at a multiple of their bytes.
bool has_pieces_of_scales(const ScaledTensorView& x);

/// A product as its kernel takes it.
struct Fp4Sizes {
  int kernel = 0;             // index into kFp4GemmKernels
  std::int64_t rows = 0;      // of A, that a block has in shared memory
  std::int64_t tiles = 0;     // of a matrix of B
  std::int64_t chunks = 0;    // of K
  std::int64_t matrices = 1;  // that blocks take turns with: tiles of each of them
  std::uint32_t beside = 0;   // bytes of shared memory that something else has
};
Fp4Sizes fp4_sizes_of(const GemmArguments& x, int kernel);

/// Which of the two a chip is, of those that have kernels of few rows.
bool has_fp4_kernels(const cuda::Chip& chip);
bool is_sm120(const cuda::Chip& chip);

/// Whether a kernel of few rows takes operands as they lie.
bool takes_fp4_operands(const ScaledTensorView& a, const ScaledTensorView& b, int kernel);

/// The division that is expected to be fastest of those that fit shared memory, if any does.
std::optional<Fp4Division> best_fp4_division(const Fp4Sizes& size, const cuda::Chip& chip);

Fp4GemmParams fp4_params_of(const GemmArguments& x, const Fp4Sizes& size, const Fp4Division& d);

/// Of blocks for all turns, as far as they run at a time.
LaunchShape fp4_shape_of(const Fp4Sizes& size, const Fp4Division& d, const cuda::Chip& chip);

std::string fp4_gemm_kernel_name(const Fp4GemmConfig& config);

/// How K is divided, for plans' texts.
std::string text_of_fp4_division(const Fp4GemmParams& p);

/// None where another kernel computes the product: of more rows, other recipes, scales or chips, of
/// rows that do not begin and end at multiples of 16 bytes, and where D is quantized or a row's
/// bits must not depend on their number. `division`: in place of the one that is expected to be
/// fastest.
std::optional<Fp4GemmPlan> plan_fp4_gemm(const GemmArguments& validated, const cuda::Chip& chip,
                                         std::optional<Fp4Division> division = std::nullopt);

/// A kernel of few rows for Hopper, or for SM120, with as many threads as it may have there.
runtime::KernelSpec fp4_spec_for(bool sm120, runtime::KernelSpec spec);

/// What the kernel pack compiles for these products: kFp4GemmKernels.
std::vector<runtime::KernelSpec> fp4_gemm_kernel_specs();

}  // namespace blockscale::gemm_detail
