// How a plan's launches quantize D: which rows of B make a tile's columns, and what the epilogue
// does.
#pragma once

#include <cstdint>

#include "blockscale/gemm.h"
#include "ops/gemm/kernels/sm90/fp8_params.h"

namespace blockscale::gemm_detail {

/// Whether epilogues compute what comes before the codes: they have no silu but SwiGLU's.
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

}  // namespace blockscale::gemm_detail
