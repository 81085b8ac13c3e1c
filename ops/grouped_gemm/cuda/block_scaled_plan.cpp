#include "ops/grouped_gemm/cuda/block_scaled_plan.h"

#include "ops/gemm/cuda/sm120/block_scaled_plan.h"
#include "ops/gemm/validate.h"
#include "ops/grouped_gemm/cuda/tiles.h"

namespace blockscale::grouped_gemm_detail {

using namespace gemm_detail;

std::optional<GroupedStep> block_scaled_step(const GroupedGemmArguments& x,
                                             const cuda::Chip& chip) {
  if (x.index != nullptr) return {};
  GemmArguments dense = as_dense(x);
  dense.d.rows = x.rows;  // D may have others, where rows have destinations
  const int rows = block_scaled_rows_for(average_rows(x));
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
  p.epilogue.rows = static_cast<std::uint32_t>(x.d.rows);
  if (x.destinations != nullptr) {
    p.epilogue.d.chunks = gemm_detail::has_chunks(x.d);
    step.maps[static_cast<std::size_t>(BlockScaledMap::d)] = {};
  }
  set_group_strides(p.epilogue, x);
  set_tiles(step, tiles, rows, static_cast<int>(block_scaled::kColumns));
  return step;
}

}  // namespace blockscale::grouped_gemm_detail
