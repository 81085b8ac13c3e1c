// Large inputs with scales of row_major are quantised in parts, one launch for each.
//
// In row_major the scales of a tile lie a row of their grid apart, 2 x 128 of them in as many
// sectors, and storing them costs 5 % of the time. So a launch leaves those of its part in the
// workspace, in mn_major, and thread blocks of the next one move them, whole lines at a time, while
// others quantise the next part. The last part's scales go where they belong at once; it lasts
// about as long as the launch before it takes to end.
//
// Tiles of a launch behind the first wait for nothing: the first launch lets the next one start
// when all of its thread blocks have waited for who wrote x. Those that move scales wait for the
// launch before, so that a launch ends after all before it, and only then let the next one start:
// when launch i begins, launch i - 2 has ended, and what launch i - 3 has left has been moved. So
// there are three places for scales, in turns. Every launch behind the first has scales to move.
#pragma once

#include <cstdint>

#include "ops/quantize/rows_and_columns_sm90.h"
#include "ops/quantize/validate.h"

namespace blockscale::quantize_detail {

/// Parts of x that follow each other along one axis.
struct RowsAndColumnsParts {
  enum class Axis : std::uint8_t { matrices, rows, columns };

  Axis axis = Axis::rows;
  std::int64_t size = 0;    // of x along the axis
  std::int64_t staged = 0;  // the same of all parts but the last one
  std::int64_t each = 0;    // of each of these; the last of them may have less
  int count = 1;            // of parts

  std::int64_t begin(int part) const;
  std::int64_t end(int part) const { return begin(part + 1); }
};

/// How x is divided: not at all where that does not pay, where scales cannot be moved four at a
/// time, or where a batch has few matrices. `a` is validated.
RowsAndColumnsParts parts_of(const RowsAndColumnsArguments& a, std::int64_t multiprocessors);

/// The problem that is elements [begin, end) of `a` along an axis, multiples of a tile but for the
/// last end.
RowsAndColumnsArguments part_of(const RowsAndColumnsArguments& a, RowsAndColumnsParts::Axis axis,
                                std::int64_t begin, std::int64_t end);

/// `out` with its scales in mn_major at `scales`.
MutableScaledTensorView with_staged_scales(const MutableScaledTensorView& out, void* scales);
/// Bytes of these, a multiple of 256.
std::int64_t staged_scale_bytes(const MutableScaledTensorView& out);

/// What moves the scales of a tensor to those of another, in row_major, of the same shape.
ScaleMove move_of_scales(const MutableScaledTensorView& from, const MutableScaledTensorView& to);

}  // namespace blockscale::quantize_detail
