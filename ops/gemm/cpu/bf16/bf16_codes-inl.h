// Codes of a row of B as vectors of bf16, for few rows of A.
//
// Included once per SIMD target by ops/gemm/cpu/gemm.cpp; for AVX3_DL.
//
// A class of codes looks up kCodes consecutive ones, kBytes bytes, as kVectors vectors of 32 bf16
// values; element(v, i) is where value i of vector v lies. The values that meet in a 32-bit lane
// are of one block of the recipes it serves, in every vector.

#if defined(BLOCKSCALE_OPS_GEMM_BF16_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BLOCKSCALE_OPS_GEMM_BF16_CODES_INL_H_
#undef BLOCKSCALE_OPS_GEMM_BF16_CODES_INL_H_
#else
#define BLOCKSCALE_OPS_GEMM_BF16_CODES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "core/format.h"
// Toggled per target as this file is.
#include "ops/gemm/cpu/panels/chunk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale::gemm_detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_AVX3_DL

/// Not again for each use: rows need not be aligned, and a load that two lines share takes two.
HWY_INLINE __m512i load_once(const std::uint8_t* bytes) {
  return *reinterpret_cast<const volatile __m512i_u*>(bytes);
}

/// FP4: nibble v of each 16-bit word is vector v.
class Bf16Fp4Codes {
 public:
  static constexpr int kCodes = 128;
  static constexpr int kVectors = 4;
  static constexpr int kBytes = 64;

  static constexpr int element(int v, int i) { return 4 * i + v; }

  HWY_INLINE explicit Bf16Fp4Codes(const std::uint8_t* bytes) : words_(load_once(bytes)) {}
  template <int kVector>
  HWY_INLINE __m512i vector() const {
    // The look-up reads the five low bits of a word: a code and a bit of its neighbour.
    alignas(64) static constexpr auto kTable = [] {
      struct {
        std::uint16_t at[32] = {};
      } table;
      for (std::uint32_t i = 0; i < 32; ++i) {
        const float value = decode<Format::e2m1>(i % 16);
        table.at[i] = static_cast<std::uint16_t>(bit_cast<std::uint32_t>(value) >> 16);
      }
      return table;
    }();
    const __m512i at_bottom = kVector == 0 ? words_ : _mm512_srli_epi16(words_, 4 * kVector);
    return _mm512_permutexvar_epi16(at_bottom, _mm512_load_si512(kTable.at));
  }

 private:
  __m512i words_;
};

/// FP8: two vectors of 64 codes. With kBlocksOf32 each holds a half of each of the four blocks.
template <Format F, bool kBlocksOf32>
class Bf16Fp8Codes {
 public:
  static constexpr int kCodes = 128;
  static constexpr int kVectors = 4;
  static constexpr int kBytes = 128;

  static constexpr int element(int v, int i) {
    const int place = i / 8 * 16 + v % 2 * 8 + i % 8;  // in a vector of codes
    if constexpr (!kBlocksOf32) return v / 2 * 64 + place;
    return place / 16 * 32 + v / 2 * 16 + place % 16;
  }

  HWY_INLINE explicit Bf16Fp8Codes(const std::uint8_t* bytes)
      : Bf16Fp8Codes(load_once(bytes), load_once(bytes + 64)) {}
  template <int kVector>
  HWY_INLINE __m512i vector() const {
    return halves_[kVector / 2].pairs(kVector % 2);
  }

 private:
  HWY_INLINE Bf16Fp8Codes(__m512i c0, __m512i c1)
      : halves_{Chunk<F>(kBlocksOf32 ? _mm512_shuffle_i64x2(c0, c1, 0x88) : c0),
                Chunk<F>(kBlocksOf32 ? _mm512_shuffle_i64x2(c0, c1, 0xDD) : c1)} {}

  Chunk<F> halves_[2];
};

/// FP6.
template <Format F>
class Bf16Fp6Codes {
 public:
  static constexpr int kCodes = Chunk<F>::kCodes;
  static constexpr int kVectors = 2;
  static constexpr int kBytes = Chunk<F>::kBytes;

  static constexpr int element(int v, int i) { return i / 8 * 16 + v * 8 + i % 8; }

  HWY_INLINE explicit Bf16Fp6Codes(const std::uint8_t* bytes) : chunk_(bytes) {}
  template <int kVector>
  HWY_INLINE __m512i vector() const {
    return chunk_.pairs(kVector);
  }

 private:
  Chunk<F> chunk_;
};

#endif  // HWY_AVX3_DL

}  // namespace HWY_NAMESPACE
}  // namespace blockscale::gemm_detail
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
