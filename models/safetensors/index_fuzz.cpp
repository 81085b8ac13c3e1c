// libFuzzer: *.safetensors.index.json, whatever its bytes.
#include "models/fuzzing.h"
#include "models/safetensors/index_file.h"

namespace blockscale {
namespace {

using fuzz::require;

/// Opening a shard must stay in the folder of the index.
void check_accepted(const TensorIndex& index) {
  const std::filesystem::path folder = "/checkpoint";
  for (const auto& [name, shard] : index) {
    const std::filesystem::path path = folder / shard;
    require(path.lexically_normal() == path && path.parent_path() == folder,
            "shards lie in the folder");
    require(path.extension() == ".safetensors" && shard.find('\0') == std::string::npos,
            "shards are safetensors files");
  }
}

}  // namespace
}  // namespace blockscale

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    blockscale::check_accepted(blockscale::parse_index(text, blockscale::fuzz::kFile));
  } catch (const blockscale::Error& error) {
    blockscale::fuzz::check_refused(error);
  }
  return 0;
}
