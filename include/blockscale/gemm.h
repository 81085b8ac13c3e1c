// D = alpha * A B^T + beta * C + bias, A and B in any supported pair of recipes.
#pragma once

#include "blockscale/error.h"
#include "blockscale/tensor.h"

namespace blockscale {

/// A is [M, K], B is [N, K], both with k contiguous; D and C are [M, N]. Batches of A, B, C and D
/// are equal, or 1 for an operand that every matrix of the batch shares (not D). D may alias C when
/// both have the same dtype and strides; no other overlap is allowed.
struct GemmArguments {
  ScaledTensorView a;
  ScaledTensorView b;
  MutableMatrixView d;  // f32, f16 or bf16
  float alpha = 1.0f;
  float beta = 0.0f;           // with beta == 0, C is not read
  MatrixView c;                // read when beta != 0
  const void* bias = nullptr;  // [N], added to each row; null: none
  Format bias_dtype = Format::f32;
};

struct GemmOptions {
  int threads = 0;  // 0: all of the machine's
};

/// Whether `a` x `b` is a pair that gemm computes (docs/numerics.md lists them).
bool gemm_supports(Recipe a, Recipe b);

/// Bit-equal from run to run and for any number of threads. The error of each element is bounded by
/// docs/numerics.md. Throws invalid_argument or unsupported before D is touched.
void gemm(const GemmArguments& arguments, const GemmOptions& options = {});

}  // namespace blockscale
