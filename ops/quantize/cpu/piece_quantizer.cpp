#include "ops/quantize/cpu/piece_quantizer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>

#include "ops/common/scale_placement.h"
#include "ops/quantize/cpu/steps.h"

namespace blockscale {
namespace {

using steps::kArrayPadding;
using steps::MagnitudeBits;
using steps::NanRule;
using steps::Scaling;
using steps::SearchedBlocks;

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
    // A search begins with `ceil`'s scale, whatever the mode.
    const bool searched = job.options.scale_choice != ScaleChoice::amax;
    steps::mx_scales(t.element, searched ? MxScaleMode::ceil : job.options.mx_scale_mode,
                     row.maxima, blocks, out, row.factors);
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
void place_piece_scales(const QuantizeJob& job, const Piece& piece, const std::uint8_t* scales) {
  const MutableScaledTensorView& out = job.out;
  Scale* const matrix = static_cast<Scale*>(out.scales) + piece.matrix * out.scale_batch_stride;
  const ScaleRectangle part = job.cut.scales_of(piece);
  place_scales(PlacedScales<Scale>{matrix, out.layout, out.scale_leading_stride}, part,
               reinterpret_cast<const Scale*>(scales), part.columns);
}

Scaling scaling_of(const RecipeTraits& t) {
  if (t.family == Family::nvfp4) return Scaling::multiply;
  return t.family == Family::mx || t.power_of_two ? Scaling::power_of_two : Scaling::divide;
}

/// From a run to the next one, in bytes: to encode a run reads nothing but caches, and the next
/// one's maxima are found first.
std::int64_t bytes_ahead(const QuantizeJob& job, const Piece& run, const PieceRows& rows) {
  if (run.count < job.cut.k) return run.count * (format_traits(rows.dtype).bits / 8);
  return rows.goes_on ? run.rows * rows.stride : 0;
}

/// Codes of a piece or a run whose rows share `factors`.
void encode_rows(const QuantizeJob& job, const Piece& piece, const PieceRows& rows,
                 const float* factors, std::int64_t ahead = 0) {
  const RecipeTraits& t = job.recipe;
  for (std::int64_t r = 0; r < piece.rows; ++r) {
    steps::encode_blocks(rows.dtype, t.element, scaling_of(t), rows.row(r), piece.count,
                         std::min(job.cut.block_k, piece.count), factors, output_row(job, piece, r),
                         ahead);
  }
}

/// A piece whose scales are known: fp8_tensor, and fp8_row with given scales.
void encode_piece(const QuantizeJob& job, const Piece& piece, const PieceRows& rows) {
  if (job.recipe.block_rows == 0) {
    const float factor = job.matrix_scale(piece.matrix);
    encode_rows(job, piece, rows, &factor);
    return;
  }
  const float* const scales =
      static_cast<const float*>(job.out.scales) + piece.matrix * job.out.scale_batch_stride;
  Piece run = piece;
  run.rows = 1;
  for (std::int64_t r = 0; r < piece.rows; ++r, ++run.row) {
    encode_rows(job, run, rows.from(r, 0),
                scales + scale_offset(job.out.layout, run.row, 0, job.out.scale_leading_stride));
  }
}

/// Searches the scales of the rows of a piece, a run of blocks after the other.
class PieceSearch {
 public:
  PieceSearch(const QuantizeJob& job, const Piece& piece, Format dtype)
      : job_(job), piece_(piece), dtype_(dtype), block_(job.cut.block_k) {
    if (weighted()) turn_columns(job.options.channel_weights, weights_);
    if (!has_means()) return;
    turn_columns(job.options.channel_means, means_);
    steps::take_variances(means_, kSearchedPieceK, weights_);
  }

