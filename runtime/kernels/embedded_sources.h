// The table that cmake/embed_kernel_sources.cmake generates.
#pragma once

#include <span>
#include <string_view>

namespace blockscale::runtime {

struct EmbeddedSource {
  std::string_view path;
  std::string_view text;
};

std::span<const EmbeddedSource> embedded_source_files();

}  // namespace blockscale::runtime
