#include "ops/quantize/rows_and_columns_cuda_plan.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "blockscale/error.h"
#include "ops/quantize/cuda_params.h"
#include "ops/quantize/cuda_tiles.h"

namespace blockscale::quantize_detail {
namespace {

int find_kernel(Format input, InputTransform transform, bool large) {
  const bool wanted = large || !detail::has_small_transpose(input, transform);
  for (int i = 0; i < kRowsAndColumnsKernels.count; ++i) {
    const QuantizeConfig& c = kRowsAndColumnsKernels[i];
    if (c.input == input && c.transform == transform && c.large == wanted) return i;
  }
  throw Error(ErrorCode::unsupported, "x.dtype", "has no kernel on a GPU");
}

/// What the kernel is launched with to quantise `x` into `out`, but for tiles.
QuantizeParams params_of(const QuantizeArguments& a, const QuantizeOptions& options) {
  QuantizeParams p = quantize_params(a, options);
  p.value_vectors = has_value_vectors(p, 16);
  return p;
}

/// The same for the transpose of the result, of which only its shape matters: nobody reads it.
QuantizeParams column_params_of(const RowsAndColumnsArguments& a, const QuantizeOptions& options) {
  MatrixView transpose = a.x;
  transpose.rows = a.columns.rows;
  transpose.columns = transpose.row_stride = a.columns.k;
  QuantizeParams p = params_of({transpose, a.columns, {}}, options);
  p.x = {};
  return p;
}

QuantizeConfig tuned(QuantizeConfig c, const PlanTuning& tuning) {
  if (tuning.chunk != 0) c.chunk = tuning.chunk;
  if (tuning.threads != 0) c.threads = tuning.threads;
  c.chunks = static_cast<int>(kTransposeTile * kTransposeTile) / (c.chunk * c.threads);
  if (tuning.min_blocks != 0) c.min_blocks = tuning.min_blocks;
  return c;
}

/// Tiles that cover both outputs, the padding of their scales included.
struct Tiles {
  Tiles(const QuantizeParams& rows, const QuantizeParams& columns)
      : down(count(rows.scale_rows, columns.scale_columns)),
        across(count(columns.scale_rows, rows.scale_columns)) {}
  static std::int64_t count(std::uint32_t scale_rows, std::uint32_t scale_columns) {
    return std::max<std::int64_t>(ceil_div(scale_rows, kTransposeTile), scale_columns);
  }
  std::int64_t down, across;
};

/// Tiles for each multiprocessor from which on kernels take their form for large inputs.
constexpr std::int64_t kLargeTiles = 4;

}  // namespace

RowsAndColumnsPlan plan_rows_and_columns(const RowsAndColumnsArguments& a,
                                         const QuantizeOptions& options, const PlanDevice& device,
                                         void* workspace, const PlanTuning& tuning) {
  check_size("x.rows", a.x.rows);
  check_size("out_rows.k", a.rows.k);
  RowsAndColumnsPlan plan;
  if (a.rows.rows == 0 || a.rows.k == 0 || a.rows.batch == 0) return plan;
  const QuantizeArguments along_rows{a.x, a.rows, a.input};
  RowsAndColumnsParams& p = plan.params;
  p.rows = params_of(along_rows, options);
  p.columns = column_params_of(a, options);
  const Tiles tiles(p.rows, p.columns);
  const std::int64_t all = tiles.down * tiles.across * a.rows.batch;
  const bool large = tuning.large == Choice::by_size ? all >= kLargeTiles * device.multiprocessors
                                                     : tuning.large == Choice::always;
  plan.kernel = find_kernel(a.x.dtype, a.input.transform, large);
  plan.config = tuned(kRowsAndColumnsKernels[plan.kernel], tuning);
  p.rows.grid =
      make_tile_grid(a.rows.batch, tiles.down * kTransposeTile, tiles.across, kTransposeTile, 0);
  if (a.input.transform == InputTransform::rms_norm) {
    plan.factors = plan_row_factors(along_rows, options, device, workspace);
    p.rows.transform.row_factors = plan.factors.steps[0].params.row_factors;
    plan.workspace_bytes = plan.factors.workspace_bytes;
  }
  plan.shape.grid.x = p.rows.grid.tiles;
  plan.shape.block.x = static_cast<std::uint32_t>(plan.config.threads);
  plan.shape.dynamic_shared_bytes = kTransposeSharedBytes;
  plan.shape.programmatic_dependent_launch = true;
  return plan;
}

namespace {

std::string kernel_name(const QuantizeConfig& c) {
  const std::string name =
      std::string("quantize_rows_and_columns_fp8_e4m3_") + format_traits(c.input).name;
  const char* const form = c.large ? "" : "_small";
  return name + "_" + kInputTransformNames[static_cast<int>(c.transform)] + form;
}

}  // namespace

std::string RowsAndColumnsPlan::str() const {
  if (kernel < 0) return "nothing to do\n";
  const auto stores = [](const QuantizeParams& p) { return p.value_vectors ? "vector" : "byte"; };
  const std::string before = factors.count == 0 ? "" : factors.str();
  return before + kernel_name(config) + ": " + std::to_string(params.rows.grid.tiles) + " tiles, " +
         (params.rows.x.vectors ? "vector" : "element") + " loads, " + stores(params.rows) +
         " stores of rows, " + stores(params.columns) + " stores of columns, scales " +
         scale_layout_traits(params.rows.layout).name + " and " +
         scale_layout_traits(params.columns.layout).name + "\n";
}

runtime::KernelSpec rows_and_columns_kernel_spec(const QuantizeConfig& c, std::string name) {
  return runtime::with_parameters<RowsAndColumnsParams>(
      {.name = std::move(name),
       .header = "ops/quantize/kernel_sm90_transpose.cuh",
       .call = "blockscale::quantize_transpose_tile<" + quantize_config_source(c) + ">",
       .threads = c.threads,
       .min_blocks_per_multiprocessor = c.min_blocks},
      "blockscale::RowsAndColumnsParams");
}

std::vector<runtime::KernelSpec> rows_and_columns_kernel_specs() {
  std::vector<runtime::KernelSpec> specs;
  for (int i = 0; i < kRowsAndColumnsKernels.count; ++i) {
    const QuantizeConfig& c = kRowsAndColumnsKernels[i];
    specs.push_back(rows_and_columns_kernel_spec(c, kernel_name(c)));
  }
  return specs;
}

}  // namespace blockscale::quantize_detail
