// An oracle for quantization, written from the rules in docs/numerics.md and shared/numerics.md. It
// shares no code with the library: formats come from their definition as tables of values, MX
// exponents from exact f64 arithmetic, codes from a search for the nearest value. Slow and obvious.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace oracle {

/// A small float: sign bit, exponent and mantissa fields, IEEE-like with subnormals.
struct MiniFloat {
  int exponent_bits, mantissa_bits, bias;
  int largest_code;            // of the largest finite magnitude
  int nan_code;                // or -1
  std::vector<double> values;  // of codes 0..largest_code

  MiniFloat(int e, int m, int b, int largest, int nan)
      : exponent_bits(e), mantissa_bits(m), bias(b), largest_code(largest), nan_code(nan) {
    for (int code = 0; code <= largest; ++code) {
      const int field = code >> m;
      const double fraction = static_cast<double>(code & ((1 << m) - 1)) / (1 << m);
      values.push_back(field == 0 ? std::ldexp(fraction, 1 - b)
                                  : std::ldexp(1 + fraction, field - b));
    }
  }
  double max() const { return values.back(); }
  int emax() const { return std::ilogb(max()); }
  int bits() const { return 1 + exponent_bits + mantissa_bits; }

  /// Nearest code of `x` >= 0, ties to the even code, saturating.
  int nearest(double x) const {
    if (x >= max()) return largest_code;
    const auto above = std::upper_bound(values.begin(), values.end(), x);
    const int high = static_cast<int>(above - values.begin());
    const int low = high - 1;
    const double to_low = x - values[static_cast<std::size_t>(low)];
    const double to_high = values[static_cast<std::size_t>(high)] - x;
    if (to_low != to_high) return to_low < to_high ? low : high;
    return low % 2 == 0 ? low : high;
  }
  /// Nearest code of any number but NaN, with its sign (that of -0 too).
  int nearest_signed(double x) const {
    return nearest(std::fabs(x)) | (std::signbit(x) ? 1 << (bits() - 1) : 0);
  }
};

inline const MiniFloat kE2M1{2, 1, 1, 0x7, -1};
inline const MiniFloat kE2M3{2, 3, 1, 0x1F, -1};
inline const MiniFloat kE3M2{3, 2, 3, 0x1F, -1};
inline const MiniFloat kE4M3{4, 3, 7, 0x7E, 0x7F};
inline const MiniFloat kE5M2{5, 2, 15, 0x7B, 0x7F};

enum class Kind { fp8_f32, fp8_power_of_two, mx, nvfp4 };
enum class Mode { floor, ceil, even, even_e2m1 };

struct Rules {
  std::string name;
  Kind kind;
  const MiniFloat* element;
  int block_rows, block_k;  // 0: all
  bool byte_scales;
};

/// The recipes of the design's table.
inline std::vector<Rules> all_rules() {
  std::vector<Rules> rules = {
      {"fp8_tensor", Kind::fp8_f32, &kE4M3, 0, 0, false},
      {"fp8_tensor_e5m2", Kind::fp8_f32, &kE5M2, 0, 0, false},
      {"fp8_row", Kind::fp8_f32, &kE4M3, 1, 0, false},
      {"mxfp8_e4m3", Kind::mx, &kE4M3, 1, 32, true},
      {"mxfp8_e5m2", Kind::mx, &kE5M2, 1, 32, true},
      {"mxfp6_e2m3", Kind::mx, &kE2M3, 1, 32, true},
      {"mxfp6_e3m2", Kind::mx, &kE3M2, 1, 32, true},
      {"mxfp4", Kind::mx, &kE2M1, 1, 32, true},
      {"nvfp4", Kind::nvfp4, &kE2M1, 1, 16, true},
  };
  for (const int rows : {1, 32, 64, 128}) {
    const std::string name = "fp8_" + std::to_string(rows) + "x128";
    rules.push_back({name, Kind::fp8_f32, &kE4M3, rows, 128, false});
    rules.push_back({name + "_pow2", Kind::fp8_power_of_two, &kE4M3, rows, 128, false});
    rules.push_back({name + "_ue8m0", Kind::fp8_power_of_two, &kE4M3, rows, 128, true});
  }
  return rules;
}

inline Rules rules_of(const std::string& name) {
  for (const Rules& rules : all_rules()) {
    if (rules.name == name) return rules;
  }
  throw std::invalid_argument("no recipe " + name);
}

struct Options {
  Mode mode = Mode::ceil;
  float amax_floor = 0;
  /// Whether MX and NVFP4 blocks take the scale of the least error, with a weight for each column
  /// or none.
  bool search = false;
  std::vector<float> weights;
  /// MX, with weights: the mean of each column, or none.
  std::vector<float> means;
  /// NVFP4: S, if given. FP8: the scale of each row (fp8_row) or the only one (fp8_tensor).
  std::vector<float> given;
};

