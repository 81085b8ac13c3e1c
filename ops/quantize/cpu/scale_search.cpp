// Scales of least error, for every SIMD target. Each lane has a block of its own, so that its
// squared errors are added one after the other, in the order that numerics.md pins.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quantize/cpu/scale_search.cpp"
#include "ops/common/simd/targets.h"

#include <hwy/foreach_target.h>

#include <cstdint>
#include <limits>

#include "core/packing.h"
#include "ops/common/simd/decode-inl.h"
#include "ops/common/simd/encode-inl.h"
#include "ops/quantize/cpu/steps.h"
#include "ops/quantize/cpu/transform-inl.h"
#include "ops/quantize/exponent_rounding.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale {
namespace HWY_NAMESPACE {

using steps::MagnitudeBits;
using steps::SearchedBlocks;

/// Errors are found in quarters: the ties of e2m1 are then at integers.
constexpr float kQuarters = 4.0f;
/// Values (in quarters) of at most this size need no clamp before `nearest_e2m1`.
constexpr float kLargestForTable = 30.0f;

using FloatTag = hn::ScalableTag<float>;
using Floats = hn::Vec<FloatTag>;
using Codes = hn::Vec<hn::RebindToSigned<FloatTag>>;
using FloatMask = hn::Mask<FloatTag>;

#if HWY_TARGET == HWY_AVX3
/// The e2m1 value nearest to 0 <= y <= kLargestForTable, which floor(y) tells; adding 2^23 - 1/2
/// rounds to that integer (31: below 0). At a tie this may be the other neighbour than `encode`
/// takes, which is as near.
HWY_INLINE Floats nearest_e2m1(Floats y) {
  alignas(64) static constexpr float kValues[32] = {0,  2,  2,  4,  4,  6,  6,  8,  8,  8,  12,
                                                    12, 12, 12, 16, 16, 16, 16, 16, 16, 24, 24,
                                                    24, 24, 24, 24, 24, 24, 24, 24, 24, 0};
  const auto index = hn::Add(y, hn::Set(FloatTag(), 0x1p23f - 0.5f));
  return Floats{_mm512_permutex2var_ps(_mm512_load_ps(kValues), _mm512_castps_si512(index.raw),
                                       _mm512_load_ps(kValues + 16))};
}
#endif

/// The value of the code of y >= 0, both in quarters; beyond its range the largest.
template <Format kElement>
HWY_INLINE Floats coded_value(Floats y) {
  constexpr FormatTraits t = format_traits(kElement);
  const FloatTag df;
  // As encode_low_bits: adding 2^(exponent + 23 - mantissa bits) rounds at the last place.
  const hn::RebindToUnsigned<FloatTag> du;
  const auto clamped = hn::Min(y, hn::Set(df, kQuarters * t.max));
  const auto field = hn::And(hn::BitCast(du, clamped), hn::Set(du, 0x7F800000u));
  const auto exponent = hn::Max(field, hn::Set(du, static_cast<std::uint32_t>(130 - t.bias) << 23));
  const auto shifter = hn::BitCast(
      df, hn::Add(exponent, hn::Set(du, static_cast<std::uint32_t>(23 - t.mantissa_bits) << 23)));
  return hn::Sub(hn::Add(clamped, shifter), shifter);
}

/// The same; at a tie perhaps the other neighbour, which is as near.
template <Format kElement, bool kInTable>
HWY_INLINE Floats nearest_value(Floats y) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (kElement == Format::e2m1) {
    return nearest_e2m1(kInTable ? y : hn::Min(y, hn::Set(FloatTag(), kLargestForTable)));
  }
#endif
  return coded_value<kElement>(y);
}

/// The elements from index `from` on.
template <Format kDtype>
HWY_INLINE Floats load_elements(const void* x, std::int64_t from) {
  const auto* const bytes =
      static_cast<const std::uint8_t*>(x) + from * (format_traits(kDtype).bits / 8);
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(FloatTag(), decode<kDtype>(load_code<kDtype>(bytes, 0)));
#else
  return decode_lanes<kDtype>(FloatTag(), bytes);
#endif
}

/// Magnitudes, and weights if there are any, of a block in each lane: a vector an element.
template <int kElements, bool kHasWeights>
struct Lanes {
  static constexpr int kBlock = kElements;
  static constexpr bool kWeighted = kHasWeights;
  static constexpr std::int64_t kLanes = hn::MaxLanes(FloatTag());

