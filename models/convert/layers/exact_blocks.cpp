#include "models/convert/layers/exact_blocks.h"

#include <algorithm>
#include <cstring>

namespace blockscale::models {
namespace {

constexpr int kBlockBytes = 16;  // of 32 codes
constexpr int kLowest = -9;      // exponents of e4m3's powers of two
constexpr int kHighest = 8;
constexpr int kLowestNormal = -6;
constexpr std::uint8_t kNan = 0xFF;

bool is_zero(const std::byte* codes) {
  std::uint64_t words[2];
  std::memcpy(words, codes, sizeof words);
  return ((words[0] | words[1]) & 0x7777777777777777u) == 0;  // but for signs
}

std::byte e4m3_power(int exponent) {
  const int code = exponent >= kLowestNormal ? (exponent + 7) << 3 : 1 << (exponent - kLowest);
  return static_cast<std::byte>(code);
}

/// Calls visit(block, codes, scale byte) for every block of `rows`.
template <class Visit>
std::int64_t for_each_block(const ScaledTensorView& rows, const Visit& visit) {
  const std::int64_t blocks = rows.rows * rows.k / 32;
  const auto* codes = static_cast<const std::byte*>(rows.values);
  const auto* scales = static_cast<const std::uint8_t*>(rows.scales);
  for (std::int64_t i = 0; i < blocks; ++i) visit(i, codes + i * kBlockBytes, scales[i]);
  return blocks;
}

}  // namespace

std::optional<int> largest_exponent(const ScaledTensorView& rows) {
  int largest = -1;
  for_each_block(rows, [&](std::int64_t, const std::byte* codes, std::uint8_t scale) {
    if (scale != kNan && int{scale} > largest && !is_zero(codes)) largest = scale;
  });
  if (largest < 0) return std::nullopt;
  return largest - 127;
}

int exact_tensor_exponent(std::optional<int> largest) {
  constexpr int kLeast = -126;  // its inverse is finite
  return largest ? std::max(*largest - kHighest, kLeast) : 0;
}

BlockCount keep_exact_blocks(const ScaledTensorView& rows, int tensor_exponent, std::byte* values,
                             std::byte* scales) {
  BlockCount count;
  count.all = for_each_block(rows, [&](std::int64_t i, const std::byte* codes, std::uint8_t scale) {
    if (scale == kNan) return;
    const int exponent = int{scale} - 127 - tensor_exponent;
    const bool fits = exponent >= kLowest && exponent <= kHighest;
    if (!fits && !is_zero(codes)) return;
    std::memcpy(values + i * kBlockBytes, codes, kBlockBytes);
    scales[2 * i] = scales[2 * i + 1] = fits ? e4m3_power(exponent) : std::byte{0};
    ++count.exact;
  });
  return count;
}

}  // namespace blockscale::models
