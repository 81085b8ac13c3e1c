#include "ops/gemm/cuda/sm90/fp8_launch.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "ops/common/checks.h"
#include "ops/gemm/cuda/problem.h"
#include "ops/gemm/cuda/quantize.h"

namespace blockscale::gemm_detail {
namespace {

TensorMapDescription& map_in(GemmStep& step, Fp8GemmMap which) {
  return step.maps[static_cast<std::size_t>(which)];
}

/// The kernel of a config that a user may have made.
Fp8GemmConfig checked_config(const Fp8GemmSize& size, const Fp8LaunchConfig& c) {
  const Fp8GemmConfig config = kernel_of(size, c);
  const std::string divides = "divides K among " + std::to_string(c.split) + " blocks; ";
  if (kFp8GemmKernels.find(config) < 0) {
    checks::fail("choice", "",
                 "has a tile of " + std::to_string(c.rows) + " x " + std::to_string(c.columns) +
                     "; there is no such kernel");
  }
  if (c.split > 1 && size.sub_tiles() > 1) {
    checks::fail("choice", "", divides + "results of two tiles are not divided");
  }
  if (c.split > 1 && !can_split_k(config)) {
    checks::fail("choice", "",
                 divides + "tiles of " + std::to_string(c.rows) + " rows are not divided");
  }
  return config;
}

/// The maps of scales that are copied.
void set_scales(GemmStep& step, Fp8GemmParams& p, const GemmArguments& x,
                const Fp8GemmConfig& config) {
  if (x.a.k == 0) return;
  const std::uint32_t b_rows = x.b.layout == ScaleLayout::mn_major
                                   ? kBoxRowsB
                                   : static_cast<std::uint32_t>(row_scales_of(config));
  map_in(step, Fp8GemmMap::a_scales) =
      map_of_scales(x.a, static_cast<std::uint32_t>(config.rows), kScaleBoxBlocks);
  map_in(step, Fp8GemmMap::b_scales) = map_of_scales(x.b, b_rows, kScaleBoxBlocks);
  p.a_scale_box_rows = static_cast<std::uint32_t>(config.rows);
  p.b_scale_box_bytes = b_rows * kScaleBoxBlocks * 4;
}

/// The maps of the operands, and how many bytes their boxes bring.
void set_operands(GemmStep& step, Fp8GemmParams& p, const GemmArguments& x,
                  const Fp8GemmSize& size) {
  const Fp8LaunchConfig& c = step.config;
  const auto a_rows = static_cast<std::uint32_t>(a_rows_of(size, c));
  const auto b_rows = static_cast<std::uint32_t>(c.columns);
  p.a_bytes = p.a_tail_bytes = a_rows * kFp8BlockK;
  p.b_bytes = p.b_tail_bytes = b_rows * kFp8BlockK;
  if (x.a.k == 0) return;
  TensorMapDescription& a = map_in(step, Fp8GemmMap::a);
  TensorMapDescription& a_tail = map_in(step, Fp8GemmMap::a_tail);
  TensorMapDescription& b = map_in(step, Fp8GemmMap::b);
  TensorMapDescription& b_second = map_in(step, Fp8GemmMap::b_second);
  a = a_tail = map_of_values(x.a, a_rows);
  // Boxes that are as high as what is left.
  const auto last_of = [](std::int64_t rows, std::uint32_t tiles, int of_tile) {
    return static_cast<std::uint32_t>(ceil_div(rows - (tiles - 1) * std::int64_t{of_tile}, 8) * 8);
  };
  if (const std::uint32_t last = last_of(x.a.rows, p.order.tiles_m, c.rows); last < a_rows) {
    a_tail = map_of_values(x.a, last);
    p.a_tail_bytes = last * kFp8BlockK;
  }
  if (x.quantized) {
    b = map_of_values(rows_of_run(x.b, p.runs, 0), kRunColumns);
    b_second = map_of_values(rows_of_run(x.b, p.runs, 1), kRunColumns);
  } else {
    b = b_second = map_of_values(x.b, b_rows);
    if (const std::uint32_t last = last_of(x.b.rows, p.order.tiles_n, c.columns); last < b_rows) {
      b_second = map_of_values(x.b, last);
      p.b_tail_bytes = last * kFp8BlockK;
    }
  }
}

}  // namespace

std::uint32_t band_rows_of(std::int64_t k, int tile_rows) {
  constexpr std::uint64_t kBytesOfA = std::uint64_t{3} << 19;
  const auto row_bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(1, k));
  const auto rows = std::clamp<std::uint64_t>(std::bit_floor(kBytesOfA / row_bytes), 512, 2048);
  const auto tile = static_cast<std::uint64_t>(tile_rows);
  return static_cast<std::uint32_t>((rows + tile / 2) / tile);
}

