// Floats that a conversion leaves in a dtype which no recipe has.
#pragma once

#include <string>
#include <vector>

#include "models/convert/plan.h"

namespace blockscale::models {

/// A warning for each such dtype (F64, 8-bit floats, ...) that stays in a result of another one;
/// none where nothing changes at all.
std::vector<std::string> staying_dtypes(const Plan& plan);

}  // namespace blockscale::models
