#include "ops/grouped_gemm/cuda/copy_rows.h"

#include "ops/grouped_gemm/cuda/specs.h"
#include "ops/grouped_gemm/cuda/tiles.h"

namespace blockscale::grouped_gemm_detail {
namespace {

/// The scales of single rows, as the kernel that copies rows takes them.
ScaleMatrix scale_rows_of(const ScaledTensorView& x) {
  ScaleMatrix scales;
  if (is_plain(x.recipe)) return scales;
  scales.data = static_cast<std::uint8_t*>(const_cast<void*>(x.scales));
  scales.layout = x.layout;
  scales.bytes = format_traits(recipe_traits(x.recipe).scale).bits == 8;
  scales.leading_stride = x.scale_leading_stride;
  scales.columns = static_cast<std::uint32_t>(scale_grid(x.recipe, x.rows, x.k).columns);
  return scales;
}

}  // namespace

GroupedStep copy_rows_step(const GroupedGemmArguments& x, const TensorRows& from,
                           const TensorRows& to, std::int64_t row_bytes, const cuda::Chip& chip) {
  constexpr std::int64_t kBlocks = 16;  // of a multiprocessor
  GroupedStep step;
  step.kernel = copy_rows_kernel_index();
  CopyRowsParams& p = step.params.emplace<CopyRowsParams>();
  p.from = from;
  p.to = to;
  p.row_bytes = static_cast<std::uint32_t>(row_bytes);
  const auto begins = [](const TensorRows& rows) {
    return (reinterpret_cast<std::uintptr_t>(rows.values) |
            static_cast<std::uintptr_t>(rows.row_stride) |
            static_cast<std::uintptr_t>(rows.batch_stride)) %
               16 ==
           0;
  };
  p.vectors = begins(from) && begins(to) && row_bytes % 16 == 0;
  const Tiles tiles = tiles_of(x, 1, 1, 1);
  p.order = tiles.order;
  step.shape.grid = {blocks_for(tiles.most, kBlocks, chip)};
  step.shape.block = {kCopyRowsThreads};
  step.shape.dynamic_shared_bytes = tiles.order.shared_bytes();
  step.shape.programmatic_dependent_launch = true;
  set_tiles(step, tiles, 1, static_cast<int>(x.a.k));
  return step;
}

bool can_copy_rows(const ScaledTensorView& a) {
  return is_plain(a.recipe) || recipe_traits(a.recipe).block_rows == 1;
}

GroupedGemmArguments with_rows_in_place(const GroupedGemmArguments& x) {
  constexpr std::int64_t kAlignment = 128;  // of rows that tensor copies bring fast
  constexpr std::int64_t kScales = 4;       // that words have
  const auto aligned = [](std::int64_t size, std::int64_t to) { return ceil_div(size, to) * to; };
  GroupedGemmArguments in_place = x;
  in_place.index = nullptr;
  ScaledTensorView& a = in_place.a;
  a.rows = x.rows;
  a.value_row_stride = aligned(row_bytes(a.recipe, a.k), kAlignment);
  a.values = reinterpret_cast<const void*>(kAlignment);
  if (is_plain(a.recipe)) return in_place;
  a.layout = ScaleLayout::row_major;
  a.scale_leading_stride = aligned(scale_grid(a.recipe, a.rows, a.k).columns, kScales);
  a.scales = a.values;
  return in_place;
}

std::int64_t bytes_of_row_scales(const ScaledTensorView& x) {
  return x.rows * x.scale_leading_stride * format_traits(recipe_traits(x.recipe).scale).bits / 8;
}

GroupedStep gather_step(const GroupedGemmArguments& x, const ScaledTensorView& in_place,
                        const cuda::Chip& chip) {
  GroupedStep step = copy_rows_step(x, rows_of(x.a, scale_rows_of(x.a)),
                                    rows_of(in_place, scale_rows_of(in_place)),
                                    row_bytes(x.a.recipe, x.a.k), chip);
  std::get<CopyRowsParams>(step.params).source = source_of(x);
  return step;
}

}  // namespace blockscale::grouped_gemm_detail