  HWY_ALIGN float magnitudes[kBlock * kLanes];
  HWY_ALIGN float weights[kWeighted ? kBlock * kLanes : 1];
  Floats amax;
  Floats weight_of_amax;  // of one element of that magnitude

  HWY_INLINE void load(const SearchedBlocks& blocks, std::int64_t first, Floats largest) {
    amax = largest;
    switch (blocks.dtype) {
      case Format::f16: return load_from<Format::f16>(blocks, first);
      case Format::bf16: return load_from<Format::bf16>(blocks, first);
      default: return load_from<Format::f32>(blocks, first);
    }
  }

 private:
  template <Format kDtype>
  HWY_INLINE void load_from(const SearchedBlocks& blocks, std::int64_t first) {
    const FloatTag df;
    const auto largest = amax;
    auto its_weight = hn::Set(df, 1.0f);
    for (std::int64_t j = 0; j < kBlock; ++j) {
      const std::int64_t from = j * blocks.pitch + first;
      const auto magnitude = hn::Abs(load_elements<kDtype>(blocks.x, from));
      hn::Store(magnitude, df, magnitudes + j * kLanes);
      if constexpr (kWeighted) {
        const auto weight = hn::LoadU(df, blocks.weights + from);
        hn::Store(weight, df, weights + j * kLanes);
        its_weight = hn::IfThenElse(hn::Eq(magnitude, largest), weight, its_weight);
      }
    }
    weight_of_amax = its_weight;
  }
};

/// sum + difference^2 weight
template <bool kWeighted>
HWY_INLINE Floats add_square(Floats difference, Floats weight, Floats sum) {
  const Floats weighted = kWeighted ? hn::Mul(difference, weight) : difference;
  return VectorMath<FloatTag>::fma(weighted, difference, sum);
}

/// Squared errors of each block with two factors.
struct Two {
  Floats first, second;
};

template <Format kElement, bool kInTable, class Block>
HWY_INLINE Two sum_squares(const Block& block, Two factors) {
  const FloatTag df;
  constexpr bool kWeighted = Block::kWeighted;
  Two sums{hn::Zero(df), hn::Zero(df)};
  for (std::int64_t j = 0; j < Block::kBlock; ++j) {
    const auto x = hn::Load(df, block.magnitudes + j * Block::kLanes);
    const auto weight = hn::Load(
        df, kWeighted ? block.weights + j * Block::kLanes : block.magnitudes + j * Block::kLanes);
    const auto first = hn::Mul(x, factors.first);
    const auto second = hn::Mul(x, factors.second);
    const auto first_error = hn::Sub(first, nearest_value<kElement, kInTable>(first));
    const auto second_error = hn::Sub(second, nearest_value<kElement, kInTable>(second));
    sums.first = add_square<kWeighted>(first_error, weight, sums.first);
    sums.second = add_square<kWeighted>(second_error, weight, sums.second);
  }
  return sums;
}

/// Sums over a block of (y - q)^2 w, where y is an element times a factor and q its code's value,
/// both in quarters.
template <Format kElement, class Block>
HWY_INLINE Two squared_errors(const Block& block, Two factors) {
  const FloatTag df;
  const auto quarters = hn::Set(df, kQuarters);
  const Two used{hn::Mul(factors.first, quarters), hn::Mul(factors.second, quarters)};
  const auto largest = hn::Mul(block.amax, hn::Max(used.first, used.second));
  if (kElement == Format::e2m1 && hn::AllTrue(df, hn::Le(largest, hn::Set(df, kLargestForTable)))) {
    return sum_squares<kElement, true>(block, used);
  }
  return sum_squares<kElement, false>(block, used);
}

/// The best candidate yet of each lane; a later one must be better.
struct Best {
  Codes rule;  // the amax rule's
  Codes code;
  Floats factor, rule_error, error;
  FloatMask searched;

