// Failed system calls as Error.
#pragma once

#include <filesystem>
#include <string_view>

namespace blockscale {

/// Throws not_found for ENOENT and ENOTDIR, else io: "PATH: cannot ACTION: reason".
[[noreturn]] void throw_io(const std::filesystem::path& path, std::string_view action,
                           int error_number);

}  // namespace blockscale
