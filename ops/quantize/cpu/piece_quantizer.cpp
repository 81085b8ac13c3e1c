#include "ops/quantize/cpu/piece_quantizer.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ops/quantize/cpu/scale_placement.h"
#include "ops/quantize/cpu/steps.h"

namespace blockscale {
namespace {

using steps::kArrayPadding;
using steps::MagnitudeBits;
using steps::NanRule;
using steps::Scaling;

std::uint8_t* output_row(const QuantizeJob& job, const Piece& piece, std::int64_t r) {
  return static_cast<std::uint8_t*>(job.out.values) + piece.matrix * job.out.value_batch_stride +
         (piece.row + r) * job.out.value_row_stride + row_bytes(job.out.recipe, piece.k);
}

/// Scales and factors of one scale row of a piece.
struct ScaleRow {
  MagnitudeBits maxima[kMaxBlocks + kArrayPadding];
  float factors[kMaxBlocks + kArrayPadding];
};

/// Stores scales of `blocks` blocks from `row.maxima` into `out`, and fills `row.factors`.
void compute_scales(const QuantizeJob& job, const Piece& piece, std::int64_t blocks, ScaleRow& row,
                    std::uint8_t* out) {
  const RecipeTraits& t = job.recipe;
  if (t.family == Family::mx) {
    steps::mx_scales(t.element, job.options.mx_scale_mode, row.maxima, blocks, out, row.factors);
  } else if (t.family == Family::nvfp4) {
    steps::nvfp4_scales(job.matrix_scale(piece.matrix), row.maxima, blocks, out, row.factors);
  } else {
    float scales[kMaxBlocks + kArrayPadding];
    steps::fp8_scales(t.element, t.power_of_two, job.options.fp8_amax_floor, row.maxima, blocks,
                      scales, row.factors);
    for (std::int64_t i = 0; i < blocks; ++i) {
      if (t.scale == Format::ue8m0) {
        out[i] = static_cast<std::uint8_t>(encode_ue8m0(scales[i], ScaleRounding::up));
      } else {
        std::memcpy(out + i * 4, scales + i, sizeof(float));
      }
    }
  }
}

template <class Scale>
void place_piece_scales(const QuantizeJob& job, const Piece& piece, const std::uint8_t* scales,
                        std::int64_t pitch) {
  const MutableScaledTensorView& out = job.out;
  Scale* const matrix = static_cast<Scale*>(out.scales) + piece.matrix * out.scale_batch_stride;
  place_scales(PlacedScales<Scale>{matrix, out.layout, out.scale_leading_stride},
               job.cut.scales_of(piece), reinterpret_cast<const Scale*>(scales), pitch);
}

/// Elements that are encoded between two prefetches: whole blocks of every recipe with short ones.
constexpr std::int64_t kPrefetchStep = 256;

/// What is read once row `r` of the piece is done: the row below, or, where all rows of a piece are
/// read before the first is encoded, that row of the piece to the right. nullptr: something else,
/// or what is in the cache already.
const std::uint8_t* read_next(const QuantizeJob& job, const Piece& piece, const PieceRows& rows,
                              std::int64_t r) {
  if (!rows.in_place) return nullptr;
  if (job.recipe.block_rows > 1) {
    const std::int64_t size = format_traits(rows.dtype).bits / 8;
    return piece.k + piece.count < job.cut.k ? rows.row(r) + piece.count * size : nullptr;
  }
  return r + 1 < piece.rows ? rows.row(r + 1) : nullptr;
}

/// Codes of rows [row, row + count) of a piece, whose blocks share `factors`. Meanwhile what is
/// read next comes into the cache: encoding leaves the memory idle, and finding maxima waits for
/// it.
void encode_rows(const QuantizeJob& job, const Piece& piece, const PieceRows& rows,
                 std::int64_t row, std::int64_t count, const float* factors) {
  const RecipeTraits& t = job.recipe;
  const bool multiply = t.family != Family::fp8 || t.power_of_two;
  const Scaling scaling = multiply ? Scaling::multiply : Scaling::divide;
  const std::int64_t block = std::min(job.cut.block_k, piece.count);
  const bool divides = kPrefetchStep % block == 0 || block == piece.count;
  const std::int64_t step = divides ? kPrefetchStep : piece.count;
  const int size = format_traits(rows.dtype).bits / 8;
  for (std::int64_t r = row; r < row + count; ++r) {
    const std::uint8_t* const x = rows.row(r);
    const std::uint8_t* const next = read_next(job, piece, rows, r);
    std::uint8_t* const codes = output_row(job, piece, r);
    for (std::int64_t k = 0; k < piece.count; k += step) {
      const std::int64_t now = std::min(step, piece.count - k);
      if (next != nullptr) prefetch(next + k * size, now * size);
      steps::encode_blocks(rows.dtype, t.element, scaling, x + k * size, now, std::min(block, now),
                           factors + k / block, codes + row_bytes(job.out.recipe, k));
    }
  }
}

/// A piece whose scales are known: fp8_tensor, and fp8_row with given scales.
void encode_piece(const QuantizeJob& job, const Piece& piece, const PieceRows& rows) {
  if (job.recipe.block_rows == 0) {
    const float factor = job.matrix_scale(piece.matrix);
    encode_rows(job, piece, rows, 0, piece.rows, &factor);
    return;
  }
  const float* const scales =
      static_cast<const float*>(job.out.scales) + piece.matrix * job.out.scale_batch_stride;
  for (std::int64_t r = 0; r < piece.rows; ++r) {
    encode_rows(
        job, piece, rows, r, 1,
        scales + scale_offset(job.out.layout, piece.row + r, 0, job.out.scale_leading_stride));
  }
}

/// A piece whose scales come from its elements.
void scale_and_encode_piece(const QuantizeJob& job, const Piece& piece, const PieceRows& rows) {
  const NanRule nan_rule = job.recipe.family == Family::fp8 ? NanRule::ignore : NanRule::poison;
  const std::int64_t blocks = ceil_div(piece.count, job.cut.block_k);
  const std::int64_t scale_size = format_traits(job.recipe.scale).bits / 8;
  const std::int64_t pitch = blocks + kArrayPadding;
  alignas(64) std::uint8_t scales[kPieceScaleRows * (kMaxBlocks + kArrayPadding)];
  ScaleRow scale_row;
  for (std::int64_t first = 0; first < piece.rows; first += job.cut.block_rows) {
    const std::int64_t count = std::min(job.cut.block_rows, piece.rows - first);
    std::fill_n(scale_row.maxima, blocks + kArrayPadding, 0u);
    for (std::int64_t r = first; r < first + count; ++r) {
      steps::block_maxima(rows.dtype, rows.row(r), piece.count,
                          std::min(job.cut.block_k, piece.count), nan_rule, scale_row.maxima);
    }
    compute_scales(job, piece, blocks, scale_row,
                   scales + first / job.cut.block_rows * pitch * scale_size);
    encode_rows(job, piece, rows, first, count, scale_row.factors);
  }
  if (job.recipe.scale == Format::f32) {
    place_piece_scales<float>(job, piece, scales, pitch);
  } else {
    place_piece_scales<std::uint8_t>(job, piece, scales, pitch);
  }
}

}  // namespace

void quantize_piece(const QuantizeJob& job, const Piece& piece, const PieceRows& rows) {
  job.knows_scales() ? encode_piece(job, piece, rows) : scale_and_encode_piece(job, piece, rows);
}

}  // namespace blockscale
