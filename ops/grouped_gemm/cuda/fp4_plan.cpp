#include "ops/grouped_gemm/cuda/fp4_plan.h"

#include <algorithm>

#include "ops/gemm/cuda/problem.h"
#include "ops/gemm/cuda/sm90/fp4_tiles_plan.h"
#include "ops/grouped_gemm/cuda/specs.h"
#include "ops/grouped_gemm/cuda/tiles.h"
#include "ops/grouped_gemm/validate.h"

namespace blockscale::grouped_gemm_detail {
namespace {

using namespace gemm_detail;

/// Tile rows as they are expected, each of a group of its own: for the choice of a division.
std::int64_t expected_tile_rows(const GroupedGemmArguments& x) {
  return std::min(x.rows * matrices_of(x), groups_of(x));
}

/// The rows of tiles with which groups of so many on average cost least: each has a tile that is
/// not full, on average by half. In FP8 that costs less, where it has few.
int fp4_tokens_of(std::int64_t rows, bool in_fp8) {
  constexpr int kFew = kFp4TilesTokens[0];
  int best = 0;
  double least = 0;
  for (const int tokens : kFp4TilesTokens) {
    const double tiles = std::max(1.0, static_cast<double>(rows) / tokens + 0.5);
    const double full = fp4_tiles_stage_cost(tokens, in_fp8);
    const double saved = in_fp8 ? full - fp4_tiles_stage_cost(kFew, in_fp8) : 0;
    const double cost = tiles * full - saved * kFew / tokens;
    if (best == 0 || cost < least) best = tokens, least = cost;
  }
  return best;
}

}  // namespace

std::optional<GroupedStep> fp4_few_rows_step(const GroupedGemmArguments& x, const cuda::Chip& chip,
                                             std::optional<Fp4Division> division) {
  if (!has_fp4_kernels(chip)) return {};
  const int kernel = kFp4GroupedKernels.find(x.a.recipe, x.b.recipe, is_sm120(chip));
  if (kernel < 0 || x.batch_invariant || x.destinations != nullptr || x.quantized ||
      average_rows(x) > kFp4GroupedRows) {
    return {};
  }
  const int of_dense = kFp4GroupedKernels.of_dense(kernel);
  if (!takes_fp4_operands(x.a, x.b, of_dense)) return {};
  check_size("rows", x.rows);
  GemmArguments dense = as_dense(x);
  dense.d.rows = x.rows;
  Fp4Sizes size = fp4_sizes_of(dense, of_dense);
  size.rows = kFp4GroupedRows;
  size.matrices = expected_tile_rows(x);
  size.beside = order_bytes(x);
  if (!division) division = best_fp4_division(size, chip);
  if (!division) return {};
  const std::int64_t tiles_n = ceil_div(size.tiles, std::int64_t{division->block_tiles});
  const auto tiles = tiles_of<EntryOrder>(x, kFp4GroupedRows, tiles_n, 1);
  size.matrices = tiles.most / tiles_n;

  GroupedStep step;
  step.kernel = fp4_few_rows_kernel(kernel);
  step.shape = fp4_shape_of(size, *division, chip);
  Fp4FewRowsParams& p = step.params.emplace<Fp4FewRowsParams>();
  static_cast<Fp4GemmParams&>(p) = fp4_params_of(dense, size, *division);
  p.source = source_of(x);
  p.order = tiles.order;
  set_group_strides(p.epilogue, x);
  set_tiles(step, tiles, kFp4GroupedRows, static_cast<int>(division->block_tiles * kFp4TileRows));
  return step;
}

std::optional<GroupedStep> fp4_tiles_step(const GroupedGemmArguments& x, const cuda::Chip& chip) {
  GemmArguments dense = as_dense(x);
  const bool in_fp8 = takes_rows_in_fp8(dense);
  if (is_plain(x.b.recipe) || (!is_plain(x.a.recipe) && !in_fp8)) return std::nullopt;
  const int tokens = fp4_tokens_of(average_rows(x), in_fp8);
  dense.d.rows = x.rows;         // D may have others, where rows have destinations
  dense.batch_invariant = true;  // as tiles of groups always are
  const auto of_dense = plan_fp4_tiles(dense, chip, nullptr, Fp4TilesDivision{tokens, 1, in_fp8});
  if (!of_dense) return std::nullopt;
  const Fp4TilesConfig config = kFp4TilesKernels[of_dense->kernel];
  const std::uint32_t beside = order_bytes(x);
  const int blocks = blocks_per_multiprocessor(config);
  const bool is_direct = x.destinations == nullptr && stores_directly(of_dense->params.epilogue);
  const auto stages = fp4_tiles_stages(chip, config, blocks, is_direct, beside);
  if (!stages) return std::nullopt;
  const Tiles tiles =
      tiles_of(x, tokens, of_dense->params.order.dense.tiles_n, fp4_tiles_band_rows(tokens));
  GroupedStep step;
  step.kernel = static_cast<std::size_t>(of_dense->kernel);
  step.shape = of_dense->shape;
  step.shape.grid = {1, blocks_for(tiles.most, blocks, chip)};
  step.shape.dynamic_shared_bytes = memory_of(config, *stages, is_direct).total + beside;
  step.maps = of_dense->maps;
  Fp4TilesParams& p = step.params.emplace<Fp4TilesParams>(of_dense->params);
  p.order.grouped = tiles.order;
  p.stages = *stages;
  p.is_direct = is_direct;
  set_results(step, p.epilogue, x, static_cast<std::size_t>(Fp4TilesMap::d));
  set_tiles(step, tiles, tokens, static_cast<int>(fp4_tiles::kTileRows));
  return step;
}

}  // namespace blockscale::grouped_gemm_detail
