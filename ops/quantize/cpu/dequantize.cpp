// Dequantization on the CPU: piece by piece (pieces.h), a run at a time (steps.h).
#include <algorithm>
#include <cstdint>

#include "blockscale/quantize.h"
#include "ops/common/scale_placement.h"
#include "ops/common/simd/requested.h"
#include "ops/quantize/cpu/pieces.h"
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

/// The scales of a piece, row by row; they lie far apart in some layouts.
using Scales = std::uint8_t[kMaxScaleBytes + kArrayPadding * sizeof(float)];

template <class Scale>
void load_scales(const Job& job, const Piece& piece, Scales& scales) {
  const ScaledTensorView& x = job.x;
  const ScaleRectangle part = job.cut.scales_of(piece);
  const Scale* const matrix =
      static_cast<const Scale*>(x.scales) + piece.matrix * x.scale_batch_stride;
  auto* const to = reinterpret_cast<Scale*>(scales);
  gather_scales(PlacedScales<const Scale>{matrix, x.layout, x.scale_leading_stride}, part, to,
                part.columns);
  std::fill_n(to + part.rows * part.columns, kArrayPadding, Scale{0});
}

/// A piece, a row of scales after the other, and of blocks of one row a run after the other.
void dequantize_piece(const Job& job, const Piece& piece) {
  const ScaledTensorView& x = job.x;
  const std::int64_t out_size = format_traits(job.out.dtype).bits / 8;
  const bool is_plain = job.recipe.family == Family::plain;
  const std::int64_t scale_size = format_traits(job.recipe.scale).bits / 8;
  const bool has_tensor_scale = job.recipe.tensor_scale && x.tensor_scale != nullptr;
  const float tensor_scale =
      has_tensor_scale ? x.tensor_scale[piece.matrix * x.tensor_scale_batch_stride] : 1.0f;
  const TensorScaleSense sense = has_tensor_scale ? x.sense : TensorScaleSense::multiplier;
  alignas(64) Scales scales;
  if (scale_size == sizeof(float)) {
    if (!is_plain) load_scales<float>(job, piece, scales);
  } else {
    load_scales<std::uint8_t>(job, piece, scales);
  }
  for_each_run_of(job.cut, piece, [&](const Piece& run) {
    float factors[kMaxBlocks + kArrayPadding];
    if (is_plain) {
      factors[0] = 1.0f;
    } else {
      steps::scale_factors(job.recipe.scale, scales + job.cut.first_scale(piece, run) * scale_size,
                           ceil_div(run.count, job.cut.block_k), tensor_scale, sense, factors);
    }
    for (std::int64_t row = run.row; row < run.row + run.rows; ++row) {
      const auto* const codes = static_cast<const std::uint8_t*>(x.values) +
                                run.matrix * x.value_batch_stride + row * x.value_row_stride +
                                row_bytes(x.recipe, run.k);
      const std::int64_t element =
          run.matrix * job.out.batch_stride + row * job.out.row_stride + run.k;
      steps::decode_blocks(job.recipe.element, job.out.dtype, codes, run.count,
                           std::min(job.cut.block_k, run.count), factors,
                           static_cast<std::uint8_t*>(job.out.data) + element * out_size);
    }
  });
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
