// Chunks of codes as f32 vectors, in the order in which the instruction set decodes them fastest.
//
// Included once per SIMD target by ops/gemm/cpu/gemm.cpp. The thin layer under few_rows-inl.h: A is
// brought into the same order once (`element` says it), so that no code of B is ever moved to its
// place. A lane holds elements of one aligned group of kLaneGroup only, so scales can be applied to
// lanes after the products of a chunk are summed.

#if defined(BLOCKSCALE_OPS_GEMM_CHUNK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BLOCKSCALE_OPS_GEMM_CHUNK_INL_H_
#undef BLOCKSCALE_OPS_GEMM_CHUNK_INL_H_
#else
#define BLOCKSCALE_OPS_GEMM_CHUNK_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "core/format.h"
// These are toggled per target as this file is.
#include "ops/common/simd/decode-inl.h"
#include "ops/gemm/cpu/panels/microkernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale::gemm_detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace codes = blockscale::HWY_NAMESPACE;

/// Whether this target has chunks at all: its panels serve any number of rows otherwise.
#undef BLOCKSCALE_HAS_CHUNKS
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
#define BLOCKSCALE_HAS_CHUNKS 1
#else
#define BLOCKSCALE_HAS_CHUNKS 0
#endif

/// For what is decoded once, by itself.
HWY_INLINE void prefetch_to_level_1(const std::uint8_t* bytes) {
  __builtin_prefetch(bytes, 0, 3);
}
/// Not to level 1: its few pending lines are for what is used next. (hwy::Prefetch has one level.)
HWY_INLINE void prefetch_to_level_2(const std::uint8_t* bytes) {
  __builtin_prefetch(bytes, 0, 2);
}

#if BLOCKSCALE_HAS_CHUNKS

/// kCodes consecutive codes in their order. Loads of 6-bit codes read kOverRead bytes more.
template <Format F>
class Chunk {
 public:
  static constexpr int kCodes = 32;
  static constexpr int kVectors = kCodes / kLanes;
  static constexpr int kBytes = kCodes * format_traits(F).bits / 8;
  static constexpr int kOverRead = format_traits(F).bits == 6 ? 16 - 6 * kLanes / 8 : 0;

  /// The element that lane `lane` of vector `v` holds.
  static constexpr int element(int v, int lane) { return v * kLanes + lane; }

  HWY_INLINE explicit Chunk(const std::uint8_t* bytes) : bytes_(bytes) {}
  template <int kVector>
  HWY_INLINE hn::Vec<FloatTag> vector() const {
    constexpr int kOffset = kVector * kLanes * format_traits(F).bits / 8;
    return codes::decode_lanes<F>(FloatTag(), bytes_ + kOffset);
  }

 private:
  const std::uint8_t* bytes_;
};

/// One 32-bit word of 8 codes a lane: vector v is nibble v of every word, without any shuffle of
/// bytes. A table of values lies in a register.
template <>
class Chunk<Format::e2m1> {
 public:
  static constexpr int kCodes = 8 * kLanes;
  static constexpr int kVectors = 8;
  static constexpr int kBytes = kCodes / 2;
  static constexpr int kOverRead = 0;

  static constexpr int element(int v, int lane) { return 8 * lane + v; }

  HWY_INLINE explicit Chunk(const std::uint8_t* bytes)
      : words_(hn::BitCast(UnsignedTag(),
                           hn::LoadU(hn::Repartition<std::uint8_t, FloatTag>(), bytes))) {}

  HWY_INLINE explicit Chunk(hn::Vec<FloatTag> words) : words_(hn::BitCast(UnsignedTag(), words)) {}

  template <int kVector>
  HWY_INLINE hn::Vec<FloatTag> vector() const {
    const FloatTag df;
    const auto at_bottom = hn::ShiftRight<4 * kVector>(words_);
#if HWY_TARGET == HWY_AVX2
    // The permutation reads the low three bits of each lane: the magnitude.
    alignas(32) static constexpr float kMagnitudes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    const __m256 magnitude = _mm256_permutevar8x32_ps(_mm256_load_ps(kMagnitudes), at_bottom.raw);
    const auto sign = hn::And(hn::ShiftLeft<28>(at_bottom), hn::Set(UnsignedTag(), 0x80000000u));
    return hn::Or(hn::Vec<FloatTag>{magnitude}, hn::BitCast(df, sign));
#else
    // The permutation reads the low four bits of each lane: the whole code.
    alignas(64) static constexpr float kValues[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,
                                                      4.0f,  6.0f,  -0.0f, -0.5f, -1.0f, -1.5f,
                                                      -2.0f, -3.0f, -4.0f, -6.0f};
    return hn::Vec<FloatTag>{_mm512_permutexvar_ps(at_bottom.raw, hn::Load(df, kValues).raw)};
#endif
  }

 private:
  using UnsignedTag = hn::RebindToUnsigned<FloatTag>;
  hn::Vec<UnsignedTag> words_;
};

