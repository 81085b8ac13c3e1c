#include "blockscale/error.h"

#include <utility>

namespace blockscale {

const char* error_code_name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid_argument: return "invalid_argument";
    case ErrorCode::unsupported: return "unsupported";
    case ErrorCode::not_found: return "not_found";
    case ErrorCode::already_exists: return "already_exists";
    case ErrorCode::corrupt_file: return "corrupt_file";
    case ErrorCode::io: return "io";
    case ErrorCode::nonfinite: return "nonfinite";
    case ErrorCode::interrupted: return "interrupted";
    case ErrorCode::device: return "device";
    case ErrorCode::compile_failed: return "compile_failed";
  }
  return "unknown";
}

Error::Error(ErrorCode code, std::string argument, std::string_view message)
    : std::runtime_error(argument.empty() ? std::string(message)
                                          : argument + ": " + std::string(message)),
      code_(code),
      argument_(std::move(argument)) {}

}  // namespace blockscale
