// The kernel pack and the cache of compiled GPU kernels: what is there, and making it. No GPU is
// needed for any of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace blockscale {

/// NVIDIA's run-time compiler, libnvrtc, as this process finds it.
struct KernelCompilerInfo {
  std::string version;  // "NVRTC 13.0 65be0db342ad"; empty if there is none
  std::filesystem::path path;
  std::string problem;  // why there is none
};
KernelCompilerInfo kernel_compiler_info();

/// Whether kernels for `architecture` run on a device: sm_90a on 9.0 alone, sm_100f on 10.x.
bool architecture_runs_on(const std::string& architecture, int compute_capability);

/// Whether kernels for `architecture` have never run on such a chip, and the words for that:
/// "compiled and emulated, never run on silicon".
bool is_emulated_only(const std::string& architecture);
const char* emulated_only_text() noexcept;

/// Where a kernel of this library's list is, for who launches it next.
enum class KernelState {
  packed,    // in the pack, from the sources of this library
  cached,    // not in the pack, in the cache, from the NVRTC that is here
  outdated,  // in the pack, from other sources: launching it raises
  missing,   // NVRTC compiles it when it is first launched; without NVRTC that raises
};
const char* kernel_state_name(KernelState state) noexcept;

struct KernelInfo {
  std::string name;
  std::string architecture;
  KernelState state = KernelState::missing;
  // The rest is known for what is packed or cached.
  std::string compiler;
  std::string flags;
  std::string source_hash;
  std::uint32_t registers = 0;            // a thread
  std::uint32_t spill_bytes = 0;          // a thread, stores + loads
  std::uint32_t stack_bytes = 0;          // a thread, in local memory
  std::uint32_t static_shared_bytes = 0;  // a block
  std::uint64_t code_bytes = 0;
};

struct KernelPackInfo {
  std::string architecture;
  std::filesystem::path path;  // empty: there is none
  std::size_t kernels = 0;
  std::uint64_t bytes = 0;
  std::string problem;  // why it cannot be used
  double seconds = 0;   // that this build of it took; 0 of one that is only listed
};

/// What an entry of the cache is to a launch here of a kernel that the pack lacks.
enum class CacheEntryState {
  current,         // what it would take
  other_compiler,  // from the sources of this library, and an NVRTC that is not here
  other_sources,   // or other flags, or of a kernel that this library does not know
  damaged,         // or of another user, who is not trusted
};
const char* cache_entry_state_name(CacheEntryState state) noexcept;

struct CacheEntryInfo {
  std::filesystem::path path;
  CacheEntryState state = CacheEntryState::damaged;
  std::uint64_t bytes = 0;  // of the file
  std::string problem;      // what is damaged; the rest is then empty
  // As the file has it, which any program may have written: not safe to print as it is.
  std::string name;
  std::string architecture;
  std::string compiler;
  std::string flags;
  std::string source_hash;
};

struct KernelListing {
  std::vector<KernelInfo> kernels;  // every kernel that this library can launch
  std::vector<KernelPackInfo> packs;
  std::filesystem::path cache;                // its folder, whether or not it exists; empty: none
  std::string cache_problem;                  // why the folder is not used although it is there
  std::vector<CacheEntryInfo> cache_entries;  // by name, then the damaged ones
  std::uint64_t cache_bytes = 0;              // that all of them have together
  std::uint64_t cache_limit_bytes = 0;
};
/// Reads pack and cache, and asks which NVRTC is here; compiles nothing. What is damaged is
/// described, not thrown.
KernelListing list_kernels();

struct KernelBuildOptions {
  std::filesystem::path
      folder;                // that packs are written to; empty: where they are looked for first
  std::string architecture;  // "sm_90a"; empty: every one that kernels are written for
  int threads = 0;           // 0: all of the machine's
  bool line_info = false;    // for profilers; files are some four times as large
  bool rebuild = false;      // also what the pack has from the same sources and compiler
  /// After each kernel, from any thread, one call at a time.
  std::function<void(std::size_t done, std::size_t total, const std::string& name)> progress;
};

struct KernelBuildReport {
  std::vector<KernelPackInfo> packs;
  std::size_t compiled = 0;
  std::size_t reused = 0;
  double seconds = 0;
};

/// Compiles the kernels of this library into one pack an architecture, each written whole or not at
/// all. Throws not_found (no NVRTC), invalid_argument (`architecture` is none of ours),
/// compile_failed with the compiler's log (also for warnings, spills and stacks that a kernel's
/// description does not allow), or io.
KernelBuildReport build_kernels(const KernelBuildOptions& options);

}  // namespace blockscale