  /// Of the amax rule's choices `bytes` and `factors`.
  HWY_INLINE Best(const std::uint8_t* bytes, const float* factors) {
    const FloatTag df;
    const hn::RebindToSigned<FloatTag> di;
    rule = hn::PromoteTo(di, hn::LoadU(hn::Rebind<std::uint8_t, FloatTag>(), bytes));
    code = rule;
    factor = hn::LoadU(df, factors);
    rule_error = error = hn::Set(df, std::numeric_limits<float>::infinity());
    const auto coded = hn::Ge(factor, hn::Zero(df));  // not kZeroCodes
    searched = hn::And(coded, hn::Le(factor, hn::Set(df, steps::kLargestSearchedFactor)));
  }

  HWY_INLINE void offer(Codes candidate, Floats its_factor, Floats its_error) {
    const hn::RebindToSigned<FloatTag> di;
    const auto better = hn::And(searched, hn::Lt(its_error, error));
    error = hn::IfThenElse(better, its_error, error);
    factor = hn::IfThenElse(better, its_factor, factor);
    code = hn::IfThenElse(hn::RebindMask(di, better), candidate, code);
  }

  HWY_INLINE void store(std::uint8_t* bytes, float* factors, Floats unit, float* amax_errors,
                        float* errors) const {
    const FloatTag df;
    const hn::RebindToUnsigned<FloatTag> du;
    hn::StoreU(hn::TruncateTo(hn::Rebind<std::uint8_t, FloatTag>(), hn::BitCast(du, code)),
               hn::Rebind<std::uint8_t, FloatTag>(), bytes);
    hn::StoreU(factor, df, factors);
    hn::StoreU(hn::IfThenElseZero(searched, hn::Mul(rule_error, unit)), df, amax_errors);
    hn::StoreU(hn::IfThenElseZero(searched, hn::Mul(error, unit)), df, errors);
  }
};

HWY_INLINE Floats finite_maxima(const MagnitudeBits* maxima) {
  const hn::RebindToUnsigned<FloatTag> du;
  return hn::BitCast(FloatTag(),
                     hn::Min(hn::LoadU(du, maxima), hn::Set(du, steps::kLargestFinite)));
}

/// Candidates of MX: the code of `ceil`, and the one below.
struct MxCandidates {
  Codes low, high;

  HWY_INLINE MxCandidates(Format element, Floats amax) {
    const hn::RebindToUnsigned<FloatTag> du;
    const hn::RebindToSigned<FloatTag> di;
    const auto zero = hn::Zero(di);
    const auto rounding =
        hn::Set(du, quantize_detail::exponent_rounding(element, MxScaleMode::ceil));
    const auto field = hn::ShiftRight<23>(hn::Add(hn::BitCast(du, amax), rounding));
    const auto emax = hn::Set(di, format_traits(element).max_exponent);
    high = hn::Max(hn::Sub(hn::BitCast(di, field), emax), zero);
    low = hn::Max(hn::Sub(high, hn::Set(di, 1)), zero);
  }

  HWY_INLINE static Floats factor_of(Codes code) {
    const hn::RebindToSigned<FloatTag> di;
    return hn::BitCast(FloatTag(), hn::ShiftLeft<23>(hn::Sub(hn::Set(di, 254), code)));
  }
};

template <Format kElement, bool kWeighted>
void search_mx(const SearchedBlocks& blocks, const MagnitudeBits* maxima, std::uint8_t* bytes,
               float* factors, float* amax_errors, float* errors) {
  const FloatTag df;
  const hn::RebindToSigned<FloatTag> di;
  const auto zero = hn::Zero(di);
  Lanes<32, kWeighted> lanes;
  for (std::int64_t i = 0; i < blocks.count; i += lanes.kLanes) {
    const auto amax = finite_maxima(maxima + i);
    lanes.load(blocks, i, amax);
    const MxCandidates candidates(kElement, amax);
    const auto low = candidates.low, high = candidates.high;
    Best best(bytes + i, factors + i);
    const Two factors_of{candidates.factor_of(low), candidates.factor_of(high)};
    const Two sums = squared_errors<kElement>(lanes, factors_of);
    // Both in units of the higher scale, squared.
    const auto one = hn::RebindMask(df, hn::Eq(low, high));
    const auto of_low = hn::IfThenElse(one, sums.second, hn::Mul(sums.first, hn::Set(df, 0.25f)));
    best.rule_error = sums.second;
    best.error = best.rule_error;
    best.offer(low, factors_of.first, of_low);
    // The square of that scale, over that of a quarter; 0 or infinity where f32 has it not.
    const auto exponent = hn::Sub(hn::Add(high, high), hn::Set(di, 127 + 4));
    const auto unit = hn::ShiftLeft<23>(hn::Min(hn::Max(exponent, zero), hn::Set(di, 255)));
    best.store(bytes + i, factors + i, hn::BitCast(df, unit), amax_errors + i, errors + i);
  }
}

