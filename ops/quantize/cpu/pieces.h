// How a tensor is cut into pieces of parallel work.
//
// A piece is a rectangle of whole blocks (but at the right and lower edge), so that what is done to
// it needs nothing from another; it is small enough to stay in a core's cache while its maxima,
// scales and codes are done one after the other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "blockscale/parallel.h"
#include "core/recipe.h"
#include "ops/common/float_environment.h"
#include "ops/common/scale_placement.h"
#include "ops/quantize/cpu/steps.h"

namespace blockscale {

/// Elements of a piece, at most, and its rows: whole rows if these are so short, as memory that is
/// gone through in order is read twice as fast as parts of rows.
inline constexpr std::int64_t kPieceElements = 256 * 1024;
inline constexpr std::int64_t kPieceRows = 32;
/// Elements of a piece whose blocks have more than one row: it is read twice, and should stay in a
/// cache meanwhile, be it the level-3 cache.
inline constexpr std::int64_t kTallPieceElements = 1024 * 1024;
/// Elements of a run, a part of a row of a piece whose blocks have one row: it stays in the level-1
/// cache while its maxima, scales and codes are done one after the other.
inline constexpr std::int64_t kRunElements = 2048;
/// Elements of a piece whose input is fused: it is computed as a whole, in f32, and must stay in
/// the level-2 cache while it is quantized.
inline constexpr std::int64_t kFusedPieceElements = 32 * 1024;
/// k of a piece whose scales are searched, at most: its rows share the weights of their columns.
inline constexpr std::int64_t kSearchedPieceK = 4096;
/// Rows of a piece, at most.
inline constexpr std::int64_t kMaxPieceRows = 256;
/// A tensor of so few elements is done on the caller's thread: to wake others costs more.
inline constexpr std::int64_t kSerialElements = 64 * 1024;
/// Blocks in a run, or in a row of a piece with taller ones, at most.
inline constexpr std::int64_t kMaxBlocks = 256;
static_assert(kMaxBlocks >= kRunElements / 16 && kMaxBlocks >= kTallPieceElements / (32 * 128));
/// Bytes of the scales of a piece, at most: one for each 16 elements, or 4 for each 128.
inline constexpr std::int64_t kMaxScaleBytes = kPieceElements / 16;

struct Piece {
  std::int64_t matrix;
  std::int64_t row, rows;
  std::int64_t k, count;
};

/// What pieces are made of.
enum class PieceSource : std::uint8_t {
  input,          // elements as they lie in memory
  fused,          // computed ones
  fused_by_rows,  // computed from whole rows: the pieces of a row are done in order, by one thread
};

/// The cut of a batch of [rows, k] matrices of a recipe.
struct Cut {
  std::int64_t batch, rows, k;
  std::int64_t block_rows, block_k;  // as in the recipe, but "all" as a number
  std::int64_t piece_rows, piece_k;
  bool by_rows;

  Cut(const RecipeTraits& t, std::int64_t matrices, std::int64_t matrix_rows, std::int64_t matrix_k,
      PieceSource source = PieceSource::input)
      : batch(matrices),
        rows(matrix_rows),
        k(matrix_k),
        by_rows(source == PieceSource::fused_by_rows) {
    block_rows = t.block_rows == 0 ? std::max<std::int64_t>(1, rows) : t.block_rows;
    block_k = t.block_k == 0 ? std::max<std::int64_t>(1, k) : t.block_k;
    const bool fused = source != PieceSource::input;
    const bool tall = t.block_rows > 1;
    const bool whole_rows = t.block_rows != 0 && t.block_k == 0;
    const std::int64_t elements = fused  ? kFusedPieceElements
                                  : tall ? kTallPieceElements
                                         : kPieceElements;
    if (tall) {
      piece_rows = t.block_rows;
      piece_k = elements / piece_rows;
    } else {
      piece_k = whole_rows ? block_k : std::clamp<std::int64_t>(k, 1, elements);
      piece_rows = std::clamp<std::int64_t>(elements / piece_k, 1, kPieceRows);
    }
  }

