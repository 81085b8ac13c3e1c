#include "models/convert/files/destination.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <vector>

#include "models/safetensors/index_file.h"
#include "models/safetensors/source_path.h"
#include "models/text.h"

namespace blockscale::models {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, "destination", message);
}

/// Safetensors files with an index or a configuration, or nothing but safetensors files: not any
/// folder into which somebody once put a model.
bool is_checkpoint(const fs::path& folder) {
  const std::vector<std::string> names = Folder::open(folder).names();
  const auto is_weights = [](const std::string& name) { return name.ends_with(".safetensors"); };
  const auto says_so = [](const std::string& name) {
    return name == "config.json" || name.ends_with(kIndexSuffix);
  };
  return std::any_of(names.begin(), names.end(), is_weights) &&
         (std::any_of(names.begin(), names.end(), says_so) ||
          std::all_of(names.begin(), names.end(), is_weights));
}

}  // namespace

fs::path normal_destination(const fs::path& destination) {
  if (destination.empty()) refuse("is empty, must name a file or folder");
  const fs::path named = destination.has_filename() ? destination : destination.parent_path();
  std::error_code error;
  const fs::path whole = fs::absolute(named, error);
  if (error) throw_io(destination, "find", error.value());
  fs::path result = fs::weakly_canonical(whole, error);
  if (error) throw_io(destination, "find", error.value());
  if (!result.has_filename()) refuse(quote(result.string()) + " names no folder");
  if (!fs::is_directory(result.parent_path(), error)) {
    throw Error(ErrorCode::not_found, "destination",
                "its folder " + quote(result.parent_path().string()) + " does not exist");
  }
  return result;
}

void check_apart(const fs::path& destination, const fs::path& named, const TensorStore& source,
                 const ConvertOptions& options) {
  std::error_code ignored;
  const auto is = [&](const fs::path& path) {
    return fs::equivalent(destination, path, ignored) && !ignored;
  };
  const auto check_read = [&](const std::optional<fs::path>& file, const char* name) {
    if (!file) return;
    const fs::path read = fs::weakly_canonical(*file, ignored);
    if (is(read) || is_within(read, destination)) {
      refuse(quote(destination.string()) + " is or holds the " + name + ", must not");
    }
  };
  check_read(options.activation_scales, "activation scales");
  check_read(options.calibration, "calibration");
  if (!source.is_folder()) {
    if (is(named)) refuse("is the source itself, must be another file");
    return;
  }
  // A model of a Hugging Face cache is more than its snapshot.
  for (const fs::path& folder : {named, source.folder()}) {
    std::error_code error;
    const bool is_folder = fs::is_directory(folder, error);
    const fs::path home = fs::canonical(is_folder ? folder : folder.parent_path(), error);
    if (error) throw_io(folder, "find", error.value());
    if (is_within(destination, home) || is(home)) {
      refuse(quote(destination.string()) + " lies in the source, must be a folder outside of it");
    }
    if (is_within(home, destination)) {
      refuse(quote(destination.string()) + " holds the source, must not");
    }
  }
}

void check_vacant(const fs::path& destination, bool is_file, bool overwrite) {
  struct stat status;
  if (::lstat(destination.c_str(), &status) != 0) return;
  const auto fail = [&](ErrorCode code, const std::string& message) {
    throw Error(code, destination.string(), message);
  };
  const bool folder = S_ISDIR(status.st_mode);
  if (!folder && !S_ISREG(status.st_mode)) {
    // A link to something was followed before.
    fail(ErrorCode::invalid_argument, std::string("is ") + file_type_name(status.st_mode) +
                                          (S_ISLNK(status.st_mode) ? " that leads nowhere" : "") +
                                          ", only regular files and folders are replaced");
  }
  if (!overwrite) fail(ErrorCode::already_exists, "exists; overwrite replaces it");
  if (folder == is_file) {
    fail(ErrorCode::already_exists, folder ? "is a folder, a file was to be written"
                                           : "is a file, a folder was to be written");
  }
  std::error_code ignored;
  if (!folder || fs::is_empty(destination, ignored) || is_checkpoint(destination)) return;
  fail(ErrorCode::already_exists,
       "is a folder without safetensors files and their config.json or index; overwrite does not "
       "replace it");
}

std::uint64_t free_space(const Folder& folder) {
  struct statvfs status;
  if (::fstatvfs(folder.descriptor(), &status) != 0 || status.f_blocks == 0)
    return ~std::uint64_t{0};
  const std::uint64_t blocks = ::geteuid() == 0 ? status.f_bfree : status.f_bavail;
  return blocks * status.f_frsize;
}

void check_space(const Folder& folder, std::uint64_t bytes, const fs::path& destination) {
  const std::uint64_t free = free_space(folder);
  if (bytes <= free) return;
  throw NoSpaceError(ErrorCode::io, destination.string(),
                     "needs " + std::to_string(bytes) + " bytes more, its file system has " +
                         std::to_string(free) + " free: free some, or choose another destination");
}

mode_t inherited_mode(const TensorStore& source) {
  mode_t mode = 0666;
  for (const SafetensorsFile& file : source.files()) {
    struct stat status;
    if (::stat(file.path().c_str(), &status) == 0) mode &= status.st_mode;
  }
  return mode | 0600;
}

}  // namespace blockscale::models
