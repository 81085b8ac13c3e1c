// What happens to one piece of a tensor: maxima, scales, codes.
#pragma once

#include <vector>

#include "blockscale/quantize.h"
#include "ops/quantize/cpu/input.h"
#include "ops/quantize/cpu/pieces.h"

namespace blockscale {

/// What the pieces of an output share.
struct QuantizeJob {
  MutableScaledTensorView out;
  QuantizeOptions options;
  RecipeTraits recipe;
  Cut cut;
  /// For each matrix: NVFP4's S, or the one scale that all of an fp8_tensor's elements have.
  std::vector<float> matrix_scales = {};

  bool has_given_scales() const { return options.scale_source == ScaleSource::given; }
  bool knows_scales() const {
    return recipe.block_rows == 0 || (recipe.family == Family::fp8 && has_given_scales());
  }
  float matrix_scale(std::int64_t matrix) const {
    return matrix_scales[static_cast<std::size_t>(matrix)];
  }
};

/// Writes codes, and scales unless they are known, of a piece whose elements are `rows`. Adds the
/// errors of searched scales to `errors`, if that is not null.
void quantize_piece(const QuantizeJob& job, const Piece& piece, const PieceRows& rows,
                    ScaleErrors* errors = nullptr);

}  // namespace blockscale
