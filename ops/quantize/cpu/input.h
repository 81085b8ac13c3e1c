// What a quantizer reads: a matrix as it lies in memory, or what a transform makes of it, one piece
// at a time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "ops/quantize/cpu/pieces.h"
#include "ops/quantize/cpu/steps.h"
#include "ops/quantize/fused_input.h"

namespace blockscale {

/// Rows of a piece, from its first k on.
struct PieceRows {
  Format dtype;
  const std::uint8_t* first;
  std::int64_t stride;   // bytes between rows
  bool goes_on = false;  // in memory of the input's, of which more rows lie below

  const std::uint8_t* row(std::int64_t r) const { return first + r * stride; }
  PieceRows from(std::int64_t r, std::int64_t k) const {
    return {dtype, row(r) + k * (format_traits(dtype).bits / 8), stride, goes_on};
  }
};

/// The input of one call, validated.
class Input {
 public:
  Input(const MatrixView& x, const quantize_detail::FusedInput& fused) : x_(x), fused_(fused) {}

  const MatrixView& x() const { return x_; }
  const quantize_detail::FusedInput& fused() const { return fused_; }
  bool is_fused() const { return fused_.transform != InputTransform::identity; }
  /// Of what PieceReader gives.
  Format dtype() const { return is_fused() ? Format::f32 : x_.dtype; }
  PieceSource source() const {
    if (!is_fused()) return PieceSource::input;
    const bool by_rows = fused_.transform == InputTransform::rms_norm;
    return by_rows ? PieceSource::fused_by_rows : PieceSource::fused;
  }
  steps::RowOperand row(std::int64_t matrix, std::int64_t row) const;
  /// modulate: the group that a row belongs to.
  std::int64_t group_of(std::int64_t matrix, std::int64_t row) const {
    return (matrix * x_.rows + row) / (x_.batch * x_.rows / fused_.scale.rows);
  }
  /// rms_norm's factor of a row.
  float rms_factor(std::int64_t matrix, std::int64_t row) const;

 private:
  MatrixView x_;
  quantize_detail::FusedInput fused_;
};

/// Gives the rows of pieces, one piece after the other; what it computes lives until the next.
class PieceReader {
 public:
  PieceRows read(const Input& input, const Piece& piece);

 private:
  /// Room for `count` floats, whatever they are.
  class Floats {
   public:
    float* reserve(std::int64_t count);

   private:
    std::unique_ptr<float[]> data_;
    std::int64_t capacity_ = 0;
  };

  /// Operands for columns [k, k + count) of a group of rows, in f32.
  void read_operands(const Input& input, std::int64_t group, const Piece& piece);

  Floats rows_, operands_;
  steps::TransformedRow row_;
  /// rms_norm: of the rows of the pieces that are being read from left to right.
  std::array<float, kMaxPieceRows> factors_;
};

}  // namespace blockscale
