// Libraries that are found at run time: the CUDA driver and NVRTC.
#pragma once

#include <filesystem>
#include <string>

namespace blockscale::runtime {

/// An open shared library. It is never closed: the driver and NVRTC keep threads and state of
/// their own once they are used.
class DynamicLibrary {
 public:
  /// `name` is a path, or a bare file name that the dynamic loader searches for. Not open if that
  /// fails; `problem` then holds the loader's words.
  explicit DynamicLibrary(const std::filesystem::path& name);
  DynamicLibrary() = default;

  bool is_open() const { return handle_ != nullptr; }
  const std::string& problem() const { return problem_; }
  /// Whether that is that there is no such file, where the loader looks for it.
  bool is_missing() const { return missing_; }
  /// Where the loader found it; its name if the loader does not tell.
  std::filesystem::path path() const;

  /// Sets `function` to the symbol `name`; null, and false, if there is none.
  template <class Function>
  bool load(const char* name, Function*& function) const {
    function = reinterpret_cast<Function*>(symbol(name));
    return function != nullptr;
  }

  /// The library's GNU build id in hexadecimal digits; empty if it has none.
  std::string build_id() const;

 private:
  void* symbol(const char* name) const;

  void* handle_ = nullptr;
  std::filesystem::path name_;
  std::string problem_;
  bool missing_ = false;
};

/// The folder of the program or shared library that this code was linked into.
std::filesystem::path own_folder();

/// The value of an environment variable; empty if it is not set.
std::string environment(const char* name);

}  // namespace blockscale::runtime
