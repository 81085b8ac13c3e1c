#include "ops/gemm/cuda/sm120/block_scaled_plan.h"

#include <algorithm>
#include <cstdio>

#include "ops/gemm/cuda/problem.h"
#include "ops/gemm/cuda/sm120/block_scaled_model.h"
#include "ops/gemm/cuda/specs.h"
#include "runtime/kernels/architecture.h"

namespace blockscale::gemm_detail {
namespace {

using block_scaled::kColumns;
using block_scaled::kStageK;

bool is_4_bit(const ScaledTensorView& x) {
  return recipe_traits(x.recipe).element == Format::e2m1;
}

/// Whether elements of `x` lie in a byte each, with gaps, in shared memory.
bool has_gaps(const ScaledTensorView& x, const ScaledTensorView& other) {
  return format_traits(recipe_traits(x.recipe).element).bits != 8 && !is_4_bit(other);
}

/// Whether rows begin at multiples of so many bytes: of one row, too, so that it goes as it does
/// among others.
bool begins_at(const void* address, std::int64_t row_stride, std::int64_t batch_stride,
               std::int64_t batch, std::int64_t least) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(address)) % least == 0 &&
         row_stride % least == 0 && (batch <= 1 || batch_stride % least == 0);
}

/// Whether tensor copies read the values: with gaps, whole stages at multiples of 32 bytes.
bool has_boxes(const ScaledTensorView& x, bool with_gaps) {
  return begins_at(x.values, x.value_row_stride, x.value_batch_stride, x.batch,
                   with_gaps ? 32 : 16) &&
         (!with_gaps || x.k % kStageK == 0);
}

/// Whether the scales of four blocks of k, or each in f32, lie at a multiple of four bytes.
bool has_words(const ScaledTensorView& x) {
  if (recipe_traits(x.recipe).scale == Format::f32) return true;
  return x.layout != ScaleLayout::mn_major &&
         begins_at(x.scales, is_swizzled(x.layout) ? 0 : x.scale_leading_stride,
                   x.scale_batch_stride, x.batch, 4);
}

/// Whether they lie as in shared memory, where bulk copies read.
bool has_atoms(const ScaledTensorView& x) {
  return x.layout == ScaleLayout::swizzled_128x4 &&
         begins_at(x.scales, 0, x.scale_batch_stride, x.batch, 16);
}

/// Whether one scale in f32 holds for all columns of a tile.
bool has_tile_scales(const GemmArguments& x) {
  const RecipeTraits& b = recipe_traits(x.b.recipe);
  return b.scale != Format::f32 || has_scales_at_end(x) || b.block_rows == 0 ||
         b.block_rows % static_cast<int>(kColumns) == 0;
}

/// Of any scales, in any stage. Those that hold for all of K are not brought.
bool copies_words(const BlockScaledParams& p) {
  return p.a_scales.at.data != nullptr &&
         (!p.a_scales.atoms || !p.b_scales.atoms || p.whole_stages != p.k_stages);
}

BlockScaledParams params_of(const GemmArguments& x, const BlockScaledConfig& config) {
  const std::int64_t k_blocks = scale_grid(x.a.recipe, x.a.rows, x.a.k).columns;
  BlockScaledParams p;
  p.a_scales.at = scales_of_operand(x.a);
  p.b_scales.at = scales_of_operand(x.b);
  p.a_scales.atoms = has_atoms(x.a);
  p.b_scales.atoms = has_atoms(x.b);
  p.a_tensor_scale = tensor_scale_of(x.a);
  p.b_tensor_scale = tensor_scale_of(x.b);
  p.a_batched = x.a.batch > 1;
  p.b_batched = x.b.batch > 1;
  p.epilogue = epilogue_of(x);
  if (has_f32_scales(config)) move_scales_to_end(x, p.a_scales.at, p.b_scales.at, p.epilogue);
  p.k_stages = static_cast<std::uint32_t>(ceil_div(x.a.k, std::int64_t{kStageK}));
  p.whole_stages = static_cast<std::uint32_t>(x.a.k / kStageK);
  p.scale_blocks =
      static_cast<std::uint32_t>(has_f32_scales(config) ? std::int64_t{p.k_stages} : k_blocks);
  p.copies_words = copies_words(p);
  const auto rows = static_cast<std::int64_t>(config.rows);
  p.order.dense =
      DenseOrder(static_cast<std::uint32_t>(ceil_div(x.d.rows, rows)),
                 static_cast<std::uint32_t>(ceil_div(x.d.columns, std::int64_t{kColumns})),
                 static_cast<std::uint32_t>(x.d.batch), block_scaled_band_rows(config.rows),
                 static_cast<std::uint32_t>(x.d.rows));
  return p;
}

