#include "blockscale/system.h"

#include <oneapi/tbb/version.h>
#include <spdlog/version.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "blockscale/error.h"
#include "blockscale/parallel.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/driver.h"

namespace blockscale {
namespace {

std::string dotted(int major, int minor, int patch) {
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

std::string compiler_version() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t\n") - first + 1));
}

/// The value of the first "key : value" line of a file of /proc; empty if there is none.
std::string proc_value(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    if (trimmed(std::string_view(line).substr(0, colon)) != key) continue;
    return trimmed(std::string_view(line).substr(colon + 1));
  }
  return {};
}

/// "16384 kB" of /proc/meminfo in bytes; 0 if it is not there.
std::uint64_t meminfo_bytes(std::string_view key) {
  const std::string text = proc_value("/proc/meminfo", key);
  std::uint64_t kibibytes = 0;
  std::from_chars(text.data(), text.data() + text.size(), kibibytes);
  return kibibytes * 1024;
}

/// Names as in /proc/cpuinfo, in the order that a reader looks for them.
constexpr std::array kRelevantFeatures = {
    "sse4_2",      "avx",         "avx2",        "fma",      "f16c",     "bmi2",
    "avx512f",     "avx512bw",    "avx512dq",    "avx512vl", "avx512cd", "avx512vbmi",
    "avx512_vnni", "avx512_bf16", "avx512_fp16", "gfni",     "amx_tile", "amx_bf16",
    "amx_int8",    "asimd",       "asimdhp",     "sve",      "sve2",     "bf16",
};

std::vector<std::string> cpu_features() {
  std::string flags = proc_value("/proc/cpuinfo", "flags");
  if (flags.empty()) flags = proc_value("/proc/cpuinfo", "Features");
  std::istringstream stream(flags);
  std::vector<std::string> present;
  for (std::string flag; stream >> flag;) present.push_back(flag);
  std::vector<std::string> result;
  for (const char* feature : kRelevantFeatures) {
    if (std::find(present.begin(), present.end(), feature) != present.end()) {
      result.emplace_back(feature);
    }
  }
  return result;
}

/// Fills in what the driver says. It may be one that is too old for kernels.
void ask_driver(const runtime::DriverTable& driver, GpuInfo& info) {
  (void)driver.driver_version.status(&info.driver_cuda_version);
  try {
    runtime::initialise(driver);
    const runtime::DeviceList devices(driver);
    for (const cuda::DeviceTraits& device : devices.traits()) {
      info.devices.push_back({device.name, device.architecture, device.memory_bytes});
    }
  } catch (const Error& error) {
    info.problem = error.what();
  }
}

/// What every driver since CUDA 6 has.
bool can_be_asked(const runtime::DriverTable& driver) {
  return driver.init && driver.driver_version && driver.device_count && driver.device_get &&
         driver.device_name && driver.device_attribute && driver.device_memory;
}

std::vector<std::string> nvidia_device_nodes() {
  std::vector<std::string> nodes;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ignored)) {
    const std::string path = entry.path().string();
    if (path.starts_with("/dev/nvidia")) nodes.push_back(path);
  }
  std::sort(nodes.begin(), nodes.end());
  return nodes;
}

}  // namespace

const char* library_version() noexcept {
  return BLOCKSCALE_VERSION;
}

std::vector<Component> components() {
  return {
      {"blockscale", library_version()},
      {"compiler", compiler_version()},
      {"oneTBB", TBB_runtime_version()},
      {"Highway", HIGHWAY_VERSION},
      {"nlohmann-json", dotted(NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                               NLOHMANN_JSON_VERSION_PATCH)},
      {"spdlog", dotted(SPDLOG_VER_MAJOR, SPDLOG_VER_MINOR, SPDLOG_VER_PATCH)},
  };
}

CpuInfo cpu_info() {
  CpuInfo info;
  info.model = proc_value("/proc/cpuinfo", "model name");
  if (info.model.empty()) info.model = "unknown";
  info.logical_cpus = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  info.threads = effective_threads(0);
  info.features = cpu_features();
  return info;
}

MemoryInfo memory_info() {
  MemoryInfo info;
  info.total = meminfo_bytes("MemTotal");
  info.available = meminfo_bytes("MemAvailable");
  // "max" (no limit) leaves the number unread, which is 0.
  std::ifstream("/sys/fs/cgroup/memory.max") >> info.limit;
  return info;
}

GpuInfo gpu_info() {
  GpuInfo info;
  info.device_nodes = nvidia_device_nodes();
  const runtime::DriverTable& driver = runtime::find_driver();
  info.driver_library = driver.library().is_open();
  if (!info.driver_library) {
    const bool is_expected = !info.device_nodes.empty() || !driver.library().is_missing();
    if (is_expected) info.problem = driver.library().problem();
    return info;
  }
  info.driver_path = driver.library().path();
  if (!can_be_asked(driver)) {
    info.problem = info.driver_path + " lacks a function that every driver since CUDA 6 has";
    return info;
  }
  ask_driver(driver, info);
  if (info.problem.empty() && !driver.missing().empty()) {
    info.problem = "the driver has no " + driver.missing().front() +
                   ", which kernels need: install one for CUDA 13";
  }
  return info;
}

}  // namespace blockscale
