#include "models/checkpoint/factors.h"

#include <cmath>
#include <cstring>

#include "blockscale/quantize.h"

namespace blockscale::models {

float nvfp4_factor(float amax, TensorScaleSense sense) {
  const float block[16] = {amax};
  const MatrixView matrix{block, Format::f32, 1, 16};
  QuantizeOptions options;
  options.threads = 1;
  const ScaledTensor quantized =
      quantize(matrix, Recipe::nvfp4, ScaleLayout::row_major, options, std::nullopt, sense);
  return *quantized.view().tensor_scale;
}

float fp8_scale(float amax, float amax_floor) {
  const MatrixView matrix{&amax, Format::f32, 1, 1};
  QuantizeOptions options;
  options.fp8_amax_floor = amax_floor;
  options.threads = 1;
  const ScaledTensor quantized =
      quantize(matrix, Recipe::fp8_tensor, ScaleLayout::row_major, options);
  return *static_cast<const float*>(quantized.view().scales);
}

float in_sense(float factor, TensorScaleSense from, TensorScaleSense to,
               const std::string& tensor) {
  if (from == to) return factor;
  const bool zero_divisor = factor == 0 && from == TensorScaleSense::divisor;
  if (!std::isfinite(factor) || factor < 0 || zero_divisor) {
    throw Error(ErrorCode::corrupt_file, tensor,
                "is " + std::to_string(factor) + ", must be finite and above 0");
  }
  return std::fmin(1.0f / factor, format_traits(Format::f32).max);
}

void check_not_negative(const void* scales, Format format, std::int64_t begin, std::int64_t count,
                        const std::string& tensor) {
  for (std::int64_t i = begin; i < begin + count; ++i) {
    float value = 0;
    if (format == Format::f32) {
      value = static_cast<const float*>(scales)[i];
    } else if (format == Format::ue4m3) {
      value = decode<Format::e4m3>(static_cast<const std::uint8_t*>(scales)[i]);
    }
    if (!(value < 0)) continue;
    throw Error(
        ErrorCode::corrupt_file, tensor,
        "scale " + std::to_string(i) + " is " + std::to_string(value) + ", must be at least 0");
  }
}

void convert_scales(const void* scales, Format from, Format to, std::int64_t begin,
                    std::int64_t end, const std::string& tensor, std::byte* out) {
  check_not_negative(scales, from, begin, end - begin, tensor);
  if (from == to) {
    const std::int64_t size = format_traits(from).bits / 8;
    std::memcpy(out, static_cast<const std::byte*>(scales) + begin * size,
                static_cast<std::size_t>((end - begin) * size));
    return;
  }
  for (std::int64_t i = begin; i < end; ++i) {
    const float value = from == Format::f32
                            ? static_cast<const float*>(scales)[i]
                            : decode(from, static_cast<const std::uint8_t*>(scales)[i]);
    if (to == Format::f32) {
      std::memcpy(out + 4 * (i - begin), &value, sizeof value);
      continue;
    }
    const std::uint32_t code = encode_ue8m0(value, ScaleRounding::toward_zero);
    const bool exact = std::isnan(value) || decode<Format::ue8m0>(code) == value;
    if (!exact) {
      throw Error(ErrorCode::corrupt_file, tensor,
                  "scale " + std::to_string(i) + " is " + std::to_string(value) +
                      ", must be a power of two as the configuration says");
    }
    out[i - begin] = static_cast<std::byte>(code);
  }
}

}  // namespace blockscale::models
