// How a plan's launches quantize D: which rows of B make a tile's columns, and what the epilogue
// does; or what is launched behind a product where epilogues cannot.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "blockscale/device.h"
#include "blockscale/gemm.h"
#include "ops/gemm/cuda/transform.h"
#include "ops/gemm/kernels/sm90/fp8_params.h"
#include "ops/quantize/cuda/plan.h"

namespace blockscale::gemm_detail {

/// Whether epilogues quantize so: they see parts of rows, for which a scale must be, and have no
/// silu but SwiGLU's.
bool fits_epilogue(const QuantizedResult& quantized);

/// Of validated arguments, which have `quantized`. What comes before the codes is in it if it fits.
QuantizingEpilogue quantizing_epilogue(const GemmArguments& x);
TileRuns tile_runs(const GemmArguments& x);

/// Columns of D for 128 of the result.
std::int64_t quantized_columns(const GemmArguments& x);

/// Whether no run of a tile's columns lies on two blocks of B of 128 rows.
bool runs_fit_blocks(const TileRuns& runs);

/// Rows of B that a run's tensor map reads.
ScaledTensorView rows_of_run(const ScaledTensorView& b, const TileRuns& runs, int run);

/// What makes codes and scales of D in f32.
struct QuantizationPlan {
  /// Before the quantizer: an input that it does not fuse, whose result lies in the workspace.
  std::optional<TransformPlan> transform;
  quantize_detail::QuantizePlan quantization;
  std::int64_t workspace_bytes = 0;
};

/// Of validated arguments with D in f32 at d.data, and of their `quantized`.
QuantizationPlan plan_quantization(GemmArguments with_numbers, const QuantizedResult& quantized,
                                   const cuda::Chip& chip, void* workspace);

/// What plans say of such launches.
std::string text_of_quantizer(const std::optional<TransformPlan>& transform,
                              const quantize_detail::QuantizePlan& quantization);

}  // namespace blockscale::gemm_detail
