// Shapes of launches whose blocks take one piece of work after the other.
#pragma once

#include <algorithm>
#include <cstdint>

#include "blockscale/device.h"
#include "core/launch_shape.h"

namespace blockscale::moe_detail {

/// As many blocks as there is work for, but no more than a chip has at once.
inline std::uint32_t blocks_for(std::int64_t parts, int of_multiprocessor, const cuda::Chip& chip) {
  const std::int64_t most = std::int64_t{chip.multiprocessors} * of_multiprocessor;
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(parts, 1, most));
}

inline LaunchShape shape_of(std::uint32_t blocks, std::uint32_t threads,
                            std::uint32_t shared_bytes = 0) {
  LaunchShape shape;
  shape.grid = {blocks};
  shape.block = {threads};
  shape.dynamic_shared_bytes = shared_bytes;
  shape.programmatic_dependent_launch = true;
  return shape;
}

}  // namespace blockscale::moe_detail
