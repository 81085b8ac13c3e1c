// Where a kernel's code comes from: the pack, else the cache, else NVRTC. The pack runs without
// NVRTC; the cache holds what one NVRTC compiled, and is asked for what the one here would.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "runtime/kernels/kernel_cache.h"
#include "runtime/kernels/kernel_pack.h"
#include "runtime/kernels/kernel_sources.h"

namespace blockscale::runtime {

/// A kernel's code and what it uses. The bytes live as long as the store does.
struct KernelImage {
  std::span<const std::byte> cubin;
  KernelResources resources;
  std::filesystem::path pack;  // that it comes from; empty: compiled or cached
};

class KernelStore {
 public:
  /// A path to the pack of an architecture, or an empty one.
  using FindPack = std::function<std::filesystem::path(const std::string& architecture)>;

  KernelStore(SourceTree sources, FindPack find_pack, KernelCache cache);

  /// The process's one: the embedded sources, `find_pack`, the user's cache.
  static KernelStore& instance();

  /// Thread-safe. Throws unsupported if the pack has the kernel, but made from other sources than
  /// this library's; not_found if the pack lacks it and there is no NVRTC; compile_failed;
  /// corrupt_file for a damaged pack.
  KernelImage image(const KernelSpec& spec);

  /// The pack of an architecture, opened at the first call; null if there is none.
  const KernelPack* pack(const std::string& architecture);
  const KernelCache& cache() const { return cache_; }
  const SourceTree& sources() const { return sources_; }

 private:
  /// From the cache, or NVRTC.
  const CompiledKernel& compiled(const KernelSpec& spec, const Hash128& source);

  SourceTree sources_;
  FindPack find_pack_;
  KernelCache cache_;
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<KernelPack>> packs_;  // null: looked for, and not there
  std::map<std::string, CompiledKernel> compiled_;            // by source hash
};

}  // namespace blockscale::runtime
