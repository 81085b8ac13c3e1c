// A thread's chunk of one row, as kernel_sm90_units.cuh has it, from approximate values of GELU.
#pragma once

#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/warp.h"
#include "ops/quantize/kernel_sm90_gelu_codes.cuh"
#include "ops/quantize/kernel_sm90_gelu_maximum.cuh"
#include "ops/quantize/kernel_sm90_units.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// As store_shortly, from approximate values of GELU of a chunk of x (encode_gelu), in a block with
/// the largest magnitude `amax` (bits). Returns the set of its pieces of 8 elements that must be
/// stored again.
template <QuantizeConfig kConfig, class GeluAt>
BLOCKSCALE_DEVICE uint32_t store_likely(const QuantizeParams& p, const ChunkPlace& place,
                                        const HeldChunk<kConfig>& x, const GeluAt& gelu_at,
                                        const BlockScale& scale, uint32_t amax) {
  const auto likely = encode_gelu<kConfig.element, kConfig.rule>(x, gelu_at, scale, amax);
  store_codes(likely.codes, codes_at<kConfig.element>(p, place));
  return likely.doubtful;
}

/// Stores a set of pieces of 8 elements again, the exact way: piece i is the one at place_of(i), of
/// unit i * 8 / kSize.
template <QuantizeConfig kConfig, class PlaceOf>
BLOCKSCALE_DEVICE void store_again(const QuantizeParams& p, uint32_t pieces,
                                   const Units<kConfig>& units, const PlaceOf& place_of) {
  constexpr QuantizeConfig kPiece = with_chunk(kConfig, 8);
  constexpr uint32_t kPieces = Units<kConfig>::kSize / 8;
  BLOCKSCALE_NO_UNROLL
  for (uint32_t i = 0; pieces >> i != 0; ++i) {
    if ((pieces >> i & 1) == 0) continue;
    const ChunkPlace place = place_of(i);
    ValueChunk<kPiece> piece;
    load_part_of<kPiece>(piece, p, place);
    BlockScale scale = units.scale[0];
    if constexpr (Units<kConfig>::kCount == 2) {
      if (i >= kPieces) scale = units.scale[1];
    }
    store_exactly<kPiece>(p, place, piece, scale);
  }
}

/// The same of pieces that lie side by side, the first at `place`.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void store_chunk_again(const QuantizeParams& p, uint32_t pieces,
                                         const Units<kConfig>& units, const ChunkPlace& place) {
  store_again<kConfig>(p, pieces, units, [&](uint32_t i) {
    return ChunkPlace{place.matrix, place.row, place.column + 8 * i};
  });
}

/// The scale of an mx block whose largest magnitude lies between bounds: exceptional, unless it is
/// the same for both.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE BlockScale scale_between(const QuantizeParams& p, const Bounds& amax) {
  const auto scale_of = [&](float magnitude) {
    return block_scale<kConfig, false>(p, 1.0f, bit_cast<uint32_t>(magnitude));
  };
  BlockScale scale = scale_of(amax.low);
  scale.exceptional |= scale.stored != scale_of(amax.high).stored;
  return scale;
}

/// The largest magnitude (bits) of GELU of the blocks of chunks of x, which is no larger than the
/// exact one, and the scale, which is that of the exact one unless it is exceptional. All lanes of
/// a warp call it.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE uint32_t find_gelu_scale(BlockScale& scale, const QuantizeParams& p,
                                           const HeldChunk<kConfig> (&x)[1]) {
  constexpr InputTransform kTransform = kConfig.transform;
  constexpr uint32_t kLanes = Units<kConfig>::kLanes;
  if constexpr (kConfig.rule == ScaleRule::fp8) {
    const auto value_of = [](float y) { return gelu<kTransform>(y); };
    const uint32_t amax = largest_gelu_of_lanes<kTransform, false, kLanes>(x, value_of).bits;
    scale = block_scale<kConfig, false>(p, 1.0f, amax);
    return amax;
  } else {
    const auto value_of = [](float y) { return approximate_gelu<kTransform>(y).value(); };
    const auto largest = largest_gelu_of_lanes<kTransform, true, kLanes>(x, value_of);
    const Bounds bounds(bit_cast<float>(largest.bits), largest.ordered);
    scale = scale_between<kConfig>(p, bounds);
    return bit_cast<uint32_t>(bounds.low);
  }
}

