// Which bytes a view covers, and whether two views share one. For checks before anything is
// written; views are resolved (blockscale/tensor.h).
#pragma once

#include <cstdint>

#include "blockscale/tensor.h"

namespace blockscale {

/// Intervals of memory in ascending order: `lines` of `bytes` each, `line_stride` apart, in
/// `batch` groups `batch_stride` apart. Strides count bytes.
struct MemoryLines {
  std::uintptr_t begin = 0;
  std::int64_t bytes = 0;
  std::int64_t lines = 0;
  std::int64_t line_stride = 0;
  std::int64_t batch = 0;
  std::int64_t batch_stride = 0;
};

MemoryLines lines_of(const MatrixView& view);
/// `bytes` in one piece.
MemoryLines line_of(const void* data, std::int64_t bytes);
MemoryLines values_of(const ScaledTensorView& view);
/// Every byte that the layout covers; gaps between leading strides are not.
MemoryLines scales_of(const ScaledTensorView& view);
MemoryLines tensor_scales_of(const ScaledTensorView& view);

/// Bytes from the first to the last; 0 where there are none.
std::int64_t extent_of(const MemoryLines& lines);

/// Whether the two share a byte. Interleaved lines that do not touch (values and scales in one
/// record, two halves of a row) do not overlap.
bool overlap(const MemoryLines& x, const MemoryLines& y);

}  // namespace blockscale
