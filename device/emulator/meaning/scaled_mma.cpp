// The arithmetic of SM120's mma.sync with narrow elements, a warp's tile at a time.
#include "device/emulator/meaning/scaled_mma.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "device/emulator/meaning/product_sums.h"

namespace blockscale::emulator::meaning {
namespace {

constexpr uint32_t kByteK = 32, kPackedK = 64;
constexpr uint32_t kGroup = 16, kGroups = kPackedK / kGroup;  // of packed products
constexpr int kByteFraction = 25, kPackedFraction = 35;       // bits kept below the largest term's
constexpr int kByteZero = -133, kPackedZero = -139;           // the exponent of terms of 0
/// Below every exponent of a product, also when one of its factors has another.
constexpr int16_t kNoExponent = -4096;

const float kNan = bit_cast<float>(0x7FFFFFFFu);

/// 2^exponent; 0 where that is below f64's normal numbers.
double power_of_two(int exponent) {
  if (exponent < -1022) return 0;
  return bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

/// sum * 2^unit, cut to f32. |sum| < 2^53.
float cut_to_f32(int64_t sum, int unit) {
  const double exact = static_cast<double>(sum) * power_of_two(unit);
  if (std::fabs(exact) >= 0x1p128) {
    return std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(sum));
  }
  float nearest = static_cast<float>(exact);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(exact)) {
    nearest = std::nextafter(nearest, 0.0f);
  }
  return nearest + 0.0f;  // no -0
}

/// sum * 2^unit, to nearest even to f16. |sum| < 2^53. (With D in f16 terms of 0 have another
/// exponent, and subnormal old values: no sum shows it, as all terms are multiples of 2^-32.)
float round_to_f16(int64_t sum, int unit) {
  if (sum == 0) return 0;  // no -0
  const double exact = static_cast<double>(sum) * power_of_two(unit);
  const double last = power_of_two(std::max(std::ilogb(exact), -14) - 10);
  const double nearest = std::nearbyint(exact / last) * last;
  if (std::fabs(nearest) > 65504) {
    return std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(sum));
  }
  return static_cast<float>(nearest) + 0.0f;
}

/// A finite f32 as a term. Subnormal ones lead with the least normal exponent.
SumTerm term_of_old(float value, int exponent_of_zero) {
  const uint32_t bits = bit_cast<uint32_t>(value), field = bits >> 23 & 0xFFu;
  const int64_t significand = (bits & 0x7FFFFFu) | (field == 0 ? 0u : 0x800000u);
  if (significand == 0) return {0, 0, exponent_of_zero};
  const int leading = static_cast<int>(std::max(field, 1u)) - 127;
  return {(bits >> 31) != 0 ? -significand : significand, leading - 23, leading};
}

/// A term in units of 2^unit.
int64_t cut(const SumTerm& term, int unit) {
  return term.significand == 0 ? 0 : cut_term(term, unit, CutBits::toward_zero);
}

/// put(row, k, code) for each element of A or B. `place_of` is that of their words.
template <uint32_t kWords, class Put>
void for_each_element(Format format, bool packed, const uint32_t (&words)[kMmaLanes][kWords],
                      MmaPlace (*place_of)(uint32_t, uint32_t), const Put& put) {
  const uint32_t bits = static_cast<uint32_t>(format_traits(format).bits);
  const uint32_t step = packed ? 4 : 8, first = packed ? 0 : element_shift(format);
  for (uint32_t lane = 0; lane < kMmaLanes; ++lane) {
    for (uint32_t i = 0; i < kWords; ++i) {
      const MmaPlace place = place_of(lane, i);
      for (uint32_t j = 0; j < 32 / step; ++j) {
        put(place.row, place.column * 8 / step + j,
            words[lane][i] >> (step * j + first) & ((1u << bits) - 1));
      }
    }
  }
}

// --- k = 32: a byte an element ---

struct Element {
  float value;
  int16_t exponent;  // kNoExponent of 0
};
using Elements = std::array<Element, 256>;  // by code

const Elements& elements_of(Format format) {
  static const auto kAll = [] {
    std::array<Elements, kFormatCount> all = {};
    for (const Format f : {Format::e2m1, Format::e2m3, Format::e3m2, Format::e4m3, Format::e5m2}) {
      for (uint32_t code = 0; code < 256; ++code) {
        const float value = decode(f, code);
        all[static_cast<std::size_t>(f)][code] = {
            value, value == 0 ? kNoExponent : static_cast<int16_t>(factor_term(f, code).leading)};
      }
    }
    return all;
  }();
  return kAll[static_cast<std::size_t>(format)];
}

