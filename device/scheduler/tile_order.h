// In which order the tiles of a batch of matrices are computed: a pure function, for kernels and
// plans alike.
#pragma once

#include "core/config.h"
#include "core/divisor.h"

namespace blockscale {

struct Tile {
  uint32_t m;  // tile row
  uint32_t n;  // tile column
  uint32_t batch;
};

/// Tiles that run at the same time share rows of A and of B in L2: they go down a group of
/// `group_rows` tile rows, then on to the next tile column. Sixteen blocks in a row run on one GPC
/// of a Hopper chip, and what they read at the same time L2 is asked for less often: four columns
/// of 4 rows have 8 operands, one of 16 has 17 (docs/log/gemm-sm90.md, versions 72 and 77).
struct TileOrder {
  uint32_t tiles_m = 0;
  uint32_t tiles_n = 0;
  uint32_t tiles = 0;  // of all matrices, below 2^31
  Divisor matrix;      // tiles of one matrix
  Divisor rows;        // tile rows of a whole group
  Divisor group;       // tiles of a whole group
  Divisor last_rows;   // tile rows of the last group

  TileOrder() = default;
  /// All are positive.
  BLOCKSCALE_HD constexpr TileOrder(uint32_t m, uint32_t n, uint32_t batch, uint32_t group_rows)
      : tiles_m(m),
        tiles_n(n),
        tiles(m * n * batch),
        matrix(m * n),
        rows(group_rows < m ? group_rows : m),
        group(rows.divisor * n),
        last_rows((m - 1) % rows.divisor + 1) {}

  BLOCKSCALE_HD constexpr Tile operator()(uint32_t index) const {
    const uint32_t batch = matrix.quotient(index), rest = index - batch * matrix.divisor;
    const uint32_t g = group.quotient(rest), place = rest - g * group.divisor;
    const uint32_t first = g * rows.divisor;
    const Divisor height = first + rows.divisor <= tiles_m ? rows : last_rows;
    const uint32_t n = height.quotient(place);
    return {first + place - n * height.divisor, n, batch};
  }
};

}  // namespace blockscale
