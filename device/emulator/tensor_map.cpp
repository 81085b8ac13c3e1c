#include "device/emulator/tensor_map.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "device/emulator/emulator.h"
#include "device/emulator/meaning/swizzle.h"
#include "device/emulator/meaning/tensor_box.h"

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

void require(bool holds, const std::string& text) {
  if (!holds) throw std::invalid_argument("tensor map: " + text);
}

std::string number(const char* name, uint64_t i, uint64_t value) {
  return std::string(name) + "[" + std::to_string(i) + "] is " + std::to_string(value);
}

void validate(const TensorMapDescription& d) {
  const uint32_t bytes = meaning::element_bytes(d.element);
  require(bytes != 0, "element " + std::to_string(static_cast<uint32_t>(d.element)) +
                          " is none that the emulator knows");
  require(d.rank >= 1 && d.rank <= 5, "rank is " + std::to_string(d.rank) + "; 1 to 5 are allowed");
  require(d.address != 0 && d.address % 16 == 0, "the address is to be a multiple of 16");
  for (uint32_t i = 0; i < d.rank; ++i) {
    require(d.sizes[i] >= 1 && d.sizes[i] <= uint64_t{1} << 32,
            number("sizes", i, d.sizes[i]) + "; 1 to 2^32 are allowed");
    require(d.box[i] >= 1 && d.box[i] <= 256,
            number("box", i, d.box[i]) + "; 1 to 256 are allowed");
    require(d.element_strides[i] >= 1 && d.element_strides[i] <= 8,
            number("element_strides", i, d.element_strides[i]) + "; 1 to 8 are allowed");
  }
  for (uint32_t i = 0; i + 1 < d.rank; ++i) {
    require(d.strides[i] % 16 == 0 && d.strides[i] < uint64_t{1} << 40,
            number("strides", i, d.strides[i]) + "; multiples of 16 below 2^40 are allowed");
  }
  const uint64_t row = uint64_t{meaning::box_elements(d, 0)} * bytes;
  require(row % 16 == 0,
          "a row of the box has " + std::to_string(row) + " bytes; multiples of 16 are allowed");
  const uint32_t span = meaning::swizzle_span(d.swizzle);
  require(span == 0 || row <= span, "a row of the box has " + std::to_string(row) +
                                        " bytes; the swizzle allows " + std::to_string(span));
  require(d.fill == TensorMapFill::zero || is_floating(d.element),
          "only floating-point elements are filled with NaN");
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
