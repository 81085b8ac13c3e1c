// Formats against CUDA's own host conversions (cuda_fp8.h, cuda_fp6.h, cuda_fp4.h): every code,
// every f16 and bf16 input, every rounding boundary, and f32 inputs (all of them with
// BLOCKSCALE_EXHAUSTIVE=1). Skipped where CMake found no CUDA headers (BLOCKSCALE_CUDA_INCLUDE).
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>

#include "core/format.h"
#include "core/format_test_oracle.h"
#include "core/format_test_sweep.h"

#if defined(BLOCKSCALE_HAS_CUDA_HEADERS)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_fp8.h>
#endif

namespace blockscale {
namespace {

#if defined(BLOCKSCALE_HAS_CUDA_HEADERS)

using oracle::bits_of;
using oracle::float_of;
using oracle::kSign;

__nv_saturation_t saturation(Overflow overflow) {
  return overflow == Overflow::saturate ? __NV_SATFINITE : __NV_NOSAT;
}

/// CUDA's encode and decode of one format, from each input type. The 4- and 6-bit ones always
/// saturate.
template <Format F>
struct Cuda;

template <__nv_fp8_interpretation_t Kind>
struct CudaFp8 {
  static std::uint32_t encode(float x, Overflow o) {
    return __nv_cvt_float_to_fp8(x, saturation(o), Kind);
  }
  static std::uint32_t encode(__half_raw x, Overflow o) {
    return __nv_cvt_halfraw_to_fp8(x, saturation(o), Kind);
  }
  static std::uint32_t encode(__nv_bfloat16_raw x, Overflow o) {
    return __nv_cvt_bfloat16raw_to_fp8(x, saturation(o), Kind);
  }
  static __half_raw decode(std::uint32_t code) {
    return __nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(code), Kind);
  }
};
template <>
struct Cuda<Format::e4m3> : CudaFp8<__NV_E4M3> {};
template <>
struct Cuda<Format::e5m2> : CudaFp8<__NV_E5M2> {};

template <__nv_fp6_interpretation_t Kind>
struct CudaFp6 {
  static std::uint32_t encode(float x, Overflow) {
    return __nv_cvt_float_to_fp6(x, Kind, cudaRoundNearest);
  }
  static std::uint32_t encode(__half_raw x, Overflow) {
    return __nv_cvt_halfraw_to_fp6(x, Kind, cudaRoundNearest);
  }
  static std::uint32_t encode(__nv_bfloat16_raw x, Overflow) {
    return __nv_cvt_bfloat16raw_to_fp6(x, Kind, cudaRoundNearest);
  }
  static __half_raw decode(std::uint32_t code) {
    return __nv_cvt_fp6_to_halfraw(static_cast<__nv_fp6_storage_t>(code), Kind);
  }
};
template <>
struct Cuda<Format::e2m3> : CudaFp6<__NV_E2M3> {};
template <>
struct Cuda<Format::e3m2> : CudaFp6<__NV_E3M2> {};

template <>
struct Cuda<Format::e2m1> {
  static std::uint32_t encode(float x, Overflow) {
    return __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest);
  }
  static std::uint32_t encode(__half_raw x, Overflow) {
    return __nv_cvt_halfraw_to_fp4(x, __NV_E2M1, cudaRoundNearest);
  }
  static std::uint32_t encode(__nv_bfloat16_raw x, Overflow) {
    return __nv_cvt_bfloat16raw_to_fp4(x, __NV_E2M1, cudaRoundNearest);
  }
  static __half_raw decode(std::uint32_t code) {
    return __nv_cvt_fp4_to_halfraw(static_cast<__nv_fp4_storage_t>(code), __NV_E2M1);
  }
};

template <class Tag>
class CudaFormats : public testing::Test {};
template <Format F>
struct FormatTag {
  static constexpr Format value = F;
};
using Elements =
    testing::Types<FormatTag<Format::e2m1>, FormatTag<Format::e2m3>, FormatTag<Format::e3m2>,
                   FormatTag<Format::e4m3>, FormatTag<Format::e5m2>>;
TYPED_TEST_SUITE(CudaFormats, Elements);

constexpr Overflow kOverflows[] = {Overflow::saturate, Overflow::propagate};

TYPED_TEST(CudaFormats, EveryCode) {
  constexpr Format F = TypeParam::value;
  for (std::uint32_t code = 0; code < (1u << format_traits(F).bits); ++code) {
    const float expected = __half2float(__half(Cuda<F>::decode(code)));
    const float actual = decode<F>(code);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(actual)) << code;
    } else {
      EXPECT_EQ(bits_of(actual), bits_of(expected)) << code;
    }
  }
}

TYPED_TEST(CudaFormats, EveryHalfPrecisionInput) {
  constexpr Format F = TypeParam::value;
  for (std::uint32_t code = 0; code < 65536; ++code) {
    __half_raw half;
    half.x = static_cast<unsigned short>(code);
    __nv_bfloat16_raw bfloat;
    bfloat.x = static_cast<unsigned short>(code);
    for (const Overflow overflow : kOverflows) {
      EXPECT_EQ((convert<F, Format::f16>(code, overflow)), Cuda<F>::encode(half, overflow)) << code;
      EXPECT_EQ((convert<F, Format::bf16>(code, overflow)), Cuda<F>::encode(bfloat, overflow))
          << code;
    }
  }
}

TYPED_TEST(CudaFormats, EveryBoundary) {
  constexpr Format F = TypeParam::value;
  const oracle::Rounding rounding(F);
  for (const std::uint32_t boundary : rounding.first()) {
    for (std::uint32_t near = 0; near < 5; ++near) {
      const std::uint32_t magnitude = (boundary + near - 2) & ~kSign;
      for (const std::uint32_t bits : {magnitude, magnitude | kSign}) {
        for (const Overflow overflow : kOverflows) {
          EXPECT_EQ(encode<F>(float_of(bits), overflow), Cuda<F>::encode(float_of(bits), overflow))
              << std::hex << bits;
        }
      }
    }
  }
}