  /// Makes pieces no wider than `most`, a number of whole runs, for the sake of more rows.
  void limit_k(std::int64_t most) {
    if (piece_k <= most) return;
    piece_rows = std::min(kPieceRows, piece_rows * piece_k / most);
    piece_k = most;
  }

  /// k of a run: a run of blocks with one row is part of a row, any other is as wide as its piece.
  std::int64_t run_k(const Piece& piece) const {
    return block_rows == 1 && block_k < k ? kRunElements : piece.count;
  }

  /// All pieces, counted in the order in which for_each_piece numbers them.
  std::int64_t pieces() const { return batch * ceil_div(rows, piece_rows) * ceil_div(k, piece_k); }
  std::int64_t index_of(const Piece& piece) const {
    const std::int64_t row = piece.matrix * ceil_div(rows, piece_rows) + piece.row / piece_rows;
    return row * ceil_div(k, piece_k) + piece.k / piece_k;
  }

  /// Where the scales of a run begin among those of its piece, row by row.
  std::int64_t first_scale(const Piece& piece, const Piece& run) const {
    return (run.row - piece.row) / block_rows * ceil_div(piece.count, block_k) +
           (run.k - piece.k) / block_k;
  }

  /// The part of the scale grid that a piece holds. Where one scale is shared by pieces (by all of
  /// a matrix), each of them has it.
  ScaleRectangle scales_of(const Piece& piece) const {
    return {piece.row / block_rows,         ceil_div(piece.rows, block_rows), piece.k / block_k,
            ceil_div(piece.count, block_k), ceil_div(rows, block_rows),       ceil_div(k, block_k)};
  }
};

/// Calls `body(run)` for the runs of a piece, from left to right and from top to bottom. A run is a
/// part of a piece that has one row of scales.
template <class Body>
void for_each_run_of(const Cut& cut, const Piece& piece, const Body& body) {
  const std::int64_t rows = std::min(cut.block_rows, piece.rows);
  const std::int64_t count = cut.run_k(piece);
  for (std::int64_t r = 0; r < piece.rows; r += rows) {
    for (std::int64_t k = 0; k < piece.count; k += count) {
      body(Piece{piece.matrix, piece.row + r, std::min(rows, piece.rows - r), piece.k + k,
                 std::min(count, piece.count - k)});
    }
  }
}

/// What a body that needs no scratch space is called with.
struct NoScratch {};

/// Scratch spaces of a call, of which there are as many as threads: made once each, and not for
/// each piece, as their pages would be.
template <class Scratch>
class ScratchPool {
 public:
  std::unique_ptr<Scratch> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Scratch>();
    std::unique_ptr<Scratch> last = std::move(free_.back());
    free_.pop_back();
    return last;
  }
  void give_back(std::unique_ptr<Scratch> scratch) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(scratch));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_;
};

/// Calls `body(piece, scratch)` for every piece, in the default floating-point environment. Each
/// run of pieces that one thread does in order has one `Scratch`, as an earlier run left it.
template <class Scratch = NoScratch, class Body>
void for_each_piece(const Cut& cut, int threads, const Body& body) {
  if (cut.rows == 0 || cut.k == 0) return;
  const std::int64_t k_pieces = ceil_div(cut.k, cut.piece_k);
  const std::int64_t matrix_pieces = k_pieces * ceil_div(cut.rows, cut.piece_rows);
  const std::int64_t count = cut.batch * matrix_pieces;
  const bool serial = cut.batch * cut.rows * cut.k <= kSerialElements;
  ScratchPool<Scratch> pool;
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    const DefaultFloatEnvironment environment;
    std::unique_ptr<Scratch> scratch = pool.take();
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = i % matrix_pieces / k_pieces * cut.piece_rows;
      const std::int64_t k = i % k_pieces * cut.piece_k;
      body(Piece{i / matrix_pieces, row, std::min(cut.piece_rows, cut.rows - row), k,
                 std::min(cut.piece_k, cut.k - k)},
           *scratch);
    }
    pool.give_back(std::move(scratch));
  };
  parallel_for(count, cut.by_rows ? k_pieces : 1, serial ? 1 : threads, run);
}

}  // namespace blockscale
