#include "blockscale/files.h"

#include <cerrno>
#include <string>
#include <system_error>

#include "blockscale/error.h"

namespace blockscale {

void throw_io(const std::filesystem::path& path, std::string_view action, int error_number) {
  const std::string message =
      "cannot " + std::string(action) + ": " + std::generic_category().message(error_number);
  if (error_number == ENOSPC || error_number == EDQUOT) {
    throw NoSpaceError(ErrorCode::io, path.string(), message);
  }
  const bool missing = error_number == ENOENT || error_number == ENOTDIR;
  throw Error(missing ? ErrorCode::not_found : ErrorCode::io, path.string(), message);
}

}  // namespace blockscale
