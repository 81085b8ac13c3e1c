// What a command is: options added to the parser, and an action that runs once parsing is done.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <stdexcept>

#include "exit_code.h"

namespace blockscale::cli {

/// Set by the command that was asked for. Throws Error, UsageError or std::bad_alloc.
using Action = std::function<ExitCode()>;

/// Options that each parse but make no sense together.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void add_convert(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_compare(CLI::App& app, Action& action);
void add_gemm(CLI::App& app, Action& action);
void add_moe(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_kernels(CLI::App& app, Action& action);
void add_doctor(CLI::App& app, Action& action);

}  // namespace blockscale::cli
