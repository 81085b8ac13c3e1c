// What products of operands with scales are expected to take on sm_120f, by the chips' public
// figures: no such chip was at hand, and nothing here was measured.
#pragma once

#include <cstdint>

#include "blockscale/device.h"
#include "ops/gemm/kernels/sm120/block_scaled_config.h"

namespace blockscale::gemm_detail {

struct BlockScaledSize {
  BlockScaledConfig config;  // but for the rows of a tile
  std::int64_t rows = 0, columns = 0, k = 0;
  std::int64_t matrices = 1;
};

/// Of a launch by tiles of so many rows (kBlockScaledRows): the longer of what multiplying takes,
/// in turns of as many tiles as there are multiprocessors, and of reading operands and writing D
/// once; and a tile's end.
double expected_seconds(const BlockScaledSize& size, int tile_rows, const cuda::Chip& chip);

/// The rows of tiles that are expected to take least.
int best_block_scaled_rows(const BlockScaledSize& size, const cuda::Chip& chip);

}  // namespace blockscale::gemm_detail