  /// Improves the scales and factors that compute_scales made of the maxima of `blocks` blocks, of
  /// which the first one begins at element `k` of the piece.
  void run(const std::uint8_t* x, std::int64_t k, std::int64_t blocks, ScaleRow& row,
           std::uint8_t* scales, ScaleErrors* errors) {
    const int size = format_traits(dtype_).bits / 8;
    if (k == 0) rule_left_ = left_ = 0;
    for (std::int64_t first = 0; first < blocks; first += kRun) {
      const std::int64_t count = std::min(kRun, blocks - first);
      steps::transpose(size, x + first * block_ * size, block_, count, block_, turned_, kRun);
      const SearchedBlocks searched{dtype_,
                                    turned_,
                                    weighted() ? weights_ + k + first * block_ : nullptr,
                                    has_means() ? means_ + k + first * block_ : nullptr,
                                    kRun,
                                    count};
      if (has_means()) {
        search_along(searched, row.maxima + first, scales + first, row.factors + first,
                     errors != nullptr);
      } else {
        search(searched, row.maxima + first, scales + first, row.factors + first);
      }
      if (errors != nullptr) add_errors(count, *errors);
    }
  }

 private:
  static constexpr std::int64_t kRun = 64;  // blocks: their elements stay in the level-1 cache
  static constexpr std::int64_t kLargestBlock = 32;
  static_assert(kRunElements % (kRun * kLargestBlock) == 0);

  bool weighted() const { return job_.options.channel_weights != nullptr; }
  bool has_means() const { return job_.options.channel_means != nullptr; }
  bool is_nvfp4() const { return job_.recipe.family == Family::nvfp4; }

  /// Numbers of the piece's columns, laid out as turned elements are.
  void turn_columns(const float* of_columns, float* to) const {
    const std::int64_t blocks = piece_.count / block_;
    for (std::int64_t first = 0; first < blocks; first += kRun) {
      steps::transpose(sizeof(float), of_columns + piece_.k + first * block_, block_,
                       std::min(kRun, blocks - first), block_, to + first * block_, kRun);
    }
  }

  /// MX with means: each block takes the scale that adds least to what the row's blocks before it
  /// have left: sum v e^2 + (left + sum mean e)^2.
  void search_along(const SearchedBlocks& blocks, const MagnitudeBits* maxima, std::uint8_t* bytes,
                    float* factors, bool measures) {
    const steps::MxErrors errors{{squares_[0], squares_[1]}, {products_[0], products_[1]}};
    const steps::ChoicesAlong choices{{scaled_squares_[0], scaled_squares_[1]},
                                      {added_[0], added_[1]},
                                      difference_,
                                      slope_,
                                      lefts_,
                                      is_lower_};
    steps::measure_mx_scales(job_.recipe.element, blocks, maxima, errors);
    steps::weigh_choices(blocks.count, errors, bytes, factors, choices);
    steps::choose_along(blocks.count, choices, left_);
    if (measures) measure_along(blocks.count, factors);
    for (std::int64_t i = 0; i < blocks.count; ++i) {
      bytes[i] = static_cast<std::uint8_t>(bytes[i] - is_lower_[i]);
      factors[i] *= static_cast<float>(1 + is_lower_[i]);
    }
  }

  void measure_along(std::int64_t count, const float* factors) {
    for (std::int64_t i = 0; i < count; ++i) {
      amax_errors_[i] = errors_[i] = 0;
      if (!steps::is_searched(factors[i])) continue;
      errors_[i] = static_cast<float>(cost(is_lower_[i], i, lefts_[i]));
      amax_errors_[i] = static_cast<float>(cost(0, i, rule_left_));
      const double next = rule_left_ + added_[0][i];
      if (std::isfinite(next)) rule_left_ = next;
    }
  }

  /// What a block's choice adds to the row's error, where earlier ones have left `left`.
  double cost(int choice, std::int64_t i, double left) const {
    const double added = added_[choice][i];
    return scaled_squares_[choice][i] + added * (2 * left + added);
  }

