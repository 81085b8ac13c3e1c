// What the fuzzers of models/ share: promises that hold for every input.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string_view>

#include "blockscale/error.h"

namespace blockscale::fuzz {

/// The name that fuzzers give to their input.
constexpr char kFile[] = "fuzz.input";

/// Stops the fuzzer if a promise is broken.
inline void require(bool condition, const char* promise) {
  if (condition) return;
  std::cerr << "broken promise: " << promise << "\n";
  std::abort();
}

/// What the message of every error is like.
inline void check_message(const Error& error) {
  const std::string_view text = error.what();
  require(text.size() < 1000, "errors are short");
  require(std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; }),
          "errors are one printable line");
}

/// What every refusal of an untrusted file is like.
inline void check_refused(const Error& error) {
  require(error.code() == ErrorCode::corrupt_file, "only corrupt_file is thrown");
  require(error.argument() == kFile, "errors name the file");
  check_message(error);
}

}  // namespace blockscale::fuzz
