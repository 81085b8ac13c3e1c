// Whether what a conversion is about to write will be read as it is meant: asked before anything is
// written, of names, dtypes, shapes and configuration.
#pragma once

#include <map>
#include <string>

#include "models/convert/plan.h"

namespace blockscale::models {

/// Throws unsupported naming a tensor of the source that the destination's readers would take for
/// something else. `configurations`: texts of the destination's files by name.
void check_will_be_read(const Plan& plan, const std::map<std::string, std::string>& configurations);

}  // namespace blockscale::models
