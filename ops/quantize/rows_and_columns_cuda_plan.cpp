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
  p.value_vectors = is_multiple(p.values, 16) &&
                    (p.rows <= 1 || is_multiple(p.value_row_stride, 16)) &&
                    (p.batch <= 1 || is_multiple(p.value_batch_stride, 16));
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

/// Where a grid of scales lies between the kernels, and how it gets to where p has it. Sets p to
/// what the first kernel writes, behind the first `used` bytes of the workspace.
ScaleMove move_scales(QuantizeParams& p, std::uint8_t* workspace, std::int64_t& used) {
  const std::int64_t size = p.fp8_scale == Fp8Scale::ue8m0 ? 1 : 4;
  ScaleMove move;
  move.to = p.scales;
  move.to_stride = p.scale_leading_stride;
  move.to_batch_stride = p.scale_batch_stride;
  move.rows = p.scale_rows;
  move.columns = p.scale_columns;
  move.vectors = is_multiple(move.to, kMovedScales * size) &&
                 is_multiple(move.to_stride, kMovedScales) &&
                 is_multiple(move.to_batch_stride, kMovedScales);
  move.from_stride = ceil_div(move.rows, 128) * 128;
  move.from_batch_stride = move.from_stride * move.columns;
  const std::int64_t of_column = ceil_div(move.rows, kScaleMoveThreads);
  const std::int64_t of_matrix = of_column * ceil_div(move.columns, kMovedScales);
  move.blocks_of_column = Divisor(static_cast<std::uint32_t>(of_column));
  move.blocks_of_matrix = Divisor(static_cast<std::uint32_t>(of_matrix));
  move.blocks = static_cast<std::uint32_t>(of_matrix * p.batch);
  move.from = workspace == nullptr ? nullptr : workspace + used;
  used += ceil_div(move.from_batch_stride * p.batch * size, 128) * 128;
  p.scales = const_cast<std::uint8_t*>(move.from);
  p.layout = ScaleLayout::mn_major;
  p.scale_leading_stride = move.from_stride;
  p.scale_batch_stride = move.from_batch_stride;
  return move;
}

/// Has row_major scales moved into their rows by a kernel that follows.
void add_moves(RowsAndColumnsPlan& plan, void* workspace) {
  RowsAndColumnsParams& p = plan.params;
  // Of a grid with one column the two layouts are the same.
  const auto is_scattered = [](const QuantizeParams& q) {
    return q.layout == ScaleLayout::row_major && q.scale_columns > 1;
  };
  auto* const bytes = static_cast<std::uint8_t*>(workspace);
  std::int64_t& used = plan.workspace_bytes;
  if (is_scattered(p.rows)) plan.moves.rows = move_scales(p.rows, bytes, used);
  if (is_scattered(p.columns)) plan.moves.columns = move_scales(p.columns, bytes, used);
  const std::uint32_t blocks = plan.moves.rows.blocks + plan.moves.columns.blocks;
  if (blocks == 0) return;
  plan.move_kernel = kRowsAndColumnsKernels.count + (p.rows.fp8_scale == Fp8Scale::ue8m0 ? 1 : 0);
  plan.move_shape.grid.x = blocks;
  plan.move_shape.block.x = kScaleMoveThreads;
  plan.move_shape.programmatic_dependent_launch = true;
  p.rows.lets_next_start = true;
}

/// Tiles for each multiprocessor from which on kernels take their form for large inputs.
constexpr std::int64_t kLargeTiles = 4;

/// Whether row_major scales are moved by a second kernel, which takes 3 us on an H200: where little
/// else keeps the first one from the rate of the memory.
bool is_worth_moving(const QuantizeConfig& c, std::int64_t tiles, const DeviceTraits& device) {
  if (c.input == Format::f32) return false;
  switch (c.transform) {
    case InputTransform::identity: return tiles >= std::int64_t{12} * device.multiprocessors;
    case InputTransform::modulate: return tiles >= std::int64_t{24} * device.multiprocessors;
    default: return false;
  }
}

}  // namespace

RowsAndColumnsPlan plan_rows_and_columns(const RowsAndColumnsArguments& a,
                                         const QuantizeOptions& options, const DeviceTraits& device,
                                         void* workspace, const PlanTuning& tuning) {
  check_size("x.rows", a.x.rows);
  check_size("x.columns", a.x.columns);
  RowsAndColumnsPlan plan;
  if (a.rows.rows == 0 || a.rows.k == 0 || a.rows.batch == 0) return plan;
  const QuantizeArguments along_rows{a.x, a.rows, a.input};
  RowsAndColumnsParams& p = plan.params;
  p.rows = params_of(along_rows, options);
  p.rows.lets_next_start = false;  // the next call's thread blocks would be spread unevenly
  p.columns = column_params_of(a, options);
  const Tiles tiles(p.rows, p.columns);
  const std::int64_t all = tiles.down * tiles.across * p.rows.batch;
  const bool large = tuning.large == Choice::by_size ? all >= kLargeTiles * device.multiprocessors
                                                     : tuning.large == Choice::always;
  plan.kernel = find_kernel(a.x.dtype, a.input.transform, large);
  plan.config = tuned(kRowsAndColumnsKernels[plan.kernel], tuning);
  p.rows.grid =
      make_tile_grid(p.rows.batch, tiles.down * kTransposeTile, tiles.across, kTransposeTile, 0);
  if (a.input.transform == InputTransform::rms_norm) {
    plan.factors = plan_row_factors(along_rows, options, device, workspace);
    p.rows.transform.row_factors = plan.factors.steps[0].params.row_factors;
    plan.workspace_bytes = ceil_div(plan.factors.workspace_bytes, 128) * 128;
  }
  const bool moves = tuning.moved_scales == Choice::by_size
                         ? is_worth_moving(plan.config, all, device)
                         : tuning.moved_scales == Choice::always;
  if (moves) add_moves(plan, workspace);
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
         scale_layout_traits(params.columns.layout).name + "\n" +
         (move_kernel < 0
              ? ""
              : "move_scales_into_rows: " + std::to_string(move_shape.grid.x) + " thread blocks\n");
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
  for (const char* const bits : {"32", "8"}) {
    specs.push_back(runtime::with_parameters<ScaleMoves>(
        {.name = std::string("move_scales_into_rows_") + bits,
         .header = "ops/quantize/kernel_sm90_scale_rows.cuh",
         .call = std::string("blockscale::move_scales_into_rows<") + bits + ">",
         .threads = static_cast<int>(kScaleMoveThreads)},
        "blockscale::ScaleMoves"));
  }
  return specs;
}

}  // namespace blockscale::quantize_detail
