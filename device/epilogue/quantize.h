// What a product's results become where a next product takes them: codes and scales. What an
// epilogue that quantizes is launched with, beside LinearEpilogue.
#pragma once

#include "core/activation_tail.h"
#include "core/format.h"
#include "device/encode/scale_matrix.h"

namespace blockscale {

/// What comes before codes: y of D's elements x, as a quantizer's fused input has it.
enum class Activation : uint8_t {
  none,
  gelu,
  swiglu,  // D's columns are gates and ups: y has half as many
};

/// Elements and blocks of the recipes that an epilogue knows, by their rule.
BLOCKSCALE_HD constexpr Format epilogue_element(ScaleRule rule) {
  return rule == ScaleRule::nvfp4 ? Format::e2m1 : Format::e4m3;
}
BLOCKSCALE_HD constexpr uint32_t log2_epilogue_block(ScaleRule rule) {
  return rule == ScaleRule::nvfp4 ? 4 : rule == ScaleRule::mx ? 5 : 7;
}

/// Columns of y that a warp quantizes at a time: whole blocks of every rule.
inline constexpr int kQuantizedColumns = 128;

struct QuantizingEpilogue {
  Activation activation = Activation::none;
  ScaleRule rule = ScaleRule::fp8;
  math::GeluTail gelu = {};
  uint32_t columns = 0;  // of y
  uint8_t* values = nullptr;
  int64_t value_row_stride = 0;  // bytes
  int64_t value_batch_stride = 0;
  bool vectors = false;  // each row of values starts at a multiple of 16 bytes
  ScaleMatrix scales = {};
  int64_t scale_step_8 = 0;  // from a scale to that 8 rows below, of the same 16
  bool has_padding = false;  // the scale layout has more rows or columns than there are blocks
  ScaleOptions options = {};
  const float* tensor_scale = nullptr;  // nvfp4; null: 1
  int64_t tensor_scale_stride = 0;      // between matrices
  bool is_multiplier = false;           // it is stored as 1 / S
};

}  // namespace blockscale
