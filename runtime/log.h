// What the library says beside results and errors: to standard error, which no command's output is
// read from.
#pragma once

#include <spdlog/spdlog.h>

#include <memory>

namespace blockscale::runtime {

/// The application's spdlog logger "blockscale", if it has registered one; else the library's own,
/// from warnings on.
std::shared_ptr<spdlog::logger> log();

}  // namespace blockscale::runtime