  void search(const SearchedBlocks& blocks, const MagnitudeBits* maxima, std::uint8_t* bytes,
              float* factors) {
    if (is_nvfp4()) {
      steps::search_nvfp4_scales(job_.matrix_scale(piece_.matrix), blocks, maxima, bytes, factors,
                                 amax_errors_, errors_);
    } else {
      steps::search_mx_scales(job_.recipe.element, blocks, maxima, bytes, factors, amax_errors_,
                              errors_);
    }
  }

  void add_errors(std::int64_t count, ScaleErrors& sums) const {
    double amax = 0, chosen = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const bool finite = amax_errors_[i] <= std::numeric_limits<float>::max();  // false for NaN
      amax += double{finite ? amax_errors_[i] : 0.0f};
      chosen += double{finite ? errors_[i] : 0.0f};
    }
    const double scale = is_nvfp4() ? double{job_.matrix_scale(piece_.matrix)} : 1.0;
    sums.amax += amax / (scale * scale);
    sums.chosen += chosen / (scale * scale);
  }

  const QuantizeJob& job_;
  const Piece& piece_;
  const Format dtype_;
  const std::int64_t block_;
  float turned_[kRun * kLargestBlock] = {};  // elements of any type
  float weights_[kSearchedPieceK] = {}, means_[kSearchedPieceK] = {};
  double left_ = 0, rule_left_ = 0;  // of this row: sums of means times errors
  float squares_[2][kRun + kArrayPadding], products_[2][kRun + kArrayPadding];
  double scaled_squares_[2][kRun], added_[2][kRun];
  double difference_[kRun], slope_[kRun], lefts_[kRun];
  std::uint8_t is_lower_[kRun];
  float amax_errors_[kRun + kArrayPadding], errors_[kRun + kArrayPadding];
};

/// A piece whose scales come from its elements: a row of scales after the other, and of blocks of
/// one row a run after the other.
void scale_and_encode_piece(const QuantizeJob& job, const Piece& piece, const PieceRows& rows,
                            ScaleErrors* errors) {
  const NanRule nan_rule = job.recipe.family == Family::fp8 ? NanRule::ignore : NanRule::poison;
  const std::int64_t scale_size = format_traits(job.recipe.scale).bits / 8;
  // Placed together, as a row's lie far apart in some layouts. What a run stores beyond its own is
  // overwritten by the next.
  alignas(64) std::uint8_t scales[kMaxScaleBytes + kArrayPadding * sizeof(float)];
  ScaleRow scale_row;
  std::optional<PieceSearch> search;
  if (job.options.scale_choice != ScaleChoice::amax) search.emplace(job, piece, rows.dtype);
  for_each_run_of(job.cut, piece, [&](const Piece& run) {
    const PieceRows x = rows.from(run.row - piece.row, run.k - piece.k);
    const std::int64_t blocks = ceil_div(run.count, job.cut.block_k);
    std::fill_n(scale_row.maxima, blocks + kArrayPadding, 0u);
    for (std::int64_t r = 0; r < run.rows; ++r) {
      steps::block_maxima(x.dtype, x.row(r), run.count, std::min(job.cut.block_k, run.count),
                          nan_rule, scale_row.maxima);
    }
    std::uint8_t* const of_run = scales + job.cut.first_scale(piece, run) * scale_size;
    compute_scales(job, run, blocks, scale_row, of_run);
    if (search) search->run(x.first, run.k - piece.k, blocks, scale_row, of_run, errors);
    encode_rows(job, run, x, scale_row.factors, bytes_ahead(job, run, x));
  });
  if (scale_size == sizeof(float)) {
    place_piece_scales<float>(job, piece, scales);
  } else {
    place_piece_scales<std::uint8_t>(job, piece, scales);
  }
}

}  // namespace

void quantize_piece(const QuantizeJob& job, const Piece& piece, const PieceRows& rows,
                    ScaleErrors* errors) {
  job.knows_scales() ? encode_piece(job, piece, rows)
                     : scale_and_encode_piece(job, piece, rows, errors);
}

}  // namespace blockscale
