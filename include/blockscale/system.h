// What this build and this machine are: for `blockscale doctor`, bug reports and logs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace blockscale {

/// Version of the library, e.g. "0.1.0".
const char* library_version() noexcept;

/// A part of the build and its version, e.g. {"oneTBB", "2021.8"}.
struct Component {
  std::string name;
  std::string version;
};
/// The library, its compiler and the libraries inside it.
std::vector<Component> components();

struct CpuInfo {
  std::string model;
  int logical_cpus = 0;               // online, whatever this process may use
  int threads = 0;                    // what an operation uses when it is asked for 0
  std::vector<std::string> features;  // present, of those that decide which code runs
};
CpuInfo cpu_info();

/// The instruction set that the CPU code was dispatched to, in Highway's words: "AVX3" is AVX-512.
std::string simd_target();
/// All that were compiled in, best first.
std::vector<std::string> simd_targets_compiled();
/// Whether products of bf16 pairs go through AMX's tiles beside it.
bool simd_has_tiles();

/// Bytes; 0 where the system does not tell.
struct MemoryInfo {
  std::uint64_t total = 0;
  std::uint64_t available = 0;
  std::uint64_t limit = 0;  // of this process's control group
};
MemoryInfo memory_info();

struct GpuDevice {
  std::string name;
  int compute_capability = 0;  // 90 stands for 9.0
  std::uint64_t memory_bytes = 0;
};

/// What the NVIDIA driver says. Nothing is linked: libcuda.so.1 is opened and asked.
struct GpuInfo {
  std::vector<std::string> device_nodes;  // /dev/nvidia*, whether or not the driver works
  bool driver_library = false;            // libcuda.so.1 could be opened
  std::string driver_path;                // where it is
  int driver_cuda_version = 0;            // 13000 stands for 13.0; 0: unknown
  std::vector<GpuDevice> devices;
  std::string problem;  // why there is no device, or none that kernels run on, although something
                        // of a driver is there
};
GpuInfo gpu_info();

}  // namespace blockscale
