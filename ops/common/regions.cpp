#include "ops/common/regions.h"

#include "blockscale/error.h"

namespace blockscale {

void check_apart(const Region& written, const Region& other) {
  if (!overlap(written.lines, other.lines)) return;
  throw Error(ErrorCode::invalid_argument, written.argument,
              "overlaps " + other.argument + ", must not share memory with it");
}

void check_apart(const Region& written, const std::vector<Region>& others) {
  for (const Region& other : others) check_apart(written, other);
}

std::vector<Region> CallRegions::all() const {
  std::vector<Region> regions = written;
  regions.insert(regions.end(), read.begin(), read.end());
  return regions;
}

void CallRegions::check_apart() const {
  for (std::size_t i = 0; i < written.size(); ++i) {
    blockscale::check_apart(written[i], read);
    for (std::size_t j = i + 1; j < written.size(); ++j) {
      blockscale::check_apart(written[i], written[j]);
    }
  }
}

}  // namespace blockscale
