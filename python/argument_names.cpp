#include "argument_names.h"

namespace blockscale::python {

std::string python_name(const std::string& argument) {
  constexpr std::string_view kFused = "options.input.";
  if (argument == "options.fp8_amax_floor") return "amax_floor";
  if (argument == "options.channel_weights") return "channel_weights";
  if (argument == "options.channel_means") return "channel_means";
  if (argument == "options.scale_choice") return "scale_choice";
  if (argument == "alpha_factor") return "alpha";
  if (argument == "c.data") return "c";
  if (argument == "d" || argument == "d.data") return "out";
  if (argument.starts_with("d.")) return "out." + argument.substr(2);
  constexpr std::string_view kQuantized = "quantized.";
  if (argument == "quantized.options.input") return "transform";
  if (argument.starts_with(kQuantized)) return python_name(argument.substr(kQuantized.size()));
  if (argument.starts_with(kFused)) return "transform." + argument.substr(kFused.size());
  return argument;
}

}  // namespace blockscale::python
