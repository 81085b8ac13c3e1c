// Which arithmetic a product goes by.
#pragma once

#include <cstdint>

namespace blockscale::gemm_detail {

/// Arithmetic that results come from.
enum class GemmPath : std::uint8_t {
  cpu_fused,           // AVX2, AVX-512, NEON: fused multiply-add
  cpu_unfused,         // SSE4 and scalar: products round, too
  sm90_fp8,            // Hopper's FP8 tensor cores, sums of 128 products scaled and added up in f32
  sm90_fp8_fast,       // the same, sums of up to all of K
  fp4_few_rows,        // by mma.sync: sums of 128 products or 64, of scaled weights, added in f32
  sm90_fp4_tiles,      // many rows, on Hopper: sums of all of K, or of 128 or 32, likewise
  sm120_block_scaled,  // sm_120f's tensor cores: sums of all of K, with scales, or of 128
  plain,  // any GPU's tensor cores on bf16 or f16, sums of 32 products, or 16, likewise
};

}  // namespace blockscale::gemm_detail