/// One matrix, quantized: a code for each element, a scale for each block (f32 bits or a byte).
struct Result {
  std::int64_t rows = 0, k = 0, grid_rows = 0, grid_columns = 0;
  std::vector<std::uint8_t> codes;
  std::vector<std::uint32_t> scales;
  float s_tensor = 1;  // NVFP4
};

inline constexpr float kLargest = std::numeric_limits<float>::max();

/// Inf counts as the largest finite value of its sign.
inline float clipped(float x) {
  return std::isinf(x) ? std::copysign(kLargest, x) : x;
}

/// Largest magnitude, NaN left out.
inline float amax_of(const std::vector<float>& elements) {
  float amax = 0;
  for (const float x : elements) {
    if (!std::isnan(x)) amax = std::max(amax, std::fabs(clipped(x)));
  }
  return amax;
}

inline float nvfp4_scale(float amax) {
  if (amax == 0) return 1;
  const float s = 2688.0f / amax;
  return std::isinf(s) ? kLargest : s;
}

/// Shared exponent of an MX block with amax > 0, by exact arithmetic in f64.
inline int mx_exponent(float amax, const MiniFloat& element, Mode mode) {
  const double a = amax;
  int e = std::ilogb(a) - element.emax();
  if (mode == Mode::even || mode == Mode::even_e2m1) {
    const int mantissa_bits = mode == Mode::even ? element.mantissa_bits : 1;
    const double half_ulp = std::ldexp(1.0, std::ilogb(a) - mantissa_bits - 1);
    e = std::ilogb(a + half_ulp) - element.emax();
  } else if (mode == Mode::ceil) {
    e = -127;
    while (a > std::ldexp(element.max(), e)) ++e;
  }
  return std::max(e, -127);
}

/// One block: its elements in, their codes and the scale out.
struct Block {
  std::vector<int> codes;
  std::uint32_t scale = 0;
};

/// The block with the scale code that is given, of NVFP4: what an e4m3 code other than 0 makes.
inline Block nvfp4_coded(const std::vector<float>& x, float s_tensor, int code) {
  Block block{std::vector<int>(x.size(), 0), static_cast<std::uint32_t>(code)};
  float r = s_tensor / static_cast<float>(kE4M3.values[static_cast<std::size_t>(code)]);
  if (std::isinf(r)) r = kLargest;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float scaled = clipped(x[i]) * r;
    block.codes[i] = kE2M1.nearest_signed(scaled);
  }
  return block;
}

inline Block nvfp4_block(const std::vector<float>& x, float s_tensor) {
  Block block{std::vector<int>(x.size(), 0), 0};
  if (std::any_of(x.begin(), x.end(), [](float v) { return std::isnan(v); })) {
    block.scale = 0x7F;
    return block;
  }
  const float sixth = amax_of(x) / 6.0f;
  const float wanted = sixth * s_tensor;
  const int code = kE4M3.nearest(wanted);
  block.scale = static_cast<std::uint32_t>(code);
  if (code == 0) return block;
  return nvfp4_coded(x, s_tensor, code);
}

/// The error that is minimised, of a block whose elements times `factor` are rounded to `element`:
/// in quarters, in f32, in order.
inline float squared_error(const std::vector<float>& x, const std::vector<float>& weights,
                           const MiniFloat& element, float factor) {
  float sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float y = std::fabs(x[i]) * (4 * factor);
    float q = std::isinf(y) ? 4 * static_cast<float>(element.max()) : 0;
    if (std::isfinite(y)) {
      const int code = element.nearest(static_cast<double>(y) / 4);
      q = 4 * static_cast<float>(element.values[static_cast<std::size_t>(code)]);
    }
    const float difference = y - q;
    sum = std::fmaf(weights.empty() ? difference : difference * weights[i], difference, sum);
  }
  return sum;
}

inline constexpr float kLargestSearchedFactor = 0x1p122f;

