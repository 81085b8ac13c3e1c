// Standard output and the one-line errors on standard error.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace blockscale::cli {

/// Keeps keys in the order they are written.
using Json = nlohmann::ordered_json;

void print(std::string_view text);
/// Whether colours may be written there: to a terminal that has them, unless NO_COLOR is set
/// (no-color.org).
bool has_colour(std::FILE* stream);
/// One object, indented, with a newline at its end. NaN and infinities become null.
std::string json_text(const Json& json);
void print_json(const Json& json);

/// Throws Error(io) if something that was printed did not reach standard output.
void finish_output();

/// "blockscale convert: error: MESSAGE" on one line of standard error. `command` may be empty.
void print_error(std::string_view command, std::string_view message);

}  // namespace blockscale::cli