/// As quantize_chunk, of GELU from approximate values of chunks of x.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE bool quantize_gelu_chunk(const QuantizeParams& p, const ChunkPlace& place,
                                           const ChunkState& state,
                                           const HeldChunk<kConfig> (&x)[1]) {
  static_assert(Units<kConfig>::kCount == 1);
  constexpr bool kHasSureCodes = format_traits(kConfig.element).bits < 8;
  Units<kConfig> units;
  BlockScale& scale = units.scale[0];
  const uint32_t amax = find_gelu_scale<kConfig>(scale, p, x);
  store_block_scales<kConfig>(p, place, units, state.inside);
  if (kHasSureCodes) scale.exceptional |= !has_sure_codes<kConfig.element>(amax);
  if (any_exceptional(units)) return false;
  if (!state.inside) return true;
  const auto gelu_at = [&](int i) {
    return approximate_gelu<kConfig.transform>(value_at(x[0], i)).value();
  };
  const uint32_t doubtful = store_likely<kConfig>(p, place, x[0], gelu_at, scale, amax);
  store_chunk_again<kConfig>(p, doubtful, units, place);
  return true;
}

/// Approximate values of GELU of a chunk: for nvfp4 magnitudes (gelu_magnitude) and signs.
template <QuantizeConfig kConfig>
struct ApproximateChunk {
  static constexpr bool kHasSigns = kConfig.rule == ScaleRule::nvfp4;
  static constexpr int kEights = kConfig.chunk / 8;

  ValueChunk<kConfig> values;
  uint32_t signs[kHasSigns ? kEights : 1];
  UnitMaxima<kConfig> maxima;  // infinite where the values may be wrong
};

/// Whether gelu_magnitude may be wrong for one of these, but for those that it gives NaN for.
template <InputTransform kTransform, Format kFormat, int kCount>
BLOCKSCALE_DEVICE bool has_too_low_x(const Chunk<kFormat, kCount>& x) {
  if constexpr (kTransform == InputTransform::gelu_tanh || kFormat == Format::f16) {
    return false;
  } else {
    uint32_t lowest = x.word[0];
    BLOCKSCALE_UNROLL
    for (const uint32_t word : x.word) lowest = ptx::min_bf16x2(lowest, word);
    const Chunk<kFormat, 2> both = {{lowest}};
    return !(ptx::min(value_at(both, 0), value_at(both, 1)) >= kLeastShortX);
  }
}

/// As unit_maxima, of magnitudes and NaN: these compare as their bits do.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE UnitMaxima<kConfig> largest_bits(const ValueChunk<kConfig>& magnitudes) {
  using U = Units<kConfig>;
  static_assert(U::kLanes == 1);
  UnitMaxima<kConfig> maxima;
  BLOCKSCALE_UNROLL
  for (int i = 0; i < U::kCount; ++i) {
    uint32_t largest = 0;
    BLOCKSCALE_UNROLL
    for (int j = 0; j < U::kSize; ++j) {
      const uint32_t bits = magnitudes.word[i * U::kSize + j];
      largest = bits > largest ? bits : largest;
    }
    maxima.bits[i] = largest;
  }
  return maxima;
}

/// Approximate values of a warp's chunks, and the largest ones of their units.
///
/// This is done before a tensor scale is waited for, and after all elements have come. Left to
/// itself the compiler puts off what nobody uses yet, and loads until they are used.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void approximate_chunk(ApproximateChunk<kConfig>& chunk,
                                         const HeldChunk<kConfig>& x) {
  using Approximate = ApproximateChunk<kConfig>;
  constexpr InputTransform kTransform = kConfig.transform;
  bool wrong;
  if constexpr (Approximate::kHasSigns) {
    wrong = has_too_low_x<kTransform>(x);
    BLOCKSCALE_UNROLL
    for (int i = 0; i < Approximate::kEights; ++i) {
      chunk.signs[i] = ptx::in_register(sign_nibbles(x, 8 * i));
    }
    fill_values(chunk.values, [&](int i) {
      return ptx::in_register(gelu_magnitude<kTransform>(value_at(x, i)));
    });
    chunk.maxima = largest_bits<kConfig>(chunk.values);
  } else {
    LargestX<kConfig.input, true> largest;
    largest.fold(x);
    wrong = !(largest.value() <= kLargestFinite);
    fill_values(chunk.values, [&](int i) {
      return ptx::in_register(approximate_gelu<kTransform>(value_at(x, i)).value());
    });
    chunk.maxima = unit_maxima<kConfig, false>(chunk.values);
  }
  BLOCKSCALE_UNROLL
  for (uint32_t& bits : chunk.maxima.bits) {
    bits = ptx::in_register(wrong ? uint32_t{kInfinityBits} : bits);
  }
}

