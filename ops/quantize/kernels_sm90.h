// The finite list of the quantisers' kernels for sm_90a.
//
// Compiled by the host, NVRTC and the emulator alike. A kernel is specialised on the type of its
// input, its element, the rule of its scales, what is fused, and how much a thread has in flight;
// shapes, strides, scale layouts and modes are run-time values (QuantizeParams).
//
// A thread owns *chunks*: `chunk` consecutive elements of one row. A *tile* is what a thread block
// does at once: 2^log2_chunks chunks side by side along k, over as many rows as there are threads
// left (times `chunks`, where a thread has several).
#pragma once

#include "core/config.h"
#include "core/format.h"
#include "core/input_transform.h"
#include "ops/quantize/kernel_params_sm90.h"

namespace blockscale {

/// What a kernel does.
enum class QuantizeKernel : uint8_t {
  blocks,   // scales for blocks of one row (1 x 16, 1 x 32, 1 x 128), and codes
  tall,     // scales for blocks of 32, 64 or 128 rows x 128, and codes
  row,      // holds whole rows: scales for rows, or rms_norm and scales for blocks; codes
  scaled,   // codes with scales that are known: fp8_tensor, and fp8_row with given scales
  maximum,  // the largest magnitudes of parts of a tensor, for whoever makes its scale of them;
            // with rms_norm the factors too
  settle,   // of them, where nothing is quantised: the maximum itself, or nvfp4's scale
  norm,     // the factor of each row of rms_norm, for `tall`, `scaled`, and rows and columns
  stripe,   // `norm` and `tall` at once: x is read once
  clear,    // what thread blocks of `stripe` tell each other, before they do; of small inputs it
            // prefetches their first tiles as well
};
inline constexpr int kQuantizeKernelKinds = 9;

/// How a scale follows from a largest magnitude, and an element meets it (docs/numerics.md).
enum class ScaleRule : uint8_t {
  mx,     // ue8m0, multiply by its inverse
  nvfp4,  // ue4m3, multiply by S / s
  fp8,    // f32, f32 powers of two or ue8m0 (a run-time value): divide
};

/// One kernel of the list. Fields that a kernel of its kind does not depend on are as they are
/// here.
struct QuantizeConfig {
  QuantizeKernel kernel = QuantizeKernel::blocks;
  Format input = Format::bf16;
  Format element = Format::e4m3;
  ScaleRule rule = ScaleRule::fp8;
  int block = 128;  // elements of k with one scale; 0: a whole row
  InputTransform transform = InputTransform::identity;
  int chunk = 16;  // consecutive elements of a thread
  int chunks = 1;  // chunks that a thread loads before it uses one, of a tile (tile_rows_of_thread)
                   // or, where that has one, of so many tiles of `maximum`
  int threads = 256;
  int min_blocks = 4;       // thread blocks that a multiprocessor must hold: bounds the registers
  bool persistent = false;  // no more thread blocks than fit at once; each does several tiles
  bool table = false;       // values of a 16-bit input are looked up (kernel_sm90_table.cuh)
  bool large = false;       // of two forms the one for large inputs (has_large_form)

  // Where a kernel holds_rows: `threads` is at least 32 kRowMostWarps, and threads * min_blocks are
  // what a multiprocessor holds; the plan makes thread blocks as large as rows need.

