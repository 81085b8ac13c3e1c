// What the launches of a layer must move and multiply, and what that takes at least: for the text
// of plans.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "blockscale/device.h"
#include "blockscale/moe.h"
#include "ops/moe/cuda/plan.h"

namespace blockscale::moe_detail {

struct LaunchWork {
  std::string name;
  double bytes = 0;       // read and written, each once
  double operations = 0;  // of products: two a multiply-add
};

/// Of a part of validated arguments, if every id is of this device and none is more likely
/// than another: how many experts are hit, and what each step does then.
struct LayerWork {
  double experts_hit = 0;
  std::vector<LaunchWork> launches;
};
LayerWork work_of(const MoeArguments& validated, const MoeParts& parts);

/// One line for each launch: its bytes, its operations, and the longer of both in time on chips
/// whose rates are known (those of compute capability 9.0; operations only where `is_fp8`).
std::string text_of(const LayerWork& work, const cuda::Chip& chip, bool is_fp8);

}  // namespace blockscale::moe_detail