TYPED_TEST(CudaFormats, TenMillionRandomInputs) {
  constexpr Format F = TypeParam::value;
  std::mt19937 random(4u + static_cast<unsigned>(F));
  std::int64_t errors = 0;
  for (int i = 0; i < 10'000'000; ++i) {
    const float x = float_of(static_cast<std::uint32_t>(random()));
    const Overflow overflow = kOverflows[i % 2];
    errors += encode<F>(x, overflow) != Cuda<F>::encode(x, overflow);
  }
  EXPECT_EQ(errors, 0);
}

TYPED_TEST(CudaFormats, SweepOfInputs) {
  constexpr Format F = TypeParam::value;
  for (const Overflow overflow : kOverflows) {
    const std::int64_t errors =
        sweep_f32([=](std::int64_t begin, std::int64_t end, std::int64_t step) {
          std::int64_t differences = 0;
          for (std::int64_t i = first_multiple(begin, step); i < end; i += step) {
            const float x = float_of(static_cast<std::uint32_t>(i));
            differences += encode<F>(x, overflow) != Cuda<F>::encode(x, overflow);
          }
          return differences;
        });
    EXPECT_EQ(errors, 0);
  }
}

std::uint32_t cuda_ue8m0(float x, ScaleRounding rounding, Overflow overflow) {
  const cudaRoundMode mode = rounding == ScaleRounding::up ? cudaRoundPosInf : cudaRoundZero;
  return __nv_cvt_float_to_e8m0(x, saturation(overflow), mode);
}

TEST(CudaUe8m0, EveryCode) {
  for (std::uint32_t code = 0; code < 255; ++code) {
    const __nv_bfloat16_raw raw = __nv_cvt_e8m0_to_bf16raw(static_cast<__nv_fp8_storage_t>(code));
    EXPECT_EQ(bits_of(decode<Format::ue8m0>(code)), static_cast<std::uint32_t>(raw.x) << 16);
  }
  EXPECT_TRUE(std::isnan(decode<Format::ue8m0>(255)));
}

TEST(CudaUe8m0, SweepOfInputs) {
  for (const ScaleRounding rounding : {ScaleRounding::toward_zero, ScaleRounding::up}) {
    for (const Overflow overflow : kOverflows) {
      const std::int64_t errors =
          sweep_f32([=](std::int64_t begin, std::int64_t end, std::int64_t step) {
            std::int64_t differences = 0;
            for (std::int64_t i = first_multiple(begin, step); i < end; i += step) {
              const float x = float_of(static_cast<std::uint32_t>(i));
              differences +=
                  encode_ue8m0(x, rounding, overflow) != cuda_ue8m0(x, rounding, overflow);
            }
            return differences;
          });
      EXPECT_EQ(errors, 0);
    }
  }
}

TEST(CudaUe8m0, EveryPowerOfTwoAndItsNeighbours) {
  const auto check = [](std::uint32_t bits) {
    for (const ScaleRounding rounding : {ScaleRounding::toward_zero, ScaleRounding::up}) {
      for (const Overflow overflow : kOverflows) {
        EXPECT_EQ(encode_ue8m0(float_of(bits), rounding, overflow),
                  cuda_ue8m0(float_of(bits), rounding, overflow))
            << std::hex << bits;
      }
    }
  };
  for (std::uint32_t near = 0; near < 5; ++near) {
    for (std::uint32_t field = 1; field < 256; ++field) check((field << 23) + near - 2);
    for (int shift = 2; shift < 23; ++shift) check((1u << shift) + near - 2);
    check(near);
  }
}

/// f32 to and from f16 and bf16.
TEST(CudaHalves, SweepOfInputs) {
  const std::int64_t errors =
      sweep_f32([](std::int64_t begin, std::int64_t end, std::int64_t step) {
        std::int64_t differences = 0;
        for (std::int64_t i = first_multiple(begin, step); i < end; i += step) {
          const float x = float_of(static_cast<std::uint32_t>(i));
          if (std::isnan(x)) continue;  // CUDA's NaN is 0x7FFF, ours IEEE's default quiet one
          differences += f32_to_f16(x) != __half_raw(__float2half_rn(x)).x;
          differences += f32_to_bf16(x) != __nv_bfloat16_raw(__float2bfloat16_rn(x)).x;
        }
        return differences;
      });
  EXPECT_EQ(errors, 0);
}

TEST(CudaHalves, EveryCode) {
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const auto bits = static_cast<std::uint16_t>(code);
    __half_raw half;
    half.x = bits;
    __nv_bfloat16_raw bfloat;
    bfloat.x = bits;
    const float f16 = __half2float(__half(half)), bf16 = __bfloat162float(__nv_bfloat16(bfloat));
    EXPECT_EQ(std::isnan(f16), std::isnan(f16_to_f32(bits)));
    EXPECT_EQ(std::isnan(bf16), std::isnan(bf16_to_f32(bits)));
    EXPECT_TRUE(std::isnan(f16) || bits_of(f16) == bits_of(f16_to_f32(bits))) << code;
    EXPECT_TRUE(std::isnan(bf16) || bits_of(bf16) == bits_of(bf16_to_f32(bits))) << code;
  }
}

#else

TEST(CudaFormats, AgainstCudaHeaders) {
  GTEST_SKIP() << "no CUDA headers: set BLOCKSCALE_CUDA_INCLUDE (./dev test fetches them)";
}

#endif

}  // namespace
}  // namespace blockscale