  friend BLOCKSCALE_HD constexpr bool operator==(const QuantizeConfig&,
                                                 const QuantizeConfig&) = default;
};

/// Consecutive rows that a thread has chunks of in a tile.
BLOCKSCALE_HD constexpr int tile_rows_of_thread(const QuantizeConfig& c) {
  const bool tiles_at_once =
      c.kernel == QuantizeKernel::maximum && c.transform != InputTransform::modulate;
  return tiles_at_once ? 1 : c.chunks;
}

/// Bytes of the widest store that the codes of a chunk are a multiple of.
BLOCKSCALE_HD constexpr int code_store_bytes(Format element, int chunk) {
  const int bytes = chunk * format_traits(element).bits / 8;
  const int divisor = bytes & -bytes;
  return divisor < 16 ? divisor : 16;
}

/// Thread blocks of a `maximum` kernel for one scale. Each leaves one word, and every warp that
/// needs the scale reduces them: two loads of 16 bytes a lane, which cost less than a launch; four
/// where the values have operands that rows share, whose many registers make small thread blocks,
/// and of large GELU.
inline constexpr uint32_t kMaxMaxima = 512;
inline constexpr uint32_t kFewMaxima = kMaxMaxima / 2;

/// Rows of a stripe, bytes of each that a thread block of a `stripe` kernel has in a tile, and the
/// most tiles that it has room for.
inline constexpr uint32_t kStripeRows = 128;
inline constexpr uint32_t kStripeRowBytes = 512;
inline constexpr uint32_t kStripeSlots = 3;
inline constexpr uint32_t kStripeSlotBytes = kStripeRows * kStripeRowBytes;
inline constexpr uint32_t kStripeWeightBytes = 2 * kStripeRowBytes;  // as f32, of 16-bit columns
/// The most tiles of a stripe: a segment of a row's sum.
inline constexpr uint32_t kMaxMates = 32;

/// Bytes of dynamic shared memory that every kernel is given.
inline constexpr uint32_t kQuantizeSharedBytes = 1024;
/// What a multiprocessor has, and keeps of it for each thread block.
inline constexpr uint32_t kSharedBytesOfMultiprocessor = 228 << 10;
inline constexpr uint32_t kReservedSharedBytes = 1 << 10;
/// Bytes for kernels with a table: all that a thread block may have.
inline constexpr uint32_t kTableSharedBytes = kSharedBytesOfMultiprocessor - kReservedSharedBytes;

/// Whether the largest magnitude of a kernel's values may be found from x, as `maximum` kernels and
/// halves of blocks do (kernel_sm90_gelu_maximum.cuh).
BLOCKSCALE_HD constexpr bool orders_gelu(const QuantizeConfig& c) {
  return is_gelu(c.transform) && c.input != Format::f32;
}

/// Whether a kernel of a kind may follow a `maximum` kernel.
BLOCKSCALE_HD constexpr bool may_follow_maximum(QuantizeKernel kernel, ScaleRule rule) {
  return kernel == QuantizeKernel::scaled ||
         (kernel == QuantizeKernel::blocks && rule == ScaleRule::nvfp4);
}

/// Whether kernels that may follow a `maximum` kernel have a form for small inputs of GELU, whose
/// threads compute exact values: too few warps run to hide that all of them wait for the one which
/// settles approximate values again.
BLOCKSCALE_HD constexpr bool has_exact_form(QuantizeKernel kernel, Format input, ScaleRule rule,
                                            InputTransform transform) {
  return may_follow_maximum(kernel, rule) && is_gelu(transform) && input != Format::f32;
}
BLOCKSCALE_HD constexpr bool is_exact_form(const QuantizeConfig& c) {
  return !c.large && !c.table && has_exact_form(c.kernel, c.input, c.rule, c.transform);
}

/// Whether a kernel encodes GELU from approximate values (kernel_sm90_gelu_codes.cuh), and until
/// then holds x.
BLOCKSCALE_HD constexpr bool approximates_gelu(const QuantizeConfig& c) {
  const bool encodes = c.kernel == QuantizeKernel::blocks || c.kernel == QuantizeKernel::row ||
                       c.kernel == QuantizeKernel::scaled;
  return encodes && !c.table && !is_exact_form(c) && is_gelu(c.transform) && c.input != Format::f32;
}

/// Whether a kernel may follow a `maximum` kernel: it then loads its elements before it waits for
/// that one, and takes its tiles backwards.
BLOCKSCALE_HD constexpr bool follows_maximum(const QuantizeConfig& c) {
  return may_follow_maximum(c.kernel, c.rule);
}

/// Whether a kernel follows a `norm` kernel: likewise.
BLOCKSCALE_HD constexpr bool follows_norm(const QuantizeConfig& c) {
  return c.kernel == QuantizeKernel::tall && c.transform == InputTransform::rms_norm;
}

/// Whether the kernels of these inputs may look values up instead of computing them.
BLOCKSCALE_HD constexpr bool has_table(QuantizeKernel kernel, Format input,
                                       InputTransform transform) {
  const bool tabulated = is_gelu(transform) || transform == InputTransform::swiglu;
  const bool quantizes = kernel == QuantizeKernel::blocks || kernel == QuantizeKernel::tall ||
                         kernel == QuantizeKernel::row || kernel == QuantizeKernel::scaled;
  return quantizes && tabulated && input != Format::f32;
}

/// The most warps that work on a row of `row` and `norm`, and on one that takes several rounds.
inline constexpr int kRowMostWarps = 16;

/// Whether thread blocks of a kernel hold whole rows.
BLOCKSCALE_HD constexpr bool holds_rows(QuantizeKernel kernel, InputTransform transform) {
  return kernel == QuantizeKernel::row || kernel == QuantizeKernel::norm ||
         (kernel == QuantizeKernel::maximum && transform == InputTransform::rms_norm);
}

/// Operands that all rows (of a group) share.
BLOCKSCALE_HD constexpr int shared_operands(InputTransform transform) {
  if (transform == InputTransform::modulate) return 2;
  return transform == InputTransform::rms_norm ? 1 : 0;
}

/// The most maxima for one scale, as the kernel that leaves them or one that reads them knows.
/// `settle` reads those of any kernel.
BLOCKSCALE_HD constexpr uint32_t most_maxima(const QuantizeConfig& c) {
  const bool many =
      c.kernel == QuantizeKernel::settle || shared_operands(c.transform) > 0 || orders_gelu(c);
  return many ? kMaxMaxima : kFewMaxima;
}

/// Those that a kernel which holds rows keeps in shared memory (row_operand_bytes).
BLOCKSCALE_HD constexpr int row_operands(QuantizeKernel kernel, InputTransform transform) {
  if (!holds_rows(kernel, transform) || kernel == QuantizeKernel::norm) return 0;
  return shared_operands(transform);
}

/// Whether the form for small inputs loads all that it needs at once (kernel_sm90_at_once.cuh).
BLOCKSCALE_HD constexpr bool small_loads_at_once(QuantizeKernel kernel, Format input,
                                                 ScaleRule rule, InputTransform transform) {
  if (input == Format::f32 || rule == ScaleRule::nvfp4) return false;
  if (kernel == QuantizeKernel::blocks) return transform == InputTransform::modulate;
  return kernel == QuantizeKernel::row && shared_operands(transform) > 0;
}

/// Whether each thread of a kernel that may follow a `maximum` kernel holds chunks of a few rows,
/// which share operands: of fewer, if the input is small.
BLOCKSCALE_HD constexpr bool has_few_rows(QuantizeKernel kernel, ScaleRule rule,
                                          InputTransform transform) {
  return may_follow_maximum(kernel, rule) && shared_operands(transform) > 0;
}

/// Whether a kernel has two forms: a small input is spread over many threads, and its maxima over
/// many thread blocks; of a large one a thread holds more, as one chunk for rms_norm, as several
/// small ones where nothing but bytes is moved. And while one wave of thread blocks does them all,
/// nvfp4's blocks have registers to spare, and chunks with operands are not worth a loop.
BLOCKSCALE_HD constexpr bool has_large_form(QuantizeKernel kernel, Format input, ScaleRule rule,
                                            InputTransform transform) {
  if (small_loads_at_once(kernel, input, rule, transform)) return true;
  if (transform == InputTransform::identity) {
    const bool moves_bytes = kernel == QuantizeKernel::tall || kernel == QuantizeKernel::row;
    const bool blocks = kernel == QuantizeKernel::blocks && rule == ScaleRule::nvfp4;
    return moves_bytes || (blocks && input != Format::f32);
  }
  if (input == Format::f32) return false;
  const bool norm = transform == InputTransform::rms_norm;
  switch (kernel) {
    case QuantizeKernel::tall: return true;
    case QuantizeKernel::row: return norm || is_gelu(transform);
    case QuantizeKernel::norm: return true;
    case QuantizeKernel::maximum: return true;
    default:
      return has_exact_form(kernel, input, rule, transform) ||
             has_few_rows(kernel, rule, transform);
  }
}

/// Whether a kernel is `tall` in its form for small inputs.
BLOCKSCALE_HD constexpr bool is_spread_tall(const QuantizeConfig& c) {
  return c.kernel == QuantizeKernel::tall && !c.large && !c.table &&
         has_large_form(c.kernel, c.input, c.rule, c.transform);
}

/// Whether that form halves blocks: two thread blocks of it each encode half of the rows of one.
BLOCKSCALE_HD constexpr bool halves_blocks(const QuantizeConfig& c) {
  return is_spread_tall(c) && orders_gelu(c);
}

/// Whether that form prefetches what it is going to encode, which no `norm` has read before.
BLOCKSCALE_HD constexpr bool prefetches_tall(const QuantizeConfig& c) {
  return is_spread_tall(c) && !follows_norm(c);
}

/// Whether a kernel loads all that it needs at once.
BLOCKSCALE_HD constexpr bool loads_at_once(const QuantizeConfig& c) {
  return !c.large && small_loads_at_once(c.kernel, c.input, c.rule, c.transform);
}

/// Whether a kernel goes through whole rows with vectors (kernel_sm90_row_maximum.cuh). The form
/// for large inputs is the one for all that this one does not take.
BLOCKSCALE_HD constexpr bool streams_rows(const QuantizeConfig& c) {
  return c.kernel == QuantizeKernel::maximum && c.transform == InputTransform::rms_norm &&
         c.input != Format::f32 && !c.large;
}

/// Bytes of operands that a thread of a persistent kernel which holds rows keeps behind
/// kQuantizeSharedBytes: f32, or of streams_rows as they lie in memory.
BLOCKSCALE_HD constexpr uint32_t row_operand_bytes(const QuantizeConfig& c) {
  const int bytes = streams_rows(c) ? format_traits(c.input).bits / 8 : 4;
  return static_cast<uint32_t>(row_operands(c.kernel, c.transform) * c.chunks * c.chunk * bytes);
}

/// Whether thread blocks of a kernel, each of which has one tile, may prefetch it before they wait.
BLOCKSCALE_HD constexpr bool prefetches_tile(const QuantizeConfig& c) {
  return approximates_gelu(c) || loads_at_once(c) || prefetches_tall(c);
}

/// The most chunks side by side in a tile of rows that share operands.
inline constexpr int kMostOperandChunks = 16;

/// `blocks` that load at once keep the operands of a tile's chunks in shared memory behind
/// kQuantizeSharedBytes, one operand after the other: of each chunk so many bytes, which quarters
/// of warps read without bank conflicts.
BLOCKSCALE_HD constexpr uint32_t strip_chunk_bytes(const QuantizeConfig& c) {
  return static_cast<uint32_t>(c.chunk) * 4 + 16;
}
BLOCKSCALE_HD constexpr uint32_t strip_bytes(const QuantizeConfig& c, uint32_t chunks) {
  return static_cast<uint32_t>(shared_operands(c.transform)) * chunks * strip_chunk_bytes(c);
}

/// Whether launches of a kernel may have fewer threads than its configuration.
BLOCKSCALE_HD constexpr bool may_have_fewer_threads(const QuantizeConfig& c) {
  return (holds_rows(c.kernel, c.transform) && !c.table) || is_spread_tall(c);
}

/// A list that is built by a constexpr function.
struct QuantizeKernelList {
  static constexpr int kCapacity = 440;
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

/// The tuning of a configuration: what the measurements in docs/performance.md favour. Where
/// nothing but bytes is moved that is one chunk a thread, as 64 bytes, in many small thread blocks.
BLOCKSCALE_HD constexpr QuantizeConfig tuned(QuantizeConfig c) {
  const bool fused = c.transform != InputTransform::identity;
  const bool norm = c.transform == InputTransform::rms_norm;
  if (c.table) {
    // Where 32 gates, ups, values and codes at once are more than 128 registers hold.
    const bool wide = c.kernel == QuantizeKernel::scaled ||
                      (c.rule == ScaleRule::mx && c.element != Format::e2m1);
    c.chunk = c.transform == InputTransform::swiglu && wide ? 16 : 32;
    // Groups of warps that wait for each other need others beside them; they hold x alone.
    const bool waits = c.kernel == QuantizeKernel::tall || c.kernel == QuantizeKernel::row;
    c.threads = waits && is_gelu(c.transform) ? 1024 : 512;
    // The more an element costs, the more warps; so many that no registers spill.
    if (is_gelu(c.transform) && c.rule == ScaleRule::nvfp4) c.threads = 768;
    c.min_blocks = 1;
    c.persistent = true;
  } else if (loads_at_once(c)) {
    // 64 registers a thread; thread blocks as large as rows need, or small ones.
    const bool rows = holds_rows(c.kernel, c.transform);
    c.chunk = 32;
    c.threads = rows ? 512 : 128;
    c.min_blocks = rows ? 2 : 8;
  } else if (streams_rows(c)) {
    c.chunk = 8;
    c.chunks = 4;
    c.threads = 512;
    c.min_blocks = 2;
    c.persistent = true;
  } else if (holds_rows(c.kernel, c.transform)) {
    c.persistent = norm || row_operands(c.kernel, c.transform) > 0;
    c.threads = 512;
    // Where 64 registers are not enough, one.
    c.min_blocks = c.persistent && (c.input == Format::f32 || c.block == 16) ? 1 : 2;
    // 40 registers: thread blocks of the next kernel find room beside them.
    if (c.kernel == QuantizeKernel::norm && c.input != Format::f32) c.min_blocks = 3;
    if (norm && c.large) {
      c.chunk = 32;
      // 80 registers a thread where they are enough, else up to 128.
      c.threads = c.kernel != QuantizeKernel::row || c.rule == ScaleRule::mx ? 768 : 512;
      c.min_blocks = 1;
    } else if (approximates_gelu(c)) {
      c.chunk = 8;
      c.chunks = c.large ? 4 : 2;
    } else if (!fused) {
      c.chunk = c.large ? 8 : c.input == Format::f32 ? 16 : 32;
      c.chunks = !c.large ? 1 : c.input == Format::f32 ? 4 : 8;
    }
  } else if (c.kernel == QuantizeKernel::tall) {
    c.chunk = 8;
    c.chunks = 8;
    if (is_spread_tall(c)) {  // one block or half, and no more threads than that needs
      // Two thread blocks at once where registers allow it.
      const bool shares = shared_operands(c.transform) > 0;
      const bool two = shares || halves_blocks(c);
      c.chunks = shares ? 4 : 2;
      c.threads = two ? 512 : 1024;
      c.min_blocks = two ? 2 : 1;
      return c;
    }
    // Values of those that are cheap are not held, but x is: 3 thread blocks, as without any.
    const bool cheap = c.input != Format::f32 && shared_operands(c.transform) > 0;
    c.min_blocks = fused && !cheap ? 2 : 3;
  } else if (c.kernel == QuantizeKernel::maximum) {
    // Rows that share operands; of f32 there are not enough registers for them.
    const bool rows = c.transform == InputTransform::modulate && c.input != Format::f32;
    c.chunks = !fused || rows ? 4 : orders_gelu(c) ? 2 : 1;
    c.threads = fused && !rows ? 512 : 256;
    c.min_blocks =
        rows || orders_gelu(c) ? 3 : 2;  // few, since each thread block leaves one maximum
    if (has_large_form(c.kernel, c.input, c.rule, c.transform) && !c.large) {
      c.chunks = rows ? 2 : 1;  // of small inputs every multiprocessor has some
      c.threads = 128;
      c.min_blocks = rows ? 6 : 8;
    }
    c.persistent = true;
  } else if (c.kernel == QuantizeKernel::stripe) {
    c.chunk = 128 / format_traits(c.input).bits;  // 16 bytes
    c.threads = 512;
    c.min_blocks = 1;
    c.persistent = true;
  } else if (c.kernel == QuantizeKernel::clear) {
    // With 32 registers one finds room beside a thread block of the `stripe` kernel before.
    c.threads = 128;
    c.min_blocks = 16;
  } else if (c.kernel == QuantizeKernel::settle) {
    c.threads = 32;
    c.min_blocks = 1;
  } else {
    c.threads = 128;
    c.min_blocks = c.rule == ScaleRule::nvfp4 && !fused ? 12 : 8;
    // GELU: while a tensor scale is not known yet, 8 MiB of x become values in one wave.
    if (c.input != Format::f32 && (!fused || is_gelu(c.transform))) c.chunk = 32;
    if (is_exact_form(c)) {
      c.chunk = 16;
    } else if (has_large_form(c.kernel, c.input, c.rule, c.transform) && !c.large) {
      c.threads = 256;
      c.min_blocks = 4;
    }
    if (shared_operands(c.transform) > 0) {
      const bool few = has_few_rows(c.kernel, c.rule, c.transform) && !c.large;
      // Rows that share operands.
      c.chunks = c.input == Format::f32 ? 2 : !few ? 4 : norm ? 2 : 1;
      c.threads = 128;
      c.min_blocks = few && c.input != Format::f32 ? 8 : 5;
    }
  }
  return c;
}

/// Adds a configuration, and where it may have a table or a large form those.
BLOCKSCALE_HD constexpr void add_tuned(QuantizeKernelList& list, QuantizeConfig c) {
  list.add(tuned(c));
  if (has_large_form(c.kernel, c.input, c.rule, c.transform)) {
    QuantizeConfig large = c;
    large.large = true;
    list.add(tuned(large));
  }
  if (!has_table(c.kernel, c.input, c.transform)) return;
  c.table = true;
  c.large = false;
  list.add(tuned(c));
}

BLOCKSCALE_HD constexpr QuantizeKernelList make_quantize_kernels() {
  QuantizeKernelList list;
  for (const Format input : kQuantizeInputs) {
    for (int t = 0; t < kInputTransformCount; ++t) {
      const auto transform = static_cast<InputTransform>(t);
      const bool norm = transform == InputTransform::rms_norm;
      for (const RowBlockRecipe& r : kRowBlockRecipes) {
        // nvfp4 has known factors of rows where its tensor scale is computed.
        const bool blocks = !norm || r.rule == ScaleRule::nvfp4;
        if (blocks) {
          add_tuned(list, {QuantizeKernel::blocks, input, r.element, r.rule, r.block, transform});
        }
        if (!norm) continue;
        add_tuned(list, {QuantizeKernel::row, input, r.element, r.rule, r.block, transform});
      }
      add_tuned(list, {QuantizeKernel::row, input, Format::e4m3, ScaleRule::fp8, 0, transform});
      add_tuned(list, {QuantizeKernel::tall, input, Format::e4m3, ScaleRule::fp8, 128, transform});
      add_tuned(list, {QuantizeKernel::scaled, input, Format::e4m3, ScaleRule::fp8, 0, transform});
      add_tuned(list, {QuantizeKernel::scaled, input, Format::e5m2, ScaleRule::fp8, 0, transform});
      add_tuned(list, {QuantizeKernel::maximum, input, Format::e4m3, ScaleRule::fp8, 0, transform});
    }
    add_tuned(list, {QuantizeKernel::norm, input, Format::e4m3, ScaleRule::fp8, 0,
                     InputTransform::rms_norm});
    add_tuned(list, {QuantizeKernel::stripe, input, Format::e4m3, ScaleRule::fp8, 128,
                     InputTransform::rms_norm});
  }
  list.add(tuned({QuantizeKernel::clear, Format::f32, Format::e4m3, ScaleRule::fp8, 0}));
  list.add(tuned({QuantizeKernel::settle, Format::f32, Format::e2m1, ScaleRule::nvfp4, 0}));
  list.add(tuned({QuantizeKernel::settle, Format::f32, Format::e4m3, ScaleRule::fp8, 0}));
  return list;
}

}  // namespace detail

// Kernels are given their configuration: with the list 13 KB of data would lie in each cubin.
#if !defined(__CUDACC_RTC__)
inline constexpr QuantizeKernelList kQuantizeKernels = detail::make_quantize_kernels();
#endif

/// A copy of 16-byte vectors (kernel_sm90_copy.cuh), for benchmarks.
struct CopyParams {
  const void* from = nullptr;
  void* to = nullptr;
  uint64_t vectors = 0;
};
inline constexpr int kCopyThreads = 256;

}  // namespace blockscale
