#include "ops/grouped_gemm/cuda/plan.h"

#include <algorithm>
#include <utility>

#include "ops/common/checks.h"
#include "ops/gemm/cuda/plain_plan.h"
#include "ops/gemm/cuda/plan.h"
#include "ops/gemm/cuda/problem.h"
#include "ops/gemm/cuda/quantize.h"
#include "ops/gemm/cuda/sm90/fp8_launch.h"
#include "ops/gemm/cuda/specs.h"
#include "ops/gemm/cuda/tensor_maps.h"
#include "ops/gemm/cuda/transform.h"
#include "ops/gemm/validate.h"
#include "ops/grouped_gemm/cuda/block_scaled_plan.h"
#include "ops/grouped_gemm/cuda/copy_rows.h"
#include "ops/grouped_gemm/cuda/fp4_plan.h"
#include "ops/grouped_gemm/cuda/specs.h"
#include "ops/grouped_gemm/cuda/tiles.h"
#include "ops/grouped_gemm/validate.h"

namespace blockscale::grouped_gemm_detail {
namespace {

using namespace gemm_detail;

/// Whether an FP8 kernel of sm_90 computes the product.
bool takes_fp8(const GroupedGemmArguments& x, const cuda::Chip& chip) {
  // One row of A fits whatever its stride is, which more of them do not.
  const bool fits_any_rows = !x.batch_invariant || x.a.value_row_stride % 16 == 0;
  const bool can_gather = x.index == nullptr || x.a.k % 16 == 0;  // by threads, 16 bytes each
  return can_gather && has_fp8_kernel(x.a.recipe, x.b.recipe, chip) && x.a.k > 0 && fits_tma(x.a) &&
         fits_tma(x.b) && fits_any_rows;
}

/// Has rows of A gathered, by no tensor copy, and scales brought by none.
void set_gather(GroupedStep& step, Fp8GroupedParams& p, const GroupedGemmArguments& x) {
  if (x.index == nullptr) return;
  check_size("a.rows", x.a.rows);
  check_scales(scales_of_operand(x.a), x.a, "a");
  check_size("a.rows * a.value_row_stride / 16", x.a.rows * ceil_div(x.a.value_row_stride, 16));
  for (const Fp8GemmMap map :
       {Fp8GemmMap::a, Fp8GemmMap::a_tail, Fp8GemmMap::a_scales, Fp8GemmMap::b_scales}) {
    step.maps[static_cast<std::size_t>(map)] = {};
  }
  p.gather.index = x.index;
  p.gather.values = static_cast<const std::uint8_t*>(x.a.values);
  p.gather.row_stride = x.a.value_row_stride;
  p.gather.rows = static_cast<std::uint32_t>(x.a.rows);
  p.gather.k = static_cast<std::uint32_t>(x.a.k);
  p.epilogue.row_scales.index = x.index;
  p.epilogue.row_scales.rows = p.gather.rows;
}

/// The launch config for groups of so many rows on average.
Fp8LaunchConfig fp8_config_of(const GroupedGemmArguments& x, const Fp8GemmSize& size,
                              const cuda::Chip& chip) {
  constexpr std::int64_t kFewRows = 64;
  const bool by_columns = size.promotion == Promotion::columns;
  const bool is_large = average_rows(x) > kFewRows || (by_columns && size.quantized_columns != 0);
  const bool has_192 = !by_columns && (size.may_copy_scales || size.quantized_columns != 0);
  Fp8LaunchConfig c;
  c.rows = !is_large ? 64 : has_192 ? 192 : 128;
  c.columns = is_large || !by_columns ? 128 : 96;
  const std::uint32_t beside = order_bytes(x);
  const Fp8GemmConfig config = kernel_of(size, c);
  c.per_sm = static_cast<std::uint32_t>(blocks_per_multiprocessor(config));
  c.stages = stages_that_fit(config, 1, c.per_sm, chip, beside);
  if (c.stages == 0) {
    c.per_sm = 1;
    c.stages = stages_that_fit(config, 1, 1, chip, beside);
  }
  return c;
}

GroupedStep fp8_step_of(const GroupedGemmArguments& x, const cuda::Chip& chip) {
  GemmArguments dense = as_dense(x);
  dense.d.rows = x.rows;  // D may have others, where rows have destinations
  check_problem(dense, chip);
  Fp8GemmSize size = size_of(dense);
  size.m = x.rows;
  // Where rows are gathered, threads bring scales of any kind, by those kernels, too.
  size.may_copy_scales = size.may_copy_scales || x.index != nullptr;
  size.loads_scales = true;  // which there is no kernel without
  const Fp8LaunchConfig c = fp8_config_of(x, size, chip);
  GemmStep of_dense = fp8_step(dense, size, c, 0, chip);
  const auto& from = std::get<Fp8GemmParams>(of_dense.params);
  const Tiles tiles = tiles_of(x, c.rows, ceil_div(size.n, c.columns * size.sub_tiles()),
                               band_rows_of(x.a.k, c.rows));
  GroupedStep step;
  step.kernel = static_cast<std::size_t>(
      kFp8GroupedKernels.find(kFp8GemmKernels[static_cast<int>(of_dense.kernel)]));
  step.shape = of_dense.shape;
  step.shape.grid = {blocks_for(tiles.most, c.per_sm, chip)};
  step.shape.dynamic_shared_bytes += order_bytes(x);
  step.maps = of_dense.maps;
  Fp8GroupedParams& p = step.params.emplace<Fp8GroupedParams>();
  static_cast<Fp8GemmParts&>(p) = from;
  if (p.a_scale_box_rows != 0 && !is_masked(x) && x.a.layout == ScaleLayout::mn_major) {
    // A copy begins at a multiple of 16 bytes, a group's rows anywhere.
    p.a_scale_box_rows += kBoxStepA;
    step.maps[static_cast<std::size_t>(Fp8GemmMap::a_scales)] =
        map_of_scales(x.a, p.a_scale_box_rows, kScaleBoxBlocks);
  }
  // What lies behind a group's last row is another's: read, and not stored.
  const auto tail_rows = static_cast<std::uint32_t>(c.rows / 2);
  p.a_tail_bytes = std::min(p.a_bytes, tail_rows * kFp8BlockK);
  step.maps[static_cast<std::size_t>(Fp8GemmMap::a_tail)] =
      map_of_values(dense.a, p.a_tail_bytes / kFp8BlockK);
  p.b_once = c.rows == 64;  // as far as is known: groups have few rows
  p.order = tiles.order;
  set_results(step, p.epilogue, x, static_cast<std::size_t>(Fp8GemmMap::d));
  set_gather(step, p, x);
  set_tiles(step, tiles, c.rows, c.columns);
  return step;
}

/// Whether all of a block's places have one scale of B's a k-block, or all gates and all ups: those
/// are a run of rows each, which lies in one block of rows if it lies in one group.
bool has_one_scale(const ScaledTensorView& b, const ResultTransform& transform,
                   std::uint32_t places) {
  const auto block_rows = static_cast<std::uint32_t>(recipe_traits(b.recipe).block_rows);
  const std::uint32_t group = transform.gate_group.divisor;
  if (block_rows == 0) return true;
  if (block_rows % places != 0) return false;
  return !transform.is_gated || group == 1 || group % (places / 2) == 0;
}

/// The step of an FP8 product of few rows, which may be transformed; nothing where that is not for
/// its kernel: codes as the result, scales that hold for all of K, or change within a block's rows
/// of B, rows of D that move, sums in the order of tiles, or a K that is short or whose rows do not
/// fit shared memory.
std::optional<GroupedStep> few_rows_step(const GroupedGemmArguments& x, const cuda::Chip& chip) {
  constexpr std::int64_t kMostRows = 64, kLeastK = 256, kLeastBlocks = 4;
  if (x.quantized) return {};
  if (x.rows * matrices_of(x) > kMostRows || average_rows(x) > kFewRowsOnAverage) return {};
  if (!takes_fp8(x, chip) || x.batch_invariant || x.destinations != nullptr) return {};
  if (x.a.k < kLeastK || x.a.k % 16 != 0 || x.b.rows * x.b.value_row_stride >> 32 != 0) return {};
  GemmArguments dense = as_dense(x);
  dense.d.rows = x.rows;
  check_problem(dense, chip);
  if (has_scales_at_end(dense)) return {};
  const bool is_transformed = grouped_gemm_detail::is_transformed(x);
  const ResultTransform transform = is_transformed ? result_transform_of(dense) : ResultTransform{};
  const std::int64_t k_blocks = ceil_div(x.a.k, kFp8BlockK);
  const auto fits = [&](std::uint32_t division_shift) {
    return has_one_scale(x.b, transform, fp8_few_rows::places_of(division_shift));
  };
  std::uint32_t shift = 0;
  while (1u << shift < kFewWarps && k_blocks >= (kLeastBlocks << (shift + 1))) ++shift;
  while (1u << shift < kFewWarps && !fits(shift)) ++shift;
  if (!fits(shift)) return {};
  const std::uint32_t places = fp8_few_rows::places_of(shift);
  const auto tiles = tiles_of<EntryOrder>(x, kFewRows, ceil_div(x.b.rows, std::int64_t{places}), 1);
  const std::int64_t bytes =
      fp8_few_rows::memory_of(static_cast<std::uint32_t>(k_blocks)).order + order_bytes(x);
  if (k_blocks * kFp8BlockK * kFewRows > chip.shared_bytes || bytes > chip.shared_bytes) return {};

  GroupedStep step;
  step.kernel = few_rows_kernel();
  const std::int64_t blocks =
      std::clamp<std::int64_t>(chip.shared_bytes / (bytes + 1024), 1, kFewBlocksPerMultiprocessor);
  step.shape.grid = {blocks_for(tiles.most, blocks, chip)};
  step.shape.block = {kFewThreads};
  step.shape.dynamic_shared_bytes = static_cast<std::uint32_t>(bytes);
  step.shape.programmatic_dependent_launch = true;
  Fp8FewRowsParams& p = step.params.emplace<Fp8FewRowsParams>();
  p.a = static_cast<const std::uint8_t*>(x.a.values);
  p.b = static_cast<const std::uint8_t*>(x.b.values);
  p.a_row_stride = x.a.value_row_stride;
  p.a_batch_stride = x.a.value_batch_stride;
  p.b_row_stride = x.b.value_row_stride;
  p.b_batch_stride = x.b.value_batch_stride;
  p.a_scales = scales_of_operand(x.a);
  p.b_scales = scales_of_operand(x.b);
  p.source = source_of(x);
  p.epilogue = epilogue_of(dense);
  p.epilogue.columns = static_cast<std::uint32_t>(x.b.rows);
  p.is_transformed = is_transformed;
  p.transform = transform;
  p.order = tiles.order;
  p.k = static_cast<std::uint32_t>(x.a.k);
  p.division_shift = shift;
  p.part_blocks = static_cast<std::uint32_t>(ceil_div(k_blocks, std::int64_t{1} << shift));
  set_group_strides(p.epilogue, x);
  set_tiles(step, tiles, kFewRows, static_cast<int>(places));
  return step;
}

/// The tile of the plain kernels of `tiles`, of the largest whose parts fit shared memory.
template <std::size_t kCount>
PlainGemmStep plain_step_of(const GemmArguments& dense, std::int64_t rows,
                            const PlainTile (&tiles)[kCount], std::uint32_t beside,
                            const cuda::Chip& chip, PlainTile& chosen) {
  for (const PlainTile tile : tiles) {
    chosen = tile;
    PlainGemmStep step = plain_step(dense, tile, chip, rows);
    if (step.shape.dynamic_shared_bytes + beside <= chip.shared_bytes) return step;
  }
  throw Error(ErrorCode::unsupported, "a.k", "has no tile that fits shared memory");
}

/// Blocks that a multiprocessor's shared memory holds, of a few that are enough.
std::int64_t plain_blocks(const LaunchShape& shape, const cuda::Chip& chip) {
  return std::clamp<std::int64_t>(chip.shared_bytes / (shape.dynamic_shared_bytes + 1024), 1, 8);
}

Format form_of(const GemmArguments& x) {
  return plain_form(recipe_traits(x.a.recipe).element, recipe_traits(x.b.recipe).element);
}

void check_sizes(const GemmArguments& x) {
  check_size("d.rows", x.d.rows);
  check_size("d.columns", x.d.columns);
  check_size("a.rows", x.a.rows);
  check_size("b.rows", x.b.rows);
  check_row_bytes("a.k", x.a);
  check_row_bytes("b.k", x.b);
}

/// Of arguments without a transform.
GroupedStep plain_step_of(const GroupedGemmArguments& x, const cuda::Chip& chip) {
  constexpr std::int64_t kFewRows = 16, kBandRows = 1024;
  GemmArguments dense = as_dense(x);
  dense.a.rows = x.a.rows;  // of which the product's are some, where they are gathered
  check_sizes(dense);
  PlainTile tile{};
  constexpr PlainTile kOfFewRows[] = {PlainTile::few_rows, PlainTile::small};
  constexpr PlainTile kOfMany[] = {PlainTile::medium, PlainTile::small};
  // Tiles of few rows divide K among warps, which others do not.
  const bool has_few_rows = average_rows(x) <= kFewRows && !x.batch_invariant;
  const PlainGemmStep of_dense =
      plain_step_of(dense, x.rows, has_few_rows ? kOfFewRows : kOfMany, order_bytes(x), chip, tile);
  const PlainGemmConfig c = kPlainGemmKernels[of_dense.kernel];
  const Tiles tiles = tiles_of(x, c.rows, ceil_div(x.b.rows, c.columns),
                               static_cast<std::uint32_t>(kBandRows / c.rows));
  GroupedStep step;
  step.kernel = plain_kernel(tile, form_of(dense));
  step.shape = of_dense.shape;
  step.shape.dynamic_shared_bytes += tiles.order.shared_bytes();
  step.shape.grid = {blocks_for(tiles.most, plain_blocks(step.shape, chip), chip)};
  PlainGroupedParams& p = step.params.emplace<PlainGroupedParams>();
  static_cast<PlainGemmParts&>(p) = of_dense.params;
  p.a_index = x.index;
  p.order = tiles.order;
  set_group_strides(p.epilogue, x);
  set_tiles(step, tiles, c.rows, c.columns);
  return step;
}

/// D in f32 at `numbers`, of so many columns, rows where they are.
void leave_in_f32(GroupedGemmArguments& x, void* numbers, std::int64_t columns) {
  x.quantized.reset();
  x.destinations = nullptr;
  x.weights = nullptr;
  x.d = {numbers, Format::f32, x.rows, columns, columns};
  x.d.batch = matrices_of(x);
  x.d.batch_stride = x.rows * columns;
}

/// The product without what comes behind it, D in f32.
GroupedGemmArguments before_transform(const GroupedGemmArguments& x, void* numbers) {
  GroupedGemmArguments product = x;
  product.transform = Identity{};
  leave_in_f32(product, numbers, x.b.rows);
  return product;
}

/// The product with what is quantized, in f32, as its result.
GroupedGemmArguments before_codes(const GroupedGemmArguments& x, const QuantizedResult& quantized,
                                  void* numbers) {
  GroupedGemmArguments product = x;
  product.transform = quantized.options.input;
  leave_in_f32(product, numbers, quantized.out.k);
  return product;
}

/// Whether FP8's kernel of few rows computes the result, but for codes.
bool takes_few_rows(const GroupedGemmArguments& x, const cuda::Chip& chip) {
  return few_rows_step(x.quantized ? before_codes(x, *x.quantized, nullptr) : x, chip).has_value();
}

GroupedStep transform_step(const GroupedGemmArguments& x, const float* numbers,
                           const cuda::Chip& chip) {
  GemmArguments dense = as_dense(x);
  dense.d.rows = x.rows;  // D may have others, where rows have destinations
  const TransformPlan of_dense = plan_transform(dense, numbers, chip);
  GroupedStep step;
  step.kernel = transform_kernel();
  step.shape = of_dense.shape;
  GroupedTransformParams& p = step.params.emplace<GroupedTransformParams>();
  p.transform = of_dense.params;
  p.rows = x.rows;
  const auto tiles =
      tiles_of<EntryOrder>(x, 1, ceil_div(x.d.columns, std::int64_t{kTransformRun}), 1);
  p.order = tiles.order;
  step.shape.dynamic_shared_bytes = tiles.order.shared_bytes();
  set_tiles(step, tiles, 1, static_cast<int>(kTransformRun));
  return step;
}

/// Memory of a plan's workspace, whose bytes it counts.
void* take(GroupedPlan& plan, void* workspace, std::int64_t bytes) {
  void* const at = byte_at(workspace, plan.workspace_bytes);
  plan.workspace_bytes += ceil_div(bytes, std::int64_t{16}) * 16;
  return at;
}

/// Where tensor copies bring rows of A.
std::optional<GroupedStep> tiles_step(const GroupedGemmArguments& x, const cuda::Chip& chip) {
  if (const auto fp4 = fp4_tiles_step(x, chip)) return fp4;
  return block_scaled_step(x, chip);
}

/// Adds the steps of a product that is stored as it is.
void add_product(GroupedPlan& plan, const GroupedGemmArguments& x, const cuda::Chip& chip,
                 void* workspace) {
  if (const auto few_rows = few_rows_step(x, chip)) return plan.steps.push_back(*few_rows);
  if (const auto few_rows = fp4_few_rows_step(x, chip)) return plan.steps.push_back(*few_rows);
  if (has_entries(x)) {
    throw Error(ErrorCode::unsupported, "entries", "has no kernel of few rows here");
  }
  if (takes_fp8(x, chip)) return plan.steps.push_back(fp8_step_of(x, chip));
  if (x.index == nullptr) {
    const auto tiles = tiles_step(x, chip);
    return plan.steps.push_back(tiles ? *tiles : plain_step_of(x, chip));
  }
  GroupedGemmArguments in_place = with_rows_in_place(x);
  if (!can_copy_rows(x.a) || !tiles_step(in_place, chip)) {
    return plan.steps.push_back(plain_step_of(x, chip));
  }
  ScaledTensorView& a = in_place.a;
  a.values = take(plan, workspace, a.rows * a.value_row_stride);
  if (!is_plain(a.recipe)) a.scales = take(plan, workspace, bytes_of_row_scales(a));
  plan.steps.push_back(gather_step(x, a, chip));
  // None in a workspace that is not aligned, which calls refuse.
  if (const auto tiles = tiles_step(in_place, chip)) plan.steps.push_back(*tiles);
}

/// Where no epilogue quantizes: first f32 in the workspace, D or, by FP8's kernel of few rows, what
/// the transform makes of it; then the codes of all rows as one tensor, there too unless rows of
/// none are the call's; then the rows of groups to where they belong.
GroupedPlan plan_and_quantize(const GroupedGemmArguments& x, QuantizedResult quantized,
                              bool by_few_rows, const cuda::Chip& chip, void* workspace) {
  GroupedPlan plan;
  plan.architecture = chip.architecture;
  const auto take = [&](std::int64_t bytes) {
    return grouped_gemm_detail::take(plan, workspace, bytes);
  };
  const std::int64_t matrices = matrices_of(x);
  const std::int64_t columns = by_few_rows ? quantized.out.k : x.b.rows;
  void* const numbers = take(matrices * x.rows * columns * 4);
  GroupedGemmArguments product =
      by_few_rows ? before_codes(x, quantized, numbers) : before_transform(x, numbers);
  add_product(plan, product, chip, workspace);

  GemmArguments dense = as_dense(x);
  if (by_few_rows) quantized.options.input = Identity{};
  dense.quantized = quantized;
  dense.d = product.d;
  const ScaleMatrix to = quantizing_epilogue(dense).scales;
  MutableScaledTensorView& out = quantized.out;
  const MutableScaledTensorView result = out;
  if (!x.owns_rows) {
    out.value_row_stride = out.value_batch_stride = 0;
    out.scale_leading_stride = out.scale_batch_stride = 0;
    out.values = take(value_bytes(out.recipe, x.rows, out.k, matrices));
    out.scales = take(scale_bytes(out.recipe, out.layout, x.rows, out.k, matrices));
    out = resolved(out, "quantized.out");
  }
  if (quantization_of(dense).input.is_clamped) {  // which no quantizer fuses: apart, before it
    product.transform = std::exchange(quantized.options.input, Identity{});
    product.d.data = take(matrices * x.rows * out.k * 4);
    product.d.columns = product.d.row_stride = out.k;
    product.d.batch_stride = x.rows * out.k;
    plan.steps.push_back(transform_step(product, static_cast<const float*>(numbers), chip));
    dense.d = product.d;
  }
  dense.quantized = quantized;
  const ScaleMatrix from = quantizing_epilogue(dense).scales;
  plan.quantization = quantize_detail::plan_quantize(
      quantization_of(dense), quantized.options, chip, byte_at(workspace, plan.workspace_bytes));
  plan.workspace_bytes += plan.quantization->workspace_bytes;
  plan.products = plan.steps.size();
  if (x.owns_rows) return plan;

  plan.steps.push_back(copy_rows_step(x, rows_of(out, from), rows_of(result, to),
                                      row_bytes(out.recipe, out.k), chip));
  return plan;
}

}  // namespace

bool gathers_rows(const GroupedGemmArguments& x, const cuda::Chip& chip) {
  return takes_fp8(x, chip);
}

bool takes_entries(const GroupedGemmArguments& x, const cuda::Chip& chip) {
  return takes_few_rows(x, chip) || fp4_few_rows_step(before_transform(x, nullptr), chip);
}

GroupedPlan plan_grouped(const GroupedGemmArguments& x, const cuda::Chip& chip, void* workspace) {
  GroupedPlan plan;
  plan.architecture = chip.architecture;
  if (x.b.rows == 0 || x.rows == 0 || (!x.quantized && x.d.rows == 0)) return plan;
  if (x.quantized) {
    const bool by_few_rows = takes_few_rows(x, chip);
    if (!takes_fp8(x, chip) || by_few_rows || !fits_epilogue(*x.quantized)) {
      return plan_and_quantize(x, *x.quantized, by_few_rows, chip, workspace);
    }
  } else if (grouped_gemm_detail::is_transformed(x) && !takes_few_rows(x, chip)) {
    const auto* const numbers =
        static_cast<const float*>(take(plan, workspace, matrices_of(x) * x.rows * x.b.rows * 4));
    add_product(plan, before_transform(x, workspace), chip, workspace);
    plan.steps.push_back(transform_step(x, numbers, chip));
    return plan;
  }
  add_product(plan, x, chip, workspace);
  return plan;
}

GroupedPlan plan_k_grouped(const KGroupedGemmArguments& x, const cuda::Chip& chip) {
  GroupedPlan plan;
  plan.architecture = chip.architecture;
  if (x.a.rows == 0 || x.b.rows == 0) return plan;
  GemmArguments dense;
  dense.a = x.a;
  dense.b = x.b;
  dense.d = x.d;
  dense.alpha = x.alpha;
  if (x.adds) {
    dense.beta = 1;
    dense.c = x.d;
  }
  check_sizes(dense);
  PlainTile tile{};
  PlainGemmStep of_dense = plain_step_of(dense, x.a.rows, kPlainKGroupedTiles, 0, chip, tile);
  set_order(of_dense, dense);
  GroupedStep step;
  step.kernel = plain_k_kernel(tile, form_of(dense));
  step.shape = of_dense.shape;
  PlainKGroupedParams& p = step.params.emplace<PlainKGroupedParams>();
  static_cast<PlainGemmParts&>(p) = of_dense.params;
  static_cast<DenseOrder&>(p.order) = of_dense.params.order;
  p.order.offsets = x.offsets;
  p.order.k = static_cast<std::uint32_t>(x.a.k);
  const PlainGemmConfig c = kPlainGemmKernels[of_dense.kernel];
  step.most_tiles = p.order.tiles;
  step.rows = c.rows;
  step.columns = c.columns;
  plan.steps.push_back(step);
  return plan;
}

GemmPath GroupedStep::path() const {
  if (std::holds_alternative<Fp8GroupedParams>(params) ||
      std::holds_alternative<Fp8FewRowsParams>(params)) {
    return GemmPath::sm90_fp8;
  }
  if (std::holds_alternative<Fp4FewRowsParams>(params)) return GemmPath::fp4_few_rows;
  if (std::holds_alternative<Fp4TilesParams>(params)) {
    const Fp4TilesConfig config = kFp4TilesKernels[static_cast<int>(kernel)];
    return is_in_fp8(config) ? GemmPath::sm90_fp8 : GemmPath::sm90_fp4_tiles;
  }
  if (std::holds_alternative<BlockScaledParams>(params)) return GemmPath::sm120_block_scaled;
  return GemmPath::plain;
}

GemmPath GroupedPlan::path() const {
  for (const GroupedStep& step : steps) {
    if (!std::holds_alternative<CopyRowsParams>(step.params)) return step.path();
  }
  return GemmPath::plain;
}

}  // namespace blockscale::grouped_gemm_detail
