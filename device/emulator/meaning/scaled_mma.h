// What SM120's mma.sync of kinds f8f6f4, mxf8f6f4 and mxf4nvf4 computes: pure functions. PTX ISA
// "Warp-level matrix instructions: mma", "Block Scaling for mma.sync". How sums are made no
// document says: the rule is that of a public model (mmasim 2.1.1) that agrees with cards bit for
// bit.
#pragma once

#include <cstdint>

#include "core/format.h"
#include "device/emulator/meaning/mma.h"

namespace blockscale::emulator::meaning {

/// One product as its qualifiers and selectors spell it.
struct ScaledMma {
  Format a = Format::e2m1, b = Format::e2m1;
  /// Of each row of A and of B: 4 (ue4m3) or 2 (ue8m0) with k = 64, kind mxf4nvf4; 1 (ue8m0) with
  /// k = 32, kind mxf8f6f4; none, kind f8f6f4.
  uint32_t scales = 0;
  uint32_t byte_a = 0, thread_a = 0, byte_b = 0, thread_b = 0;
  Format d = Format::f32;  // or f16, of kind f8f6f4
};

/// Whether two elements lie in a byte; else one does, and k is 32.
constexpr bool is_packed(const ScaledMma& mma) {
  return mma.scales > 1;
}

constexpr Format scale_format_of(const ScaledMma& mma) {
  return mma.scales == 4 ? Format::ue4m3 : Format::ue8m0;
}

/// A number for each product, so that lanes can be compared.
constexpr uint32_t key_of(const ScaledMma& mma) {
  return static_cast<uint32_t>(mma.a) | static_cast<uint32_t>(mma.b) << 4 | mma.scales << 8 |
         mma.byte_a << 11 | mma.thread_a << 13 | mma.byte_b << 15 | mma.thread_b << 17 |
         static_cast<uint32_t>(mma.d) << 19;
}

/// Where in its byte an element of a product with k = 32 begins: FP4 in bits 2 to 5, FP6 in 0 to 5.
constexpr uint32_t element_shift(Format element) {
  return element == Format::e2m1 ? 2 : 0;
}

/// Bits of a word of A or B that belong to no element.
constexpr uint32_t padding_bits(Format element, bool packed) {
  const uint32_t bits = static_cast<uint32_t>(format_traits(element).bits);
  if (packed) return 0;
  return 0x01010101u * (0xFFu & ~(((1u << bits) - 1) << element_shift(element)));
}

/// The lanes whose words have the scales of a row of A, of a row of B (a column of D).
constexpr uint32_t scale_lane_of_a(uint32_t row, uint32_t thread) {
  return 4 * (row % 8) + 2 * thread + row / 8;
}
constexpr uint32_t scale_lane_of_b(uint32_t column, uint32_t thread) {
  return 4 * column + thread;
}

/// The registers of a warp's lanes. Fragments counted in bytes are those of any mma.sync.
struct ScaledMmaFragments {
  MmaFragments values;
  uint32_t scales_a[kMmaLanes], scales_b[kMmaLanes];
};

/// d += a * b^T, scaled: all terms of an instruction are aligned to the largest exponent among
/// them, cut toward zero behind 25 bits (k = 32) or 35 (k = 64), added exactly, and the sum is cut
/// to f32, or rounded to nearest even to f16. With k = 32 a term is a product, with k = 64 the
/// exact sum of 16 of them, which is aligned by its scales alone. Values of D in f16 are those of
/// floats.
void scaled_mma(const ScaledMma& mma, ScaledMmaFragments& fragments);

}  // namespace blockscale::emulator::meaning
