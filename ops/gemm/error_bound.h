// The error bounds of GEMM, one source for tests, check_gemm and docs (docs/numerics.md, "Error
// bound", has the proofs and shows the table).
//
//   |d - ref| <= c 2^-24 S + half an ulp of D's dtype,  S = |alpha| sum_k |a||b| + |beta C| +
//   |bias|
//
// c is one of two: `proven_error`, which no input exceeds, and `usual_error`, which normal and
// positive data of realistic spread do not exceed. The first follows from how sums are made. It is
// far above what happens, so that the second is what finds a wrong result.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/gemm/kernels/plain_params.h"
#include "ops/gemm/path.h"
#include "ops/gemm/reference.h"

namespace blockscale::gemm_detail {

/// The c that an element may have: cancelling + same_sign |ref| / S. Products of one sign, whose
/// sum is S, lose most where bits are cut off, and those that cancel least.
struct ErrorLimit {
  double cancelling = 0;
  double same_sign = 0;

  double operator()(const ReferenceElement& reference) const {
    const double share = std::abs(reference.value) / reference.magnitude;
    return cancelling + (std::isfinite(share) ? same_sign * share : 0);
  }
};

struct UsualError {
  GemmPath path;
  const char* path_name;
  ErrorLimit limit;
  /// The largest part of it that errors were: over 10^7 elements of the families of
  /// tests/gemm_problem.h (ErrorBound.DISABLED_Measure, and its like for GPUs), and with outliers
  /// (UsualError.OfWgmmaHoldsForUsualData, OfScaledWeightsHoldsForUsualData: of FP4 all that is
  /// measured so far). A quarter at least.
  double measured;
};

inline constexpr UsualError kUsualErrors[] = {
    {GemmPath::cpu_fused, "CPU, fused", {16, 48}, 0.49},
    {GemmPath::cpu_unfused, "CPU, unfused", {16, 48}, 0.49},
    {GemmPath::sm90_fp8, "sm_90, FP8", {16000, 104000}, 0.59},
    {GemmPath::sm90_fp8_fast, "sm_90, FP8, fast", {16000, 104000}, 0.35},  // each 128 of k
    {GemmPath::fp4_few_rows, "FP4, few rows", {6, 18}, 0.28},
    {GemmPath::sm90_fp4_tiles, "sm_90, many rows", {32, 1024}, 0.56},
    {GemmPath::sm120_block_scaled, "sm_120, block scales", {16, 512}, 0.44},
    {GemmPath::plain, "plain kernels", {8, 28}, 0.46},
};

/// With sums of all of K, those of products of one sign lose more with each of them.
constexpr ErrorLimit usual_error(GemmPath path, std::int64_t k = kFp8BlockK) {
  ErrorLimit limit = kUsualErrors[static_cast<std::size_t>(path)].limit;
  if (path == GemmPath::sm90_fp8_fast) {
    limit.same_sign *= static_cast<double>(ceil_div(k, std::int64_t{kFp8BlockK}));
  }
  return limit;
}

/// What n roundings of f32 make of a sum at most, in units of 2^-24 of its terms' magnitudes:
/// (1 + 2^-24)^n - 1 <= n 2^-24 / (1 - n 2^-24).
constexpr double roundings(double n) {
  return n / (1 - n * 0x1p-24);
}

/// Roundings of an element but those of its chain: of products of scales, alpha, tensor scales,
/// beta C, bias, and up to 8 sums of blocks or warps that divide K.
inline constexpr double kEndRoundings = 16;

/// What so many instructions of wgmma make of a sum (docs/numerics.md has the proof).
constexpr double wgmma_error(double instructions) {
  return (33 * instructions + 216) * 0x1p11;
}

/// Of a k-block of 128, and that without a subnormal code of e4m3.
inline constexpr double kWgmmaError = wgmma_error(4);
inline constexpr double kWgmmaNormalError = 131 * 0x1p11;

/// What mma.sync makes of a segment of so many instructions: 25 bits are kept of each product but
/// the largest and of the sum before, 23 of a sum. A subnormal number of f16 is aligned as one up
/// to 2^10 times as large, in one of the instructions that a product is in or before.
constexpr double mma_segment_error(Format form, int instructions) {
  const int cut = 15 + 16 * (instructions - 1);
  const int cut_most = instructions == 1 ? 1024 * 15 : 1024 * 16 + 16 * (instructions - 2);
  return (form == Format::f16 ? cut_most : cut) / 2.0 + 2 * instructions;
}

constexpr double proven_error_of_plain(Recipe recipe_a, Recipe recipe_b, std::int64_t k) {
  const RecipeTraits &a = recipe_traits(recipe_a), &b = recipe_traits(recipe_b);
  const Format form = plain_form(a.element, b.element);
  const int instructions = a.block_k == 16 || b.block_k == 16 ? 1 : 2;
  const std::uint32_t parts = plain_parts(a.element, form) * plain_parts(b.element, form);
  // A part is up to 2^-8 of the one before: the parts of two elements are up to (1 + 2^-7)^2 of
  // them together, and what is left out of their product is up to 2 * 2^-8 * 2^-16 of it.
  const double magnitude = parts == 1 ? 1 : 1.016, left_out = parts == 1 ? 0 : 2.1;
  const auto segments = static_cast<double>(ceil_div(k, 16 * instructions));
  const double in_f32 = magnitude * roundings(parts * segments + kEndRoundings);
  return mma_segment_error(form, instructions) * (magnitude + in_f32 * 0x1p-24) + in_f32 + left_out;
}

/// Of weights in FP4: eight instructions sum a step of 128 of k, which is rounded once in f32, with
/// a scale of FP8's A or without (of MXFP8 four one of 64: less); where MX's scales are the sums',
/// each block of 32 is. A warp's steps and the sums of the others are together no more than all
/// steps.
constexpr double proven_error_of_fp4(Recipe a, Recipe b, std::int64_t k) {
  const int rounded_k = b == Recipe::nvfp4 ? 128 : 32;
  const double in_f32 = roundings(static_cast<double>(ceil_div(k, rounded_k)) + kEndRoundings);
  return mma_segment_error(recipe_traits(a).element, 8) * (1 + in_f32 * 0x1p-24) + in_f32;
}

/// Of many rows: instructions of 16 of k sum all of K, or a part of it, up to eight of which are
/// added in f32, or each 128 or 32 of k where A has scales of these in eight bits; where MXFP4's
/// scales are the sums', each block of 32 is added. But for products of two subnormal numbers of
/// f16, as B may have these, too.
constexpr double proven_error_of_fp4_tiles(Recipe a, Recipe b, std::int64_t k) {
  const RecipeTraits& t = recipe_traits(a);
  const bool promotes = format_traits(t.element).bits == 8 && t.block_k != 0;
  const std::int64_t block = promotes && k > t.block_k ? t.block_k : k;
  const std::int64_t added = b == Recipe::mxfp4 ? ceil_div(k, 32)
                             : promotes         ? ceil_div(k, block)
                                                : 0;
  const double in_f32 = roundings(static_cast<double>(added) + kEndRoundings);
  const double sums = mma_segment_error(t.element, static_cast<int>(ceil_div(block, 16)));
  return sums * (1 + in_f32 * 0x1p-24) + in_f32;
}

/// What a chain of sm_120f's instructions makes of sums (docs/numerics.md has the proof). Each cuts
/// toward zero its sum to 24 bits, and of FP4 four terms behind 35 bits of the largest exponent,
/// else 32 behind 25; that of FP4 is up to 2^8 times a term that has it. Of eight bits a product of
/// subnormal numbers has up to 2^their mantissas' bits, and cuts the sum before alone. Where scales
/// are in f32 these are sums of 128, which f32 adds up.
constexpr double proven_error_of_block_scaled(Recipe recipe_a, Recipe recipe_b, std::int64_t k) {
  const RecipeTraits &a = recipe_traits(recipe_a), &b = recipe_traits(recipe_b);
  if (a.element == Format::e2m1) {
    const double cut = 4 * 0x1p-11;
    return static_cast<double>(ceil_div(k, 64)) * (cut + 2) + cut * 256 + roundings(kEndRoundings);
  }
  const bool promotes = a.scale == Format::f32;
  const std::int64_t block = promotes && k > kFp8BlockK ? kFp8BlockK : k;
  const int mantissas =
      format_traits(a.element).mantissa_bits + format_traits(b.element).mantissa_bits;
  const double in_f32 =
      roundings((promotes ? static_cast<double>(ceil_div(k, block)) : 0) + kEndRoundings);
  const double sums = static_cast<double>(ceil_div(block, 32)) * (16 + 2) + 0.5 * (1 << mantissas);
  return sums * (1 + in_f32 * 0x1p-24) + in_f32;
}

/// The c that no input exceeds, as long as what is summed stays among f32's normal numbers.
constexpr double proven_error(GemmPath path, Recipe a, Recipe b, std::int64_t k) {
  if (path == GemmPath::plain) return proven_error_of_plain(a, b, k);
  if (path == GemmPath::fp4_few_rows) return proven_error_of_fp4(a, b, k);
  if (path == GemmPath::sm90_fp4_tiles) return proven_error_of_fp4_tiles(a, b, k);
  if (path == GemmPath::sm120_block_scaled) return proven_error_of_block_scaled(a, b, k);
  if (path == GemmPath::sm90_fp8 || path == GemmPath::sm90_fp8_fast) {
    const double in_f32 = roundings(static_cast<double>(ceil_div(k, 128)) + kEndRoundings);
    const double sums = path == GemmPath::sm90_fp8
                            ? kWgmmaError
                            : wgmma_error(static_cast<double>(ceil_div(k, 32)));
    return sums * (1 + in_f32 * 0x1p-24) + in_f32;
  }
  constexpr std::int64_t kSpan = 4096;  // of k; the CPU adds spans in f64
  return roundings(static_cast<double>(k < kSpan ? k : kSpan) + kEndRoundings);
}

}  // namespace blockscale::gemm_detail
