// Scales that a launch has left in mn_major, put where they belong in row_major by thread blocks of
// the launch behind it.
//
// A warp takes 16 rows x 32 columns of the grid at a time, a lane 4 x 4 of them: it reads four rows
// of each of its columns at once, and stores four columns of each of its rows. So of f32 scales the
// warp reads whole sectors, and stores whole lines of 32.
#pragma once

#include "device/kernel.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/special_registers.h"
#include "device/vector.h"
#include "ops/quantize/rows_and_columns_sm90.h"

namespace blockscale::quantize_sm90 {

/// What a thread block of kThreads moves, one of move.blocks: a thread several squares below each
/// other.
template <class Scale, uint32_t kThreads>
class ScaleMover {
  using Four = device::Vector<Scale, 4>;
  static constexpr uint32_t kSquaresAcross = kMovedColumns / 4;
  static constexpr uint32_t kStep = 32 / kSquaresAcross * 4;       // rows of a warp at once
  static constexpr uint32_t kRows = kMovedRows / (kThreads / 32);  // of a warp
  static constexpr uint32_t kSquares = kRows / kStep;              // of a thread
  static_assert(kSquares * kStep == kRows);

 public:
  BLOCKSCALE_DEVICE ScaleMover(const ScaleMove& move, uint32_t turn) : move_(move) {
    const uint32_t matrix = move.per_matrix.quotient(turn);
    const uint32_t in_matrix = move.per_matrix.remainder(turn);
    const uint32_t lane = ptx::tid_x() % 32;
    row_ = move.across.quotient(in_matrix) * kMovedRows + ptx::tid_x() / 32 * kRows +
           lane / kSquaresAcross * 4;
    column_ = move.across.remainder(in_matrix) * kMovedColumns + lane % kSquaresAcross * 4;
    from_ = reinterpret_cast<const Scale*>(move.from) + matrix * move.from_batch_stride +
            column_ * move.from_leading_stride;
    to_ = reinterpret_cast<Scale*>(move.to) + matrix * move.to_batch_stride + column_;
  }

  BLOCKSCALE_DEVICE void move() const {
    if (column_ + 4 > move_.columns) return move_one_by_one();
    Four held[kSquares][4];
    BLOCKSCALE_UNROLL
    for (uint32_t s = 0; s < kSquares; ++s) load(row_ + s * kStep, held[s]);
    BLOCKSCALE_UNROLL
    for (uint32_t s = 0; s < kSquares; ++s) store(row_ + s * kStep, held[s]);
  }

 private:
  /// Four rows of each of four columns.
  BLOCKSCALE_DEVICE void load(uint32_t row, Four (&columns)[4]) const {
    if (row >= move_.rows) return;
    BLOCKSCALE_UNROLL
    for (uint32_t j = 0; j < 4; ++j) {
      columns[j] = ptx::ld_global(
          reinterpret_cast<const Four*>(from_ + j * move_.from_leading_stride + row));
    }
  }
  BLOCKSCALE_DEVICE void store(uint32_t row, const Four (&columns)[4]) const {
    if (row >= move_.rows) return;
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      const Four of_row = {
          {columns[0].at[i], columns[1].at[i], columns[2].at[i], columns[3].at[i]}};
      ptx::st_global(reinterpret_cast<Four*>(to_ + (row + i) * move_.to_leading_stride), of_row);
    }
  }

  /// Up to three columns.
  BLOCKSCALE_DEVICE void move_one_by_one() const {
    BLOCKSCALE_NO_UNROLL
    for (uint32_t i = 0; i < kSquares * 4; ++i) {
      const uint32_t row = row_ + i / 4 * kStep + i % 4;
      if (row >= move_.rows) return;
      BLOCKSCALE_NO_UNROLL
      for (uint32_t j = 0; column_ + j < move_.columns; ++j) {
        ptx::st_global(to_ + row * move_.to_leading_stride + j,
                       ptx::ld_global(from_ + j * move_.from_leading_stride + row));
      }
    }
  }

  const ScaleMove& move_;
  uint32_t row_;
  uint32_t column_;
  const Scale* from_;
  Scale* to_;
};

template <uint32_t kThreads>
BLOCKSCALE_DEVICE void move_scales(const RowsAndColumnsParams& p, uint32_t turn) {
  ptx::griddepcontrol_wait();
  // The next one overwrites what the launch before this one has moved.
  if (p.rows.lets_next_start) ptx::griddepcontrol_launch_dependents();
  const bool of_rows = turn < p.row_scales.blocks;
  const ScaleMove& move = of_rows ? p.row_scales : p.column_scales;
  if (!of_rows) turn -= p.row_scales.blocks;
  if (move.bytes) {
    ScaleMover<uint8_t, kThreads>(move, turn).move();
  } else {
    ScaleMover<uint32_t, kThreads>(move, turn).move();
  }
}

}  // namespace blockscale::quantize_sm90