/// Errors of one factor: sums of v e^2, and of the mean times e.
struct MeanSums {
  Floats squares, products;

  template <Format kElement>
  HWY_INLINE void add(Floats y, Floats variance, Floats mean) {
    const auto error = hn::Sub(y, coded_value<kElement>(y));
    squares = add_square<true>(error, variance, squares);
    products = VectorMath<FloatTag>::fma(mean, error, products);
  }
};

template <Format kElement, Format kDtype>
void measure_mx(const SearchedBlocks& blocks, const MagnitudeBits* maxima,
                const steps::MxErrors& errors) {
  const FloatTag df;
  constexpr int kBlock = 32;
  for (std::int64_t i = 0; i < blocks.count; i += static_cast<std::int64_t>(hn::Lanes(df))) {
    const MxCandidates candidates(kElement, finite_maxima(maxima + i));
    const auto quarters = hn::Set(df, kQuarters);
    const auto first = hn::Mul(candidates.factor_of(candidates.high), quarters);
    const auto second = hn::Mul(candidates.factor_of(candidates.low), quarters);
    MeanSums of_first{hn::Zero(df), hn::Zero(df)}, of_second = of_first;
    for (std::int64_t j = 0; j < kBlock; ++j) {
      const std::int64_t from = j * blocks.pitch + i;
      const auto variance = hn::LoadU(df, blocks.weights + from);
      const auto value = load_elements<kDtype>(blocks.x, from);
      const auto magnitude = hn::Abs(value);
      const auto signed_mean =
          hn::Xor(hn::LoadU(df, blocks.means + from), hn::Xor(value, magnitude));
      of_first.add<kElement>(hn::Mul(magnitude, first), variance, signed_mean);
      of_second.add<kElement>(hn::Mul(magnitude, second), variance, signed_mean);
    }
    const MeanSums sums[2] = {of_first, of_second};
    for (int c = 0; c < 2; ++c) {
      hn::StoreU(sums[c].squares, df, errors.squares[c] + i);
      hn::StoreU(sums[c].products, df, errors.products[c] + i);
    }
  }
}

template <Format kElement>
void measure_mx_of(const SearchedBlocks& blocks, const MagnitudeBits* maxima,
                   const steps::MxErrors& errors) {
  switch (blocks.dtype) {
    case Format::f16: return measure_mx<kElement, Format::f16>(blocks, maxima, errors);
    case Format::bf16: return measure_mx<kElement, Format::bf16>(blocks, maxima, errors);
    default: return measure_mx<kElement, Format::f32>(blocks, maxima, errors);
  }
}

void take_variances(const float* means, std::int64_t count, float* weights) {
  const FloatTag df;
  for (std::int64_t i = 0; i < count; i += static_cast<std::int64_t>(hn::Lanes(df))) {
    const auto mean = hn::LoadU(df, means + i);
    const auto rest = VectorMath<FloatTag>::fma(hn::Neg(mean), mean, hn::LoadU(df, weights + i));
    hn::StoreU(hn::Max(rest, hn::Zero(df)), df, weights + i);
  }
}

void measure_mx_scales(Format element, const SearchedBlocks& blocks, const MagnitudeBits* maxima,
                       const steps::MxErrors& errors) {
  switch (element) {
    case Format::e2m3: return measure_mx_of<Format::e2m3>(blocks, maxima, errors);
    case Format::e3m2: return measure_mx_of<Format::e3m2>(blocks, maxima, errors);
    case Format::e4m3: return measure_mx_of<Format::e4m3>(blocks, maxima, errors);
    case Format::e5m2: return measure_mx_of<Format::e5m2>(blocks, maxima, errors);
    default: return measure_mx_of<Format::e2m1>(blocks, maxima, errors);
  }
}

