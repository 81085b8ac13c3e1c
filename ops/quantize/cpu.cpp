// Quantisation on the CPU: what happens to a piece of a tensor (pieces.h), and what has to be known
// before. What happens to a run of one row is in kernels.h.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "blockscale/parallel.h"
#include "blockscale/quantize.h"
#include "ops/float_environment.h"
#include "ops/quantize/kernels.h"
#include "ops/quantize/pieces.h"
#include "ops/quantize/scale_placement.h"
#include "ops/quantize/validate.h"

namespace blockscale {
namespace {

using kernels::kArrayPadding;
using kernels::MagnitudeBits;
using kernels::NanRule;
using kernels::Scaling;

constexpr float kLargestFinite = std::numeric_limits<float>::max();

/// One call of `quantize`, with everything that its pieces share.
struct Job {
  MatrixView x;
  MutableScaledTensorView out;
  QuantizeOptions options;
  RecipeTraits recipe;
  Cut cut;
  /// For each matrix: NVFP4's S, or the one scale that all of an fp8_tensor's elements have.
  std::vector<float> matrix_scales;

  bool has_given_scales() const { return options.scale_source == ScaleSource::given; }
  float matrix_scale(std::int64_t matrix) const {
    return matrix_scales[static_cast<std::size_t>(matrix)];
  }
};

const std::uint8_t* input_row(const Job& job, const Piece& piece, std::int64_t row) {
  const std::int64_t element = piece.matrix * job.x.batch_stride + row * job.x.row_stride + piece.k;
  return static_cast<const std::uint8_t*>(job.x.data) +
         element * (format_traits(job.x.dtype).bits / 8);
}

std::uint8_t* output_row(const Job& job, const Piece& piece, std::int64_t row) {
  return static_cast<std::uint8_t*>(job.out.values) + piece.matrix * job.out.value_batch_stride +
         row * job.out.value_row_stride + row_bytes(job.out.recipe, piece.k);
}

/// Scales and factors of one scale row of a piece.
struct ScaleRow {
  MagnitudeBits maxima[kMaxBlocks + kArrayPadding];
  float factors[kMaxBlocks + kArrayPadding];
};

/// Stores scales of `blocks` blocks from `row.maxima` into `out`, and fills `row.factors`.
void compute_scales(const Job& job, const Piece& piece, std::int64_t blocks, ScaleRow& row,
                    std::uint8_t* out) {
  const RecipeTraits& t = job.recipe;
  if (t.family == Family::mx) {
    kernels::mx_scales(t.element, job.options.mx_scale_mode, row.maxima, blocks, out, row.factors);
  } else if (t.family == Family::nvfp4) {
    kernels::nvfp4_scales(job.matrix_scale(piece.matrix), row.maxima, blocks, out, row.factors);
  } else {
    float scales[kMaxBlocks + kArrayPadding];
    kernels::fp8_scales(t.element, t.power_of_two, job.options.fp8_amax_floor, row.maxima, blocks,
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
void place_piece_scales(const Job& job, const Piece& piece, const std::uint8_t* scales,
                        std::int64_t pitch) {
  const MutableScaledTensorView& out = job.out;
  const Cut::Scales part = job.cut.scales_of(piece);
  Scale* const matrix = static_cast<Scale*>(out.scales) + piece.matrix * out.scale_batch_stride;
  place_scales(
      PlacedScales<Scale>{matrix, out.layout, out.scale_leading_stride},
      {part.row, part.rows, part.column, part.columns, ceil_div(job.cut.rows, job.cut.block_rows)},
      reinterpret_cast<const Scale*>(scales), pitch);
}

/// Asks for `bytes` bytes to be read soon. Any address will do.
void prefetch(const std::uint8_t* from, std::int64_t bytes) {
  constexpr std::int64_t kLine = 64;
  for (std::int64_t i = 0; i < bytes; i += kLine) __builtin_prefetch(from + i);
}

/// Elements that are encoded between two prefetches: whole blocks of every recipe with short ones.
constexpr std::int64_t kPrefetchStep = 256;

/// What is read once the row of a piece is done: the row below, or, where all rows of a piece are
/// read before the first is encoded, that row of the piece to the right. nullptr: something else.
const std::uint8_t* read_next(const Job& job, const Piece& piece, std::int64_t row) {
  if (job.recipe.block_rows > 1) {
    const std::int64_t k = piece.k + piece.count;
    return k < job.cut.k ? input_row(job, {piece.matrix, 0, 0, k, 0}, row) : nullptr;
  }
  return row + 1 < piece.row + piece.rows ? input_row(job, piece, row + 1) : nullptr;
}

/// Codes of rows [row, row + rows) of a piece, whose blocks share `factors`. Meanwhile what is read
/// next comes into the cache: encoding leaves the memory idle, and finding maxima waits for it.
void encode_rows(const Job& job, const Piece& piece, std::int64_t row, std::int64_t rows,
                 const float* factors) {
  const RecipeTraits& t = job.recipe;
  const bool multiply = t.family != Family::fp8 || t.power_of_two;
  const Scaling scaling = multiply ? Scaling::multiply : Scaling::divide;
  const std::int64_t block = std::min(job.cut.block_k, piece.count);
  const bool divides = kPrefetchStep % block == 0 || block == piece.count;
  const std::int64_t step = divides ? kPrefetchStep : piece.count;
  const int size = format_traits(job.x.dtype).bits / 8;
  for (std::int64_t r = row; r < row + rows; ++r) {
    const std::uint8_t* const x = input_row(job, piece, r);
    const std::uint8_t* const next = read_next(job, piece, r);
    std::uint8_t* const codes = output_row(job, piece, r);
    for (std::int64_t k = 0; k < piece.count; k += step) {
      const std::int64_t count = std::min(step, piece.count - k);
      if (next != nullptr) prefetch(next + k * size, count * size);
      kernels::encode_blocks(job.x.dtype, t.element, scaling, x + k * size, count,
                             std::min(block, count), factors + k / block,
                             codes + row_bytes(job.out.recipe, k));
    }
  }
}

/// A piece whose scales are known: fp8_tensor, and fp8_row with given scales.
void encode_piece(const Job& job, const Piece& piece) {
  if (job.recipe.block_rows == 0) {
    const float factor = job.matrix_scale(piece.matrix);
    encode_rows(job, piece, piece.row, piece.rows, &factor);
    return;
  }
  const float* const scales =
      static_cast<const float*>(job.out.scales) + piece.matrix * job.out.scale_batch_stride;
  for (std::int64_t row = piece.row; row < piece.row + piece.rows; ++row) {
    encode_rows(job, piece, row, 1,
                scales + scale_offset(job.out.layout, row, 0, job.out.scale_leading_stride));
  }
}

/// A piece whose scales come from its elements.
void quantize_piece(const Job& job, const Piece& piece) {
  const NanRule nan_rule = job.recipe.family == Family::fp8 ? NanRule::ignore : NanRule::poison;
  const std::int64_t blocks = ceil_div(piece.count, job.cut.block_k);
  const std::int64_t scale_size = format_traits(job.recipe.scale).bits / 8;
  const std::int64_t pitch = blocks + kArrayPadding;
  alignas(64) std::uint8_t scales[kPieceScaleRows * (kMaxBlocks + kArrayPadding)];
  ScaleRow scale_row;
  for (std::int64_t first = 0; first < piece.rows; first += job.cut.block_rows) {
    const std::int64_t rows = std::min(job.cut.block_rows, piece.rows - first);
    std::fill_n(scale_row.maxima, blocks + kArrayPadding, 0u);
    for (std::int64_t r = 0; r < rows; ++r) {
      kernels::block_maxima(job.x.dtype, input_row(job, piece, piece.row + first + r), piece.count,
                            std::min(job.cut.block_k, piece.count), nan_rule, scale_row.maxima);
    }
    compute_scales(job, piece, blocks, scale_row,
                   scales + first / job.cut.block_rows * pitch * scale_size);
    encode_rows(job, piece, piece.row + first, rows, scale_row.factors);
  }
  if (job.recipe.scale == Format::f32) {
    place_piece_scales<float>(job, piece, scales, pitch);
  } else {
    place_piece_scales<std::uint8_t>(job, piece, scales, pitch);
  }
}

/// NVFP4: S of each matrix, from the data or from what the caller gave; stores what was computed.
void settle_tensor_scales(Job& job) {
  const MutableScaledTensorView& out = job.out;
  const bool multiplier = out.sense == TensorScaleSense::multiplier;
  const std::int64_t step = out.tensor_scale_batch_stride;
  const DefaultFloatEnvironment environment;
  if (job.has_given_scales()) {
    for (std::int64_t b = 0; b < out.batch; ++b) {
      const float given = out.tensor_scale == nullptr ? 1.0f : out.tensor_scale[b * step];
      job.matrix_scales.push_back(multiplier ? std::min(1.0f / given, kLargestFinite) : given);
    }
    return;
  }
  std::vector<float> amax(static_cast<std::size_t>(out.batch));
  absolute_maximum(job.x, amax.data(), job.options.threads);
  if (step == 0) {
    const float all = amax.empty() ? 0.0f : *std::max_element(amax.begin(), amax.end());
    amax.assign(std::max<std::size_t>(1, amax.size()), all);
  }
  for (const float a : amax) job.matrix_scales.push_back(nvfp4_tensor_scale(a));
  for (std::size_t b = 0; b < (step == 0 ? 1 : amax.size()); ++b) {
    const float scale = job.matrix_scales[b];
    out.tensor_scale[b] = !multiplier ? scale : nvfp4_tensor_multiplier(amax[b]);
  }
}

/// fp8_tensor: the scale of each matrix, from the data (and stored) or as given.
void settle_fp8_tensor_scales(Job& job) {
  if (job.cut.rows == 0 || job.cut.k == 0) return;
  const DefaultFloatEnvironment environment;
  std::vector<float> amax(static_cast<std::size_t>(job.out.batch));
  if (!job.has_given_scales()) absolute_maximum(job.x, amax.data(), job.options.threads);
  for (std::int64_t b = 0; b < job.out.batch; ++b) {
    float* const stored = static_cast<float*>(job.out.scales) + b * job.out.scale_batch_stride;
    if (!job.has_given_scales()) {
      const MagnitudeBits maxima[1 + kArrayPadding] = {
          bit_cast<MagnitudeBits>(amax[static_cast<std::size_t>(b)])};
      float scales[1 + kArrayPadding];
      float factors[1 + kArrayPadding];
      kernels::fp8_scales(job.recipe.element, job.recipe.power_of_two, job.options.fp8_amax_floor,
                          maxima, 1, scales, factors);
      *stored = scales[0];
    }
    job.matrix_scales.push_back(*stored);
  }
}

/// The largest magnitude (bits) of a run of a row: NaN ignored, Inf as the largest finite f32.
float run_maximum(Format dtype, const std::uint8_t* x, std::int64_t count) {
  MagnitudeBits maxima[1 + kArrayPadding] = {};
  kernels::block_maxima(dtype, x, count, count, NanRule::ignore, maxima);
  return bit_cast<float>(std::min(maxima[0], kernels::kLargestFinite));
}

void raise_to(float& target, float value) {
  const std::atomic_ref<float> shared(target);
  float seen = shared.load(std::memory_order_relaxed);
  while (seen < value && !shared.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

}  // namespace

void quantize(const MatrixView& x, const MutableScaledTensorView& out,
              const QuantizeOptions& options) {
  const quantize_detail::QuantizeArguments arguments = quantize_detail::validated(x, out, options);
  if (options.scale_source == ScaleSource::given) {
    quantize_detail::check_given_scales(arguments.out);
  }
  if (options.input.transform != InputTransform::identity) {
    throw Error(ErrorCode::unsupported, "options.input.transform", "is not identity");
  }
  const RecipeTraits& recipe = recipe_traits(out.recipe);
  Job job{arguments.x, arguments.out, options, recipe, Cut(recipe, x.batch, x.rows, x.columns), {}};
  if (recipe.tensor_scale) settle_tensor_scales(job);
  if (recipe.block_rows == 0) settle_fp8_tensor_scales(job);
  const bool scales_known =
      recipe.block_rows == 0 || (recipe.family == Family::fp8 && job.has_given_scales());
  for_each_piece(job.cut, options.threads, [&](const Piece& piece) {
    scales_known ? encode_piece(job, piece) : quantize_piece(job, piece);
  });
}

ScaledTensor quantize(const MatrixView& x, Recipe recipe, ScaleLayout layout,
                      const QuantizeOptions& options, std::optional<float> tensor_scale,
                      TensorScaleSense sense) {
  const MatrixView input = resolved(x, "x");
  ScaledTensor result(recipe, input.rows, input.columns, layout, input.batch, sense);
  const MutableScaledTensorView out = result.view();
  QuantizeOptions used = options;
  if (tensor_scale.has_value()) {
    if (out.tensor_scale == nullptr) {
      throw Error(ErrorCode::invalid_argument, "tensor_scale",
                  std::string("is given, but ") + recipe_traits(recipe).name + " has none");
    }
    std::fill_n(out.tensor_scale, out.batch, *tensor_scale);
    used.scale_source = ScaleSource::given;
  } else if (options.scale_source == ScaleSource::given) {
    throw Error(ErrorCode::invalid_argument, "options.scale_source",
                "is given, but no scales are: pass tensor_scale (nvfp4), or an output that holds "
                "its scales");
  }
  quantize(input, out, used);
  return result;
}

void absolute_maximum(const MatrixView& x, float* out, int threads) {
  MatrixView input = quantize_detail::validated(x, out, threads);
  if (input.rows == 0 || input.columns == 0) {
    std::fill_n(out, input.batch, 0.0f);
    return;
  }
  // Rows that touch are one long row.
  if (input.row_stride == input.columns) {
    input.columns *= input.rows;
    input.rows = 1;
  }
  std::fill_n(out, input.batch, 0.0f);
  const std::int64_t size = format_traits(input.dtype).bits / 8;
  const std::int64_t run = std::min(input.columns, kPieceElements);
  const std::int64_t runs = ceil_div(input.columns, run);
  const std::int64_t count = input.batch * input.rows * runs;
  parallel_for(count, std::max<std::int64_t>(1, kPieceElements / run), threads,
               [&](std::int64_t begin, std::int64_t end) {
                 const DefaultFloatEnvironment environment;
                 for (std::int64_t i = begin; i < end; ++i) {
                   const std::int64_t matrix = i / (input.rows * runs);
                   const std::int64_t row = i / runs % input.rows;
                   const std::int64_t column = i % runs * run;
                   const std::int64_t element =
                       matrix * input.batch_stride + row * input.row_stride + column;
                   raise_to(out[matrix], run_maximum(input.dtype,
                                                     static_cast<const std::uint8_t*>(input.data) +
                                                         element * size,
                                                     std::min(run, input.columns - column)));
                 }
               });
}

float nvfp4_tensor_scale(float amax) {
  const DefaultFloatEnvironment environment;
  return amax == 0 ? 1.0f : std::min(2688.0f / std::min(amax, kLargestFinite), kLargestFinite);
}

float nvfp4_tensor_multiplier(float amax) {
  const DefaultFloatEnvironment environment;
  const float scale = nvfp4_tensor_scale(amax);
  const bool clamped = scale == kLargestFinite;
  return amax == 0 ? 1.0f : clamped ? 1.0f / scale : std::min(amax, kLargestFinite) / 2688.0f;
}

}  // namespace blockscale
