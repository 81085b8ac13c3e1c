// Chunks of several rows that a thread holds in registers between loading them and quantising them.
//
// All of them are loaded before anything is computed. Operands that rows share (modulate's scale
// and shift, rms_norm's weight) are loaded once; so cheap a function is computed anew whenever its
// value is asked for, from x, which takes half the registers of its values. The others' values are
// held.
#pragma once

#include "device/kernel.h"
#include "device/ptx/global_memory.h"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernel_sm90_operands.cuh"
#include "ops/quantize/kernel_sm90_transform.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// What is fused with all rows of a chunk's columns: modulate's 1 + scale and shift of one group of
/// rows, or rms_norm's weight.
template <QuantizeConfig kConfig>
class SharedOperands {
  static constexpr bool kModulate = kConfig.transform == InputTransform::modulate;
  static constexpr bool kNorm = kConfig.transform == InputTransform::rms_norm;
  using Operand = Chunk<Format::f32, kConfig.chunk>;

 public:
  static constexpr bool kExist = kModulate || kNorm;

  /// Those of a row that is counted through all matrices. Each column exists, with vectors.
  /// load_more() loads what else is needed, before the first of them is waited for.
  template <class LoadMore>
  BLOCKSCALE_DEVICE void load(const TransformParams& t, uint32_t row, uint32_t column,
                              const LoadMore& load_more) {
    if constexpr (kModulate) {
      const uint32_t group = t.rows_per_group.quotient(row);
      RawOperand<kConfig.chunk> scale, shift;
      scale.load(t.scale, group, column);
      shift.load(t.shift, group, column);
      load_more();
      scale.convert(factor_, t.scale.dtype);
      shift.convert(shift_, t.shift.dtype);
      make_applicable<kConfig.transform>(factor_, 0);
    } else if constexpr (kNorm) {
      RawOperand<kConfig.chunk> weight;
      weight.load(t.weight, 0, column);
      load_more();
      weight.convert(factor_, t.weight.dtype);
    }
  }

  /// The value of x in column i of the chunk, where rms_norm needs the factor of its row too.
  BLOCKSCALE_DEVICE float apply(float x, int i, float row_factor) const {
    if constexpr (kModulate) {
      return modulated(x, value_at(factor_, i), value_at(shift_, i));
    } else {
      return math::rms_norm<device::KernelMath>(x, row_factor, value_at(factor_, i));
    }
  }

 private:
  Operand factor_;
  Operand shift_;
};

/// Whether rows of a matrix from `first` to `last`, as far as they exist, share their operands.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE bool rows_share_operands(const QuantizeParams& p, uint32_t matrix, uint32_t first,
                                           uint32_t last) {
  if constexpr (kConfig.transform == InputTransform::modulate) {
    return operand_group(p, matrix, first) == operand_group(p, matrix, last);
  } else {
    return true;
  }
}

/// A thread's chunks, `step` rows apart, which share their operands. p.x.vectors holds, and k is a
/// multiple of a chunk.
///
/// In place of a chunk beyond the matrix there is the nearest one within it, of the same block: no
/// largest magnitude becomes another one by it, and loads need no conditions.
template <QuantizeConfig kConfig>
class HeldChunks {
  static constexpr bool kIdentity = kConfig.transform == InputTransform::identity;
  static constexpr bool kSwiglu = kConfig.transform == InputTransform::swiglu;
  static constexpr bool kNorm = kConfig.transform == InputTransform::rms_norm;
  static constexpr bool kShares = SharedOperands<kConfig>::kExist;
  static constexpr uint32_t kCount = kConfig.chunks;
  using Raw = Chunk<kConfig.input, kConfig.chunk>;
  using Held = Chunk<kShares ? kConfig.input : kValueFormat<kConfig>, kConfig.chunk>;

 public:
  /// `first` is the place of chunk 0, which need not exist.
  BLOCKSCALE_DEVICE HeldChunks(const QuantizeParams& p, const ChunkPlace& first, uint32_t step)
      : p_(p), first_(first), step_(step) {
    column_ = first.column < p.k ? first.column : p.k - kConfig.chunk;
    from_ = p.x.data + first.matrix * p.x.batch_stride;
  }

  BLOCKSCALE_DEVICE void load() {
    load([] {});
  }

  /// Calls load_more() where operands are shared, once x and these are on their way: before factors
  /// of rows are loaded, and before anything that is loaded is waited for.
  template <class LoadMore>
  BLOCKSCALE_DEVICE void load(const LoadMore& load_more) {
    if constexpr (kSwiglu) {
      load_gated_chunks();
    } else if constexpr (kIdentity || kShares) {
      load_raw(held_);
      if constexpr (kShares) {
        operands_.load(p_.transform, counted_row(0), column_, [&] {
          load_more();
          if constexpr (kNorm) load_row_factors();
        });
      }
    } else {
      Raw raw[kCount];
      load_raw(raw);
      BLOCKSCALE_UNROLL
      for (uint32_t u = 0; u < kCount; ++u) gelu_chunk<kConfig.transform>(held_[u], raw[u]);
    }
  }