void weigh_choices(std::int64_t count, const steps::MxErrors& errors, const std::uint8_t* bytes,
                   const float* factors, const steps::ChoicesAlong& choices) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> df;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::RebindToUnsigned<decltype(df)> du_half;
  const auto zero = hn::Zero(d), half = hn::Set(d, 0.5);
  const auto infinity = hn::Set(d, std::numeric_limits<double>::infinity());
  for (std::int64_t i = 0; i < count; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    const auto byte = hn::PromoteTo(
        du, hn::PromoteTo(du_half, hn::LoadU(hn::Rebind<std::uint8_t, decltype(d)>(), bytes + i)));
    const auto factor = hn::PromoteTo(d, hn::LoadU(df, factors + i));
    // A quarter of the scale, 2^(byte - 127) / 4, and of the one below it.
    const auto unit = hn::BitCast(d, hn::ShiftLeft<52>(hn::Add(byte, hn::Set(du, 1023 - 127 - 2))));
    const auto lower_unit = hn::Mul(unit, half);
    const auto in_units = [&](const float* sums, auto one) HWY_ATTR {
      return hn::Mul(hn::PromoteTo(d, hn::LoadU(df, sums + i)), one);
    };
    const auto first = in_units(errors.products[0], unit);
    const auto second = in_units(errors.products[1], lower_unit);
    const auto first_squares = hn::Mul(in_units(errors.squares[0], unit), unit);
    const auto second_squares = hn::Mul(in_units(errors.squares[1], lower_unit), lower_unit);
    const auto difference = hn::Sub(hn::Add(second_squares, hn::Mul(second, second)),
                                    hn::Add(first_squares, hn::Mul(first, first)));
    const auto slope = hn::Sub(second, first);
    // Byte 0 has none below it. A block that keeps its scale anyway adds nothing.
    const auto searched = hn::And(
        hn::Ge(factor, zero), hn::Le(factor, hn::Set(d, double{steps::kLargestSearchedFactor})));
    const auto has_lower = hn::And(searched, hn::RebindMask(d, hn::Ne(byte, hn::Zero(du))));
    hn::StoreU(first_squares, d, choices.squares[0] + i);
    hn::StoreU(second_squares, d, choices.squares[1] + i);
    hn::StoreU(hn::IfThenElse(has_lower, difference, infinity), d, choices.difference + i);
    hn::StoreU(hn::IfThenElseZero(has_lower, hn::Add(slope, slope)), d, choices.slope + i);
    hn::StoreU(hn::IfThenElseZero(searched, first), d, choices.added[0] + i);
    hn::StoreU(second, d, choices.added[1] + i);
  }
}

void choose_along(std::int64_t count, const steps::ChoicesAlong& choices, double& left) {
  // Vectors of one lane: what is left is selected, as no branch foresees which scale is taken, and
  // each block waits for it.
  const hn::CappedTag<double, 1> d;
  const auto largest = hn::Set(d, std::numeric_limits<double>::max());
  auto now = hn::Set(d, left);
  for (std::int64_t i = 0; i < count; ++i) {
    hn::StoreU(now, d, choices.lefts + i);
    const auto by_first = hn::Add(now, hn::LoadU(d, choices.added[0] + i));
    const auto by_second = hn::Add(now, hn::LoadU(d, choices.added[1] + i));
    const auto of_second = hn::Add(hn::LoadU(d, choices.difference + i),
                                   hn::Mul(hn::LoadU(d, choices.slope + i), now));
    const auto is_second = hn::Lt(of_second, hn::Zero(d));
    const auto next = hn::IfThenElse(is_second, by_second, by_first);
    choices.is_second[i] = hn::AllFalse(d, is_second) ? 0 : 1;
    if (HWY_LIKELY(hn::AllTrue(d, hn::Le(hn::Abs(next), largest)))) now = next;
  }
  left = hn::GetLane(now);
}

/// Candidates of NVFP4: codes of e4m3.
class Nvfp4Candidates {
 public:
  HWY_INLINE explicit Nvfp4Candidates(float tensor_scale) : s_tensor_(tensor_scale) {}

