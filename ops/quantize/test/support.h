// What the quantizer's tests share: inputs of every kind, guarded buffers.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "blockscale/tensor.h"
#include "core/recipe.h"
#include "core/scale_layout.h"

namespace blockscale::test {

enum class Data {
  normal,
  huge,        // up to the largest finite number
  tiny,        // around 2^-120
  denormal,    // subnormal in f32
  outlier,     // one of each 32 a million times larger
  zero,        // both signs
  nonfinite,   // normal with NaN and infinities here and there
  infinities,  // nothing else but zeros
  boundaries,  // values next to powers of two and to multiples of element maxima
  any_bits,    // any pattern of the dtype
  mixed,       // a kind for each 64 elements
  tails,       // of each 16 none above -2, or some, or all near 0: GELU is small, or next to 0
};
inline constexpr std::array<Data, 12> kAllData = {
    Data::normal, Data::huge,      Data::tiny,       Data::denormal,   Data::outlier,  Data::zero,
    Data::mixed,  Data::nonfinite, Data::infinities, Data::boundaries, Data::any_bits, Data::tails};

inline const char* data_name(Data data) {
  constexpr const char* kNames[] = {"normal",     "huge",     "tiny",      "denormal",
                                    "outlier",    "zero",     "nonfinite", "infinities",
                                    "boundaries", "any_bits", "mixed",     "tails"};
  return kNames[static_cast<int>(data)];
}

inline float random_value(Data data, std::int64_t index, std::mt19937& random) {
  std::normal_distribution<float> normal;
  const float sign = random() % 2 == 0 ? 1.0f : -1.0f;
  switch (data) {
    case Data::normal: return normal(random);
    case Data::huge:
      return sign * std::ldexp(1.0f + static_cast<float>(random() >> 9) * 0x1p-23f,
                               127 - static_cast<int>(random() % 20));
    case Data::tiny: return std::ldexp(normal(random), -120 + static_cast<int>(random() % 8));
    case Data::denormal:
      return sign *
             std::bit_cast<float>(static_cast<std::uint32_t>(random()) >> (9 + random() % 10));
    case Data::outlier: return normal(random) * (index % 32 == 11 ? 1e6f : 1.0f);
    case Data::zero: return sign * 0.0f;
    case Data::nonfinite: {
      const std::uint32_t kind = static_cast<std::uint32_t>(random() % 150);
      if (kind == 0) return std::bit_cast<float>(0x7F800001u);  // signalling
      if (kind == 1) return std::bit_cast<float>(0xFFC12345u);
      return kind < 4 ? sign * INFINITY : normal(random);
    }
    case Data::infinities: return random() % 40 == 0 ? sign * INFINITY : sign * 0.0f;
    case Data::boundaries: {
      constexpr float kMantissas[] = {1.0f, 1.25f, 1.5f, 1.75f, 1.875f, 1.9375f};
      const float base = std::ldexp(kMantissas[random() % 6], static_cast<int>(random() % 9) - 4);
      const int step = static_cast<int>(random() % 5) - 2;
      return sign * std::bit_cast<float>(std::bit_cast<std::uint32_t>(base) +
                                         static_cast<std::uint32_t>(step));
    }
    case Data::any_bits: return std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    case Data::mixed: {
      std::mt19937 kind(static_cast<std::uint32_t>(index / 64));
      return random_value(kAllData[kind() % 6], index, random);
    }
    case Data::tails: {
      const auto kind = index / 16 % 3;
      const bool near = kind == 2 || (kind == 1 && random() % 4 == 0);
      return near ? std::ldexp(normal(random), -8 - static_cast<int>(random() % 8))
                  : -2 - 2 * std::fabs(normal(random));
    }
  }
  return 0;
}

/// A stored number as f32 and back, spelled out.
inline float widen(Format dtype, std::uint32_t bits) {
  if (dtype == Format::f32) return std::bit_cast<float>(bits);
  if (dtype == Format::bf16) return std::bit_cast<float>(bits << 16);
  const int field = static_cast<int>(bits >> 10 & 31);
  const float fraction = static_cast<float>(bits & 1023);
  float value = field == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, field - 25);
  if (field == 31) value = (bits & 1023) != 0 ? NAN : INFINITY;
  return (bits & 0x8000) != 0 ? -value : value;
}

/// Some number of the dtype near `x` (truncated; beyond the range of f16: infinity).
inline std::uint32_t narrow(Format dtype, float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if (dtype == Format::f32) return bits;
  if (dtype == Format::bf16) return std::isnan(x) ? bits >> 16 | 1 : bits >> 16;
  const std::uint32_t sign = bits >> 16 & 0x8000;
  if (std::isnan(x)) return sign | 0x7C01;
  const double a = std::fabs(static_cast<double>(x));
  if (a >= 65536) return sign | 0x7C00;
  if (a < 0x1p-14) return sign | static_cast<std::uint32_t>(std::ldexp(a, 24));
  const int exponent = std::ilogb(a);
  const auto fraction = static_cast<std::uint32_t>(std::ldexp(a, 10 - exponent)) - 1024;
  return sign | static_cast<std::uint32_t>(exponent + 15) << 10 | fraction;
}

/// Every recipe with scales.
inline std::vector<Recipe> scaled_recipes() {
  std::vector<Recipe> result;
  for (const RecipeTraits& t : kRecipes) {
    if (t.family != Family::plain) result.push_back(t.recipe);
  }
  return result;
}