/// As many as a multiprocessor's shared memory has room for beside what the order asks for: two at
/// least.
std::optional<std::uint32_t> stages_of(const cuda::Chip& chip, const BlockScaledConfig& config,
                                       std::uint32_t order_bytes) {
  for (std::uint32_t stages = kBlockScaledMostStages; stages >= 2; --stages) {
    if (memory_of(config, stages).total + order_bytes <= chip.shared_bytes) return stages;
  }
  return std::nullopt;
}

TensorMapDescription map_of(const ScaledTensorView& x, bool with_gaps, std::uint32_t box_rows,
                            const BlockScaledConfig& config) {
  return with_gaps ? map_of_values_with_gaps(x, box_rows, kStageK)
                   : map_of_values(x, box_rows, stage_row_bytes(config));
}

}  // namespace

bool takes_block_scaled(const GemmArguments& x, const cuda::Chip& chip) {
  return has_kernels_of(kBlockScaledArchitectures[0], chip) &&
         kBlockScaledKernels.find(x.a.recipe, x.b.recipe, kBlockScaledRows[0]) >= 0 &&
         x.d.rows > 0 && x.d.rows < kMostElements && x.d.columns > 0 && x.b.rows < kMostElements &&
         x.d.batch > 0 && x.a.k > 0 && x.a.k < kMostElements &&
         has_boxes(x.a, has_gaps(x.a, x.b)) && has_boxes(x.b, has_gaps(x.b, x.a)) &&
         has_words(x.a) && has_words(x.b) && has_tile_scales(x) &&
         ceil_div(x.d.rows, std::int64_t{kBlockScaledRows[0]}) *
                 ceil_div(x.b.rows, std::int64_t{kColumns}) <
             kMostElements / x.d.batch;
}

std::uint32_t block_scaled_band_rows(int rows) {
  constexpr int kBandRows = 2048;  // of A, of tiles that follow each other
  return static_cast<std::uint32_t>(kBandRows / rows);
}

std::optional<BlockScaledPlan> plan_block_scaled(const GemmArguments& x, const cuda::Chip& chip,
                                                 std::optional<int> rows,
                                                 std::uint32_t order_bytes) {
  if (x.quantized || !takes_block_scaled(x, chip)) return std::nullopt;
  const BlockScaledSize size = {{x.a.recipe, x.b.recipe}, x.d.rows, x.d.columns, x.a.k, x.d.batch};
  if (!rows) rows = best_block_scaled_rows(size, chip);
  BlockScaledPlan plan;
  plan.kernel = kBlockScaledKernels.find(x.a.recipe, x.b.recipe, *rows);
  if (plan.kernel < 0) return std::nullopt;
  const BlockScaledConfig config = kBlockScaledKernels[plan.kernel];
  const std::optional<std::uint32_t> stages = stages_of(chip, config, order_bytes);
  if (!stages) return std::nullopt;
  plan.architecture = chip.architecture;
  plan.expected_seconds = gemm_detail::expected_seconds(size, *rows, chip);
  plan.params = params_of(x, config);
  plan.params.stages = *stages;
  const auto map = [&](BlockScaledMap which) -> TensorMapDescription& {
    return plan.maps[static_cast<std::size_t>(which)];
  };
  map(BlockScaledMap::a) =
      map_of(x.a, has_gaps(x.a, x.b), static_cast<std::uint32_t>(*rows), config);
  map(BlockScaledMap::b) = map_of(x.b, has_gaps(x.b, x.a), kColumns, config);
  if (plan.params.epilogue.d.chunks) {
    map(BlockScaledMap::d) = map_of_results(x.d, store_bytes_of(config));
  }
  const auto places = static_cast<std::uint32_t>(chip.multiprocessors);
  plan.shape.grid = {std::min(plan.params.order.dense.tiles, places)};
  plan.shape.block = {block_scaled::kThreads};
  plan.shape.dynamic_shared_bytes = memory_of(config, *stages).total + order_bytes;
  plan.shape.programmatic_dependent_launch = true;
  return plan;
}

