// What Python calls the arguments of the library, in errors.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "blockscale/error.h"

namespace blockscale::python {

namespace nb = nanobind;

/// What Python calls an argument of the library: options are arguments of their own, what is fused
/// is "transform", and D is "out".
std::string python_name(const std::string& argument);

/// A python_name.
using NameOf = std::string(const std::string& argument);

/// The same error with Python's names: of its argument, and of those that its text speaks of.
Error with_python_names(const Error& error, NameOf* name_of = python_name);

/// Calls `call`, without the GIL; errors name arguments as Python does.
template <class Call>
auto with_python_names(const Call& call, NameOf* name_of = python_name) {
  try {
    const nb::gil_scoped_release release;
    return call();
  } catch (const Error& error) {
    throw with_python_names(error, name_of);
  }
}

}  // namespace blockscale::python
