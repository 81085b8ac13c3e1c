// What the quantizers' kernels (config.h) are launched with: shapes, strides, scale layouts, modes.
// Compiled by the host, NVRTC and the emulator alike.
#pragma once

#include "core/config.h"
#include "core/divisor.h"
#include "core/format.h"
#include "core/input_transform.h"
#include "core/math.h"
#include "device/encode/scale_matrix.h"

namespace blockscale {

/// A [rows, columns] matrix on the device, or a batch of them. Strides are bytes.
struct DeviceMatrix {
  const uint8_t* data = nullptr;
  int64_t row_stride = 0;
  int64_t batch_stride = 0;
  Format dtype = Format::f32;
  bool vectors = false;  // each row starts at a multiple of 16 bytes
};

/// What is fused with the input (docs/numerics.md, "Fused inputs").
struct FusedParams {
  math::GeluTail gelu = {};
  GateOrder gate_order = GateOrder::gate_first;
  int64_t gate_group = 0;   // swiglu: as in gated_columns; 0: silu, whose ups are 1
  DeviceMatrix scale = {};  // modulate: row = group
  DeviceMatrix shift = {};
  Divisor rows_per_group = {};  // modulate: rows, counted through all matrices, of one group
  DeviceMatrix weight = {};     // rms_norm
  float epsilon = 0;
  float reciprocal_k = 0;  // rms_norm: 1 / K, rounded
  /// rms_norm: 1 / root mean square of each row, batch x rows: `rstd` and `amax` write it, kernels
  /// that follow them read it.
  float* rstd = nullptr;
};

/// Tiles are numbered along k first, then along rows, then through the matrices.
struct TileGrid {
  uint32_t tiles = 0;
  Divisor across = {};      // tiles side by side along k
  Divisor per_matrix = {};  // tiles of one matrix
  uint32_t log2_chunks = 0;
  uint32_t rows = 0;  // of a tile
};

/// Where the tensor scale (NVFP4's S, or the one scale of fp8_tensor) comes from.
enum class TensorScaleSource : uint8_t {
  none,        // the recipe has none, or its pointer is null: 1
  multiplier,  // NVFP4: `tensor_scale` holds t, S = 1 / t
  stored,      // `tensor_scale` holds S, or the scale
  amaxes,      // it follows from what an `amax` kernel has left
};

/// Partial amaxes on their way from `amax` to the scale of a tensor.
struct AmaxParams {
  uint32_t* bits = nullptr;  // of f32 magnitudes; Inf stays Inf. Behind the last: zeros up to 16 B
  uint32_t count = 0;        // for one scale, at most kMostAmaxes; none of an empty tensor
  Divisor parts = {};        // amax: CTAs for one scale, `count`
  uint32_t stride = 0;       // words between matrices, a multiple of 4; 0: one scale for all
  float* scales = nullptr;   // where the scale goes for the caller; may be null
  int64_t scale_stride = 0;  // between matrices
  bool as_multiplier = false;  // nvfp4: it is stored as t
};

/// Of every kernel of the list. Fields that one of its kind does not read are as they are here.
struct QuantizeParams {
  DeviceMatrix x = {};
  /// gathered: row r is of x's row row_index[r]; if that is negative, nothing is stored.
  const int32_t* row_index = nullptr;
  uint32_t rows = 0;
  uint32_t k = 0;  // columns of what is quantized; both are below 2^30
  TileGrid grid = {};
  FusedParams fused = {};

  uint32_t row_rounds = 0;  // rows: times that a row's warps go on to its next elements
  Divisor row_warps = {};   // rows: warps of a row; a tile's rows are those of a CTA

  uint8_t* values = nullptr;
  int64_t value_row_stride = 0;  // bytes
  int64_t value_batch_stride = 0;
  bool value_vectors = false;  // each chunk's codes start at a multiple of their store's size

  ScaleMatrix scales = {};
  ScaleOptions scale_options = {};
  uint32_t block_rows = 1;    // blocks_2d
  bool given_scales = false;  // cast: `scales` holds one for each row

  TensorScaleSource tensor_source = TensorScaleSource::none;
  const float* tensor_scale = nullptr;
  int64_t tensor_scale_stride = 0;

  AmaxParams amax = {};
  /// After an `amax` or `rstd` kernel: the last tile first, since what that one has read last is
  /// still in L2.
  bool backwards = false;
  /// The kernel that comes next in the stream may be resident from this one's beginning on.
  bool lets_next_start = false;
};

}  // namespace blockscale