struct ByteRow {
  alignas(32) float value[kByteK];
  alignas(32) int16_t exponent[kByteK];
  int scale = 0;  // the exponent
  bool is_nan = false;
  bool is_finite = true;
};

template <uint32_t kWords, uint32_t kRows>
void decode_bytes(Format format, const uint32_t (&words)[kMmaLanes][kWords],
                  MmaPlace (*place_of)(uint32_t, uint32_t), ByteRow (&rows)[kRows]) {
  const Elements& elements = elements_of(format);
  for_each_element(format, false, words, place_of, [&](uint32_t row, uint32_t k, uint32_t code) {
    const Element& element = elements[code];
    ByteRow& r = rows[row];
    r.value[k] = element.value;
    r.exponent[k] = element.exponent;
    r.is_nan |= std::isnan(element.value);
    r.is_finite &= std::isfinite(element.value);
  });
}

void put_scale(ByteRow& row, uint32_t code) {
  row.scale = static_cast<int>(code) - 127;
  row.is_nan |= code == 0xFF;
}

/// One of the terms is infinite.
float sum_infinite(const ByteRow& a, const ByteRow& b, float old) {
  double sum = static_cast<double>(old);
  for (uint32_t k = 0; k < kByteK; ++k) {
    sum += static_cast<double>(a.value[k]) * static_cast<double>(b.value[k]);
  }
  return std::isnan(sum) ? kNan : static_cast<float>(sum);
}

float sum_bytes(const ByteRow& a, const ByteRow& b, float old, Format d) {
  if (a.is_nan || b.is_nan || std::isnan(old)) return kNan;
  if (!a.is_finite || !b.is_finite || std::isinf(old)) return sum_infinite(a, b, old);
  int16_t most = std::numeric_limits<int16_t>::min(), least = std::numeric_limits<int16_t>::max();
  for (uint32_t k = 0; k < kByteK; ++k) {
    const int16_t exponent = static_cast<int16_t>(a.exponent[k] + b.exponent[k]);
    most = std::max(most, exponent);
    least = std::min(least, exponent);
  }
  const int scale = a.scale + b.scale;
  const SumTerm before = term_of_old(old, kByteZero);
  int leading = before.leading;
  if (most > kNoExponent / 2) leading = std::max(leading, most + scale);
  if (least < kNoExponent / 2) leading = std::max(leading, kByteZero);
  const int unit = leading - kByteFraction;
  // Products are exact in f32, and below 2^27 of these units: conversions to integers cut them. (If
  // all are 0 there may be many units, of whatever number.)
  const float units = static_cast<float>(power_of_two(std::clamp(scale - unit, -126, 126)));
  int64_t sum = cut(before, unit);
  for (uint32_t first = 0; first < kByteK; first += kByteK / 2) {
    int32_t half = 0;
    for (uint32_t k = first; k < first + kByteK / 2; ++k) {
      half += static_cast<int32_t>(a.value[k] * b.value[k] * units);
    }
    sum += half;
  }
  return d == Format::f16 ? round_to_f16(sum, unit) : cut_to_f32(sum, unit);
}

// --- k = 64: packed e2m1 ---

struct PackedRow {
  alignas(32) int16_t twice[kPackedK];  // the value
  uint32_t is_not_zero[kGroups] = {};   // a bit an element
  SumTerm scale[kGroups];
  bool is_nan = false;
};

template <uint32_t kWords, uint32_t kRows>
void decode_packed(const uint32_t (&words)[kMmaLanes][kWords],
                   MmaPlace (*place_of)(uint32_t, uint32_t), PackedRow (&rows)[kRows]) {
  static constexpr int16_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  for_each_element(Format::e2m1, true, words, place_of,
                   [&](uint32_t row, uint32_t k, uint32_t code) {
                     rows[row].twice[k] = kTwice[code];
                     rows[row].is_not_zero[k / kGroup] |= uint32_t{kTwice[code] != 0} << k % kGroup;
                   });
}

