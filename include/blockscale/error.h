// The one exception type of the library.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace blockscale {

/// Kind of an error; decides the Python exception and the exit code of the CLI.
enum class ErrorCode {
  invalid_argument,  // a value, shape, stride, alignment or combination that is not allowed
  unsupported,       // valid in itself, but no implementation exists here (device, recipe pair)
  not_found,         // a file, tensor or GPU that is not there
  already_exists,    // a destination that would be overwritten
  corrupt_file,      // untrusted input that breaks its format's rules
  io,                // the operating system refused: permission, no space, ...
  nonfinite,         // NaN or Inf where the caller asked to refuse them
  interrupted,       // the caller asked to stop
  device,            // the GPU's driver refused or failed; the message holds its text
  compile_failed,    // a kernel does not compile; the message holds the compiler's log
};

/// Stable lower-case name of a code, e.g. "invalid_argument".
const char* error_code_name(ErrorCode code) noexcept;

/// What every public function throws. `argument()` names the argument (or file) at fault; `what()`
/// is one line with its name, its value and what is allowed; the compiler's log follows it where
/// the code is compile_failed.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, std::string argument, std::string_view message);

  ErrorCode code() const noexcept { return code_; }
  const std::string& argument() const noexcept { return argument_; }

 private:
  ErrorCode code_;
  std::string argument_;
};

}  // namespace blockscale
