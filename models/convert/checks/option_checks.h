// Options that mean nothing for what is asked for are errors, so that nobody believes they had an
// effect.
#pragma once

#include "blockscale/convert.h"
#include "models/convert/plan.h"

namespace blockscale::models {

/// Those that go with a family of recipes; any recipe that is asked for counts. Throws
/// invalid_argument.
void check_recipe_options(const ConvertOptions& options);

/// Those that go with something the plan does.
void check_plan_options(const ConvertOptions& options, const Plan& plan);

}  // namespace blockscale::models
