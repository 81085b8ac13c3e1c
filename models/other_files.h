// Files of a model folder that hold no weights of the checkpoint: tokenizer, README, subfolders.
#pragma once

#include <filesystem>
#include <set>
#include <string>

#include "blockscale/safetensors.h"

namespace blockscale::models {

/// Copies everything in the source's folder but its safetensors files and index, weights in other
/// files (pytorch_model.bin and its kind), configuration files in `written`, .git, .cache, and what
/// other conversions left. A link is followed where it stays in the folder or leads to the blobs of
/// a Hugging Face cache; elsewhere corrupt_file is thrown. Copies are flushed to the disk.
void copy_other_files(const TensorStore& source, const std::set<std::string>& written,
                      const std::filesystem::path& destination);

}  // namespace blockscale::models
