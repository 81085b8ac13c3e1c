// Quantise and dequantise on the CPU. The pinned rules are in docs/numerics.md.
#pragma once

#include <optional>

#include "blockscale/error.h"
#include "blockscale/tensor.h"

namespace blockscale {

/// Shared exponent of an MX block (OCP MX 1.0 and its relatives; numerics.md).
enum class MxScaleMode : std::uint8_t { floor, ceil, even };

/// Where the scales come from.
enum class ScaleSource : std::uint8_t {
  dynamic,  // from the data
  given,    // NVFP4: `out.tensor_scale` holds the tensor scale (in `out.sense`), block scales are
            // still taken from the data. fp8_tensor, fp8_row: `out.scales` holds the scales.
};

struct QuantizeOptions {
  MxScaleMode mx_scale_mode = MxScaleMode::ceil;
  ScaleSource scale_source = ScaleSource::dynamic;
  float fp8_amax_floor = 0.0f;  // FP8: a block's amax counts as at least this (DeepSeek: 1e-4)
  int threads = 0;              // 0: all of the machine's
};

/// Quantises `x` into `out`, whose recipe, shape and layout say how. Every byte of `out` that its
/// layout covers is written (padding of swizzled layouts as zero). Bit-equal for any thread count.
/// Throws invalid_argument before anything is written.
void quantize(const MatrixView& x, const MutableScaledTensorView& out,
              const QuantizeOptions& options = {});

/// Quantises into a new tensor. For NVFP4, `tensor_scale` (in `sense`) overrides the computed one.
ScaledTensor quantize(const MatrixView& x, Recipe recipe,
                      ScaleLayout layout = ScaleLayout::row_major,
                      const QuantizeOptions& options = {},
                      std::optional<float> tensor_scale = std::nullopt,
                      TensorScaleSense sense = TensorScaleSense::divisor);

/// Values of `x`, rounded once (to nearest even) from their f32 value into `out`'s dtype.
void dequantize(const ScaledTensorView& x, const MutableMatrixView& out, int threads = 0);

/// Largest magnitude of each matrix of `x`: Inf reads as the largest finite f32, NaN is ignored.
/// `out` holds `x.batch` floats.
void absolute_maximum(const MatrixView& x, float* out, int threads = 0);

/// NVFP4's tensor scale S for a largest magnitude: 2688 / amax, at most the largest finite f32; 1
/// if amax is 0.
float nvfp4_tensor_scale(float amax);

/// The same tensor scale as a multiplier (ModelOpt's weight_scale_2): amax / 2688, or 1 / S where S
/// is at its largest; 1 if amax is 0.
float nvfp4_tensor_multiplier(float amax);

}  // namespace blockscale
