// What kernels of products with weights in FP4 are launched with.
#pragma once

#include "core/divisor.h"
#include "device/epilogue/linear.h"
#include "ops/gemm/kernels/fp4_config.h"
#include "ops/gemm/kernels/params.h"

namespace blockscale {

struct Fp4GemmParams {
  const uint8_t* a = nullptr;  // rows of both begin at multiples of 16 bytes
  const uint8_t* b = nullptr;
  int64_t a_row_stride = 0, a_batch_stride = 0;  // bytes
  int64_t b_row_stride = 0, b_batch_stride = 0;
  bool is_f16 = false;   // A, of a kernel for bf16
  bool is_e5m2 = false;  // B, of a kernel for mxfp8_e4m3
  GemmScales a_scales;   // where A is in FP8
  /// Of B. Those of four neighbouring blocks of K lie side by side, and those of a piece of NVFP4
  /// begin at a multiple of their size.
  GemmScales scales;
  TensorScale tensor_scale;  // of B
  LinearEpilogue epilogue;
  uint32_t pieces = 0;        // of a row of B: K is as many times piece_k()
  uint32_t block_chunks = 0;  // of each block that divides K, but the last ones
  uint32_t blocks_k = 1;      // blocks of a cluster, all of which divide K
  uint32_t warps_k = 1;       // of a block, that divide its part of K
  uint32_t block_tiles = 1;   // of B: so many times warps_k warps are a block
  uint32_t tiles = 0;         // of kFp4TileRows rows of B
  Divisor row_loads;          // of 16 bytes, of what shared memory has at a time of a row of A
};

}  // namespace blockscale
