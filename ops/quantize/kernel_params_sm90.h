// What the quantisers' kernels (kernels_sm90.h) are launched with: shapes, strides, scale layouts,
// modes. Compiled by the host, NVRTC and the emulator alike.
#pragma once

#include "core/config.h"
#include "core/divisor.h"
#include "core/format.h"
#include "core/input_transform.h"
#include "core/scale_layout.h"

namespace blockscale {

/// FP8 scales in memory.
enum class Fp8Scale : uint8_t { f32, f32_power_of_two, ue8m0 };

/// Where the tensor scale (NVFP4's S, or the one scale of fp8_tensor) comes from.
enum class TensorScaleSource : uint8_t {
  none,        // the recipe has none, or its pointer is null: 1
  multiplier,  // NVFP4: `tensor_scale` holds t, S = 1 / t
  stored,      // `tensor_scale` holds S, or the scale
  maxima,      // it follows from what a `maximum` kernel has left
};

/// Largest magnitudes on their way from `maximum` to the scale of a tensor.
struct MaximaParams {
  uint32_t* bits = nullptr;  // of f32 magnitudes; Inf stays Inf. Behind the last: zeros up to 16 B
  uint32_t count = 0;        // for one scale, at most kMaxMaxima; none of an empty tensor
  Divisor parts = {};        // maximum: thread blocks for one scale, `count`
  uint32_t stride = 0;       // words between matrices, a multiple of 4; 0: one scale for all
  float* scales = nullptr;   // where the scale goes for the caller; may be null
  int64_t scale_stride = 0;  // between matrices
  bool as_multiplier = false;  // nvfp4: it is stored as t
};

/// What thread blocks of a `stripe` kernel tell each other (kernel_sm90_stripe.cuh).
struct StripeParams {
  uint64_t* sums = nullptr;  // of squares: for each tile, of each pair of rows
  uint64_t words = 0;        // of sums, an even number
  uint32_t stripes = 0;      // through all matrices
  Divisor per_matrix = {};   // stripes of one matrix
  uint32_t teams = 0;
  uint32_t slots = 0;  // for tiles in shared memory: a team's stripes, at most kStripeSlots
};

/// A [rows, columns] matrix on the device, or a batch of them. Strides are bytes.
struct DeviceMatrix {
  const uint8_t* data = nullptr;
  int64_t row_stride = 0;
  int64_t batch_stride = 0;
  Format dtype = Format::f32;
  bool vectors = false;  // each row starts at a multiple of 16 bytes
};

/// What is fused with the input (docs/numerics.md, "Fused inputs").
struct TransformParams {
  GateOrder gate_order = GateOrder::gate_first;
  int64_t gate_group = 0;   // swiglu: as in gated_columns
  DeviceMatrix scale = {};  // modulate: row = group
  DeviceMatrix shift = {};
  Divisor rows_per_group = {};  // modulate: rows, counted through all matrices, of one group
  DeviceMatrix weight = {};     // rms_norm
  float epsilon = 0;
  float reciprocal_k = 0;              // rms_norm: 1 / K, rounded
  const float* row_factors = nullptr;  // rms_norm where another kernel has found them
};

/// Tiles are numbered along k first, then along rows, then through the matrices.
struct TileGrid {
  uint32_t tiles = 0;
  Divisor across = {};      // tiles side by side along k
  Divisor per_matrix = {};  // tiles of one matrix
  uint32_t log2_chunks = 0;
  uint32_t rows = 0;  // of a tile
};

/// Of every kernel of the list. Fields that one of its kind does not read are as they are here.
struct QuantizeParams {
  DeviceMatrix x = {};
  uint32_t rows = 0;
  uint32_t k = 0;           // columns of what is quantised; both are below 2^30
  uint32_t row_rounds = 0;  // holds_rows: times that a row's warps go on to its next elements
  TileGrid grid = {};
  Divisor row_warps = {};  // holds_rows: warps of a row; a tile's rows are those of a thread block
  TransformParams transform = {};

  uint8_t* values = nullptr;
  int64_t value_row_stride = 0;  // bytes
  int64_t value_batch_stride = 0;
  bool value_vectors = false;  // each chunk's codes start at a multiple of their store's size

  uint8_t* scales = nullptr;
  ScaleLayout layout = ScaleLayout::row_major;
  Fp8Scale fp8_scale = Fp8Scale::f32;
  int64_t scale_leading_stride = 0;  // scales
  int64_t scale_batch_stride = 0;    // scales
  int64_t scale_column_step = 0;     // scales between neighbours of 2 aligned columns of the grid
  int64_t scale_row_step = 0;        // and of 8 aligned rows of it
  bool scale_pairs = false;          // these are bytes side by side at an even address
  uint32_t scale_rows = 0;           // of the grid, padding of the layout included
  uint32_t scale_columns = 0;
  uint32_t block_rows = 1;  // tall, stripe

  uint32_t exponent_rounding = 0;  // mx: quantize_detail::exponent_rounding
  float amax_floor = 0;            // fp8
  bool given_scales = false;       // scaled, block 0: `scales` holds one for each row

  TensorScaleSource tensor_source = TensorScaleSource::none;
  const float* tensor_scale = nullptr;
  int64_t tensor_scale_stride = 0;

  MaximaParams maxima = {};
  /// After a `maximum` or `norm` kernel: the last tile first, since what that one has read last is
  /// still in the level-2 cache.
  bool backwards = false;

  float* row_factors = nullptr;  // norm, maximum of rms_norm: batch x rows
  StripeParams stripes = {};     // stripe, clear

  /// The kernel that comes next in the stream may be resident from this one's beginning on. (Tiles
  /// of rows and columns let it start near their end in any case.)
  bool lets_next_start = false;
  /// Thread blocks prefetch their tile before they wait, those of GELU's `maximum` two rounds of
  /// tiles instead of the first one, those with a table their first ones before they fill it, those
  /// of `stripe` their first one unless `clear` does, which has this instead.
  bool prefetches = false;
};

}  // namespace blockscale