#if HWY_TARGET == HWY_AVX3_DL
/// The two bytes of the bf16 value of every code of up to 7 bits: all formats below are exact in
/// bf16, subnormal and NaN codes included.
template <Format F, int kCount>
struct ByteTables {
  alignas(64) std::uint8_t high[kCount];
  alignas(64) std::uint8_t low[kCount];

  constexpr ByteTables() : high(), low() {
    for (int code = 0; code < kCount; ++code) {
      const auto bits = bit_cast<std::uint32_t>(decode<F>(static_cast<std::uint32_t>(code)));
      high[code] = static_cast<std::uint8_t>(bits >> 24);
      low[code] = static_cast<std::uint8_t>(bits >> 16);
    }
  }
};
template <Format F, int kCount>
inline constexpr ByteTables<F, kCount> kByteTables{};

/// 64 values in bf16: the high and the low byte of each are looked up, then interleaved.
class Bf16Chunk {
 public:
  static constexpr int kCodes = 64;
  static constexpr int kVectors = 4;

  static constexpr int element(int v, int lane) {
    return lane / 4 * 16 + v / 2 * 8 + lane % 4 * 2 + v % 2;
  }

  HWY_INLINE Bf16Chunk(__m512i high, __m512i low)
      : pairs_{_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)} {}

  /// 8 of every 16 consecutive values, in bf16.
  HWY_INLINE __m512i pairs(int v) const { return pairs_[v]; }

  template <int kVector>
  HWY_INLINE hn::Vec<FloatTag> vector() const {
    const __m512i pairs = pairs_[kVector / 2];
    if constexpr (kVector % 2 == 0) {
      return hn::Vec<FloatTag>{_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))};
    } else {
      return hn::Vec<FloatTag>{_mm512_castsi512_ps(
          _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))))};
    }
  }

 private:
  __m512i pairs_[2];
};

/// FP8: the sign bit is no part of the table.
template <Format F>
  requires(F == Format::e4m3 || F == Format::e5m2)
class Chunk<F> : public Bf16Chunk {
 public:
  static constexpr int kBytes = 64;
  static constexpr int kOverRead = 0;

  HWY_INLINE explicit Chunk(const std::uint8_t* bytes) : Chunk(_mm512_loadu_si512(bytes)) {}
  HWY_INLINE explicit Chunk(__m512i codes) : Bf16Chunk(high(codes), low(codes)) {}

  /// The upper and the lower byte of the bf16 values of 64 codes.
  HWY_INLINE static __m512i high(__m512i codes) {
    const auto* const table = kByteTables<F, 128>.high;
    const __m512i magnitude =
        _mm512_permutex2var_epi8(_mm512_load_si512(table), codes, _mm512_load_si512(table + 64));
    constexpr int kOrAnd = 0xF8;  // a | (b & c)
    return _mm512_ternarylogic_epi32(magnitude, codes,
                                     _mm512_set1_epi32(static_cast<int>(0x80808080u)), kOrAnd);
  }
  HWY_INLINE static __m512i low(__m512i codes) {
    const auto* const table = kByteTables<F, 128>.low;
    return _mm512_permutex2var_epi8(_mm512_load_si512(table), codes, _mm512_load_si512(table + 64));
  }
};

/// FP6: six bytes are brought into each 64-bit lane, and each of its 8 codes into a byte. What lies
/// above a code in its byte is not read by the look-up.
template <Format F>
  requires(F == Format::e2m3 || F == Format::e3m2)
class Chunk<F> : public Bf16Chunk {
 public:
  static constexpr int kBytes = 48;
  static constexpr int kOverRead = 0;

  HWY_INLINE explicit Chunk(const std::uint8_t* bytes)
      : Chunk(spread(_mm512_maskz_loadu_epi8(0x0000FFFFFFFFFFFFu, bytes))) {}

  /// 64 codes, each in the low bits of a byte.
  struct Spread {
    __m512i codes;
  };
  HWY_INLINE static Spread spread(__m512i packed) {
    alignas(64) static constexpr auto kBytesOfLanes = [] {
      struct {
        std::uint8_t at[64] = {};
      } bytes;
      for (int i = 0; i < 64; ++i) {
        bytes.at[i] = static_cast<std::uint8_t>(i / 8 * 6 + (i % 8 < 6 ? i % 8 : 0));
      }
      return bytes;
    }();
    const __m512i lanes = _mm512_permutexvar_epi8(_mm512_load_si512(kBytesOfLanes.at), packed);
    const __m512i shifts = _mm512_set1_epi64(0x2A241E18120C0600);  // 42, 36, ... 6, 0
    return {_mm512_multishift_epi64_epi8(shifts, lanes)};
  }

 private:
  HWY_INLINE explicit Chunk(Spread s)
      : Bf16Chunk(look_up(kByteTables<F, 64>.high, s), look_up(kByteTables<F, 64>.low, s)) {}

  HWY_INLINE static __m512i look_up(const std::uint8_t* table, Spread s) {
    return _mm512_permutexvar_epi8(s.codes, _mm512_load_si512(table));
  }
};
#endif  // HWY_AVX3_DL

#endif  // BLOCKSCALE_HAS_CHUNKS

}  // namespace HWY_NAMESPACE
}  // namespace blockscale::gemm_detail
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
