// The finite list of the quantizers' kernels.
//
// Compiled by the host, NVRTC and the emulator alike. A kernel is specialised on the type of its
// input, its element, the rule of its scales, what is fused, and how much a thread has in flight;
// shapes, strides, scale layouts and modes are run-time values (QuantizeParams).
//
// A thread owns *chunks*: `chunk` consecutive elements of one row. A *tile* is what a CTA does at
// once: 2^log2_chunks chunks side by side along k, over as many rows as there are threads left
// (`rows`: whole rows; `blocks_2d`: whole blocks).
#pragma once

#include "core/config.h"
#include "core/format.h"
#include "core/input_transform.h"
#include "device/encode/store.cuh"
#include "ops/quantize/kernels/params.h"

namespace blockscale {

/// What a kernel does.
enum class QuantizeKernel : uint8_t {
  blocks,     // a scale for each block of one row (1 x 16, 1 x 32, 1 x 128), and codes
  gathered,   // the same, of the rows of x that an index names
  cast,       // codes with scales that are known: fp8_tensor, fp8_row with given scales
  rows,       // per-token: a scale for each row; or rms_norm, and scales for blocks; codes
  blocks_2d,  // a scale for each block of 32, 64 or 128 rows x 128, and codes
  amax,       // partial amaxes of a tensor, for whoever makes its scale; with rms_norm rstd too
  rstd,       // rms_norm's 1 / root mean square of each row
  finalize,   // the amax itself, or nvfp4's scale, from partial amaxes: where nothing is quantized
};
inline constexpr int kQuantizeKernelKinds = 8;
inline constexpr const char* kQuantizeKernelNames[kQuantizeKernelKinds] = {
    "blocks", "gathered", "cast", "rows", "blocks_2d", "amax", "rstd", "finalize"};

/// What is fused with the input, as kernels see it: both GELUs differ in coefficients only, and
/// silu is swiglu with ups that are 1.
enum class Fused : uint8_t { none, gelu, swiglu, modulate, rms_norm };
inline constexpr int kFusedCount = 5;
inline constexpr const char* kFusedNames[kFusedCount] = {"none", "gelu", "swiglu", "modulate",
                                                         "rms_norm"};

BLOCKSCALE_HD constexpr Fused fused_of(InputTransform transform) {
  switch (transform) {
    case InputTransform::identity: return Fused::none;
    case InputTransform::silu:
    case InputTransform::swiglu: return Fused::swiglu;
    case InputTransform::modulate: return Fused::modulate;
    case InputTransform::rms_norm: return Fused::rms_norm;
    default: return Fused::gelu;
  }
}

/// One kernel of the list. Fields that a kernel of its kind does not depend on are as they are
/// here.
struct QuantizeConfig {
  QuantizeKernel kernel = QuantizeKernel::blocks;
  Format input = Format::bf16;
  Format element = Format::e4m3;
  ScaleRule rule = ScaleRule::fp8;
  int block = 128;  // elements of k with one scale; 0: a whole row
  Fused fused = Fused::none;
  int chunk = 16;  // consecutive elements of a thread
  int chunks = 1;  // chunks that a thread has in flight
  int threads = 128;
  int min_blocks = 8;       // CTAs that an SM must hold: bounds the registers
  bool persistent = false;  // no more CTAs than fit at once; each does several tiles

  friend BLOCKSCALE_HD constexpr bool operator==(const QuantizeConfig&,
                                                 const QuantizeConfig&) = default;
};

/// Partial amaxes for one scale, at most. Every warp that needs the scale reduces them: four loads
/// of 16 bytes a lane, which cost less than a launch.
inline constexpr uint32_t kMostAmaxes = 512;

/// Bytes of dynamic shared memory that every kernel is given.
inline constexpr uint32_t kQuantizeSharedBytes = 1024;

/// The most warps that work on a row at once.
inline constexpr int kRowMostWarps = 16;

/// Whether CTAs of a kernel hold whole rows.
BLOCKSCALE_HD constexpr bool holds_rows(const QuantizeConfig& c) {
  return c.kernel == QuantizeKernel::rows || c.kernel == QuantizeKernel::rstd ||
         (c.kernel == QuantizeKernel::amax && c.fused == Fused::rms_norm);
}

/// Whether a kernel may follow an `amax` kernel: it then loads its elements before it waits for
/// that one, and takes its tiles backwards.
BLOCKSCALE_HD constexpr bool follows_amax(const QuantizeConfig& c) {
  return c.kernel == QuantizeKernel::cast ||
         (c.kernel == QuantizeKernel::blocks && c.rule == ScaleRule::nvfp4);
}

/// Whether a kernel reads what an `rstd` kernel leaves: likewise.
BLOCKSCALE_HD constexpr bool follows_rstd(const QuantizeConfig& c) {
  return c.kernel == QuantizeKernel::blocks_2d && c.fused == Fused::rms_norm;
}

/// Whether weights of 16 bits an element are loaded together with x: where little is done before
/// they are used.
BLOCKSCALE_HD constexpr bool loads_weights_early(const QuantizeConfig& c) {
  return c.fused == Fused::rms_norm &&
         (c.kernel == QuantizeKernel::blocks || c.kernel == QuantizeKernel::cast ||
          c.kernel == QuantizeKernel::amax);
}

/// The same configuration with nothing fused.
BLOCKSCALE_HD constexpr QuantizeConfig without_fused(QuantizeConfig config) {
  config.fused = Fused::none;
  return config;
}

/// A list that is built by a constexpr function.
struct QuantizeKernelList {
  static constexpr int kCapacity = 240;
  QuantizeConfig at[kCapacity] = {};
  int count = 0;

