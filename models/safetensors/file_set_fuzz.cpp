// libFuzzer: names of files in a folder, one a line.
#include <cstdint>
#include <string>
#include <vector>

#include "models/fuzzing.h"
#include "models/safetensors/file_set.h"

namespace blockscale {
namespace {

using fuzz::require;

void check_chosen(const std::vector<std::string>& names, const std::vector<std::string>& chosen) {
  require(!chosen.empty(), "some file is chosen");
  for (const std::string& name : chosen) {
    require(std::count(names.begin(), names.end(), name) == 1, "chosen files are there");
    require(std::count(chosen.begin(), chosen.end(), name) == 1, "each is chosen once");
  }
  require(chosen == choose_files({names.rbegin(), names.rend()}, fuzz::kFile),
          "the order of a folder does not matter");
}

void check_refused(const Error& error) {
  require(error.code() == ErrorCode::not_found || error.code() == ErrorCode::invalid_argument,
          "what is missing or may be meant is said");
  require(error.argument() == fuzz::kFile, "errors name the folder");
  fuzz::check_message(error);
}

}  // namespace
}  // namespace blockscale

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::string> names;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  while (!rest.empty()) {
    const std::string name = std::string(rest.substr(0, rest.find('\n'))) + ".safetensors";
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    rest.remove_prefix(std::min(rest.size(), rest.find('\n')));
    if (!rest.empty()) rest.remove_prefix(1);
  }
  try {
    blockscale::check_chosen(names, blockscale::choose_files(names, blockscale::fuzz::kFile));
  } catch (const blockscale::Error& error) {
    blockscale::check_refused(error);
  }
  return 0;
}
