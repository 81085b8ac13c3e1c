// Matrix products of a warp with FP8, FP6 and FP4 elements and a scale for each block of a row,
// which sm_120f alone has. PTX ISA "mma", "Block Scaling for mma.sync".
//
// D (16 x 8, f32, or f16 of kind f8f6f4) += A (16 x K) * B (8 x K)^T as in device/ptx/mma.h, whose
// fragments of A and B these are. K is 64 packed e2m1, or 32 elements of a byte each: e4m3 and
// e5m2, e2m3 and e3m2 in bits 0 to 5, e2m1 in bits 2 to 5; the other bits are 0.
//
// Scales are words of the quads' lanes: that of A's row r lies in lane 4 (r % 8) + 2 thread + r / 8
// (thread 0 or 1), that of B's row n in lane 4 n + thread (0 to 3). Words of other lanes are not
// looked at. These are not the rows of the lane's accumulators. A word in which each byte is the
// scale of a block of k, in order, is what the swizzled_128x4 layout has.
#pragma once

#include "core/format.h"
#include "device/kernel.h"
#include "device/ptx/mma.h"
#if !BLOCKSCALE_GPU
#include "device/emulator/instructions.h"
#endif

namespace blockscale::ptx {

/// This lane's part of D in f16. Word i of lane l has D[row][column] in its low half and
/// D[row][column + 1] in the other, with row = l / 4 + 8 i, column = 2 (l % 4).
struct MmaAccumulatorF16 {
  uint32_t value[2];
};

/// Immediates of the instruction: the first byte of a scale word that the product takes, and the
/// thread of the quad (of two of them, for A) whose word it is.
struct ScaleSelector {
  int byte = 0;
  int thread = 0;
};

namespace detail {

template <Format kElement>
struct NarrowText;
template <>
struct NarrowText<Format::e2m1> {
  static constexpr char kName[] = "e2m1";
};
template <>
struct NarrowText<Format::e2m3> {
  static constexpr char kName[] = "e2m3";
};
template <>
struct NarrowText<Format::e3m2> {
  static constexpr char kName[] = "e3m2";
};
template <>
struct NarrowText<Format::e4m3> {
  static constexpr char kName[] = "e4m3";
};
template <>
struct NarrowText<Format::e5m2> {
  static constexpr char kName[] = "e5m2";
};

/// Whether `count` scales of a word may begin at a byte, and the threads exist.
BLOCKSCALE_HD constexpr bool can_select(int count, ScaleSelector a, ScaleSelector b) {
  const auto is_start = [count](int byte) {
    return byte >= 0 && byte + count <= 4 && byte % count == 0;
  };
  return is_start(a.byte) && is_start(b.byte) && (a.thread == 0 || a.thread == 1) &&
         b.thread >= 0 && b.thread < 4;
}

#if !BLOCKSCALE_GPU
inline void scaled_mma(const emulator::meaning::ScaledMma& mma, MmaAccumulator& d,
                       const MmaFragmentA& a, const MmaFragmentB& b, uint32_t scales_a,
                       uint32_t scales_b, SourceLocation at) {
  emulator::scaled_mma_sync(mma, d.value, a.value, b.value, scales_a, scales_b, at);
}
inline emulator::meaning::ScaledMma scaled_form(Format a, Format b, uint32_t scales,
                                                ScaleSelector of_a, ScaleSelector of_b) {
  return {a,
          b,
          scales,
          static_cast<uint32_t>(of_a.byte),
          static_cast<uint32_t>(of_a.thread),
          static_cast<uint32_t>(of_b.byte),
          static_cast<uint32_t>(of_b.thread)};
}
#endif

}  // namespace detail

#define BLOCKSCALE_MMA_REGISTERS "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}"
#define BLOCKSCALE_MMA_SUMS "+f"(d.value[0]), "+f"(d.value[1]), "+f"(d.value[2]), "+f"(d.value[3])
#define BLOCKSCALE_MMA_VALUES                                                          \
  "r"(a.value[0]), "r"(a.value[1]), "r"(a.value[2]), "r"(a.value[3]), "r"(b.value[0]), \
      "r"(b.value[1])
#define BLOCKSCALE_MMA_SCALES \
  "r"(scales_a), "n"(kOfA.byte), "n"(kOfA.thread), "r"(scales_b), "n"(kOfB.byte), "n"(kOfB.thread)

/// mma.sync.aligned.m16n8k32.kind::f8f6f4: no scales. All 25 pairs of e4m3, e5m2, e2m3, e3m2, e2m1.
template <Format kA, Format kB>
BLOCKSCALE_DEVICE void mma_sync_m16n8k32_f8f6f4(MmaAccumulator& d, const MmaFragmentA& a,
                                                const MmaFragmentB& b,
                                                SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.%10.%11.f32 " BLOCKSCALE_MMA_REGISTERS ";"
      : BLOCKSCALE_MMA_SUMS
      : BLOCKSCALE_MMA_VALUES, "C"(detail::NarrowText<kA>::kName),
        "C"(detail::NarrowText<kB>::kName));
#else
  detail::scaled_mma({.a = kA, .b = kB}, d, a, b, 0, 0, at);
#endif
}

