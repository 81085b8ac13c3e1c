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

/// What a call writes, and what it only reads.
struct CallRegions {
  std::vector<Region> written, read;

  std::vector<Region> all() const;
  /// Throws invalid_argument if anything that is written shares a byte with anything else.
  void check_apart() const;
};

/// `for_each_memory` has the visitor that it is given go through a call's memory: an operation's
/// for_each_memory (call_memory.h) of the call's arguments.
template <class ForEachMemory>
CallRegions call_regions(const ForEachMemory& for_each_memory) {
  CallRegions regions;
  for_each_memory([&](const char* argument, auto access, const void*, const auto& lines) {
    const bool is_written = access == decltype(access)::writes;
    (is_written ? regions.written : regions.read).push_back({argument, lines()});
  });
  return regions;
}

}  // namespace blockscale
