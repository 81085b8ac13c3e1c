// D = gate * (alpha * A B^T + bias) + beta * C, A and B in any supported pair of recipes.
#pragma once

#include <optional>
#include <string>

#include "blockscale/error.h"
#include "blockscale/quantize.h"
#include "blockscale/tensor.h"

namespace blockscale {

/// D on its way to the next product: what `quantize` makes of it, as an f32 matrix, with `options`.
struct QuantizedResult {
  /// [M, N], with Swiglu [M, N / 2], in fp8_1x128 (with any kind of scale), fp8_row, mxfp8_e4m3 or
  /// nvfp4.
  MutableScaledTensorView out;
  /// The input is Identity, Gelu, Silu or Swiglu, whose x is D: B's rows are gates and ups. nvfp4
  /// is given its tensor scale. `threads` is not looked at.
  QuantizeOptions options = {};
};

/// A is [M, K], B is [N, K], both with k contiguous; D and C are [M, N], D [M, N / 2] behind
/// Swiglu. Batches of A, B, C and D are equal, or 1 for an operand that every matrix of the batch
/// shares (not D). D may alias C when both have the same dtype and strides; no other overlap is
/// allowed.
struct GemmArguments {
  ScaledTensorView a;
  ScaledTensorView b;
  MutableMatrixView d;  // f32, f16 or bf16
  float alpha = 1.0f;
  const float* alpha_factor = nullptr;  // one number where the data is, times alpha; null: 1
  float beta = 0.0f;                    // with beta == 0, C is not read
  MatrixView c;                         // read when beta != 0
  const void* bias = nullptr;           // [N], added to each row; null: none
  Format bias_dtype = Format::f32;
  /// [N], a factor of each column, bias in it, but not C; null: 1. Not with `quantized`.
  const void* gate = nullptr;
  Format gate_dtype = Format::f32;
  /// Identity, Gelu, Silu or Swiglu of all that in f32, before it is rounded to d's dtype; B's rows
  /// are gates and ups, as columns of Swiglu's x are. Not with `quantized`, whose options have an
  /// input of their own.
  QuantizeInput transform = {};
  /// The bits of a row of D depend neither on M nor on the other rows of A. May cost time.
  bool batch_invariant = false;
  /// FP8's tensor cores may add up all of K, where otherwise f32 adds up their sums of 128: faster,
  /// and less exact (docs/numerics.md, "Error bound"). Hopper does so with A in fp8_row or
  /// fp8_tensor beside B in mxfp4; everything else is as it is without.
  bool fast_accumulation = false;
  /// In place of `d`, which then is not looked at: D is quantized and not stored otherwise.
  std::optional<QuantizedResult> quantized = {};
};

struct GemmOptions {
  int threads = 0;  // 0: all of the machine's
  /// Memory for all that a call would take from the heap, aligned to 64 bytes; null: the heap.
  void* workspace = nullptr;
  std::int64_t workspace_bytes = 0;  // at least gemm_workspace_bytes
};

/// Whether `a` x `b` is a pair that gemm computes (docs/numerics.md lists them).
bool gemm_supports(Recipe a, Recipe b);

/// Bit-equal from run to run and for any number of threads. The error of each element is bounded by
/// docs/numerics.md. Throws invalid_argument or unsupported before D is touched.
void gemm(const GemmArguments& arguments, const GemmOptions& options = {});

/// Bytes of workspace that gemm needs for these arguments with as many threads (0: all), on this
/// machine. Throws as gemm does; reads no element.
std::int64_t gemm_workspace_bytes(const GemmArguments& arguments, int threads = 0);

/// How gemm divides each matrix of the batch, and the instruction set that it runs on here, as text
/// of one line. (With as many matrices as threads, whole matrices are what threads do.) Throws as
/// gemm does; reads and writes no element.
std::string describe_gemm(const GemmArguments& arguments);

/// Errors of D in units of 2^-24 (|gate| (|alpha| sum_k |a||b| + |bias|) + |beta C|), what is above
/// half an ulp of D's dtype: the c of docs/numerics.md, "Error bound".
struct GemmCheck {
  std::int64_t elements = 0;  // that were checked
  double largest_error = 0;
  /// No product is further off, whatever its operands: an error above it is a defect.
  double proven_error = 0;
  /// The largest error of an element as a part of what is usual for it. Normal and positive data of
  /// realistic spread stay below 1; most wrong scales and dropped blocks of K do not.
  double of_usual = 0;

  bool passed() const { return of_usual <= 1 && largest_error <= proven_error; }
};

/// Compares D, as gemm left it, with a float64 reference: all of its elements, or a fixed random
/// choice of `samples` of them. Slow, and made to be right: no code is shared with gemm. C must not
/// be D. Throws as gemm does, for fewer than one sample, and unsupported with a
/// transform or `quantized`.
GemmCheck check_gemm(const GemmArguments& arguments, std::int64_t samples = 1024);

}  // namespace blockscale
