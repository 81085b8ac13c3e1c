#include "runtime/kernels/kernel_store.h"

#include <utility>

#include "blockscale/error.h"
#include "runtime/cuda/nvrtc.h"
#include "runtime/log.h"

namespace blockscale::runtime {

KernelStore::KernelStore(SourceTree sources, FindPack find_pack, KernelCache cache)
    : sources_(std::move(sources)), find_pack_(std::move(find_pack)), cache_(std::move(cache)) {}

KernelStore& KernelStore::instance() {
  static KernelStore* const store =
      new KernelStore(embedded_sources(), find_pack, KernelCache::of_user());
  return *store;
}

const KernelPack* KernelStore::pack(const std::string& architecture) {
  const std::lock_guard lock(mutex_);
  const auto found = packs_.find(architecture);
  if (found != packs_.end()) return found->second.get();
  const std::filesystem::path path = find_pack_(architecture);
  auto pack = path.empty() ? nullptr : std::make_unique<KernelPack>(KernelPack::open(path));
  return packs_.emplace(architecture, std::move(pack)).first->second.get();
}

const CompiledKernel& KernelStore::compiled(const KernelSpec& spec, const Hash128& source) {
  const std::string key = hexadecimal(source);
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = compiled_.find(key); found != compiled_.end()) return found->second;
  }
  const Nvrtc& nvrtc = Nvrtc::instance();
  CompiledKernel kernel =
      cache_.get(source, nvrtc.version(), [&] { return compile_kernel(spec, sources_, nvrtc); });
  const std::lock_guard lock(mutex_);
  return compiled_.try_emplace(key, std::move(kernel)).first->second;
}

KernelImage KernelStore::image(const KernelSpec& spec) {
  const Hash128 source = source_hash(spec, sources_);
  if (const KernelPack* const packed = pack(spec.architecture)) {
    if (const PackedKernel* const kernel = packed->find(spec.name)) {
      if (kernel->source != source) {
        throw Error(ErrorCode::unsupported, packed->path().string(),
                    "kernel " + spec.name + " in this pack was compiled from other sources (" +
                        hexadecimal(kernel->source) + ") than those of this library (" +
                        hexadecimal(source) +
                        "): build the pack again with `blockscale kernels build`, or remove it");
      }
      return {packed->cubin(*kernel), kernel->resources, packed->path()};
    }
    log()->debug("kernel {} is not in {}", spec.name, packed->path().string());
  }
  const CompiledKernel& kernel = compiled(spec, source);
  return {kernel.cubin, kernel.resources, {}};
}

}  // namespace blockscale::runtime
