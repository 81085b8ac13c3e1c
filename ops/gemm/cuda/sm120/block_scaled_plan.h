// How a product of two operands with scales, or one of groups, becomes a launch on sm_120f: a pure
// function of shapes, recipes, strides and the chip. Its kernels are compiled and emulated, never
// run on silicon.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "blockscale/device.h"
#include "blockscale/gemm.h"
#include "core/launch_shape.h"
#include "ops/gemm/cuda/tensor_maps.h"
#include "ops/gemm/kernels/sm120/block_scaled_params.h"
#include "runtime/kernels/kernel_spec.h"

namespace blockscale::gemm_detail {

struct BlockScaledPlan {
  int kernel = 0;  // index into kBlockScaledKernels
  LaunchShape shape;
  BlockScaledParams params;
  TensorMapDescriptions maps;
  int architecture = 0;         // of the chip that it is for
  double expected_seconds = 0;  // by public figures, not measured
  std::int64_t workspace_bytes = 0;

  std::string str() const;
};

/// Whether these kernels compute the product, or what comes before its transform and before it is
/// quantized. Not where another one is needed: of other recipes or chips, of rows that do not begin
/// where tensor copies read, of ragged K of elements with gaps, of scales that do not lie by fours
/// of k (but in f32), and of B whose scales in f32 hold for fewer rows than a tile has.
bool takes_block_scaled(const GemmArguments& validated, const cuda::Chip& chip);

/// How many tiles of so many rows a band has.
std::uint32_t block_scaled_band_rows(int rows);

/// None where they do not, and where D is quantized. `rows`: of A in a tile (kBlockScaledRows), in
/// place of what is expected to take least. `order_bytes`: of shared memory, that an order of
/// groups asks for.
std::optional<BlockScaledPlan> plan_block_scaled(const GemmArguments& validated,
                                                 const cuda::Chip& chip,
                                                 std::optional<int> rows = std::nullopt,
                                                 std::uint32_t order_bytes = 0);

/// Has the plan's parameters compute groups of the rows that they are for, each with a matrix of B.
void set_groups(BlockScaledParams& params, const GroupedOrder& order);

/// Stages and scales, for plans' texts.
std::string text_of_block_scaled(const BlockScaledParams& params);
/// What a product is expected to take (block_scaled_model.h), for plans' texts.
std::string text_of_expected(double seconds);

std::string block_scaled_kernel_name(const BlockScaledConfig& config);

/// What the kernel pack compiles for these products: kBlockScaledKernels.
std::vector<runtime::KernelSpec> block_scaled_kernel_specs();

}  // namespace blockscale::gemm_detail
