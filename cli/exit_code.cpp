#include "exit_code.h"

#include <string_view>

namespace blockscale::cli {

ExitCode exit_code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument: return ExitCode::invalid_argument;
    case ErrorCode::unsupported: return ExitCode::unsupported;
    case ErrorCode::not_found: return ExitCode::not_found;
    case ErrorCode::already_exists: return ExitCode::already_exists;
    case ErrorCode::corrupt_file: return ExitCode::corrupt_file;
    case ErrorCode::io: return ExitCode::io;
    case ErrorCode::nonfinite: return ExitCode::nonfinite;
    case ErrorCode::interrupted: return ExitCode::interrupted;
    case ErrorCode::device: return ExitCode::device;
    case ErrorCode::compile_failed: return ExitCode::compile_failed;
  }
  return ExitCode::internal;
}

std::string exit_code_help() {
  std::string help = "Exit codes:\n";
  for (const ExitCodeEntry& entry : kExitCodes) {
    std::string number = std::to_string(static_cast<int>(entry.code));
    number.insert(0, 5 - number.size(), ' ');
    std::string name = entry.name;
    name.resize(18, ' ');
    help += number + "  " + name + entry.meaning + "\n";
  }
  return help;
}

}  // namespace blockscale::cli
