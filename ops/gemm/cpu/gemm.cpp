// The CPU GEMM. Reading order: plan.h (how the work is divided), run_task below (one block of
// D), panel-inl.h (decoding), microkernel-inl.h (the inner loops), epilogue-inl.h.
#define BLOCKSCALE_WANT_AVX3_DL
#include "ops/common/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/gemm/cpu/gemm.cpp"
#include <hwy/foreach_target.h>  // must come before the other Highway headers
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "blockscale/gemm.h"
#include "blockscale/parallel.h"
#include "blockscale/system.h"
#include "core/recipe.h"
#include "ops/common/float_environment.h"
#include "ops/common/simd/requested.h"
#include "ops/gemm/cpu/epilogue.h"
#include "ops/gemm/cpu/operand.h"
#include "ops/gemm/cpu/path.h"
#include "ops/gemm/cpu/plan.h"
#include "ops/gemm/cpu/task.h"
#include "ops/gemm/cpu/value_range.h"
#include "ops/gemm/validate.h"
// Toggled per target.
#include "ops/common/simd/decode-inl.h"
#include "ops/gemm/cpu/digits-inl.h"
#include "ops/gemm/cpu/epilogue-inl.h"
#include "ops/gemm/cpu/few_rows-inl.h"
#include "ops/gemm/cpu/integers-inl.h"
#include "ops/gemm/cpu/microkernel-inl.h"
#include "ops/gemm/cpu/panel-inl.h"
#include "ops/gemm/cpu/span_factors-inl.h"
#include "ops/gemm/cpu/word_panel-inl.h"

#ifndef BLOCKSCALE_OPS_GEMM_CPU_CPP_ONCE_
#define BLOCKSCALE_OPS_GEMM_CPU_CPP_ONCE_
namespace blockscale::gemm_detail {

/// Rows of A that one task decodes.
inline constexpr std::int64_t kPackedRows = 8;
/// That of 1.
inline constexpr ValueRange kUnitRange{0x3F800000u, 0x3F800000u - 1};

}  // namespace blockscale::gemm_detail
#endif  // BLOCKSCALE_OPS_GEMM_CPU_CPP_ONCE_

HWY_BEFORE_NAMESPACE();
namespace blockscale::gemm_detail {
namespace HWY_NAMESPACE {

/// Decodes rows [begin, end) of the chunk, at most kPackedRows.
void pack_rows(const OperandMatrix& a, std::int64_t begin, std::int64_t end, PackedChunk& chunk) {
  for (std::int64_t slab = 0; slab * kSlab < a.k; ++slab) {
    const std::int64_t first = slab * kSlab;
    const std::int64_t depth = std::min(kSlab, a.k - first);
    decode_rows(a, chunk.first_row + begin, end - begin, first, depth, chunk.row(slab, begin));
    for (std::int64_t r = begin; r < end; ++r) {
      chunk.ranges[static_cast<std::size_t>(slab * chunk.rows + r)] =
          range_of_row(chunk.row(slab, r), depth);
    }
  }
}

/// Scratch of one task: the factors of a span, and what the path that is taken needs beside it.
inline constexpr std::int64_t kFactorScratch = kTileColumns * kFactorPitchOfSpan;
inline constexpr std::int64_t kScratch =
    kFactorScratch +
    std::max<std::int64_t>({2 * kSlab * kPanelColumns, kLaneSums, kIntegerScratch});

/// Adds the products of one slab to the tile: all rows of the task times one panel of B.
void multiply_panel(const PackedChunk& chunk, const Task& task, std::int64_t slab,
                    std::int64_t depth, const float* panel, const ValueRange& panel_range,
                    double* tile) {
  const std::int64_t rows = task.row_end - task.row_begin;
  const RowGroups groups(rows, kMaxPanelRows);
  for (std::int64_t g = 0; g < groups.count; ++g) {
    const std::int64_t begin = task.row_begin + groups.begin(g);
    const std::int64_t end = task.row_begin + groups.end(g);
    ValueRange range;
    for (std::int64_t r = begin; r < end; ++r) {
      range.include(chunk.ranges[static_cast<std::size_t>(slab * chunk.rows + r)]);
    }
    const bool is_safe = !chunk.is_batch_invariant && f32_is_safe(range, panel_range);
    multiply(static_cast<int>(end - begin), is_safe, chunk.row(slab, begin), panel, depth,
             tile + (begin - task.row_begin) * kTileColumns);
  }
}

/// Adds the products of k in [begin, begin + count) to the tile, slab by slab, a panel of B at a
/// time. `factors`: of the span that begins there, or null where panels are not made of words.
void multiply_slabs(const PackedChunk& chunk, const OperandMatrix& b, const Task& task,
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
      multiply_panel(chunk, task, first / kSlab, depth, panel, range, tile + c);
    }
  }
}

