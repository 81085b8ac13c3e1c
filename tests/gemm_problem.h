// Random GEMMs for tests: operands of any recipe, layout and stride, outputs with poison around
// them, and the check against the float64 reference.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <vector>

#include "blockscale/gemm.h"
#include "ops/gemm/error_bound.h"
#include "ops/gemm/reference.h"

namespace blockscale::test {

/// What the operands are like.
enum class InputFamily : std::uint8_t {
  normal,       // normally distributed values, scales within a factor of 8
  positive,     // the same without signs
  adversarial,  // scales with random exponents, some zero, some huge
};
using Random = std::mt19937_64;

inline std::int64_t uniform(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}
/// In [0, 1).
inline double unit_real(Random& random) {
  return std::min(static_cast<double>(random()) * 0x1p-64, 1 - 0x1p-53);
}
inline double uniform_real(Random& random, double low, double high) {
  return unit_real(random) * (high - low) + low;
}
/// Normally distributed (Marsaglia's polar method). As fast with sanitizers as without, which the
/// standard library's is not.
inline double normal_real(Random& random) {
  for (;;) {
    const double x = 2 * unit_real(random) - 1, y = 2 * unit_real(random) - 1;
    const double square = x * x + y * y;
    if (square <= 1 && square != 0) return y * std::sqrt(-2 * std::log(square) / square);
  }
}
inline bool chance(Random& random, double probability) {
  return uniform_real(random, 0, 1) < probability;
}

/// Stores number `index` of a packed array of `format`.
inline void store_number(std::vector<std::uint8_t>& array, Format format, std::int64_t index,
                         std::uint32_t code) {
  const int bits = format_traits(format).bits;
  if (bits >= 8) {
    std::memcpy(array.data() + index * (bits / 8), &code, static_cast<std::size_t>(bits / 8));
    return;
  }
  for (int i = 0; i < bits; ++i) {
    const std::int64_t bit = index * bits + i;
    std::uint8_t& byte = array[static_cast<std::size_t>(bit / 8)];
    const std::uint8_t mask = static_cast<std::uint8_t>(1u << (bit % 8));
    byte = static_cast<std::uint8_t>((code >> i & 1u) != 0 ? byte | mask : byte & ~mask);
  }
}

/// A random scale of `format`.
inline std::uint32_t random_scale(Random& random, Format format, InputFamily family,
                                  bool smallest = true) {
  const bool adversarial = family == InputFamily::adversarial;
  const double kind = uniform_real(random, 0, 1);
  double exponent = adversarial ? uniform_real(random, -30, 20) : uniform_real(random, -1.5, 1.5);
  if (adversarial && kind < 0.1) exponent = 50;
  const float value = static_cast<float>(std::exp2(exponent));
  if (format == Format::ue8m0) {
    if (adversarial && kind > 0.9) return smallest ? 0 : 47;
    return encode_ue8m0(value, ScaleRounding::toward_zero);
  }
  if (format == Format::ue4m3) {
    return adversarial ? static_cast<std::uint32_t>(uniform(random, 0, 0x7E))
                       : encode<Format::ue4m3>(value);
  }
  return adversarial && kind > 0.9 ? 0 : bit_cast<std::uint32_t>(value);
}

/// A random element of `format`; `scaled` elements have a scale beside them, the others must span
/// an adversarial range by themselves.
inline std::uint32_t random_element(Random& random, Format format, InputFamily family,
                                    bool scaled) {
  double value = normal_real(random);
  if (family == InputFamily::positive) value = std::abs(value);
  if (scaled) {
    value *= double{format_traits(format).max} / 4;
  } else if (family == InputFamily::adversarial) {
    value *= std::exp2(format == Format::f16 ? uniform_real(random, -12, 8)
                                             : uniform_real(random, -40, 40));
    if (chance(random, 0.05)) value = 0;
  }
  return encode(format, static_cast<float>(value));
}

/// Memory that begins where tensor copies read elements with gaps.
template <class T>
struct AlignedAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{32};

  T* allocate(std::size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), kAlignment));
  }
  void deallocate(T* memory, std::size_t) { ::operator delete(memory, kAlignment); }
  friend bool operator==(const AlignedAllocator&, const AlignedAllocator&) = default;
};

struct OperandOptions {
  ScaleLayout layout = ScaleLayout::row_major;
  std::int64_t batch = 1;
  std::int64_t extra_row_bytes = 0;  // between rows of values; a multiple of the element's bytes
  std::int64_t extra_leading = 0;    // in strided scale layouts
  std::int64_t extra_batch = 0;      // elements between matrices
  TensorScaleSense sense = TensorScaleSense::divisor;
  bool tensor_scale = true;             // else null
  bool smallest_scales = true;          // of ue8m0: 2^-127, else 2^-80
  bool tensor_scale_each_batch = true;  // else one for all
};

