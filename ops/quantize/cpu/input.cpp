#include "ops/quantize/cpu/input.h"

#include <algorithm>

#include "core/math.h"

namespace blockscale {
namespace {

using steps::RowOperand;

RowOperand row_of(const MatrixView& matrix, std::int64_t row) {
  const std::int64_t size = format_traits(matrix.dtype).bits / 8;
  return {matrix.dtype,
          static_cast<const std::uint8_t*>(matrix.data) + row * matrix.row_stride * size};
}

RowOperand row_of(const MatrixView& x, std::int64_t matrix, std::int64_t row) {
  MatrixView one = x;
  const std::int64_t size = format_traits(x.dtype).bits / 8;
  one.data = static_cast<const std::uint8_t*>(x.data) + matrix * x.batch_stride * size;
  return row_of(one, row);
}

}  // namespace

RowOperand Input::row(std::int64_t matrix, std::int64_t row) const {
  return row_of(x_, matrix, row);
}

float Input::rms_factor(std::int64_t matrix, std::int64_t row) const {
  const float sum = steps::sum_of_squares(row_of(x_, matrix, row), x_.columns);
  const float reciprocal = 1.0f / static_cast<float>(x_.columns);
  return math::reciprocal_sqrt(math::ScalarMath::fma(sum, reciprocal, fused_.epsilon));
}

float* PieceReader::Floats::reserve(std::int64_t count) {
  if (count > capacity_) {
    data_.reset(new float[static_cast<std::size_t>(count)]);
    capacity_ = count;
  }
  return data_.get();
}

void PieceReader::read_operands(const Input& input, std::int64_t group, const Piece& piece) {
  const std::int64_t pitch = piece.count + steps::kArrayPadding;
  float* const first = operands_.reserve(2 * pitch);
  const auto widen = [&](const MatrixView& operand, std::int64_t row, float* to) {
    steps::widen_run(row_of(operand, row), piece.k, piece.count, to);
    std::fill_n(to + piece.count, steps::kArrayPadding, 0.0f);
  };
  const quantize_detail::FusedInput& fused = input.fused();
  if (fused.transform == InputTransform::modulate) {
    widen(fused.scale, group, first);
    widen(fused.shift, group, first + pitch);
    row_.scale = first;
    row_.shift = first + pitch;
  } else if (fused.transform == InputTransform::rms_norm) {
    widen(fused.weight, 0, first);
    row_.weight = first;
  }
}

PieceRows PieceReader::read(const Input& input, const Piece& piece) {
  if (!input.is_fused()) {
    const MatrixView& x = input.x();
    const std::int64_t size = format_traits(x.dtype).bits / 8;
    return {x.dtype, input.row(piece.matrix, piece.row).data + piece.k * size, x.row_stride * size,
            true};
  }
  const quantize_detail::FusedInput& fused = input.fused();
  const bool modulates = fused.transform == InputTransform::modulate;
  const bool normalizes = fused.transform == InputTransform::rms_norm;
  const std::int64_t pitch = piece.count + steps::kArrayPadding;
  float* const rows = rows_.reserve(piece.rows * pitch);
  row_.transform = fused.transform;
  row_.gate_order = fused.gate_order;
  row_.gate_group = fused.gate_group;
  row_.is_clamped = fused.is_clamped;
  row_.swiglu = fused.swiglu;
  std::int64_t group = -1;
  for (std::int64_t r = 0; r < piece.rows; ++r) {
    const std::int64_t row = piece.row + r;
    const std::int64_t its_group = modulates ? input.group_of(piece.matrix, row) : 0;
    if (its_group != group) read_operands(input, group = its_group, piece);
    if (normalizes) {
      float& factor = factors_[static_cast<std::size_t>(r)];
      if (piece.k == 0) factor = input.rms_factor(piece.matrix, row);
      row_.factor = factor;
    }
    row_.x = input.row(piece.matrix, row);
    steps::transform_run(row_, piece.k, piece.count, rows + r * pitch);
  }
  return {Format::f32, reinterpret_cast<const std::uint8_t*>(rows),
          pitch * static_cast<std::int64_t>(sizeof(float))};
}

}  // namespace blockscale
