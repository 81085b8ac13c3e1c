// How a product of any pair of operands becomes a launch of a plain kernel: a pure function of
// shapes, recipes, strides and the chip.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "blockscale/device.h"
#include "blockscale/gemm.h"
#include "core/launch_shape.h"
#include "ops/gemm/kernels/plain_params.h"
#include "runtime/kernels/kernel_spec.h"

namespace blockscale::gemm_detail {

struct PlainGemmStep {
  int kernel = 0;  // index into kPlainGemmKernels
  LaunchShape shape;
  PlainGemmParams params;
};

struct PlainGemmPlan {
  std::optional<PlainGemmStep> product;  // none where D has no element
  int architecture = 0;                  // of the chip that it is for
  std::int64_t workspace_bytes = 0;

  std::string str() const;
};

/// Whether the FP8 kernels of sm_90 compute the pair on a chip; else the plain ones do.
bool has_fp8_kernel(Recipe a, Recipe b, const cuda::Chip& chip);

/// Throws `unsupported` for rows of 2^31 bytes.
void check_row_bytes(const char* argument, const ScaledTensorView& x);

/// A launch by kernels of a tile, but for what set_order sets: the order of its tiles and its grid.
/// `rows`: of the product, where they are not A's.
PlainGemmStep plain_step(const GemmArguments& validated, PlainTile tile, const cuda::Chip& chip,
                         std::optional<std::int64_t> rows = std::nullopt);
/// Throws `unsupported` for 2^31 tiles.
void set_order(PlainGemmStep& step, const GemmArguments& validated);

/// One line, as in PlainGemmPlan::str().
std::string text_of(const PlainGemmStep& step);

/// The plan by the tile that suits the shape, or by `tile`; D is not quantized, unless it has no
/// element. Throws `unsupported` for rows of 2^31 bytes and for sizes of 2^31.
PlainGemmPlan plan_plain_gemm(const GemmArguments& validated, const cuda::Chip& chip,
                              std::optional<PlainTile> tile = std::nullopt);

std::string plain_gemm_kernel_name(const PlainGemmConfig& config);

/// What the kernel pack compiles for plain products: kPlainGemmKernels.
std::vector<runtime::KernelSpec> plain_gemm_kernel_specs();

}  // namespace blockscale::gemm_detail
