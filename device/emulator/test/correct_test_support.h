// Memory of the programs of correct_*_test.cpp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "device/emulator/test/planted_test_support.h"

namespace blockscale::emulator {

template <std::size_t N>
struct alignas(128) Words {
  std::array<uint32_t, N> at = {};
  uint32_t* data() { return at.data(); }
  const uint32_t* data() const { return at.data(); }
  std::size_t size() const { return N; }
};

/// 1, 2, 3, ...
template <std::size_t N>
Words<N> counting() {
  Words<N> words;
  std::iota(words.at.begin(), words.at.end(), 1u);
  return words;
}

}  // namespace blockscale::emulator
