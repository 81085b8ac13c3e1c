// What the commands of `blockscale bench` share.
#pragma once

#include <cstdint>
#include <string>

#include "command.h"
#include "output.h"
#include "table.h"

namespace blockscale::cli {

int parse_repeats(const std::string& text);
/// Rows or columns of a matrix.
std::int64_t parse_size(const std::string& text);

ExitCode print_result(const Json& json, const std::string& text, bool as_json);
ExitCode print_result(const Json& json, const Table& table, bool as_json);

void add_quantize(CLI::App& bench, Action& action);
void add_dequantize(CLI::App& bench, Action& action);
void add_copy(CLI::App& bench, Action& action);

}  // namespace blockscale::cli