  HWY_INLINE static Floats scale_of(Codes code) {
    const hn::RebindToUnsigned<FloatTag> du;
    return decode_small<Format::ue4m3>(FloatTag(), hn::BitCast(du, code));
  }
  HWY_INLINE Floats factor_of(Floats scale) const {
    const FloatTag df;
    return hn::Min(hn::Div(hn::Set(df, s_tensor_), scale),
                   hn::Set(df, std::numeric_limits<float>::max()));
  }
  /// The code nearest to `share` of what the amax rule wants, before it rounds; not 0.
  HWY_INLINE Codes code_of(Floats amax, float share) const {
    const FloatTag df;
    const hn::RebindToSigned<FloatTag> di;
    constexpr float kElementMax = format_traits(Format::e2m1).max;
    const auto wanted = hn::Mul(hn::Div(amax, hn::Set(df, kElementMax)), hn::Set(df, s_tensor_));
    const auto code = encode_magnitude<Format::ue4m3>(df, hn::Mul(wanted, hn::Set(df, share)),
                                                      format_traits(Format::ue4m3).max);
    return hn::Max(hn::BitCast(di, code), hn::Set(di, 1));
  }
  /// Errors of two candidates with their scales.
  template <class Block>
  HWY_INLINE Two errors(const Block& block, Two scales, Two factors) const {
    const Two sums = squared_errors<Format::e2m1>(block, factors);
    return {hn::Mul(sums.first, hn::Mul(scales.first, scales.first)),
            hn::Mul(sums.second, hn::Mul(scales.second, scales.second))};
  }
  /// No error is below that of the largest magnitude where it is beyond the largest code.
  template <class Block>
  HWY_INLINE Floats least_error(const Block& block, Floats scale, Floats factor) const {
    const FloatTag df;
    const auto limit = hn::Set(df, kQuarters * format_traits(Format::e2m1).max);
    const auto y = hn::Mul(block.amax, hn::Mul(factor, hn::Set(df, kQuarters)));
    const auto beyond = hn::Max(hn::Sub(y, limit), hn::Zero(df));
    const auto square = add_square<Block::kWeighted>(beyond, block.weight_of_amax, hn::Zero(df));
    return hn::Mul(square, hn::Mul(scale, scale));
  }

 private:
  float s_tensor_;
};

/// Offers the rule's code and those above it, two at a time, then those below, as long as one of
/// them may be better in some lane.
template <class Block>
HWY_INLINE void offer_candidates(const Block& block, const Nvfp4Candidates& candidates,
                                 Best& best) {
  const FloatTag df;
  const hn::RebindToSigned<FloatTag> di;
  const auto amax = hn::IfThenElseZero(best.searched, block.amax);
  const auto low = candidates.code_of(amax, 0.7f);
  const auto high = candidates.code_of(amax, 1.8f);
  const auto rule = hn::Min(hn::Max(best.rule, low), high);  // of lanes that are not searched
  const std::int32_t up = hn::GetLane(hn::MaxOfLanes(di, hn::Sub(high, rule)));
  const std::int32_t down = hn::GetLane(hn::MaxOfLanes(di, hn::Sub(rule, low)));
  const auto offer = [&](Codes first, Codes second, bool with_rule, bool may_stop) HWY_ATTR {
    const Two scales{candidates.scale_of(first), candidates.scale_of(second)};
    const Two factors{candidates.factor_of(scales.first), candidates.factor_of(scales.second)};
    if (may_stop) {
      const auto least = candidates.least_error(block, scales.first, factors.first);
      const auto hopeless = hn::Or(hn::Ge(least, best.error), hn::Not(best.searched));
      if (hn::AllTrue(df, hopeless)) return false;
    }
    const Two errors = candidates.errors(block, scales, factors);
    if (with_rule) best.rule_error = errors.first;
    best.offer(first, factors.first, errors.first);
    best.offer(second, factors.second, errors.second);
    return true;
  };
  const auto above = [&](std::int32_t n)
                         HWY_ATTR { return hn::Min(hn::Add(rule, hn::Set(di, n)), high); };
  const auto below = [&](std::int32_t n)
                         HWY_ATTR { return hn::Max(hn::Sub(rule, hn::Set(di, n)), low); };
  for (std::int32_t n = 0; n <= up; n += 2) offer(above(n), above(n + 1), n == 0, false);
  for (std::int32_t n = 1; n <= down; n += 2) {
    if (!offer(below(n), below(n + 1), false, true)) break;
  }
}

