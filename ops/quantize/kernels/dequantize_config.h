// The finite list of dequantize's kernels, and what they are launched with.
//
// Compiled by the host, NVRTC and the emulator alike. A kernel is specialised on the element and
// the type of its output; the recipe's blocks, scale format and layout are run-time values.
#pragma once

#include "core/config.h"
#include "core/divisor.h"
#include "core/format.h"
#include "core/scale_layout.h"
#include "device/conversion_loss.h"
#include "ops/quantize/kernels/config.h"

namespace blockscale {

struct DequantizeConfig {
  Format element = Format::e4m3;
  Format output = Format::bf16;
  int chunk = 16;  // elements of a thread; blocks are multiples of it, or whole rows
  int threads = 256;
  int min_blocks = 4;

  friend BLOCKSCALE_HD constexpr bool operator==(const DequantizeConfig&,
                                                 const DequantizeConfig&) = default;
};

/// How a stored tensor scale enters a scale.
enum class TensorScaleUse : uint8_t { none, multiply, divide };

struct DequantizeParams {
  uint32_t rows = 0;
  uint32_t k = 0;  // both are below 2^30
  TileGrid grid = {};

  const uint8_t* values = nullptr;
  int64_t value_row_stride = 0;  // bytes
  int64_t value_batch_stride = 0;
  bool value_vectors = false;  // each chunk's codes start at a multiple of code_store_bytes

  const uint8_t* scales = nullptr;  // null: plain
  Format scale_format = Format::f32;
  ScaleLayout layout = ScaleLayout::row_major;
  int64_t scale_leading_stride = 0;  // scales
  int64_t scale_batch_stride = 0;
  Divisor block_rows = {};
  Divisor block_k = {};
  const float* tensor_scale = nullptr;
  int64_t tensor_scale_stride = 0;
  TensorScaleUse tensor_scale_use = TensorScaleUse::none;

  uint8_t* out = nullptr;
  int64_t out_row_stride = 0;  // bytes
  int64_t out_batch_stride = 0;
  bool out_vectors = false;  // each row starts at a multiple of 16 bytes

  /// Of output in bf16 and scales that are powers of two: where an element times its scale that
  /// bf16 lacks is reported. Null: nowhere.
  ConversionLoss* loss = nullptr;
};

struct DequantizeKernelList {
  static constexpr int kCapacity = 24;
  DequantizeConfig at[kCapacity] = {};
  int count = 0;

  BLOCKSCALE_HD constexpr const DequantizeConfig& operator[](int i) const { return at[i]; }
};

namespace detail {

inline constexpr Format kDequantizeElements[] = {Format::e2m1, Format::e2m3, Format::e3m2,
                                                 Format::e4m3, Format::e5m2, Format::bf16,
                                                 Format::f16,  Format::f32};

BLOCKSCALE_HD constexpr DequantizeKernelList make_dequantize_kernels() {
  DequantizeKernelList list;
  for (const Format output : kQuantizeInputs) {
    for (const Format element : kDequantizeElements) {
      list.at[list.count++] = {element, output};
    }
  }
  return list;
}

}  // namespace detail

inline constexpr DequantizeKernelList kDequantizeKernels = detail::make_dequantize_kernels();

}  // namespace blockscale
