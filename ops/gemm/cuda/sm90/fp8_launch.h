// How a product's tiles become launches of the FP8 kernels with wgmma.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "blockscale/gemm.h"
#include "ops/gemm/cuda/plan.h"
#include "ops/gemm/cuda/sm90/fp8_model.h"

namespace blockscale::gemm_detail {

/// The launch of a product, or of some of its columns (`size`; where D is quantized, from column
/// `first` on), by `config`. Throws invalid_argument for a config without a kernel.
GemmStep fp8_step(const GemmArguments& x, const Fp8GemmSize& size, const Fp8LaunchConfig& config,
                  std::int64_t first, const cuda::Chip& chip);

/// Adds the launches of `found`: all columns of D, or the first ones and, beside their tail wave,
/// the others. Throws invalid_argument for a config without a kernel.
void add_fp8_steps(const GemmArguments& x, const Fp8GemmSize& size, const Fp8Heuristic& found,
                   const cuda::Chip& chip, std::vector<GemmStep>& steps);

/// Tile rows of a band of tiles, of DenseOrder or GroupedOrder: as many rows as 1.5 MiB of A are,
/// from 512, which are best where K is long, by up to a fifth in products of a millisecond and
/// more, to 2048, which are where it is short (docs/log/gemm-sm90.md, version 77).
std::uint32_t band_rows_of(std::int64_t k, int tile_rows);

/// What a plan says of such a launch.
std::string text_of_fp8(const GemmStep& step, const Fp8GemmParams& params);

}  // namespace blockscale::gemm_detail