/// The scale code of the least error: candidates in the order in which they are tried.
inline int best_nvfp4_code(const std::vector<float>& x, const std::vector<float>& weights,
                           float s_tensor, int rule) {
  const auto factor = [&](int code) {
    const float r = s_tensor / static_cast<float>(kE4M3.values[static_cast<std::size_t>(code)]);
    return std::isinf(r) ? kLargest : r;
  };
  if (rule == 0 || rule == kE4M3.nan_code || factor(rule) > kLargestSearchedFactor) return rule;
  const float wanted = amax_of(x) / 6.0f * s_tensor;
  const int low = std::max(1, kE4M3.nearest(static_cast<double>(wanted * 0.7f)));
  const int high = std::max(1, kE4M3.nearest(static_cast<double>(wanted * 1.8f)));
  std::vector<int> candidates;
  for (int code = rule; code <= high; ++code) candidates.push_back(code);
  for (int code = rule - 1; code >= low; --code) candidates.push_back(code);
  int best = rule;
  float least = std::numeric_limits<float>::infinity();
  for (const int code : candidates) {
    const auto scale = static_cast<float>(kE4M3.values[static_cast<std::size_t>(code)]);
    const float error = squared_error(x, weights, kE2M1, factor(code)) * (scale * scale);
    if (error < least) {
      least = error;
      best = code;
    }
  }
  return best;
}

/// The exponent of the least error: that of `ceil`, or the one below; the rule's if they are equal.
inline int best_mx_exponent(const std::vector<float>& x, const std::vector<float>& weights,
                            const MiniFloat& element, int rule) {
  if (std::ldexp(1.0f, -rule) > kLargestSearchedFactor) return rule;
  const int high = mx_exponent(amax_of(x), element, Mode::ceil);
  const int low = std::max(high - 1, -127);
  const float of_high = squared_error(x, weights, element, std::ldexp(1.0f, -high));
  const float of_low =
      low == high ? of_high : squared_error(x, weights, element, std::ldexp(1.0f, -low)) * 0.25f;
  if (of_low == of_high || std::isnan(of_low) || std::isnan(of_high)) return rule;
  return of_low < of_high ? low : high;
}

/// What the errors of a row's blocks have added up to, times the means of their columns.
class ErrorsAlongRow {
 public:
  /// The exponent of the rule or the one below: which adds least.
  int best_exponent(const std::vector<float>& x, const std::vector<float>& weights,
                    const std::vector<float>& means, const MiniFloat& element, int rule) {
    if (std::ldexp(1.0f, -rule) > kLargestSearchedFactor) return rule;
    const Sums of_rule = sums(x, weights, means, element, rule);
    double added = of_rule.added;
    int exponent = rule;
    if (rule > -127) {
      const Sums lower = sums(x, weights, means, element, rule - 1);
      const double difference = (lower.squares + lower.added * lower.added) -
                                (of_rule.squares + of_rule.added * of_rule.added);
      const double slope = 2 * (lower.added - of_rule.added);
      if (difference + slope * left_ < 0) {
        added = lower.added;
        exponent = rule - 1;
      }
    }
    if (std::isfinite(left_ + added)) left_ += added;
    return exponent;
  }

 private:
  struct Sums {
    double squares, added;
  };
  static Sums sums(const std::vector<float>& x, const std::vector<float>& weights,
                   const std::vector<float>& means, const MiniFloat& element, int exponent) {
    float squares = 0, products = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float y = std::fabs(x[i]) * (4 * std::ldexp(1.0f, -exponent));
      float q = 4 * static_cast<float>(element.max());
      if (std::isfinite(y)) {
        const int code = element.nearest(static_cast<double>(y) / 4);
        q = 4 * static_cast<float>(element.values[static_cast<std::size_t>(code)]);
      }
      const float variance = std::max(std::fmaf(-means[i], means[i], weights[i]), 0.0f);
      const float mean = std::signbit(x[i]) ? -means[i] : means[i];
      squares = std::fmaf((y - q) * variance, y - q, squares);
      products = std::fmaf(mean, y - q, products);
    }
    const double quarter = std::ldexp(0.25, exponent);
    return {double{squares} * quarter * quarter, double{products} * quarter};
  }

  double left_ = 0;
};
/// Columns after which these sums begin anew.
inline constexpr std::int64_t kColumnsAlongRow = 4096;

inline Block mx_block(const std::vector<float>& x, const MiniFloat& element, Mode mode, bool search,
                      const std::vector<float>& weights, const std::vector<float>& means,
                      ErrorsAlongRow& along) {
  Block block{std::vector<int>(x.size(), 0), 0};
  if (std::any_of(x.begin(), x.end(), [](float v) { return std::isnan(v); })) {
    block.scale = 0xFF;
    return block;
  }
  const float amax = amax_of(x);
  if (amax == 0) return block;
  int e = mx_exponent(amax, element, search ? Mode::ceil : mode);
  if (search) {
    e = means.empty() ? best_mx_exponent(x, weights, element, e)
                      : along.best_exponent(x, weights, means, element, e);
  }
  block.scale = static_cast<std::uint32_t>(e + 127);
  for (std::size_t i = 0; i < x.size(); ++i) {
    block.codes[i] = element.nearest_signed(std::ldexp(static_cast<double>(clipped(x[i])), -e));
  }
  return block;
}

