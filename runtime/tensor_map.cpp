#include "runtime/tensor_map.h"

#include <span>
#include <string>

#include "blockscale/error.h"
#include "runtime/driver.h"
#include "runtime/hash.h"

namespace blockscale::runtime {
namespace {

constexpr std::uint64_t kMaxSize = std::uint64_t{1} << 32;
constexpr std::uint64_t kMaxStride = std::uint64_t{1} << 40;
constexpr std::uint32_t kMaxBox = 256;
constexpr std::uint32_t kMaxElementStride = 8;
constexpr std::uint64_t kAlignment = 16;

/// Bits that an element takes in shared memory.
std::uint64_t shared_bits(TensorMapElement element) {
  switch (element) {
    case TensorMapElement::u4x16_packed: return 4;
    case TensorMapElement::u8:
    case TensorMapElement::u4x16_align16b:
    case TensorMapElement::u6x16_align16b: return 8;
    case TensorMapElement::u16:
    case TensorMapElement::f16:
    case TensorMapElement::bf16: return 16;
    case TensorMapElement::u32:
    case TensorMapElement::s32:
    case TensorMapElement::f32: return 32;
    case TensorMapElement::u64:
    case TensorMapElement::s64:
    case TensorMapElement::f64: return 64;
  }
  throw Error(ErrorCode::invalid_argument, "tensor map", "its element type does not exist");
}

/// Elements with gaps need addresses and strides that are multiples of 32.
std::uint64_t alignment_of(TensorMapElement element) {
  return element == TensorMapElement::u4x16_align16b || element == TensorMapElement::u6x16_align16b
             ? 2 * kAlignment
             : kAlignment;
}

void require(bool holds, const std::string& field, std::uint64_t value, const std::string& rule) {
  if (holds) return;
  throw Error(ErrorCode::invalid_argument, "tensor map",
              field + " is " + std::to_string(value) + "; " + rule);
}

std::string at(const char* field, std::uint32_t dimension) {
  return std::string(field) + "[" + std::to_string(dimension) + "]";
}

void check(const TensorMapDescription& d) {
  const std::uint64_t alignment = alignment_of(d.element);
  const std::string multiple = "a multiple of " + std::to_string(alignment) + " is needed";
  require(d.rank >= 1 && d.rank <= kMaxTensorMapRank, "rank", d.rank, "1 to 5 are allowed");
  require(d.address != 0 && d.address % alignment == 0, "address", d.address, multiple);
  for (std::uint32_t i = 0; i < d.rank; ++i) {
    require(d.sizes[i] >= 1 && d.sizes[i] <= kMaxSize, at("sizes", i), d.sizes[i],
            "1 to 2^32 are allowed");
    require(d.box[i] >= 1 && d.box[i] <= kMaxBox, at("box", i), d.box[i], "1 to 256 are allowed");
    require(d.element_strides[i] >= 1 && d.element_strides[i] <= kMaxElementStride,
            at("element_strides", i), d.element_strides[i], "1 to 8 are allowed");
  }
  for (std::uint32_t i = 0; i + 1 < d.rank; ++i) {
    require(d.strides[i] % alignment == 0 && d.strides[i] < kMaxStride, at("strides", i),
            d.strides[i], multiple + ", below 2^40");
  }
  require(d.fill == TensorMapFill::zero || is_floating(d.element), "fill",
          static_cast<std::uint64_t>(d.fill), "only floating-point elements are filled with NaN");
  const std::uint64_t inner_bytes = d.box[0] * shared_bits(d.element) / 8;
  require(inner_bytes % kAlignment == 0, "box[0]", d.box[0],
          "a row of the box must be a multiple of 16 bytes, not " + std::to_string(inner_bytes));
  if (d.swizzle != TensorMapSwizzle::none) {
    const std::uint64_t span = std::uint64_t{16} << static_cast<unsigned>(d.swizzle);
    require(inner_bytes <= span, "box[0]", d.box[0],
            "a row of the box must fit the swizzle's " + std::to_string(span) +
                " bytes, not take " + std::to_string(inner_bytes));
  }
}

}  // namespace

TensorMap encode_tensor_map(const TensorMapDescription& d) {
  check(d);
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
