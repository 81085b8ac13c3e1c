// Operands that rows share (modulate's 1 + scale and shift, rms_norm's weight): loading them as
// they lie in memory, and applying what shared memory holds of them.
#pragma once

#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/shared_memory.h"
#include "device/vector.h"
#include "ops/quantize/kernel_sm90_chunk.cuh"
#include "ops/quantize/kernel_sm90_transform.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// Columns of a row of an operand as they lie in memory, in the first half of the words where they
/// are 16 bits wide. Operands are all loaded before one of them is converted.
template <int kCount>
struct RawOperand {
  uint32_t word[kCount];

  /// Each column exists, with vectors.
  BLOCKSCALE_DEVICE void load(const DeviceMatrix& operand, uint32_t row, uint32_t column) {
    const uint8_t* const from = operand.data + row * operand.row_stride;
    if (operand.dtype == Format::f32) {
      load_words<kCount>(from + int64_t{column} * 4);
    } else {
      load_words<kCount / 2>(from + int64_t{column} * 2);
    }
  }

  BLOCKSCALE_DEVICE void convert(Chunk<Format::f32, kCount>& values, Format dtype) const {
    if (dtype == Format::bf16) {
      convert_from<Format::bf16>(values);
    } else if (dtype == Format::f16) {
      convert_from<Format::f16>(values);
    } else {
      convert_from<Format::f32>(values);
    }
  }

 private:
  template <int kWords>
  BLOCKSCALE_DEVICE void load_words(const uint8_t* from) {
    Chunk<Format::f32, kWords> words;
    load_vectors(words, from);
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kWords; ++i) word[i] = words.word[i];
  }

  template <Format kFormat>
  BLOCKSCALE_DEVICE void convert_from(Chunk<Format::f32, kCount>& values) const {
    Chunk<kFormat, kCount> chunk;
    BLOCKSCALE_UNROLL
    for (int i = 0; i < Chunk<kFormat, kCount>::kWords; ++i) chunk.word[i] = word[i];
    fill_values(values, [&](int i) { return value_at(chunk, i); });
  }
};

/// Where an operand of kTransform lies: modulate's scale is the first, its shift the second.
template <InputTransform kTransform>
BLOCKSCALE_DEVICE const DeviceMatrix& operand_matrix(const TransformParams& t, int operand) {
  if constexpr (kTransform == InputTransform::rms_norm) return t.weight;
  return operand == 0 ? t.scale : t.shift;
}

/// An operand from its matrix becomes what is applied: modulate's scale 1 + scale.
template <InputTransform kTransform, int kCount>
BLOCKSCALE_DEVICE void make_applicable(Chunk<Format::f32, kCount>& operand, int which) {
  if (kTransform != InputTransform::modulate || which != 0) return;
  fill_values(operand, [&](int i) { return ptx::add_rn(1.0f, value_at(operand, i)); });
}

/// modulate with operands that are applicable: math::modulate, whose 1 + scale is known.
BLOCKSCALE_DEVICE float modulated(float x, float one_plus_scale, float shift) {
  return ptx::fma_rn(x, one_plus_scale, shift);
}

/// values[i] = function(i, operands of element i...) for all i. place(o, v): the address of
/// elements 4 v to 4 v + 3 of operand o in shared memory.
template <int kOperands, int kCount, class Place, class Function>
BLOCKSCALE_DEVICE void apply_operands(Chunk<Format::f32, kCount>& values, const Place& place,
                                      const Function& function) {
  using Vector = device::Vector<uint32_t, 4>;
  BLOCKSCALE_UNROLL
  for (uint32_t v = 0; v < kCount / 4; ++v) {
    float operands[kOperands][4];
    BLOCKSCALE_UNROLL
    for (uint32_t o = 0; o < kOperands; ++o) {
      const Vector four = ptx::ld_shared<Vector>(place(o, v));
      BLOCKSCALE_UNROLL
      for (int i = 0; i < 4; ++i) operands[o][i] = bit_cast<float>(four.at[i]);
    }
    BLOCKSCALE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int element = static_cast<int>(4 * v) + i;
      float result;
      if constexpr (kOperands == 1) {
        result = function(element, operands[0][i]);
      } else {
        result = function(element, operands[0][i], operands[1][i]);
      }
      values.word[element] = bit_cast<uint32_t>(result);
    }
  }
}

/// Stores elements of an operand, from a multiple of 4 on. place(v) is the address of elements
/// 4 v to 4 v + 3.
template <int kCount, class Place>
BLOCKSCALE_DEVICE void store_operand(const Chunk<Format::f32, kCount>& values, const Place& place) {
  BLOCKSCALE_UNROLL
  for (uint32_t v = 0; v < kCount / 4; ++v) {
    device::Vector<uint32_t, 4> four;
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < 4; ++i) four.at[i] = values.word[4 * v + i];
    ptx::st_shared(place(v), four);
  }
}

}  // namespace blockscale::quantize_sm90
