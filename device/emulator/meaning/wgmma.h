// What wgmma.mma_async computes, and from where: pure functions. PTX ISA "Asynchronous Warpgroup
// Level Matrix Instructions", "Matrix Descriptor Format".
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/format.h"
#include "core/tensor_map.h"
#include "device/emulator/meaning/swizzle.h"

namespace blockscale::emulator::meaning {

inline constexpr uint32_t kWgmmaThreads = 128;  // of a warpgroup
inline constexpr uint32_t kWgmmaRows = 64;      // of A and D
inline constexpr uint32_t kWgmmaBytes = 32;     // of a row of A and B: one product's k
inline constexpr uint32_t kWgmmaMaxN = 256;     // rows of B

/// ptx::WgmmaElement, in its order.
inline constexpr std::array<Format, 4> kWgmmaFormats = {Format::e4m3, Format::e5m2, Format::f16,
                                                        Format::bf16};

/// Whether A and B may hold these: 8-bit elements meet 8-bit ones, others their like.
constexpr bool wgmma_elements_meet(Format a, Format b) {
  return a == b || (format_traits(a).bits == 8 && format_traits(b).bits == 8);
}

/// Elements of k in one product.
constexpr uint32_t wgmma_k(Format format) {
  return kWgmmaBytes * 8 / static_cast<uint32_t>(format_traits(format).bits);
}

/// A matrix descriptor, taken apart.
struct WgmmaOperand {
  uint32_t start = 0;   // address of the first byte of the product's 32 of row 0, not swizzled
  uint32_t stride = 0;  // bytes from a group of 8 rows to the next
  uint32_t base_offset = 0;
  TensorMapSwizzle swizzle = TensorMapSwizzle::none;
  bool has_other_bits = false;  // which are to be 0
};

constexpr WgmmaOperand decode_wgmma_descriptor(uint64_t bits) {
  constexpr TensorMapSwizzle kModes[] = {TensorMapSwizzle::none, TensorMapSwizzle::bytes_128,
                                         TensorMapSwizzle::bytes_64, TensorMapSwizzle::bytes_32};
  constexpr uint64_t kOther = 0x3ull << 14 | 0x3ull << 30 | 0x7ull << 46 | 0x3FFull << 52;
  WgmmaOperand operand;
  operand.start = static_cast<uint32_t>(bits & 0x3FFF) << 4;
  operand.stride = static_cast<uint32_t>(bits >> 32 & 0x3FFF) << 4;
  operand.base_offset = static_cast<uint32_t>(bits >> 49 & 7);
  operand.swizzle = kModes[bits >> 62];
  operand.has_other_bits = (bits & kOther) != 0;
  return operand;
}

/// Whether the 32 bytes of row 0 begin at a multiple of 32 of a row, and that row at a multiple of
/// 8 rows, as the swizzle's pattern does.
constexpr bool wgmma_start_aligned(const WgmmaOperand& operand) {
  const uint32_t span = swizzle_span(operand.swizzle);
  return operand.start % kWgmmaBytes == 0 && operand.start % (8 * span) < span;
}

/// Address of byte `byte` (0 to 31) of row `row` of a K-major operand: bytes within 16 follow each
/// other.
constexpr uint32_t wgmma_address(const WgmmaOperand& operand, uint32_t row, uint32_t byte) {
  const uint32_t plain =
      operand.start + row / 8 * operand.stride + row % 8 * swizzle_span(operand.swizzle) + byte;
  return swizzle_address(plain, operand.swizzle);
}

/// Where thread `thread` of the warpgroup has value `i` of D.
struct WgmmaPlace {
  uint32_t row;
  uint32_t column;
};
constexpr WgmmaPlace wgmma_place_of_d(uint32_t thread, uint32_t i) {
  const uint32_t warp = thread / 32, lane = thread % 32;
  return {16 * warp + lane / 4 + 8 * (i / 2 % 2), 8 * (i / 4) + 2 * (lane % 4) + i % 2};
}

/// Where thread `thread` has word `i` of A: the row, and the first of the 4 bytes.
constexpr WgmmaPlace wgmma_place_of_a(uint32_t thread, uint32_t i) {
  const uint32_t warp = thread / 32, lane = thread % 32;
  return {16 * warp + lane / 4 + 8 * (i % 2), 4 * (lane % 4) + 16 * (i / 2)};
}

/// D's new value, of its old one and the sum of the products. Here the sum is exact (but for f16,
/// bf16 and e5m2 of very different magnitude) and the result rounded once. A Hopper aligns the
/// products and the old value to the largest of them, and cuts off what is shifted out: its last
/// bits differ. meaning/product_sums.h has rules for that.
inline float wgmma_accumulate(float old, double products) {
  const double sum = static_cast<double>(old) + products;
  return std::isnan(sum) ? bit_cast<float>(0x7FFFFFFFu) : static_cast<float>(sum);
}

/// Room for one product's decoded operands. B's rows, which are D's columns, lie in groups of 8.
struct alignas(32) WgmmaTiles {
  double a[kWgmmaRows][kWgmmaBytes];           // [row][k]
  double b[kWgmmaMaxN / 8][kWgmmaBytes][8];    // [row / 8][k][row % 8]
  double sums[kWgmmaMaxN / 8][kWgmmaRows][8];  // [column / 8][row][column % 8]
};

/// Rows of 32 bytes each, to tiles.a.
void wgmma_decode_a(Format format, const std::byte* rows, WgmmaTiles& tiles);
/// `n` rows, to tiles.b.
void wgmma_decode_b(Format format, const std::byte* rows, uint32_t n, WgmmaTiles& tiles);
/// sums = a * b, over `k` elements.
void wgmma_multiply(uint32_t n, uint32_t k, WgmmaTiles& tiles);

}  // namespace blockscale::emulator::meaning
