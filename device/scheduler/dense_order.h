// In which order the tiles of a batch of matrices are computed: a pure function, for kernels and
// plans alike.
#pragma once

#include "core/config.h"
#include "core/divisor.h"
#include "device/scheduler/rows.h"
#include "device/scheduler/tile.h"

namespace blockscale {

/// Tiles that run at the same time share rows of A and of B in L2: they go down a band of
/// `band_rows` tile rows, then on to the next tile column. Sixteen blocks in a row run on one GPC
/// of a Hopper chip, and what they read at the same time L2 is asked for less often: four columns
/// of 4 rows have 8 operands, one of 16 has 17 (docs/log/gemm-sm90.md, versions 72 and 77).
struct DenseOrder {
  static constexpr bool kGroupsAreMatrices = true;
  static constexpr bool kIsKnownAtLaunch = true;
  static constexpr bool kGathersRows = false;
  using RowMap = SameRows;

  uint32_t tiles_m = 0;
  uint32_t tiles_n = 0;
  uint32_t tiles = 0;   // of all matrices, below 2^31
  Divisor matrix;       // tiles of one matrix
  Divisor height;       // tile rows of a whole band
  Divisor band;         // its tiles
  Divisor last_height;  // tile rows of the last band
  uint32_t rows = 0;    // of a matrix

  DenseOrder() = default;
  /// All are positive.
  BLOCKSCALE_HD constexpr DenseOrder(uint32_t m, uint32_t n, uint32_t batch, uint32_t band_rows,
                                     uint32_t matrix_rows)
      : tiles_m(m),
        tiles_n(n),
        tiles(m * n * batch),
        matrix(m * n),
        height(band_rows < m ? band_rows : m),
        band(height.divisor * n),
        last_height((m - 1) % height.divisor + 1),
        rows(matrix_rows) {}

  BLOCKSCALE_HD static constexpr RowMap row_map() { return {}; }
  BLOCKSCALE_HD static constexpr uint32_t matrix_of(const Tile& tile) { return tile.group; }
  template <uint32_t kRows>
  BLOCKSCALE_HD constexpr Tile tile(uint32_t index) const {
    const uint32_t batch = matrix.quotient(index), rest = index - batch * matrix.divisor;
    const uint32_t b = band.quotient(rest), place = rest - b * band.divisor;
    const uint32_t first = b * height.divisor;
    const Divisor own = first + height.divisor <= tiles_m ? height : last_height;
    const uint32_t n = own.quotient(place);
    return {batch, n, (first + place - n * own.divisor) * kRows, rows};
  }
};

}  // namespace blockscale
