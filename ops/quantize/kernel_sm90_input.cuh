// Where a thread works, and what it quantises there: its elements, or what is fused with them.
#pragma once

#include "core/input_transform.h"
#include "device/kernel.h"
#include "device/ptx/grid.h"
#include "device/ptx/special_registers.h"
#include "ops/quantize/kernel_sm90_chunk.cuh"
#include "ops/quantize/kernel_sm90_transform.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// Waits for what comes before in the stream, unless that is left for later, and lets what comes
/// next start. One that waits later reads only what was complete before the kernel ahead came
/// back from its own wait. No document promises that it sees that; it does because the writer has
/// ended before this one can start.
BLOCKSCALE_DEVICE void await_turn(const QuantizeParams& p, bool waits_later = false) {
  if (!waits_later) ptx::griddepcontrol_wait();
  if (p.lets_next_start) ptx::griddepcontrol_launch_dependents();
}

/// Format of the chunks that are quantised.
template <QuantizeConfig kConfig>
inline constexpr Format kValueFormat =
    kConfig.transform == InputTransform::identity ? kConfig.input : Format::f32;

/// The same with x itself.
BLOCKSCALE_HD constexpr QuantizeConfig without_transform(QuantizeConfig config) {
  config.transform = InputTransform::identity;
  return config;
}

/// The same by chunks of another size.
BLOCKSCALE_HD constexpr QuantizeConfig with_chunk(QuantizeConfig config, int chunk) {
  config.chunk = chunk;
  return config;
}

template <QuantizeConfig kConfig>
using ValueChunk = Chunk<kValueFormat<kConfig>, kConfig.chunk>;

/// The same with what a thread loads: x where it encodes approximate values.
BLOCKSCALE_HD constexpr QuantizeConfig with_held(const QuantizeConfig& config) {
  return approximates_gelu(config) ? without_transform(config) : config;
}
template <QuantizeConfig kConfig>
using HeldChunk =
    Chunk<approximates_gelu(kConfig) ? kConfig.input : kValueFormat<kConfig>, kConfig.chunk>;

/// Before row factors of rms_norm are loaded: they may be what a `maximum` or `norm` kernel has
/// found, which has not been waited for yet.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void await_row_factors() {
  if constexpr (follows_maximum(kConfig) || follows_norm(kConfig)) ptx::griddepcontrol_wait();
}

/// The tile whose turn it is, of p.grid.tiles turns.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE uint32_t tile_in_turn(const QuantizeParams& p, uint32_t turn) {
  const bool backwards = (follows_maximum(kConfig) || follows_norm(kConfig)) && p.backwards;
  return backwards ? p.grid.tiles - 1 - turn : turn;
}

/// Calls body(tile) for each tile of the thread block: all that are `grid` apart, or just one.
template <QuantizeConfig kConfig, class Body>
BLOCKSCALE_DEVICE void each_tile(const QuantizeParams& p, const Body& body) {
  if constexpr (kConfig.persistent) {
    for (uint32_t tile = ptx::ctaid_x(); tile < p.grid.tiles; tile += ptx::nctaid_x()) body(tile);
  } else if (ptx::ctaid_x() < p.grid.tiles) {
    body(tile_in_turn<kConfig>(p, ptx::ctaid_x()));
  }
}

/// Place of a tile: the matrix, its first row, and its number along k.
struct TilePlace {
  uint32_t matrix;
  uint32_t row;
  uint32_t across;
};

BLOCKSCALE_DEVICE TilePlace tile_place(const TileGrid& grid, uint32_t tile) {
  const uint32_t matrix = grid.per_matrix.quotient(tile);
  const uint32_t in_matrix = tile - matrix * grid.per_matrix.divisor;
  const uint32_t down = grid.across.quotient(in_matrix);
  return {matrix, down * grid.rows, in_matrix - down * grid.across.divisor};
}

/// First element of a chunk in a batch of matrices.
struct ChunkPlace {
  uint32_t matrix;
  uint32_t row;
  uint32_t column;
};