GemmStep fp8_step(const GemmArguments& x, const Fp8GemmSize& size, const Fp8LaunchConfig& c,
                  std::int64_t first, const cuda::Chip& chip) {
  const Fp8GemmConfig config = checked_config(size, c);
  GemmStep step;
  step.config = c;
  step.kernel = static_cast<std::size_t>(kFp8GemmKernels.find(config));
  Fp8GemmParams& p = step.params.emplace<Fp8GemmParams>();
  p.a_scales = scales_of_operand(x.a);
  p.b_scales = scales_of_operand(x.b);
  check_scales(p.a_scales, x.a, "a");
  check_scales(p.b_scales, x.b, "b");
  p.epilogue = epilogue_of(x);
  move_scales_to_end(x, p.a_scales, p.b_scales, p.epilogue);
  if (x.quantized) {
    p.quantize = quantizing_epilogue(x);
    p.quantize.takes_sums = p.epilogue.keeps_sums && p.quantize.activation == Activation::none;
    p.runs = tile_runs(x);
    p.log2_sub_tiles = static_cast<std::uint32_t>(std::countr_zero(unsigned(size.sub_tiles())));
    p.first_n = static_cast<std::uint32_t>(first / size.quantized_columns);
  }
  p.order = DenseOrder(static_cast<std::uint32_t>(ceil_div(x.d.rows, c.rows)),
                       static_cast<std::uint32_t>(ceil_div(size.n, c.columns * size.sub_tiles())),
                       static_cast<std::uint32_t>(x.d.batch), band_rows_of(x.a.k, c.rows),
                       static_cast<std::uint32_t>(x.d.rows));
  p.split = Divisor(c.split);
  p.k_blocks = static_cast<std::uint32_t>(ceil_div(x.a.k, kFp8BlockK));
  p.split_blocks = static_cast<std::uint32_t>(ceil_div(p.k_blocks, c.split));
  p.stages = c.stages;
  p.a_batched = x.a.batch > 1;
  p.b_batched = x.b.batch > 1;
  p.b_once = p.order.tiles_m == 1 && x.b.batch == x.d.batch;
  if (p.epilogue.d.chunks) {
    map_in(step, Fp8GemmMap::d) =
        map_of_results(x.d, static_cast<std::uint32_t>(store_bytes_of(config)));
  }
  if (config.copies_scales) set_scales(step, p, x, config);
  set_operands(step, p, x, size);
  step.shape.grid = {grid_of(size, c, chip)};
  step.shape.block = {static_cast<std::uint32_t>(threads_of(config))};
  step.shape.cluster = {c.split};
  step.shape.dynamic_shared_bytes = memory_of(config, c.stages, c.split).total;
  step.shape.programmatic_dependent_launch = true;
  return step;
}

void add_fp8_steps(const GemmArguments& x, const Fp8GemmSize& size, const Fp8Heuristic& found,
                   const cuda::Chip& chip, std::vector<GemmStep>& steps) {
  const auto add = [&](std::int64_t first, std::int64_t count, const Fp8LaunchConfig& c) {
    steps.push_back(
        fp8_step(columns_of(x, first, count), columns_of(size, first, count), c, first, chip));
    steps.back().columns = count;
  };
  add(0, found.columns, found.first);
  if (!found.rest) return;
  add(found.columns, size.n - found.columns, *found.rest);
  std::get<Fp8GemmParams>(steps.back().params).is_beside = true;
}

std::string text_of_fp8(const GemmStep& step, const Fp8GemmParams& p) {
  const Fp8LaunchConfig& c = step.config;
  const Fp8GemmConfig& kernel = kFp8GemmKernels[static_cast<int>(step.kernel)];
  std::string text = fp8_gemm_kernel_name(kernel) + ": " +
                     std::to_string(p.order.tiles << p.log2_sub_tiles) + " tiles of " +
                     std::to_string(c.rows) + " x " + std::to_string(c.columns) + ", " +
                     std::to_string(p.k_blocks) + " blocks of K";
  if (c.split > 1) {
    text += " divided among " + std::to_string(c.split) + " blocks of a cluster";
  }
  text += "; " + std::to_string(step.shape.grid.x) + " x " + std::to_string(step.shape.block.x) +
          " threads, " + std::to_string(c.per_sm) + " a multiprocessor, " +
          std::to_string(c.stages) + " stages, " + std::to_string(step.shape.dynamic_shared_bytes) +
          " bytes shared";
  if (kernel.quantizes) {
    if (p.log2_sub_tiles != 0) text += ", two tiles a result";
    text += p.quantize.vectors ? ", stored by vectors" : ", stored by bytes";
  } else {
    text += p.epilogue.d.chunks ? ", stored as boxes" : ", stored by elements";
  }
  if (kernel.copies_scales) text += ", scales copied";
  if (p.a_scales.data == nullptr) text += ", scales at the end";
  if (p.b_once) text += ", B read once";
  return text;
}

}  // namespace blockscale::gemm_detail
