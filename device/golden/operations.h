// Instructions that compute a word from words, for comparing the emulator with a GPU: the same
// source is run on both. Results are summed up in hashes, so that all 2^32 inputs can be compared.
#pragma once

#include "core/config.h"
#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/convert.h"
#include "device/ptx/integer.h"
#include "device/ptx/packed.h"

namespace blockscale::golden {

/// Three rounds of multiply and shift: spreads each bit of `x` over all (splitmix64's constants).
BLOCKSCALE_HD constexpr uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// What a result adds to the hash of its chunk: the sum is the same in any order.
BLOCKSCALE_HD constexpr uint64_t hash_term(uint64_t index, uint32_t result) {
  return mix((index << 32 | result) + 0x9E3779B97F4A7C15u);
}

/// What operands are drawn from.
enum class Operands : uint8_t { f32, halves };

/// Operand `slot` of input `index`: any bits, zeros, infinities, NaNs and limits, and numbers of
/// similar size, in turn.
BLOCKSCALE_HD constexpr uint32_t operand(Operands kind, uint64_t index, uint32_t slot) {
  const uint64_t h = mix(index * 4 + slot + 1);
  const uint32_t bits = static_cast<uint32_t>(h);
  const uint32_t choice = static_cast<uint32_t>(h >> 61);
  if (kind == Operands::f32) {
    constexpr uint32_t kSpecial[16] = {0,          0x80000000, 0x7F800000, 0xFF800000,
                                       0x7FC00000, 0x7F800001, 0x00000001, 0x807FFFFF,
                                       0x00800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x3F800000,
                                       0xBF800000, 0x3F7FFFFF, 0x33800000, 0x4B800000};
    if (choice < 2) return bits;
    if (choice == 2) return kSpecial[bits & 15];
    return (bits & 0x807FFFFF) | (120 + (bits >> 23 & 15)) << 23;
  }
  if (choice < 6) return bits;
  return (bits & 0x83FF83FF) | 0x38003800;  // f16: 0.5 to 1; bf16: about 2^-15
}

BLOCKSCALE_HD constexpr float as_float(uint32_t bits) {
  return bit_cast<float>(bits);
}
BLOCKSCALE_HD constexpr uint32_t as_bits(float x) {
  return bit_cast<uint32_t>(x);
}
/// A word that goes through all words as `a` does, in another order.
BLOCKSCALE_HD constexpr uint32_t partner(uint32_t a) {
  return a * 2654435761u + 12345u;
}
/// The bits of x, of a NaN always the same: for instructions that do not say which one they make.
BLOCKSCALE_HD constexpr uint32_t any_nan(float x) {
  return x == x ? as_bits(x) : 0x7FFFFFFFu;
}

// One instruction: its name, the number of its inputs (as a power of two), and what it makes of
// one.
#define BLOCKSCALE_UNARY(name, bits, ...)                 \
  struct name {                                           \
    static constexpr const char* kName = #name;           \
    static constexpr int kInputBits = bits;               \
    BLOCKSCALE_DEVICE static uint32_t apply(uint32_t a) { \
      return __VA_ARGS__;                                 \
    }                                                     \
  };
#define BLOCKSCALE_RANDOM(name, kind, ...)                                 \
  struct name {                                                            \
    static constexpr const char* kName = #name;                            \
    static constexpr Operands kOperands = Operands::kind;                  \
    BLOCKSCALE_DEVICE static uint32_t apply([[maybe_unused]] uint32_t a,   \
                                            [[maybe_unused]] uint32_t b,   \
                                            [[maybe_unused]] uint32_t c) { \
      return __VA_ARGS__;                                                  \
    }                                                                      \
  };

namespace unary {
// Of f32: both halves of a pair go through all inputs.
BLOCKSCALE_UNARY(cvt_rn_satfinite_e4m3x2_f32, 32,
                 ptx::cvt_rn_satfinite_e4m3x2_f32(as_float(a), as_float(partner(a))))
BLOCKSCALE_UNARY(cvt_rn_satfinite_e5m2x2_f32, 32,
                 ptx::cvt_rn_satfinite_e5m2x2_f32(as_float(a), as_float(partner(a))))
BLOCKSCALE_UNARY(cvt_rn_f16x2_f32, 32, ptx::cvt_rn_f16x2_f32(as_float(a), as_float(partner(a))))
BLOCKSCALE_UNARY(cvt_rn_bf16x2_f32, 32, ptx::cvt_rn_bf16x2_f32(as_float(a), as_float(partner(a))))
BLOCKSCALE_UNARY(cvt_rn_f16_f32, 32, ptx::cvt_rn_f16_f32(as_float(a)))
BLOCKSCALE_UNARY(cvt_rn_bf16_f32, 32, ptx::cvt_rn_bf16_f32(as_float(a)))
BLOCKSCALE_UNARY(cvt_rni_s32_f32, 32, static_cast<uint32_t>(ptx::cvt_rni_s32_f32(as_float(a))))
BLOCKSCALE_UNARY(cvt_rzi_u32_f32, 32, ptx::cvt_rzi_u32_f32(as_float(a)))
BLOCKSCALE_UNARY(cvt_rni_f32_f32, 32, as_bits(ptx::cvt_rni_f32_f32(as_float(a))))
BLOCKSCALE_UNARY(cvt_rn_f32_s32, 32, as_bits(ptx::cvt_rn_f32_s32(static_cast<int32_t>(a))))
BLOCKSCALE_UNARY(cvt_rn_f32_u32, 32, as_bits(ptx::cvt_rn_f32_u32(a)))
BLOCKSCALE_UNARY(rcp_rn, 32, as_bits(ptx::rcp_rn(as_float(a))))
BLOCKSCALE_UNARY(sqrt_rn, 32, as_bits(ptx::sqrt_rn(as_float(a))))
BLOCKSCALE_UNARY(abs, 32, any_nan(ptx::abs(as_float(a))))
BLOCKSCALE_UNARY(neg, 32, any_nan(ptx::neg(as_float(a))))
// Of two f16, all pairs.
BLOCKSCALE_UNARY(cvt_rn_satfinite_e4m3x2_f16x2, 32, ptx::cvt_rn_satfinite_e4m3x2_f16x2(a))
BLOCKSCALE_UNARY(cvt_rn_satfinite_e5m2x2_f16x2, 32, ptx::cvt_rn_satfinite_e5m2x2_f16x2(a))
// Of 16 bits.
BLOCKSCALE_UNARY(cvt_rn_f16x2_e4m3x2, 16, ptx::cvt_rn_f16x2_e4m3x2(static_cast<uint16_t>(a)))
BLOCKSCALE_UNARY(cvt_rn_f16x2_e5m2x2, 16, ptx::cvt_rn_f16x2_e5m2x2(static_cast<uint16_t>(a)))
BLOCKSCALE_UNARY(cvt_f32_f16, 16, as_bits(ptx::cvt_f32_f16(static_cast<uint16_t>(a))))
BLOCKSCALE_UNARY(cvt_f32_bf16, 16, as_bits(ptx::cvt_f32_bf16(static_cast<uint16_t>(a))))
BLOCKSCALE_UNARY(abs_f16x2, 16, ptx::abs_f16x2(a << 16 | (a ^ 0x8000)))
BLOCKSCALE_UNARY(abs_bf16x2, 16, ptx::abs_bf16x2(a << 16 | (a ^ 0x8000)))
BLOCKSCALE_UNARY(neg_f16x2, 16, ptx::neg_f16x2(a << 16 | (a ^ 0x8000)))
BLOCKSCALE_UNARY(neg_bf16x2, 16, ptx::neg_bf16x2(a << 16 | (a ^ 0x8000)))
}  // namespace unary

namespace random {
#define BLOCKSCALE_F32(name, ...) BLOCKSCALE_RANDOM(name, f32, as_bits(__VA_ARGS__))
BLOCKSCALE_F32(fma_rn, ptx::fma_rn(as_float(a), as_float(b), as_float(c)))
BLOCKSCALE_F32(add_rn, ptx::add_rn(as_float(a), as_float(b)))
BLOCKSCALE_F32(sub_rn, ptx::sub_rn(as_float(a), as_float(b)))
BLOCKSCALE_F32(mul_rn, ptx::mul_rn(as_float(a), as_float(b)))
BLOCKSCALE_F32(div_rn, ptx::div_rn(as_float(a), as_float(b)))
BLOCKSCALE_F32(max, ptx::max(as_float(a), as_float(b)))
BLOCKSCALE_F32(min, ptx::min(as_float(a), as_float(b)))
BLOCKSCALE_F32(max_nan, ptx::max_nan(as_float(a), as_float(b)))
BLOCKSCALE_F32(min_nan, ptx::min_nan(as_float(a), as_float(b)))
#undef BLOCKSCALE_F32
#define BLOCKSCALE_HALVES(name, ...)                                      \
  BLOCKSCALE_RANDOM(name##_f16x2, halves, ptx::name##_f16x2(__VA_ARGS__)) \
  BLOCKSCALE_RANDOM(name##_bf16x2, halves, ptx::name##_bf16x2(__VA_ARGS__))
BLOCKSCALE_HALVES(fma_rn, a, b, c)
BLOCKSCALE_HALVES(add_rn, a, b)
BLOCKSCALE_HALVES(sub_rn, a, b)
BLOCKSCALE_HALVES(mul_rn, a, b)
BLOCKSCALE_HALVES(max, a, b)
BLOCKSCALE_HALVES(min, a, b)
BLOCKSCALE_HALVES(max_nan, a, b)
BLOCKSCALE_HALVES(min_nan, a, b)
#undef BLOCKSCALE_HALVES
BLOCKSCALE_RANDOM(prmt, halves, ptx::prmt(a, b, c))
BLOCKSCALE_RANDOM(min_s16x2, halves, ptx::min_s16x2(a, b))
BLOCKSCALE_RANDOM(dp2a_lo_u32, halves, ptx::dp2a_lo_u32(a, b, c))
}  // namespace random

#undef BLOCKSCALE_UNARY
#undef BLOCKSCALE_RANDOM

template <class... Types>
struct TypeList {};

/// All inputs of each.
using UnaryOperations =
    TypeList<unary::cvt_rn_satfinite_e4m3x2_f32, unary::cvt_rn_satfinite_e5m2x2_f32,
             unary::cvt_rn_f16x2_f32, unary::cvt_rn_bf16x2_f32, unary::cvt_rn_f16_f32,
             unary::cvt_rn_bf16_f32, unary::cvt_rni_s32_f32, unary::cvt_rzi_u32_f32,
             unary::cvt_rni_f32_f32, unary::cvt_rn_f32_s32, unary::cvt_rn_f32_u32, unary::rcp_rn,
             unary::sqrt_rn, unary::abs, unary::neg, unary::cvt_rn_satfinite_e4m3x2_f16x2,
             unary::cvt_rn_satfinite_e5m2x2_f16x2, unary::cvt_rn_f16x2_e4m3x2,
             unary::cvt_rn_f16x2_e5m2x2, unary::cvt_f32_f16, unary::cvt_f32_bf16, unary::abs_f16x2,
             unary::abs_bf16x2, unary::neg_f16x2, unary::neg_bf16x2>;

/// kRandomInputs inputs of each.
using RandomOperations =
    TypeList<random::fma_rn, random::add_rn, random::sub_rn, random::mul_rn, random::div_rn,
             random::max, random::min, random::max_nan, random::min_nan, random::fma_rn_f16x2,
             random::fma_rn_bf16x2, random::add_rn_f16x2, random::add_rn_bf16x2,
             random::sub_rn_f16x2, random::sub_rn_bf16x2, random::mul_rn_f16x2,
             random::mul_rn_bf16x2, random::max_f16x2, random::max_bf16x2, random::min_f16x2,
             random::min_bf16x2, random::max_nan_f16x2, random::max_nan_bf16x2,
             random::min_nan_f16x2, random::min_nan_bf16x2, random::prmt, random::min_s16x2,
             random::dp2a_lo_u32>;

/// Inputs that share a hash: 2^24 of 2^32, all of 2^16.
inline constexpr uint64_t kUnaryChunk = uint64_t{1} << 24;
inline constexpr uint64_t kRandomInputs = uint64_t{1} << 20;
inline constexpr uint64_t kRandomChunk = uint64_t{1} << 16;

template <class Operation>
BLOCKSCALE_DEVICE uint64_t random_term(uint64_t index) {
  constexpr Operands kKind = Operation::kOperands;
  return hash_term(index, Operation::apply(operand(kKind, index, 0), operand(kKind, index, 1),
                                           operand(kKind, index, 2)));
}

}  // namespace blockscale::golden