void set_groups(BlockScaledParams& p, const GroupedOrder& order) {
  p.order.grouped = order;
  p.a_scales.atoms = p.a_scales.atoms && order.groups.are_matrices();
  p.copies_words = copies_words(p);
}

std::string block_scaled_kernel_name(const BlockScaledConfig& c) {
  const auto name = [](Recipe recipe) {
    const RecipeTraits& t = recipe_traits(recipe);
    return std::string(t.family == Family::fp8 ? "fp8" : t.name);
  };
  return "gemm_block_scaled_" + name(c.a) + "_" + name(c.b) + "_" + std::to_string(c.rows) + "x" +
         std::to_string(kColumns);
}

std::string text_of_block_scaled(const BlockScaledParams& p) {
  const auto scales = [](const BlockScaledScales& of) {
    return of.at.data == nullptr ? "at the end" : of.atoms ? "by atoms" : "by words";
  };
  return std::to_string(p.k_stages) + " stages of " + std::to_string(kStageK) +
         " of K; A's scales " + scales(p.a_scales) + ", B's " + scales(p.b_scales);
}

std::string text_of_expected(double seconds) {
  char text[64];
  std::snprintf(text, sizeof text, "; %.1f us by public figures, never measured", seconds * 1e6);
  return text;
}

std::string BlockScaledPlan::str() const {
  const BlockScaledParams& p = params;
  const BlockScaledConfig config = kBlockScaledKernels[kernel];
  return block_scaled_kernel_name(config) + ": " + std::to_string(p.order.dense.tiles) +
         " tiles of " + std::to_string(config.rows) + " x " + std::to_string(kColumns) + ", " +
         text_of_block_scaled(p) + "; " + std::to_string(shape.grid.x) + " x " +
         std::to_string(shape.block.x) + " threads, " + std::to_string(p.stages) + " stages, " +
         std::to_string(shape.dynamic_shared_bytes) + " bytes shared, stored " +
         (p.epilogue.d.chunks ? "as boxes" : "by elements") + text_of_expected(expected_seconds) +
         "\n";
}

std::vector<runtime::KernelSpec> block_scaled_kernel_specs() {
  std::vector<runtime::KernelSpec> specs;
  for (int i = 0; i < kBlockScaledKernels.kCount; ++i) {
    specs.push_back(runtime::with_parameters<BlockScaledParams>(
        {.name = block_scaled_kernel_name(kBlockScaledKernels[i]),
         .header = "ops/gemm/kernels/sm120/block_scaled.cuh",
         .call = "blockscale::block_scaled_kernel<blockscale::kBlockScaledKernels[" +
                 std::to_string(i) + "]>",
         .threads = block_scaled::kThreads},
        "blockscale::BlockScaledParams"));
  }
  return runtime::for_architectures(specs, kBlockScaledArchitectures);
}

}  // namespace blockscale::gemm_detail
