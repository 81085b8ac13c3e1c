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
#include <functional>
#include <mutex>

#include "blockscale/gemm.h"
#include "blockscale/parallel.h"
#include "blockscale/system.h"
#include "core/recipe.h"
#include "ops/common/float_environment.h"
#include "ops/common/simd/amx.h"
#include "ops/common/simd/requested.h"
#include "ops/gemm/cpu/epilogue.h"
#include "ops/gemm/cpu/memory.h"
#include "ops/gemm/cpu/operand.h"
#include "ops/gemm/cpu/path.h"
#include "ops/gemm/cpu/plan.h"
#include "ops/gemm/cpu/task.h"
#include "ops/gemm/cpu/transform.h"
#include "ops/gemm/cpu/value_range.h"
#include "ops/gemm/validate.h"
// Toggled per target.
#include "ops/common/simd/decode-inl.h"
#include "ops/gemm/cpu/bf16-inl.h"
#include "ops/gemm/cpu/bf16_rows-inl.h"
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

/// Decodes all rows of the chunk, unless that was done: where a task needs them after all.
void need_rows(const OperandMatrix& a, PackedChunk& chunk) {
  const std::lock_guard lock(chunk.decoding);
  if (chunk.is_decoded) return;
  const std::int64_t slabs = ceil_div(a.k, kSlab);
  if (chunk.values == nullptr) chunk.take_values(slabs);
  for (std::int64_t r = 0; r < chunk.rows; r += kPackedRows) {
    pack_rows(a, r, std::min(chunk.rows, r + kPackedRows), chunk);
  }
  chunk.take_range(slabs);
}

/// Scratch of one task: the factors of a span, and what the path that is taken needs beside it.
inline constexpr std::int64_t kFactorScratch = kTileColumns * kFactorPitchOfSpan;
inline constexpr std::int64_t kScratch =
    kFactorScratch +
    std::max<std::int64_t>({2 * kSlab * kPanelColumns, kLaneSums, kIntegerScratch, kPairScratch});

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

/// Sums the products of k in [begin, begin + count), a span, in f32: all of them in `sums`, rows
/// kTileColumns apart. False if the chunk is not prepared for that, or f32 might not hold them.
bool sum_span(const PackedChunk& chunk, const OperandMatrix& b, const Task& task,
              const SpanFactors& factors, std::int64_t begin, std::int64_t count, float* scratch,
              float* sums) {
  if (chunk.integers.bytes != nullptr) {
    return multiply_integers(chunk, b, task, factors, begin, count, scratch, sums);
  }
  return chunk.pairs.values != nullptr &&
         multiply_span_of_pairs(chunk, b, task, factors, begin, count, scratch, sums);
}

/// Adds the products of k in [begin, begin + count), a span, to the tile. `sums` is scratch of a
/// tile in f32.
void multiply_span_of_task(const OperandMatrix& a, PackedChunk& chunk, const OperandMatrix& b,
                           const Task& task, std::int64_t begin, std::int64_t count, float* scratch,
                           float* sums, double* tile) {
  float* const rest = scratch + kFactorScratch;
  const bool words = has_word_panels(b.recipe);
  if (chunk.bf16_rows != nullptr &&
      multiply_span_of_bf16(chunk, b, task, begin, count, scratch, tile)) {
    return;
  }
  if (!words && chunk.arranged == nullptr && !chunk.sums_spans()) {
    multiply_slabs(chunk, b, task, nullptr, begin, count, rest, tile);
    return;
  }
  const SpanFactors factors(b, task.column_begin, task.columns, begin, count, scratch);
  if (sum_span(chunk, b, task, factors, begin, count, rest, sums)) {
    const std::int64_t elements = (task.row_end - task.row_begin) * kTileColumns;
    for (std::int64_t i = 0; i < elements; i += kLanes) {
      add_to_tile(hn::Load(FloatTag(), sums + i), tile + i);
    }
    return;
  }
  if (chunk.arranged != nullptr &&
      multiply_span(chunk, b, task, factors, begin, count, rest, tile)) {
    return;
  }
  // Where the bound from the factors is not good enough, the values themselves are looked at.
  need_rows(a, chunk);
  const ValueRange bound = range_of_values(factors.range(), recipe_traits(b.recipe).element);
  const bool is_bounded = words && (chunk.is_batch_invariant || f32_is_safe(chunk.range, bound));
  multiply_slabs(chunk, b, task, is_bounded ? &factors : nullptr, begin, count, rest, tile);
}

