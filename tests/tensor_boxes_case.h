// The kernel of tests/tensor_boxes.h over a whole matrix and beyond each of its edges.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "core/launch_shape.h"
#include "runtime/kernels/kernel_spec.h"
#include "tests/sources_with.h"
#include "tests/tensor_boxes.h"

namespace blockscale::test {

/// f32; rows lie 104 elements apart, and what is between them is -1, so that it cannot pass for
/// what fills a box.
struct TensorBoxesCase {
  static constexpr std::int32_t kRows = 35, kColumns = 100, kStride = 104;
  static constexpr std::int32_t kBoxRows = 8, kBoxColumns = 32;  // 128 bytes
  static constexpr std::int32_t kFirstRow = -3, kFirstColumn = -4;
  static constexpr LaunchShape kShape = {
      .grid = {4, 5}, .block = {64}, .dynamic_shared_bytes = kTensorBoxesSharedBytes};
  static constexpr std::size_t kOutWords = 4 * 5 * kBoxRows * kBoxColumns;

  TensorMapFill fill = TensorMapFill::zero;
  TensorMapSwizzle swizzle = TensorMapSwizzle::none;

  static std::vector<float> matrix() {
    std::vector<float> elements(kRows * kStride, -1);
    for (std::size_t i = 0; i < elements.size(); ++i) {
      if (i % kStride < kColumns) elements[i] = static_cast<float>(i + 1);
    }
    return elements;
  }

  TensorMapDescription description(const void* matrix) const {
    TensorMapDescription d;
    d.address = reinterpret_cast<std::uintptr_t>(matrix);
    d.rank = 2;
    d.element = TensorMapElement::f32;
    d.sizes[0] = kColumns;
    d.sizes[1] = kRows;
    d.strides[0] = kStride * sizeof(float);
    d.box[0] = kBoxColumns;
    d.box[1] = kBoxRows;
    d.element_strides[0] = d.element_strides[1] = 1;
    d.swizzle = swizzle;
    d.fill = fill;
    return d;
  }

  static TensorBoxesParams params(const TensorMap& map, void* out) {
    return {map, static_cast<std::uint32_t*>(out), kFirstColumn, kFirstRow, kBoxColumns, kBoxRows};
  }

  /// What the kernel leaves in `out`: each box once, with the swizzle that it has in shared memory.
  void expect(std::span<const std::uint32_t> out) const {
    ASSERT_EQ(out.size(), kOutWords);
    const std::vector<float> elements = matrix();
    std::size_t word = 0, outside = 0;
    for (std::int32_t box = 0; box < 4 * 5; ++box) {
      for (std::int32_t i = 0; i < kBoxRows * kBoxColumns; ++i, ++word) {
        const std::int32_t in_row = i % kBoxColumns, row_of_box = i / kBoxColumns;
        // 16-byte chunk c of row r of a box lies at chunk c ^ (r mod 8).
        const bool swizzled = swizzle == TensorMapSwizzle::bytes_128;
        const std::int32_t column_of_box = swizzled ? in_row ^ (row_of_box % 8 * 4) : in_row;
        const std::int32_t row = kFirstRow + box / 4 * kBoxRows + row_of_box;
        const std::int32_t column = kFirstColumn + box % 4 * kBoxColumns + column_of_box;
        float actual = 0;
        std::memcpy(&actual, &out[word], sizeof actual);
        const bool inside = row >= 0 && row < kRows && column >= 0 && column < kColumns;
        outside += inside ? 0 : 1;
        if (!inside && fill == TensorMapFill::nan) {
          ASSERT_TRUE(std::isnan(actual))
              << "row " << row << " column " << column << ": " << actual;
          continue;
        }
        const auto at = static_cast<std::size_t>(row * kStride + column);
        ASSERT_EQ(actual, inside ? elements[at] : 0.0f) << "row " << row << " column " << column;
      }
    }
    EXPECT_EQ(outside, kOutWords - kRows * kColumns);
  }
};

inline constexpr TensorBoxesCase kTensorBoxesCases[] = {
    {TensorMapFill::zero, TensorMapSwizzle::none},
    {TensorMapFill::nan, TensorMapSwizzle::none},
    {TensorMapFill::zero, TensorMapSwizzle::bytes_128},
    {TensorMapFill::nan, TensorMapSwizzle::bytes_128},
};

inline runtime::SourceTree tensor_boxes_sources() {
  return sources_with("tests/tensor_boxes.h");
}

inline runtime::KernelSpec tensor_boxes_spec() {
  return runtime::with_parameters<TensorBoxesParams>({.name = "tensor_boxes",
                                                      .header = "tests/tensor_boxes.h",
                                                      .call = "blockscale::test::copy_box<64>",
                                                      .threads = 64},
                                                     "blockscale::test::TensorBoxesParams");
}

}  // namespace blockscale::test