/// The group of operands of a row of a matrix, or of the last one that exists.
BLOCKSCALE_DEVICE uint32_t operand_group(const QuantizeParams& p, uint32_t matrix, uint32_t row) {
  const uint32_t existing = row < p.rows ? row : p.rows - 1;
  return p.transform.rows_per_group.quotient(matrix * p.rows + existing);
}

BLOCKSCALE_DEVICE ChunkPlace below(const ChunkPlace& first, uint32_t rows) {
  return {first.matrix, first.row + rows, first.column};
}

/// Where a row of x begins, and where x lies at a place.
BLOCKSCALE_DEVICE const uint8_t* x_row_at(const QuantizeParams& p, uint32_t matrix, uint32_t row) {
  return p.x.data + matrix * p.x.batch_stride + row * p.x.row_stride;
}
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE const uint8_t* x_at(const QuantizeParams& p, const ChunkPlace& place) {
  return x_row_at(p, place.matrix, place.row) +
         int64_t{place.column} * Chunk<kConfig.input, kConfig.chunk>::kElementBytes;
}

/// What is quantised at and around a place of a batch of matrices: elements of x, or what is fused
/// with them. Everything beyond the matrix is 0.
template <QuantizeConfig kConfig>
class Input {
  static constexpr InputTransform kTransform = kConfig.transform;
  using Raw = Chunk<kConfig.input, kConfig.chunk>;

 public:
  BLOCKSCALE_DEVICE Input(const QuantizeParams& p, const ChunkPlace& place) : p_(p), place_(place) {
    row_ = x_row_at(p, place.matrix, place.row);
  }

  /// The chunk `columns` to the right. All of it exists, and p.x.vectors holds.
  BLOCKSCALE_DEVICE void load_whole(ValueChunk<kConfig>& chunk, uint32_t columns = 0) const {
    load(chunk, columns, kConfig.chunk, true);
  }

  /// The chunk at the place itself, which need not exist.
  BLOCKSCALE_DEVICE void load_part_of(ValueChunk<kConfig>& chunk) const {
    const int32_t left = static_cast<int32_t>(p_.k - place_.column);
    if (place_.row < p_.rows && left > 0) {
      load(chunk, 0, left, p_.x.vectors && left >= kConfig.chunk);
    } else {
      clear(chunk);
    }
  }

 private:
  BLOCKSCALE_DEVICE const uint8_t* raw_at(uint32_t columns) const {
    return row_ + int64_t{place_.column + columns} * Raw::kElementBytes;
  }

  BLOCKSCALE_DEVICE void load(ValueChunk<kConfig>& chunk, uint32_t columns, int32_t left,
                              bool whole) const {
    if constexpr (kTransform == InputTransform::identity) {
      load_part(chunk, raw_at(columns), left, whole);
    } else if constexpr (kTransform == InputTransform::swiglu) {
      load_swiglu<kConfig.input>(chunk, p_, row_, place_.column + columns, left, whole);
    } else {
      Raw raw;
      load_part(raw, raw_at(columns), left, whole);
      const uint32_t column = place_.column + columns;
      const uint32_t row = place_.matrix * p_.rows + place_.row;
      if constexpr (kTransform == InputTransform::modulate) {
        modulate_chunk(chunk, p_.transform, raw, row, column, left, whole);
      } else if constexpr (kTransform == InputTransform::rms_norm) {
        await_row_factors<kConfig>();
        const float factor = ptx::ld_global(p_.transform.row_factors + row);
        normalize_chunk(chunk, p_.transform, raw, factor, column, left, whole);
      } else {
        gelu_chunk<kTransform>(chunk, raw);
      }
    }
  }

  const QuantizeParams& p_;
  ChunkPlace place_;
  const uint8_t* row_;
};

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void load_part_of(ValueChunk<kConfig>& chunk, const QuantizeParams& p,
                                    const ChunkPlace& place) {
  Input<kConfig>(p, place).load_part_of(chunk);
}

}  // namespace blockscale::quantize_sm90
