#include "ops/quantize/rows_and_columns_cuda_plan.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "blockscale/error.h"
#include "ops/quantize/cuda_params.h"
#include "ops/quantize/cuda_tiles.h"
#include "ops/quantize/rows_and_columns_cuda_parts.h"

namespace blockscale::quantize_detail {
namespace {

int find_kernel(Format input, InputTransform transform, bool large) {
  const bool wanted = large && detail::has_large_transpose(input, transform);
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

struct Tiles {
  std::int64_t down, across;
};

/// Tiles that cover both outputs, the padding of their scales included.
Tiles tiles_of(const RowsAndColumnsParams& p) {
  const auto count = [](std::uint32_t scale_rows, std::uint32_t scale_columns) {
    return std::max<std::int64_t>(ceil_div(scale_rows, kTransposeTile), scale_columns);
  };
  return {count(p.rows.scale_rows, p.columns.scale_columns),
          count(p.columns.scale_rows, p.rows.scale_columns)};
}

/// Tiles for each multiprocessor from which on kernels take their form for large inputs.
constexpr std::int64_t kLargeTiles = 4;

/// A launch for all of `a`, but for its configuration.
RowsAndColumnsPlan::Launch launch_of(const RowsAndColumnsArguments& a,
                                     const QuantizeOptions& options) {
  RowsAndColumnsPlan::Launch launch;
  RowsAndColumnsParams& p = launch.params;
  p.rows = params_of({a.x, a.rows, a.input}, options);
  p.columns = column_params_of(a, options);
  const Tiles tiles = tiles_of(p);
  p.rows.grid =
      make_tile_grid(a.rows.batch, tiles.down * kTransposeTile, tiles.across, kTransposeTile, 0);
  launch.shape.grid.x = p.rows.grid.tiles;
  launch.shape.dynamic_shared_bytes = kTransposeSharedBytes;
  launch.shape.programmatic_dependent_launch = true;
  return launch;
}

/// Launches for parts of `a`.
void plan_parts(RowsAndColumnsPlan& plan, const RowsAndColumnsArguments& a,
                const RowsAndColumnsParts& parts, const QuantizeOptions& options, void* workspace) {
  const RowsAndColumnsArguments largest = part_of(a, parts.axis, 0, parts.each);
  const std::int64_t row_bytes = staged_scale_bytes(largest.rows);
  const std::int64_t bytes = row_bytes + staged_scale_bytes(largest.columns);
  constexpr int kStages = 3;  // places for scales, in turns
  plan.workspace_bytes = std::min(parts.count - 1, kStages) * bytes;
  plan.launches.reserve(static_cast<std::size_t>(parts.count));
  ScaleMove row_scales, column_scales;  // of the part before
  for (int i = 0; i < parts.count; ++i) {
    const RowsAndColumnsArguments part = part_of(a, parts.axis, parts.begin(i), parts.end(i));
    RowsAndColumnsArguments staged = part;
    const bool last = i + 1 == parts.count;
    if (!last) {
      auto* const at = static_cast<std::uint8_t*>(workspace);
      const auto stage_at = [&](std::int64_t offset) {
        return at == nullptr ? nullptr : at + i % kStages * bytes + offset;
      };
      staged.rows = with_staged_scales(part.rows, stage_at(0));
      staged.columns = with_staged_scales(part.columns, stage_at(row_bytes));
    }
    RowsAndColumnsPlan::Launch& launch = plan.launches.emplace_back(launch_of(staged, options));
    launch.params.rows.lets_next_start = !last;
    launch.params.row_scales = row_scales;
    launch.params.column_scales = column_scales;
    launch.shape.grid.x += launch.params.moving_blocks();
    if (last) break;
    row_scales = move_of_scales(staged.rows, part.rows);
    column_scales = move_of_scales(staged.columns, part.columns);
  }
}

}  // namespace

RowsAndColumnsPlan plan_rows_and_columns(const RowsAndColumnsArguments& a,
                                         const QuantizeOptions& options, const PlanDevice& device,
                                         void* workspace, const PlanTuning& tuning) {
  check_size("x.rows", a.x.rows);
  check_size("out_rows.k", a.rows.k);
  RowsAndColumnsPlan plan;
  if (a.rows.rows == 0 || a.rows.k == 0 || a.rows.batch == 0) return plan;
  RowsAndColumnsPlan::Launch whole = launch_of(a, options);
  RowsAndColumnsParams& p = whole.params;
  const bool large = tuning.large == Choice::by_size
                         ? p.rows.grid.tiles >= kLargeTiles * device.multiprocessors
                         : tuning.large == Choice::always;
  plan.kernel = find_kernel(a.x.dtype, a.input.transform, large);
  plan.config = tuned(kRowsAndColumnsKernels[plan.kernel], tuning);
  if (a.input.transform == InputTransform::rms_norm) {
    plan.factors = plan_row_factors({a.x, a.rows, a.input}, options, device, workspace);
    p.rows.transform.row_factors = plan.factors.steps[0].params.row_factors;
    plan.workspace_bytes = plan.factors.workspace_bytes;
  }
  if (detail::moves_scales(plan.config)) {
    const RowsAndColumnsParts parts = parts_of(a, device.multiprocessors);
    if (parts.count > 1) plan_parts(plan, a, parts, options, workspace);
  }
  if (plan.launches.empty()) plan.launches.push_back(whole);
  for (RowsAndColumnsPlan::Launch& launch : plan.launches) {
    launch.shape.block.x = static_cast<std::uint32_t>(plan.config.threads);
  }
  return plan;
}

namespace {

std::string kernel_name(const QuantizeConfig& c) {
  const std::string name =
      std::string("quantize_rows_and_columns_fp8_e4m3_") + format_traits(c.input).name;
  const char* const form = c.large ? "_large" : "";
  return name + "_" + kInputTransformNames[static_cast<int>(c.transform)] + form;
}

}  // namespace

std::string RowsAndColumnsPlan::str() const {
  if (kernel < 0) return "nothing to do\n";
  const auto stores = [](const QuantizeParams& p) { return p.value_vectors ? "vector" : "byte"; };
  std::string text = factors.count == 0 ? "" : factors.str();
  for (const Launch& launch : launches) {
    const RowsAndColumnsParams& p = launch.params;
    text += kernel_name(config) + ": " + std::to_string(p.rows.grid.tiles) + " tiles, " +
            (p.rows.x.vectors ? "vector" : "element") + " loads, " + stores(p.rows) +
            " stores of rows, " + stores(p.columns) + " stores of columns, scales " +
            scale_layout_traits(p.rows.layout).name + " and " +
            scale_layout_traits(p.columns.layout).name;
    const std::uint32_t moving = p.moving_blocks();
    if (moving > 0) text += ", " + std::to_string(moving) + " thread blocks move scales";
    text += "\n";
  }
  return text;
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
