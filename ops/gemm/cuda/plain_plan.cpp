#include "ops/gemm/cuda/plain_plan.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <stdexcept>

#include "ops/gemm/cuda/problem.h"
#include "ops/gemm/cuda/specs.h"
#include "ops/gemm/validate.h"
#include "runtime/kernels/architecture.h"

namespace blockscale::gemm_detail {
namespace {

/// `tile_rows` of it at a time, at most.
PlainOperand operand_of(const ScaledTensorView& x, const PlainGemmConfig& config,
                        std::int64_t tile_rows) {
  const RecipeTraits& t = recipe_traits(x.recipe);
  PlainOperand o;
  o.values = static_cast<const std::uint8_t*>(x.values);
  o.row_stride = x.rows > 1 ? x.value_row_stride : 0;
  o.batch_stride = x.batch > 1 ? x.value_batch_stride : 0;
  o.rows = static_cast<std::uint32_t>(x.rows);
  o.row_bytes = static_cast<std::uint32_t>(row_bytes(x.recipe, x.k));
  o.element = t.element;
  o.vectors = begins_at_16_bytes(x);
  o.pieces =
      Divisor(static_cast<std::uint32_t>(config.depth * format_traits(t.element).bits / 128));
  o.parts = plain_parts(t.element, config.form);
  o.stage_rows = static_cast<std::uint32_t>(tile_rows);
  o.scales = scales_of_operand(x);
  o.scale_format = t.scale;
  o.log2_block_k =
      t.block_k == 0 ? 31 : static_cast<std::uint32_t>(std::countr_zero(unsigned(t.block_k)));
  o.tensor_scale = tensor_scale_of(x);
  return o;
}

/// Whether pairs of D's columns lie at multiples of their size.
bool has_pairs(const MutableMatrixView& d) {
  const auto pair = static_cast<std::uintptr_t>(format_traits(d.dtype).bits / 4);
  return reinterpret_cast<std::uintptr_t>(d.data) % pair == 0 &&
         (d.rows <= 1 || d.row_stride % 2 == 0) && (d.batch <= 1 || d.batch_stride % 2 == 0);
}

std::int64_t tiles_of(const MutableMatrixView& d, const PlainGemmConfig& c) {
  return ceil_div(d.rows, c.rows) * ceil_div(d.columns, c.columns) * d.batch;
}

/// As many as fit, up to the config's.
std::uint32_t stages_of(const PlainGemmConfig& c, const PlainOperand (&operands)[2],
                        std::int64_t shared_bytes) {
  // Warps that divide K wait for memory, and so have others beside them: two blocks.
  constexpr std::int64_t kReserved = 1024;  // of a block
  const std::int64_t half = (shared_bytes - kReserved) / 2;
  const auto most = [&](std::int64_t bytes, std::uint32_t least) {
    auto stages = static_cast<std::uint32_t>(c.stages);
    while (stages > least && memory_of(c, operands, stages).total > bytes) --stages;
    return stages;
  };
  const std::uint32_t of_two = most(half, kPlainLeastStages + 1);
  const bool fit_twice = c.warps_k > 1 && memory_of(c, operands, of_two).total <= half;
  return fit_twice ? of_two : most(shared_bytes, kPlainLeastStages);
}

}  // namespace

void check_row_bytes(const char* argument, const ScaledTensorView& x) {
  if (x.k == 0 || row_bytes(x.recipe, x.k) < kMostElements) return;
  throw Error(ErrorCode::unsupported, argument,
              "is " + std::to_string(x.k) + " in " + recipe_traits(x.recipe).name +
                  "; products on CUDA devices take rows of less than 2^31 bytes");
}

PlainGemmStep plain_step(const GemmArguments& x, PlainTile tile, const cuda::Chip& chip,
                         std::optional<std::int64_t> rows) {
  PlainGemmStep step;
  step.kernel = kPlainGemmKernels.index(
      tile, plain_form(recipe_traits(x.a.recipe).element, recipe_traits(x.b.recipe).element));
  const PlainGemmConfig c = kPlainGemmKernels[step.kernel];
  PlainGemmParams& p = step.params;
  p.operands[0] = operand_of(x.a, c, std::min<std::int64_t>(rows.value_or(x.a.rows), c.rows));
  p.operands[1] = operand_of(x.b, c, std::min<std::int64_t>(x.b.rows, c.columns));
  p.epilogue = epilogue_of(x);
  p.k = static_cast<std::uint32_t>(x.a.k);
  p.k_tiles = static_cast<std::uint32_t>(ceil_div(x.a.k, c.depth));
  const auto has_16 = [](Recipe recipe) { return recipe_traits(recipe).block_k == 16; };
  p.log2_segment = has_16(x.a.recipe) || has_16(x.b.recipe) ? 4 : 5;
  p.store_pairs = has_pairs(x.d);
  p.stages = stages_of(c, p.operands, chip.shared_bytes);
  step.shape.block = {static_cast<std::uint32_t>(threads_of(c))};
  step.shape.dynamic_shared_bytes = memory_of(c, p.operands, p.stages).total;
  step.shape.programmatic_dependent_launch = true;
  return step;
}

void set_order(PlainGemmStep& step, const GemmArguments& x) {
  constexpr std::uint32_t kBandRows = 8;
  const PlainGemmConfig c = kPlainGemmKernels[step.kernel];
  if (tiles_of(x.d, c) >= kMostElements) {
    throw Error(ErrorCode::unsupported, "d",
                "has 2^31 tiles of " + std::to_string(c.rows) + " x " + std::to_string(c.columns) +
                    " or more");
  }
  step.params.order = DenseOrder(static_cast<std::uint32_t>(ceil_div(x.d.rows, c.rows)),
                                 static_cast<std::uint32_t>(ceil_div(x.d.columns, c.columns)),
                                 static_cast<std::uint32_t>(x.d.batch), kBandRows,
                                 static_cast<std::uint32_t>(x.d.rows));
  step.shape.grid = {step.params.order.tiles};
}

namespace {

/// The tile that suits: the largest of which each multiprocessor has one, and whose parts fit
/// shared memory. All but that for few rows add in one order, so that rows whose bits do not depend
/// on their number may have any of these.
PlainGemmStep suitable_step(const GemmArguments& x, const cuda::Chip& chip) {
  constexpr std::int64_t kFewRows = 16;
  const auto fits = [&](const PlainGemmStep& step) {
    return step.shape.dynamic_shared_bytes <= chip.shared_bytes;
  };
  if (x.d.rows <= kFewRows && !x.batch_invariant) {
    PlainGemmStep step = plain_step(x, PlainTile::few_rows, chip);
    if (fits(step)) return step;
  }
  for (const PlainTile tile : {PlainTile::large, PlainTile::medium}) {
    PlainGemmStep step = plain_step(x, tile, chip);
    const bool is_full = tiles_of(x.d, kPlainGemmKernels[step.kernel]) >= chip.multiprocessors;
    if (is_full && fits(step)) return step;
  }
  return plain_step(x, PlainTile::small, chip);
}

}  // namespace

std::string text_of(const PlainGemmStep& step) {
  const PlainGemmConfig c = kPlainGemmKernels[step.kernel];
  const PlainGemmParams& p = step.params;
  const auto loads = [](const PlainOperand& x) {
    return std::string(format_traits(x.element).name) +
           (x.parts > 1 ? " in " + std::to_string(x.parts) + " parts" : "") +
           (x.vectors ? ", by 16 bytes" : ", by bytes");
  };
  return plain_gemm_kernel_name(c) + ": " + std::to_string(p.order.tiles) + " tiles of " +
         std::to_string(c.rows) + " x " + std::to_string(c.columns) + ", " +
         std::to_string(p.k_tiles) + " tiles of " + std::to_string(c.depth) + " of K; A " +
         loads(p.operands[0]) + "; B " + loads(p.operands[1]) + "; scales for " +
         std::to_string(1u << p.log2_segment) + " of K; " + std::to_string(step.shape.block.x) +
         " threads, " + std::to_string(p.stages) + " stages, " +
         std::to_string(step.shape.dynamic_shared_bytes) + " bytes shared, stored by " +
         (p.store_pairs ? "pairs" : "elements") + "\n";
}

bool has_fp8_kernel(Recipe a, Recipe b, const cuda::Chip& chip) {
  const auto is_fp8 = [](Recipe recipe) {
    const RecipeTraits& t = recipe_traits(recipe);
    return t.family == Family::fp8 && t.element == Format::e4m3;
  };
  return is_fp8(a) && is_fp8(b) && has_kernels_of(kWgmmaArchitectures[0], chip);
}

PlainGemmPlan plan_plain_gemm(const GemmArguments& x, const cuda::Chip& chip,
                              std::optional<PlainTile> tile) {
  check_size("d.rows", x.d.rows);
  check_size("d.columns", x.d.columns);
  check_size("d.batch", x.d.batch);
  check_row_bytes("a.k", x.a);
  check_row_bytes("b.k", x.b);
  PlainGemmPlan plan;
  plan.architecture = chip.architecture;
  if (x.d.rows == 0 || x.d.columns == 0 || x.d.batch == 0) return plan;
  if (x.quantized) throw std::logic_error("plain kernels quantize no D");
  plan.product = tile ? plain_step(x, *tile, chip) : suitable_step(x, chip);
  set_order(*plan.product, x);
  return plan;
}

std::string PlainGemmPlan::str() const {
  if (!product) return "nothing to do: D has no element\n";
  return "plain: " + text_of(*product) + "workspace " + std::to_string(workspace_bytes) +
         " bytes\n";
}

std::string plain_gemm_kernel_name(const PlainGemmConfig& c) {
  return "gemm_plain_" + std::to_string(c.rows) + "x" + std::to_string(c.columns) + "_" +
         format_traits(c.form).name;
}

std::vector<runtime::KernelSpec> plain_gemm_kernel_specs() {
  std::vector<runtime::KernelSpec> specs;
  for (int i = 0; i < kPlainGemmKernels.kCount; ++i) {
    const PlainGemmConfig c = kPlainGemmKernels[i];
    specs.push_back(runtime::with_parameters<PlainGemmParams>(
        {.name = plain_gemm_kernel_name(c),
         .header = "ops/gemm/kernels/plain.cuh",
         .call = "blockscale::plain_gemm_kernel<blockscale::kPlainGemmKernels[" +
                 std::to_string(i) + "]>",
         .threads = threads_of(c)},
        "blockscale::PlainGemmParams"));
  }
  return runtime::for_architectures(specs, kAnyArchitectures);
}

}  // namespace blockscale::gemm_detail
