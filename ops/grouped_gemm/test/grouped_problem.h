// Random grouped products for tests, in the host's memory, and what they must be: `gemm` of each
// group's rows alone, bit for bit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "blockscale/grouped_gemm.h"
#include "tests/gemm_problem.h"

namespace blockscale::test {

/// How rows are spread over groups.
enum class Spread : std::uint8_t { uniform, zipf, one_hot, half_empty, empty, ends_empty };
inline constexpr Spread kSpreads[] = {Spread::uniform,    Spread::zipf,  Spread::one_hot,
                                      Spread::half_empty, Spread::empty, Spread::ends_empty};

/// Rows of each group, `rows` in all but where all are empty.
inline std::vector<std::int32_t> random_lengths(Random& random, Spread spread, std::int64_t groups,
                                                std::int64_t rows) {
  std::vector<double> weights(static_cast<std::size_t>(groups), 1.0);
  for (std::int64_t g = 0; g < groups; ++g) {
    double& weight = weights[static_cast<std::size_t>(g)];
    const bool is_end = g == 0 || g == groups - 1;
    switch (spread) {
      case Spread::uniform: break;
      case Spread::zipf: weight = std::pow(static_cast<double>(g + 1), -1.2); break;
      case Spread::one_hot: weight = g == groups / 2 ? 1 : 0; break;
      case Spread::half_empty: weight = g % 2 == 0 ? 1 : 0; break;
      case Spread::empty: weight = 0; break;
      case Spread::ends_empty: weight = is_end && groups > 2 ? 0 : 1; break;
    }
  }
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(groups), 0);
  if (all == 0) return lengths;
  for (std::int64_t r = 0; r < rows; ++r) {
    double left = unit_real(random) * all;
    std::size_t g = 0;
    while (g + 1 < weights.size() && (left -= weights[g]) >= 0) ++g;
    while (weights[g] == 0) --g;
    ++lengths[g];
  }
  return lengths;
}