/// Where a chunk lies that the lanes of a warp do together, an element each, and its element that
/// is the calling lane's.
template <QuantizeConfig kConfig>
class SharedChunk {
  static_assert(kConfig.chunk == 32);

 public:
  /// The chunk of lane `owner`, at its `place`. All lanes call it.
  BLOCKSCALE_DEVICE SharedChunk(const ChunkPlace& place, uint32_t owner) : owner_(owner) {
    place_ = {of_owner(place.matrix), of_owner(place.row), of_owner(place.column)};
  }

  template <class T>
  BLOCKSCALE_DEVICE T of_owner(T value) const {
    return ptx::shfl_sync_idx(ptx::kFullMask, value, owner_);
  }

  /// GELU of the element.
  BLOCKSCALE_DEVICE float exact_value(const QuantizeParams& p) const {
    const auto* const x = reinterpret_cast<const uint16_t*>(x_at<kConfig>(p, place_));
    const Chunk<kConfig.input, 2> element = {{ptx::ld_global(x + ptx::tid_x() % 32)}};
    return gelu<kConfig.transform>(value_at(element, 0));
  }

 private:
  uint32_t owner_;
  ChunkPlace place_;
};

/// Calls body(shared chunk, whether it is the calling lane's) for one chunk after the other of
/// those lanes of the warp that want it. All lanes call it.
template <QuantizeConfig kConfig, class Body>
BLOCKSCALE_DEVICE void each_shared_chunk(const ChunkPlace& place, bool wanted, const Body& body) {
  const uint32_t lane = ptx::tid_x() % 32;
  uint32_t waiting = wanted ? lane : 32;
  BLOCKSCALE_NO_UNROLL
  for (;;) {
    const uint32_t owner = ptx::redux_sync_min(ptx::kFullMask, waiting);
    if (owner == 32) return;
    body(SharedChunk<kConfig>(place, owner), owner == lane);
    if (owner == lane) waiting = 32;
  }
}

/// nvfp4: the scales of those of a warp's chunks that approximate maxima leave open, from exact
/// ones. Others that are exceptional stay so. All lanes call it.
///
/// Here and in settle_doubtful a warp does together what takes one lane many times as long: in a
/// kernel of one wave everybody waits for the last.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void settle_scales(Units<kConfig>& units, const QuantizeParams& p,
                                     float tensor_scale, const ChunkPlace& place,
                                     const ApproximateChunk<kConfig>& chunk) {
  static_assert(Units<kConfig>::kCount == 2);
  constexpr auto kLeast = bit_cast<uint32_t>(kLeastShortAmax<kConfig.transform>);
  bool open = false, approximate = is_ordinary_tensor_scale(tensor_scale);
  BLOCKSCALE_UNROLL
  for (int i = 0; i < 2; ++i) {
    const uint32_t amax = chunk.maxima.bits[i];
    open |= units.scale[i].exceptional && amax != 0;  // as beyond the matrix
    approximate &= amax == 0 || (amax >= kLeast && amax < kInfinityBits);
  }
  each_shared_chunk<kConfig>(
      place, open && approximate, [&](const SharedChunk<kConfig>& shared, bool mine) {
        const uint32_t largest =
            largest_of_lanes<16>(bit_cast<uint32_t>(ptx::abs(shared.exact_value(p))));
        BLOCKSCALE_UNROLL
        for (uint32_t i = 0; i < 2; ++i) {
          const uint32_t amax = ptx::shfl_sync_idx(ptx::kFullMask, largest, 16 * i);
          if (mine) units.scale[i] = nvfp4_scale<false>(amax, tensor_scale);
        }
      });
}

/// The scales of units with approximate maxima, which are stored. False, if one is exceptional.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE bool find_scales(Units<kConfig>& units, const QuantizeParams& p,
                                   float tensor_scale, const ChunkPlace& place, bool inside,
                                   const ApproximateChunk<kConfig>& chunk) {
  if constexpr (kConfig.kernel == QuantizeKernel::scaled) {
    units = known_scale<kConfig>(p, tensor_scale, place, chunk.maxima.bits[0]);
    return !any_exceptional(units);
  } else {
    constexpr float kError = LikelyE2m1<kConfig.transform>::kError;
    constexpr float kLeast = kLeastShortAmax<kConfig.transform>;
    BLOCKSCALE_UNROLL
    for (int i = 0; i < Units<kConfig>::kCount; ++i) {
      units.scale[i] =
          nvfp4_scale_near(bit_cast<float>(chunk.maxima.bits[i]), kError, kLeast, tensor_scale);
    }
    if (any_exceptional(units)) {
      settle_scales(units, p, tensor_scale, place, chunk);
      if (any_exceptional(units)) return false;
    }
    store_block_scales<kConfig>(p, place, units, inside);
    return true;
  }
}

