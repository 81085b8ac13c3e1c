// Rows of a stored tensor as matrices, piece by piece: how conversion and comparison read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "models/checkpoint/checkpoint.h"

namespace blockscale::models {

/// Of one scale.
std::int64_t scale_bytes_of(Recipe recipe);

/// Memory of one worker, kept from piece to piece.
struct Scratch {
  std::vector<std::byte> rows[2];  // values that cannot be used in place
  std::vector<std::byte> values;   // results
  std::vector<std::byte> scales;
  std::vector<std::byte> tiles;  // the same, as the result lays them out

  /// `buffer` with room for `bytes`; contents are not kept.
  static std::byte* room(std::vector<std::byte>& buffer, std::int64_t bytes);
};

/// Hands every worker a Scratch of its own and takes it back.
class ScratchPool {
 public:
  class Lease {
   public:
    explicit Lease(ScratchPool& pool) : pool_(pool), scratch_(pool.take()) {}
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease() { pool_.give(std::move(scratch_)); }
    Scratch& operator*() { return *scratch_; }

   private:
    ScratchPool& pool_;
    std::unique_ptr<Scratch> scratch_;
  };

 private:
  std::unique_ptr<Scratch> take();
  void give(std::unique_ptr<Scratch> scratch) noexcept;

  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_;
};

/// Rows [begin, begin + count) of matrix `batch`.
struct RowRange {
  std::int64_t batch = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

/// These rows of a packed, row_major view, scales included; `begin` is a multiple of the recipe's
/// rows a scale.
ScaledTensorView slice(const ScaledTensorView& view, const RowRange& range);

/// These rows as a packed matrix: in place where the tensor is plain (and aligned, and f32 if
/// `as_f32`), else dequantized or widened to f32, or copied, into `buffer`.
MatrixView read_rows(const StoredCheckpoint& checkpoint, std::size_t tensor, const RowRange& range,
                     bool as_f32, std::vector<std::byte>& buffer);

/// Columns `range` (of k; whole blocks) of a matrix of a quantized tensor whose blocks are of one
/// row, as the rows of a packed f32 matrix in `scratch`.
MatrixView read_transposed(const StoredCheckpoint& checkpoint, std::size_t tensor,
                           const RowRange& range, Scratch& scratch);

/// Bytes that `read_transposed` needs for one of its rows.
std::int64_t transposed_bytes_per_row(const StoredCheckpoint& checkpoint, std::size_t tensor);

/// Bytes that `read_rows` needs in its buffer for one row of `tensor`, at most.
std::int64_t buffer_bytes_per_row(const StoredCheckpoint& checkpoint, std::size_t tensor,
                                  bool as_f32);

/// Index of the first NaN or infinity of a packed matrix, or -1.
std::int64_t first_nonfinite(const MatrixView& matrix);

/// Cuts [batch, rows] into ranges of at most `rows_per_piece` rows.
std::vector<RowRange> cut_rows(const MatrixShape& shape, std::int64_t rows_per_piece);

}  // namespace blockscale::models
