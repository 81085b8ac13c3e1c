// Times of `quantize` and `dequantize`, next to memcpy's in the same run (blockscale/bench.h).
#include "blockscale/bench.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <string>

#include "blockscale/parallel.h"
#include "blockscale/quantize.h"
#include "ops/common/times.h"
#include "ops/quantize/bench/cases.h"
#include "ops/quantize/fused_input.h"

namespace blockscale {
namespace {

using Bytes = std::vector<std::uint8_t>;

/// `count` numbers of `dtype` around zero, of a few binades, the same in every run. Which numbers
/// they are does not change what quantize does; they are finite.
Bytes random_numbers(Format dtype, std::int64_t count) {
  const std::size_t size = static_cast<std::size_t>(format_traits(dtype).bits) / 8;
  Bytes bytes(static_cast<std::size_t>(count) * size);
  std::uint32_t state = 1;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    state = state * 1664525u + 1013904223u;
    // Sign and mantissa from the upper bits, an exponent of 2^-4 to 2^3.
    const std::uint32_t exponent = 123u + (state >> 9 & 7u);
    const std::uint32_t f32 = (state & 0x80000000u) | exponent << 23 | (state >> 8 & 0x7FFFFFu);
    const std::uint32_t code = encode(dtype, std::bit_cast<float>(f32));
    std::memcpy(bytes.data() + i * size, &code, size);
  }
  return bytes;
}

/// Bytes a second that memcpy moves (read + written) on `threads` threads.
double memcpy_rate(const Bytes& from, Bytes& to, int threads, int repeats) {
  constexpr std::int64_t kPiece = std::int64_t{4} << 20;
  const auto size = static_cast<std::int64_t>(from.size());
  // One thread copies as a program would: in one call.
  const std::int64_t piece = effective_threads(threads) == 1 ? size : kPiece;
  const auto copy = [&] {
    parallel_for(size, piece, threads, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(to.data() + begin, from.data() + begin, static_cast<std::size_t>(end - begin));
    });
  };
  return 2 * static_cast<double>(size) / sorted_times(repeats, copy).front();
}

ScaleLayout usual_layout(Recipe recipe) {
  return has_swizzled_scales(recipe_traits(recipe)) ? ScaleLayout::swizzled_128x4
                                                    : ScaleLayout::row_major;
}

bool allows(Recipe recipe, ScaleLayout layout) {
  return !is_swizzled(layout) || has_swizzled_scales(recipe_traits(recipe));
}

/// The cases that `options` ask for, in the order of recipes, dtypes, layouts, transforms.
std::vector<QuantizeBenchmarkRow> cases(const QuantizeBenchmarkOptions& options) {
  const std::vector<Format> dtypes = quantize_detail::measured_dtypes(options.dtypes);
  const std::vector<InputTransform> transforms =
      quantize_detail::measured_transforms(options.transforms);
  std::vector<QuantizeBenchmarkRow> result;
  QuantizeBenchmarkRow row;
  row.threads = effective_threads(options.threads);
  for (const Recipe recipe : quantize_detail::measured_recipes(options.recipes)) {
    const std::vector<ScaleLayout> layouts =
        options.layouts.empty() ? std::vector{usual_layout(recipe)} : options.layouts;
    for (const Format dtype : dtypes) {
      for (const ScaleLayout layout : layouts) {
        if (!allows(recipe, layout)) continue;
        for (const InputTransform transform : transforms) {
          row.recipe = recipe;
          row.dtype = dtype;
          row.layout = layout;
          row.transform = transform;
          result.push_back(row);
        }
      }
    }
  }
  return result;
}

/// Most elements, or bytes to copy, that a benchmark may have.
constexpr std::int64_t kMost = std::int64_t{1} << 40;

[[noreturn]] void fail(const char* argument, std::int64_t value, const char* allowed) {
  throw Error(ErrorCode::invalid_argument, argument,
              "is " + std::to_string(value) + ", must be " + allowed);
}

void check_copy(std::int64_t bytes, int threads, int repeats) {
  if (bytes < 1 || bytes > kMost) fail("bytes", bytes, "in 1..2^40");
  if (threads < 0) fail("threads", threads, "0 (all) or above");
  if (repeats < 1) fail("repeats", repeats, "at least 1");
}

void check(const QuantizeBenchmarkOptions& options) {
  if (options.rows < 1 || options.rows > kMost) fail("options.rows", options.rows, "in 1..2^40");
  if (options.k < 1 || options.k > kMost / options.rows) {
    fail("options.k", options.k, "at least 1, and rows * k at most 2^40");
  }
  if (options.threads < 0) fail("options.threads", options.threads, "0 (all) or above");
  if (options.repeats < 1) fail("options.repeats", options.repeats, "at least 1");
}

/// Where the results of the cases of one dtype come from, and memcpy's rate.
struct Elements {
  Format dtype;
  Bytes bytes;
  double copy_rate = 0;

  Elements(Format format, std::int64_t count, std::int64_t copied,
           const QuantizeBenchmarkOptions& options)
      : dtype(format), bytes(random_numbers(dtype, count)) {
    const std::int64_t size = format_traits(dtype).bits / 8;
    const Bytes from(bytes.begin(), bytes.begin() + copied * size);
    Bytes copy(from.size(), 1);
    copy_rate = memcpy_rate(from, copy, options.threads, options.repeats);
  }
};

double bytes_of(const ScaledTensorView& x) {
  return static_cast<double>(value_bytes(x.recipe, x.rows, x.k) +
                             scale_bytes(x.recipe, x.layout, x.rows, x.k));
}

