#include "ops/moe/cuda/plan.h"

#include <algorithm>
#include <variant>

#include "ops/common/checks.h"
#include "ops/gemm/cuda/problem.h"
#include "ops/gemm/validate.h"
#include "ops/grouped_gemm/validate.h"
#include "ops/moe/cuda/shapes.h"
#include "ops/moe/cuda/specs.h"
#include "ops/moe/validate.h"
#include "ops/moe/validate_routing.h"
#include "ops/quantize/validate.h"

namespace blockscale::moe_detail {
namespace {

using gemm_detail::byte_at;
using gemm_detail::matrix_of;

constexpr int kRowBlocks = 16;  // of a multiprocessor

MoePartPlan::JoinScales join_scales_step(const JoinedScales& x, const cuda::Chip& chip) {
  MoePartPlan::JoinScales step;
  gemm_detail::check_size("w13.rows", x.matrices * x.rows);
  JoinScalesParams& p = step.params;
  p.from = x.from;
  p.to = x.to;
  p.rows = static_cast<std::uint32_t>(x.matrices * x.rows);
  p.rows_of_matrix = Divisor(static_cast<std::uint32_t>(x.rows));
  p.columns = static_cast<std::uint32_t>(x.columns);
  p.block_rows = static_cast<std::uint32_t>(x.block_rows);
  step.shape = shape_of(blocks_for(p.rows, kRowBlocks, chip), kJoinScalesThreads);
  return step;
}

/// Whether rows are whole vectors of 16 bytes.
bool takes_vectors(const EpilogueMatrix& x) {
  const std::int64_t size = x.dtype == Format::f32 ? 4 : 2;
  return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && x.row_stride * size % 16 == 0;
}

/// Runs of a row of a matrix that has fewer than 2^31 of them.
std::int64_t runs_of_row(const char* argument, const char* columns, const MatrixView& x) {
  const std::int64_t of_row = ceil_div(x.columns, std::int64_t{kRowRun});
  gemm_detail::check_size(columns, x.columns);
  if (x.rows * of_row >= gemm_detail::kMostElements) {
    throw Error(ErrorCode::unsupported, argument,
                "has 2^31 runs of " + std::to_string(kRowRun) + " columns or more");
  }
  return of_row;
}

MoePartPlan::Weigh weigh_step(const WeighArguments& x, const cuda::Chip& chip) {
  MoePartPlan::Weigh step;
  const std::int64_t of_row = runs_of_row("x", "x.k", x.rows);
  WeighParams& p = step.params;
  p.entry_of_row = x.entry_of_row;
  p.weights = x.weights;
  p.top_k = Divisor(static_cast<std::uint32_t>(x.top_k));
  p.columns = static_cast<std::uint32_t>(x.rows.columns);
  p.runs = static_cast<std::uint32_t>(x.rows.rows * of_row);
  p.runs_of_row = Divisor(static_cast<std::uint32_t>(of_row));
  p.x = matrix_of(x.x);
  p.rows = matrix_of(x.rows);
  p.vectors = x.rows.columns % kRowRunElements == 0 && takes_vectors(p.x) && takes_vectors(p.rows);
  step.shape = shape_of(blocks_for(p.runs, kRowBlocks, chip), kRowRunThreads);
  return step;
}

MoePartPlan::Finalize finalize_step(const FinalizeArguments& x, const cuda::Chip& chip) {
  MoePartPlan::Finalize step;
  const std::int64_t of_token = runs_of_row("y", "y.columns", x.y);
  FinalizeParams& p = step.params;
  p.rows = static_cast<const std::uint16_t*>(x.rows.values);
  p.row_stride = x.rows.value_row_stride / 2;
  p.row_of_entry = x.row_of_entry;
  if (x.entries.ids != nullptr) {
    p.row_of_entry = x.entries.ids;
    p.experts = static_cast<std::uint32_t>(x.experts);
    p.first_expert = static_cast<std::uint32_t>(x.entries.first_id);
  }
  p.weights = x.weights;
  p.top_k = static_cast<std::uint32_t>(x.top_k);
  p.columns = static_cast<std::uint32_t>(x.y.columns);
  p.runs = static_cast<std::uint32_t>(x.y.rows * of_token);
  p.runs_of_token = Divisor(static_cast<std::uint32_t>(of_token));
  if (x.shared.data != nullptr) {
    p.shared = matrix_of(x.shared);
    p.shared_experts = static_cast<std::uint32_t>(x.shared.batch);
  }
  p.residual = matrix_of(x.residual);
  p.y = matrix_of(x.y);
  p.vectors = x.y.columns % kRowRunElements == 0 && takes_vectors(p.y) &&
              (p.residual.data == nullptr || takes_vectors(p.residual));
  step.shape = shape_of(blocks_for(p.runs, kRowBlocks, chip), kRowRunThreads);
  return step;
}

/// Launches of a part, and the bytes of workspace that they need beside part_bytes.
struct Launches {
  MoePartPlan plan;
  std::int64_t bytes = 0;
};

/// Of a part in a workspace. The steps run one after the other: they share what lies behind the
/// part's own memory.
Launches launches_of(const MoeArguments& x, std::int64_t first, std::int64_t tokens, Gather gather,
                     const cuda::Chip& chip, void* workspace) {
  const LayerPart part = part_of(x, first, tokens, workspace, gather);
  void* const beside = byte_at(workspace, part_bytes(x, tokens, gather));
  Launches launches;
  MoePartPlan& plan = launches.plan;
  const auto needs = [&](std::int64_t bytes) { launches.bytes = std::max(launches.bytes, bytes); };
  plan.tokens = tokens;
  if (part.scales) plan.join_scales = join_scales_step(*part.scales, chip);
  if (part.sort) {
    plan.sort = plan_sort(validated(*part.sort), chip, beside, part.row_weights);
    needs(plan.sort->workspace_bytes);
  }
  if (part.weigh) plan.weigh = weigh_step(*part.weigh, chip);
  const auto plan_tokens = [&](const QuantizeRows& of) {
    auto of_tokens = of_part(PartCall::quantize, [&] {
      const QuantizeOptions options;
      const auto arguments = quantize_detail::validated_gather(of.x, of.row_index, of.out, options);
      return quantize_detail::plan_quantize(arguments, options, chip, beside);
    });
    needs(of_tokens.workspace_bytes);
    return of_tokens;
  };
  if (part.quantize) plan.quantize = plan_tokens(*part.quantize);
  const auto plan_dense = [&](PartCall call, const GemmArguments& product) {
    auto of_product = of_part(call, [&] {
      return gemm_detail::plan_product(gemm_detail::validated(product, {}), chip, beside);
    });
    needs(of_product.workspace_bytes);
    return of_product;
  };
  if (part.shared) {
    MoePartPlan::Shared& shared = plan.shared.emplace();
    if (part.shared->quantize) shared.quantize = plan_tokens(*part.shared->quantize);
    shared.up = plan_dense(PartCall::first_of_shared, part.shared->up);
    shared.down = plan_dense(PartCall::second_of_shared, part.shared->down);
  }
  const auto plan_product = [&](PartCall call, const GroupedGemmArguments& product) {
    const grouped_gemm_detail::GroupedPlan of_product = of_part(call, [&] {
      return grouped_gemm_detail::plan_grouped(grouped_gemm_detail::validated_of_moe(product), chip,
                                               beside);
    });
    needs(of_product.workspace_bytes);
    return of_product;
  };
  plan.up = plan_product(PartCall::first_product, part.up);
  plan.down = plan_product(PartCall::second_product, part.down);
  plan.finalize = finalize_step(part.finalize, chip);
  plan.adds = part.down.adds;
  return launches;
}

}  // namespace

Gather gather_of(const MoeArguments& x, const cuda::Chip& chip) {
  if (may_stay_unsorted(x) && x.x.rows > 0) {
    const LayerPart part = part_of(x, 0, x.x.rows, kNoMemory, Gather::entries);
    const auto are_taken = [&](PartCall call, const GroupedGemmArguments& product) {
      return of_part(call, [&] {
        using namespace grouped_gemm_detail;
        return takes_entries(validated_of_moe(product), chip);
      });
    };
    if (are_taken(PartCall::first_product, part.up) &&
        are_taken(PartCall::second_product, part.down)) {
      return Gather::entries;
    }
  }
  const RecipeTraits& t = recipe_traits(activations_of(x));
  const bool has_quantizer = t.family == Family::fp8 && t.block_rows == 1 && t.block_k == 128;
  if (!has_quantizer || x.x.rows == 0) return Gather::product;
  const LayerPart part = part_of(x, 0, x.x.rows, kNoMemory, Gather::product);
  const bool gathers = of_part(PartCall::first_product, [&] {
    return grouped_gemm_detail::gathers_rows(grouped_gemm_detail::validated_of_moe(part.up), chip);
  });
  return gathers ? Gather::product : Gather::quantize;
}

MoeParts parts_of(const MoeArguments& x, const MoeOptions& options, const cuda::Chip& chip) {
  MoeParts parts;
  if (x.y.rows == 0 || x.y.columns == 0) return parts;
  const Gather gather = gather_of(x, chip);
  const auto bytes_of = [&](std::int64_t tokens) {
    const std::int64_t bytes =
        part_bytes(x, tokens, gather) + launches_of(x, 0, tokens, gather, chip, kNoMemory).bytes;
    parts = {tokens, ceil_div(bytes, std::int64_t{16}) * 16, gather};
    return bytes;
  };
  const std::int64_t tokens = tokens_of_part(x.x.rows, options.workspace_limit, bytes_of);
  if (parts.tokens != tokens) (void)bytes_of(tokens);
  return parts;
}

MoePlan plan_moe(const MoeArguments& x, const MoeParts& parts, const cuda::Chip& chip,
                 void* workspace) {
  MoePlan plan;
  plan.architecture = chip.architecture;
  plan.workspace_bytes = parts.workspace_bytes;
  if (parts.tokens == 0) return plan;
  for (std::int64_t first = 0; first < x.x.rows; first += parts.tokens) {
    const std::int64_t tokens = std::min(parts.tokens, x.x.rows - first);
    plan.parts.push_back(launches_of(x, first, tokens, parts.gather, chip, workspace).plan);
    if (first != 0) plan.parts.back().join_scales.reset();
  }
  return plan;
}

bool MoePartPlan::is_fp8() const {
  return up.is_fp8() && down.is_fp8() &&
         (!shared || (shared->up.is_fp8() && shared->down.is_fp8()));
}

std::string MoePartPlan::str() const {
  const auto blocks = [](const LaunchShape& shape) {
    return std::to_string(shape.grid.x) + " blocks\n";
  };
  const auto runs = [&](std::size_t kernel, const auto& step) {
    return kernel_name(kernel) + ": " + std::to_string(step.params.runs) + " runs of " +
           std::to_string(kRowRun) + " columns, " + blocks(step.shape);
  };
  std::string text;
  if (join_scales) {
    text += kernel_name(kJoinScalesKernel) + ": " + std::to_string(join_scales->params.rows) +
            " rows of scales, each for " + std::to_string(join_scales->params.block_rows) +
            " rows of gates or ups, " + blocks(join_scales->shape);
  }
  text += sort ? sort->str() : "nothing is sorted: each entry has the row of its number\n";
  if (weigh) text += runs(kWeighKernel, *weigh);
  if (quantize) text += quantize->str();
  if (shared) {
    if (shared->quantize) text += shared->quantize->str();
    text += shared->up.str() + shared->down.str();
  }
  const std::string of_finalize = runs(kFinalizeKernel, finalize);
  if (adds) text += of_finalize;
  text += up.str() + down.str();
  return adds ? text + "rows of the last product are added to y in any order\n"
              : text + of_finalize;
}

std::string MoePlan::str() const {
  if (parts.empty()) return "nothing to launch\n";
  std::string text;
  if (parts.size() > 1) {
    text = std::to_string(parts.size()) + " parts of " + std::to_string(parts[0].tokens) +
           " tokens, the last of " + std::to_string(parts.back().tokens) + "; each:\n";
  }
  return text + parts[0].str() + "workspace: " + std::to_string(workspace_bytes) + " bytes\n";
}

}  // namespace blockscale::moe_detail
