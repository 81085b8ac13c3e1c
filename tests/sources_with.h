// Kernels of tests, in headers of tests/ that the emulator and NVRTC both compile.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "runtime/kernels/kernel_sources.h"

namespace blockscale::test {

/// The embedded sources, and `header`, a path in this tree.
inline runtime::SourceTree sources_with(const std::string& header) {
  static std::map<std::string, std::string> texts;  // which trees do not copy
  std::stringstream text;
  text << std::ifstream(std::filesystem::path(BLOCKSCALE_SOURCE_DIR) / header).rdbuf();
  const auto& [path, kept] = *texts.try_emplace(header, text.str()).first;
  runtime::SourceTree tree = runtime::embedded_sources();
  tree.add(path, kept);
  return tree;
}

}  // namespace blockscale::test