/// The scales of a row: bytes `first` and on of its lane's word.
void put_scales(const ScaledMma& mma, uint32_t word, uint32_t first, PackedRow& row) {
  for (uint32_t group = 0; group < kGroups; ++group) {
    uint32_t code = word >> 8 * (first + group * mma.scales / kGroups) & 0xFFu;
    if (mma.scales == 4) {
      code &= 0x7Fu;  // the sign is not looked at
      row.is_nan |= code == 0x7F;
      row.scale[group] = factor_term(Format::e4m3, code);
    } else {
      row.is_nan |= code == 0xFF;
      row.scale[group] = {1, static_cast<int>(code) - 127, static_cast<int>(code) - 127};
    }
  }
}

float sum_packed(const PackedRow& a, const PackedRow& b, float old) {
  if (a.is_nan || b.is_nan || std::isnan(old)) return kNan;
  if (std::isinf(old)) return old;
  const SumTerm before = term_of_old(old, kPackedZero);
  SumTerm terms[kGroups];
  int leading = before.leading;
  for (uint32_t group = 0; group < kGroups; ++group) {
    int32_t sum = 0;  // in units of 1/4
    for (uint32_t k = group * kGroup; k < (group + 1) * kGroup; ++k) {
      sum += int32_t{a.twice[k]} * int32_t{b.twice[k]};
    }
    const SumTerm& x = a.scale[group];
    const SumTerm& y = b.scale[group];
    const bool is_zero = (a.is_not_zero[group] & b.is_not_zero[group]) == 0 || x.significand == 0 ||
                         y.significand == 0;
    terms[group] = {sum * x.significand * y.significand, x.exponent + y.exponent - 2,
                    is_zero ? kPackedZero : x.leading + y.leading};
    leading = std::max(leading, terms[group].leading);
  }
  const int unit = leading - kPackedFraction;
  int64_t sum = cut(before, unit);
  for (const SumTerm& term : terms) sum += cut(term, unit);
  return cut_to_f32(sum, unit);
}

/// Each value of D becomes sum(row, column, old).
template <class Sum>
void for_each_value(MmaFragments& fragments, const Sum& sum) {
  for (uint32_t lane = 0; lane < kMmaLanes; ++lane) {
    for (uint32_t i = 0; i < 4; ++i) {
      const MmaPlace place = mma_place_of_d(lane, i);
      float& d = fragments.d[lane][i];
      d = sum(place.row, place.column, d);
    }
  }
}

void multiply_bytes(const ScaledMma& mma, ScaledMmaFragments& f) {
  ByteRow a[kMmaRows], b[kMmaColumns];
  decode_bytes(mma.a, f.values.a, mma_place_of_a, a);
  decode_bytes(mma.b, f.values.b, mma_place_of_b, b);
  if (mma.scales != 0) {
    for (uint32_t row = 0; row < kMmaRows; ++row) {
      const uint32_t word = f.scales_a[scale_lane_of_a(row, mma.thread_a)];
      put_scale(a[row], word >> 8 * mma.byte_a & 0xFFu);
    }
    for (uint32_t column = 0; column < kMmaColumns; ++column) {
      const uint32_t word = f.scales_b[scale_lane_of_b(column, mma.thread_b)];
      put_scale(b[column], word >> 8 * mma.byte_b & 0xFFu);
    }
  }
  for_each_value(f.values, [&](uint32_t row, uint32_t column, float old) {
    return sum_bytes(a[row], b[column], old, mma.d);
  });
}

void multiply_packed(const ScaledMma& mma, ScaledMmaFragments& f) {
  PackedRow a[kMmaRows], b[kMmaColumns];
  decode_packed(f.values.a, mma_place_of_a, a);
  decode_packed(f.values.b, mma_place_of_b, b);
  for (uint32_t row = 0; row < kMmaRows; ++row) {
    put_scales(mma, f.scales_a[scale_lane_of_a(row, mma.thread_a)], mma.byte_a, a[row]);
  }
  for (uint32_t column = 0; column < kMmaColumns; ++column) {
    put_scales(mma, f.scales_b[scale_lane_of_b(column, mma.thread_b)], mma.byte_b, b[column]);
  }
  for_each_value(f.values, [&](uint32_t row, uint32_t column, float old) {
    return sum_packed(a[row], b[column], old);
  });
}

}  // namespace

void scaled_mma(const ScaledMma& mma, ScaledMmaFragments& fragments) {
  is_packed(mma) ? multiply_packed(mma, fragments) : multiply_bytes(mma, fragments);
}

}  // namespace blockscale::emulator::meaning
