#include "models/safetensors/index_file.h"

#include <algorithm>

#include "blockscale/error.h"
#include "blockscale/files.h"
#include "models/json_file.h"
#include "models/text.h"

namespace blockscale {
namespace {

constexpr JsonLimits kIndexLimits{.bytes = std::uint64_t{64} << 20, .depth = 16};

bool is_plain_shard_name(const std::string& name) {
  return name.ends_with(".safetensors") && !name.starts_with('.') &&
         name.find_first_of("/\\") == std::string::npos && !has_control_character(name);
}

}  // namespace

TensorIndex parse_index(std::string_view text, const std::string& file) {
  const auto fail = [&](const std::string& reason) {
    throw Error(ErrorCode::corrupt_file, file, reason);
  };
  const nlohmann::json root = parse_json(text, file, kIndexLimits);
  if (!root.is_object() || !root.contains("weight_map") || !root["weight_map"].is_object()) {
    fail("an index must be a JSON object that holds an object \"weight_map\"");
  }
  TensorIndex index;
  for (const auto& [name, shard] : root["weight_map"].items()) {
    if (has_control_character(name)) {
      fail("tensor name " + quote(name) + " holds a control character");
    }
    if (!shard.is_string()) fail("the shard of tensor " + quote(name) + " must be a string");
    const auto& shard_name = shard.get_ref<const std::string&>();
    if (!is_plain_shard_name(shard_name)) {
      fail("the shard of tensor " + quote(name) + ", " + quote(shard_name) +
           ", must be the name of a .safetensors file in the folder of the index");
    }
    index.emplace_hint(index.end(), name, shard_name);
  }
  if (index.empty()) fail("\"weight_map\" names no tensor");
  return index;
}

TensorIndex read_index(const std::filesystem::path& path) {
  const MappedFile file = MappedFile::open(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  return parse_index(text, path.string());
}

bool are_equal_indices(const std::filesystem::path& a, const std::filesystem::path& b) {
  try {
    const MappedFile one = MappedFile::open(a), other = MappedFile::open(b);
    return std::ranges::equal(one.bytes(), other.bytes());
  } catch (const Error&) {
    return false;
  }
}

}  // namespace blockscale
