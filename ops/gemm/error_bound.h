// The committed error bound of GEMM, one table for tests and docs (docs/numerics.md, "GEMM").
//
//   |d - ref| <= c 2^-24 (|alpha| sum_k |a||b| + |beta C| + |bias|) + half an ulp of D's dtype
#pragma once

#include <cstdint>

namespace blockscale::gemm_detail {

/// Arithmetic that results come from.
enum class GemmPath : std::uint8_t {
  cpu_fused,    // AVX2, AVX-512, NEON: fused multiply-add
  cpu_unfused,  // SSE4 and scalar: products round, too
  sm90_fp8,     // Hopper's FP8 tensor cores, sums of 128 products scaled and added up in f32
  plain,        // any GPU's tensor cores on bf16 or f16, sums of 32 products, or 16, likewise
};

/// What the operands are like.
enum class InputFamily : std::uint8_t {
  normal,       // normally distributed values, scales within a factor of 8
  positive,     // the same without signs
  adversarial,  // scales with random exponents, some zero, some huge
};

struct ErrorConstant {
  GemmPath path;
  InputFamily family;
  const char* path_name;
  const char* family_name;
  double measured;  // largest error_ratio over 10^7 elements (ErrorConstants.DISABLED_Measure)
  double c;         // at most 4 * measured
};

inline constexpr ErrorConstant kErrorConstants[] = {
    {GemmPath::cpu_fused, InputFamily::normal, "CPU, fused", "normal", 7.71, 16},
    {GemmPath::cpu_fused, InputFamily::positive, "CPU, fused", "positive", 30.37, 64},
    {GemmPath::cpu_fused, InputFamily::adversarial, "CPU, fused", "adversarial", 16.18, 40},
    {GemmPath::cpu_unfused, InputFamily::normal, "CPU, unfused", "normal", 8.05, 16},
    {GemmPath::cpu_unfused, InputFamily::positive, "CPU, unfused", "positive", 30.37, 64},
    {GemmPath::cpu_unfused, InputFamily::adversarial, "CPU, unfused", "adversarial", 16.46, 40},
    {GemmPath::sm90_fp8, InputFamily::normal, "sm_90, FP8", "normal", 4769.27, 19000},
    {GemmPath::sm90_fp8, InputFamily::positive, "sm_90, FP8", "positive", 29503.87, 118000},
    {GemmPath::sm90_fp8, InputFamily::adversarial, "sm_90, FP8", "adversarial", 5445.55, 21000},
    {GemmPath::plain, InputFamily::normal, "plain kernels", "normal", 1.99, 7},
    {GemmPath::plain, InputFamily::positive, "plain kernels", "positive", 8.39, 32},
    {GemmPath::plain, InputFamily::adversarial, "plain kernels", "adversarial", 9.62, 36},
};

constexpr double error_constant(GemmPath path, InputFamily family) {
  for (const ErrorConstant& entry : kErrorConstants) {
    if (entry.path == path && entry.family == family) return entry.c;
  }
  return 0;
}

}  // namespace blockscale::gemm_detail
