#include "ops/gemm/cuda/plan.h"

#include <algorithm>
#include <bit>
#include <cstdio>

#include "ops/gemm/cuda/problem.h"
#include "ops/gemm/cuda/quantize.h"
#include "ops/gemm/cuda/sm90/fp8_launch.h"
#include "ops/gemm/validate.h"

namespace blockscale::gemm_detail {
namespace {

/// Has `x` copied to the plan's workspace, before anything else.
void align(ScaledTensorView& x, void* workspace, const cuda::Chip& chip, Fp8GemmPlan& plan) {
  AlignRowsParams p;
  p.from = static_cast<const std::uint8_t*>(x.values);
  p.to = static_cast<std::uint8_t*>(byte_at(workspace, plan.workspace_bytes));
  p.from_row_stride = x.value_row_stride;
  p.from_batch_stride = x.value_batch_stride;
  p.rows = x.rows;
  p.batch = x.batch;
  p.bytes = x.k;
  constexpr std::int64_t kRowsOfBlock = kAlignRowsThreads / 32;
  constexpr std::int64_t kBlocksOfMultiprocessor = 8;
  GemmStep step;
  step.kernel = kAlignRowsKernel;
  step.shape.grid = {static_cast<std::uint32_t>(
      std::min(ceil_div(x.rows * x.batch, kRowsOfBlock),
               kBlocksOfMultiprocessor * std::int64_t{chip.multiprocessors}))};
  step.shape.block = {kAlignRowsThreads};
  step.shape.programmatic_dependent_launch = true;
  step.params = p;
  plan.steps.push_back(step);
  x.values = p.to;
  x.value_row_stride = p.to_row_stride();
  x.value_batch_stride = x.rows * x.value_row_stride;
  plan.workspace_bytes += x.batch * x.value_batch_stride;
}

/// Whether a product with `other` is faster with a copy of `x`: tensor copies of rows that begin at
/// odd multiples of 16 bytes take half as long again, which binds a product that is no small one.
bool is_worth_a_copy(const ScaledTensorView& x, const ScaledTensorView& other) {
  constexpr std::int64_t kLeastRows = 256, kLeastOfOther = 2048, kLeastK = 1024;
  const bool is_odd = reinterpret_cast<std::uintptr_t>(x.values) % 32 == 16 ||
                      (x.rows > 1 && x.value_row_stride % 32 == 16);
  return is_odd && x.rows >= kLeastRows && other.rows >= kLeastOfOther && x.k >= kLeastK;
}

/// Whether the GEMV computes the product, where A has one row: it has no form for scales of blocks
/// of single rows of B, adds in another order than tiles, and is no faster where K is short.
bool takes_gemv(const GemmArguments& x, const Fp8GemmSize& size) {
  constexpr std::int64_t kLeastK = 4096;
  constexpr std::int64_t kMostK = std::int64_t{1} << 16;  // as shared memory holds A
  constexpr std::int64_t kMostBatch = 65535;              // of a grid
  return size.m == 1 && size.promotion == Promotion::blocks && !x.batch_invariant && !x.quantized &&
         size.k >= kLeastK && size.k <= kMostK && size.k % 16 == 0 && size.batch <= kMostBatch;
}

GemmStep gemv_step(const GemmArguments& x, const Fp8GemmSize& size) {
  // A warp that has fewer k-blocks spends its time on beginning and ending.
  constexpr std::int64_t kLeastBlocks = 7;
  const std::int64_t k_blocks = ceil_div(size.k, kFp8BlockK);
  Fp8GemvParams p;
  std::uint32_t divisions = 1;
  while (divisions < kGemvWarps && k_blocks >= 2 * divisions * kLeastBlocks) divisions *= 2;
  p.a = static_cast<const std::uint8_t*>(x.a.values);
  p.b = static_cast<const std::uint8_t*>(x.b.values);
  p.a_batch_stride = x.a.batch > 1 ? x.a.value_batch_stride : 0;
  p.b_batch_stride = x.b.batch > 1 ? x.b.value_batch_stride : 0;
  p.b_row_stride = x.b.value_row_stride;
  p.a_scales = scales_of_operand(x.a);
  p.b_scales = scales_of_operand(x.b);
  p.epilogue = epilogue_of(x);
  move_scales_to_end(x, p.a_scales, p.b_scales, p.epilogue);
  p.k = static_cast<std::uint32_t>(size.k);
  p.division_shift = static_cast<std::uint32_t>(std::countr_zero(divisions));
  p.part_blocks = static_cast<std::uint32_t>(ceil_div(k_blocks, std::int64_t{divisions}));
  const std::uint32_t rows = kGemvWarps / divisions * kGemvWarpRows;
  GemmStep step;
  step.kernel = kFp8GemvKernel;
  step.params = p;
  step.shape.grid = {static_cast<std::uint32_t>(ceil_div(size.n, std::int64_t{rows})),
                     static_cast<std::uint32_t>(size.batch)};
  step.shape.block = {32 * kGemvWarps};
  step.shape.dynamic_shared_bytes = fp8_gemv::memory_of(static_cast<std::uint32_t>(k_blocks)).total;
  step.shape.programmatic_dependent_launch = true;
  return step;
}

std::string text_of(const Fp8GemvParams& params, const LaunchShape& shape) {
  const std::uint32_t divisions = 1u << params.division_shift;
  return "gemm_fp8_one_row: " + std::to_string(kGemvWarps / divisions * kGemvWarpRows) +
         " rows of B a block, K divided among " + std::to_string(divisions) + " warps; " +
         std::to_string(shape.grid.x) + " x " + std::to_string(shape.block.x) + " threads, " +
         std::to_string(shape.dynamic_shared_bytes) + " bytes shared";
}

}  // namespace

Fp8GemmSize size_of(const GemmArguments& x) {
  const RecipeTraits& b = recipe_traits(x.b.recipe);
  Fp8GemmSize size;
  size.m = x.d.rows;
  size.n = x.d.columns;
  size.k = x.a.k;
  size.batch = x.d.batch;
  const bool at_end = has_scales_at_end(x);
  const bool one_scale = at_end || b.block_rows == 0;
  size.promotion = one_scale || b.block_rows == 128 ? Promotion::blocks : Promotion::columns;
  size.may_split_columns = x.quantized || !is_swizzled(x.b.layout);
  if (x.quantized) {
    size.quantized_columns = quantized_columns(x);
    if (!one_scale && !runs_fit_blocks(tile_runs(x))) size.promotion = Promotion::columns;
  }
  size.may_split = !x.batch_invariant;
  size.loads_scales = !at_end || x.a.k == 0;  // without K there is none to leave
  size.may_copy_scales = takes_copied_scales(x.a, 1) && takes_copied_scales(x.b, kFp8BlockK);
  return size;
}

Fp8GemmPlan plan_fp8_gemm(const GemmArguments& validated, const cuda::Chip& chip,
                          const std::optional<Fp8LaunchConfig>& config, void* workspace) {
  GemmArguments x = validated;
  check_problem(x, chip);
  Fp8GemmPlan plan;
  plan.architecture = chip.architecture;
  if (x.d.rows == 0 || x.d.columns == 0 || x.d.batch == 0) return plan;
  const bool copies_a = !fits_tma(x.a) || is_worth_a_copy(x.a, x.b);
  const bool copies_b = !fits_tma(x.b) || is_worth_a_copy(x.b, x.a);
  if (x.a.k != 0 && copies_a) align(x.a, workspace, chip, plan);
  if (x.a.k != 0 && copies_b) align(x.b, workspace, chip, plan);
  const Fp8GemmSize size = size_of(x);
  if (!config && takes_gemv(x, size)) {
    plan.steps.push_back(gemv_step(x, size));
    plan.expected_seconds = expected_gemv_seconds(size);
    return plan;
  }
  const Fp8Heuristic found =
      config ? Fp8Heuristic{size.n, *config, {}, expected_seconds(size, *config, chip)}
             : fp8_heuristic(size, chip);
  plan.expected_seconds = found.expected_seconds;
  plan.quantization = text_of_quantization(x);
  plan.batch_invariant = x.batch_invariant;
  if (x.batch_invariant) {
    Fp8GemmSize any = size;
    any.may_split = true;
    plan.batch_invariant_seconds =
        plan.expected_seconds - fp8_heuristic(any, chip).expected_seconds;
  }
  add_fp8_steps(x, size, found, chip, plan.steps);
  return plan;
}

std::string Fp8GemmPlan::str() const {
  if (steps.empty()) return "nothing to do: D has no element\n";
  std::string text;
  for (const GemmStep& step : steps) {
    if (const auto* const copy = step.of<AlignRowsParams>()) {
      text += "a copy of " + std::to_string(copy->rows * copy->batch) +
              " rows, which begin where tensor copies are slow or none\n";
    } else if (const auto* const gemv = step.of<Fp8GemvParams>()) {
      text += text_of(*gemv, step.shape);
    } else if (const auto* const tiles = step.of<Fp8GemmParams>()) {
      if (tiles->is_beside) {
        text += "\nbeside its last wave the other " + std::to_string(step.columns) + " columns by ";
      }
      text += text_of_fp8(step, *tiles);
    }
  }
  char expected[64];
  std::snprintf(expected, sizeof expected, "; %.1f us expected\n", expected_seconds * 1e6);
  text += quantization + expected;
  if (batch_invariant) {
    std::snprintf(expected, sizeof expected, "%.1f us", batch_invariant_seconds * 1e6);
    text += "batch-invariant: K is not divided, which is expected to cost " +
            std::string(expected) + "\n";
  }
  return text + "workspace " + std::to_string(workspace_bytes) + " bytes\n";
}

}  // namespace blockscale::gemm_detail
