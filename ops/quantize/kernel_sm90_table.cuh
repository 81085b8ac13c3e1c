// GELU and swiglu of 16-bit elements with a table of the function in shared memory: GELU and silu
// cost 20 to 25 instructions an element where an H200's memory leaves 19 for everything; a look-up
// costs four.
//
// One thread block fills a multiprocessor and goes through many tiles. Shared memory:
//
//   0                  values of +0 and of all positive numbers up to `highest`, which is NaN: the
//                      number with bits b lies at 4 b
//   behind them        slots, as many as fit
//   4 * 0x7FFF         NaN, the value of all NaNs
//   4 * 0x8000         values of -0 and of all negative numbers down to -`lowest`
//   behind them        slots
//   the last 1024      what other kernels have too (kQuantizeSharedBytes)
//
// Elements are limited to [-lowest, highest] two at a time before they are looked up. Those that
// have no entry, NaN among them, give NaN, and blocks with a NaN are done again the exact way.
#pragma once

#include "core/input_transform.h"
#include "core/math.h"
#include "device/kernel.h"
#include "device/math.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/integer.h"
#include "device/ptx/packed.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/vector.h"
#include "ops/quantize/kernel_sm90_chunk.cuh"
#include "ops/quantize/kernel_sm90_transform.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// Bits of a normal number of a 16-bit format.
template <Format kFormat>
BLOCKSCALE_HD constexpr uint32_t bits_of(float x) {
  static_assert(kFormat == Format::bf16 || kFormat == Format::f16);
  const uint32_t bits = bit_cast<uint32_t>(x);
  return kFormat == Format::bf16 ? bits >> 16 : (bits - (112u << 23)) >> 13;
}

/// The two 16-bit halves alike.
BLOCKSCALE_HD constexpr uint32_t both_halves(uint32_t half) {
  return half | half << 16;
}

