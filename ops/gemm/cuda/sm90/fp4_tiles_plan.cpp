#include "ops/gemm/cuda/sm90/fp4_tiles_plan.h"

#include <algorithm>

#include "ops/gemm/cuda/bf16_rows.h"
#include "ops/gemm/cuda/fp4_plan.h"
#include "ops/gemm/cuda/problem.h"
#include "ops/gemm/cuda/specs.h"
#include "runtime/kernels/architecture.h"

namespace blockscale::gemm_detail {
namespace {

using fp4_tiles::kPieceK;
using fp4_tiles::kTileRows;

/// Of B's codes, whose pieces have to lie as kernels load them.
bool takes_codes(const ScaledTensorView& b) {
  return b.k % kPieceK == 0 && has_pieces_of_scales(b);
}

/// Of operands as kernels take them. (Tensor copies count bytes of a row of A in 31 bits.)
bool takes_fp4_tiles(const GemmArguments& x, const cuda::Chip& chip) {
  return has_kernels_of(kWgmmaArchitectures[0], chip) &&
         kFp4TilesKernels.find(x.a.recipe, x.b.recipe, kFp4TilesTokens[2], false) >= 0 &&
         !x.quantized && x.d.rows > 0 && x.d.rows < kMostElements && x.d.columns > 0 &&
         x.d.columns < kMostElements && x.d.batch > 0 && x.a.k > 0 && x.a.k < kMostElements / 2 &&
         (is_plain(x.b.recipe) || takes_codes(x.b)) && begins_at_16_bytes(x.a) &&
         begins_at_16_bytes(x.b) &&
         (!x.batch_invariant || x.a.value_row_stride % 16 == 0) &&  // of one row, too
         ceil_div(x.d.rows, kFp4TilesTokens[0]) * ceil_div(x.d.columns, std::int64_t{kTileRows}) <
             kMostElements / x.d.batch;
}

/// The rows without their scales.
ScaledTensorView fp8_rows_of(ScaledTensorView a) {
  a.recipe = Recipe::fp8_row;
  a.scales = nullptr;
  return a;
}

/// Sizes of a product, in tiles and stages of K.
struct Sizes {
  std::int64_t rows, tiles_n, batch, stages;

