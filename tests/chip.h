// Chips that plans of tests are made for.
#pragma once

#include "blockscale/device.h"

namespace blockscale::test {

/// An H200 with other multiprocessors than it has: few of them take few tiles at a time.
inline cuda::Chip chip_of(int multiprocessors) {
  cuda::Chip chip;
  chip.multiprocessors = multiprocessors;
  return chip;
}

}  // namespace blockscale::test
