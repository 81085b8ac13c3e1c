// The kernel of tests/two_places.h as NVRTC compiles it.
#pragma once

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "runtime/kernel_sources.h"
#include "runtime/kernel_spec.h"
#include "tests/two_places.h"

namespace blockscale::test {

inline constexpr uint32_t kTwoPlacesWarps = 16;

/// The embedded sources, and that header.
inline runtime::SourceTree two_places_sources() {
  static const std::string text = [] {  // which the tree does not copy
    std::stringstream stream;
    stream << std::ifstream(std::filesystem::path(BLOCKSCALE_SOURCE_DIR) / "tests/two_places.h")
                  .rdbuf();
    return stream.str();
  }();
  runtime::SourceTree tree = runtime::embedded_sources();
  tree.add("tests/two_places.h", text);
  return tree;
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
