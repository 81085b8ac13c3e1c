// What products of groups of k must be, in float64.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "blockscale/grouped_gemm.h"
#include "ops/gemm/error_bound.h"
#include "ops/gemm/reference.h"

namespace blockscale::test {

using Rows = std::vector<std::vector<double>>;

inline Rows rows_of(const ScaledTensorView& x) {
  const ScaledTensorView view = resolved(x, "x");
  Rows rows;
  for (std::int64_t r = 0; r < x.rows; ++r) rows.push_back(gemm_detail::operand_row(view, 0, r));
  return rows;
}

/// The largest error of D as a part of what is usual, where D was `before` and A and B have rows
/// `a` and `b`. With `wrong` the reference takes k of A that lie one behind a group's.
inline double of_usual(gemm_detail::GemmPath path, const KGroupedGemmArguments& arguments,
                       const Rows& a, const Rows& b, const std::vector<float>& before,
                       int wrong = 0) {
  GemmArguments product;
  product.a = resolved(arguments.a, "a");
  product.b = resolved(arguments.b, "b");
  product.d = resolved(arguments.d, "d");
  product.alpha = arguments.alpha;
  product.beta = arguments.adds ? 1.0f : 0.0f;
  product.c = product.d;
  product.c.data = before.data();
  product.c.row_stride = product.d.columns;
  product.c.batch_stride = product.d.rows * product.d.columns;
  const auto limit = gemm_detail::usual_error(path);
  double largest = 0;
  for (std::int64_t g = 0; g < product.d.batch; ++g) {
    const std::int64_t k = product.a.k;
    const std::int64_t begin = std::clamp<std::int64_t>(arguments.offsets[g], 0, k - wrong);
    const std::int64_t end = std::clamp<std::int64_t>(arguments.offsets[g + 1], begin, k - wrong);
    const auto part = [&](const std::vector<double>& row, std::int64_t skip) {
      return std::vector<double>(row.begin() + begin + skip, row.begin() + end + skip);
    };
    std::vector<std::vector<double>> b_parts;
    for (const std::vector<double>& row : b) b_parts.push_back(part(row, 0));
    for (std::int64_t m = 0; m < product.d.rows; ++m) {
      const std::vector<double> a_part = part(a[static_cast<std::size_t>(m)], wrong);
      for (std::int64_t n = 0; n < product.d.columns; ++n) {
        const auto reference = gemm_detail::reference_element(product, g, m, n, a_part,
                                                              b_parts[static_cast<std::size_t>(n)]);
        const double d = gemm_detail::matrix_element(product.d, g, m, n);
        const double error = gemm_detail::error_ratio(Format::f32, d, reference);
        if (error > 0) largest = std::max(largest, error / limit(reference));
      }
    }
  }
  return largest;
}

}  // namespace blockscale::test
