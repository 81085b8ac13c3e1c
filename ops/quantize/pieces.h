// How a tensor is cut into pieces of parallel work.
//
// A piece is a rectangle of whole blocks (but at the right and lower edge), so that what is done to
// it needs nothing from another; it is small enough to stay in a core's cache while its maxima,
// scales and codes are done one after the other.
#pragma once

#include <algorithm>
#include <cstdint>

#include "blockscale/parallel.h"
#include "core/recipe.h"
#include "ops/float_environment.h"
#include "ops/quantize/kernels.h"

namespace blockscale {

/// Scale rows of a piece whose scales are of one row each; divides the rows of every swizzled tile.
inline constexpr std::int64_t kPieceScaleRows = 32;
/// Elements of k in a piece: a multiple of 4 blocks of every recipe, small enough for the level-1
/// cache (blocks of one row) or the level-2 cache (taller ones).
inline constexpr std::int64_t kPieceK = 4096;
inline constexpr std::int64_t kTallPieceK = 1024;
inline constexpr std::int64_t kPieceElements = kPieceScaleRows * kPieceK;
/// Blocks in a row of a piece, at most.
inline constexpr std::int64_t kMaxBlocks = kPieceK / 16;

struct Piece {
  std::int64_t matrix;
  std::int64_t row, rows;
  std::int64_t k, count;
};

/// The cut of a batch of [rows, k] matrices of a recipe.
struct Cut {
  std::int64_t batch, rows, k;
  std::int64_t block_rows, block_k;  // as in the recipe, but "all" as a number
  std::int64_t piece_rows, piece_k;

  Cut(const RecipeTraits& t, std::int64_t matrices, std::int64_t matrix_rows, std::int64_t matrix_k)
      : batch(matrices), rows(matrix_rows), k(matrix_k) {
    block_rows = t.block_rows == 0 ? std::max<std::int64_t>(1, rows) : t.block_rows;
    block_k = t.block_k == 0 ? std::max<std::int64_t>(1, k) : t.block_k;
    if (t.block_rows == 0) {
      piece_rows = kPieceScaleRows;
      piece_k = kPieceK;
    } else if (t.block_k == 0) {
      piece_rows = std::clamp<std::int64_t>(kPieceElements / block_k, 1, kPieceScaleRows);
      piece_k = block_k;
    } else {
      piece_rows = t.block_rows == 1 ? kPieceScaleRows : t.block_rows;
      piece_k = t.block_rows == 1 ? kPieceK : kTallPieceK;
    }
  }

  /// The part of the scale grid that a piece holds. Where one scale is shared by pieces (by all of
  /// a matrix), each of them has it.
  struct Scales {
    std::int64_t row, rows;
    std::int64_t column, columns;
  };
  Scales scales_of(const Piece& piece) const {
    return {piece.row / block_rows, ceil_div(piece.rows, block_rows), piece.k / block_k,
            ceil_div(piece.count, block_k)};
  }
};

/// Calls `body(piece)` for every piece, in the default floating-point environment.
template <class Body>
void for_each_piece(const Cut& cut, int threads, const Body& body) {
  if (cut.rows == 0 || cut.k == 0) return;
  const std::int64_t k_pieces = ceil_div(cut.k, cut.piece_k);
  const std::int64_t matrix_pieces = k_pieces * ceil_div(cut.rows, cut.piece_rows);
  parallel_for(cut.batch * matrix_pieces, 1, threads, [&](std::int64_t begin, std::int64_t end) {
    const DefaultFloatEnvironment environment;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = i % matrix_pieces / k_pieces * cut.piece_rows;
      const std::int64_t k = i % k_pieces * cut.piece_k;
      body(Piece{i / matrix_pieces, row, std::min(cut.piece_rows, cut.rows - row), k,
                 std::min(cut.piece_k, cut.k - k)});
    }
  });
}

}  // namespace blockscale
