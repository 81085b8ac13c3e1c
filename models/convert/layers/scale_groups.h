// Weights that share a tensor scale, because an engine fuses their layers into one.
#pragma once

#include "models/convert/plan.h"

namespace blockscale::models {

/// Sets Plan::groups, of planned tensors that are quantized anew with one scale each, and each
/// tensor's `group`.
void find_groups(Plan& plan, const ConvertOptions& options);

}  // namespace blockscale::models
