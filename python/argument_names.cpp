#include "argument_names.h"

#include <algorithm>
#include <string_view>

namespace blockscale::python {
namespace {

/// `text` with each of its words, which may be a name of the library's, as Python has it.
std::string with_python_words(std::string_view text, NameOf* name_of) {
  constexpr std::string_view kInNames =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.";
  std::string result;
  while (!text.empty()) {
    const std::size_t begin = std::min(text.find_first_of(kInNames), text.size());
    result += text.substr(0, begin);
    text.remove_prefix(begin);
    const std::size_t end = std::min(text.find_first_not_of(kInNames), text.size());
    const std::size_t last = text.substr(0, end).find_last_not_of('.');
    const std::size_t size = last == std::string_view::npos ? 0 : last + 1;
    result += name_of(std::string(text.substr(0, size)));
    result += text.substr(size, end - size);
    text.remove_prefix(end);
  }
  return result;
}

}  // namespace

std::string python_name(const std::string& argument) {
  constexpr std::string_view kFused = "options.input.";
  if (argument == "options.fp8_amax_floor") return "amax_floor";
  if (argument == "options.channel_weights") return "channel_weights";
  if (argument == "options.channel_means") return "channel_means";
  if (argument == "options.scale_choice") return "scale_choice";
  if (argument == "alpha_factor" || argument == "alpha_factors") return "alpha";
  if (argument == "adds") return "add";
  if (argument == "c.data") return "c";
  if (argument == "d" || argument == "d.data") return "out";
  if (argument.starts_with("d.")) return "out." + argument.substr(2);
  constexpr std::string_view kQuantized = "quantized.";
  if (argument == "quantized.options.input") return "transform";
  if (argument.starts_with(kQuantized)) return python_name(argument.substr(kQuantized.size()));
  if (argument.starts_with(kFused)) return "transform." + argument.substr(kFused.size());
  return argument;
}

Error with_python_names(const Error& error, NameOf* name_of) {
  const std::string& argument = error.argument();
  const std::size_t prefix = argument.empty() ? 0 : argument.size() + 2;  // "argument: "
  const std::string_view text = std::string_view(error.what()).substr(prefix);
  // Other errors are of the driver and compiler, whose words are their own.
  const bool is_of_arguments =
      error.code() == ErrorCode::invalid_argument || error.code() == ErrorCode::unsupported;
  return {error.code(), name_of(argument),
          is_of_arguments ? with_python_words(text, name_of) : std::string(text)};
}

}  // namespace blockscale::python
