#include "ops/gemm/cuda/fp4_plan.h"

#include <algorithm>

#include "ops/gemm/cuda/problem.h"
#include "ops/gemm/cuda/specs.h"
#include "runtime/kernels/architecture.h"

namespace blockscale::gemm_detail {

bool has_pieces_of_scales(const ScaledTensorView& x) {
  if (x.layout == ScaleLayout::mn_major) return false;
  const std::int64_t size = x.recipe == Recipe::nvfp4 ? 2 : 1;
  return reinterpret_cast<std::uintptr_t>(x.scales) % static_cast<std::uintptr_t>(size) == 0 &&
         (is_swizzled(x.layout) || x.scale_leading_stride % size == 0) &&
         (x.batch <= 1 || x.scale_batch_stride % size == 0);
}

bool is_sm120(const cuda::Chip& chip) {
  return runtime::runs_on(kSm120Architecture, chip.architecture);
}

bool has_fp4_kernels(const cuda::Chip& chip) {
  return has_kernels_of(kSm120Architecture, chip) || has_kernels_of(kWgmmaArchitectures[0], chip);
}

bool takes_fp4_operands(const ScaledTensorView& a, const ScaledTensorView& b, int kernel) {
  return b.rows > 0 && b.rows < kMostElements && a.k > 0 && a.k < kMostElements &&
         a.k % kFp4GemmKernels[kernel].piece_k() == 0 && begins_at_16_bytes(a) &&
         begins_at_16_bytes(b) && has_pieces_of_scales(b);
}

Fp4Sizes fp4_sizes_of(const GemmArguments& x, int kernel) {
  Fp4Sizes size;
  size.kernel = kernel;
  size.rows = x.d.rows;
  size.tiles = ceil_div(x.d.columns, std::int64_t{kFp4TileRows});
  size.chunks = ceil_div(x.a.k, std::int64_t{kFp4GemmKernels[kernel].chunk_k()});
  return size;
}

namespace {

/// Of K, that shared memory has A's rows of at a time.
std::int64_t chunks_at_once(const Fp4Sizes& size, const Fp4Division& d) {
  return d.part_chunks != 0 ? d.part_chunks : ceil_div(size.chunks, std::int64_t{d.blocks_k});
}

std::uint32_t shared_bytes_of(const Fp4Sizes& size, const Fp4Division& d) {
  const std::int64_t chunks = chunks_at_once(size, d);
  return size.beside + memory_of_fp4(kFp4GemmKernels[size.kernel],
                                     static_cast<std::uint32_t>(size.rows),
                                     static_cast<std::uint32_t>(chunks), d.warps_k * d.block_tiles)
                           .total;
}

std::int64_t turns_of(const Fp4Sizes& size, const Fp4Division& d) {
  return size.matrices * ceil_div(size.tiles, std::int64_t{d.block_tiles});
}

/// Clusters that take the turns.
std::int64_t clusters_of(const Fp4Sizes& size, const Fp4Division& d, const cuda::Chip& chip) {
  const std::int64_t there_are = chip.multiprocessors / std::int64_t{d.blocks_k};
  return std::min(std::max<std::int64_t>(there_are, 1), turns_of(size, d));
}

/// What costs are made of, in the time that a multiprocessor takes to read a warp's chunk: with
/// fewer warps than these it waits for their loads, and a turn ends with a barrier and sums, of a
/// block or of a cluster. On Hopper that time is 0.15 us; on SM120 0.4 us and more, by public
/// figures of its memory, and the others follow: nothing there was ever measured.
/// A chunk of a row of A that a turn brings again has a fifth of the bytes, from a cache that is a
/// few times as fast as memory.
struct Fp4Costs {
  std::int64_t enough_warps;
  double turn, cluster_turn, refill;
};
constexpr Fp4Costs kCostsOfHopper = {8, 3, 6, 0}, kCostsOfSm120 = {4, 1, 1, 0.06};

double cost_of(const Fp4Sizes& size, const Fp4Division& d, const cuda::Chip& chip,
               const Fp4Costs& costs) {
  double turn = d.blocks_k == 1 ? costs.turn : costs.cluster_turn;
  if (d.part_chunks != 0) turn += costs.refill * static_cast<double>(size.rows * size.chunks);
  const std::int64_t turns = ceil_div(turns_of(size, d), clusters_of(size, d, chip));
  const std::int64_t of_block = ceil_div(size.chunks, std::int64_t{d.blocks_k});
  const std::int64_t of_warp = ceil_div(of_block, std::int64_t{d.warps_k});
  const std::int64_t warps = std::max<std::int64_t>(d.warps_k * d.block_tiles, costs.enough_warps);
  return static_cast<double>(turns) * (static_cast<double>(of_warp * warps) + turn);
}

/// Whether a division's part of K fits shared memory, all of it or, where a kernel brings A's rows
/// part by part, in the largest parts that do.
bool fits(const Fp4Sizes& size, Fp4Division& d, const cuda::Chip& chip) {
  if (shared_bytes_of(size, d) <= chip.shared_bytes) return true;
  const Fp4GemmConfig config = kFp4GemmKernels[size.kernel];
  if (!config.refills) return false;
  d.part_chunks = 1;
  const std::int64_t left = chip.shared_bytes - std::int64_t{shared_bytes_of(size, d)};
  if (left < 0) return false;
  const auto more = static_cast<std::uint32_t>(left / (size.rows * config.chunk_k() * 2));
  d.part_chunks = (1 + more) / d.warps_k * d.warps_k;
  return d.part_chunks != 0;
}

}  // namespace

/// The one that costs least, of these one with many warps.
std::optional<Fp4Division> best_fp4_division(const Fp4Sizes& size, const cuda::Chip& chip) {
  std::optional<Fp4Division> best;
  double least = 0;
  const bool sm120 = is_sm120(chip);
  const Fp4Costs& costs = sm120 ? kCostsOfSm120 : kCostsOfHopper;
  const std::uint32_t most_warps = sm120 ? kFp4MostWarpsOfSm120 : kFp4MostWarps;
  const auto most_blocks = std::min(
      kFp4MostBlocksK, static_cast<std::uint32_t>(runtime::most_cluster_blocks(chip.architecture)));
  for (std::uint32_t blocks = 1; blocks <= most_blocks; blocks *= 2) {
    for (std::uint32_t warps = most_warps; warps > 0; --warps) {
      for (std::uint32_t tiles = 1; tiles <= warps; ++tiles) {
        if (warps % tiles != 0) continue;
        Fp4Division d = {blocks, warps / tiles, tiles};
        if (!fits(size, d, chip)) continue;
        const double cost = cost_of(size, d, chip, costs);
        if (!best || cost < least) best = d, least = cost;
      }
    }
  }
  return best;
}

Fp4GemmParams fp4_params_of(const GemmArguments& x, const Fp4Sizes& size, const Fp4Division& d) {
  const Fp4GemmConfig config = kFp4GemmKernels[size.kernel];
  Fp4GemmParams p;
  p.a = static_cast<const std::uint8_t*>(x.a.values);
  p.b = static_cast<const std::uint8_t*>(x.b.values);
  p.a_row_stride = x.a.value_row_stride;
  p.b_row_stride = x.b.value_row_stride;
  p.a_batch_stride = x.a.batch > 1 ? x.a.value_batch_stride : 0;
  p.b_batch_stride = x.b.batch > 1 ? x.b.value_batch_stride : 0;
  p.is_f16 = x.a.recipe == Recipe::f16;
  p.is_e5m2 = x.b.recipe == Recipe::mxfp8_e5m2;
  p.a_scales = scales_of_operand(x.a);
  p.scales = scales_of_operand(x.b);
  p.tensor_scale = tensor_scale_of(x.b);
  p.epilogue = epilogue_of(x);
  p.pieces = static_cast<std::uint32_t>(x.a.k / config.piece_k());
  p.block_chunks = static_cast<std::uint32_t>(ceil_div(size.chunks, std::int64_t{d.blocks_k}));
  p.blocks_k = d.blocks_k;
  p.warps_k = d.warps_k;
  p.block_tiles = d.block_tiles;
  p.tiles = static_cast<std::uint32_t>(size.tiles);
  const auto chunks = static_cast<std::uint32_t>(chunks_at_once(size, d));
  p.row_loads = Divisor(chunks * (config.chunk_k() / config.load_elements()));
  return p;
}

LaunchShape fp4_shape_of(const Fp4Sizes& size, const Fp4Division& d, const cuda::Chip& chip) {
  LaunchShape shape;
  shape.grid = {d.blocks_k, static_cast<std::uint32_t>(clusters_of(size, d, chip))};
  shape.block = {32 * d.warps_k * d.block_tiles};
  shape.cluster = {d.blocks_k};
  shape.dynamic_shared_bytes = shared_bytes_of(size, d);
  shape.programmatic_dependent_launch = true;
  return shape;
}

std::string fp4_gemm_kernel_name(const Fp4GemmConfig& c) {
  const RecipeTraits& b = recipe_traits(c.b);
  return std::string("gemm_few_rows_") + (b.element == Format::e2m1 ? b.name : "mxfp8") +
         (c.has_token_scales() ? "_e4m3_" : "_") + std::to_string(c.tokens) +
         (c.refills ? "_refilled" : "");
}

std::string text_of_fp4_division(const Fp4GemmParams& p) {
  std::string text = "K divided among " + std::to_string(p.warps_k) + " warps";
  if (p.blocks_k > 1) text += " of each of " + std::to_string(p.blocks_k) + " blocks of a cluster";
  return text;
}

std::optional<Fp4GemmPlan> plan_fp4_gemm(const GemmArguments& x, const cuda::Chip& chip,
                                         std::optional<Fp4Division> division) {
  constexpr std::int64_t kMostBatch = 65535;  // of a grid
  if (!has_fp4_kernels(chip)) return std::nullopt;
  const int kernel = kFp4GemmKernels.find(x.a.recipe, x.b.recipe, x.d.rows, is_sm120(chip));
  if (kernel < 0 || x.batch_invariant || x.quantized || x.d.rows == 0 || x.d.batch == 0 ||
      x.d.batch > kMostBatch || !takes_fp4_operands(x.a, x.b, kernel)) {
    return std::nullopt;
  }
  const Fp4Sizes size = fp4_sizes_of(x, kernel);
  if (!division) division = best_fp4_division(size, chip);
  if (!division) return std::nullopt;
  Fp4GemmPlan plan;
  plan.kernel = size.kernel;
  plan.architecture = chip.architecture;
  plan.params = fp4_params_of(x, size, *division);
  plan.shape = fp4_shape_of(size, *division, chip);
  plan.shape.grid.z = static_cast<std::uint32_t>(x.d.batch);
  return plan;
}

/// How often A's rows are brought, where that is not once.
static std::string text_of_refills(const Fp4GemmConfig& config, const Fp4GemmParams& p) {
  const std::uint32_t at_once = p.row_loads.divisor / (config.chunk_k() / config.load_elements());
  if (at_once >= p.block_chunks) return "";
  return ", A in " + std::to_string(ceil_div(p.block_chunks, at_once)) + " parts of K each turn";
}

std::string Fp4GemmPlan::str() const {
  const Fp4GemmParams& p = params;
  return fp4_gemm_kernel_name(kFp4GemmKernels[kernel]) + ": " + std::to_string(p.tiles) +
         " tiles of " + std::to_string(kFp4TileRows) + " rows of B, " +
         std::to_string(p.block_tiles) + " a block, " + text_of_fp4_division(p) + "; " +
         std::to_string(product(shape.grid)) + " x " + std::to_string(shape.block.x) +
         " threads, " + std::to_string(shape.dynamic_shared_bytes) + " bytes shared" +
         text_of_refills(kFp4GemmKernels[kernel], p) + "\n";
}

runtime::KernelSpec fp4_spec_for(bool sm120, runtime::KernelSpec spec) {
  spec.fewer_threads = true;
  spec.threads = static_cast<int>(32 * (sm120 ? kFp4MostWarpsOfSm120 : kFp4MostWarps));
  spec.architecture = sm120 ? kSm120Architecture : kWgmmaArchitectures[0];
  return spec;
}

std::vector<runtime::KernelSpec> fp4_gemm_kernel_specs() {
  std::vector<runtime::KernelSpec> specs;
  for (int i = 0; i < kFp4GemmKernels.kCount; ++i) {
    specs.push_back(
        fp4_spec_for(kFp4GemmKernels.is_of_sm120(i),
                     runtime::with_parameters<Fp4GemmParams>(
                         {.name = fp4_gemm_kernel_name(kFp4GemmKernels[i]),
                          .header = "ops/gemm/kernels/fp4_few_rows.cuh",
                          .call = "blockscale::fp4_few_rows_kernel<blockscale::kFp4GemmKernels[" +
                                  std::to_string(i) + "]>"},
                         "blockscale::Fp4GemmParams")));
  }
  return specs;
}

}  // namespace blockscale::gemm_detail
