// How scales follow from amaxes, and where they go: what quantizers and quantizing epilogues are
// launched with. Compiled by the host, NVRTC and the emulator alike.
#pragma once

#include "core/config.h"
#include "core/scale_layout.h"

namespace blockscale {

/// How a scale follows from an amax, and an element meets it (docs/numerics.md).
enum class ScaleRule : uint8_t {
  mx,     // ue8m0, multiply by its inverse
  nvfp4,  // ue4m3, multiply by S / s
  fp8,    // f32, f32 powers of two or ue8m0 (a run-time value): divide
};

/// FP8 scales in memory.
enum class Fp8Scale : uint8_t { f32, f32_power_of_two, ue8m0 };

/// What a rule leaves open.
struct ScaleOptions {
  uint32_t exponent_rounding = 0;  // mx: quantize_detail::exponent_rounding
  float amax_floor = 0;            // fp8
  Fp8Scale fp8_scale = Fp8Scale::f32;
};

/// The scales of a [rows, columns] grid of blocks, or of a batch of them. Strides count scales.
struct ScaleMatrix {
  uint8_t* data = nullptr;
  ScaleLayout layout = ScaleLayout::row_major;
  bool bytes = false;  // a scale has one byte, not four
  bool pairs = false;  // two aligned columns of a row are bytes side by side at an even address
  int64_t leading_stride = 0;
  int64_t batch_stride = 0;
  int64_t column_step = 0;  // between neighbours of two aligned columns
  uint32_t rows = 0;        // of the grid, padding of the layout included
  uint32_t columns = 0;
};

}  // namespace blockscale