  BLOCKSCALE_HD constexpr void add(const QuantizeConfig& config) { at[count++] = config; }
  BLOCKSCALE_HD constexpr const QuantizeConfig& operator[](int i) const { return at[i]; }
};

namespace detail {

struct RowBlockRecipe {
  Format element;
  ScaleRule rule;
  int block;
};
/// Recipes with scales for blocks of one row.
inline constexpr RowBlockRecipe kRowBlockRecipes[] = {
    {Format::e4m3, ScaleRule::mx, 32},   {Format::e5m2, ScaleRule::mx, 32},
    {Format::e2m3, ScaleRule::mx, 32},   {Format::e3m2, ScaleRule::mx, 32},
    {Format::e2m1, ScaleRule::mx, 32},   {Format::e2m1, ScaleRule::nvfp4, 16},
    {Format::e4m3, ScaleRule::fp8, 128},
};
inline constexpr Format kQuantizeInputs[] = {Format::bf16, Format::f16, Format::f32};

/// Whether 64 elements, and what is fused with them, need more than 128 registers.
BLOCKSCALE_HD constexpr bool holds_most(const QuantizeConfig& c) {
  return c.input == Format::f32 && (c.fused == Fused::swiglu || c.fused == Fused::modulate);
}

/// The tuning of a configuration: what measurements favour (docs/log/quantize-sm90.md). Where
/// little but bytes is moved that is 64 bytes a thread, in many small CTAs.
BLOCKSCALE_HD constexpr QuantizeConfig tuned(QuantizeConfig c) {
  const bool wide = c.input == Format::f32;
  const bool fused = c.fused != Fused::none;
  if (c.kernel == QuantizeKernel::finalize) {
    c.threads = 32;
    c.min_blocks = 1;
  } else if (holds_rows(c)) {
    // What a chunk costs, whatever it holds, counts where much is computed; values that are held
    // while warps wait for each other want registers in smaller pieces.
    const bool holds_values = c.kernel == QuantizeKernel::rows && c.block == 0;
    const int elements = fused && wide ? 16 : 32;  // of a thread
    const bool small = !fused || loads_weights_early(c);
    c.chunk = small ? 8 : holds_values ? elements / 2 : elements;
    c.chunks = elements / c.chunk;
    // 80 registers where x, operands and values are held, else 64.
    const bool holds_much = c.kernel != QuantizeKernel::rstd && fused && c.fused != Fused::gelu;
    c.threads = holds_much ? 768 : 512;
    c.min_blocks = holds_much ? 1 : 2;
    c.persistent = c.kernel != QuantizeKernel::rows;
  } else if (c.kernel == QuantizeKernel::blocks_2d) {
    c.chunk = 8;
    c.chunks = 8;
    c.threads = 256;
    c.min_blocks = holds_most(c) ? 1 : fused || wide ? 2 : 3;
  } else if (c.kernel == QuantizeKernel::amax) {
    const bool holds_little = !fused || c.fused == Fused::gelu;
    c.chunks = wide ? 1 : holds_little ? 4 : 2;
    c.threads = fused ? 256 : 128;
    c.min_blocks = fused ? 3 : 6;  // few, since each CTA leaves one amax
    c.persistent = true;
  } else {
    // What a thread does once, whatever it holds, is a third of its instructions for 16 elements.
    if (!wide) c.chunk = 32;
    const bool holds_much = fused && c.fused != Fused::gelu;
    c.min_blocks = holds_much ? 6 : c.rule == ScaleRule::nvfp4 && !fused ? 12 : 8;
  }
  return c;
}

BLOCKSCALE_HD constexpr QuantizeKernelList make_quantize_kernels() {
  using enum QuantizeKernel;
  QuantizeKernelList list;
  const auto add = [&](const QuantizeConfig& c) { list.add(tuned(c)); };
  for (const Format input : kQuantizeInputs) {
    for (int i = 0; i < kFusedCount; ++i) {
      const auto fused = static_cast<Fused>(i);
      const bool norm = fused == Fused::rms_norm;
      for (const RowBlockRecipe& r : kRowBlockRecipes) {
        if (norm) add({rows, input, r.element, r.rule, r.block, fused});
        // nvfp4 has known rstd where its tensor scale is computed.
        if (norm && r.rule != ScaleRule::nvfp4) continue;
        add({blocks, input, r.element, r.rule, r.block, fused});
      }
      add({rows, input, Format::e4m3, ScaleRule::fp8, 0, fused});
      add({blocks_2d, input, Format::e4m3, ScaleRule::fp8, 128, fused});
      add({cast, input, Format::e4m3, ScaleRule::fp8, 0, fused});
      add({cast, input, Format::e5m2, ScaleRule::fp8, 0, fused});
      add({amax, input, Format::e4m3, ScaleRule::fp8, 0, fused});
    }
    add({rstd, input, Format::e4m3, ScaleRule::fp8, 0, Fused::rms_norm});
    add({gathered, input, Format::e4m3, ScaleRule::fp8, 128});
  }
  add({finalize, Format::f32, Format::e2m1, ScaleRule::nvfp4, 0});
  add({finalize, Format::f32, Format::e4m3, ScaleRule::fp8, 0});
  return list;
}

}  // namespace detail

// Kernels are given their configuration: with the list 8 KB of data would lie in each cubin.
#if !defined(__CUDACC_RTC__)
inline constexpr QuantizeKernelList kQuantizeKernels = detail::make_quantize_kernels();
#endif

}  // namespace blockscale