/// Adds the products of k in [begin, begin + count), a span, to the tile.
void multiply_span_of_task(const PackedChunk& chunk, const OperandMatrix& b, const Task& task,
                           std::int64_t begin, std::int64_t count, float* scratch, double* tile) {
  float* const rest = scratch + kFactorScratch;
  const bool words = has_word_panels(b.recipe);
  const bool integers = chunk.integers.bytes != nullptr;
  const bool digits = !chunk.digits.layers.empty();
  if (chunk.arranged == nullptr && !words && !digits) {
    multiply_slabs(chunk, b, task, nullptr, begin, count, rest, tile);
    return;
  }
  const SpanFactors factors(b, task.column_begin, task.columns, begin, count, scratch);
  if (integers && multiply_integers(chunk, b, task, factors, begin, count, rest, tile)) return;
  if (digits && multiply_span_of_digits(chunk, b, task, factors, begin, count, rest, tile)) return;
  if (chunk.arranged != nullptr &&
      multiply_span(chunk, b, task, factors, begin, count, rest, tile)) {
    return;
  }
  // Where the bound from the factors is not good enough, the values themselves are looked at.
  const ValueRange bound = range_of_values(factors.range(), recipe_traits(b.recipe).element);
  const bool is_bounded = words && (chunk.is_batch_invariant || f32_is_safe(chunk.range, bound));
  multiply_slabs(chunk, b, task, is_bounded ? &factors : nullptr, begin, count, rest, tile);
}

void run_task(const PackedChunk& chunk, const OperandMatrix& b, const Epilogue& epilogue,
              const OutputMatrix& out, const Task& task) {
  const std::int64_t rows = task.row_end - task.row_begin;
  const std::int64_t tile_bytes = rows * kTileColumns * static_cast<std::int64_t>(sizeof(double));
  std::uint8_t* const memory =
      thread_scratch(tile_bytes + kScratch * static_cast<std::int64_t>(sizeof(float)));
  double* const tile = reinterpret_cast<double*>(memory);
  float* const scratch = reinterpret_cast<float*>(memory + tile_bytes);
  std::fill(tile, tile + rows * kTileColumns, 0.0);
  for (std::int64_t first = 0; first < b.k; first += kSpan) {
    const std::int64_t depth = std::min(kSpan, b.k - first);
    multiply_span_of_task(chunk, b, task, first, depth, scratch, tile);
  }

  const std::int64_t d_size = format_traits(epilogue.d_dtype).bits / 8;
  const std::int64_t c_size = format_traits(epilogue.c_dtype).bits / 8;
  alignas(64) float bias[kTileColumns] = {};
  if (out.bias != nullptr) {
    codes::decode_run(out.bias_dtype, out.bias, task.column_begin, task.columns, bias);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t row = chunk.first_row + task.row_begin + r;
    const std::uint8_t* const c =
        out.c == nullptr ? nullptr : out.c + row * out.c_row_stride + task.column_begin * c_size;
    finish_row(epilogue, task.columns, tile + r * kTileColumns, c,
               out.bias == nullptr ? nullptr : bias,
               out.d + row * out.d_row_stride + task.column_begin * d_size);
  }
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

HWY_EXPORT(arrange_digits);
HWY_EXPORT(arrange_rows);
HWY_EXPORT(has_digits);
HWY_EXPORT(has_few_rows);
HWY_EXPORT(has_integers);
HWY_EXPORT(pack_integer_rows);
HWY_EXPORT(pack_rows);
HWY_EXPORT(run_task);
HWY_EXPORT(path_of_target);

/// How this machine's instruction set multiplies `m` rows.
CpuKernel cpu_kernel(std::int64_t m, Recipe a, Recipe b, bool batch_invariant) {
  if (batch_invariant) return CpuKernel::panels;
  if (m == 1 && HWY_DYNAMIC_DISPATCH(has_digits)(a, b)) return CpuKernel::digits;
  if (m > 1 && HWY_DYNAMIC_DISPATCH(has_integers)(a, b)) return CpuKernel::integers;
  if (m <= kFewRows && HWY_DYNAMIC_DISPATCH(has_few_rows)(b)) return CpuKernel::few_rows;
  return CpuKernel::panels;
}

/// D of one matrix of the batch, chunk by chunk of A.
void multiply_matrix(const OperandMatrix& a, const OperandMatrix& b, const Epilogue& epilogue,
                     const OutputMatrix& out, bool batch_invariant, int threads) {
  const CpuPlan plan = cpu_plan(a.rows, b.rows, a.k);
  const CpuKernel kernel = cpu_kernel(a.rows, a.recipe, b.recipe, batch_invariant);
  const bool integers = kernel == CpuKernel::integers;
  PackedChunk chunk;
  chunk.is_batch_invariant = batch_invariant;
  chunk.values = allocate<float>(plan.slabs * plan.chunk_rows * kSlab);
  chunk.ranges = allocate<ValueRange>(plan.slabs * plan.chunk_rows);
  if (integers) {
    chunk.integers.allocate_rows(plan.chunk_rows, a.k, recipe_traits(a.recipe).block_k);
  }
  for (std::int64_t first = 0; first < a.rows; first += plan.chunk_rows) {
    chunk.first_row = chunk.integers.first_row = first;
    chunk.rows = std::min(plan.chunk_rows, a.rows - first);
    parallel_for(chunk.rows, kPackedRows, threads, [&](std::int64_t begin, std::int64_t end) {
      const DefaultFloatEnvironment environment;
      HWY_DYNAMIC_DISPATCH(pack_rows)(a, begin, end, chunk);
      if (integers) HWY_DYNAMIC_DISPATCH(pack_integer_rows)(a, begin, end, chunk.integers);
    });
    chunk.range = {};
    std::for_each_n(chunk.ranges.get(), plan.slabs * chunk.rows,
                    [&](const ValueRange& range) { chunk.range.include(range); });
    if (integers) {
      chunk.integers.range = {};
      std::for_each_n(chunk.integers.ranges.get(), chunk.rows,
                      [&](const ValueRange& range) { chunk.integers.range.include(range); });
    }
    if (kernel == CpuKernel::few_rows) {
      HWY_DYNAMIC_DISPATCH(arrange_rows)(chunk, a.k, b.recipe);
    }
    // All factors are 1 here: whether B's are safe too is looked at span by span.
    if (kernel == CpuKernel::digits && digits_are_safe(chunk.range, kUnitRange)) {
      HWY_DYNAMIC_DISPATCH(arrange_digits)(chunk, a.k);
    }
    const std::int64_t row_tasks = ceil_div(chunk.rows, plan.task_rows);
    const std::int64_t column_tasks = ceil_div(b.rows, kTileColumns);
    parallel_for(row_tasks * column_tasks, 1, threads, [&](std::int64_t index, std::int64_t) {
      const DefaultFloatEnvironment environment;
      Task task;
      task.row_begin = index % row_tasks * plan.task_rows;
      task.row_end = std::min(chunk.rows, task.row_begin + plan.task_rows);
      task.column_begin = index / row_tasks * kTileColumns;
      task.columns = std::min(kTileColumns, b.rows - task.column_begin);
      HWY_DYNAMIC_DISPATCH(run_task)(chunk, b, epilogue, out, task);
    });
  }
}

void multiply_batch_entry(const GemmArguments& x, std::int64_t index, int threads) {
  const OperandMatrix a(x.a, index);
  const OperandMatrix b(x.b, index);
  const auto factor = [](const OperandMatrix& operand) {
    return TensorFactor{operand.tensor_scale, operand.sense == TensorScaleSense::divisor};
  };
  const Epilogue epilogue{alpha_of(x), factor(a), factor(b), double{x.beta}, x.c.dtype, x.d.dtype};
  const auto bytes = [](Format dtype) { return std::int64_t{format_traits(dtype).bits / 8}; };
  OutputMatrix out;
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
  multiply_matrix(a, b, epilogue, out, x.batch_invariant, threads);
}

}  // namespace

