// What a product's results become where a next product takes them: codes and scales. What an
// epilogue that quantizes is launched with, beside LinearEpilogue.
#pragma once

#include "core/activation_tail.h"
#include "core/format.h"
#include "core/input_transform.h"
#include "device/encode/scale_matrix.h"

namespace blockscale {

/// What comes before codes: y of D's elements x, as a quantizer's fused input has it.
enum class Activation : uint32_t {
  none,
  gelu,
  swiglu,  // D's columns are gates and ups: y has half as many
  clamped_swiglu,
};

BLOCKSCALE_HD constexpr bool is_gated(Activation activation) {
  return activation >= Activation::swiglu;
}

/// Elements and blocks of the recipes that an epilogue knows, by their rule.
BLOCKSCALE_HD constexpr Format epilogue_element(ScaleRule rule) {
  return rule == ScaleRule::nvfp4 ? Format::e2m1 : Format::e4m3;
}
BLOCKSCALE_HD constexpr uint32_t log2_epilogue_block(ScaleRule rule) {
  return rule == ScaleRule::nvfp4 ? 4 : rule == ScaleRule::mx ? 5 : 7;
}

/// Columns of y that a warp quantizes at a time: whole blocks of every rule.
inline constexpr int kQuantizedColumns = 128;

/// How scales lie in any layout: what is between that of a row and of the one so many below, within
/// 32, 16 or 8 rows of them, and between columns, within four; in scales.
struct ScaleSteps {
  int64_t rows_128, rows_32, rows_16, rows_8, rows_1;
  int64_t columns_4, columns_1;

  BLOCKSCALE_HD static constexpr ScaleSteps of(ScaleLayout layout, int64_t leading) {
    const auto at = [=](int64_t i, int64_t j) { return scale_offset(layout, i, j, leading); };
    return {at(128, 0), at(32, 0), at(16, 0), at(8, 0), at(1, 0), at(0, 4), at(0, 1)};
  }
  BLOCKSCALE_HD constexpr int64_t offset(uint32_t row, uint32_t column) const {
    return (row >> 7) * rows_128 + (row >> 5 & 3) * rows_32 + (row >> 4 & 1) * rows_16 +
           (row >> 3 & 1) * rows_8 + (row & 7) * rows_1 + (column >> 2) * columns_4 +
           (column & 3) * columns_1;
  }
};

struct QuantizingEpilogue {
  bool takes_sums = false;  // y is the sums: nothing is added or activated before
  Activation activation = Activation::none;
  ScaleRule rule = ScaleRule::fp8;
  math::GeluTail gelu = {};
  SwigluNumbers swiglu = {};  // clamped_swiglu
  uint32_t columns = 0;       // of y
  uint8_t* values = nullptr;
  int64_t value_row_stride = 0;  // bytes
  int64_t value_batch_stride = 0;
  bool vectors = false;  // each row of values starts and ends at a multiple of 16 bytes
  ScaleMatrix scales = {};
  ScaleSteps scale_steps = {};
  bool has_padding = false;  // the scale layout has more rows or columns than there are blocks
  ScaleOptions options = {};
  const float* tensor_scale = nullptr;  // nvfp4; null: 1
  int64_t tensor_scale_stride = 0;      // between matrices
  bool is_multiplier = false;           // it is stored as 1 / S
};

}  // namespace blockscale
