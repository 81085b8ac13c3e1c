#include "ops/gemm/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/common/checks.h"
#include "ops/gemm/validate.h"

namespace blockscale::gemm_detail {
namespace {

/// Number `index` of an array of numbers of format F, packed without gaps.
template <Format F>
float number_at(const void* array, std::int64_t index) {
  constexpr int bits = format_traits(F).bits;
  const unsigned char* const bytes = static_cast<const unsigned char*>(array);
  std::uint32_t code = 0;
  if constexpr (bits >= 8) {
    std::memcpy(&code, bytes + index * (bits / 8), bits / 8);
  } else {
    for (int i = 0; i < bits; ++i) {
      const std::int64_t bit = index * bits + i;
      code |= (unsigned{bytes[bit / 8]} >> (bit % 8) & 1u) << i;
    }
  }
  return decode<F>(code);
}

float number_at(const void* array, Format format, std::int64_t index) {
  return visit_format(format, [&](auto f) { return number_at<f.value>(array, index); });
}

/// What the values of a row are before their scales.
void decode_row(const void* row, Format format, std::vector<double>& result) {
  visit_format(format, [&](auto f) {
    for (std::size_t k = 0; k < result.size(); ++k) {
      result[k] = double{number_at<f.value>(row, static_cast<std::int64_t>(k))};
    }
  });
}

/// Splitmix64's output function: spreads consecutive integers over all of 64 bits.
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

/// Largest finite value of `dtype` plus half a unit of its last place: from here on, values round
/// to infinity.
double overflow_threshold(Format dtype) {
  const double largest = double{format_traits(dtype).max};
  return largest + half_ulp(dtype, largest);
}

}  // namespace

std::vector<double> operand_row(const ScaledTensorView& x, std::int64_t index, std::int64_t row) {
  const RecipeTraits& t = recipe_traits(x.recipe);
  const std::int64_t matrix = x.batch == 1 ? 0 : index;
  const unsigned char* const values = static_cast<const unsigned char*>(x.values) +
                                      matrix * x.value_batch_stride + row * x.value_row_stride;
  std::vector<double> result(static_cast<std::size_t>(x.k));
  decode_row(values, t.element, result);
  if (t.family == Family::plain) return result;
  const std::int64_t i = t.block_rows == 0 ? 0 : row / t.block_rows;
  const std::int64_t block = t.block_k == 0 ? x.k : t.block_k;
  for (std::int64_t begin = 0; begin < x.k; begin += block) {
    const std::int64_t j = begin / block;
    const std::int64_t offset =
        matrix * x.scale_batch_stride + scale_offset(x.layout, i, j, x.scale_leading_stride);
    const float scale = number_at(x.scales, t.scale, offset);
    for (std::int64_t k = begin; k < std::min(begin + block, x.k); ++k) {
      double& value = result[static_cast<std::size_t>(k)];
      value = double{static_cast<float>(value) * scale};
    }
  }
  return result;
}

const std::vector<double>& OperandRows::get(std::int64_t index, std::int64_t row) {
  constexpr std::size_t kMostElements = (std::size_t{64} << 20) / sizeof(double);
  const std::int64_t key = (x_.batch == 1 ? 0 : index) * x_.rows + row;
  const auto found = rows_.find(key);
  if (found != rows_.end()) return found->second;
  if ((rows_.size() + 1) * static_cast<std::size_t>(x_.k) > kMostElements) rows_.clear();
  return rows_[key] = operand_row(x_, index, row);
}

double apply_tensor_scale(const ScaledTensorView& x, std::int64_t index, double sum) {
  if (x.tensor_scale == nullptr) return sum;
  const std::int64_t matrix = x.batch == 1 ? 0 : index;
  const double scale = double{x.tensor_scale[matrix * x.tensor_scale_batch_stride]};
  return x.sense == TensorScaleSense::divisor ? sum / scale : sum * scale;
}

double matrix_element(const MatrixView& x, std::int64_t index, std::int64_t row,
                      std::int64_t column) {
  const std::int64_t matrix = x.batch == 1 ? 0 : index;
  const std::int64_t element = matrix * x.batch_stride + row * x.row_stride + column;
  return double{number_at(x.data, x.dtype, element)};
}

ReferenceElement reference_element(const GemmArguments& x, std::int64_t index, std::int64_t m,
                                   std::int64_t n, const std::vector<double>& a_row,
                                   const std::vector<double>& b_row) {
  double sum = 0;
  double sum_of_magnitudes = 0;
  const double* const a = a_row.data();  // a vector's [] is a call under sanitizers
  const double* const b = b_row.data();
  for (std::size_t k = 0; k < a_row.size(); ++k) {
    sum += a[k] * b[k];
    sum_of_magnitudes += std::abs(a[k] * b[k]);
  }
  const double alpha = alpha_of(x);
  const auto scaled = [&](double s) {
    return apply_tensor_scale(x.b, index, apply_tensor_scale(x.a, index, s * alpha));
  };
  ReferenceElement result{scaled(sum), std::abs(scaled(sum_of_magnitudes))};
  if (x.bias != nullptr) {
    const double addend = double{number_at(x.bias, x.bias_dtype, n)};
    result.value += addend;
    result.magnitude += std::abs(addend);
  }
  if (x.gate != nullptr) {
    const double gate = double{number_at(x.gate, x.gate_dtype, n)};
    result.value *= gate;
    result.magnitude *= std::abs(gate);
  }
  if (x.beta != 0.0f) {
    const double addend = double{x.beta} * matrix_element(x.c, index, m, n);
    result.value += addend;
    result.magnitude += std::abs(addend);
  }
  return result;
}

void check_samples(std::int64_t samples) {
  if (samples < 1) checks::fail("samples", "", checks::is_but(samples, "at least 1"));
}

std::int64_t sampled_element(std::int64_t sample, std::int64_t samples, std::int64_t elements) {
  if (samples >= elements) return sample;
  return static_cast<std::int64_t>(mixed(static_cast<std::uint64_t>(sample)) %
                                   static_cast<std::uint64_t>(elements));
}

double half_ulp(Format dtype, double value) {
  const FormatTraits t = format_traits(dtype);
  const int exponent = value == 0 ? 1 - t.bias : std::max(std::ilogb(value), 1 - t.bias);
  return std::ldexp(0.5, std::min(exponent, t.max_exponent) - t.mantissa_bits);
}

double error_ratio(Format dtype, double d, const ReferenceElement& reference) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double expected = reference.value;
  if (std::isnan(expected)) return std::isnan(d) ? 0 : kInfinity;
  if (std::isnan(d)) return kInfinity;
  if (d == expected) return 0;
  if (std::isinf(expected)) return kInfinity;
  double excess = 0;
  if (std::isinf(d)) {
    // Right if the unrounded element could have reached the threshold on d's side.
    excess = overflow_threshold(dtype) - std::copysign(1.0, d) * expected;
  } else {
    excess = std::abs(d - expected) - half_ulp(dtype, std::max(std::abs(d), std::abs(expected)));
  }
  if (excess <= 0) return 0;
  return excess / (reference.magnitude * 0x1p-24);
}

}  // namespace blockscale::gemm_detail
