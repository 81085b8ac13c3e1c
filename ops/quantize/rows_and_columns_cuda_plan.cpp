#include "ops/quantize/rows_and_columns_cuda_plan.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "blockscale/error.h"
#include "ops/quantize/cuda_plan.h"
#include "ops/quantize/cuda_tiles.h"

namespace blockscale::quantize_detail {
namespace {

int find_kernel(Format input) {
  for (int i = 0; i < kRowsAndColumnsKernelCount; ++i) {
    if (kRowsAndColumnsKernels[i].input == input) return i;
  }
  throw Error(ErrorCode::unsupported, "x.dtype", "has no kernel on a GPU");
}

void check_supported(const RowsAndColumnsArguments& a) {
  const InputTransform transform = a.input.transform;
  if (transform != InputTransform::identity) {
    throw Error(ErrorCode::unsupported, "options.input.transform",
                std::string("is ") + kInputTransformNames[static_cast<int>(transform)] +
                    ", must be identity for rows and columns on a GPU");
  }
  check_size("x.rows", a.x.rows);
  check_size("x.columns", a.x.columns);
}

/// What the kernel for 1 x 128 blocks is launched with to quantise `x` into `out`, but for tiles.
QuantizeParams params_of(const MatrixView& x, const MutableScaledTensorView& out,
                         const QuantizeOptions& options) {
  QuantizeParams p = plan_quantize({x, out, {}}, options, {}, nullptr).steps[0].params;
  p.value_vectors = is_multiple(p.values, 16) &&
                    (p.rows <= 1 || is_multiple(p.value_row_stride, 16)) &&
                    (p.batch <= 1 || is_multiple(p.value_batch_stride, 16));
  return p;
}

/// Tiles that cover both outputs, the padding of their scales included.
TileGrid tile_grid_of(const QuantizeParams& rows, const QuantizeParams& columns) {
  const auto tiles_of = [](std::uint32_t scale_rows, std::uint32_t scale_columns) {
    return std::max<std::int64_t>(ceil_div(scale_rows, kTransposeTile), scale_columns);
  };
  const std::int64_t down = tiles_of(rows.scale_rows, columns.scale_columns);
  const std::int64_t across = tiles_of(columns.scale_rows, rows.scale_columns);
  return make_tile_grid(rows.batch, down * kTransposeTile, across, kTransposeTile, 0);
}

}  // namespace

RowsAndColumnsPlan plan_rows_and_columns(const RowsAndColumnsArguments& a,
                                         const QuantizeOptions& options) {
  check_supported(a);
  RowsAndColumnsPlan plan;
  if (a.x.rows == 0 || a.x.columns == 0 || a.x.batch == 0) return plan;
  plan.kernel = find_kernel(a.x.dtype);
  RowsAndColumnsParams& p = plan.params;
  p.rows = params_of(a.x, a.rows, options);
  // Of the transpose only its shape matters: nobody reads it.
  MatrixView transpose = a.x;
  std::swap(transpose.rows, transpose.columns);
  transpose.row_stride = transpose.columns;
  p.columns = params_of(transpose, a.columns, options);
  p.columns.x = {};
  p.rows.grid = tile_grid_of(p.rows, p.columns);
  plan.shape.grid.x = p.rows.grid.tiles;
  plan.shape.block.x = static_cast<std::uint32_t>(kRowsAndColumnsKernels[plan.kernel].threads);
  plan.shape.dynamic_shared_bytes = kTransposeSharedBytes;
  return plan;
}

namespace {

std::string kernel_name(const QuantizeConfig& c) {
  return std::string("quantize_rows_and_columns_fp8_e4m3_") + format_traits(c.input).name;
}

}  // namespace

std::string RowsAndColumnsPlan::str() const {
  if (kernel < 0) return "nothing to do\n";
  const auto stores = [](const QuantizeParams& p) { return p.value_vectors ? "vector" : "byte"; };
  return kernel_name(kRowsAndColumnsKernels[kernel]) + ": " +
         std::to_string(params.rows.grid.tiles) + " tiles, " +
         (params.rows.x.vectors ? "vector" : "element") + " loads, " + stores(params.rows) +
         " stores of rows, " + stores(params.columns) + " stores of columns, scales " +
         scale_layout_traits(params.rows.layout).name + " and " +
         scale_layout_traits(params.columns.layout).name + "\n";
}

std::vector<runtime::KernelSpec> rows_and_columns_kernel_specs() {
  std::vector<runtime::KernelSpec> specs;
  for (int i = 0; i < kRowsAndColumnsKernelCount; ++i) {
    const QuantizeConfig& c = kRowsAndColumnsKernels[i];
    runtime::KernelSpec spec;
    spec.name = kernel_name(c);
    spec.header = "ops/quantize/kernel_sm90_transpose.cuh";
    spec.call = "blockscale::quantize_transpose_tile<blockscale::kRowsAndColumnsKernels[" +
                std::to_string(i) + "]>";
    spec.threads = c.threads;
    spec.min_blocks_per_multiprocessor = c.min_blocks;
    specs.push_back(runtime::with_parameters<RowsAndColumnsParams>(
        std::move(spec), "blockscale::RowsAndColumnsParams"));
  }
  return specs;
}

}  // namespace blockscale::quantize_detail
