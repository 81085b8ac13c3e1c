#include "ops/grouped_gemm/cuda/fp4_plan.h"

#include <algorithm>

#include "ops/gemm/cuda/problem.h"
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

}  // namespace

std::optional<GroupedStep> fp4_few_rows_step(const GroupedGemmArguments& x, const cuda::Chip& chip,
                                             std::optional<Fp4Division> division) {
  const int kernel = kFp4GroupedKernels.find(x.a.recipe, x.b.recipe);
  if (kernel < 0 || x.batch_invariant || x.destinations != nullptr || x.quantized ||
      average_rows(x) > kFp4GroupedRows) {
    return {};
  }
  const int of_dense = kFp4GroupedKernels.of_dense(kernel);
  if (!takes_fp4_operands(x.a, x.b, of_dense, chip)) return {};
  check_size("a.rows", x.a.rows);
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
  const Tiles tiles = tiles_of(x, kFp4GroupedRows, tiles_n, 1);
  size.matrices = tiles.most / tiles_n;

  GroupedStep step;
  step.kernel = fp4_few_rows_kernel(kernel);
  step.shape = fp4_shape_of(size, *division, chip);
  Fp4FewRowsParams& p = step.params.emplace<Fp4FewRowsParams>();
  static_cast<Fp4GemmParams&>(p) = fp4_params_of(dense, size, *division);
  p.source.index = x.index;
  p.source.rows = static_cast<std::uint32_t>(x.a.rows);
  p.order = tiles.order;
  set_group_strides(p.epilogue, x);
  set_tiles(step, tiles, kFp4GroupedRows, static_cast<int>(division->block_tiles * kFp4TileRows));
  return step;
}

}  // namespace blockscale::grouped_gemm_detail
