// Which files a checkpoint may lead to, and the layout of a Hugging Face cache:
//
//   models--ORG--NAME/refs/main               text: the REVISION of that branch
//   models--ORG--NAME/snapshots/REVISION/...  links into ../../blobs
//   models--ORG--NAME/blobs/                  the files' contents
#pragma once

#include <filesystem>

namespace blockscale {

/// Throws corrupt_file if `file` is, or lies behind, a link that leaves `folder`, so that a
/// checkpoint from elsewhere cannot pull private files in. It may lead to a file within `folder`
/// or, if that is a snapshot of a Hugging Face cache, to one of the cache's blobs.
void check_contained(const std::filesystem::path& file, const std::filesystem::path& folder);

/// Whether `path` is `folder` or lies below it, both without links.
bool is_within(const std::filesystem::path& path, const std::filesystem::path& folder);

/// `named`, or the snapshot if it is a model of a Hugging Face cache (models--ORG--NAME): that of
/// refs/main, or the only one. Throws not_found, invalid_argument (several), corrupt_file.
std::filesystem::path resolve_source(const std::filesystem::path& named);

}  // namespace blockscale
