#include "ops/moe/cuda/roofline.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "ops/moe/layer.h"
#include "ops/moe/validate.h"

namespace blockscale::moe_detail {
namespace {

/// Bytes of a packed tensor with its scales.
double bytes_of(Recipe recipe, std::int64_t rows, std::int64_t k) {
  const std::int64_t values = value_bytes(recipe, rows, k);
  const std::int64_t scales =
      is_plain(recipe) ? 0 : scale_bytes(recipe, ScaleLayout::row_major, rows, k);
  return static_cast<double>(values + scales);
}

double size_of(Format dtype) {
  return format_traits(dtype).bits / 8.0;
}

struct Rates {
  double bytes = 0;       // a second, read or copied
  double operations = 0;  // a second, of FP8
};

/// Measured (docs/performance.md); zeros where nothing is.
Rates rates_of(const cuda::Chip& chip) {
  if (chip.architecture != 90) return {};
  const bool is_h200 = chip.name.find("H200") != std::string::npos;
  return {is_h200 ? 4.4e12 : 3.1e12, 1.27e15};
}

}  // namespace

LayerWork work_of(const MoeArguments& x, const MoeParts& parts) {
  LayerWork work;
  const std::int64_t tokens = parts.tokens;
  const auto experts = static_cast<double>(experts_of(x));
  const std::int64_t hidden = x.x.k, inner = inner_of(x), entries = tokens * x.top_k;
  work.experts_hit = experts * -std::expm1(static_cast<double>(entries) * std::log1p(-1 / experts));
  const std::int64_t matrices = x.w13.batch / x.w2.batch;
  // Entries that are not sorted read each its own.
  const double weights_read =
      parts.gather == Gather::entries ? static_cast<double>(entries) : work.experts_hit;
  const double of_up =
      weights_read * static_cast<double>(matrices) * bytes_of(x.w13.recipe, x.w13.rows, x.w13.k);
  const double of_down = weights_read * bytes_of(x.w2.recipe, x.w2.rows, x.w2.k);
  const double between = bytes_of(activations_of(x), entries, inner);
  const double rows = bytes_of(Recipe::bf16, entries, hidden);
  const double y = static_cast<double>(tokens * hidden) * size_of(x.y.dtype);
  const bool quantizes = quantizes_x(x);
  // Rows of x, and of what the first product reads.
  const std::int64_t of_x = weighs_input(x) ? entries : tokens;
  const bool gathers = quantizes && parts.gather == Gather::quantize;
  const double read = bytes_of(x.x.recipe, of_x, hidden);
  const double input =
      quantizes ? bytes_of(activations_of(x), gathers ? entries : of_x, hidden) : read;
  const auto operations = [](std::int64_t of_rows, std::int64_t columns, std::int64_t k) {
    return 2 * static_cast<double>(of_rows) * static_cast<double>(columns) * static_cast<double>(k);
  };
  const auto products = [&](std::int64_t columns, std::int64_t k) {
    return operations(entries, columns, k);
  };
  const double indices = 4 * static_cast<double>(entries);
  if (parts.gather != Gather::entries) work.launches.push_back({"sort", 3 * indices, 0});
  if (weighs_input(x)) {
    const double of_tokens = bytes_of(x.x.recipe, tokens, hidden);
    work.launches.push_back({"weigh", of_tokens + read + 2 * indices, 0});
  }
  if (quantizes) work.launches.push_back({"quantize", read + input, 0});
  double of_shared = 0;
  if (x.shared) {
    const ScaledTensorView &w13 = x.shared->w13, &w2 = x.shared->w2;
    const std::int64_t rows_of_shared = tokens * w2.batch;
    const auto of_weights = [](const ScaledTensorView& w) {
      return static_cast<double>(w.batch) * bytes_of(w.recipe, w.rows, w.k);
    };
    const double tokens_read =
        bytes_of(is_plain(x.x.recipe) ? activations_of(x) : x.x.recipe, tokens, hidden);
    const double inner_of_shared = bytes_of(activations_of(x), rows_of_shared, w2.k);
    of_shared = bytes_of(Recipe::bf16, rows_of_shared, hidden);
    if (quantizes && (gathers || weighs_input(x))) {
      work.launches.push_back(
          {"quantize for shared experts", bytes_of(x.x.recipe, tokens, hidden) + tokens_read, 0});
    }
    work.launches.push_back({"first product of shared experts",
                             of_weights(w13) + tokens_read + inner_of_shared,
                             operations(rows_of_shared, w13.rows, hidden)});
    work.launches.push_back({"second product of shared experts",
                             of_weights(w2) + inner_of_shared + of_shared,
                             operations(rows_of_shared, hidden, w2.k)});
  }
  work.launches.push_back(
      {"first product", of_up + input + between, products(matrices * x.w13.rows, hidden)});
  const double residual = x.residual.data == nullptr ? 0 : y;
  const bool adds = adds_rows(x);
  const double added = static_cast<double>(entries * hidden) * size_of(x.y.dtype);
  work.launches.push_back(
      {"second product", of_down + between + (adds ? added : rows), products(hidden, inner)});
  const double summed = adds ? 0 : rows + 2 * indices;
  work.launches.push_back({"finalize", summed + of_shared + residual + y, 0});
  return work;
}

std::string text_of(const LayerWork& work, const cuda::Chip& chip, bool is_fp8) {
  const Rates rates = rates_of(chip);
  char line[240];
  std::snprintf(
      line, sizeof line,
      "if every id is here and none more likely than another, %.1f experts are hit, and at "
      "least so much moves\n(beside it what plans leave in f32 in the workspace, and "
      "scales that are joined):\n",
      work.experts_hit);
  std::string text = line;
  double all = 0;
  for (const LaunchWork& launch : work.launches) {
    std::snprintf(line, sizeof line, "  %s: %.3g MB, %.3g GFLOP", launch.name.c_str(),
                  launch.bytes / 1e6, launch.operations / 1e9);
    text += line;
    if (rates.bytes != 0 && (is_fp8 || launch.operations == 0)) {
      const double seconds =
          std::max(launch.bytes / rates.bytes, launch.operations / rates.operations);
      all += seconds;
      std::snprintf(line, sizeof line, ", at least %.1f us", seconds * 1e6);
      text += line;
    }
    text += "\n";
  }
  if (rates.bytes == 0 || !is_fp8) return text;
  std::snprintf(line, sizeof line, "  all: at least %.1f us, and some 1.2 us for each launch\n",
                all * 1e6);
  return text + line;
}

}  // namespace blockscale::moe_detail
