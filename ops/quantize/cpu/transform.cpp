// Runs of one row of a fused input, for every SIMD target: loops over the functions of
// core/math-inl.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quantize/cpu/transform.cpp"
#include "ops/common/simd/targets.h"

#include <hwy/foreach_target.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ops/common/simd/decode-inl.h"
#include "ops/quantize/cpu/steps.h"
#include "ops/quantize/cpu/transform-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale {
namespace HWY_NAMESPACE {

using steps::TransformedRow;

using FloatTag = hn::ScalableTag<float>;
using FloatMath = VectorMath<FloatTag>;
using Floats = hn::Vec<FloatTag>;
inline constexpr std::int64_t kLanes = hn::MaxLanes(FloatTag());

/// Elements of a row as f32.
template <Format kDtype>
struct Stream {
  static constexpr std::int64_t kSize = format_traits(kDtype).bits / 8;
  const std::uint8_t* x;

  static HWY_INLINE Floats widen(const std::uint8_t* from) {
    const FloatTag d;
#if HWY_TARGET == HWY_SCALAR
    return hn::Set(d, decode<kDtype>(load_code<kDtype>(from, 0)));
#else
    return decode_lanes<kDtype>(d, from);
#endif
  }
  /// Elements [i, i + kLanes), zeros from `count` on.
  HWY_INLINE Floats load(std::int64_t i, std::int64_t count) const {
    if (HWY_LIKELY(i + kLanes <= count)) return widen(x + i * kSize);
    std::uint8_t last[kLanes * kSize] = {};
    if (i < count) std::memcpy(last, x + i * kSize, static_cast<std::size_t>((count - i) * kSize));
    return widen(last);
  }
};

/// out[i] = function(i) for a vector of i at a time.
template <class Function>
HWY_INLINE void for_each_vector(std::int64_t count, float* out, const Function& function) {
  const FloatTag d;
  for (std::int64_t i = 0; i < count; i += kLanes) hn::StoreU(function(i), d, out + i);
}

/// out = function(gate, up).
template <Format kDtype, class Function>
HWY_INLINE void gated_run(const TransformedRow& row, std::int64_t column, std::int64_t count,
                          float* out, const Function& function) {
  constexpr std::int64_t kSize = Stream<kDtype>::kSize;
  if (row.gate_group == 1) {
    const Stream<kDtype> both{row.x.data + 2 * column * kSize};
    const bool gate_first = row.gate_order == GateOrder::gate_first;
    return for_each_vector(count, out, [&](std::int64_t i) HWY_ATTR {
      const Floats low = both.load(2 * i, 2 * count);
#if HWY_TARGET == HWY_SCALAR
      const Floats even = low;
      const Floats odd = both.load(2 * i + 1, 2 * count);
#else
      const FloatTag d;
      const Floats high = both.load(2 * i + kLanes, 2 * count);
      const Floats even = hn::ConcatEven(d, high, low);
      const Floats odd = hn::ConcatOdd(d, high, low);
#endif
      return gate_first ? function(even, odd) : function(odd, even);
    });
  }
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t c = column + done;
    const std::int64_t run = std::min(count - done, row.gate_group - c % row.gate_group);
    const GatedColumns columns = gated_columns(row.gate_order, row.gate_group, c);
    const Stream<kDtype> gate{row.x.data + columns.gate * kSize};
    const Stream<kDtype> up{row.x.data + columns.up * kSize};
    for_each_vector(run, out + done, [&](std::int64_t i) HWY_ATTR {
      return function(gate.load(i, run), up.load(i, run));
    });
    done += run;
  }
}

template <Format kDtype>
void swiglu_run(const TransformedRow& row, std::int64_t column, std::int64_t count, float* out) {
  gated_run<kDtype>(row, column, count, out,
                    [](Floats gate, Floats up) HWY_ATTR { return swiglu<FloatMath>(gate, up); });
}

template <Format kDtype>
void clamped_swiglu_run(const TransformedRow& row, std::int64_t column, std::int64_t count,
                        float* out) {
  const SwigluNumbers numbers = row.swiglu;
  gated_run<kDtype>(row, column, count, out, [numbers](Floats gate, Floats up) HWY_ATTR {
    return clamped_swiglu<FloatMath>(gate, up, numbers);
  });
}

template <Format kDtype>
void transform_run_of(const TransformedRow& row, std::int64_t column, std::int64_t count,
                      float* out) {
  const FloatTag d;
  const Stream<kDtype> x{row.x.data + column * Stream<kDtype>::kSize};
  switch (row.transform) {
    case InputTransform::identity:
      return for_each_vector(count, out, [&](std::int64_t i) HWY_ATTR { return x.load(i, count); });
    case InputTransform::gelu_tanh:
      return for_each_vector(count, out, [&](std::int64_t i) HWY_ATTR {
        return gelu_tanh<FloatMath>(x.load(i, count));
      });
    case InputTransform::gelu_erf:
      return for_each_vector(count, out, [&](std::int64_t i) HWY_ATTR {
        return gelu_erf<FloatMath>(x.load(i, count));
      });
    case InputTransform::silu:
      return for_each_vector(
          count, out, [&](std::int64_t i) HWY_ATTR { return silu<FloatMath>(x.load(i, count)); });
    case InputTransform::swiglu:
      return row.is_clamped ? clamped_swiglu_run<kDtype>(row, column, count, out)
                            : swiglu_run<kDtype>(row, column, count, out);
    case InputTransform::modulate:
      return for_each_vector(count, out, [&](std::int64_t i) HWY_ATTR {
        return modulate<FloatMath>(x.load(i, count), hn::LoadU(d, row.scale + i),
                                   hn::LoadU(d, row.shift + i));
      });
    case InputTransform::rms_norm:
      return for_each_vector(count, out, [&](std::int64_t i) HWY_ATTR {
        return rms_norm<FloatMath>(x.load(i, count), hn::Set(d, row.factor),
                                   hn::LoadU(d, row.weight + i));
      });
  }
}

