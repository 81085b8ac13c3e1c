// *.safetensors.index.json: which shard holds which tensor.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace blockscale {

constexpr std::string_view kIndexSuffix = ".safetensors.index.json";
constexpr std::string_view kDiffusersIndex = "diffusion_pytorch_model.safetensors.index.json";

/// Tensor name -> shard, a plain file name in the folder of the index.
using TensorIndex = std::map<std::string, std::string>;

/// Throws corrupt_file naming `file` and the reason: JSON, no weight_map, names that are no text,
/// shards that are no plain `*.safetensors` file names (folders, "..", absolute paths).
TensorIndex parse_index(std::string_view text, const std::string& file);
TensorIndex read_index(const std::filesystem::path& path);

/// Whether two files hold the same bytes: one index under two names. False if one of them is no
/// regular file that can be read.
bool are_equal_indices(const std::filesystem::path& a, const std::filesystem::path& b);

}  // namespace blockscale
