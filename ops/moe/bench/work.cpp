// Layers of which only shapes are known, and what a layer takes at least.
#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "blockscale/bench.h"
#include "ops/moe/validate.h"

namespace blockscale {
namespace {

/// Addresses of parts that imagined_gemm does not use.
const void* nowhere(std::uintptr_t part) {
  return reinterpret_cast<const void*>(part << 40);
}

/// Rows that each expert has.
std::vector<std::int64_t> rows_of_experts(const MoeArguments& x) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(moe_detail::experts_of(x)));
  for (std::int64_t i = 0; i < x.x.rows * x.top_k; ++i) {
    std::int64_t id = x.ids[i];
    if (x.expert_map != nullptr) id = id >= 0 && id < x.mapped_ids ? x.expert_map[id] : -1;
    const std::int64_t expert = id - x.first_expert;
    if (expert >= 0 && expert < std::ssize(rows)) ++rows[static_cast<std::size_t>(expert)];
  }
  return rows;
}

std::int64_t tensor_bytes(const ScaledTensorView& x, std::int64_t batch) {
  return value_bytes(x.recipe, x.rows, x.k, batch) +
         (is_plain(x.recipe) ? 0 : scale_bytes(x.recipe, x.layout, x.rows, x.k, batch));
}

}  // namespace

MoeArguments imagined_moe(std::int64_t tokens, std::int64_t hidden, std::int64_t inner,
                          std::int64_t experts, int top_k, Recipe weights, Format y,
                          const QuantizeInput& transform, std::optional<Recipe> activations) {
  const std::int64_t up_rows = std::holds_alternative<Swiglu>(transform) ? 2 * inner : inner;
  const auto matrices = [&](std::int64_t rows, std::int64_t k) {
    return imagined_gemm(tokens, rows, k, Recipe::bf16, weights, y, experts).b;
  };
  MoeArguments x;
  const GemmArguments down = imagined_gemm(tokens, hidden, hidden, Recipe::bf16, weights, y);
  x.x = down.a;
  x.y = down.d;
  x.w13 = matrices(up_rows, hidden);
  x.w2 = matrices(hidden, inner);
  x.w2.values = nowhere(12);
  if (x.w2.scales != nullptr) x.w2.scales = nowhere(13);
  if (x.w2.tensor_scale != nullptr) x.w2.tensor_scale = static_cast<const float*>(nowhere(14));
  x.ids = static_cast<const std::int32_t*>(nowhere(15));
  x.weights = static_cast<const float*>(nowhere(16));
  x.top_k = top_k;
  x.transform = transform;
  x.activations = activations;
  return x;
}

GemmWork moe_work(const MoeArguments& arguments) {
  const MoeArguments x = moe_detail::validated(arguments, {});
  std::int64_t rows = 0, hit = 0;
  for (const std::int64_t of_expert : rows_of_experts(x)) {
    rows += of_expert;
    hit += of_expert > 0 ? 1 : 0;
  }
  const std::int64_t of_up = moe_detail::has_gates_apart(x) ? 2 : 1;
  const std::int64_t up_rows = of_up * x.w13.rows;
  GemmWork work;
  work.bytes = tensor_bytes(x.x, 1) + tensor_bytes(x.w13, of_up * hit) + tensor_bytes(x.w2, hit) +
               x.y.rows * x.y.columns * (format_traits(x.y.dtype).bits / 8);
  work.operations = 2.0 * static_cast<double>(rows) * static_cast<double>(x.x.k) *
                    static_cast<double>(up_rows + x.w2.k);
  if (x.shared) {
    const ScaledTensorView &w13 = x.shared->w13, &w2 = x.shared->w2;
    work.bytes += tensor_bytes(w13, w13.batch) + tensor_bytes(w2, w2.batch);
    work.operations += 2.0 * static_cast<double>(x.x.rows * w2.batch) * static_cast<double>(x.x.k) *
                       static_cast<double>(w13.rows + w2.k);
  }
  const Recipe between = x.activations.value_or(Recipe::bf16);
  const Recipe of_x = is_plain(x.x.recipe) && !is_plain(between) ? between : x.x.recipe;
  const std::int64_t of_each = hit == 0 ? 1 : ceil_div(rows, hit);
  const GemmArguments up = imagined_gemm(of_each, up_rows, x.x.k, of_x, x.w13.recipe, Format::f32);
  work.multiplier = gemm_work(up).multiplier;
  return work;
}

}  // namespace blockscale