void transform_run(const TransformedRow& row, std::int64_t column, std::int64_t count, float* out) {
  switch (row.x.dtype) {
    case Format::f16: return transform_run_of<Format::f16>(row, column, count, out);
    case Format::bf16: return transform_run_of<Format::bf16>(row, column, count, out);
    default: return transform_run_of<Format::f32>(row, column, count, out);
  }
}

void widen_run(const steps::RowOperand& row, std::int64_t column, std::int64_t count, float* out) {
  decode_run(row.dtype, row.data, column, count, out);
}

/// p[j] = p[2j] + p[2j + 1] for j < count, in place.
HWY_INLINE void add_neighbours(float* p, std::int64_t count) {
  std::int64_t j = 0;
#if HWY_TARGET != HWY_SCALAR
  const FloatTag d;
  for (; j + kLanes <= count; j += kLanes) {
    const auto low = hn::Load(d, p + 2 * j);
    const auto high = hn::Load(d, p + 2 * j + kLanes);
    hn::Store(hn::Add(hn::ConcatEven(d, high, low), hn::ConcatOdd(d, high, low)), d, p + j);
  }
#endif
  for (; j < count; ++j) p[j] = p[2 * j] + p[2 * j + 1];
}

/// Sums of squares of kLanes runs of four elements from element i on, the first run in lane 0.
template <Format kDtype>
HWY_INLINE Floats sum_runs(const Stream<kDtype>& x, std::int64_t i, std::int64_t count) {
  static_assert(kRmsRun == 4);
  const Floats a = x.load(i, count);
  const Floats b = x.load(i + kLanes, count);
  const Floats c = x.load(i + 2 * kLanes, count);
  const Floats d = x.load(i + 3 * kLanes, count);
  const auto sum = [](Floats x0, Floats x1, Floats x2, Floats x3) HWY_ATTR {
    const Floats first = FloatMath::fma(x1, x1, FloatMath::mul(x0, x0));
    return FloatMath::fma(x3, x3, FloatMath::fma(x2, x2, first));
  };
#if HWY_TARGET == HWY_SCALAR
  return sum(a, b, c, d);
#else
  const FloatTag tag;
  const Floats even_low = hn::ConcatEven(tag, b, a);
  const Floats even_high = hn::ConcatEven(tag, d, c);
  const Floats odd_low = hn::ConcatOdd(tag, b, a);
  const Floats odd_high = hn::ConcatOdd(tag, d, c);
  return sum(hn::ConcatEven(tag, even_high, even_low), hn::ConcatEven(tag, odd_high, odd_low),
             hn::ConcatOdd(tag, even_high, even_low), hn::ConcatOdd(tag, odd_high, odd_low));
#endif
}

/// Sum of squares of the first `count` elements of a segment, which has no others but zeros.
template <Format kDtype>
float sum_segment(const std::uint8_t* data, std::int64_t count) {
  constexpr std::int64_t kMostRuns = kRmsSegment / kRmsRun;
  HWY_ALIGN float sums[kMostRuns];
  const FloatTag d;
  const Stream<kDtype> x{data};
  std::int64_t runs = 0;
  for (; runs * kRmsRun < count; runs += kLanes) {
    hn::Store(sum_runs(x, runs * kRmsRun, count), d, sums + runs);
  }
  // Runs of zeros beyond the next power of two would add nothing.
  std::int64_t padded = kLanes;
  while (padded < runs) padded *= 2;
  std::fill(sums + runs, sums + padded, 0.0f);
  for (std::int64_t half = padded / 2; half > 0; half /= 2) add_neighbours(sums, half);
  return sums[0];
}

float sum_of_squares(const steps::RowOperand& x, std::int64_t count) {
  const std::int64_t size = format_traits(x.dtype).bits / 8;
  float total = 0;
  for (std::int64_t begin = 0; begin < count; begin += kRmsSegment) {
    const std::uint8_t* const segment = x.data + begin * size;
    const std::int64_t length = std::min<std::int64_t>(kRmsSegment, count - begin);
    switch (x.dtype) {
      case Format::f16: total += sum_segment<Format::f16>(segment, length); break;
      case Format::bf16: total += sum_segment<Format::bf16>(segment, length); break;
      default: total += sum_segment<Format::f32>(segment, length); break;
    }
  }
  return total;
}

}  // namespace HWY_NAMESPACE
}  // namespace blockscale
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace blockscale {

HWY_EXPORT(transform_run);
HWY_EXPORT(sum_of_squares);
HWY_EXPORT(widen_run);

namespace steps {

void transform_run(const TransformedRow& row, std::int64_t column, std::int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(transform_run)(row, column, count, out);
}

void widen_run(const RowOperand& row, std::int64_t column, std::int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(widen_run)(row, column, count, out);
}

float sum_of_squares(const RowOperand& x, std::int64_t count) {
  return HWY_DYNAMIC_DISPATCH(sum_of_squares)(x, count);
}

}  // namespace steps
}  // namespace blockscale

#endif  // HWY_ONCE
