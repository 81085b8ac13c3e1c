#include "device/emulator/tensor_map.h"

#include <cstring>
#include <ios>
#include <sstream>
#include <stdexcept>

#include "core/tensor_map_rules.h"
#include "device/emulator/emulator.h"

namespace blockscale::emulator {
namespace {

constexpr uint64_t kMagic = 0x70616D206F736E74;

struct Packed {
  uint64_t magic;
  uint64_t address;
  uint64_t strides[kMaxTensorMapRank - 1];
  uint32_t last[kMaxTensorMapRank];  // sizes less 1
  uint8_t last_of_box[kMaxTensorMapRank];
  uint8_t element_strides[kMaxTensorMapRank];
  uint8_t rank, element, swizzle, l2_promotion, fill;
};
static_assert(sizeof(Packed) <= sizeof(TensorMap));

void validate(const TensorMapDescription& d) {
  std::ostringstream text("tensor map: ", std::ios::ate);
  if (print_broken_rule(text, d)) throw std::invalid_argument(text.str());
}

}  // namespace

TensorMap encode_tensor_map(const TensorMapDescription& d) {
  validate(d);
  Packed packed = {};
  packed.magic = kMagic;
  packed.address = d.address;
  for (uint32_t i = 0; i < d.rank; ++i) {
    if (i + 1 < d.rank) packed.strides[i] = d.strides[i];
    packed.last[i] = static_cast<uint32_t>(d.sizes[i] - 1);
    packed.last_of_box[i] = static_cast<uint8_t>(d.box[i] - 1);
    packed.element_strides[i] = static_cast<uint8_t>(d.element_strides[i]);
  }
  packed.rank = static_cast<uint8_t>(d.rank);
  packed.element = static_cast<uint8_t>(d.element);
  packed.swizzle = static_cast<uint8_t>(d.swizzle);
  packed.l2_promotion = static_cast<uint8_t>(d.l2_promotion);
  packed.fill = static_cast<uint8_t>(d.fill);
  TensorMap map = {};
  std::memcpy(&map, &packed, sizeof(packed));
  return map;
}

std::optional<TensorMapDescription> decode_tensor_map(const TensorMap& map) {
  Packed packed;
  std::memcpy(&packed, &map, sizeof(packed));
  if (packed.magic != kMagic) return std::nullopt;
  TensorMapDescription d;
  d.address = packed.address;
  d.rank = packed.rank;
  for (uint32_t i = 0; i < d.rank; ++i) {
    if (i + 1 < d.rank) d.strides[i] = packed.strides[i];
    d.sizes[i] = uint64_t{packed.last[i]} + 1;
    d.box[i] = uint32_t{packed.last_of_box[i]} + 1;
    d.element_strides[i] = packed.element_strides[i];
  }
  d.element = static_cast<TensorMapElement>(packed.element);
  d.swizzle = static_cast<TensorMapSwizzle>(packed.swizzle);
  d.l2_promotion = static_cast<TensorMapL2Promotion>(packed.l2_promotion);
  d.fill = static_cast<TensorMapFill>(packed.fill);
  return d;
}

}  // namespace blockscale::emulator