void run_task(const OperandMatrix& a, PackedChunk& chunk, const OperandMatrix& b,
              const Epilogue& epilogue, const OutputMatrix& out, const Task& task,
              std::uint8_t* memory) {
  const std::int64_t rows = task.row_end - task.row_begin;
  const std::int64_t elements = rows * kTileColumns;
  double* const tile = reinterpret_cast<double*>(memory);
  float* const sums = reinterpret_cast<float*>(tile + elements);
  float* const scratch = sums + elements;

  bool in_f32 = false;
  if (b.k > 0 && b.k <= kSpan && chunk.sums_spans()) {
    const SpanFactors factors(b, task.column_begin, task.columns, 0, b.k, scratch);
    in_f32 = sum_span(chunk, b, task, factors, 0, b.k, scratch + kFactorScratch, sums);
  }
  if (!in_f32) {
    std::fill(tile, tile + elements, 0.0);
    for (std::int64_t first = 0; first < b.k; first += kSpan) {
      const std::int64_t depth = std::min(kSpan, b.k - first);
      multiply_span_of_task(a, chunk, b, task, first, depth, scratch, sums, tile);
    }
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
    std::uint8_t* const d = out.d + row * out.d_row_stride + task.column_begin * d_size;
    if (in_f32 && epilogue.fits_f32 && c == nullptr) {
      finish_row_in_f32(epilogue, task.columns, sums + r * kTileColumns, bias, d);
      continue;
    }
    double* const row_sums = tile + r * kTileColumns;
    if (in_f32) widen(sums + r * kTileColumns, row_sums);
    finish_row(epilogue, task.columns, row_sums, c, out.bias == nullptr ? nullptr : bias, d);
  }
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

HWY_EXPORT(arrange_bf16_rows);
HWY_EXPORT(arrange_rows);
HWY_EXPORT(has_bf16_rows);
HWY_EXPORT(has_few_rows);
HWY_EXPORT(has_integers);
HWY_EXPORT(has_pairs);
HWY_EXPORT(pack_pair_rows);
HWY_EXPORT(pack_integer_rows);
HWY_EXPORT(pack_rows);
HWY_EXPORT(run_task);
HWY_EXPORT(scratch_bytes);
HWY_EXPORT(path_of_target);

/// How this machine's instruction set multiplies `m` rows.
CpuKernel cpu_kernel(std::int64_t m, Recipe a, Recipe b, bool batch_invariant) {
  if (batch_invariant) return CpuKernel::panels;
  if (m <= kFewRows && HWY_DYNAMIC_DISPATCH(has_bf16_rows)(a, b)) return CpuKernel::bf16_rows;
  const bool pairs = m > kFewRows && HWY_DYNAMIC_DISPATCH(has_pairs)(a, b);
  if (pairs && uses_amx()) return CpuKernel::pairs;
  if (m > 1 && HWY_DYNAMIC_DISPATCH(has_integers)(a, b)) return CpuKernel::integers;
  if (pairs) return CpuKernel::pairs;
  if (m <= kFewRows && HWY_DYNAMIC_DISPATCH(has_few_rows)(b)) return CpuKernel::few_rows;
  return CpuKernel::panels;
}

/// Takes what the kernel needs of A at once.
void take_memory(PackedChunk& chunk, const CpuPlan& plan, CpuKernel kernel, std::int64_t k,
                 Recipe a, Recipe b) {
  chunk.most_rows = plan.chunk_rows;
  if (kernel == CpuKernel::integers) {
    chunk.integers.take_rows(plan.chunk_rows, k, recipe_traits(a).block_k, chunk.memory);
  } else if (kernel == CpuKernel::pairs) {
    chunk.pairs.take_rows(plan.chunk_rows, k, a, b, chunk.memory);
  } else {
    chunk.take_values(plan.slabs);
  }
}

/// Bytes of a workspace that one matrix of the batch takes at most for A, in f32 too where a span
/// needs it.
std::int64_t chunk_bytes(const GemmArguments& x, const CpuPlan& plan, CpuKernel kernel) {
  PackedChunk chunk;
  chunk.memory = Memory(nullptr);
  take_memory(chunk, plan, kernel, x.a.k, x.a.recipe, x.b.recipe);
  if (kernel == CpuKernel::integers || kernel == CpuKernel::pairs) chunk.take_values(plan.slabs);
  // As few_rows-inl.h and bf16_rows-inl.h arrange rows, in chunks of at most 128 codes.
  const std::int64_t arranged = ceil_div(x.a.k, std::int64_t{128}) * 128 * plan.chunk_rows;
  if (kernel == CpuKernel::few_rows) chunk.memory.take<float>(arranged);
  if (kernel == CpuKernel::bf16_rows) chunk.memory.take<std::uint16_t>(arranged);
  return chunk.memory.taken();
}

/// How a workspace is divided: matrices of the batch that are multiplied at the same time, and
/// tasks of each.
struct WorkspacePlan {
  std::int64_t matrices = 1;
  std::int64_t tasks = 1;
  std::int64_t chunk = 0;    // bytes of a matrix, beside its tasks
  std::int64_t scratch = 0;  // bytes of a task

  WorkspacePlan(const GemmArguments& x, int threads) {
    const CpuPlan plan = cpu_plan(x.d.rows, x.d.columns, x.a.k);
    const auto kernel = cpu_kernel(x.d.rows, x.a.recipe, x.b.recipe, x.batch_invariant);
    const int workers = effective_threads(threads);
    (x.d.batch > 1 && x.d.batch >= workers ? matrices : tasks) = workers;
    chunk = chunk_bytes(x, plan, kernel);
    scratch = HWY_DYNAMIC_DISPATCH(scratch_bytes)(plan.task_rows);
  }
  std::int64_t matrix_bytes() const { return chunk + Slots::bytes_of(tasks, scratch); }
  std::int64_t bytes() const { return Slots::bytes_of(matrices, matrix_bytes()); }
};

/// D of one matrix of the batch, chunk by chunk of A. Without `slots`, tasks have their threads'
/// scratch.
void multiply_matrix(const OperandMatrix& a, const OperandMatrix& b, const Epilogue& epilogue,
                     const OutputMatrix& out, bool batch_invariant, int threads,
                     const Memory& memory, const Slots& slots) {
  const CpuPlan plan = cpu_plan(a.rows, b.rows, a.k);
  const CpuKernel kernel = cpu_kernel(a.rows, a.recipe, b.recipe, batch_invariant);
  const bool integers = kernel == CpuKernel::integers;
  const bool pairs = kernel == CpuKernel::pairs;
  PackedChunk chunk;
  chunk.is_batch_invariant = batch_invariant;
  chunk.memory = memory;
  take_memory(chunk, plan, kernel, a.k, a.recipe, b.recipe);
  const std::int64_t scratch = HWY_DYNAMIC_DISPATCH(scratch_bytes)(plan.task_rows);
  for (std::int64_t first = 0; first < a.rows; first += plan.chunk_rows) {
    chunk.first_row = chunk.integers.first_row = chunk.pairs.first_row = first;
    chunk.rows = chunk.pairs.rows = std::min(plan.chunk_rows, a.rows - first);
    const std::int64_t packed = pairs ? PairRows::kPanelRows : kPackedRows;
    const auto pack = [&](std::int64_t begin, std::int64_t end) {
      const DefaultFloatEnvironment environment;
      if (pairs) HWY_DYNAMIC_DISPATCH(pack_pair_rows)(a, b.recipe, begin, end, chunk.pairs);
      if (integers) HWY_DYNAMIC_DISPATCH(pack_integer_rows)(a, begin, end, chunk.integers);
      if (!pairs && !integers) HWY_DYNAMIC_DISPATCH(pack_rows)(a, begin, end, chunk);
    };
    parallel_for(chunk.rows, packed, threads, std::cref(pack));
    chunk.is_decoded = false;
    if (!pairs && !integers) chunk.take_range(plan.slabs);
    if (pairs) chunk.pairs.take_ranges();
    if (integers) {
      chunk.integers.range = {};
      std::for_each_n(chunk.integers.ranges.get(), chunk.rows,
                      [&](const ValueRange& range) { chunk.integers.range.include(range); });
    }
    if (kernel == CpuKernel::few_rows) {
      HWY_DYNAMIC_DISPATCH(arrange_rows)(chunk, a.k, b.recipe);
    }
    if (kernel == CpuKernel::bf16_rows) {
      HWY_DYNAMIC_DISPATCH(arrange_bf16_rows)(chunk, a.k, b.recipe);
    }
    const std::int64_t row_tasks = ceil_div(chunk.rows, plan.task_rows);
    const std::int64_t column_tasks = ceil_div(b.rows, kTileColumns);
    const auto multiply = [&](std::int64_t index, std::int64_t) {
      const DefaultFloatEnvironment environment;
      Task task;
      task.row_begin = index % row_tasks * plan.task_rows;
      task.row_end = std::min(chunk.rows, task.row_begin + plan.task_rows);
      task.column_begin = index / row_tasks * kTileColumns;
      task.columns = std::min(kTileColumns, b.rows - task.column_begin);
      if (slots.is_empty()) {
        HWY_DYNAMIC_DISPATCH(run_task)(a, chunk, b, epilogue, out, task, thread_scratch(scratch));
      } else {
        const Slots::Use slot(slots);
        HWY_DYNAMIC_DISPATCH(run_task)(a, chunk, b, epilogue, out, task, slot.data());
      }
    };
    parallel_for(row_tasks * column_tasks, 1, threads, std::cref(multiply));
  }
}

/// `workspace`: matrix_bytes() of `division`, or null.
void multiply_batch_entry(const GemmArguments& x, std::int64_t index, int threads,
                          const WorkspacePlan& division, std::uint8_t* workspace) {
  const OperandMatrix a(x.a, index);
  const OperandMatrix b(x.b, index);
  const auto factor = [](const OperandMatrix& operand) {
    return TensorFactor{operand.tensor_scale, operand.sense == TensorScaleSense::divisor};
  };
  Epilogue epilogue{alpha_of(x), factor(a), factor(b), double{x.beta}, x.c.dtype, x.d.dtype};
  epilogue.combine();
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
  if (workspace == nullptr) {
    multiply_matrix(a, b, epilogue, out, x.batch_invariant, threads, Memory(), Slots());
  } else {
    multiply_matrix(a, b, epilogue, out, x.batch_invariant, threads, Memory(workspace),
                    Slots(workspace + division.chunk, division.tasks, division.scratch));
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
