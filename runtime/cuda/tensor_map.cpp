#include "runtime/cuda/tensor_map.h"

#include <span>
#include <sstream>

#include "blockscale/error.h"
#include "core/tensor_map_rules.h"
#include "runtime/cuda/driver.h"
#include "runtime/hash.h"

namespace blockscale::runtime {

TensorMap encode_tensor_map(const TensorMapDescription& d) {
  std::ostringstream text;
  if (print_broken_rule(text, d)) {
    throw Error(ErrorCode::invalid_argument, "tensor map", text.str());
  }
  constexpr int kNoInterleave = 0;
  TensorMap map{};
  driver().tensor_map_encode_tiled(
      &map, d.element, d.rank,
      reinterpret_cast<void*>(static_cast<std::uintptr_t>(d.address)),  // NOLINT: a device's
      d.sizes, d.strides, d.box, d.element_strides, kNoInterleave, d.swizzle, d.l2_promotion,
      d.fill);
  return map;
}

TensorMapCache& TensorMapCache::instance() {
  static TensorMapCache* const cache = new TensorMapCache();
  return *cache;
}

std::size_t TensorMapCache::HashDescription::operator()(
    const TensorMapDescription& description) const {
  return static_cast<std::size_t>(hash_bytes(std::as_bytes(std::span(&description, 1))).low);
}

TensorMap TensorMapCache::get(const TensorMapDescription& description) {
  const std::lock_guard lock(mutex_);
  if (const auto found = by_description_.find(description); found != by_description_.end()) {
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->map;
  }
  const TensorMap map = encode_tensor_map(description);
  ++encoded_;
  entries_.push_front({description, map});
  by_description_.emplace(description, entries_.begin());
  if (entries_.size() > capacity_) {
    by_description_.erase(entries_.back().description);
    entries_.pop_back();
  }
  return map;
}

std::size_t TensorMapCache::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

std::uint64_t TensorMapCache::encoded() const {
  const std::lock_guard lock(mutex_);
  return encoded_;
}

}  // namespace blockscale::runtime
