// Tensor scales and scales of other formats: the few numbers of a weight that are converted alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "blockscale/tensor.h"

namespace blockscale::models {

/// The tensor scale that NVFP4 data of this largest magnitude gets, in `sense`; also that of
/// calibrated activations. By the quantizer's own rule.
float nvfp4_factor(float amax, TensorScaleSense sense);

/// The scale that FP8 data of this largest magnitude gets. By the quantizer's own rule.
float fp8_scale(float amax, float amax_floor);

/// A stored factor in the other sense (or the same), rounded once and at most the largest finite
/// f32. Throws corrupt_file naming `tensor` if it is NaN, infinite, negative, or a divisor of 0.
float in_sense(float factor, TensorScaleSense from, TensorScaleSense to, const std::string& tensor);

/// Throws corrupt_file naming `tensor` if one of `count` block scales from `begin` on is negative:
/// ue4m3 has no sign, where other readers see one. NaN and infinity are the values' affair.
void check_not_negative(const void* scales, Format format, std::int64_t begin, std::int64_t count,
                        const std::string& tensor);

/// Scales [begin, end) stored as `from`, as bytes of `to`, exactly. Formats are equal, or f32 and
/// ue8m0.
/// Throws corrupt_file naming `tensor` for a scale that `to` cannot hold.
void convert_scales(const void* scales, Format from, Format to, std::int64_t begin,
                    std::int64_t end, const std::string& tensor, std::byte* out);

}  // namespace blockscale::models
