// Chips that plans of tests are made for.
#pragma once

#include <vector>

#include "blockscale/device.h"

namespace blockscale::test {

/// An H200 with other multiprocessors than it has: few of them take few tiles at a time.
inline cuda::Chip chip_of(int multiprocessors) {
  cuda::Chip chip;
  chip.multiprocessors = multiprocessors;
  return chip;
}

/// An RTX 5090, likewise.
inline cuda::Chip sm120_of(int multiprocessors) {
  cuda::Chip chip = cuda::chip_named("RTX 5090");
  chip.multiprocessors = multiprocessors;
  return chip;
}

/// One of each architecture that kernels are compiled for.
inline std::vector<cuda::Chip> chips_of_every_architecture() {
  std::vector<cuda::Chip> chips;
  for (const char* const name : {"H200", "B200", "RTX 5090"}) {
    chips.push_back(cuda::chip_named(name));
  }
  return chips;
}

}  // namespace blockscale::test
