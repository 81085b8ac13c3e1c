// What GELU, SiLU and SwiGLU make of a product, for tests of every implementation: bit for bit from
// D in f32, and within the bound of docs/numerics.md from the float64 reference.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <variant>

#include "blockscale/gemm.h"
#include "core/format.h"
#include "core/input_transform.h"
#include "core/math.h"
#include "ops/gemm/error_bound.h"
#include "ops/gemm/reference.h"

namespace blockscale::test {

struct TransformCase {
  const char* name;
  QuantizeInput input;

  bool is_gated() const { return std::holds_alternative<Swiglu>(input); }
  /// Columns of d, of `n` before it.
  std::int64_t columns(std::int64_t n) const { return is_gated() ? n / 2 : n; }
};

inline const TransformCase kTransformCases[] = {
    {"gelu_tanh", Gelu{GeluForm::tanh}},
    {"gelu_erf", Gelu{GeluForm::erf}},
    {"silu", Silu{}},
    {"swiglu", Swiglu{}},
    {"swiglu of pairs, up first", Swiglu{GateOrder::up_first, 1}},
    {"swiglu of 64", Swiglu{GateOrder::gate_first, 64}},
    {"swiglu of gpt oss", Swiglu{GateOrder::gate_first, 1, 7, 1.702f, 1}},
    {"swiglu of 64, clamped", Swiglu{GateOrder::up_first, 64, 0.5f, -0.8f, -0.25f}},
    {"swiglu, clamped", Swiglu{GateOrder::gate_first, 0, 0.5f}},
};

/// Where the numbers of a column of d stand in a row of `n` before the transform.
inline GatedColumns columns_before(const QuantizeInput& input, std::int64_t n,
                                   std::int64_t column) {
  const auto* const swiglu = std::get_if<Swiglu>(&input);
  if (swiglu == nullptr) return {column, column};
  return gated_columns(swiglu->order, swiglu->group == 0 ? n / 2 : swiglu->group, column);
}

/// docs/numerics.md's, with the operations of a type of number.
template <class Number, class Silu>
Number swiglu_of(const Swiglu& swiglu, Number gate, Number up, const Silu& silu) {
  if (swiglu.limit == Swiglu{}.limit && swiglu.alpha == 1 && swiglu.up_shift == 0) {
    return silu(gate) * up;
  }
  const Number limit = swiglu.limit, alpha = swiglu.alpha, shift = swiglu.up_shift;
  if (gate > limit) gate = limit;
  if (up > limit) up = limit;
  if (up < -limit) up = -limit;
  return silu(alpha * gate) * (1 / alpha) * (shift == 0 ? up : up + shift);
}

inline float transformed(const QuantizeInput& input, const float* row, std::int64_t n,
                         std::int64_t column) {
  const GatedColumns at = columns_before(input, n, column);
  if (const auto* const swiglu = std::get_if<Swiglu>(&input)) {
    return swiglu_of(*swiglu, row[at.gate], row[at.up], [](float x) { return math::silu(x); });
  }
  if (std::holds_alternative<Silu>(input)) return math::silu(row[column]);
  const bool is_tanh = std::get<Gelu>(input).form == GeluForm::tanh;
  return is_tanh ? math::gelu_tanh(row[column]) : math::gelu_erf(row[column]);
}

/// Writes d from D in f32, [batch][rows][n].
inline void store_transformed(const QuantizeInput& input, const float* sums, std::int64_t n,
                              const MutableMatrixView& d) {
  const std::int64_t size = format_traits(d.dtype).bits / 8;
  for (std::int64_t r = 0; r < d.batch * d.rows; ++r) {
    for (std::int64_t j = 0; j < d.columns; ++j) {
      const float y = transformed(input, sums + r * n, n, j);
      const std::uint32_t code = encode(d.dtype, y, Overflow::propagate);
      const std::int64_t at = r / d.rows * d.batch_stride + r % d.rows * d.row_stride + j;
      std::memcpy(static_cast<std::uint8_t*>(d.data) + at * size, &code,
                  static_cast<std::size_t>(size));
    }
  }
}

inline double exact_silu(double x) {
  return x / (1 + std::exp(-x));
}
inline double exact_gelu(const Gelu& gelu, double x) {
  const double u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
  return x * (gelu.form == GeluForm::tanh ? 1 + std::tanh(u) : 1 + std::erf(x / std::sqrt(2.0))) /
         2;
}

/// What docs/numerics.md allows a function of x beside the error of x.
inline double allowed_of_function(double x, double y) {
  return std::max(0x1p-12 * std::abs(y), 0x1p-22 * std::abs(x)) + 0x1p-149;
}

/// The largest error of d as a part of what is allowed, where `limit` bounds the error of D.
inline double largest_of_allowed(const GemmArguments& x, const gemm_detail::ErrorLimit& limit) {
  constexpr double kSlope = 1.13;  // of GELU and silu, at most
  const std::int64_t n = x.b.rows;
  GemmArguments before = x;
  before.transform = Identity{};
  before.d = {nullptr, Format::f32, x.d.rows, n, n, x.d.batch, x.d.rows * n};
  double largest = 0;
  for (std::int64_t index = 0; index < x.d.batch; ++index) {
    std::vector<std::vector<double>> b_rows;
    for (std::int64_t i = 0; i < n; ++i) b_rows.push_back(gemm_detail::operand_row(x.b, index, i));
    for (std::int64_t m = 0; m < x.d.rows; ++m) {
      const auto row = gemm_detail::operand_row(x.a, index, m);
      const auto sum = [&](std::int64_t column) {
        return gemm_detail::reference_element(before, index, m, column, row,
                                              b_rows[static_cast<std::size_t>(column)]);
      };
      // Of D in f32: its bound, and half an ulp.
      const auto error = [&](const gemm_detail::ReferenceElement& element) {
        return limit(element) * 0x1p-24 * element.magnitude +
               gemm_detail::half_ulp(Format::f32, element.value);
      };
      for (std::int64_t j = 0; j < x.d.columns; ++j) {
        const GatedColumns at = columns_before(x.transform, n, j);
        const auto gate = sum(at.gate);
        double y = 0, allowed = 0;
        if (const auto* const swiglu = std::get_if<Swiglu>(&x.transform)) {
          const auto up = sum(at.up);
          const double most = double{swiglu->limit}, alpha = double{swiglu->alpha};
          const double clamped = std::min(gate.value, most);
          const double s = exact_silu(alpha * clamped) / alpha;
          const double factor = std::clamp(up.value, -most, most) + double{swiglu->up_shift};
          y = s * factor;
          const double of_silu = kSlope * error(gate) + allowed_of_function(clamped, s);
          allowed = of_silu * (std::abs(factor) + error(up)) + std::abs(s) * error(up) +
                    0x1p-23 * std::abs(y);
        } else {
          const auto* const gelu = std::get_if<Gelu>(&x.transform);
          y = gelu != nullptr ? exact_gelu(*gelu, gate.value) : exact_silu(gate.value);
          allowed = kSlope * error(gate) + allowed_of_function(gate.value, y);
        }
        allowed += gemm_detail::half_ulp(x.d.dtype, std::abs(y) + allowed);
        const double got = gemm_detail::matrix_element(MatrixView(x.d), index, m, j);
        largest = std::max(largest, std::abs(got - y) / allowed);
      }
    }
  }
  return largest;
}

}  // namespace blockscale::test