  BLOCKSCALE_DEVICE bool is_present(uint32_t u) const {
    return first_.row + u * step_ < p_.rows && first_.column < p_.k;
  }

  BLOCKSCALE_DEVICE ValueChunk<kConfig> values(uint32_t u) const {
    if constexpr (kShares) {
      ValueChunk<kConfig> values;
      fill_values(values, [&](int i) { return value(u, i); });
      return values;
    } else {
      return held_[u];
    }
  }

  /// Element i of chunk u.
  BLOCKSCALE_DEVICE float value(uint32_t u, int i) const {
    const float held = value_at(held_[u], i);
    if constexpr (kShares) {
      return operands_.apply(held, i, row_factor_[kNorm ? u : 0]);
    } else {
      return held;
    }
  }

 private:
  /// The row of chunk u, or the last one.
  BLOCKSCALE_DEVICE uint32_t row(uint32_t u) const {
    const uint32_t row = first_.row + u * step_;
    const uint32_t last = p_.rows - 1;
    return row < last ? row : last;
  }
  /// The same, counted through all matrices.
  BLOCKSCALE_DEVICE uint32_t counted_row(uint32_t u) const {
    return first_.matrix * p_.rows + row(u);
  }

  BLOCKSCALE_DEVICE const uint8_t* row_of(uint32_t u) const {
    return from_ + row(u) * p_.x.row_stride;
  }

  BLOCKSCALE_DEVICE void load_raw(Raw (&raw)[kCount]) const {
    const int64_t offset = int64_t{column_} * Raw::kElementBytes;
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kCount; ++u) load_vectors(raw[u], row_of(u) + offset);
  }

  BLOCKSCALE_DEVICE void load_row_factors() {
    await_row_factors<kConfig>();
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kCount; ++u) {
      row_factor_[u] = ptx::ld_global(p_.transform.row_factors + counted_row(u));
    }
  }

  /// All at once, or half of them where registers hold no more.
  BLOCKSCALE_DEVICE void load_gated_chunks() {
    constexpr uint32_t kAtOnce = kConfig.input == Format::f32 ? (kCount + 1) / 2 : kCount;
    const GatedOffsets offsets = gated_offsets<kConfig.input, kConfig.chunk>(p_, column_);
    const bool pairs = p_.transform.gate_group == 1;
    BLOCKSCALE_UNROLL
    for (uint32_t first = 0; first < kCount; first += kAtOnce) {
      GatedChunk<kConfig.input, kConfig.chunk> gated[kAtOnce];
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        load_gated(gated[i], p_, row_of(first + i), offsets, kConfig.chunk, true);
      }
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        if (pairs) {
          swiglu_of<true>(held_[first + i], p_.transform, gated[i]);
        } else {
          swiglu_of<false>(held_[first + i], p_.transform, gated[i]);
        }
      }
    }
  }

  const QuantizeParams& p_;
  ChunkPlace first_;
  uint32_t step_;
  uint32_t column_;      // of all chunks
  const uint8_t* from_;  // the matrix
  Held held_[kCount];
  float row_factor_[kNorm ? kCount : 1] = {};
  SharedOperands<kConfig> operands_ = {};
};

/// Folds the magnitudes of a thread's chunks, `step` rows apart from `first` down, as far as they
/// exist, one after the other.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void fold_rows_in_turn(Largest<kValueFormat<kConfig>, false>& largest,
                                         const QuantizeParams& p, const ChunkPlace& first,
                                         uint32_t step) {
  BLOCKSCALE_NO_UNROLL
  for (uint32_t u = 0; u < kConfig.chunks; ++u) {
    ValueChunk<kConfig> chunk;
    load_part_of<kConfig>(chunk, p, below(first, u * step));
    largest.fold(chunk);
  }
}

/// The same of all at once, which `chunks` then hold, or with !may_hold one after the other.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void fold_rows(Largest<kValueFormat<kConfig>, false>& largest,
                                 HeldChunks<kConfig>& chunks, bool may_hold,
                                 const QuantizeParams& p, const ChunkPlace& first, uint32_t step) {
  if (may_hold) {
    chunks.load();
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kConfig.chunks; ++u) largest.fold(chunks.values(u));
  } else {
    fold_rows_in_turn<kConfig>(largest, p, first, step);
  }
}

}  // namespace blockscale::quantize_sm90
