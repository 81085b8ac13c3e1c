// The memory of a call's arguments, by name: for checks that nothing that is written lies
// elsewhere.
#pragma once

#include <string>
#include <vector>

#include "ops/common/overlap.h"

namespace blockscale {

/// Memory of one argument.
struct Region {
  std::string argument;
  MemoryLines lines;
};

/// Throws invalid_argument, naming `written`, if it shares a byte with the other, or one of them.
void check_apart(const Region& written, const Region& other);
void check_apart(const Region& written, const std::vector<Region>& others);

}  // namespace blockscale
