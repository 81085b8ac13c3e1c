// moe's reference: each step of the layer in float64, for a sample of tokens. What the library
// quantizes and rounds between its steps is quantized and rounded here, from float64 sums.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <utility>
#include <variant>
#include <vector>

#include "blockscale/parallel.h"
#include "blockscale/quantize.h"
#include "products/moe.h"

namespace blockscale::cli {
namespace {

using Floats = std::vector<float>;  // a matrix, row by row

/// An entry of a sampled token whose expert is here.
struct Entry {
  std::int64_t expert = 0;
  std::int64_t sample = 0;  // its row of the sampled x
  float weight = 0;
};

Floats values_of(const ScaledTensorView& x, int threads) {
  Floats values(static_cast<std::size_t>(x.rows * x.k));
  dequantize(x, {values.data(), Format::f32, x.rows, x.k}, threads);
  return values;
}

/// Matrix `i` of a packed batch.
Floats matrix_values(const ScaledTensorView& batch, std::int64_t i, int threads) {
  ScaledTensorView x = batch;
  const auto behind = [i](const void* data, std::int64_t bytes) {
    return data == nullptr ? nullptr : static_cast<const std::uint8_t*>(data) + i * bytes;
  };
  const std::int64_t size_of_scale = format_traits(recipe_traits(x.recipe).scale).bits / 8;
  x.values = behind(x.values, x.value_batch_stride);
  x.scales = behind(x.scales, x.scale_batch_stride * size_of_scale);
  if (x.tensor_scale != nullptr) x.tensor_scale += i * x.tensor_scale_batch_stride;
  x.batch = 1;
  return values_of(x, threads);
}

/// As the library leaves them where it rounds them to bf16.
void round_to_bf16(Floats& values) {
  const auto count = static_cast<std::int64_t>(values.size());
  const ScaledTensor rounded(Recipe::bf16, 1, count);
  const MutableMatrixView to{const_cast<void*>(rounded.view().values), Format::bf16, 1, count};
  dequantize(as_scaled({values.data(), Format::f32, 1, count}), to);
  values = values_of(rounded.view(), 0);
}

double dot(const float* a, const float* b, std::int64_t k) {
  constexpr std::size_t kLanes = 16;  // that vectors can hold
  std::array<double, kLanes> sums = {};
  std::int64_t i = 0;
  for (; i + static_cast<std::int64_t>(kLanes) <= k; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const auto at = static_cast<std::size_t>(i) + lane;
      sums[lane] += static_cast<double>(a[at]) * static_cast<double>(b[at]);
    }
  }
  for (; i < k; ++i) sums[0] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  double sum = 0;
  for (const double of_lane : sums) sum += of_lane;
  return sum;
}

/// Row r is a's row row_of(r), times the transpose of its entry's matrix, summed in float64 and
/// rounded to f32. Entries are sorted by expert.
Floats multiply(const Floats& a, const auto& row_of, const std::vector<Entry>& entries,
                const ScaledTensorView& matrices, int threads) {
  const std::int64_t n = matrices.rows, k = matrices.k;
  Floats result(entries.size() * static_cast<std::size_t>(n));
  for (std::size_t begin = 0, end = 0; begin < entries.size(); begin = end) {
    while (end < entries.size() && entries[end].expert == entries[begin].expert) ++end;
    const Floats matrix = matrix_values(matrices, entries[begin].expert, threads);
    parallel_for(n, 16, threads, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t column = first; column < last; ++column) {
        for (std::size_t row = begin; row < end; ++row) {
          const double sum = dot(a.data() + row_of(row) * k, matrix.data() + column * k, k);
          result[row * static_cast<std::size_t>(n) + static_cast<std::size_t>(column)] =
              static_cast<float>(sum);
        }
      }
    });
  }
  return result;
}

double silu(double x) {
  return x / (1 + std::exp(-x));
}

double gelu(double x, GeluForm form) {
  if (form == GeluForm::erf) return x * (1 + std::erf(x / std::numbers::sqrt2)) / 2;
  const double inner = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return x * (1 + std::tanh(inner)) / 2;
}