/// `given`: the scale to use, or 0.
inline Block fp8_block(const std::vector<float>& x, const Rules& rules, float amax_floor,
                       float given) {
  const float amax = std::max(amax_of(x), amax_floor);
  float s = 1;
  if (given != 0) {
    s = given;
  } else if (amax != 0) {
    s = std::max(amax / static_cast<float>(rules.element->max()), std::ldexp(1.0f, -126));
  }
  int exponent = 0;
  if (rules.kind == Kind::fp8_power_of_two) {
    exponent = std::ilogb(s);
    if (std::ldexp(1.0, exponent) < static_cast<double>(s)) ++exponent;
    s = std::ldexp(1.0f, exponent);
  }
  Block block{std::vector<int>(x.size(), 0), 0};
  block.scale = rules.byte_scales ? static_cast<std::uint32_t>(exponent + 127)
                                  : std::bit_cast<std::uint32_t>(s);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) {
      block.codes[i] = rules.element->nan_code;
    } else if (rules.kind == Kind::fp8_power_of_two) {
      block.codes[i] =
          rules.element->nearest_signed(std::ldexp(static_cast<double>(clipped(x[i])), -exponent));
    } else {
      const float quotient = clipped(x[i]) / s;
      block.codes[i] = rules.element->nearest_signed(quotient);
    }
  }
  return block;
}

/// `x` is [rows, k], row-major and packed.
inline Result quantize(const std::vector<float>& x, std::int64_t rows, std::int64_t k,
                       const Rules& rules, const Options& options) {
  Result result;
  result.rows = rows;
  result.k = k;
  result.codes.resize(x.size());
  if (rules.kind == Kind::nvfp4) {
    result.s_tensor = options.given.empty() ? nvfp4_scale(amax_of(x)) : options.given[0];
  }
  if (rows == 0 || k == 0) return result;
  const std::int64_t block_rows = rules.block_rows == 0 ? rows : rules.block_rows;
  const std::int64_t block_k = rules.block_k == 0 ? k : rules.block_k;
  result.grid_rows = (rows + block_rows - 1) / block_rows;
  result.grid_columns = (k + block_k - 1) / block_k;
  for (std::int64_t i = 0; i < result.grid_rows; ++i) {
    ErrorsAlongRow along;
    for (std::int64_t j = 0; j < result.grid_columns; ++j) {
      if (j * block_k % kColumnsAlongRow == 0) along = {};
      std::vector<std::size_t> where;
      std::vector<float> elements, weights, means;
      for (std::int64_t r = i * block_rows; r < std::min(rows, (i + 1) * block_rows); ++r) {
        for (std::int64_t c = j * block_k; c < std::min(k, (j + 1) * block_k); ++c) {
          where.push_back(static_cast<std::size_t>(r * k + c));
          elements.push_back(x[where.back()]);
          if (!options.weights.empty()) {
            weights.push_back(options.weights[static_cast<std::size_t>(c)]);
          }
          if (!options.means.empty()) means.push_back(options.means[static_cast<std::size_t>(c)]);
        }
      }
      Block block;
      if (rules.kind == Kind::mx) {
        block =
            mx_block(elements, *rules.element, options.mode, options.search, weights, means, along);
      } else if (rules.kind == Kind::nvfp4) {
        block = nvfp4_block(elements, result.s_tensor);
        const int rule = static_cast<int>(block.scale);
        const int best =
            options.search ? best_nvfp4_code(elements, weights, result.s_tensor, rule) : rule;
        if (best != rule) block = nvfp4_coded(elements, result.s_tensor, best);
      } else {
        const float given =
            options.given.empty() ? 0.0f : options.given[static_cast<std::size_t>(i)];
        block = fp8_block(elements, rules, options.amax_floor, given);
      }
      result.scales.push_back(block.scale);
      for (std::size_t n = 0; n < where.size(); ++n) {
        result.codes[where[n]] = static_cast<std::uint8_t>(block.codes[n]);
      }
    }
  }
  return result;
}

/// Value of a code of `element` (sign included); NaN and infinities of the FP8 formats too.
inline double value_of(const MiniFloat& element, int code) {
  const int magnitude = code & ((1 << (element.bits() - 1)) - 1);
  const bool negative = code >> (element.bits() - 1) != 0;
  double value = std::numeric_limits<double>::quiet_NaN();
  if (magnitude <= element.largest_code) {
    value = element.values[static_cast<std::size_t>(magnitude)];
  } else if (&element == &kE5M2 && magnitude == 0x7C) {
    value = std::numeric_limits<double>::infinity();
  }
  return negative ? -value : value;
}

}  // namespace oracle
