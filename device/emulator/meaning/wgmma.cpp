// The arithmetic of wgmma.mma_async, a tile at a time.
#include "device/emulator/meaning/wgmma.h"

#include <cstring>

namespace blockscale::emulator::meaning {
namespace {

template <Format kFormat>
std::array<float, 256> table() {
  std::array<float, 256> values;
  for (uint32_t code = 0; code < 256; ++code) values[code] = decode<kFormat>(code);
  return values;
}

/// put(k, value) for each element of the 32 bytes.
template <class Put>
void decode_row(Format format, const std::byte* bytes, const Put& put) {
  static const std::array<float, 256> e4m3 = table<Format::e4m3>(), e5m2 = table<Format::e5m2>();
  if (format_traits(format).bits == 8) {
    const std::array<float, 256>& values = format == Format::e4m3 ? e4m3 : e5m2;
    for (uint32_t k = 0; k < kWgmmaBytes; ++k) put(k, values[static_cast<uint8_t>(bytes[k])]);
    return;
  }
  for (uint32_t k = 0; k < kWgmmaBytes / 2; ++k) {
    uint16_t code = 0;
    std::memcpy(&code, bytes + 2 * k, sizeof(code));
    put(k, format == Format::f16 ? decode<Format::f16>(code) : decode<Format::bf16>(code));
  }
}

using Lanes [[gnu::vector_size(32), gnu::may_alias]] = double;

[[gnu::always_inline]] inline void multiply(uint32_t n, uint32_t k, WgmmaTiles& tiles) {
  constexpr uint32_t kRows = 4;  // of D that one pass keeps in registers, of 8 columns
  for (uint32_t group = 0; group < n / 8; ++group) {
    for (uint32_t first = 0; first < kWgmmaRows; first += kRows) {
      Lanes sums[kRows][2] = {};
      for (uint32_t i = 0; i < k; ++i) {
        const auto* const b = reinterpret_cast<const Lanes*>(tiles.b[group][i]);
        for (uint32_t row = 0; row < kRows; ++row) {
          sums[row][0] += tiles.a[first + row][i] * b[0];
          sums[row][1] += tiles.a[first + row][i] * b[1];
        }
      }
      for (uint32_t row = 0; row < kRows; ++row) {
        auto* const to = reinterpret_cast<Lanes*>(tiles.sums[group][first + row]);
        to[0] = sums[row][0];
        to[1] = sums[row][1];
      }
    }
  }
}

#if defined(__x86_64__)
/// The same sums, four at a time.
[[gnu::target("avx2")]] void multiply_avx2(uint32_t n, uint32_t k, WgmmaTiles& tiles) {
  multiply(n, k, tiles);
}
#endif

}  // namespace

void wgmma_decode_a(Format format, const std::byte* rows, WgmmaTiles& tiles) {
  for (uint32_t row = 0; row < kWgmmaRows; ++row) {
    decode_row(format, rows + kWgmmaBytes * row,
               [&](uint32_t k, float value) { tiles.a[row][k] = static_cast<double>(value); });
  }
}

void wgmma_decode_b(Format format, const std::byte* rows, uint32_t n, WgmmaTiles& tiles) {
  for (uint32_t row = 0; row < n; ++row) {
    decode_row(format, rows + kWgmmaBytes * row, [&](uint32_t k, float value) {
      tiles.b[row / 8][k][row % 8] = static_cast<double>(value);
    });
  }
}

void wgmma_multiply(uint32_t n, uint32_t k, WgmmaTiles& tiles) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return multiply_avx2(n, k, tiles);
#endif
  multiply(n, k, tiles);
}

}  // namespace blockscale::emulator::meaning
