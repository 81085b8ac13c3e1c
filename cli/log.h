// Logging of the command line: spdlog to standard error, at the level that BLOCKSCALE_LOG names.
#pragma once

#include <string>

namespace blockscale::cli {

/// Makes the default logger write to standard error. Throws UsageError for an unknown level.
void set_up_log();

/// The level in force.
std::string current_log_level();

}  // namespace blockscale::cli
