// The process's exit codes: one table, printed by --help and checked against docs/cli.md.
#pragma once

#include <array>
#include <string>

#include "blockscale/error.h"

namespace blockscale::cli {

enum class ExitCode : int {
  success = 0,
  internal = 1,
  usage = 2,
  invalid_argument = 3,
  unsupported = 4,
  not_found = 5,
  already_exists = 6,
  corrupt_file = 7,
  io = 8,
  nonfinite = 9,
  check_failed = 10,
  device = 11,
  compile_failed = 12,
  interrupted = 130,
};

struct ExitCodeEntry {
  ExitCode code;
  const char* name;
  const char* meaning;
};

inline constexpr std::array kExitCodes = {
    ExitCodeEntry{ExitCode::success, "success", "the command did what it was asked"},
    ExitCodeEntry{ExitCode::internal, "internal", "out of memory, or a defect of blockscale"},
    ExitCodeEntry{ExitCode::usage, "usage", "the command line, or BLOCKSCALE_LOG, is wrong"},
    ExitCodeEntry{ExitCode::invalid_argument, "invalid_argument",
                  "a value, shape or combination is not allowed"},
    ExitCodeEntry{ExitCode::unsupported, "unsupported",
                  "valid, but this build or device cannot do it"},
    ExitCodeEntry{ExitCode::not_found, "not_found", "a file, tensor, program or GPU is not there"},
    ExitCodeEntry{ExitCode::already_exists, "already_exists", "the destination exists"},
    ExitCodeEntry{ExitCode::corrupt_file, "corrupt_file", "a file breaks the rules of its format"},
    ExitCodeEntry{ExitCode::io, "io", "the system refused: permission, no space, closed output"},
    ExitCodeEntry{ExitCode::nonfinite, "nonfinite", "weights hold NaN or Inf"},
    ExitCodeEntry{ExitCode::check_failed, "check_failed", "a result is outside its error bound"},
    ExitCodeEntry{ExitCode::device, "device", "the GPU's driver refused or failed"},
    ExitCodeEntry{ExitCode::compile_failed, "compile_failed", "a kernel does not compile"},
    ExitCodeEntry{ExitCode::interrupted, "interrupted", "stopped by SIGINT or SIGTERM"},
};

/// The exit code of an error of the library.
ExitCode exit_code_of(ErrorCode code);

/// kExitCodes as text, for --help.
std::string exit_code_help();

}  // namespace blockscale::cli