/// Rows of `columns` numbers, of which `transform` makes `inner` each, in bf16.
Floats transformed(const Floats& sums, std::int64_t columns, std::int64_t inner,
                   const QuantizeInput& transform) {
  Floats result;
  for (auto row = sums.begin(); row != sums.end(); row += columns) {
    for (std::int64_t i = 0; i < inner; ++i) {
      const double x = row[i];
      double y = x;
      if (const auto* const of = std::get_if<Gelu>(&transform)) y = gelu(x, of->form);
      if (std::holds_alternative<Silu>(transform)) y = silu(x);
      if (std::holds_alternative<Swiglu>(transform)) {
        y = silu(x) * static_cast<double>(row[inner + i]);
      }
      result.push_back(static_cast<float>(y));
    }
  }
  round_to_bf16(result);
  return result;
}

/// What the library makes of f32 rows in `recipe`, `columns` each.
Floats quantized(const Floats& rows, std::int64_t columns, Recipe recipe,
                 const QuantizeInput& input, int threads) {
  QuantizeOptions options;
  options.input = input;
  options.threads = threads;
  const auto count = static_cast<std::int64_t>(rows.size()) / columns;
  const ScaledTensor tensor =
      quantize({rows.data(), Format::f32, count, columns}, recipe, ScaleLayout::row_major, options);
  return values_of(tensor.view(), threads);
}

/// `samples` evenly spaced rows of a plain matrix.
Floats sampled_rows(const MatrixView& x, std::int64_t samples) {
  const Floats all = values_of(as_scaled(x), 0);
  Floats rows;
  for (std::int64_t i = 0; i < samples; ++i) {
    const auto row = all.begin() + i * x.rows / samples * x.columns;
    rows.insert(rows.end(), row, row + x.columns);
  }
  return rows;
}

std::vector<Entry> sampled_entries(const MoeArguments& x, std::int64_t samples) {
  std::vector<Entry> entries;
  for (std::int64_t i = 0; i < samples; ++i) {
    const std::int64_t token = i * x.x.rows / samples;
    for (int j = 0; j < x.top_k; ++j) {
      const std::int32_t expert = x.ids[token * x.top_k + j];
      if (expert < x.w2.batch) entries.push_back({expert, i, x.weights[token * x.top_k + j]});
    }
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.expert, a.sample) < std::pair(b.expert, b.sample);
  });
  return entries;
}

Recipe activations_of(const MoeArguments& x) {
  const bool is_fp8 = recipe_traits(x.w13.recipe).family == Family::fp8;
  return x.activations.value_or(is_fp8 ? Recipe::fp8_1x128 : Recipe::bf16);
}

/// y of the sampled tokens.
std::vector<double> exact(const MoeArguments& x, std::int64_t samples, int threads) {
  const Recipe activations = activations_of(x);
  const std::vector<Entry> entries = sampled_entries(x, samples);
  std::vector<double> y(static_cast<std::size_t>(samples * x.y.columns));
  if (entries.empty()) return y;
  Floats tokens = sampled_rows({x.x.values, Format::bf16, x.x.rows, x.x.k}, samples);
  if (!is_plain(activations)) tokens = quantized(tokens, x.x.k, activations, Identity{}, threads);
  const auto sample_of = [&](std::size_t row) { return entries[row].sample; };
  const Floats sums = multiply(tokens, sample_of, entries, x.w13, threads);
  const Floats inner = is_plain(activations)
                           ? transformed(sums, x.w13.rows, x.w2.k, x.transform)
                           : quantized(sums, x.w13.rows, activations, x.transform, threads);
  const auto itself = [](std::size_t row) { return static_cast<std::int64_t>(row); };
  Floats rows = multiply(inner, itself, entries, x.w2, threads);
  round_to_bf16(rows);
  const auto width = static_cast<std::size_t>(x.y.columns);
  for (std::size_t row = 0; row < entries.size(); ++row) {
    double* const of_token = y.data() + static_cast<std::size_t>(entries[row].sample) * width;
    for (std::size_t c = 0; c < width; ++c) {
      of_token[c] +=
          static_cast<double>(entries[row].weight) * static_cast<double>(rows[row * width + c]);
    }
  }
  return y;
}

}  // namespace

MoeCheck check_moe(const MoeArguments& x, std::int64_t samples, int threads) {
  constexpr double kAllowed =
      0.006;  // codes that other sums move to their neighbours; y's rounding
  const std::int64_t count = std::min(samples, x.x.rows);
  const std::vector<double> wanted = exact(x, count, threads);
  const Floats got = sampled_rows(x.y, count);
  double wrong = 0, whole = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double difference = static_cast<double>(got[i]) - wanted[i];
    wrong += difference * difference;
    whole += wanted[i] * wanted[i];
  }
  return {count, wrong == 0 ? 0 : std::sqrt(wrong / whole), kAllowed};
}

}  // namespace blockscale::cli
