// The kernels of dequantize: a thread turns the codes of one chunk into values.
#pragma once

#include "device/conversion_loss.cuh"
#include "device/decode/codes.cuh"
#include "device/encode/store.cuh"
#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/convert.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/integer.h"
#include "device/ptx/special_registers.h"
#include "device/vector.h"
#include "ops/quantize/kernels/dequantize_config.h"
#include "ops/quantize/kernels/tiles.cuh"

namespace blockscale {
namespace quantizer {

using decoding::decode_codes;
using encoding::Chunk;
using encoding::Codes;
using encoding::e4m3_value;

/// Loads the codes of a chunk; those from `count` on, which may be any number, are 0.
template <Format kElement, int kCount>
BLOCKSCALE_DEVICE void load_codes(Codes<kElement, kCount>& codes, const uint8_t* from,
                                  int32_t count, bool vectors) {
  using C = Codes<kElement, kCount>;
  constexpr int kUnit = code_store_bytes(kElement, kCount);
  static_assert(kUnit >= 4);
  if (vectors && count >= kCount) {
    using Unit = device::Vector<uint32_t, kUnit / 4>;
    BLOCKSCALE_UNROLL
    for (int i = 0; i < C::kBytes / kUnit; ++i) {
      const Unit unit = ptx::ld_global(reinterpret_cast<const Unit*>(from) + i);
      BLOCKSCALE_UNROLL
      for (int j = 0; j < kUnit / 4; ++j) codes.word[i * (kUnit / 4) + j] = unit.at[j];
    }
    return;
  }
  constexpr int kBits = format_traits(kElement).bits;
  BLOCKSCALE_UNROLL
  for (int i = 0; i < C::kWords; ++i) codes.word[i] = 0;
  BLOCKSCALE_UNROLL
  for (int i = 0; i < C::kBytes; ++i) {
    if (8 * i / kBits >= count) continue;
    codes.word[i / 4] |= uint32_t{ptx::ld_global(from + i)} << (8 * (i % 4));
  }
}

/// The scale at an offset, in f32.
BLOCKSCALE_DEVICE float load_scale(const DequantizeParams& p, int64_t offset) {
  if (p.scale_format == Format::f32) {
    return ptx::ld_global(reinterpret_cast<const float*>(p.scales) + offset);
  }
  const uint32_t code = ptx::ld_global(p.scales + offset);
  if (p.scale_format == Format::ue4m3) return e4m3_value(code & 0x7Fu);
  return decode<Format::ue8m0>(code);
}

/// What the codes of a block are multiplied with.
BLOCKSCALE_DEVICE float scale_factor(const DequantizeParams& p, const ChunkPlace& place) {
  if (p.scales == nullptr) return 1.0f;
  const float scale =
      load_scale(p, place.matrix * p.scale_batch_stride +
                        scale_offset(p.layout, p.block_rows.quotient(place.row),
                                     p.block_k.quotient(place.column), p.scale_leading_stride));
  if (p.tensor_scale_use == TensorScaleUse::none) return scale;
  const float t = ptx::ld_global(p.tensor_scale + place.matrix * p.tensor_scale_stride);
  return p.tensor_scale_use == TensorScaleUse::multiply ? ptx::mul_rn(scale, t)
                                                        : ptx::div_rn(scale, t);
}

/// Two values rounded to f16 or bf16; NaN becomes the canonical one. Hardware gives 0x7FFF for NaN,
/// which is the largest of all as a signed number.
template <Format kOutput>
BLOCKSCALE_DEVICE uint32_t narrow_pair(float low, float high) {
  constexpr uint32_t kNan = format_traits(kOutput).nan_code;
  const uint32_t pair = kOutput == Format::bf16 ? ptx::cvt_rn_bf16x2_f32(high, low)
                                                : ptx::cvt_rn_f16x2_f32(high, low);
  return ptx::min_s16x2(pair, kNan | kNan << 16);
}

/// An f32 value with the canonical NaN, from hardware's 0x7FFFFFFF.
BLOCKSCALE_DEVICE uint32_t f32_with_nan(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  return static_cast<int32_t>(bits) > 0x7FC00000 ? 0x7FC00000u : bits;
}

/// Whether bf16 has each of these elements times a power of two, as f32 multiplies. NaN and
/// infinite elements are themselves.
template <int kCount>
BLOCKSCALE_DEVICE bool are_in_bf16(const float (&elements)[kCount], float scale) {
  constexpr uint32_t kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000, kBelowBf16 = 0xFFFF;
  bool are_in = true;
  BLOCKSCALE_UNROLL
  for (const float element : elements) {
    const float product = ptx::mul_rn(element, scale);
    const uint32_t bits = bit_cast<uint32_t>(product);
    const bool overflows =
        (bits & kMagnitude) == kInfinity && (bit_cast<uint32_t>(element) & kMagnitude) != kInfinity;
    are_in = are_in && (product != product || ((bits & kBelowBf16) == 0 && !overflows));
  }
  return are_in;
}

template <Format kOutput, int kCount>
BLOCKSCALE_DEVICE void round_values(Chunk<kOutput, kCount>& out, const float (&values)[kCount]) {
  BLOCKSCALE_UNROLL
  for (int i = 0; i < Chunk<kOutput, kCount>::kWords; ++i) {
    if constexpr (kOutput == Format::f32) {
      out.word[i] = f32_with_nan(values[i]);
    } else {
      out.word[i] = narrow_pair<kOutput>(values[2 * i], values[2 * i + 1]);
    }
  }
}

/// Stores the first `count` elements of a chunk.
template <Format kFormat, int kCount>
BLOCKSCALE_DEVICE void store_elements(const Chunk<kFormat, kCount>& chunk, uint8_t* to,
                                      int32_t count, bool vectors) {
  if (vectors && count >= kCount) {
    using Words = device::Vector<uint32_t, 4>;
    BLOCKSCALE_UNROLL
    for (int i = 0; i < Chunk<kFormat, kCount>::kWords / 4; ++i) {
      const Words words = {
          {chunk.word[4 * i], chunk.word[4 * i + 1], chunk.word[4 * i + 2], chunk.word[4 * i + 3]}};
      ptx::st_global(reinterpret_cast<Words*>(to) + i, words);
    }
    return;
  }
  BLOCKSCALE_UNROLL
  for (int i = 0; i < kCount; ++i) {
    if (i >= count) continue;
    if constexpr (kFormat == Format::f32) {
      ptx::st_global(reinterpret_cast<uint32_t*>(to) + i, chunk.word[i]);
    } else {
      ptx::st_global(reinterpret_cast<uint16_t*>(to) + i,
                     static_cast<uint16_t>(chunk.word[i / 2] >> (16 * (i % 2))));
    }
  }
}

template <DequantizeConfig kConfig>
BLOCKSCALE_DEVICE void dequantize_chunk(const DequantizeParams& p, const ChunkPlace& place) {
  constexpr Format kElement = kConfig.element;
  constexpr int kBits = format_traits(kElement).bits;
  const int32_t left = static_cast<int32_t>(p.k - place.column);
  const uint8_t* const from = p.values + place.matrix * p.value_batch_stride +
                              place.row * p.value_row_stride + int64_t{place.column} * kBits / 8;
  float values[kConfig.chunk];
  if constexpr (kBits >= 16) {
    Chunk<kElement, kConfig.chunk> chunk;
    load_part(chunk, from, left, p.value_vectors && left >= kConfig.chunk);
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kConfig.chunk; ++i) values[i] = value_at(chunk, i);
  } else {
    Codes<kElement, kConfig.chunk> codes;
    load_codes(codes, from, left, p.value_vectors);
    decode_codes<kElement, kConfig.chunk>(values, codes);
  }
  const float factor = scale_factor(p, place);
  if constexpr (kConfig.output == Format::bf16) {
    if (p.loss != nullptr && !are_in_bf16(values, factor)) conversion_loss::report(p.loss);
  }
  BLOCKSCALE_UNROLL
  for (int i = 0; i < kConfig.chunk; ++i) values[i] = ptx::mul_rn(values[i], factor);
  Chunk<kConfig.output, kConfig.chunk> out;
  round_values(out, values);
  store_elements(out,
                 p.out + place.matrix * p.out_batch_stride + place.row * p.out_row_stride +
                     int64_t{place.column} * Chunk<kConfig.output, kConfig.chunk>::kElementBytes,
                 left, p.out_vectors);
}

}  // namespace quantizer

template <DequantizeConfig kConfig>
BLOCKSCALE_DEVICE void dequantize_blocks(const DequantizeParams& params) {
  ptx::griddepcontrol_wait();
  const quantizer::TilePlace tile = quantizer::tile_place(params.grid, ptx::ctaid_x());
  const uint32_t log2 = params.grid.log2_chunks;
  const uint32_t chunk = (tile.across << log2) + (ptx::tid_x() & ((1u << log2) - 1));
  const quantizer::ChunkPlace place = {tile.matrix, tile.row + (ptx::tid_x() >> log2),
                                       chunk * kConfig.chunk};
  if (place.row < params.rows && place.column < params.k) {
    quantizer::dequantize_chunk<kConfig>(params, place);
  }
}

}  // namespace blockscale
