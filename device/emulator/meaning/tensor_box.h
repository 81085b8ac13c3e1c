// Which elements of a tensor a box covers, and where they lie: pure functions over a
// TensorMapDescription. PTX ISA "Tensors", "Tiled mode".
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/tensor_map.h"
#include "device/emulator/meaning/swizzle.h"

namespace blockscale::emulator::meaning {

/// What moves as one: a number of elements, their bytes in global memory, and those that they take
/// in shared memory, where a gap may follow them.
struct TensorUnit {
  uint32_t elements;
  uint32_t bytes;
  uint32_t shared_bytes;
};
constexpr TensorUnit tensor_unit(TensorMapElement element) {
  switch (element) {
    case TensorMapElement::u8: return {1, 1, 1};
    case TensorMapElement::u16:
    case TensorMapElement::f16:
    case TensorMapElement::bf16: return {1, 2, 2};
    case TensorMapElement::u32:
    case TensorMapElement::s32:
    case TensorMapElement::f32: return {1, 4, 4};
    case TensorMapElement::u64:
    case TensorMapElement::s64:
    case TensorMapElement::f64: return {1, 8, 8};
    case TensorMapElement::u4x16_packed: return {2, 1, 1};
    case TensorMapElement::u4x16_align16b: return {16, 8, 16};
    case TensorMapElement::u6x16_align16b: return {16, 12, 16};
  }
  return {1, 1, 1};
}
constexpr TensorUnit unit_of(const TensorMapDescription& map) {
  return tensor_unit(map.element);
}
constexpr bool has_gaps(const TensorMapDescription& map) {
  return unit_of(map).bytes != unit_of(map).shared_bytes;
}

/// Elements between those of the box along dimension i. Without interleaving dimension 0 has none.
constexpr uint32_t element_stride(const TensorMapDescription& map, uint32_t i) {
  return i == 0 ? 1 : map.element_strides[i];
}

/// Elements of the box along dimension i: its extent is stepped through by the element stride.
constexpr uint32_t box_elements(const TensorMapDescription& map, uint32_t i) {
  return (map.box[i] + element_stride(map, i) - 1) / element_stride(map, i);
}

/// Rows of the box: runs of elements along dimension 0.
constexpr uint32_t box_rows(const TensorMapDescription& map) {
  uint32_t rows = 1;
  for (uint32_t i = 1; i < map.rank; ++i) rows *= box_elements(map, i);
  return rows;
}

/// Units of a row of the box.
constexpr uint32_t row_units(const TensorMapDescription& map) {
  return box_elements(map, 0) / unit_of(map).elements;
}

/// Bytes from one row to the next in shared memory: with a swizzle its whole span.
constexpr uint32_t row_pitch(const TensorMapDescription& map) {
  return map.swizzle == TensorMapSwizzle::none ? row_units(map) * unit_of(map).shared_bytes
                                               : swizzle_span(map.swizzle);
}

/// Bytes of the box's elements without gaps, which is what a load completes on its mbarrier.
constexpr uint64_t box_bytes(const TensorMapDescription& map) {
  return uint64_t{box_rows(map)} * row_units(map) * unit_of(map).bytes;
}

/// Bytes of shared memory that the box extends over.
constexpr uint64_t box_extent(const TensorMapDescription& map) {
  return uint64_t{box_rows(map)} * row_pitch(map);
}

/// Units of the box along dimension 0 that lie side by side in global memory.
struct BoxRun {
  uint32_t shared_offset;  // of the first one from the start of the box, before the swizzle
  uint64_t global_offset;  // of it from the map's address; meaningless if not inside
  uint32_t units;
  bool inside;  // the tensor
};

/// A row of the tensor along dimension 0.
struct TensorRow {
  int64_t offset;  // of its first element from the map's address, in bytes
  bool inside;     // the tensor, in the other dimensions
};

/// Row r of the box that starts at `coordinates`.
constexpr TensorRow row_of_box(const TensorMapDescription& map, const int32_t* coordinates,
                               uint32_t r) {
  TensorRow row = {0, true};
  for (uint32_t i = 1; i < map.rank; ++i) {
    const int64_t position =
        coordinates[i] + int64_t{r % box_elements(map, i)} * element_stride(map, i);
    r /= box_elements(map, i);
    row.inside = row.inside && position >= 0 && position < static_cast<int64_t>(map.sizes[i]);
    row.offset += position * static_cast<int64_t>(map.strides[i - 1]);
  }
  return row;
}

/// Row r of a box of four, gathered from where coordinates 1 to 4 say. The tensor is a matrix.
constexpr TensorRow gathered_row(const TensorMapDescription& map, const int32_t* coordinates,
                                 uint32_t r) {
  const int64_t position = coordinates[1 + r];
  return {position * static_cast<int64_t>(map.strides[0]),
          position >= 0 && position < static_cast<int64_t>(map.sizes[1])};
}

/// visit(run) for each run of the box, in the order of shared memory. Its rows are row_at(r), from
/// element `column` on. All units of the box are visited once. Runs outside the tensor say so.
/// Columns, sizes and boxes are whole units along dimension 0.
template <class RowAt, class Visit>
void for_each_run(const TensorMapDescription& map, int32_t column, const RowAt& row_at,
                  const Visit& visit) {
  const TensorUnit unit = unit_of(map);
  const uint32_t row = row_units(map);
  const uint32_t rows = box_rows(map);
  const int64_t start = column / static_cast<int32_t>(unit.elements);
  for (uint32_t r = 0; r < rows; ++r) {
    const TensorRow of_tensor = row_at(r);
    const auto inside = [&](uint32_t u) {
      const int64_t position = start + int64_t{u};
      return of_tensor.inside && position >= 0 &&
             position < static_cast<int64_t>(map.sizes[0] / unit.elements);
    };
    for (uint32_t first = 0; first < row;) {
      uint32_t end = first + 1;
      while (end < row && inside(end) == inside(first)) ++end;
      const int64_t offset = of_tensor.offset + (start + int64_t{first}) * unit.bytes;
      visit(BoxRun{r * row_pitch(map) + first * unit.shared_bytes, static_cast<uint64_t>(offset),
                   end - first, inside(first)});
      first = end;
    }
  }
}

/// The bits of an element outside the tensor: its low bytes. The NaN is 0x7FF7 in each 16 bits.
constexpr uint64_t fill_bits(const TensorMapDescription& map) {
  return map.fill == TensorMapFill::zero ? 0 : 0x7FF77FF77FF77FF7;
}

}  // namespace blockscale::emulator::meaning
