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

}  // namespace blockscale
