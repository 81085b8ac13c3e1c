#include "blockscale/kernels.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "blockscale/error.h"
#include "blockscale/files.h"
#include "blockscale/parallel.h"
#include "ops/common/cuda/kernel_list.h"
#include "runtime/cuda/dynamic_library.h"
#include "runtime/cuda/nvrtc.h"
#include "runtime/kernels/kernel.h"
#include "runtime/kernels/kernel_store.h"
#include "runtime/log.h"

namespace blockscale {
namespace {

using runtime::CompiledKernel;
using runtime::KernelPack;
using runtime::KernelSpec;
using runtime::PackedKernel;

/// In the order of the list.
std::vector<std::string> architectures() {
  std::vector<std::string> names;
  for (const KernelSpec& spec : kernel_list()) {
    if (std::find(names.begin(), names.end(), spec.architecture) == names.end()) {
      names.push_back(spec.architecture);
    }
  }
  return names;
}

KernelPackInfo describe(const std::string& architecture, const KernelPack& pack) {
  KernelPackInfo info{architecture, pack.path(), pack.kernels().size(), 0, {}};
  for (const PackedKernel& kernel : pack.kernels()) info.bytes += kernel.cubin_bytes;
  return info;
}

void describe(const PackedKernel& kernel, KernelInfo& info) {
  info.compiler = kernel.compiler;
  info.flags = kernel.flags;
  info.source_hash = hexadecimal(kernel.source);
  info.registers = kernel.resources.registers;
  info.spill_bytes = kernel.resources.spill_bytes;
  info.stack_bytes = kernel.resources.stack_bytes;
  info.static_shared_bytes = kernel.resources.static_shared_bytes;
  info.code_bytes = kernel.cubin_bytes;
}

/// The pack of an architecture if there is one that can be read; what is wrong goes to `info`.
std::optional<KernelPack> open_pack(const std::string& architecture, KernelPackInfo& info) {
  info.architecture = architecture;
  try {
    info.path = runtime::find_pack(architecture);
    if (info.path.empty()) return std::nullopt;
    KernelPack pack = KernelPack::open(info.path);
    info = describe(architecture, pack);
    return pack;
  } catch (const Error& error) {
    info.problem = error.what();
    return std::nullopt;
  }
}

/// `compiler` is the one that is here: another's entry of the cache is not looked for.
KernelInfo inspect(const KernelSpec& spec, const runtime::Hash128& source, const KernelPack* pack,
                   const std::vector<runtime::KernelCache::Entry>& cache,
                   const std::string& compiler) {
  KernelInfo info;
  info.name = spec.name;
  info.architecture = spec.architecture;
  if (const PackedKernel* const packed = pack == nullptr ? nullptr : pack->find(spec.name)) {
    describe(*packed, info);
    info.state = packed->source == source ? KernelState::packed : KernelState::outdated;
    return info;
  }
  const auto cached = std::find_if(cache.begin(), cache.end(), [&](const auto& entry) {
    return entry.problem.empty() && entry.kernel.source == source &&
           entry.kernel.compiler == compiler;
  });
  if (cached != cache.end()) {
    describe(cached->kernel, info);
    info.state = KernelState::cached;
  }
  return info;
}

/// `known`: the source hashes of this library's kernels.
CacheEntryInfo inspect(const runtime::KernelCache::Entry& entry, const std::set<std::string>& known,
                       const std::string& compiler) {
  CacheEntryInfo info;
  info.path = entry.path;
  info.bytes = entry.file_bytes;
  info.problem = entry.problem;
  if (!entry.problem.empty()) return info;
  info.name = entry.kernel.name;
  info.architecture = entry.kernel.architecture;
  info.compiler = entry.kernel.compiler;
  info.flags = entry.kernel.flags;
  info.source_hash = hexadecimal(entry.kernel.source);
  info.state = !known.contains(info.source_hash) ? CacheEntryState::other_sources
               : info.compiler != compiler       ? CacheEntryState::other_compiler
                                                 : CacheEntryState::current;
  return info;
}

/// What `old` has of `spec`, if that is whole and what compiling it now would make.
std::optional<CompiledKernel> reuse(const KernelSpec& spec, const KernelPack* old,
                                    const std::string& compiler, runtime::LineInfo line_info) {
  const PackedKernel* const packed = old == nullptr ? nullptr : old->find(spec.name);
  if (packed == nullptr || packed->compiler != compiler ||
      packed->flags != recorded_flags(spec, line_info) ||
      packed->source != source_hash(spec, runtime::embedded_sources())) {
    return std::nullopt;
  }
  try {
    const auto code = old->cubin(*packed);
    return CompiledKernel{
        packed->name,   packed->architecture, packed->compiler,          packed->flags,
        packed->source, packed->resources,    {code.begin(), code.end()}};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::corrupt_file && error.code() != ErrorCode::io) throw;
    runtime::log()->debug("compiled anew: {}", error.what());
    return std::nullopt;
  }
}

/// An unreadable pack is replaced by the new one.
std::optional<KernelPack> try_open(const std::filesystem::path& path) {
  try {
    return KernelPack::open(path);
  } catch (const Error&) {
    return std::nullopt;
  }
}

class Builder {
 public:
  explicit Builder(const KernelBuildOptions& options)
      : options_(options), nvrtc_(runtime::Nvrtc::instance()) {}

  /// The folder is made first: what cannot be written is not worth compiling.
  void make_folder() const {
    std::error_code error;
    std::filesystem::create_directories(folder(), error);
    if (error) throw_io(folder(), "make this folder", error.value());
  }