template <bool kWeighted>
void search_nvfp4(float tensor_scale, const SearchedBlocks& blocks, const MagnitudeBits* maxima,
                  std::uint8_t* bytes, float* factors, float* amax_errors, float* errors) {
  const Nvfp4Candidates candidates(tensor_scale);
  Lanes<16, kWeighted> lanes;
  for (std::int64_t i = 0; i < blocks.count; i += lanes.kLanes) {
    lanes.load(blocks, i, finite_maxima(maxima + i));
    Best best(bytes + i, factors + i);
    offer_candidates(lanes, candidates, best);
    const auto unit = hn::Set(FloatTag(), 1 / (kQuarters * kQuarters));
    best.store(bytes + i, factors + i, unit, amax_errors + i, errors + i);
  }
}

template <bool kWeighted>
void search_mx_of(Format element, const SearchedBlocks& blocks, const MagnitudeBits* maxima,
                  std::uint8_t* bytes, float* factors, float* amax_errors, float* errors) {
  switch (element) {
    case Format::e2m3:
      return search_mx<Format::e2m3, kWeighted>(blocks, maxima, bytes, factors, amax_errors,
                                                errors);
    case Format::e3m2:
      return search_mx<Format::e3m2, kWeighted>(blocks, maxima, bytes, factors, amax_errors,
                                                errors);
    case Format::e4m3:
      return search_mx<Format::e4m3, kWeighted>(blocks, maxima, bytes, factors, amax_errors,
                                                errors);
    case Format::e5m2:
      return search_mx<Format::e5m2, kWeighted>(blocks, maxima, bytes, factors, amax_errors,
                                                errors);
    default:
      return search_mx<Format::e2m1, kWeighted>(blocks, maxima, bytes, factors, amax_errors,
                                                errors);
  }
}

void search_mx_scales(Format element, const SearchedBlocks& blocks, const MagnitudeBits* maxima,
                      std::uint8_t* bytes, float* factors, float* amax_errors, float* errors) {
  const auto search = blocks.weights != nullptr ? &search_mx_of<true> : &search_mx_of<false>;
  search(element, blocks, maxima, bytes, factors, amax_errors, errors);
}

void search_nvfp4_scales(float tensor_scale, const SearchedBlocks& blocks,
                         const MagnitudeBits* maxima, std::uint8_t* bytes, float* factors,
                         float* amax_errors, float* errors) {
  const auto search = blocks.weights != nullptr ? &search_nvfp4<true> : &search_nvfp4<false>;
  search(tensor_scale, blocks, maxima, bytes, factors, amax_errors, errors);
}

}  // namespace HWY_NAMESPACE
}  // namespace blockscale
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace blockscale {

HWY_EXPORT(search_mx_scales);
HWY_EXPORT(measure_mx_scales);
HWY_EXPORT(take_variances);
HWY_EXPORT(weigh_choices);
HWY_EXPORT(choose_along);
HWY_EXPORT(search_nvfp4_scales);

namespace steps {

void search_mx_scales(Format element, const SearchedBlocks& blocks, const MagnitudeBits* maxima,
                      std::uint8_t* bytes, float* factors, float* amax_errors, float* errors) {
  HWY_DYNAMIC_DISPATCH(search_mx_scales)
  (element, blocks, maxima, bytes, factors, amax_errors, errors);
}

void measure_mx_scales(Format element, const SearchedBlocks& blocks, const MagnitudeBits* maxima,
                       const MxErrors& errors) {
  HWY_DYNAMIC_DISPATCH(measure_mx_scales)(element, blocks, maxima, errors);
}

void take_variances(const float* means, std::int64_t count, float* weights) {
  HWY_DYNAMIC_DISPATCH(take_variances)(means, count, weights);
}

void weigh_choices(std::int64_t count, const MxErrors& errors, const std::uint8_t* bytes,
                   const float* factors, const ChoicesAlong& choices) {
  HWY_DYNAMIC_DISPATCH(weigh_choices)(count, errors, bytes, factors, choices);
}

void choose_along(std::int64_t count, const ChoicesAlong& choices, double& left) {
  HWY_DYNAMIC_DISPATCH(choose_along)(count, choices, left);
}

void search_nvfp4_scales(float tensor_scale, const SearchedBlocks& blocks,
                         const MagnitudeBits* maxima, std::uint8_t* bytes, float* factors,
                         float* amax_errors, float* errors) {
  HWY_DYNAMIC_DISPATCH(search_nvfp4_scales)
  (tensor_scale, blocks, maxima, bytes, factors, amax_errors, errors);
}

}  // namespace steps
}  // namespace blockscale

#endif  // HWY_ONCE
