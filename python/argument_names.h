// What Python calls the arguments of the library, in errors.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>

#include "blockscale/error.h"

namespace blockscale::python {

namespace nb = nanobind;

/// What Python calls an argument of the library: options are arguments of their own, what is fused
/// is "transform", and D is "out".
std::string python_name(const std::string& argument);

/// Calls `call`, without the GIL; errors name arguments as Python does.
template <class Call>
auto with_python_names(const Call& call) {
  try {
    const nb::gil_scoped_release release;
    return call();
  } catch (const Error& error) {
    const std::string name = python_name(error.argument());
    if (name == error.argument()) throw;
    const std::string_view text = error.what();
    throw Error(error.code(), name, text.substr(error.argument().size() + 2));
  }
}

}  // namespace blockscale::python
