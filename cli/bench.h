// What the commands of `blockscale bench` share.
#pragma once

#include <string>

#include "command.h"

namespace blockscale::cli {

int parse_repeats(const std::string& text);

void add_copy(CLI::App& bench, Action& action);

}  // namespace blockscale::cli
