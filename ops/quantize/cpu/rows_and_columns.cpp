// Two quantized forms of a matrix from one read: along its rows, and of its transpose. A tile is
// read (or computed) once, quantized as it is, transposed in the cache and quantized again.
#include <cstdint>
#include <memory>

#include "blockscale/quantize.h"
#include "ops/common/simd/requested.h"
#include "ops/quantize/cpu/input.h"
#include "ops/quantize/cpu/piece_quantizer.h"
#include "ops/quantize/cpu/pieces.h"
#include "ops/quantize/cpu/steps.h"
#include "ops/quantize/validate.h"

namespace blockscale {
namespace {

/// A tile is large, because each of its rows and columns is written to a page of its own, and so
/// small that it and its transpose stay in the level-2 cache.
constexpr std::int64_t kTileRows = 256;
constexpr std::int64_t kTileBytes = 256 * 1024;
static_assert(kTileRows <= kMaxPieceRows);

/// What a thread needs for its tiles.
struct TileScratch {
  PieceReader reader;
  std::unique_ptr<std::uint8_t[]> transposed{
      new std::uint8_t[static_cast<std::size_t>(kTileBytes)]};
};

/// The transpose of a tile, in `buffer`.
PieceRows transpose_tile(const Piece& tile, const PieceRows& rows, std::uint8_t* buffer) {
  const int size = format_traits(rows.dtype).bits / 8;
  steps::transpose(size, rows.first, rows.stride / size, tile.rows, tile.count, buffer, tile.rows);
  return {rows.dtype, buffer, tile.rows * size};
}

QuantizeJob job_of(const MutableScaledTensorView& out, const QuantizeOptions& options) {
  const RecipeTraits& recipe = recipe_traits(out.recipe);
  return {out, options, recipe, Cut(recipe, out.batch, out.rows, out.k)};
}

}  // namespace

void quantize_rows_and_columns(const MatrixView& x, const MutableScaledTensorView& out_rows,
                               const MutableScaledTensorView& out_columns,
                               const QuantizeOptions& options) {
  use_requested_simd();
  const quantize_detail::RowsAndColumnsArguments a =
      quantize_detail::validated(x, out_rows, out_columns, options);
  const Input input(a.x, a.input);
  const QuantizeJob along_rows = job_of(a.rows, options);
  const QuantizeJob along_columns = job_of(a.columns, options);
  Cut tiles(along_rows.recipe, a.rows.batch, a.rows.rows, a.rows.k, input.source());
  tiles.piece_rows = kTileRows;
  tiles.piece_k = kTileBytes / (kTileRows * (format_traits(input.dtype()).bits / 8));
  for_each_piece<TileScratch>(tiles, options.threads, [&](const Piece& tile, TileScratch& scratch) {
    const PieceRows rows = scratch.reader.read(input, tile);
    quantize_piece(along_rows, tile, rows);
    const Piece turned{tile.matrix, tile.k, tile.count, tile.row, tile.rows};
    quantize_piece(along_columns, turned, transpose_tile(tile, rows, scratch.transposed.get()));
  });
}

}  // namespace blockscale
