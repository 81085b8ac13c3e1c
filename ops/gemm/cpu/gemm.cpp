// The CPU GEMM. Reading order: plan.h (how the work is divided), products.h (what runs together),
// methods.h (the ways to multiply), run_task below (one block of D), panels/panel-inl.h (decoding),
// panels/microkernel-inl.h (the inner loops), epilogue-inl.h.
#define BLOCKSCALE_WANT_AVX3_DL
#include "ops/common/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/gemm/cpu/gemm.cpp"
#include <hwy/foreach_target.h>  // must come before the other Highway headers
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <span>

#include "blockscale/gemm.h"
#include "blockscale/parallel.h"
#include "blockscale/system.h"
#include "core/recipe.h"
#include "ops/common/float_environment.h"
#include "ops/common/simd/amx.h"
#include "ops/common/simd/requested.h"
#include "ops/gemm/cpu/epilogue.h"
#include "ops/gemm/cpu/memory.h"
#include "ops/gemm/cpu/methods.h"
#include "ops/gemm/cpu/operand.h"
#include "ops/gemm/cpu/path.h"
#include "ops/gemm/cpu/plan.h"
#include "ops/gemm/cpu/products.h"
#include "ops/gemm/cpu/task.h"
#include "ops/gemm/cpu/transform.h"
#include "ops/gemm/cpu/value_range.h"
#include "ops/gemm/validate.h"
// Toggled per target.
#include "ops/common/simd/decode-inl.h"
#include "ops/gemm/cpu/bf16/bf16-inl.h"
#include "ops/gemm/cpu/bf16/bf16_rows-inl.h"
#include "ops/gemm/cpu/epilogue-inl.h"
#include "ops/gemm/cpu/few_rows/few_rows-inl.h"
#include "ops/gemm/cpu/integers/integers-inl.h"
#include "ops/gemm/cpu/panels/microkernel-inl.h"
#include "ops/gemm/cpu/panels/panel-inl.h"
#include "ops/gemm/cpu/panels/span_factors-inl.h"
#include "ops/gemm/cpu/panels/word_panel-inl.h"

#ifndef BLOCKSCALE_OPS_GEMM_CPU_CPP_ONCE_
#define BLOCKSCALE_OPS_GEMM_CPU_CPP_ONCE_
namespace blockscale::gemm_detail {

/// Rows of A that one task decodes.
inline constexpr std::int64_t kPackedRows = 8;

}  // namespace blockscale::gemm_detail
#endif  // BLOCKSCALE_OPS_GEMM_CPU_CPP_ONCE_

