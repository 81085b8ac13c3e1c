// Dequantization on the CPU: piece by piece (pieces.h), a run of one row at a time (kernels.h).
#include <algorithm>
#include <cstdint>

#include "blockscale/quantize.h"
#include "ops/common/simd/requested.h"
#include "ops/quantize/cpu/pieces.h"
#include "ops/quantize/cpu/scale_placement.h"
#include "ops/quantize/cpu/steps.h"
#include "ops/quantize/validate.h"

namespace blockscale {
namespace {

using steps::kArrayPadding;

struct Job {
  ScaledTensorView x;
  MutableMatrixView out;
  RecipeTraits recipe;
  Cut cut;
};

/// What codes of each block of a piece are multiplied with: `pitch` factors a scale row.
struct Factors {
  static constexpr std::int64_t kPitch = kMaxBlocks + kArrayPadding;
  float factors[kPieceScaleRows * kPitch];
};

template <class Scale>
void load_factors(const Job& job, const Piece& piece, Factors& result) {
  const ScaledTensorView& x = job.x;
  const ScaleRectangle part = job.cut.scales_of(piece);
  const std::int64_t pitch = part.columns + kArrayPadding;
  Scale scales[kPieceScaleRows * Factors::kPitch];
  const Scale* const matrix =
      static_cast<const Scale*>(x.scales) + piece.matrix * x.scale_batch_stride;
  for (std::int64_t i = 0; i < part.rows; ++i) {
    std::fill_n(scales + i * pitch + part.columns, kArrayPadding, Scale{0});
  }
  gather_scales(PlacedScales<const Scale>{matrix, x.layout, x.scale_leading_stride}, part, scales,
                pitch);
  const bool has_tensor_scale = job.recipe.tensor_scale && x.tensor_scale != nullptr;
  const float tensor_scale =
      has_tensor_scale ? x.tensor_scale[piece.matrix * x.tensor_scale_batch_stride] : 1.0f;
  const TensorScaleSense sense = has_tensor_scale ? x.sense : TensorScaleSense::multiplier;
  for (std::int64_t i = 0; i < part.rows; ++i) {
    steps::scale_factors(job.recipe.scale, scales + i * pitch, part.columns, tensor_scale, sense,
                         result.factors + i * Factors::kPitch);
  }
}

void dequantize_piece(const Job& job, const Piece& piece) {
  const ScaledTensorView& x = job.x;
  Factors factors;
  if (job.recipe.family == Family::plain) {
    factors.factors[0] = 1.0f;
  } else if (job.recipe.scale == Format::f32) {
    load_factors<float>(job, piece, factors);
  } else {
    load_factors<std::uint8_t>(job, piece, factors);
  }
  const std::int64_t out_size = format_traits(job.out.dtype).bits / 8;
  for (std::int64_t r = 0; r < piece.rows; ++r) {
    const std::int64_t row = piece.row + r;
    const auto* const codes = static_cast<const std::uint8_t*>(x.values) +
                              piece.matrix * x.value_batch_stride + row * x.value_row_stride +
                              row_bytes(x.recipe, piece.k);
    const std::int64_t element =
        piece.matrix * job.out.batch_stride + row * job.out.row_stride + piece.k;
    steps::decode_blocks(job.recipe.element, job.out.dtype, codes, piece.count,
                         std::min(job.cut.block_k, piece.count),
                         factors.factors + r / job.cut.block_rows * Factors::kPitch,
                         static_cast<std::uint8_t*>(job.out.data) + element * out_size);
  }
}

}  // namespace

void dequantize(const ScaledTensorView& x, const MutableMatrixView& out, int threads) {
  use_requested_simd();
  const quantize_detail::DequantizeArguments a = quantize_detail::validated(x, out, threads);
  const RecipeTraits& recipe = recipe_traits(x.recipe);
  const Job job{a.x, a.out, recipe, Cut(recipe, a.x.batch, a.x.rows, a.x.k)};
  for_each_piece(job.cut, threads,
                 [&](const Piece& piece, NoScratch&) { dequantize_piece(job, piece); });
}

}  // namespace blockscale
