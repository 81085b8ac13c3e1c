// A libcuda.so.1 without a GPU: it keeps count of what it is asked, checks what a driver would, and
// fails on demand. Kernels do nothing, in a time that a test gives; memory can be allocated and
// copied. A test that links nothing of it loads it as BLOCKSCALE_LIBCUDA.
#pragma once

#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace blockscale::test {

struct FakeLaunch {
  std::string kernel;
  int device = 0;
  std::array<std::uint32_t, 3> grid{}, block{}, cluster{};
  std::uint32_t dynamic_shared_bytes = 0;
  void* stream = nullptr;
  bool programmatic_dependent_launch = false;
  std::vector<std::byte> parameters;
};

struct FakeCuda {
  std::mutex mutex;
  int devices = 2;
  int compute_capability = 90;
  std::map<std::string, int> failures;  // by function; the error that every call returns
  std::map<std::string, int> calls;     // by function
  std::vector<FakeLaunch> launches;
  std::size_t parameter_bytes = 0;               // that a launch copies
  std::set<std::pair<std::string, int>> loaded;  // kernels, and devices that have their code
  /// Attributes set: (kernel, device, attribute) -> value.
  std::map<std::array<std::string, 3>, int> attributes;
  int capture_mode = 0;
  int capture_mode_while_loading = -1;
  void* capturing = nullptr;                               // a stream
  std::function<double(const FakeLaunch&)> milliseconds;   // that a launch takes; none: 1
  double clock = 0;                                        // of all streams, in milliseconds
  std::map<std::uint64_t, std::vector<std::byte>> memory;  // that is allocated, by its address

  void reset() {
    devices = 2;
    compute_capability = 90;
    parameter_bytes = 0;
    failures.clear();
    calls.clear();
    launches.clear();
    loaded.clear();
    attributes.clear();
    capture_mode = 0;
    capture_mode_while_loading = -1;
    capturing = nullptr;
    milliseconds = nullptr;
  }
};

/// That of the fake at `path`, which stays loaded.
inline FakeCuda& fake_cuda(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const auto function =
      reinterpret_cast<FakeCuda* (*)()>(library == nullptr ? nullptr : dlsym(library, "fake_cuda"));
  if (function == nullptr) throw std::runtime_error(std::string(path) + " is no fake driver");
  return *function();
}

/// Bytes that the fake takes for the code of a kernel of this name.
inline std::vector<std::byte> fake_cubin(const std::string& kernel) {
  constexpr std::size_t kHeader = 64, kSectionTableOffset = 40;
  std::vector<std::byte> bytes(kHeader + kernel.size() + 1);
  const char magic[] = {0x7f, 'E', 'L', 'F'};
  for (std::size_t i = 0; i < sizeof magic; ++i) bytes[i] = static_cast<std::byte>(magic[i]);
  bytes[kSectionTableOffset] = static_cast<std::byte>(bytes.size() & 255);
  bytes[kSectionTableOffset + 1] = static_cast<std::byte>(bytes.size() >> 8);
  for (std::size_t i = 0; i < kernel.size(); ++i) {
    bytes[kHeader + i] = static_cast<std::byte>(kernel[i]);
  }
  return bytes;
}

}  // namespace blockscale::test
