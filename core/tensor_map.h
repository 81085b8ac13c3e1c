// What a TMA descriptor says, for the driver's encoder (runtime/) and for the host emulator.
#pragma once

#include "core/config.h"

namespace blockscale {

/// The 128 opaque bytes that cp.async.bulk.tensor takes: a `__grid_constant__` kernel parameter.
struct alignas(64) TensorMap {
  uint64_t words[16];
};

/// Values are those of CUtensorMapDataType.
enum class TensorMapElement : uint32_t {
  u8 = 0,
  u16 = 1,
  u32 = 2,
  s32 = 3,
  u64 = 4,
  s64 = 5,
  f16 = 6,
  f32 = 7,
  f64 = 8,
  bf16 = 9,
  u4x16_packed = 13,    // 16 4-bit values in 8 bytes, dense in shared memory
  u4x16_align16b = 14,  // the same, 8 bytes of gap after every 8 in shared memory
  u6x16_align16b = 15,  // 16 6-bit values in 12 bytes, 4 bytes of gap in shared memory
};

/// Which 16-byte chunks of a 32, 64 or 128-byte span of shared memory are exchanged. Values are
/// those of CUtensorMapSwizzle.
enum class TensorMapSwizzle : uint32_t {
  none = 0,
  bytes_32 = 1,
  bytes_64 = 2,
  bytes_128 = 3,
};

/// Bytes of a row over which 16-byte chunks are exchanged; 0 without a swizzle.
BLOCKSCALE_HD constexpr uint32_t swizzle_span(TensorMapSwizzle swizzle) {
  switch (swizzle) {
    case TensorMapSwizzle::none: return 0;
    case TensorMapSwizzle::bytes_32: return 32;
    case TensorMapSwizzle::bytes_64: return 64;
    case TensorMapSwizzle::bytes_128: return 128;
  }
  return 0;
}

/// Bytes that a miss brings into L2. Values are those of CUtensorMapL2promotion.
enum class TensorMapL2Promotion : uint32_t {
  none = 0,
  bytes_64 = 1,
  bytes_128 = 2,
  bytes_256 = 3,
};

/// What elements outside the tensor read as. Values are those of CUtensorMapFloatOOBfill.
enum class TensorMapFill : uint32_t {
  zero = 0,
  nan = 1,  // floating-point elements only
};

BLOCKSCALE_HD constexpr bool is_floating(TensorMapElement element) {
  return element == TensorMapElement::f16 || element == TensorMapElement::bf16 ||
         element == TensorMapElement::f32 || element == TensorMapElement::f64;
}

inline constexpr int kMaxTensorMapRank = 5;

/// Dimension 0 is contiguous. Entries at and beyond `rank` are 0, so that equal descriptions are
/// equal bytes: the struct has no padding. (`strides[i]` belongs to dimension i + 1.)
struct TensorMapDescription {
  uint64_t address = 0;                              // in global memory, 16-byte aligned
  uint64_t sizes[kMaxTensorMapRank] = {};            // elements, each 1 to 2^32
  uint64_t strides[kMaxTensorMapRank - 1] = {};      // bytes, multiples of 16, below 2^40
  uint32_t box[kMaxTensorMapRank] = {};              // elements, each 1 to 256
  uint32_t element_strides[kMaxTensorMapRank] = {};  // 1 to 8
  uint32_t rank = 0;
  TensorMapElement element = TensorMapElement::u8;
  TensorMapSwizzle swizzle = TensorMapSwizzle::none;
  TensorMapL2Promotion l2_promotion = TensorMapL2Promotion::none;
  TensorMapFill fill = TensorMapFill::zero;
  uint32_t reserved = 0;

  friend BLOCKSCALE_HD constexpr bool operator==(const TensorMapDescription&,
                                                 const TensorMapDescription&) = default;
};
static_assert(sizeof(TensorMapDescription) == 144);

}  // namespace blockscale
