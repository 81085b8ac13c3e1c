// Files of a model folder beside the checkpoint's own: tokenizer, README, subfolders, and the same
// weights in other forms, which stay behind unless they are asked for.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "blockscale/convert.h"
#include "blockscale/files.h"

namespace blockscale::models {

/// A file to copy, as it was when it was listed.
struct OtherFile {
  std::string path;  // within the folder
  struct stat status = {};
};

struct OtherFiles {
  std::vector<OtherFile> copied;
  std::vector<NotCopied> not_copied;
  /// Whether safetensors files are copied into the folder of the result, which then needs an index.
  bool needs_index = false;
};

/// Looks through the source's folder. Its safetensors files and index, what is in `written`, .git,
/// .cache and what other conversions left are neither copied nor listed. Weights in other forms
/// (the table in other_files.cpp) are copied with `copy_all` only, and where they would not hide a
/// file of `written`. A link is followed where it stays in the folder or leads to the blobs of a
/// Hugging Face cache; elsewhere corrupt_file is thrown. Throws io for files that cannot be read.
OtherFiles list_other_files(const TensorStore& source, const std::set<std::string>& written,
                            bool copy_all);

/// Copies `files` with their permissions, as far as the umask allows. Throws io for a file that is
/// not the one that was listed, or changes meanwhile.
void copy_other_files(const TensorStore& source, const std::vector<OtherFile>& files,
                      const Folder& destination);

}  // namespace blockscale::models
