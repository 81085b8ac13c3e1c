// Quantization on the CPU: what has to be known before a piece can be quantized, and the walk over
// the pieces (pieces.h). What happens to a piece is in piece_quantizer.h, to a run in steps.h.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "blockscale/parallel.h"
#include "blockscale/quantize.h"
#include "ops/common/float_environment.h"
#include "ops/common/simd/requested.h"
#include "ops/quantize/cpu/input.h"
#include "ops/quantize/cpu/piece_quantizer.h"
#include "ops/quantize/cpu/pieces.h"
#include "ops/quantize/cpu/steps.h"
#include "ops/quantize/validate.h"

namespace blockscale {
namespace {

using steps::kArrayPadding;
using steps::MagnitudeBits;
using steps::NanRule;

constexpr float kLargestFinite = std::numeric_limits<float>::max();

/// The largest magnitude (bits) of a run of a row: NaN ignored, Inf as the largest finite f32.
float run_maximum(Format dtype, const std::uint8_t* x, std::int64_t count) {
  MagnitudeBits maxima[1 + kArrayPadding] = {};
  steps::block_maxima(dtype, x, count, count, NanRule::ignore, maxima);
  return bit_cast<float>(std::min(maxima[0], steps::kLargestFinite));
}

void raise_to(float& target, float value) {
  const std::atomic_ref<float> shared(target);
  float seen = shared.load(std::memory_order_relaxed);
  while (seen < value && !shared.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

/// Largest magnitudes of matrices as they lie in memory.
void find_input_maxima(MatrixView input, float* out, int threads) {
  // Rows that touch are one long row.
  if (input.row_stride == input.columns) {
    input.columns *= input.rows;
    input.rows = 1;
  }
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

/// Largest magnitude of each matrix that a quantizer of `k` columns reads.
void find_maxima(const Input& input, std::int64_t k, float* out, int threads) {
  const MatrixView& x = input.x();
  std::fill_n(out, x.batch, 0.0f);
  if (x.rows == 0 || k == 0) return;
  if (!input.is_fused()) return find_input_maxima(x, out, threads);
  const Cut cut(recipe_traits(Recipe::fp8_tensor), x.batch, x.rows, k, input.source());
  for_each_piece<PieceReader>(cut, threads, [&](const Piece& piece, PieceReader& reader) {
    const PieceRows rows = reader.read(input, piece);
    float largest = 0;
    for (std::int64_t r = 0; r < piece.rows; ++r) {
      largest = std::max(largest, run_maximum(rows.dtype, rows.row(r), piece.count));
    }
    raise_to(out[piece.matrix], largest);
  });
}

/// NVFP4: S of each matrix, from the data or from what the caller gave; stores what was computed.
void settle_tensor_scales(QuantizeJob& job, const Input& input) {
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
  find_maxima(input, out.k, amax.data(), job.options.threads);
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
void settle_fp8_tensor_scales(QuantizeJob& job, const Input& input) {
  if (job.cut.rows == 0 || job.cut.k == 0) return;
  const DefaultFloatEnvironment environment;
  std::vector<float> amax(static_cast<std::size_t>(job.out.batch));
  if (!job.has_given_scales()) {
    find_maxima(input, job.out.k, amax.data(), job.options.threads);
  }
  for (std::int64_t b = 0; b < job.out.batch; ++b) {
    float* const stored = static_cast<float*>(job.out.scales) + b * job.out.scale_batch_stride;
    if (!job.has_given_scales()) {
      const MagnitudeBits maxima[1 + kArrayPadding] = {
          bit_cast<MagnitudeBits>(amax[static_cast<std::size_t>(b)])};
      float scales[1 + kArrayPadding];
      float factors[1 + kArrayPadding];
      steps::fp8_scales(job.recipe.element, job.recipe.power_of_two, job.options.fp8_amax_floor,
                        maxima, 1, scales, factors);
      *stored = scales[0];
    }
    job.matrix_scales.push_back(*stored);
  }
}

}  // namespace

void quantize(const MatrixView& x, const MutableScaledTensorView& out,
              const QuantizeOptions& options) {
  use_requested_simd();
  const quantize_detail::QuantizeArguments arguments = quantize_detail::validated(x, out, options);
  if (options.scale_source == ScaleSource::given) {
    quantize_detail::check_given_scales(arguments.out);
  }
  quantize_detail::check_channel_weights(options.channel_weights, arguments.out.k);
  quantize_detail::check_channel_means(options.channel_means, options.channel_weights,
                                       arguments.out.k);
  const RecipeTraits& recipe = recipe_traits(out.recipe);
  const Input input(arguments.x, arguments.input);
  QuantizeJob job{arguments.out, options, recipe,
                  Cut(recipe, out.batch, out.rows, out.k, input.source())};
  if (options.scale_choice != ScaleChoice::amax) job.cut.limit_k(kSearchedPieceK);
  if (recipe.tensor_scale) settle_tensor_scales(job, input);
  if (recipe.block_rows == 0) settle_fp8_tensor_scales(job, input);
  // One entry a piece, added in order: the same sums for any number of threads.
  std::vector<ScaleErrors> errors(
      options.scale_errors == nullptr ? 0 : static_cast<std::size_t>(job.cut.pieces()));
  for_each_piece<PieceReader>(
      job.cut, options.threads, [&](const Piece& piece, PieceReader& reader) {
        const auto index = static_cast<std::size_t>(job.cut.index_of(piece));
        quantize_piece(job, piece, reader.read(input, piece),
                       errors.empty() ? nullptr : &errors[index]);
      });
  if (options.scale_errors == nullptr) return;
  *options.scale_errors = {};
  for (const ScaleErrors& piece : errors) {
    options.scale_errors->amax += piece.amax;
    options.scale_errors->chosen += piece.chosen;
  }
}

ScaledTensor quantize(const MatrixView& x, Recipe recipe, ScaleLayout layout,
                      const QuantizeOptions& options, std::optional<float> tensor_scale,
                      TensorScaleSense sense) {
  const MatrixView input = resolved(x, "x");
  const std::int64_t k = quantize_detail::transformed_columns(input, options.input);
  ScaledTensor result(recipe, input.rows, k, layout, input.batch, sense);
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
  absolute_maximum(x, QuantizeInput{}, out, threads);
}

void absolute_maximum(const MatrixView& x, const QuantizeInput& input, float* out, int threads) {
  const quantize_detail::AbsoluteMaximumArguments a =
      quantize_detail::validated(x, input, out, threads);
  find_maxima({a.x, a.input}, a.k, out, threads);
}

float nvfp4_tensor_scale(float amax) {
  const DefaultFloatEnvironment environment;
  if (amax == 0) return 1.0f;
  return std::min(kLargestNvfp4Product / std::min(amax, kLargestFinite), kLargestFinite);
}

float nvfp4_tensor_multiplier(float amax) {
  const DefaultFloatEnvironment environment;
  if (amax == 0) return 1.0f;
  const float scale = nvfp4_tensor_scale(amax);
  if (scale == kLargestFinite) return 1.0f / scale;  // it was clamped
  return std::min(amax, kLargestFinite) / kLargestNvfp4Product;
}

}  // namespace blockscale
