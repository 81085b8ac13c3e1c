#include "blockscale/files.h"

#include <cerrno>
#include <string>
#include <system_error>

#include "blockscale/error.h"

namespace blockscale {

void throw_io(const std::filesystem::path& path, std::string_view action, int error_number) {
  const bool missing = error_number == ENOENT || error_number == ENOTDIR;
  throw Error(
      missing ? ErrorCode::not_found : ErrorCode::io, path.string(),
      "cannot " + std::string(action) + ": " + std::generic_category().message(error_number));
}

}  // namespace blockscale