/// Owns a random operand. Buffers end where the layout ends, so that a sanitiser sees over-reads.
class TestOperand {
 public:
  TestOperand(Random& random, Recipe recipe, std::int64_t rows, std::int64_t k, InputFamily family,
              const OperandOptions& options = {}) {
    const RecipeTraits& t = recipe_traits(recipe);
    view_.recipe = recipe;
    view_.rows = rows;
    view_.k = k;
    view_.batch = options.batch;
    view_.layout = options.layout;
    view_.sense = options.sense;
    fill_values(random, t, family, options);
    if (t.family != Family::plain) fill_scales(random, t, family, options);
    if (t.tensor_scale && options.tensor_scale) {
      const bool each = options.tensor_scale_each_batch;
      for (std::int64_t i = 0; i < (each ? options.batch : 1); ++i) {
        tensor_scales_.push_back(static_cast<float>(uniform_real(random, 0.1, 3)));
      }
      view_.tensor_scale = tensor_scales_.data();
      view_.tensor_scale_batch_stride = each ? 1 : 0;
    }
    view_ = resolved(view_, "operand");
  }
  TestOperand(const TestOperand&) = delete;
  TestOperand& operator=(const TestOperand&) = delete;

  ScaledTensorView view() const { return view_; }
  MutableScaledTensorView mutable_view() { return view_; }

  void set_scale(std::int64_t i, std::int64_t j, std::uint32_t code) {
    store_number(scales_, recipe_traits(view_.recipe).scale,
                 scale_offset(view_.layout, i, j, view_.scale_leading_stride), code);
  }
  void set_tensor_scales(float value) {
    std::fill(tensor_scales_.begin(), tensor_scales_.end(), value);
  }

 private:
  void fill_values(Random& random, const RecipeTraits& t, InputFamily family,
                   const OperandOptions& options) {
    const std::int64_t row = row_bytes(view_.recipe, view_.k);
    view_.value_row_stride = row + options.extra_row_bytes;
    const std::int64_t element_bytes = std::max(1, format_traits(t.element).bits / 8);
    const std::int64_t matrix = view_.rows * view_.value_row_stride;
    view_.value_batch_stride = matrix + options.extra_batch * element_bytes;
    const std::int64_t bytes = (view_.batch - 1) * view_.value_batch_stride + matrix -
                               (view_.rows > 0 ? options.extra_row_bytes : 0);
    values_.assign(static_cast<std::size_t>(bytes), 0xFF);
    std::vector<std::uint8_t> packed(static_cast<std::size_t>(row));
    for (std::int64_t r = 0; r < view_.batch * view_.rows; ++r) {
      for (std::int64_t k = 0; k < view_.k; ++k) {
        const bool scaled = t.family != Family::plain;
        store_number(packed, t.element, k, random_element(random, t.element, family, scaled));
      }
      const std::int64_t offset =
          r / view_.rows * view_.value_batch_stride + r % view_.rows * view_.value_row_stride;
      std::copy(packed.begin(), packed.end(), values_.begin() + offset);
    }
    view_.values = values_.data();
  }

  void fill_scales(Random& random, const RecipeTraits& t, InputFamily family,
                   const OperandOptions& options) {
    const ScaleGrid grid = scale_grid(view_.recipe, view_.rows, view_.k);
    const std::int64_t packed = default_leading_stride(view_.layout, grid.rows, grid.columns);
    const std::int64_t leading = packed + (is_swizzled(view_.layout) ? 0 : options.extra_leading);
    const std::int64_t matrix = scale_count(view_.layout, grid.rows, grid.columns, leading);
    const std::int64_t stride =
        default_batch_stride(view_.layout, grid.rows, grid.columns, leading) + options.extra_batch;
    const std::int64_t size = format_traits(t.scale).bits / 8;
    const std::int64_t count = (view_.batch - 1) * stride + matrix;
    // NaN wherever no scale lies: a mis-addressed scale cannot hide.
    scales_.assign(static_cast<std::size_t>(count * size), 0xFF);
    for (std::int64_t b = 0; b < view_.batch; ++b) {
      for (std::int64_t i = 0; i < grid.rows; ++i) {
        for (std::int64_t j = 0; j < grid.columns; ++j) {
          const std::int64_t offset = b * stride + scale_offset(view_.layout, i, j, leading);
          store_number(scales_, t.scale, offset,
                       random_scale(random, t.scale, family, options.smallest_scales));
        }
      }
    }
    view_.scales = scales_.data();
    view_.scale_leading_stride = leading;
    view_.scale_batch_stride = stride;
  }

  std::vector<std::uint8_t, AlignedAllocator<std::uint8_t>> values_;
  std::vector<std::uint8_t> scales_;
  std::vector<float> tensor_scales_;
  MutableScaledTensorView view_;
};