HWY_BEFORE_NAMESPACE();
namespace blockscale::gemm_detail {
namespace HWY_NAMESPACE {

/// Decodes rows [begin, end) of the band, at most kPackedRows.
void pack_rows(const OperandMatrix& a, std::int64_t begin, std::int64_t end, PackedBand& band) {
  for (std::int64_t slab = 0; slab * kSlab < a.k; ++slab) {
    const std::int64_t first = slab * kSlab;
    const std::int64_t depth = std::min(kSlab, a.k - first);
    decode_rows(a, band.first_row + begin, end - begin, first, depth, band.row(slab, begin));
    for (std::int64_t r = begin; r < end; ++r) {
      band.ranges[static_cast<std::size_t>(slab * band.rows + r)] =
          range_of_row(band.row(slab, r), depth);
    }
  }
}

/// Decodes all rows of the band, unless that was done: where a task needs them after all.
void need_rows(const OperandMatrix& a, PackedBand& band) {
  const std::lock_guard lock(band.decoding);
  if (band.is_decoded) return;
  const std::int64_t slabs = ceil_div(a.k, kSlab);
  if (band.values == nullptr) band.take_values(slabs);
  for (std::int64_t r = 0; r < band.rows; r += kPackedRows) {
    pack_rows(a, r, std::min(band.rows, r + kPackedRows), band);
  }
  band.take_range(slabs);
}

/// Scratch of one task: the factors of a span, and what the path that is taken needs beside it.
inline constexpr std::int64_t kFactorScratch = kTileColumns * kFactorPitchOfSpan;
inline constexpr std::int64_t kScratch =
    kFactorScratch +
    std::max<std::int64_t>({2 * kSlab * kPanelColumns, kLaneSums, kIntegerScratch, kPairScratch});

/// Adds the products of one slab to the tile: all rows of the task times one panel of B.
void multiply_panel(const PackedBand& band, const Task& task, std::int64_t slab, std::int64_t depth,
                    const float* panel, const ValueRange& panel_range, double* tile) {
  const std::int64_t rows = task.row_end - task.row_begin;
  const RowGroups groups(rows, kMaxPanelRows);
  for (std::int64_t g = 0; g < groups.count; ++g) {
    const std::int64_t begin = task.row_begin + groups.begin(g);
    const std::int64_t end = task.row_begin + groups.end(g);
    ValueRange range;
    for (std::int64_t r = begin; r < end; ++r) {
      range.include(band.ranges[static_cast<std::size_t>(slab * band.rows + r)]);
    }
    const bool is_safe = !band.is_batch_invariant && f32_is_safe(range, panel_range);
    multiply(static_cast<int>(end - begin), is_safe, band.row(slab, begin), panel, depth,
             tile + (begin - task.row_begin) * kTileColumns);
  }
}

SpanFactors factors_of(const Span& s) {
  return SpanFactors(s.b, s.task.column_begin, s.task.columns, s.begin, s.count, s.factors);
}

/// Adds the products of k in [begin, begin + count) to the tile, slab by slab, a panel of B at a
/// time. `factors`: of the span that begins there, or null where panels are not made of words.
void multiply_slabs(const PackedBand& band, const OperandMatrix& b, const Task& task,
                    const SpanFactors* factors, std::int64_t begin, std::int64_t count,
                    float* scratch, double* tile) {
  float* const panel = scratch + kSlab * kPanelColumns;
  for (std::int64_t first = begin; first < begin + count; first += kSlab) {
    const std::int64_t depth = std::min(kSlab, b.k - first);
    for (std::int64_t c = 0; c < task.columns; c += kPanelColumns) {
      const std::int64_t columns = std::min<std::int64_t>(kPanelColumns, task.columns - c);
      const std::int64_t column = task.column_begin + c;
      ValueRange range;
      if (factors != nullptr) {
        pack_panel_of_words(b, *factors, begin, column, columns, first, depth, panel);
        range = range_of_values(factors->range(), recipe_traits(b.recipe).element);
      } else {
        range = pack_panel(b, column, columns, first, depth, scratch, panel);
      }
      multiply_panel(band, task, first / kSlab, depth, panel, range, tile + c);
    }
  }
}

/// Adds a span's products to the tile.
void multiply_span_of_task(const OperandMatrix& a, PackedBand& band, const CpuMethod& method,
                           const Span& span) {
  switch (method.multiply(span)) {
    case Products::tile: return;
    case Products::sums: {
      const std::int64_t elements = (span.task.row_end - span.task.row_begin) * kTileColumns;
      for (std::int64_t i = 0; i < elements; i += kLanes) {
        add_to_tile(hn::Load(FloatTag(), span.sums + i), span.tile + i);
      }
      return;
    }
    case Products::nowhere: break;
  }
  need_rows(a, band);
  if (!has_word_panels(span.b.recipe)) {
    multiply_slabs(band, span.b, span.task, nullptr, span.begin, span.count, span.scratch,
                   span.tile);
    return;
  }
  const SpanFactors factors = factors_of(span);
  // Where the bound from the factors is not good enough, the values themselves are looked at.
  const ValueRange bound = range_of_values(factors.range(), recipe_traits(span.b.recipe).element);
  const bool is_bounded = band.is_batch_invariant || f32_is_safe(band.range, bound);
  multiply_slabs(band, span.b, span.task, is_bounded ? &factors : nullptr, span.begin, span.count,
                 span.scratch, span.tile);
}

/// `memory`: scratch_bytes().
void run_task(const Piece& piece, PackedBand& band, const CpuMethod& method, const Task& task,
              std::uint8_t* memory) {
  const OperandMatrix& b = piece.b;
  const Epilogue& epilogue = piece.epilogue;
  const OutputMatrix& out = piece.out;
  const std::int64_t rows = task.row_end - task.row_begin;
  const std::int64_t elements = rows * kTileColumns;
  double* const tile = reinterpret_cast<double*>(memory);
  float* const sums = reinterpret_cast<float*>(tile + elements);
  float* const scratch = sums + elements;

  const auto span_of = [&](std::int64_t begin, std::int64_t count) {
    return Span{band, b, task, begin, count, scratch, scratch + kFactorScratch, sums, tile};
  };
  const bool is_one = b.k > 0 && b.k <= kSpan;
  const bool in_f32 =
      method.gives_sums && is_one && method.multiply(span_of(0, b.k)) == Products::sums;
  if (!in_f32) {
    std::fill(tile, tile + elements, 0.0);
    for (std::int64_t first = 0; first < b.k; first += kSpan) {
      multiply_span_of_task(piece.a, band, method, span_of(first, std::min(kSpan, b.k - first)));
    }
  }

  const std::int64_t d_size = format_traits(epilogue.d_dtype).bits / 8;
  const std::int64_t c_size = format_traits(epilogue.c_dtype).bits / 8;
  alignas(64) float bias[kTileColumns] = {}, gate[kTileColumns] = {};
  if (out.bias != nullptr) {
    codes::decode_run(out.bias_dtype, out.bias, task.column_begin, task.columns, bias);
  }
  if (out.gate != nullptr) {
    codes::decode_run(out.gate_dtype, out.gate, task.column_begin, task.columns, gate);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t row = band.first_row - piece.first_row + task.row_begin + r;
    const std::uint8_t* const c =
        out.c == nullptr ? nullptr : out.c + row * out.c_row_stride + task.column_begin * c_size;
    std::uint8_t* const d = out.d + row * out.d_row_stride + task.column_begin * d_size;
    if (in_f32 && epilogue.fits_f32 && c == nullptr && out.gate == nullptr) {
      finish_row_in_f32(epilogue, task.columns, sums + r * kTileColumns, bias, d);
      continue;
    }
    double* const row_sums = tile + r * kTileColumns;
    if (in_f32) widen(sums + r * kTileColumns, row_sums);
    finish_row(epilogue, task.columns, row_sums, c, out.bias == nullptr ? nullptr : bias,
               out.gate == nullptr ? nullptr : gate, d);
  }
}

void pack_values(const OperandMatrix& a, Recipe, std::int64_t begin, std::int64_t end,
                 PackedBand& band) {
  pack_rows(a, begin, end, band);
}

void pack_pairs(const OperandMatrix& a, Recipe b, std::int64_t begin, std::int64_t end,
                PackedBand& band) {
  pack_pair_rows(a, b, begin, end, band.pairs);
}

void pack_integers(const OperandMatrix& a, Recipe, std::int64_t begin, std::int64_t end,
                   PackedBand& band) {
  pack_integer_rows(a, begin, end, band.integers);
}

Products multiply_pairs(const Span& s) {
  const bool done = multiply_span_of_pairs(s.band, s.b, s.task, factors_of(s), s.begin, s.count,
                                           s.scratch, s.sums);
  return done ? Products::sums : Products::nowhere;
}

/// This instruction set's methods, in the order in which they are asked.
std::span<const CpuMethod> cpu_methods() {
  static constexpr CpuMethod kMethods[] = {
      {CpuKernel::bf16_rows,
       [](std::int64_t m, Recipe a, Recipe b) {
         return has_bf16_rows(a, b) && m <= (uses_amx() && has_pairs(a, b) ? kFewRowsBesidePairs
                                             : has_integers(a, b)          ? kFewRowsBesideIntegers
                                                                           : kFewRows);
       },
       take_values, take_bf16_rows, kPackedRows, pack_values,
       [](const OperandMatrix& a, Recipe b, PackedBand& band) {
         end_values(a, b, band);
         arrange_bf16_rows(band, a.k, b);
       },
       false,
       [](const Span& s) {
         const bool done =
             multiply_span_of_bf16(s.band, s.b, s.task, s.begin, s.count, s.factors, s.tile);
         return done ? Products::tile : Products::nowhere;
       }},
      {CpuKernel::pairs,
       [](std::int64_t m, Recipe a, Recipe b) {
         return m > kFewRowsBesidePairs && has_pairs(a, b) && uses_amx();
       },
       take_pairs, take_decoded, PairRows::kPanelRows, pack_pairs, end_pairs, true, multiply_pairs},
      {CpuKernel::integers,
       [](std::int64_t m, Recipe a, Recipe b) { return m > 1 && has_integers(a, b); },
       take_integers, take_decoded, kPackedRows, pack_integers, end_integers, true,
       [](const Span& s) {
         const bool done = multiply_integers(s.band, s.b, s.task, factors_of(s), s.begin, s.count,
                                             s.scratch, s.sums);
         return done ? Products::sums : Products::nowhere;
       }},
      {CpuKernel::pairs,
       [](std::int64_t m, Recipe a, Recipe b) {
         return m > kFewRowsBesidePairs && has_pairs(a, b);
       },
       take_pairs, take_decoded, PairRows::kPanelRows, pack_pairs, end_pairs, true, multiply_pairs},
      {CpuKernel::few_rows,
       [](std::int64_t m, Recipe, Recipe b) { return m <= kFewRows && has_few_rows(b); },
       take_values, take_few_rows, kPackedRows, pack_values,
       [](const OperandMatrix& a, Recipe b, PackedBand& band) {
         end_values(a, b, band);
         arrange_rows(band, a.k, b);
       },
       false,
       [](const Span& s) {
         const bool done =
             multiply_span(s.band, s.b, s.task, factors_of(s), s.begin, s.count, s.scratch, s.tile);
         return done ? Products::tile : Products::nowhere;
       }},
      {CpuKernel::panels, [](std::int64_t, Recipe, Recipe) { return true; }, take_values,
       take_nothing, kPackedRows, pack_values, end_values, false,
       [](const Span&) { return Products::nowhere; }},
  };
  return kMethods;
}

/// Bytes of scratch of a task of `rows` rows.
std::int64_t scratch_bytes(std::int64_t rows) {
  const std::int64_t elements = rows * kTileColumns;
  const std::int64_t floats = elements + kScratch + kTileColumns * sums_pitch(rows);
  return elements * static_cast<std::int64_t>(sizeof(double)) +
         floats * static_cast<std::int64_t>(sizeof(float));
}

GemmPath path_of_target() {
  constexpr bool kFused = (HWY_TARGET & (HWY_AVX2 | HWY_AVX3 | HWY_AVX3_DL | HWY_NEON)) != 0;
  return kFused ? GemmPath::cpu_fused : GemmPath::cpu_unfused;
}

}  // namespace HWY_NAMESPACE
}  // namespace blockscale::gemm_detail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace blockscale {
namespace gemm_detail {
namespace {

HWY_EXPORT(cpu_methods);
HWY_EXPORT(run_task);
HWY_EXPORT(scratch_bytes);
HWY_EXPORT(path_of_target);
HWY_EXPORT(decode_rows);

}  // namespace

const CpuMethod& cpu_method(std::int64_t m, Recipe a, Recipe b, bool batch_invariant) {
  const std::span<const CpuMethod> methods = HWY_DYNAMIC_DISPATCH(cpu_methods)();
  if (batch_invariant) return methods.back();
  return *std::find_if(methods.begin(), methods.end(),
                       [=](const CpuMethod& method) { return method.serves(m, a, b); });
}

std::int64_t task_scratch_bytes(std::int64_t rows) {
  return HWY_DYNAMIC_DISPATCH(scratch_bytes)(rows);
}

void run_task(const Piece& piece, PackedBand& band, const CpuMethod& method, const Task& task,
              std::uint8_t* scratch) {
  HWY_DYNAMIC_DISPATCH(run_task)(piece, band, method, task, scratch);
}

void decode_values(const OperandMatrix& x, std::int64_t first, std::int64_t rows,
                   std::int64_t begin, std::int64_t count, float* out) {
  alignas(64) float slab[kPackedRows * kSlab];
  const std::int64_t end = begin + count;
  for (std::int64_t k = begin / kSlab * kSlab; k < end; k += kSlab) {
    const std::int64_t skipped = std::max<std::int64_t>(0, begin - k);
    const std::int64_t depth = std::min(kSlab, end - k);
    for (std::int64_t r = 0; r < rows; r += kPackedRows) {
      const std::int64_t some = std::min(kPackedRows, rows - r);
      HWY_DYNAMIC_DISPATCH(decode_rows)(x, first + r, some, k, std::min(kSlab, x.k - k), slab);
      for (std::int64_t i = 0; i < some; ++i) {
        std::copy(slab + i * kSlab + skipped, slab + i * kSlab + depth,
                  out + (r + i) * count + k + skipped - begin);
      }
    }
  }
}

namespace {

CpuKernel cpu_kernel(std::int64_t m, Recipe a, Recipe b, bool batch_invariant) {
  return cpu_method(m, a, b, batch_invariant).kernel;
}

/// How a workspace is divided: matrices of the batch that are multiplied at the same time, and
/// tasks of each.
struct WorkspacePlan {
  std::int64_t matrices = 1;
  std::int64_t tasks = 1;
  std::int64_t band = 0;     // bytes of a matrix, beside its tasks
  std::int64_t scratch = 0;  // bytes of a task

