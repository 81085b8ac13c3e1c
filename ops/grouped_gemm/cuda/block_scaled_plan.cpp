#include "ops/grouped_gemm/cuda/block_scaled_plan.h"

#include "ops/gemm/cuda/sm120/block_scaled_model.h"
#include "ops/gemm/cuda/sm120/block_scaled_plan.h"
#include "ops/grouped_gemm/cuda/tiles.h"
#include "ops/grouped_gemm/validate.h"

namespace blockscale::grouped_gemm_detail {

using namespace gemm_detail;

std::optional<GroupedStep> block_scaled_step(const GroupedGemmArguments& x,
                                             const cuda::Chip& chip) {
  if (x.index != nullptr) return {};
  GemmArguments dense = as_dense(x);
  dense.d.rows = x.rows;  // D may have others, where rows have destinations
  const BlockScaledSize size = {
      {x.a.recipe, x.b.recipe}, average_rows(x), x.b.rows, x.a.k, groups_of(x)};
  const int rows = best_block_scaled_rows(size, chip);
  const auto of_dense = plan_block_scaled(dense, chip, rows, order_bytes(x));
  if (!of_dense) return {};
  const Tiles tiles =
      tiles_of(x, rows, of_dense->params.order.dense.tiles_n, block_scaled_band_rows(rows));
  GroupedStep step;
  step.kernel = static_cast<std::size_t>(of_dense->kernel);
  step.shape = of_dense->shape;
  step.shape.grid = {blocks_for(tiles.most, 1, chip)};
  step.maps = of_dense->maps;
  BlockScaledParams& p = step.params.emplace<BlockScaledParams>(of_dense->params);
  set_groups(p, tiles.order);
  set_results(step, p.epilogue, x, static_cast<std::size_t>(BlockScaledMap::d));
  set_tiles(step, tiles, rows, static_cast<int>(block_scaled::kColumns));
  step.expected_seconds = expected_seconds(size, rows, chip);
  return step;
}

}  // namespace blockscale::grouped_gemm_detail