/// The scale layouts that a recipe may have; for plain recipes the one that stands for none.
inline std::vector<ScaleLayout> layouts_of(Recipe recipe) {
  std::vector<ScaleLayout> layouts = {ScaleLayout::row_major};
  if (!is_plain(recipe)) layouts.push_back(ScaleLayout::mn_major);
  if (has_swizzled_scales(recipe_traits(recipe))) {
    layouts.push_back(ScaleLayout::swizzled_128x4);
    layouts.push_back(ScaleLayout::swizzled_8x4);
  }
  return layouts;
}

/// Random matrices of a dtype; each row is followed by `padding` NaNs.
class Matrix {
 public:
  Matrix(Format dtype, std::int64_t rows, std::int64_t columns, std::int64_t batch,
         std::int64_t padding, Data data, std::uint32_t seed)
      : dtype_(dtype), rows_(rows), columns_(columns), batch_(batch), stride_(columns + padding) {
    std::mt19937 random(seed);
    const std::size_t size = static_cast<std::size_t>(format_traits(dtype).bits) / 8;
    bytes_.assign(static_cast<std::size_t>(batch * rows * stride_) * size, 0xFF);
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t c = 0; c < columns; ++c) {
          // f16 has a narrower range: huge and tiny values are brought to its ends.
          float value = random_value(data, (b * rows + i) * columns + c, random);
          if (dtype == Format::f16 && data == Data::huge) value *= 0x1p-112f;
          if (dtype == Format::f16 && data == Data::tiny) value *= 0x1p100f;
          const std::uint32_t bits =
              data == Data::any_bits ? std::bit_cast<std::uint32_t>(value) : narrow(dtype, value);
          std::memcpy(bytes_.data() + index(b, i, c) * size, &bits, size);
        }
      }
    }
  }

  /// Elements become value_of(row, column), which the dtype holds, in each matrix.
  template <class ValueOf>
  void assign(const ValueOf& value_of) {
    const std::size_t size = static_cast<std::size_t>(format_traits(dtype_).bits) / 8;
    for (std::int64_t i = 0; i < batch_ * rows_; ++i) {
      for (std::int64_t c = 0; c < columns_; ++c) {
        const std::uint32_t bits = narrow(dtype_, value_of(i % rows_, c));
        std::memcpy(bytes_.data() + index(0, i, c) * size, &bits, size);
      }
    }
  }

  MatrixView view() const {
    return {bytes_.data(), dtype_, rows_, columns_, stride_, batch_, rows_ * stride_};
  }
  /// One matrix in f32, packed.
  std::vector<float> values(std::int64_t matrix) const {
    const std::size_t size = static_cast<std::size_t>(format_traits(dtype_).bits) / 8;
    std::vector<float> result;
    for (std::int64_t i = 0; i < rows_; ++i) {
      for (std::int64_t c = 0; c < columns_; ++c) {
        std::uint32_t bits = 0;
        std::memcpy(&bits, bytes_.data() + index(matrix, i, c) * size, size);
        result.push_back(widen(dtype_, bits));
      }
    }
    return result;
  }

 private:
  std::size_t index(std::int64_t b, std::int64_t i, std::int64_t c) const {
    return static_cast<std::size_t>((b * rows_ + i) * stride_ + c);
  }

  Format dtype_;
  std::int64_t rows_, columns_, batch_, stride_;
  std::vector<std::uint8_t> bytes_;
};

/// Bytes of garbage, with more of it before and after: whoever writes there is caught.
inline constexpr std::int64_t kGuard = 64;
class GuardedBytes {
 public:
  explicit GuardedBytes(std::int64_t count) {
    std::mt19937 random(12345);
    bytes_.resize(static_cast<std::size_t>(count + 2 * kGuard));
    for (auto& byte : bytes_) byte = static_cast<std::uint8_t>(random() | 1);
  }
  std::uint8_t* data() { return bytes_.data() + kGuard; }
  /// Guards included.
  const std::vector<std::uint8_t>& bytes() const { return bytes_; }
  void assign(const std::vector<std::uint8_t>& bytes) {
    std::copy(bytes.begin(), bytes.end(), bytes_.begin());
  }

 private:
  std::vector<std::uint8_t> bytes_;
};

/// An output without memory: `value_gap` bytes behind each row of values, and where the layout has
/// rows or columns of scales `scale_gap` of these behind each.
inline MutableScaledTensorView output_with_gaps(Recipe recipe, std::int64_t rows, std::int64_t k,
                                                std::int64_t batch, ScaleLayout layout,
                                                std::int64_t value_gap, std::int64_t scale_gap) {
  MutableScaledTensorView v;
  v.recipe = recipe;
  v.rows = rows;
  v.k = k;
  v.batch = batch;
  v.value_row_stride = row_bytes(recipe, k) + value_gap;
  v.value_batch_stride = rows * v.value_row_stride;
  v.layout = layout;
  const ScaleGrid grid = scale_grid(recipe, rows, k);
  v.scale_leading_stride = default_leading_stride(layout, grid.rows, grid.columns);
  if (!is_swizzled(layout)) v.scale_leading_stride += scale_gap;
  v.scale_batch_stride =
      default_batch_stride(layout, grid.rows, grid.columns, v.scale_leading_stride);
  return v;
}

}  // namespace blockscale::test