void set_times(QuantizeBenchmarkRow& row, const std::vector<double>& sorted) {
  row.seconds = sorted.front();
  row.median_seconds = sorted[sorted.size() / 2];
  row.quartile_seconds[0] = sorted[sorted.size() / 4];
  row.quartile_seconds[1] = sorted[sorted.size() - 1 - sorted.size() / 4];
}

void set_rates(QuantizeBenchmarkRow& row, double unquantized, double all, double copy_rate) {
  row.input_gb_per_second = unquantized / row.seconds * 1e-9;
  row.bytes_per_second = all / row.seconds;
  row.memcpy_share = row.bytes_per_second / copy_rate;
}

}  // namespace

namespace quantize_detail {

std::vector<Recipe> measured_recipes(const std::vector<Recipe>& wanted) {
  for (const Recipe recipe : wanted) {
    if (!is_plain(recipe)) continue;
    throw Error(ErrorCode::invalid_argument, "options.recipes",
                std::string("has ") + recipe_traits(recipe).name + ", must be scaled recipes");
  }
  if (!wanted.empty()) return wanted;
  std::vector<Recipe> scaled;
  for (const RecipeTraits& t : kRecipes) {
    if (t.family != Family::plain) scaled.push_back(t.recipe);
  }
  return scaled;
}

std::vector<Format> measured_dtypes(const std::vector<Format>& wanted) {
  for (const Format dtype : wanted) {
    if (dtype == Format::f32 || dtype == Format::f16 || dtype == Format::bf16) continue;
    throw Error(ErrorCode::invalid_argument, "options.dtypes",
                std::string("has ") + format_traits(dtype).name + ", must be f32, f16 or bf16");
  }
  return wanted.empty() ? std::vector{Format::bf16} : wanted;
}

std::vector<InputTransform> measured_transforms(const std::vector<InputTransform>& wanted) {
  return wanted.empty() ? std::vector{InputTransform::identity} : wanted;
}

}  // namespace quantize_detail

double benchmark_copy(std::int64_t bytes, int threads, int repeats) {
  check_copy(bytes, threads, repeats);
  const Bytes from(static_cast<std::size_t>(bytes), 1);
  Bytes to(from.size(), 2);
  return memcpy_rate(from, to, threads, repeats);
}

std::vector<QuantizeBenchmarkRow> benchmark_quantize(const QuantizeBenchmarkOptions& options) {
  check(options);
  std::vector<QuantizeBenchmarkRow> result = cases(options);
  const bool gated = std::any_of(result.begin(), result.end(), [](const QuantizeBenchmarkRow& row) {
    return row.transform == InputTransform::swiglu;
  });
  const std::int64_t elements = options.rows * options.k;
  const std::vector<float> weights(static_cast<std::size_t>(options.k), 1.0f);
  std::optional<Elements> input;
  for (QuantizeBenchmarkRow& row : result) {
    const std::int64_t size = format_traits(row.dtype).bits / 8;
    if (!input || row.dtype != input->dtype) {
      input.emplace(row.dtype, gated ? 2 * elements : elements, elements, options);
    }
    const bool halves = row.transform == InputTransform::swiglu;
    const MatrixView x{input->bytes.data(), row.dtype, options.rows,
                       halves ? 2 * options.k : options.k};
    ScaledTensor out(row.recipe, options.rows, options.k, row.layout);
    QuantizeOptions quantize_options;
    quantize_options.threads = options.threads;
    const MatrixView operand{input->bytes.data(), row.dtype, 1, options.k};
    quantize_options.input = quantize_detail::input_of(row.transform, operand, operand, operand);
    const RecipeTraits& t = recipe_traits(row.recipe);
    if (t.family == Family::mx || t.family == Family::nvfp4) {
      quantize_options.scale_choice = options.scale_choice;
      if (options.scale_choice == ScaleChoice::weighted) {
        quantize_options.channel_weights = weights.data();
      }
    }
    set_times(row,
              sorted_times(options.repeats, [&] { quantize(x, out.view(), quantize_options); }));
    const auto read = static_cast<double>(x.rows * x.columns * size);
    const int reads = has_tensor_wide_scale(t) ? 2 : 1;  // one for the tensor's maximum
    set_rates(row, read, reads * read + bytes_of(out.view()), input->copy_rate);
  }
  return result;
}

std::vector<QuantizeBenchmarkRow> benchmark_dequantize(const QuantizeBenchmarkOptions& options) {
  check(options);
  for (const InputTransform transform : options.transforms) {
    if (transform == InputTransform::identity) continue;
    throw Error(ErrorCode::invalid_argument, "options.transforms",
                std::string("has ") + kInputTransformNames[static_cast<int>(transform)] +
                    ", must be identity or empty");
  }
  std::vector<QuantizeBenchmarkRow> result = cases(options);
  const std::int64_t elements = options.rows * options.k;
  std::optional<Elements> input;
  for (QuantizeBenchmarkRow& row : result) {
    if (!input || row.dtype != input->dtype) {
      input.emplace(row.dtype, elements, elements, options);
    }
    const MatrixView x{input->bytes.data(), row.dtype, options.rows, options.k};
    ScaledTensor quantized(row.recipe, options.rows, options.k, row.layout);
    quantize(x, quantized.view());
    Bytes values(input->bytes.size(), 1);
    const MutableMatrixView out{values.data(), row.dtype, options.rows, options.k};
    set_times(row, sorted_times(options.repeats,
                                [&] { dequantize(quantized.view(), out, options.threads); }));
    const auto written = static_cast<double>(values.size());
    set_rates(row, written, written + bytes_of(quantized.view()), input->copy_rate);
  }
  return result;
}

}  // namespace blockscale
