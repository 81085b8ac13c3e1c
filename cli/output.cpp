#include "output.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "blockscale/error.h"
#include "text.h"

namespace blockscale::cli {

void print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

bool has_colour(std::FILE* stream) {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string_view(value == nullptr ? "" : value);
  };
  const std::string_view terminal = variable("TERM");
  return variable("NO_COLOR").empty() && !terminal.empty() && terminal != "dumb" &&
         isatty(fileno(stream)) != 0;
}

std::string json_text(const Json& json) {
  // File names and tensor names need not be UTF-8; JSON must be.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void print_json(const Json& json) {
  print(json_text(json));
}

void finish_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw Error(ErrorCode::io, "standard output",
                "cannot be written; check its disk, or the program that reads it");
  }
}

void print_error(std::string_view command, std::string_view message) {
  std::string line = "blockscale";
  if (!command.empty()) line += " " + std::string(command);
  std::string one_line(message);
  std::replace(one_line.begin(), one_line.end(), '\n', ' ');
  line += ": error: " + printable(one_line) + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace blockscale::cli
