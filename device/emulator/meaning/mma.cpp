// The arithmetic of mma.sync, a warp's tile at a time.
#include "device/emulator/meaning/mma.h"

#include "device/emulator/meaning/wgmma.h"

namespace blockscale::emulator::meaning {
namespace {

template <Format kFormat>
void multiply(MmaFragments& fragments) {
  constexpr uint32_t kBits = static_cast<uint32_t>(format_traits(kFormat).bits);
  constexpr uint32_t kK = kMmaBytes * 8 / kBits;
  float a[kMmaRows][kK];
  double b[kK][kMmaColumns];
  /// put(k, value) for each element of the word that begins at byte `byte` of a row.
  const auto decode_word = [](uint32_t word, uint32_t byte, const auto& put) {
    for (uint32_t i = 0; i < 32 / kBits; ++i) {
      put(byte * 8 / kBits + i, decode<kFormat>(word >> kBits * i & ((1u << kBits) - 1)));
    }
  };
  for (uint32_t lane = 0; lane < kMmaLanes; ++lane) {
    for (uint32_t i = 0; i < 4; ++i) {
      const MmaPlace place = mma_place_of_a(lane, i);
      decode_word(fragments.a[lane][i], place.column,
                  [&](uint32_t k, float value) { a[place.row][k] = value; });
    }
    for (uint32_t i = 0; i < 2; ++i) {
      const MmaPlace place = mma_place_of_b(lane, i);
      decode_word(fragments.b[lane][i], place.column,
                  [&](uint32_t k, float value) { b[k][place.row] = static_cast<double>(value); });
    }
  }
  double sums[kMmaRows][kMmaColumns] = {};
  for (uint32_t row = 0; row < kMmaRows; ++row) {
    for (uint32_t k = 0; k < kK; ++k) {
      const double factor = static_cast<double>(a[row][k]);
      for (uint32_t column = 0; column < kMmaColumns; ++column) {
        sums[row][column] += factor * b[k][column];
      }
    }
  }
  for (uint32_t lane = 0; lane < kMmaLanes; ++lane) {
    for (uint32_t i = 0; i < 4; ++i) {
      const MmaPlace place = mma_place_of_d(lane, i);
      float& d = fragments.d[lane][i];
      d = wgmma_accumulate(d, sums[place.row][place.column]);
    }
  }
}

}  // namespace

void mma(Format format, MmaFragments& fragments) {
  switch (format) {
    case Format::f16: return multiply<Format::f16>(fragments);
    case Format::bf16: return multiply<Format::bf16>(fragments);
    case Format::e4m3: return multiply<Format::e4m3>(fragments);
    default: return multiply<Format::e5m2>(fragments);
  }
}

}  // namespace blockscale::emulator::meaning