/// The same with D in f16, which RTX cards are said to do at twice the rate.
template <Format kA, Format kB>
BLOCKSCALE_DEVICE void mma_sync_m16n8k32_f8f6f4(MmaAccumulatorF16& d, const MmaFragmentA& a,
                                                const MmaFragmentB& b,
                                                SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f16.%8.%9.f16 "
      "{%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
      : "+r"(d.value[0]), "+r"(d.value[1])
      : BLOCKSCALE_MMA_VALUES, "C"(detail::NarrowText<kA>::kName),
        "C"(detail::NarrowText<kB>::kName));
#else
  emulator::scaled_mma_sync_f16({.a = kA, .b = kB, .d = Format::f16}, d.value, a.value, b.value,
                                at);
#endif
}

/// mma.sync.aligned.m16n8k32.kind::mxf8f6f4.block_scale.scale_vec::1X: one ue8m0 for the 32 of a
/// row. The same pairs.
template <Format kA, Format kB, ScaleSelector kOfA = ScaleSelector{},
          ScaleSelector kOfB = ScaleSelector{}>
BLOCKSCALE_DEVICE void mma_sync_m16n8k32_mxf8f6f4(MmaAccumulator& d, const MmaFragmentA& a,
                                                  const MmaFragmentB& b, uint32_t scales_a,
                                                  uint32_t scales_b,
                                                  SourceLocation at = SourceLocation::current()) {
  static_assert(detail::can_select(1, kOfA, kOfB));
#if BLOCKSCALE_GPU
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.%16.%17.f32"
      ".ue8m0 " BLOCKSCALE_MMA_REGISTERS ", %10, {%11, %12}, %13, {%14, %15};"
      : BLOCKSCALE_MMA_SUMS
      : BLOCKSCALE_MMA_VALUES, BLOCKSCALE_MMA_SCALES, "C"(detail::NarrowText<kA>::kName),
        "C"(detail::NarrowText<kB>::kName));
#else
  detail::scaled_mma(detail::scaled_form(kA, kB, 1, kOfA, kOfB), d, a, b, scales_a, scales_b, at);
#endif
}

/// mma.sync.aligned.m16n8k64.kind::mxf4nvf4.block_scale of packed e2m1: with kScales = 4
/// (scale_vec::4X) a ue4m3 for each 16 of a row, with 2 (2X) a ue8m0 for each 32.
template <int kScales, ScaleSelector kOfA = ScaleSelector{}, ScaleSelector kOfB = ScaleSelector{}>
BLOCKSCALE_DEVICE void mma_sync_m16n8k64_mxf4nvf4(MmaAccumulator& d, const MmaFragmentA& a,
                                                  const MmaFragmentB& b, uint32_t scales_a,
                                                  uint32_t scales_b,
                                                  SourceLocation at = SourceLocation::current()) {
  static_assert(kScales == 4 || kScales == 2);
  static_assert(detail::can_select(kScales, kOfA, kOfB));
#if BLOCKSCALE_GPU
#define BLOCKSCALE_MMA(scales, type)                                                             \
  asm volatile("mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::" scales \
               "X.f32.e2m1.e2m1.f32." type " " BLOCKSCALE_MMA_REGISTERS                          \
               ", %10, {%11, %12}, %13, {%14, %15};"                                             \
               : BLOCKSCALE_MMA_SUMS                                                             \
               : BLOCKSCALE_MMA_VALUES, BLOCKSCALE_MMA_SCALES)
  if constexpr (kScales == 4) {
    BLOCKSCALE_MMA("4", "ue4m3");
  } else {
    BLOCKSCALE_MMA("2", "ue8m0");
  }
#undef BLOCKSCALE_MMA
#else
  detail::scaled_mma(detail::scaled_form(Format::e2m1, Format::e2m1, kScales, kOfA, kOfB), d, a, b,
                     scales_a, scales_b, at);
#endif
}

#undef BLOCKSCALE_MMA_REGISTERS
#undef BLOCKSCALE_MMA_SUMS
#undef BLOCKSCALE_MMA_VALUES
#undef BLOCKSCALE_MMA_SCALES

}  // namespace blockscale::ptx