inline std::vector<std::int32_t> offsets_of(const std::vector<std::int32_t>& lengths) {
  std::vector<std::int32_t> offsets = {0};
  for (const std::int32_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

/// Rows of a matrix of an operand, one behind the other, with scales of their own in row_major;
/// zeros for rows that there are not.
class RowsOf {
 public:
  RowsOf(const ScaledTensorView& x, std::int64_t matrix, const std::vector<std::int64_t>& rows)
      : view_(x) {
    const RecipeTraits& t = recipe_traits(x.recipe);
    for (const RecipeTraits& other : kRecipes) {
      const bool is_alike = other.family == t.family && other.element == t.element &&
                            other.scale == t.scale && other.block_k == t.block_k &&
                            other.power_of_two == t.power_of_two;
      if (is_alike && other.block_rows == std::min(t.block_rows, 1)) view_.recipe = other.recipe;
    }
    const std::int64_t i = x.batch == 1 ? 0 : matrix;
    const std::int64_t bytes = row_bytes(x.recipe, x.k);
    const std::int64_t size = format_traits(t.scale).bits / 8;
    const std::int64_t columns = scale_grid(view_.recipe, 1, x.k).columns;
    const auto* const values = static_cast<const std::uint8_t*>(x.values);
    const auto* const scales = static_cast<const std::uint8_t*>(x.scales);
    for (const std::int64_t row : rows) {
      const bool is_row = row >= 0 && row < x.rows;
      const auto* const from = values + i * x.value_batch_stride + row * x.value_row_stride;
      if (is_row) values_.insert(values_.end(), from, from + bytes);
      if (!is_row) values_.insert(values_.end(), static_cast<std::size_t>(bytes), 0);
      for (std::int64_t j = 0; t.block_rows > 0 && j < columns; ++j) {
        const std::int64_t offset =
            i * x.scale_batch_stride +
            scale_offset(x.layout, is_row ? row / t.block_rows : 0, j, x.scale_leading_stride);
        for (std::int64_t b = 0; b < size; ++b) {
          scales_.push_back(is_row ? scales[offset * size + b] : std::uint8_t{0});
        }
      }
    }
    view_.rows = std::ssize(rows);
    view_.batch = 1;
    view_.values = values_.data();
    view_.value_row_stride = bytes;
    view_.value_batch_stride = 0;
    if (t.block_rows > 0) {
      view_.scales = scales_.data();
      view_.layout = ScaleLayout::row_major;
      view_.scale_leading_stride = columns;
    } else if (t.family != Family::plain) {
      view_.scales = scales + i * x.scale_batch_stride * size;
    }
    view_.scale_batch_stride = 0;
    if (x.tensor_scale != nullptr) {
      view_.tensor_scale = x.tensor_scale + i * x.tensor_scale_batch_stride;
    }
    view_.tensor_scale_batch_stride = 0;
  }
  RowsOf(const RowsOf&) = delete;
  RowsOf& operator=(const RowsOf&) = delete;

  ScaledTensorView view() const { return view_; }

 private:
  ScaledTensorView view_;
  std::vector<std::uint8_t> values_, scales_;
};

/// Matrix `index` of a resolved operand.
inline ScaledTensorView matrix_of(const ScaledTensorView& x, std::int64_t index) {
  ScaledTensorView view = x;
  const std::int64_t size = format_traits(recipe_traits(x.recipe).scale).bits / 8;
  view.batch = 1;
  view.values = static_cast<const std::uint8_t*>(x.values) + index * x.value_batch_stride;
  if (x.scales != nullptr) {
    view.scales = static_cast<const std::uint8_t*>(x.scales) + index * x.scale_batch_stride * size;
  }
  if (x.tensor_scale != nullptr) {
    view.tensor_scale = x.tensor_scale + index * x.tensor_scale_batch_stride;
  }
  return view;
}

/// Rows [begin, end) of group g as the contract has them, cut to [0, rows).
struct Cut {
  std::int64_t begin, end;
};
inline Cut cut_rows(const GroupedGemmArguments& x, std::int64_t g, std::int64_t rows) {
  const std::int64_t first = x.offsets == nullptr ? 0 : x.offsets[g];
  const std::int64_t behind = x.lengths == nullptr ? x.offsets[g + 1] : first + x.lengths[g];
  const std::int64_t begin = std::clamp<std::int64_t>(first, 0, rows);
  return {begin, std::clamp<std::int64_t>(behind, begin, rows)};
}

/// gemm of a group's rows alone into `d`, [rows, N or N / 2]; a and b of `x` are resolved.
inline void multiply_group(const GroupedGemmArguments& x, std::int64_t g, const Cut& rows,
                           const MutableMatrixView& d) {
  std::vector<std::int64_t> of_a;
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    of_a.push_back(x.index == nullptr ? r : x.index[r]);
  }
  const RowsOf a(x.a, g, of_a);
  GemmArguments product;
  product.a = a.view();
  product.b = matrix_of(x.b, g);
  product.d = d;
  product.alpha = x.alpha;
  product.alpha_factor = x.alpha_factors == nullptr ? nullptr : x.alpha_factors + g;
  product.transform = x.transform;
  product.bias_dtype = x.bias_dtype;
  if (x.bias != nullptr) {
    const std::int64_t size = format_traits(x.bias_dtype).bits / 8;
    product.bias = static_cast<const std::uint8_t*>(x.bias) + g * x.b.rows * size;
  }
  gemm(product, {1});
}

/// D of `x` without index, destinations or quantized made group by group, into its d.
inline void multiply_groups(const GroupedGemmArguments& arguments) {
  GroupedGemmArguments x = arguments;
  x.a = resolved(x.a, "a");
  x.b = resolved(x.b, "b");
  x.d = resolved(x.d, "d");
  const std::int64_t size = format_traits(x.d.dtype).bits / 8;
  for (std::int64_t g = 0; g < x.b.batch; ++g) {
    const Cut rows = cut_rows(x, g, x.d.rows);
    MutableMatrixView d = x.d;
    d.batch = 1;
    d.batch_stride = 0;
    d.rows = rows.end - rows.begin;
    if (d.rows == 0) continue;
    const std::int64_t matrix = x.offsets == nullptr ? g : 0;
    d.data = static_cast<std::uint8_t*>(x.d.data) +
             (matrix * x.d.batch_stride + rows.begin * x.d.row_stride) * size;
    multiply_group(x, g, rows, d);
  }
}

/// Operands and results of a grouped product. `x()` is complete but for d and what says which rows
/// groups have.
class GroupedProblem {
 public:
  struct Shape {
    std::int64_t groups, rows, n, k;
  };

  GroupedProblem(Random& random, Recipe recipe_a, Recipe recipe_b, const Shape& shape,
                 InputFamily family, OperandOptions of_a = {}, OperandOptions of_b = {})
      : a_(random, recipe_a, shape.rows, shape.k, family, of_a),
        b_(random, recipe_b, shape.n, shape.k, family, with_batch(of_b, shape.groups)) {
    x_.a = a_.view();
    x_.b = b_.view();
    x_.alpha = static_cast<float>(uniform_real(random, -2, 2));
    for (std::int64_t g = 0; g < shape.groups; ++g) {
      factors_.push_back(static_cast<float>(uniform_real(random, 0.5, 2)));
    }
    for (std::int64_t i = 0; i < shape.groups * shape.n; ++i) {
      bias_.push_back(static_cast<float>(normal_real(random)));
    }
  }

  GroupedGemmArguments& x() { return x_; }
  TestOperand& a() { return a_; }
  TestOperand& b() { return b_; }

  void set_offsets(std::vector<std::int32_t> offsets) {
    offsets_ = std::move(offsets);
    x_.offsets = offsets_.data();
  }
  void set_lengths(std::vector<std::int32_t> lengths) {
    lengths_ = std::move(lengths);
    x_.lengths = lengths_.data();
  }
  void use_factors() { x_.alpha_factors = factors_.data(); }
  void use_bias() { x_.bias = bias_.data(); }

 private:
  static OperandOptions with_batch(OperandOptions options, std::int64_t groups) {
    options.batch = groups;
    return options;
  }

  TestOperand a_, b_;
  std::vector<float> factors_, bias_;
  std::vector<std::int32_t> offsets_, lengths_;
  GroupedGemmArguments x_;
};

}  // namespace blockscale::test
