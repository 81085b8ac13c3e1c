// The layer's steps on the CPU: its own, and all of them.
#pragma once

#include "ops/moe/layer.h"

namespace blockscale::moe_detail {

void join_scales(const JoinedScales& x, int threads);
void weigh(const WeighArguments& x, int threads);
void finalize(const FinalizeArguments& x, int threads);

/// All calls of a part.
void run_part(const LayerPart& part, int threads);

}  // namespace blockscale::moe_detail