  WorkspacePlan(const GemmArguments& x, int threads) {
    const CpuPlan plan = cpu_plan(x.d.rows, x.d.columns, x.a.k);
    const CpuMethod& method = cpu_method(x.d.rows, x.a.recipe, x.b.recipe, x.batch_invariant);
    const int workers = effective_threads(threads);
    (x.d.batch > 1 && x.d.batch >= workers ? matrices : tasks) = workers;
    band = band_bytes(plan.band_rows, x.a.k, x.a.recipe, x.b.recipe, method);
    scratch = task_scratch_bytes(plan.task_rows);
  }
  std::int64_t matrix_bytes() const { return band + Slots::bytes_of(tasks, scratch); }
  std::int64_t bytes() const { return Slots::bytes_of(matrices, matrix_bytes()); }
};

/// `workspace`: matrix_bytes() of `division`, or null.
void multiply_batch_entry(const GemmArguments& x, std::int64_t index, int threads,
                          const WorkspacePlan& division, std::uint8_t* workspace) {
  Piece piece{OperandMatrix(x.a, index), OperandMatrix(x.b, index)};
  piece.rows = piece.product_rows = x.d.rows;
  piece.batch_invariant = x.batch_invariant;
  piece.epilogue = epilogue_of(alpha_of(x), piece.a, piece.b, x.d.dtype);
  piece.epilogue.beta = double{x.beta};
  piece.epilogue.c_dtype = x.c.dtype;
  const auto bytes = [](Format dtype) { return std::int64_t{format_traits(dtype).bits / 8}; };
  OutputMatrix& out = piece.out;
  out.d = static_cast<std::uint8_t*>(x.d.data) + index * x.d.batch_stride * bytes(x.d.dtype);
  out.d_row_stride = x.d.row_stride * bytes(x.d.dtype);
  if (x.beta != 0.0f) {
    const std::int64_t c_index = x.c.batch == 1 ? 0 : index;
    out.c =
        static_cast<const std::uint8_t*>(x.c.data) + c_index * x.c.batch_stride * bytes(x.c.dtype);
    out.c_row_stride = x.c.row_stride * bytes(x.c.dtype);
  }
  out.bias = static_cast<const std::uint8_t*>(x.bias);
  out.bias_dtype = x.bias_dtype;
  out.gate = static_cast<const std::uint8_t*>(x.gate);
  out.gate_dtype = x.gate_dtype;
  if (workspace == nullptr) {
    multiply_piece(piece, threads, Memory(), Slots());
  } else {
    multiply_piece(piece, threads, Memory(workspace),
                   Slots(workspace + division.band, division.tasks, division.scratch));
  }
}

}  // namespace

GemmPath cpu_path() {
  use_requested_simd();
  return HWY_DYNAMIC_DISPATCH(path_of_target)();
}

Multiplier multiplier_of(const GemmArguments& x) {
  const CpuKernel kernel = cpu_kernel(x.d.rows, x.a.recipe, x.b.recipe, x.batch_invariant);
  if (kernel == CpuKernel::integers) return Multiplier::int8;
  if (kernel == CpuKernel::pairs) return uses_amx() ? Multiplier::tiles : Multiplier::bf16;
  return kernel == CpuKernel::bf16_rows ? Multiplier::bf16 : Multiplier::f32;
}

}  // namespace gemm_detail

