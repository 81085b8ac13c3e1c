// Where a conversion may write: what is there, how it lies to the source, whether it has the space.
#pragma once

#include <cstdint>
#include <filesystem>

#include "blockscale/convert.h"
#include "blockscale/files.h"

namespace blockscale::models {

/// The destination without links, "." and trailing slashes. Throws invalid_argument, not_found.
std::filesystem::path normal_destination(const std::filesystem::path& destination);

/// Refuses (invalid_argument) a destination that is, holds or lies in something that is read:
/// `named`, the source as the user named it, `source`, or the file of activation scales.
void check_apart(const std::filesystem::path& destination, const std::filesystem::path& named,
                 const TensorStore& source, const ConvertOptions& options);

/// Refuses a destination that is there, or that `overwrite` should not replace: only regular files
/// and folders that are empty or hold a checkpoint are ever replaced. Throws already_exists, or
/// invalid_argument for a device, FIFO, socket or link.
void check_vacant(const std::filesystem::path& destination, bool is_file, bool overwrite);

/// Bytes that the folder's file system has free; the largest number where it does not say, as some
/// network file systems.
std::uint64_t free_space(const Folder& folder);

/// Throws NoSpaceError unless `bytes` more fit on the file system of `folder`, as far as it says.
void check_space(const Folder& folder, std::uint64_t bytes,
                 const std::filesystem::path& destination);

/// Permissions that no file of the source lacks, as those of new files: what others may not read
/// in the source they may not read in the result.
mode_t inherited_mode(const TensorStore& source);

}  // namespace blockscale::models
