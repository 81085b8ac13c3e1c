// What a TMA descriptor may say: the rules of cuTensorMapEncodeTiled (CUDA driver API, "Tensor Map
// Object Management"), for the driver's encoder and for the host emulator.
#pragma once

#include "core/tensor_map.h"

namespace blockscale {

/// Bits that an element takes in shared memory, its gap included; 0 if there is no such element.
BLOCKSCALE_HD constexpr uint32_t shared_bits(TensorMapElement element) {
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
  return 0;
}

/// Whether a gap follows every 16 elements in shared memory.
BLOCKSCALE_HD constexpr bool has_gaps(TensorMapElement element) {
  return element == TensorMapElement::u4x16_align16b || element == TensorMapElement::u6x16_align16b;
}

/// What addresses and strides are multiples of, in bytes: 32 for elements with gaps, else 16.
BLOCKSCALE_HD constexpr uint32_t address_alignment(TensorMapElement element) {
  return has_gaps(element) ? 32 : 16;
}

/// What rows of the tensor and starts of boxes are multiples of, in elements.
BLOCKSCALE_HD constexpr uint32_t row_alignment(TensorMapElement element) {
  return has_gaps(element) ? 128 : element == TensorMapElement::u4x16_packed ? 2 : 1;
}

/// Prints to a stream the first rule that a description breaks, after the field's value: "box[1] is
/// 257; 1 to 256 are allowed". False, if it keeps them all: then nothing is printed.
template <class Stream>
BLOCKSCALE_HD bool print_broken_rule(Stream& out, const TensorMapDescription& d) {
  const auto within = [](uint64_t value, uint64_t least, uint64_t most) {
    return value >= least && value <= most;
  };
  const uint32_t bits = shared_bits(d.element);
  const uint32_t alignment = address_alignment(d.element);
  if (bits == 0) {
    out << "element is " << static_cast<uint32_t>(d.element) << "; there is no such type";
    return true;
  }
  if (!within(d.rank, 1, kMaxTensorMapRank)) {
    out << "rank is " << d.rank << "; 1 to " << kMaxTensorMapRank << " are allowed";
    return true;
  }
  if (d.address == 0 || d.address % alignment != 0) {
    out << "address is " << d.address << "; a multiple of " << alignment << " is needed";
    return true;
  }
  for (uint32_t i = 0; i < d.rank; ++i) {
    if (!within(d.sizes[i], 1, uint64_t{1} << 32)) {
      out << "sizes[" << i << "] is " << d.sizes[i] << "; 1 to 2^32 are allowed";
      return true;
    }
    if (!within(d.box[i], 1, 256)) {
      out << "box[" << i << "] is " << d.box[i] << "; 1 to 256 are allowed";
      return true;
    }
    if (!within(d.element_strides[i], 1, 8)) {
      out << "element_strides[" << i << "] is " << d.element_strides[i] << "; 1 to 8 are allowed";
      return true;
    }
  }
  if (d.sizes[0] % row_alignment(d.element) != 0) {
    out << "sizes[0] is " << d.sizes[0] << "; a multiple of " << row_alignment(d.element)
        << " is needed";
    return true;
  }
  if (has_gaps(d.element) && d.box[0] != 128) {
    out << "box[0] is " << d.box[0] << "; elements with gaps need 128";
    return true;
  }
  if (has_gaps(d.element) && d.swizzle != TensorMapSwizzle::none &&
      d.swizzle != TensorMapSwizzle::bytes_128) {
    out << "swizzle is " << static_cast<uint32_t>(d.swizzle)
        << "; elements with gaps have none, or 128 bytes";
    return true;
  }
  for (uint32_t i = 0; i + 1 < d.rank; ++i) {
    if (d.strides[i] % alignment == 0 && d.strides[i] < uint64_t{1} << 40) continue;
    out << "strides[" << i << "] is " << d.strides[i] << "; a multiple of " << alignment
        << " is needed, below 2^40";
    return true;
  }
  if (d.fill != TensorMapFill::zero && !is_floating(d.element)) {
    out << "fill is " << static_cast<uint32_t>(d.fill)
        << "; only floating-point elements are filled with NaN";
    return true;
  }
  const uint64_t row_bytes = uint64_t{d.box[0]} * bits / 8;
  if (row_bytes % 16 != 0) {
    out << "box[0] is " << d.box[0] << "; a row of the box must be a multiple of 16 bytes, not "
        << row_bytes;
    return true;
  }
  const uint32_t span = swizzle_span(d.swizzle);
  if (span != 0 && row_bytes > span) {
    out << "box[0] is " << d.box[0] << "; a row of the box must fit the swizzle's " << span
        << " bytes, not take " << row_bytes;
    return true;
  }
  return false;
}

}  // namespace blockscale