  std::int64_t tiles(int tokens) const { return ceil_div(rows, tokens) * tiles_n * batch; }
};

Sizes sizes_of(const GemmArguments& x, std::int64_t stage_k) {
  return {x.d.rows, ceil_div(x.d.columns, std::int64_t{kTileRows}), x.d.batch,
          ceil_div(x.a.k, stage_k)};
}

/// Of which a multiprocessor's shared memory has room for as many blocks as there are.
std::optional<std::uint32_t> stages_of(const cuda::Chip& chip, const Fp4TilesConfig& config,
                                       bool is_alone, bool is_direct) {
  return fp4_tiles_stages(chip, config, is_alone ? 1 : blocks_per_multiprocessor(config),
                          is_direct);
}

/// Whether each block has a multiprocessor for itself: two that share one take turns.
bool is_alone(const Sizes& size, const cuda::Chip& chip, const Fp4TilesDivision& d) {
  return size.tiles(d.tokens) * d.blocks_k <= chip.multiprocessors;
}

/// Whether all clusters run at the same time, their blocks alone: those of more than two leave some
/// of a GPC's 16 or 18 multiprocessors.
bool run_at_once(const Sizes& size, const cuda::Chip& chip, const Fp4TilesDivision& d) {
  const std::int64_t blocks = size.tiles(d.tokens) * d.blocks_k;
  return d.blocks_k <= 2 ? is_alone(size, chip, d) : blocks * 8 <= chip.multiprocessors * 7;
}

/// What a division costs, in cycles of a multiprocessor, as an H200 takes them: of a stage, of a
/// tile's end, and of an exchange between blocks (docs/log/gemm-fp4.md). A stage of plain B is
/// taken for its products, and 80 cycles that smaller tiles have more often: not measured. One in
/// FP8 is twice as long; with fast accumulation it is taken for its products and some of a stage's
/// other work.
double cost_of(const Sizes& size, const cuda::Chip& chip, const Fp4TilesConfig& config,
               const Fp4TilesDivision& d, bool fast_accumulation) {
  const double of_stage = d.in_fp8 && fast_accumulation ? 2.5 * d.tokens + 500
                          : has_codes(config)           ? fp4_tiles_stage_cost(d.tokens, d.in_fp8)
                                                        : 4.0 * d.tokens + 80;
  const double of_end = 12.0 * d.tokens, of_exchange = 70.0 * d.tokens;
  const std::int64_t turns =
      ceil_div(size.tiles(d.tokens) * d.blocks_k, std::int64_t{chip.multiprocessors});
  const std::int64_t stages = ceil_div(size.stages, std::int64_t{d.blocks_k});
  return static_cast<double>(turns) * (static_cast<double>(stages) * of_stage + of_end) +
         (d.blocks_k > 1 ? of_exchange : 0);
}

/// Whether a product of plain B, or of B that becomes it, is expected to take less time than by a
/// plain kernel. In picoseconds of an H200 (docs/log/gemm-fp4.md, version 15): for a weight, to
/// read it and, where it is converted, to write it and read it again; for each of a tile's rows, as
/// cuBLAS multiplies, and as plain kernels do at best; what these take at least beside weights that
/// would be converted, up to some rows; for a launch more.
bool outruns_plain_kernel(const GemmArguments& x, bool converts_a, bool converts_b) {
  constexpr double kWeight = 0.4, kConvertedWeight = 1.2, kRow = 2.67e-3, kPlainRow = 11e-3;
  constexpr double kPlainLeast = 0.9, kPlainLeastRow = 40e-3, kPlainMost = 3.5, kLaunch = 2e6;
  const std::int64_t tile = kFp4TilesTokens[1];  // the least of plain B
  const auto rows = static_cast<double>(x.d.rows);
  const auto tile_rows = static_cast<double>(ceil_div(x.d.rows, tile) * tile);
  const double weights = static_cast<double>(x.d.columns) * static_cast<double>(x.a.k) *
                         static_cast<double>(x.d.batch);
  const double launches = (converts_a ? 1 : 0) + (converts_b ? 2 : 0);  // B's and the fallback
  const double of_weight = (converts_b ? kConvertedWeight : kWeight) + kRow * tile_rows;
  const double least = converts_b ? std::min(kPlainLeast + kPlainLeastRow * rows, kPlainMost) : 0;
  return weights * of_weight + launches * kLaunch < weights * std::max(least, kPlainRow * rows);
}

/// The product of the operands themselves behind that of converted ones; none where D has no
/// element. Its blocks are few, since most often they have nothing to do.
std::optional<PlainGemmStep> fallback_of(const GemmArguments& x, const cuda::Chip& chip,
                                         ConversionLoss* loss) {
  constexpr std::uint32_t kBlocksOfMultiprocessor = 2;
  std::optional<PlainGemmStep> step = plan_plain_gemm(x, chip).product;
  if (!step) return step;
  step->shape.grid.x =
      std::min(step->shape.grid.x,
               kBlocksOfMultiprocessor * static_cast<std::uint32_t>(chip.multiprocessors));
  step->params.loss = loss;
  return step;
}

/// The division that costs least, of kernels that promote or not. (K is not divided where a row's
/// bits are to be the same among other rows.)
std::optional<Fp4TilesDivision> best_division(const GemmArguments& x, bool promotes, bool in_fp8,
                                              const Sizes& size, const cuda::Chip& chip) {
  std::optional<Fp4TilesDivision> best;
  double least = 0;
  for (const int tokens : kFp4TilesTokens) {
    const int kernel = kFp4TilesKernels.find(x.a.recipe, x.b.recipe, tokens, promotes);
    if (kernel < 0) continue;
    for (const std::uint32_t blocks : fp4_tiles::kBlocksK) {
      const Fp4TilesDivision d = {tokens, blocks, in_fp8};
      if (blocks > 1 &&
          (x.batch_invariant || blocks > size.stages || !run_at_once(size, chip, d))) {
        break;
      }
      const double cost = cost_of(size, chip, kFp4TilesKernels[kernel], d, x.fast_accumulation);
      if (!best || cost < least) best = d, least = cost;
    }
  }
  return best;
}

TensorMapDescription& map_in(Fp4TilesPlan& plan, Fp4TilesMap which) {
  return plan.maps[static_cast<std::size_t>(which)];
}

bool has_scale_vectors(const ScaledTensorView& x, std::int64_t stage_k) {
  const std::int64_t block = recipe_traits(x.recipe).block_k;
  const std::int64_t size = fp4_tiles::kScaleStages * stage_k / block;
  return x.layout == ScaleLayout::row_major && x.k % (size * block) == 0 &&
         reinterpret_cast<std::uintptr_t>(x.scales) % static_cast<std::uintptr_t>(size) == 0 &&
         x.scale_leading_stride % size == 0 && (x.batch <= 1 || x.scale_batch_stride % size == 0);
}

Fp4TilesParams params_of(const GemmArguments& x, const Sizes& size, std::int64_t stage_k,
                         const Fp4TilesDivision& d) {
  Fp4TilesParams p;
  if (!is_plain(x.b.recipe)) {
    p.scales = scales_of_operand(x.b);
    p.scale_vectors = has_scale_vectors(x.b, stage_k);
    p.tensor_scale = tensor_scale_of(x.b);
    p.pieces = static_cast<std::uint32_t>(x.a.k / kPieceK);
  }
  p.a_batched = x.a.batch > 1;
  p.b_batched = x.b.batch > 1;
  p.epilogue = epilogue_of(x);
  p.order.dense =
      DenseOrder(static_cast<std::uint32_t>(ceil_div(x.d.rows, d.tokens)),
                 static_cast<std::uint32_t>(size.tiles_n), static_cast<std::uint32_t>(size.batch),
                 fp4_tiles_band_rows(d.tokens), static_cast<std::uint32_t>(x.d.rows));
  p.k_stages = static_cast<std::uint32_t>(size.stages);
  p.blocks_k = d.blocks_k;
  p.block_stages = static_cast<std::uint32_t>(ceil_div(size.stages, std::int64_t{d.blocks_k}));
  return p;
}

/// Gives sums what the converted rows of `a` have left.
void take_scales_of_a(const ScaledTensorView& a, Fp4TilesParams& p) {
  if (block_scales_of_rows(a) == BlockScales::left) {
    if (has_scales_of_k(a)) {
      p.a_scales = scales_of_operand(a);
    } else {
      leave_row_scales(a, p.epilogue);
    }
  }
  p.a_tensor_scale = tensor_scale_of(a);
}

}  // namespace

std::uint32_t fp4_tiles_band_rows(int tokens) {
  constexpr int kRows = 2048;
  return static_cast<std::uint32_t>(kRows / tokens);
}

bool takes_rows_in_fp8(const GemmArguments& x) {
  const RecipeTraits& a = recipe_traits(x.a.recipe);
  return x.b.recipe == Recipe::mxfp4 && a.family == Family::fp8 && a.element == Format::e4m3 &&
         a.block_k == 0 && begins_at_16_bytes(x.a);
}

double fp4_tiles_stage_cost(int tokens, bool in_fp8) {
  if (in_fp8) return 6.5 * tokens + 630;
  return tokens == 64 ? 730 : tokens == 128 ? 880 : 1190;
}

std::optional<std::uint32_t> fp4_tiles_stages(const cuda::Chip& chip, const Fp4TilesConfig& config,
                                              int blocks, bool is_direct, std::uint32_t beside) {
  constexpr std::int64_t kReserved = 1024;  // of each block, by the driver
  const std::int64_t room = (chip.shared_bytes + kReserved) / blocks - kReserved;
  for (std::uint32_t stages = kFp4TilesMostStages; stages >= 3; --stages) {
    if (memory_of(config, stages, is_direct).total + beside <= room) return stages;
  }
  return std::nullopt;
}

bool stores_directly(const LinearEpilogue& e) {
  return e.d.chunks && e.d.dtype != Format::f32 && e.beta == 0 && e.column_scales.data == nullptr;
}

std::optional<Fp4TilesPlan> plan_fp4_tiles(const GemmArguments& validated, const cuda::Chip& chip,
                                           void* workspace,
                                           std::optional<Fp4TilesDivision> division) {
  GemmArguments x = validated;
  const bool in_fp8 = division ? division->in_fp8 : takes_rows_in_fp8(x);
  if (in_fp8 && !takes_rows_in_fp8(x)) return std::nullopt;
  const bool converts = !in_fp8 && has_bf16_rows(x.a);
  const bool has_left = converts && block_scales_of_rows(x.a) == BlockScales::left;
  const bool promotes = has_left && has_scales_of_k(x.a);
  const bool may_lose = converts && !has_left && has_scales_of_k(x.a);  // of A
  const bool converts_b = has_bf16_weights(x.b);
  const std::int64_t bytes_of_a = converts ? bf16_rows_bytes(x.a) : 0;
  const std::int64_t bytes_of_b = converts_b ? bf16_rows_bytes(x.b) : 0;
  if (in_fp8) x.a = fp8_rows_of(x.a);
  if (converts) x.a = bf16_rows_of(x.a, nullptr);
  if (converts_b) x.b = bf16_rows_of(x.b, nullptr);
  if (!takes_fp4_tiles(x, chip)) return std::nullopt;
  if (may_lose && x.batch_invariant) return std::nullopt;  // by which kernel depends on all rows
  if (is_plain(x.b.recipe) && !division &&
      (x.batch_invariant || !outruns_plain_kernel(x, converts, converts_b))) {
    return std::nullopt;
  }
  if (converts) x.a.values = workspace;
  if (converts_b) x.b.values = byte_at(workspace, bytes_of_a);
  const std::int64_t stage_k = in_fp8 ? kFp8BlockK : fp4_tiles::kStageK;
  const Sizes size = sizes_of(x, stage_k);
  if (!division) division = best_division(x, promotes, in_fp8, size, chip);
  if (!division) return std::nullopt;
  const int kernel = kFp4TilesKernels.find(x.a.recipe, x.b.recipe, division->tokens, promotes);
  if (kernel < 0) return std::nullopt;
  const Fp4TilesConfig config = kFp4TilesKernels[kernel];
  const bool alone = is_alone(size, chip, *division);
  Fp4TilesPlan plan;
  plan.kernel = kernel;
  plan.architecture = chip.architecture;
  plan.params = params_of(x, size, stage_k, *division);
  plan.workspace_bytes = bytes_of_a + bytes_of_b;
  if (converts_b || may_lose) {
    auto* const loss = static_cast<ConversionLoss*>(byte_at(workspace, plan.workspace_bytes));
    plan.workspace_bytes += std::int64_t{sizeof *loss};
    plan.params.loss = loss;
    plan.fallback = fallback_of(validated, chip, loss);
  }
  const auto conversion_of = [&](const ScaledTensorView& from, const ScaledTensorView& to) {
    return plan_bf16_rows(from, to, block_scales_of_rows(from), chip, plan.params.loss);
  };
  if (converts_b) plan.b_conversion = conversion_of(validated.b, x.b);
  if (converts) plan.conversion = conversion_of(validated.a, x.a);
  if (converts || in_fp8) take_scales_of_a(validated.a, plan.params);
  const bool is_direct = division->blocks_k == 1 && stores_directly(plan.params.epilogue);
  const std::optional<std::uint32_t> stages = stages_of(chip, config, alone, is_direct);
  if (!stages) return std::nullopt;
  plan.params.is_direct = is_direct;
  plan.params.is_f16 = x.a.recipe == Recipe::f16;
  plan.params.fast_accumulation = in_fp8 && x.fast_accumulation;
  plan.params.stages = *stages;
  // Rows that A does not have come as 0: numbers of all kinds would make their quotients slow.
  map_in(plan, Fp4TilesMap::a) =
      map_of_values(x.a, static_cast<std::uint32_t>(division->tokens), fp4_tiles::kRowBytesA);
  map_in(plan, Fp4TilesMap::b) = map_of_values(x.b, kTileRows, fp4_tiles::row_bytes_of_b(config));
  if (plan.params.epilogue.d.chunks) {
    map_in(plan, Fp4TilesMap::d) = map_of_results(x.d, fp4_tiles::kStoreBytes);
  }
  const std::int64_t tiles = size.tiles(division->tokens);
  const std::int64_t places =
      std::int64_t{chip.multiprocessors} * (alone ? 1 : blocks_per_multiprocessor(config));
  const auto blocks =
      static_cast<std::uint32_t>(division->blocks_k > 1 ? tiles : std::min(tiles, places));
  plan.shape.grid = {division->blocks_k, blocks};
  plan.shape.block = {fp4_tiles::kThreads};
  plan.shape.cluster = {division->blocks_k};
  plan.shape.dynamic_shared_bytes = memory_of(config, *stages, is_direct).total;
  plan.shape.programmatic_dependent_launch = true;
  return plan;
}

std::string fp4_tiles_kernel_name(const Fp4TilesConfig& c) {
  const std::string of_codes = std::string(recipe_traits(c.b).name) + (is_in_fp8(c) ? "_e4m3" : "");
  return "gemm_tiles_" + (has_codes(c) ? of_codes : "plain") + "_" + std::to_string(c.tokens) +
         "x" + std::to_string(kTileRows) + (c.promotes ? "_promoted" : "");
}

GemmPath Fp4TilesPlan::path() const {
  if (!is_in_fp8(kFp4TilesKernels[kernel])) return GemmPath::sm90_fp4_tiles;
  return params.fast_accumulation ? GemmPath::sm90_fp8_fast : GemmPath::sm90_fp8;
}

std::string Fp4TilesPlan::str() const {
  const Fp4TilesParams& p = params;
  const Fp4TilesConfig config = kFp4TilesKernels[kernel];
  std::string text;
  if (conversion) text = "A in bf16 in the workspace by " + conversion->str();
  if (b_conversion) text += "B in bf16 in the workspace by " + b_conversion->str();
  text += fp4_tiles_kernel_name(config) + ": " + std::to_string(p.order.dense.tiles) +
          " tiles of " + std::to_string(config.tokens) + " x " + std::to_string(kTileRows) + ", " +
          std::to_string(p.k_stages) + " stages of " + std::to_string(fp4_tiles::stage_k(config)) +
          " of K";
  if (p.blocks_k > 1) {
    text += " divided among " + std::to_string(p.blocks_k) + " blocks of a cluster";
  }
  text += "; " + std::to_string(product(shape.grid)) + " x " + std::to_string(shape.block.x) +
          " threads, " + std::to_string(p.stages) + " stages, " +
          std::to_string(shape.dynamic_shared_bytes) + " bytes shared, " +
          (p.fast_accumulation ? "fast accumulation, " : "") +
          (p.is_direct           ? "stored as boxes, directly\n"
           : p.epilogue.d.chunks ? "stored as boxes\n"
                                 : "stored by elements\n");
  if (fallback) {
    text += "in its place, where bf16 lacks one of their numbers, " + text_of(*fallback);
  }
  if (workspace_bytes == 0) return text;
  return text + "workspace " + std::to_string(workspace_bytes) + " bytes\n";
}

std::vector<runtime::KernelSpec> fp4_tiles_kernel_specs() {
  std::vector<runtime::KernelSpec> specs;
  for (int i = 0; i < kFp4TilesKernels.kCount; ++i) {
    const Fp4TilesConfig config = kFp4TilesKernels[i];
    specs.push_back(runtime::with_parameters<Fp4TilesParams>(
        {.name = fp4_tiles_kernel_name(config),
         .header = "ops/gemm/kernels/sm90/fp4_tiles.cuh",
         .call = "blockscale::fp4_tiles_kernel<blockscale::kFp4TilesKernels[" + std::to_string(i) +
                 "]>",
         .threads = fp4_tiles::kThreads,
         .min_blocks_per_multiprocessor = blocks_per_multiprocessor(config)},
        "blockscale::Fp4TilesParams"));
  }
  return runtime::for_architectures(specs, kWgmmaArchitectures);
}

}  // namespace blockscale::gemm_detail
