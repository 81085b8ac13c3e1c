// What a CPU product is bound by: how fast memory is read and numbers are multiplied here, and how
// much of both a product takes (blockscale/bench.h).
#define BLOCKSCALE_WANT_AVX3_DL
#include "ops/common/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/gemm/bench/cpu_peaks.cpp"
#include <hwy/foreach_target.h>  // must come before the other Highway headers
#include <hwy/highway.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "blockscale/bench.h"
#include "blockscale/parallel.h"
#include "blockscale/tensor.h"
#include "ops/common/simd/requested.h"
#include "ops/common/times.h"
#include "ops/gemm/cpu/bf16/tiles.h"
#include "ops/gemm/cpu/path.h"
#include "ops/gemm/validate.h"

#include "ops/common/simd/push_bf16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale::gemm_detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Words = hn::ScalableTag<std::uint32_t>;

/// Sums that do not wait for each other: more than the latency of a multiply-add times those that
/// begin in a cycle.
inline constexpr int kSums = 12;

/// Runs `step` on each of the sums, `count` times, and adds them up; what is left matters only in
/// that it depends on all of them. They begin as `words`, so that no compiler can tell that two are
/// equal.
template <class D, class Step>
HWY_INLINE auto add_up(D d, const std::uint32_t* words, std::int64_t count, const Step& step) {
  hn::Vec<D> s[kSums];
  for (int j = 0; j < kSums; ++j) s[j] = hn::BitCast(d, hn::Set(Words(), words[j]));
  for (std::int64_t i = 0; i < count; ++i) {
    for (int j = 0; j < kSums; ++j) s[j] = step(s[j]);
  }
  for (int j = 1; j < kSums; ++j) s[0] = hn::Add(s[0], s[j]);
  return s[0];
}

/// Runs multiply-adds on kSums vectors `count` times. Returns operations, or 0, at once, where the
/// instruction set has none of these.
double multiply_add(Multiplier multiplier, std::int64_t count, const std::uint32_t* words,
                    std::atomic<std::uint32_t>& sink) {
  const double steps = static_cast<double>(count) * kSums;
  const std::uint32_t bits = words[0];
  if (multiplier == Multiplier::f32) {
    const auto x = hn::BitCast(Floats(), hn::Set(Words(), bits));
    const auto sum =
        add_up(Floats(), words, count, [&](auto s) HWY_ATTR { return hn::MulAdd(s, x, x); });
    sink += hn::GetLane(hn::BitCast(Words(), sum));
    return 2 * steps * static_cast<double>(hn::MaxLanes(Floats()));
  }
#if HWY_TARGET == HWY_AVX3_DL
  const auto x = hn::Set(Words(), bits);
  if (multiplier == Multiplier::int8) {
    const auto sum = add_up(Words(), words, count, [&](auto s) HWY_ATTR {
      return decltype(s){_mm512_dpbusd_epi32(s.raw, x.raw, x.raw)};
    });
    sink += hn::GetLane(sum);
    return 8 * steps * static_cast<double>(hn::MaxLanes(Words()));
  }
  if (__builtin_cpu_supports("avx512bf16")) {
    const auto pairs = reinterpret_cast<__m512bh>(x.raw);
    const auto sum = add_up(Floats(), words, count, [&](auto s) HWY_ATTR {
      return decltype(s){_mm512_dpbf16_ps(s.raw, pairs, pairs)};
    });
    sink += hn::GetLane(hn::BitCast(Words(), sum));
    return 4 * steps * static_cast<double>(hn::MaxLanes(Floats()));
  }
#endif
  return 0;
}

/// Reads `count` words, a multiple of what kSums vectors of the largest kind hold.
void read_words(const std::uint32_t* words, std::int64_t count, std::atomic<std::uint32_t>& sink) {
  constexpr auto kLanes = static_cast<std::int64_t>(hn::MaxLanes(Words()));
  const std::uint32_t* next = words;
  const auto sum = add_up(Words(), words, count / kLanes / kSums, [&](auto s) HWY_ATTR {
    // Ahead as far as the prefetchers of hardware, which miss some of what is read.
    __builtin_prefetch(next + 512, 0, 2);
    const auto v = hn::Load(Words(), next);
    next += kLanes;
    return hn::Add(s, v);
  });
  sink += hn::GetLane(sum);
}

}  // namespace HWY_NAMESPACE
}  // namespace blockscale::gemm_detail
HWY_AFTER_NAMESPACE();
#pragma pop_macro("HWY_TARGET_STR")

