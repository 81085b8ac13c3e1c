// The kernel of tests/two_places.h as NVRTC compiles it.
#pragma once

#include <string>

#include "runtime/kernel_spec.h"
#include "tests/sources_with.h"
#include "tests/two_places.h"

namespace blockscale::test {

inline constexpr uint32_t kTwoPlacesWarps = 16;

inline runtime::SourceTree two_places_sources() {
  return sources_with("tests/two_places.h");
}

/// `who`: a name of WhoArrives.
inline runtime::KernelSpec two_places_spec(const std::string& who) {
  const std::string space = "blockscale::test::";
  return runtime::with_parameters<TwoPlacesParams>(
      {.name = "two_places_" + who,
       .header = "tests/two_places.h",
       .call = space + "tell_each_other<2, " + space + "WhoArrives::" + who + ">",
       .threads = 32 * static_cast<int>(kTwoPlacesWarps)},
      space + "TwoPlacesParams");
}

}  // namespace blockscale::test
