// What mma.sync.m16n8k16 (16-bit elements) and m16n8k32 (8-bit) compute: a pure function. PTX ISA
// "Matrix Fragments for mma.m16n8k16 with floating point type", "... for mma.m16n8k32".
#pragma once

#include <array>
#include <cstdint>

#include "core/format.h"

namespace blockscale::emulator::meaning {

inline constexpr uint32_t kMmaLanes = 32;
inline constexpr uint32_t kMmaRows = 16;    // of A and D
inline constexpr uint32_t kMmaColumns = 8;  // of D: rows of B
inline constexpr uint32_t kMmaBytes = 32;   // of a row of A and B: one product's k

/// ptx::MmaElement, in its order.
inline constexpr std::array<Format, 4> kMmaFormats = {Format::f16, Format::bf16, Format::e4m3,
                                                      Format::e5m2};

/// A word of A or B: its row, and the first of its 4 bytes. A value of D: its row and column.
struct MmaPlace {
  uint32_t row;
  uint32_t column;
};
constexpr MmaPlace mma_place_of_a(uint32_t lane, uint32_t i) {
  return {lane / 4 + 8 * (i % 2), 4 * (lane % 4) + 16 * (i / 2)};
}
constexpr MmaPlace mma_place_of_b(uint32_t lane, uint32_t i) {
  return {lane / 4, 4 * (lane % 4) + 16 * i};
}
constexpr MmaPlace mma_place_of_d(uint32_t lane, uint32_t i) {
  return {lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2};
}

/// The fragments of a warp's lanes.
struct MmaFragments {
  uint32_t a[kMmaLanes][4];
  uint32_t b[kMmaLanes][2];
  float d[kMmaLanes][4];
};

/// d += a * b^T. Sums are those of wgmma_accumulate: exact, and rounded once for the instruction.
void mma(Format format, MmaFragments& fragments);

}  // namespace blockscale::emulator::meaning
