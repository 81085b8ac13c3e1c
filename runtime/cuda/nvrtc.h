// NVRTC, CUDA's run-time compiler, found at run time: libnvrtc is all that compiling a kernel
// needs.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/cuda/dynamic_library.h"

namespace blockscale::runtime {

class Nvrtc {
 public:
  struct Header {
    std::string name;  // as it stands in #include "..."
    std::string text;
  };
  struct Result {
    bool compiled = false;
    std::string log;               // warnings too; empty if there is nothing to say
    std::vector<std::byte> cubin;  // only for a real architecture (sm_90a)
    std::string ptx;
  };

  /// The process's one, opened at the first call: BLOCKSCALE_NVRTC if it is set, else the first
  /// that opens of `search_paths()`. Throws not_found (naming what was tried), or unsupported (its
  /// version is too old), and tries again at the next call.
  static const Nvrtc& instance();

  /// The same from one path. Tests only.
  explicit Nvrtc(const std::filesystem::path& path);

  /// libnvrtc.so.13 by its bare name, the usual folders of a toolkit, and NVIDIA's PyPI package
  /// beside the Python package that this library is in.
  static std::vector<std::filesystem::path> search_paths();

  std::filesystem::path path() const { return library_.path(); }
  /// "NVRTC 13.0 65be0db342ad": with the beginning of the library's build id, which tells patch
  /// releases apart.
  const std::string& version() const { return version_; }

  /// Thread-safe; programs compile side by side. Throws device if NVRTC itself fails; a program
  /// that does not compile is a result.
  Result compile(const std::string& name, const std::string& source,
                 std::span<const Header> headers, std::span<const std::string> flags) const;

 private:
  using Program = void*;
  void load_functions();
  void check(int status, std::string_view function) const;
  template <class Size, class Get>
  std::string read(Program program, Size size_of, Get get, std::string_view function) const;

  DynamicLibrary library_;
  std::string version_;
  const char* (*error_string_)(int) = nullptr;
  int (*get_version_)(int*, int*) = nullptr;
  int (*create_)(Program*, const char*, const char*, int, const char* const*,
                 const char* const*) = nullptr;
  int (*destroy_)(Program*) = nullptr;
  int (*compile_)(Program, int, const char* const*) = nullptr;
  int (*log_size_)(Program, std::size_t*) = nullptr;
  int (*log_)(Program, char*) = nullptr;
  int (*cubin_size_)(Program, std::size_t*) = nullptr;
  int (*cubin_)(Program, char*) = nullptr;
  int (*ptx_size_)(Program, std::size_t*) = nullptr;
  int (*ptx_)(Program, char*) = nullptr;
};

}  // namespace blockscale::runtime