GemmPath cpu_path() {
  use_requested_simd();
  return HWY_DYNAMIC_DISPATCH(path_of_target)();
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

void gemm(const GemmArguments& arguments, const GemmOptions& options) {
  use_requested_simd();
  const GemmArguments x = gemm_detail::validated(arguments, options);
  if (x.d.rows == 0 || x.d.columns == 0) return;
  if (x.quantized) return gemm_detail::multiply_and_quantize(x, *x.quantized, options);
  if (x.d.batch > 1 && x.d.batch >= effective_threads(options.threads)) {
    parallel_for(x.d.batch, 1, options.threads, [&](std::int64_t index, std::int64_t) {
      gemm_detail::multiply_batch_entry(x, index, 1);
    });
  } else {
    for (std::int64_t index = 0; index < x.d.batch; ++index) {
      gemm_detail::multiply_batch_entry(x, index, options.threads);
    }
  }
}

std::string describe_gemm(const GemmArguments& arguments) {
  use_requested_simd();
  const GemmArguments x = gemm_detail::validated(arguments, {});
  if (x.d.rows == 0 || x.d.columns == 0 || x.d.batch == 0) return "nothing to do\n";
  const gemm_detail::CpuPlan plan = gemm_detail::cpu_plan(x.d.rows, x.d.columns, x.a.k);
  const auto kernel = gemm_detail::cpu_kernel(x.d.rows, x.a.recipe, x.b.recipe, x.batch_invariant);
  return std::to_string(x.d.batch) + " x " +
         plan.describe(recipe_traits(x.a.recipe).name, recipe_traits(x.b.recipe).name, kernel) +
         "; on " + simd_target() + gemm_detail::text_of_quantization(x) + "\n";
}

}  // namespace blockscale
#endif  // HWY_ONCE