namespace gemm_detail {
namespace {

/// D in f32, and then what becomes of it.
void multiply_and_quantize(const GemmArguments& x, const QuantizedResult& result,
                           const GemmOptions& options) {
  const auto d = allocate<float>(x.d.batch * x.d.batch_stride);
  GemmArguments product = x;
  product.quantized.reset();
  product.d = x.d;
  product.d.data = d.get();
  gemm(product, options);
  QuantizeOptions quantization = result.options;
  quantization.threads = options.threads;
  quantize(product.d, result.out, quantization);
}

}  // namespace
}  // namespace gemm_detail

std::int64_t gemm_workspace_bytes(const GemmArguments& arguments, int threads) {
  use_requested_simd();
  GemmOptions options;
  options.threads = threads;
  const GemmArguments x = gemm_detail::validated(arguments, options);
  if (x.d.rows == 0 || x.d.columns == 0 || x.d.batch == 0) return 0;
  if (!gemm_detail::is_transformed(x)) return gemm_detail::WorkspacePlan(x, threads).bytes();
  const GemmArguments product = gemm_detail::before_transform(x, nullptr);
  return gemm_detail::transform_bytes(x) + gemm_detail::WorkspacePlan(product, threads).bytes();
}

void gemm(const GemmArguments& arguments, const GemmOptions& options) {
  using gemm_detail::Slots;
  use_requested_simd();
  const GemmArguments x = gemm_detail::validated(arguments, options);
  if (x.d.rows == 0 || x.d.columns == 0 || x.d.batch == 0) return;
  if (x.quantized) return gemm_detail::multiply_and_quantize(x, *x.quantized, options);
  if (gemm_detail::is_transformed(x)) return gemm_detail::multiply_and_transform(x, options);
  const gemm_detail::WorkspacePlan division(x, options.threads);
  auto* const workspace = static_cast<std::uint8_t*>(options.workspace);
  Slots slots;
  if (workspace != nullptr) {
    gemm_detail::check_workspace(x, options, division.bytes());
    slots = Slots(workspace, division.matrices, division.matrix_bytes());
  }
  const bool by_matrix = division.matrices > 1;
  const auto multiply = [&](std::int64_t index, std::int64_t) {
    const int threads = by_matrix ? 1 : options.threads;
    if (workspace == nullptr) {
      gemm_detail::multiply_batch_entry(x, index, threads, division, nullptr);
    } else {
      const Slots::Use slot(slots);
      gemm_detail::multiply_batch_entry(x, index, threads, division, slot.data());
    }
  };
  parallel_for(x.d.batch, 1, by_matrix ? options.threads : 1, std::cref(multiply));
}

std::string describe_gemm(const GemmArguments& arguments) {
  use_requested_simd();
  const GemmArguments x = gemm_detail::validated(arguments, {});
  if (x.d.rows == 0 || x.d.columns == 0 || x.d.batch == 0) return "nothing to do\n";
  const gemm_detail::CpuPlan plan = gemm_detail::cpu_plan(x.d.rows, x.b.rows, x.a.k);
  const auto kernel = gemm_detail::cpu_kernel(x.d.rows, x.a.recipe, x.b.recipe, x.batch_invariant);
  const bool in_tiles = kernel == gemm_detail::CpuKernel::pairs && uses_amx();
  return std::to_string(x.d.batch) + " x " +
         plan.describe(recipe_traits(x.a.recipe).name, recipe_traits(x.b.recipe).name, kernel) +
         "; on " + simd_target() + (in_tiles ? " with AMX" : "") +
         gemm_detail::text_of_quantization(x) + "\n";
}

}  // namespace blockscale
#endif  // HWY_ONCE
