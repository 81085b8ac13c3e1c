#include "ops/grouped_gemm/cpu/results.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>

#include "blockscale/parallel.h"
#include "blockscale/quantize.h"
#include "ops/common/float_environment.h"
#include "ops/common/scale_placement.h"

namespace blockscale::grouped_gemm_detail {
namespace {

/// A row of a wave, and where it goes.
struct PlacedRow {
  std::int64_t destination;  // a row of D
  std::int64_t row;          // of the product
  std::int64_t in_wave;
};

std::uint8_t* row_of_d(const GroupedGemmArguments& x, std::int64_t matrix, std::int64_t row) {
  const std::int64_t size = format_traits(x.d.dtype).bits / 8;
  return static_cast<std::uint8_t*>(x.d.data) +
         (matrix * x.d.batch_stride + row * x.d.row_stride) * size;
}

/// Copies rows [first, first + rows) of `from`, whose scales are row_major, to rows from `row` on
/// of a matrix of `out`.
template <class Scale>
void place_rows(const ScaledTensorView& from, std::int64_t first, std::int64_t rows,
                const MutableScaledTensorView& out, std::int64_t matrix, std::int64_t row) {
  const auto bytes = static_cast<std::size_t>(row_bytes(out.recipe, out.k));
  for (std::int64_t r = 0; r < rows; ++r) {
    std::memcpy(static_cast<std::uint8_t*>(out.values) + matrix * out.value_batch_stride +
                    (row + r) * out.value_row_stride,
                static_cast<const std::uint8_t*>(from.values) + (first + r) * from.value_row_stride,
                bytes);
  }
  const ScaleGrid grid = scale_grid(out.recipe, out.rows, out.k);
  const PlacedScales<Scale> placed{
      static_cast<Scale*>(out.scales) + matrix * out.scale_batch_stride, out.layout,
      out.scale_leading_stride};
  place_scales(placed, {row, rows, 0, grid.columns, grid.rows, grid.columns},
               static_cast<const Scale*>(from.scales) + first * from.scale_leading_stride,
               from.scale_leading_stride);
}

}  // namespace

bool has_rows_in_f32(const GroupedGemmArguments& x) {
  return x.destinations != nullptr || is_transformed(x) || x.quantized.has_value();
}

RowsInF32::RowsInF32(const GroupedGemmArguments& x, std::int64_t most_rows)
    : columns_(x.b.rows),
      numbers_(gemm_detail::allocate<float>(most_rows * x.b.rows)),
      results_(product_of_rows(x)),
      owners_(x.destinations == nullptr ? std::vector<std::int32_t>() : owners_of_shared_rows(x)) {}

void RowsInF32::store(const GroupedGemmArguments& x, const RowWave& wave, int threads) const {
  if (x.quantized) return quantize_rows(x, *x.quantized, wave, threads);
  if (x.destinations != nullptr) return scatter(x, wave, threads);
  store_rows(x, wave, threads);
}

void RowsInF32::store_rows(const GroupedGemmArguments& x, const RowWave& wave, int threads) const {
  const auto store = [&](std::int64_t in_wave, std::int64_t) {
    const DefaultFloatEnvironment environment;
    const Part& part = wave.part_of(in_wave);
    const std::int64_t row = part.rows.begin + in_wave - part.first;
    results_.store(this->row(in_wave), 1.0f, row_of_d(x, is_masked(x) ? part.group : 0, row));
  };
  parallel_for(wave.rows, 1, threads, std::cref(store));
}

void RowsInF32::scatter(const GroupedGemmArguments& x, const RowWave& wave, int threads) const {
  std::vector<PlacedRow> rows;
  for (const Part& part : wave.parts) {
    for (std::int64_t r = part.rows.begin; r < part.rows.end; ++r) {
      const std::int64_t destination = x.destinations[r];
      const auto i = static_cast<std::size_t>(r);
      const bool is_owner = owners_.empty() || owners_[i] == part.group;
      if (destination < 0 || destination >= x.d.rows || !is_owner) continue;
      rows.push_back({destination, r, part.first + r - part.rows.begin});
    }
  }
  std::stable_sort(rows.begin(), rows.end(), [](const PlacedRow& a, const PlacedRow& b) {
    return a.destination < b.destination;
  });
  std::vector<std::size_t> begins;  // of each destination's rows
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i == 0 || rows[i].destination != rows[i - 1].destination) begins.push_back(i);
  }
  const auto store = [&](std::int64_t index, std::int64_t) {
    const DefaultFloatEnvironment environment;
    const auto i = static_cast<std::size_t>(index);
    const std::size_t end = i + 1 < begins.size() ? begins[i + 1] : rows.size();
    for (std::size_t r = x.adds ? begins[i] : end - 1; r < end; ++r) {
      const PlacedRow& placed = rows[r];
      const float weight = x.weights == nullptr ? 1.0f : x.weights[placed.row];
      std::uint8_t* const d = row_of_d(x, 0, placed.destination);
      if (x.adds) {
        results_.add(row(placed.in_wave), weight, d);
      } else {
        results_.store(row(placed.in_wave), weight, d);
      }
    }
  };
  parallel_for(std::ssize(begins), 1, threads, std::cref(store));
}

void RowsInF32::quantize_rows(const GroupedGemmArguments& x, const QuantizedResult& result,
                              const RowWave& wave, int threads) const {
  const MutableScaledTensorView& out = result.out;
  QuantizeOptions options = result.options;
  options.threads = threads;
  const bool is_each = is_masked(x) && out.tensor_scale != nullptr;
  const std::int64_t step = is_each ? 1 : std::ssize(wave.parts);
  for (std::int64_t p = 0; p < std::ssize(wave.parts); p += step) {
    const Part* const parts = wave.parts.data() + p;
    const std::int64_t first = parts[0].first;
    const Part& last = parts[step - 1];
    const std::int64_t rows = last.first + last.rows.end - last.rows.begin - first;
    const std::int64_t group = is_each ? parts[0].group : 0;
    ScaledTensor codes(out.recipe, rows, out.k, ScaleLayout::row_major, 1, out.sense);
    MutableScaledTensorView view = codes.view();
    if (out.tensor_scale != nullptr) {
      view.tensor_scale = out.tensor_scale + group * out.tensor_scale_batch_stride;
    }
    quantize(MatrixView{row(first), Format::f32, rows, columns_}, view, options);
    const auto place = [&](std::int64_t index, std::int64_t) {
      const Part& part = parts[index];
      const std::int64_t matrix = is_masked(x) ? part.group : 0;
      const std::int64_t count = part.rows.end - part.rows.begin;
      if (format_traits(recipe_traits(out.recipe).scale).bits == 8) {
        place_rows<std::uint8_t>(view, part.first - first, count, out, matrix, part.rows.begin);
      } else {
        place_rows<float>(view, part.first - first, count, out, matrix, part.rows.begin);
      }
    };
    parallel_for(step, 1, threads, std::cref(place));
  }
}

}  // namespace blockscale::grouped_gemm_detail