#if HWY_ONCE
namespace blockscale {
namespace gemm_detail {
namespace {

HWY_EXPORT(multiply_add);
HWY_EXPORT(read_words);

/// Words that a piece of the memory has: 3 MiB, which vectors of every size divide by kSums.
constexpr std::int64_t kPieceWords = std::int64_t{3} << 18;
constexpr std::int64_t kPieces = 171;  // 513 MiB: beyond all caches
/// Multiply-adds of each sum in a piece of work, a fraction of a millisecond, and pieces a thread.
constexpr std::int64_t kSteps = 50000;
constexpr std::int64_t kPiecesOfWork = 32;
/// Just below 1 in bf16, twice; in f32, too, so that no sum grows; and four bytes.
constexpr std::uint32_t kWord = 0x3F7F3F7Fu;

double read_rate(int threads, int repeats) {
  ScaledTensor memory(Recipe::f32, kPieces, kPieceWords);  // in huge pages
  auto* const words = static_cast<std::uint32_t*>(memory.view().values);
  parallel_for(kPieces, 1, threads, [&](std::int64_t piece, std::int64_t) {
    std::fill_n(words + piece * kPieceWords, kPieceWords, kWord);
  });
  std::atomic<std::uint32_t> sink{0};
  const double seconds = sorted_times(repeats, [&] {
                           parallel_for(kPieces, 1, threads, [&](std::int64_t piece, std::int64_t) {
                             HWY_DYNAMIC_DISPATCH(read_words)
                             (words + piece * kPieceWords, kPieceWords, sink);
                           });
                         }).front();
  return static_cast<double>(kPieces * kPieceWords) * sizeof(std::uint32_t) / seconds;
}

double multiply_rate(Multiplier multiplier, int threads, int repeats) {
  std::atomic<std::uint32_t> sink{0};
  const std::vector<std::uint32_t> words(16, kWord);
  const auto work = [&] {
    return multiplier == Multiplier::tiles
               ? multiply_tiles(kSteps)
               : HWY_DYNAMIC_DISPATCH(multiply_add)(multiplier, kSteps, words.data(), sink);
  };
  const double of_piece = work();
  if (of_piece == 0) return 0;
  const std::int64_t pieces = kPiecesOfWork * effective_threads(threads);
  const double seconds =
      sorted_times(repeats, [&] {
        parallel_for(pieces, 1, threads, [&](std::int64_t, std::int64_t) { work(); });
      }).front();
  return of_piece * static_cast<double>(pieces) / seconds;
}

std::int64_t operand_bytes(const ScaledTensorView& x) {
  return value_bytes(x.recipe, x.rows, x.k, x.batch) +
         (is_plain(x.recipe) ? 0 : scale_bytes(x.recipe, x.layout, x.rows, x.k, x.batch));
}

}  // namespace
}  // namespace gemm_detail

CpuPeaks measure_cpu_peaks(int threads, int repeats) {
  const auto check = [](const char* argument, int value, int least) {
    if (value >= least) return;
    throw Error(ErrorCode::invalid_argument, argument,
                "is " + std::to_string(value) + ", must be at least " + std::to_string(least));
  };
  check("threads", threads, 0);
  check("repeats", repeats, 1);
  use_requested_simd();
  CpuPeaks peaks;
  peaks.threads = effective_threads(threads);
  peaks.read_bytes_per_second = gemm_detail::read_rate(threads, repeats);
  for (int i = 0; i < kMultiplierCount; ++i) {
    peaks.operations_per_second[i] =
        gemm_detail::multiply_rate(static_cast<Multiplier>(i), threads, repeats);
  }
  return peaks;
}

GemmWork gemm_work(const GemmArguments& arguments) {
  use_requested_simd();
  const GemmArguments x = gemm_detail::validated(arguments, {});
  GemmWork work;
  work.bytes =
      gemm_detail::operand_bytes(x.a) + gemm_detail::operand_bytes(x.b) +
      (x.quantized ? gemm_detail::operand_bytes(x.quantized->out)
                   : x.d.batch * x.d.rows * x.d.columns * (format_traits(x.d.dtype).bits / 8));
  work.operations = 2.0 * static_cast<double>(x.d.batch) * static_cast<double>(x.d.rows) *
                    static_cast<double>(x.d.columns) * static_cast<double>(x.a.k);
  work.multiplier = gemm_detail::multiplier_of(x);
  return work;
}

double bound_seconds(const GemmWork& work, const CpuPeaks& peaks) {
  const double rate = peaks.operations_per_second[static_cast<int>(work.multiplier)];
  return std::max(static_cast<double>(work.bytes) / peaks.read_bytes_per_second,
                  work.operations / rate);
}

}  // namespace blockscale
#endif  // HWY_ONCE