/// Likely codes of approximate values.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE LikelyCodes<kConfig.element, kConfig.chunk> likely_codes(
    const ApproximateChunk<kConfig>& chunk, const Units<kConfig>& units) {
  using U = Units<kConfig>;
  if constexpr (!ApproximateChunk<kConfig>::kHasSigns) {  // the tensor's largest magnitude: unknown
    return encode_gelu<kConfig.element, kConfig.rule>(
        chunk.values, [&](int i) { return value_at(chunk.values, i); }, units.scale[0], 0);
  } else {
    constexpr int kEights = U::kSize / 8;
    LikelyCodes<kConfig.element, kConfig.chunk> likely;
    BLOCKSCALE_UNROLL
    for (int i = 0; i < U::kCount; ++i) {
      uint32_t signs[kEights];
      BLOCKSCALE_UNROLL
      for (int j = 0; j < kEights; ++j) signs[j] = chunk.signs[i * kEights + j];
      const auto part = encode_likely_products<kConfig.transform>(
          part_of<U::kSize>(chunk.values, i), signs, units.scale[i]);
      likely.doubtful |= part.doubtful << (i * kEights);
      set_part(likely.codes, i, part.codes);
    }
    return likely;
  }
}

/// nvfp4: the codes of a warp's doubtful chunks the exact way. No scale is exceptional; all lanes
/// call it.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void settle_doubtful(LikelyCodes<kConfig.element, kConfig.chunk>& likely,
                                       const QuantizeParams& p, const ChunkPlace& place,
                                       const Units<kConfig>& units) {
  static_assert(Units<kConfig>::kCount == 2);
  if (!ptx::vote_sync_any(ptx::kFullMask, likely.doubtful != 0)) return;
  each_shared_chunk<kConfig>(
      place, likely.doubtful != 0, [&](const SharedChunk<kConfig>& shared, bool mine) {
        const uint32_t lane = ptx::tid_x() % 32;
        const float first = shared.of_owner(units.scale[0].factor);
        const float second = shared.of_owner(units.scale[1].factor);
        const float value = shared.exact_value(p);
        const float magnitude = ptx::mul_rn(ptx::abs(value), lane < 16 ? first : second);
        const uint32_t sign = bit_cast<uint32_t>(value) >> 31 << 3;
        const uint32_t code = E2m1Lines(1.0f)(magnitude) - E2m1Lines::kOffset + sign;
        uint32_t eight = code << (lane % 8 * 4);
        BLOCKSCALE_UNROLL
        for (uint32_t lanes = 1; lanes < 8; lanes *= 2) {
          eight |= ptx::shfl_sync_bfly(ptx::kFullMask, eight, lanes);
        }
        BLOCKSCALE_UNROLL
        for (uint32_t i = 0; i < 4; ++i) {
          const uint32_t word = ptx::shfl_sync_idx(ptx::kFullMask, eight, 8 * i);
          if (mine && (likely.doubtful >> i & 1) != 0) likely.codes.word[i] = word;
        }
      });
}

/// As quantize_chunk, of approximate_chunk's values.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE bool quantize_approximate_chunk(const QuantizeParams& p, float tensor_scale,
                                                  const ChunkPlace& place, const ChunkState& state,
                                                  const ApproximateChunk<kConfig>& chunk) {
  Units<kConfig> units;
  if (!find_scales(units, p, tensor_scale, place, state.inside, chunk)) return false;
  auto likely = likely_codes(chunk, units);  // of lanes beyond the matrix: zeros, which are sure
  if constexpr (kConfig.rule == ScaleRule::nvfp4) settle_doubtful<kConfig>(likely, p, place, units);
  if (!state.inside) return true;
  store_codes(likely.codes, codes_at<kConfig.element>(p, place));
  if constexpr (kConfig.rule != ScaleRule::nvfp4) {
    store_chunk_again<kConfig>(p, likely.doubtful, units, place);
  }
  return true;
}

}  // namespace blockscale::quantize_sm90