  void build(const std::string& architecture, const std::vector<KernelSpec>& specs) {
    const auto start = Clock::now();
    const auto path = folder() / runtime::pack_file_name(architecture);
    const std::optional<KernelPack> old = options_.rebuild ? std::nullopt : try_open(path);
    std::vector<CompiledKernel> kernels(specs.size());
    parallel_for(static_cast<std::int64_t>(specs.size()), 1, options_.threads,
                 [&](std::int64_t begin, std::int64_t end) {
                   for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end);
                        ++i) {
                     kernels[i] = make(specs[i], old ? &*old : nullptr);
                   }
                 });
    write_pack(path, kernels);
    report_.packs.push_back(describe(architecture, KernelPack::open(path)));
    report_.packs.back().seconds = seconds_since(start);
  }

  void set_total(std::size_t total) { total_ = total; }
  KernelBuildReport finish() {
    report_.seconds = seconds_since(start_);
    return std::move(report_);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  std::filesystem::path folder() const {
    return options_.folder.empty() ? runtime::own_folder() : options_.folder;
  }

  CompiledKernel make(const KernelSpec& spec, const KernelPack* old) {
    const auto line_info = options_.line_info ? runtime::LineInfo::yes : runtime::LineInfo::no;
    std::optional<CompiledKernel> kernel = reuse(spec, old, nvrtc_.version(), line_info);
    const bool reused = kernel.has_value();
    if (!reused) kernel = compile_kernel(spec, runtime::embedded_sources(), nvrtc_, line_info);
    const std::lock_guard lock(mutex_);
    ++(reused ? report_.reused : report_.compiled);
    if (options_.progress) {
      options_.progress(report_.reused + report_.compiled, total_, spec.name);
    }
    return std::move(*kernel);
  }

  const KernelBuildOptions& options_;
  const runtime::Nvrtc& nvrtc_;
  const Clock::time_point start_ = Clock::now();
  std::size_t total_ = 0;
  std::mutex mutex_;  // of report_ and progress
  KernelBuildReport report_;
};

}  // namespace

bool architecture_runs_on(const std::string& architecture, int compute_capability) {
  return runtime::runs_on(architecture, compute_capability);
}

bool is_emulated_only(const std::string& architecture) {
  return runtime::is_emulated_only(runtime::Architecture::of(architecture).number);
}

const char* emulated_only_text() noexcept {
  return runtime::kEmulatedOnly;
}

KernelCompilerInfo kernel_compiler_info() {
  KernelCompilerInfo info;
  try {
    const runtime::Nvrtc& nvrtc = runtime::Nvrtc::instance();
    info.version = nvrtc.version();
    info.path = nvrtc.path();
  } catch (const Error& error) {
    info.problem = error.what();
  }
  return info;
}

const char* kernel_state_name(KernelState state) noexcept {
  switch (state) {
    case KernelState::packed: return "packed";
    case KernelState::cached: return "cached";
    case KernelState::outdated: return "outdated";
    case KernelState::missing: return "missing";
  }
  return "unknown";
}

const char* cache_entry_state_name(CacheEntryState state) noexcept {
  switch (state) {
    case CacheEntryState::current: return "current";
    case CacheEntryState::other_compiler: return "other_compiler";
    case CacheEntryState::other_sources: return "other_sources";
    case CacheEntryState::damaged: return "damaged";
  }
  return "unknown";
}

KernelListing list_kernels() {
  KernelListing listing;
  const auto cache = runtime::KernelCache::of_user();
  const auto cached = cache.entries();
  listing.cache = cache.folder();
  listing.cache_problem = cache.problem();
  listing.cache_limit_bytes = cache.limit_bytes();

  const auto specs = kernel_list();
  const std::string compiler = kernel_compiler_info().version;
  std::set<std::string> known;
  for (const std::string& architecture : architectures()) {
    KernelPackInfo info;
    const std::optional<KernelPack> pack = open_pack(architecture, info);
    listing.packs.push_back(info);
    for (const KernelSpec& spec : specs) {
      if (spec.architecture != architecture) continue;
      const runtime::Hash128 source = source_hash(spec, runtime::embedded_sources());
      known.insert(hexadecimal(source));
      listing.kernels.push_back(inspect(spec, source, pack ? &*pack : nullptr, cached, compiler));
    }
  }
  for (const auto& entry : cached) {
    listing.cache_entries.push_back(inspect(entry, known, compiler));
    listing.cache_bytes += entry.file_bytes;
  }
  return listing;
}

KernelBuildReport build_kernels(const KernelBuildOptions& options) {
  std::vector<std::string> wanted = architectures();
  if (!options.architecture.empty()) {
    if (std::find(wanted.begin(), wanted.end(), options.architecture) == wanted.end()) {
      std::string known;
      for (const std::string& name : wanted) known += (known.empty() ? "" : ", ") + name;
      throw Error(ErrorCode::invalid_argument, "architecture",
                  "is '" + options.architecture + "'; kernels are written for " + known);
    }
    wanted = {options.architecture};
  }
  std::vector<std::vector<KernelSpec>> specs(wanted.size());
  std::size_t total = 0;
  for (const KernelSpec& spec : kernel_list()) {
    const auto at = std::find(wanted.begin(), wanted.end(), spec.architecture);
    if (at == wanted.end()) continue;
    specs[static_cast<std::size_t>(at - wanted.begin())].push_back(spec);
    ++total;
  }
  Builder builder(options);
  builder.make_folder();
  builder.set_total(total);
  for (std::size_t i = 0; i < wanted.size(); ++i) builder.build(wanted[i], specs[i]);
  return builder.finish();
}

}  // namespace blockscale
