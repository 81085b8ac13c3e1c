// How a product of many rows of A with weights in FP4, or in 16 bits as they are or become, turns
// into launches on Hopper: a pure function of shapes, recipes, strides and the chip.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "blockscale/device.h"
#include "blockscale/gemm.h"
#include "core/launch_shape.h"
#include "ops/gemm/cuda/plain_plan.h"
#include "ops/gemm/cuda/tensor_maps.h"
#include "ops/gemm/kernels/sm90/fp4_tiles_params.h"
#include "ops/gemm/path.h"
#include "ops/quantize/cuda/dequantize_plan.h"
#include "runtime/kernels/kernel_spec.h"

namespace blockscale::gemm_detail {

/// How D and K are divided, and what multiplies.
struct Fp4TilesDivision {
  int tokens = 256;            // rows of A in a tile
  std::uint32_t blocks_k = 1;  // of a cluster; with more than one a cluster has one tile
  bool in_fp8 = false;         // A's rows stay in FP8, where they would become bf16
};

struct Fp4TilesPlan {
  /// Before the product: A's rows in bf16 in the workspace, where they are not in bf16 or f16, or
  /// in FP8 beside mxfp4.
  std::optional<quantize_detail::DequantizePlan> conversion;
  /// And B's, where there is no kernel that takes its codes. They lie behind A's.
  std::optional<quantize_detail::DequantizePlan> b_conversion;
  int kernel = 0;  // index into kFp4TilesKernels
  LaunchShape shape;
  Fp4TilesParams params;
  TensorMapDescriptions maps;
  /// Behind the product, where B is converted: of the operands themselves by a plain kernel, which
  /// has nothing to do but where bf16 lacks one of their numbers.
  std::optional<PlainGemmStep> fallback;
  int architecture = 0;  // of the chip that it is for
  std::int64_t workspace_bytes = 0;

  GemmPath path() const;
  std::string str() const;
};

/// None where another kernel computes the product: of other recipes, scales or chips, of rows that
/// do not begin at multiples of 16 bytes (where they are not converted), where D is quantized, and,
/// without FP4, of rows that are to have the same bits, or where the plain kernel is expected to be
/// faster. `workspace` is not looked at. `division`: in place of the one that is expected to be
/// fastest, whatever kernels are faster, and for rows that are to have the same bits too.
std::optional<Fp4TilesPlan> plan_fp4_tiles(const GemmArguments& validated, const cuda::Chip& chip,
                                           void* workspace = nullptr,
                                           std::optional<Fp4TilesDivision> division = std::nullopt);

/// As many stages as shared memory has room for, where a multiprocessor has so many blocks and each
/// needs `beside` bytes for others: at least three, of which who multiplies has two while it waits
/// for the next.
std::optional<std::uint32_t> fp4_tiles_stages(const cuda::Chip& chip, const Fp4TilesConfig& config,
                                              int blocks, bool is_direct, std::uint32_t beside = 0);

/// Whether a launch that does not divide K stores sums directly (Fp4TilesParts).
bool stores_directly(const LinearEpilogue& epilogue);

/// Rows of tiles, of so many rows of A each, that follow each other: those of 2048 rows.
std::uint32_t fp4_tiles_band_rows(int tokens);

/// Whether A's rows may stay in FP8: with scales that hold for all of K.
bool takes_rows_in_fp8(const GemmArguments& x);

/// Cycles of a multiprocessor that a stage of so many rows of A takes, as measured on an H200
/// (docs/log/gemm-fp4.md). In FP8 a tile that has kFp4TilesTokens[0] at most takes that many's.
double fp4_tiles_stage_cost(int tokens, bool in_fp8);

std::string fp4_tiles_kernel_name(const Fp4TilesConfig& config);

/// What the kernel pack compiles for these products: kFp4TilesKernels.
std::vector<runtime::KernelSpec> fp4_tiles_kernel_specs();

}  // namespace blockscale::gemm_detail