/// A plain matrix within poison: gaps between rows and matrices, and guards at both ends.
class TestMatrix {
 public:
  static constexpr std::uint8_t kPoison = 0xA5;
  static constexpr std::int64_t kGuard = 64;  // bytes

  TestMatrix(Format dtype, std::int64_t rows, std::int64_t columns, std::int64_t batch = 1,
             std::int64_t extra_columns = 0, std::int64_t extra_batch = 0) {
    view_ = {nullptr, dtype, rows, columns, columns + extra_columns, batch, 0};
    view_.batch_stride = rows * view_.row_stride + extra_batch;
    bytes_.assign(static_cast<std::size_t>(2 * kGuard + batch * view_.batch_stride * size()),
                  kPoison);
    view_.data = bytes_.data() + kGuard;
  }
  TestMatrix(const TestMatrix&) = delete;
  TestMatrix& operator=(const TestMatrix&) = delete;

  void fill(Random& random, InputFamily family) {
    each_element([&](std::int64_t offset) {
      const std::uint32_t code = random_element(random, view_.dtype, family, false);
      std::memcpy(bytes_.data() + offset, &code, static_cast<std::size_t>(size()));
    });
  }
  void fill_code(std::uint32_t code) {
    each_element([&](std::int64_t offset) {
      std::memcpy(bytes_.data() + offset, &code, static_cast<std::size_t>(size()));
    });
  }

  /// Elements of a matrix of the same dtype and shape, whatever its strides.
  void copy_elements_from(const TestMatrix& other) {
    std::vector<std::int64_t> from;
    other.each_element([&](std::int64_t offset) { from.push_back(offset); });
    auto next = from.begin();
    each_element([&](std::int64_t offset) {
      std::memcpy(bytes_.data() + offset, other.bytes_.data() + *next++,
                  static_cast<std::size_t>(size()));
    });
  }

  /// Whether everything outside of the elements still is poison.
  bool is_poison_intact() const {
    std::vector<std::uint8_t> copy = bytes_;
    each_element([&](std::int64_t offset) {
      std::memset(copy.data() + offset, kPoison, static_cast<std::size_t>(size()));
    });
    return std::all_of(copy.begin(), copy.end(), [](std::uint8_t b) { return b == kPoison; });
  }

  MutableMatrixView view() { return view_; }
  const std::vector<std::uint8_t>& bytes() const { return bytes_; }

 private:
  std::int64_t size() const { return format_traits(view_.dtype).bits / 8; }
  template <class Body>
  void each_element(Body body) const {
    for (std::int64_t b = 0; b < view_.batch; ++b) {
      for (std::int64_t r = 0; r < view_.rows; ++r) {
        for (std::int64_t c = 0; c < view_.columns; ++c) {
          body(kGuard + (b * view_.batch_stride + r * view_.row_stride + c) * size());
        }
      }
    }
  }

  std::vector<std::uint8_t> bytes_;
  MutableMatrixView view_;
};

/// How `d`, as a GEMM of `arguments` left it, compares with the float64 reference. With C aliasing
/// D, `arguments.c` must be a copy of what C was.
struct ErrorReport {
  double largest_ratio = 0;     // of error_ratio
  double largest_share = 0;     // of it and the limit
  std::int64_t violations = 0;  // elements above the limit
  std::int64_t elements = 0;
};

inline ErrorReport compare(const GemmArguments& arguments, const gemm_detail::ErrorLimit& limit) {
  GemmArguments x = arguments;
  x.a = resolved(arguments.a, "a");
  x.b = resolved(arguments.b, "b");
  x.d = resolved(arguments.d, "d");
  if (x.beta != 0) x.c = resolved(arguments.c, "c");
  ErrorReport report;
  for (std::int64_t index = 0; index < x.d.batch; ++index) {
    std::vector<std::vector<double>> b_rows;
    for (std::int64_t n = 0; n < x.b.rows; ++n) {
      b_rows.push_back(gemm_detail::operand_row(x.b, index, n));
    }
    for (std::int64_t m = 0; m < x.a.rows; ++m) {
      const std::vector<double> a_row = gemm_detail::operand_row(x.a, index, m);
      for (std::int64_t n = 0; n < x.b.rows; ++n) {
        const auto reference = gemm_detail::reference_element(x, index, m, n, a_row,
                                                              b_rows[static_cast<std::size_t>(n)]);
        const double d = gemm_detail::matrix_element(x.d, index, m, n);
        const double ratio = gemm_detail::error_ratio(x.d.dtype, d, reference);
        const double allowed = limit(reference);
        report.largest_ratio = std::max(report.largest_ratio, ratio);
        if (ratio > 0) report.largest_share = std::max(report.largest_share, ratio / allowed);
        report.violations += ratio > allowed ? 1 : 0;
        ++report.elements;
      }
    }
  }
  return report;
}

}  // namespace blockscale::test
