// Quantize and dequantize on the CPU. The pinned rules are in docs/numerics.md.
#pragma once

#include <limits>
#include <optional>
#include <variant>

#include "blockscale/error.h"
#include "blockscale/tensor.h"
#include "core/input_transform.h"

namespace blockscale {

/// Shared exponent of an MX block (OCP MX 1.0 and its relatives; numerics.md).
enum class MxScaleMode : std::uint8_t { floor, ceil, even, even_e2m1 };

/// Where the scales come from.
enum class ScaleSource : std::uint8_t {
  dynamic,  // from the data
  given,    // NVFP4: `out.tensor_scale` holds the tensor scale (in `out.sense`), block scales are
            // still taken from the data. fp8_tensor, fp8_row: `out.scales` holds the scales.
};

/// Which scale a block takes: MX and NVFP4 (docs/numerics.md, "Scales of least error"). CPU only.
enum class ScaleChoice : std::uint8_t {
  amax,      // the one that its largest magnitude asks for
  mse,       // the one of the least squared error
  weighted,  // the same, each squared error weighted by that of its column in `channel_weights`
};

/// Sums of the squared errors (weighted ones, if weights are given; with means what a row's errors
/// add up to, squared, too) of all blocks whose errors are finite: with the scales of the amax rule
/// (MX: of `ceil`), and with those that were chosen.
struct ScaleErrors {
  double amax = 0;
  double chosen = 0;
};

/// y = x.
struct Identity {};

/// y = x (1 + t) / 2, where t is tanh(sqrt(2 / pi) (x + 0.044715 x^3)) or erf(x / sqrt 2).
enum class GeluForm : std::uint8_t { tanh, erf };
struct Gelu {
  GeluForm form = GeluForm::tanh;
};

/// y = x / (1 + e^-x), SwiGLU without ups.
struct Silu {};

/// y = g / (1 + e^(-alpha g)) (u + up_shift), where g = min(gate, limit) and u is up clamped to
/// [-limit, limit]; NaN stays NaN. As it is here: gate / (1 + e^-gate) up. gpt-oss has a limit of
/// 7, an alpha of 1.702 and a shift of 1. x [rows, 2K] holds gate and up, y is [rows, K]. Runs of
/// `group` columns of gate and of up alternate in x.
///
/// Limit, alpha and shift may be others on the CPU, and behind products (gemm, grouped_gemm) on
/// CUDA devices too, whose quantizers take them as they are here.
struct Swiglu {
  GateOrder order = GateOrder::gate_first;
  std::int64_t group = 0;  // 0: K, so x is two halves; 1; or 64, which then divides K
  float limit = std::numeric_limits<float>::infinity();  // above 0
  float alpha = 1;                                       // of magnitude 2^-126 to 2^126
  float up_shift = 0;                                    // finite
};

/// y = x (1 + scale) + shift. Both are [groups, K] of f32, f16 or bf16, each with its own dtype and
/// stride. Groups are equal runs of the rows of all matrices, one after the other: row r of matrix
/// b belongs to group (b * x.rows + r) / (x.batch * x.rows / groups), and groups divides
/// x.batch * x.rows.
struct Modulate {
  MatrixView scale = {};
  MatrixView shift = {};
};

/// y = x / sqrt(mean of x^2 along the row + epsilon) weight, where weight is [1, K] of f32, f16 or
/// bf16, and epsilon finite and above 0.
struct RmsNorm {
  MatrixView weight = {};
  float epsilon = 1e-6f;
};

/// What is made of x on its way to the quantizer, in the same pass: y, in f32, and not rounded to a
/// narrower type before (docs/numerics.md, "Fused inputs"). In CUDA calls the matrices lie on the
/// device. Errors name a field as "options.input.weight". Trivially copyable.
using QuantizeInput = std::variant<Identity, Gelu, Silu, Swiglu, Modulate, RmsNorm>;

struct QuantizeOptions {
  MxScaleMode mx_scale_mode = MxScaleMode::ceil;
  ScaleSource scale_source = ScaleSource::dynamic;
  float fp8_amax_floor = 0.0f;  // FP8: a block's amax counts as at least this (DeepSeek: 1e-4)
  ScaleChoice scale_choice = ScaleChoice::amax;
  /// `weighted`: one for each column of the result, finite and at least 0; for weights of a layer
  /// the mean square of each input channel.
  const float* channel_weights = nullptr;
  /// `weighted`, MX recipes: the mean of each input channel, whose square is at most its weight, or
  /// null for zeros. Errors of a row that these means add up then count as what they add up to.
  const float* channel_means = nullptr;
  ScaleErrors* scale_errors = nullptr;  // `mse`, `weighted`: written if not null
  int threads = 0;                      // 0: all of the machine's
  QuantizeInput input = {};             // what is fused: `out` holds K columns of its result
};

/// Quantizes `x` into `out`, whose recipe, shape and layout say how. Every byte of `out` that its
/// layout covers is written (padding of swizzled layouts as zero). Bit-equal for any thread count.
/// Throws invalid_argument before anything is written.
void quantize(const MatrixView& x, const MutableScaledTensorView& out,
              const QuantizeOptions& options = {});

/// Quantizes into a new tensor. For NVFP4, `tensor_scale` (in `sense`) overrides the computed one.
ScaledTensor quantize(const MatrixView& x, Recipe recipe,
                      ScaleLayout layout = ScaleLayout::row_major,
                      const QuantizeOptions& options = {},
                      std::optional<float> tensor_scale = std::nullopt,
                      TensorScaleSense sense = TensorScaleSense::divisor);

/// Quantizes x [M, K] twice from one read: into `out_rows` [M, K], and its transpose into
/// `out_columns` [K, M], whose scales each cover 128 rows of x. Both are of the same recipe:
/// fp8_1x128, fp8_1x128_pow2 or fp8_1x128_ue8m0. Each result has the bytes that `quantize` gives
/// for that matrix. A fused input is computed once, and both are of its result.
void quantize_rows_and_columns(const MatrixView& x, const MutableScaledTensorView& out_rows,
                               const MutableScaledTensorView& out_columns,
                               const QuantizeOptions& options = {});

/// Values of `x`, rounded once (to nearest even) from their f32 value into `out`'s dtype.
void dequantize(const ScaledTensorView& x, const MutableMatrixView& out, int threads = 0);

/// Largest magnitude of each matrix of `x`: Inf reads as the largest finite f32, NaN is ignored.
/// `out` holds `x.batch` floats.
void absolute_maximum(const MatrixView& x, float* out, int threads = 0);

/// The same of what `input` makes of each matrix.
void absolute_maximum(const MatrixView& x, const QuantizeInput& input, float* out, int threads = 0);

/// NVFP4's tensor scale S for a largest magnitude: 2688 / amax, at most the largest finite f32; 1
/// if amax is 0.
float nvfp4_tensor_scale(float amax);

/// The same tensor scale as a multiplier (ModelOpt's weight_scale_2): amax / 2688, or 1 / S where S
/// is at its largest; 1 if amax is 0.
float nvfp4_tensor_multiplier(float amax);

}  // namespace blockscale
