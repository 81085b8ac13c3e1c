// Outputs for the tests of quantize_rows_and_columns, on the CPU, in the emulator and on a GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "blockscale/quantize.h"
#include "ops/quantize/test/support.h"

namespace blockscale::test {

/// An output with guards around it and gaps between its lines.
class GuardedOutput {
 public:
  GuardedOutput(Recipe recipe, ScaleLayout layout, std::int64_t rows, std::int64_t k,
                std::int64_t batch, bool strided)
      : values_(batch * rows * (k + 9)), scales_(batch * 4 * ((rows + 128) * (k + 512) / 32)) {
    view_.recipe = recipe;
    view_.rows = rows;
    view_.k = k;
    view_.batch = batch;
    view_.values = values_.data();
    view_.value_row_stride = strided ? k + 9 : 0;
    view_.scales = scales_.data();
    view_.layout = layout;
    const std::int64_t grid_rows = rows, grid_columns = (k + 127) / 128;
    if (strided && !is_swizzled(layout)) {
      view_.scale_leading_stride =
          (layout == ScaleLayout::row_major ? grid_columns : grid_rows) + 2;
    }
  }
  GuardedOutput(const GuardedOutput&) = delete;  // view() is of this one's memory
  GuardedOutput& operator=(const GuardedOutput&) = delete;

  const MutableScaledTensorView& view() const { return view_; }
  /// Guards included.
  const std::vector<std::uint8_t>& values() const { return values_.bytes(); }
  const std::vector<std::uint8_t>& scales() const { return scales_.bytes(); }
  void assign(const std::vector<std::uint8_t>& values, const std::vector<std::uint8_t>& scales) {
    values_.assign(values);
    scales_.assign(scales);
  }

 private:
  GuardedBytes values_, scales_;
  MutableScaledTensorView view_;
};

}  // namespace blockscale::test