inline constexpr uint32_t kSlotAlignment = 128;
BLOCKSCALE_HD constexpr uint32_t align_slot(uint32_t bytes) {
  return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

/// The functions that tables hold: GELU, and for swiglu silu.
template <InputTransform kTransform>
struct Tabulated {
  using Math = device::KernelMath;
  static constexpr bool kTanh = kTransform == InputTransform::gelu_tanh;
  static constexpr bool kErf = kTransform == InputTransform::gelu_erf;
  static_assert(kTanh || kErf || kTransform == InputTransform::swiglu);

  /// Below its negative it is constant.
  static constexpr float kLowest = kTanh ? 10.0f : kErf ? 8.0f : 87.0f;

  /// What is costly about it: GELU has it in common for x and -x, where x >= 0.
  static constexpr bool kIsEven = kTanh || kErf;
  BLOCKSCALE_DEVICE static float costly(float x) {
    if constexpr (kTanh) return math::tanh_tail<Math>(x);
    if constexpr (kErf) return math::erf_tail<Math>(x);
    return math::sigmoid<Math>(x);
  }

  /// From that the function of magnitudes up to kLowest, and of their negatives.
  BLOCKSCALE_DEVICE static float above_zero(float x, float costly) {
    return kIsEven ? ptx::fma_rn(-x, costly, x) : ptx::mul_rn(x, costly);
  }
  BLOCKSCALE_DEVICE static float below_zero(float x, float costly) {
    return ptx::mul_rn(-x, costly);
  }
};

/// The values of a function of 16-bit numbers, and where they lie.
template <InputTransform kTransform, Format kFormat>
class FunctionTable {
  using Function = Tabulated<kTransform>;
  static constexpr bool kIsBf16 = kFormat == Format::bf16;
  static constexpr bool kIsGelu = kTransform != InputTransform::swiglu;

  /// Numbers below -kLowest have the value that it has, which is NaN where the function goes on:
  /// the table of silu for f16 would be too long.
  static constexpr bool kEnds = kIsGelu || kIsBf16;
  static constexpr uint32_t kLowest = bits_of<kFormat>(kEnds ? Function::kLowest : 32.0f);
  /// From here on numbers have no entry. Here f16 leaves room for 32 slots.
  static constexpr float kBeyond = kIsBf16 ? 256.0f : kIsGelu ? 96.0f : 28.0f;
  static constexpr uint32_t kHighest = bits_of<kFormat>(kBeyond);
  static constexpr uint32_t kNearZero = kIsBf16 ? bits_of<kFormat>(0x1p-27f) : 0;

 public:
  static constexpr uint32_t kPositiveEnd = align_slot(4 * (kHighest + 1));
  static constexpr uint32_t kNan = 4 * 0x7FFFu;
  static constexpr uint32_t kNegative = 4 * 0x8000u;
  static constexpr uint32_t kNegativeEnd = align_slot(kNegative + 4 * (kLowest + 1));
  static constexpr uint32_t kEnd = kTableSharedBytes - kQuantizeSharedBytes;

  /// Computes the entries, all threads of the block together; a barrier must follow.
  template <int kThreads>
  BLOCKSCALE_DEVICE static void fill() {
    const ptx::SharedAddress above = device::shared_base();
    const ptx::SharedAddress below = above + kNegative;
    const auto itself = [](float number) { return number; };
    const float at_zero = Function::costly(0.0f);
    each_group<kThreads>(0, kNearZero, [&](uint32_t first, const Numbers& x) {
      const auto costly = x.map([&](float) { return at_zero; });
      ptx::st_shared(above + 4 * first, x.map(Function::above_zero, costly));
      ptx::st_shared(below + 4 * first, x.map(Function::below_zero, costly));
    });
    each_group<kThreads>(kNearZero, kComputed, [&](uint32_t first, const Numbers& x) {
      const auto costly = x.map(Function::costly);
      if (first < kPlain) {
        ptx::st_shared(above + 4 * first, x.map(Function::above_zero, costly));
      } else if (first < kHighest) {
        ptx::st_shared(above + 4 * first, x.map(itself));
      }
      const auto of_negative = Function::kIsEven
                                   ? costly
                                   : x.map([](float number) { return Function::costly(-number); });
      ptx::st_shared(below + 4 * first, x.map(Function::below_zero, of_negative));
    });
    // So far from 0 functions are what they are below 0, or x.
    if constexpr (kComputed < kHighest) {
      each_group<kThreads>(kComputed, kHighest, [&](uint32_t first, const Numbers& x) {
        ptx::st_shared(above + 4 * first, x.map(itself));
      });
    }
    if (ptx::tid_x() != 0) return;
    ptx::st_shared(above + 4 * kHighest, kQuietNan);
    ptx::st_shared(above + kNan, kQuietNan);
    if constexpr (!kEnds) ptx::st_shared(below + 4 * kLowest, kQuietNan);
  }

  /// Values of the elements of a word of two.
  struct Pair {
    float low;
    float high;
  };
  /// kByDp2a: addresses are found by that, which spares the pipes of logic and shifts, else by
  /// these, which spares those of products.
  template <bool kByDp2a>
  BLOCKSCALE_DEVICE static Pair look_up(uint32_t word) {
    constexpr uint32_t kBottom = both_halves(0x8000u | kLowest);
    constexpr uint32_t kTop = both_halves(kHighest);
    if constexpr (kIsBf16) {
      word = ptx::min_nan_bf16x2(ptx::max_nan_bf16x2(word, kBottom), kTop);
    } else {
      word = ptx::min_nan_f16x2(ptx::max_nan_f16x2(word, kBottom), kTop);
    }
    const ptx::SharedAddress table = device::shared_base();
    if constexpr (!kByDp2a) {
      return {ptx::ld_shared<float>(table + (word & 0xFFFFu) * 4),
              ptx::ld_shared<float>(table + (word >> 16) * 4)};
    }
    // One instruction: the table's and four times a half.
    const auto entry = [&](uint32_t factors) {
      return ptx::ld_shared<float>(
          ptx::SharedAddress{ptx::dp2a_lo_u32(word, factors, table.value)});
    };
    return {entry(0x0004u), entry(0x0400u)};
  }

 private:
  static constexpr uint32_t kQuietNan = 0x7FFFFFFFu;

  /// Entries that a thread computes at once. Some behind the last may be written; nobody reads
  /// them.
  static constexpr uint32_t kEntries = 4;
  /// The end of those that are computed for negative numbers.
  static constexpr uint32_t kComputed =
      (kLowest + (kEnds ? 1 : 0) + kEntries - 1) / kEntries * kEntries;
  /// From here on positive numbers have themselves, or no entry.
  static constexpr uint32_t kPlain =
      (kLowest < kHighest ? kLowest : kHighest) / kEntries * kEntries;
  static_assert(kNearZero % kEntries == 0 && kHighest % kEntries == 0);
  static_assert(kEnds || kLowest % kEntries == 0);

  using Entries = device::Vector<float, kEntries>;
  struct Numbers {
    Chunk<kFormat, kEntries> x;

    BLOCKSCALE_DEVICE explicit Numbers(uint32_t first)
        : x{{first | (first + 1) << 16, (first + 2) | (first + 3) << 16}} {}

    /// of(number), or of(number, costly number), for each.
    template <class Of, class... Costly>
    BLOCKSCALE_DEVICE Entries map(const Of& of, const Costly&... costly) const {
      Entries values;
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kEntries; ++i) {
        values.at[i] = of(value_at(x, static_cast<int>(i)), costly.at[i]...);
      }
      return values;
    }
  };

  /// Calls body(first, numbers) for groups of entries from `begin` to `end`.
  template <int kThreads, class Body>
  BLOCKSCALE_DEVICE static void each_group(uint32_t begin, uint32_t end, const Body& body) {
    BLOCKSCALE_NO_UNROLL
    for (uint32_t first = begin + kEntries * ptx::tid_x(); first < end;
         first += kEntries * kThreads) {
      body(first, Numbers(first));
    }
  }
};

}  // namespace blockscale::quantize_sm90
