// A tensor of elements of 4 or 6 bits, for programs that copy boxes or rows of it to shared memory.
#pragma once

#include <vector>

#include "device/emulator/test/planted_copy_test_support.h"
#include "device/ptx/sm100/ldmatrix.h"
#include "device/ptx/sm100/tensor_copy.h"
#include "device/ptx/tensor_copy.h"

namespace blockscale::emulator {

/// Rows of 256 elements; a box is 16 rows of 128.
struct alignas(128) NarrowTensor {
  static constexpr uint32_t kRows = 24, kColumns = 256, kBoxRows = 16, kBoxColumns = 128;

  uint8_t bytes[kRows * kColumns] = {};
  TensorMapElement element;
  uint32_t bits;

  explicit NarrowTensor(TensorMapElement kind)
      : element(kind), bits(kind == TensorMapElement::u6x16_align16b ? 6 : 4) {
    for (uint32_t i = 0; i < kRows * kColumns * bits / 8; ++i) {
      bytes[i] = static_cast<uint8_t>((i * 2654435761u) >> 24);
    }
  }

  uint32_t row_bytes() const { return kColumns * bits / 8; }
  uint32_t box_bytes() const { return kBoxRows * kBoxColumns * bits / 8; }

  /// 0 outside.
  uint32_t at(uint32_t row, uint32_t column) const {
    uint32_t value = 0;
    for (uint32_t i = 0; i < bits && row < kRows; ++i) {
      const uint32_t bit = column * bits + i;
      value |= (bytes[row * row_bytes() + bit / 8] >> bit % 8 & 1u) << i;
    }
    return value;
  }

  TensorMapDescription description(TensorMapSwizzle swizzle = TensorMapSwizzle::none) const {
    TensorMapDescription d;
    d.address = reinterpret_cast<uint64_t>(bytes);
    d.sizes[0] = kColumns;
    d.sizes[1] = kRows;
    d.strides[0] = row_bytes();
    d.box[0] = kBoxColumns;
    d.box[1] = kBoxRows;
    d.element_strides[0] = d.element_strides[1] = 1;
    d.rank = 2;
    d.element = element;
    d.swizzle = swizzle;
    return d;
  }

  std::vector<Buffer> buffers() const {
    return {buffer("tensor", bytes, kRows * row_bytes(), BufferUse::input)};
  }
};

/// One warp loads the box at (column, row) to stage(0), with so many bytes expected, and waits.
inline void load_box(const TensorMap& map, int32_t column, int32_t row, uint32_t expected,
                     SourceLocation at = SourceLocation::current()) {
  init_barriers(1);
  if (ptx::tid_x() == 0) {
    ptx::mbarrier_arrive_expect_tx(full(), expected);
    ptx::cp_async_bulk_tensor_shared_global<2>(stage(0), &map, {{column, row}}, full(), at);
  }
  device::mbarrier_wait(full(), 0);
}

/// The same of four rows of a box's columns.
inline void load_rows(const TensorMap& map, const int32_t (&rows)[4], uint32_t expected,
                      SourceLocation at = SourceLocation::current()) {
  init_barriers(1);
  if (ptx::tid_x() == 0) {
    ptx::mbarrier_arrive_expect_tx(full(), expected);
    ptx::cp_async_bulk_tensor_shared_global_gather4(stage(0), &map, 0, rows, full(), at);
  }
  device::mbarrier_wait(full(), 0, at);
}

}  // namespace blockscale::emulator
