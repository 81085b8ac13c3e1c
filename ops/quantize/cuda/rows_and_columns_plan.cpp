#include "ops/quantize/cuda/rows_and_columns_plan.h"

#include <algorithm>
#include <cstdint>

#include "blockscale/error.h"
#include "ops/quantize/cuda/params.h"
#include "ops/quantize/cuda/tiles.h"

namespace blockscale::quantize_detail {
namespace {

int find_kernel(Format input, Fused fused) {
  for (int i = 0; i < kRowsAndColumnsKernels.count; ++i) {
    const QuantizeConfig& c = kRowsAndColumnsKernels[i];
    if (c.input == input && c.fused == fused) return i;
  }
  throw Error(ErrorCode::unsupported, "x.dtype", "has no kernel on a GPU");
}

/// What the kernel is launched with to quantize `x` into `out`, but for tiles.
QuantizeParams params_of(const QuantizeArguments& a, const QuantizeOptions& options,
                         std::int64_t store) {
  check_fused(a.input);
  QuantizeParams p = quantize_params(a, options);
  p.value_vectors = has_value_vectors(p, store);
  return p;
}

/// The same for the transpose of the result, of which only its shape matters: nobody reads it.
QuantizeParams column_params_of(const RowsAndColumnsArguments& a, const QuantizeOptions& options) {
  MatrixView transpose = a.x;
  transpose.rows = a.columns.rows;
  transpose.columns = transpose.row_stride = a.columns.k;
  QuantizeParams p = params_of({transpose, a.columns, {}}, options, 16);
  p.x = {};
  return p;
}

std::string kernel_name(const QuantizeConfig& c) {
  const std::string name =
      std::string("quantize_rows_and_columns_fp8_e4m3_") + format_traits(c.input).name;
  return c.fused == Fused::none ? name : name + "_" + kFusedNames[static_cast<int>(c.fused)];
}

}  // namespace

RowsAndColumnsPlan plan_rows_and_columns(const RowsAndColumnsArguments& a,
                                         const QuantizeOptions& options, const cuda::Chip& chip,
                                         void* workspace) {
  check_size("x.rows", a.x.rows);
  check_size("out_rows.k", a.rows.k);
  RowsAndColumnsPlan plan;
  plan.architecture = chip.architecture;
  if (a.rows.rows == 0 || a.rows.k == 0 || a.rows.batch == 0) return plan;
  plan.kernel = find_kernel(a.x.dtype, fused_of(a.input.transform));
  const QuantizeConfig& c = kRowsAndColumnsKernels[plan.kernel];
  RowsAndColumnsParams& p = plan.params;
  p.rows = params_of({a.x, a.rows, a.input}, options, c.chunk);
  p.columns = column_params_of(a, options);
  if (c.fused == Fused::rms_norm) {
    plan.rstd = plan_rstd({a.x, a.rows, a.input}, options, chip, workspace);
    p.rows.fused.rstd = plan.rstd.last().params.fused.rstd;
    p.rows.backwards = true;
    plan.workspace_bytes = plan.rstd.workspace_bytes;
  }
  // Tiles that cover both outputs, the padding of their scales included.
  const auto count = [](std::uint32_t scale_rows, std::uint32_t scale_columns) {
    return std::max<std::int64_t>(ceil_div(scale_rows, kTransposeTile), scale_columns);
  };
  const std::int64_t down = count(p.rows.scales.rows, p.columns.scales.columns);
  const std::int64_t across = count(p.columns.scales.rows, p.rows.scales.columns);
  p.rows.grid = make_tile_grid(a.rows.batch, down * kTransposeTile, across, kTransposeTile, 0);
  plan.shape.grid.x = p.rows.grid.tiles;
  plan.shape.block.x = static_cast<std::uint32_t>(c.threads);
  plan.shape.dynamic_shared_bytes = kTransposeSharedBytes;
  plan.shape.programmatic_dependent_launch = true;
  return plan;
}

std::string RowsAndColumnsPlan::str() const {
  if (kernel < 0) return "nothing to do\n";
  const auto stores = [](const QuantizeParams& p) { return p.value_vectors ? "vector" : "byte"; };
  const RowsAndColumnsParams& p = params;
  return (rstd.count == 0 ? "" : rstd.str()) + kernel_name(kRowsAndColumnsKernels[kernel]) + ": " +
         std::to_string(p.rows.grid.tiles) + " tiles, " +
         (p.rows.x.vectors ? "vector" : "element") + " loads, " + stores(p.rows) +
         " stores of rows, " + stores(p.columns) + " stores of columns, scales " +
         scale_layout_traits(p.rows.scales.layout).name + " and " +
         scale_layout_traits(p.columns.scales.layout).name + "\n";
}

std::vector<runtime::KernelSpec> rows_and_columns_kernel_specs() {
  std::vector<runtime::KernelSpec> specs;
  for (int i = 0; i < kRowsAndColumnsKernels.count; ++i) {
    const QuantizeConfig& c = kRowsAndColumnsKernels[i];
    specs.push_back(runtime::with_parameters<RowsAndColumnsParams>(
        {.name = kernel_name(c),
         .header = "ops/quantize/kernels/rows_and_columns.cuh",
         .call = "blockscale::quantize_transpose_tile<" + quantize_config_source(c) + ">",
         .threads = c.threads,
         .min_blocks_per_multiprocessor = c.min_blocks},
        "blockscale::RowsAndColumnsParams"));
  }
  return runtime::for_architectures(specs, kQuantizeArchitectures);
}

}  // namespace blockscale::quantize_detail
