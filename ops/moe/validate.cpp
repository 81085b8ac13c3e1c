#include "ops/moe/validate.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <variant>

#include "ops/common/checks.h"
#include "ops/common/regions.h"
#include "ops/gemm/validate.h"
#include "ops/moe/call_memory.h"
#include "ops/moe/routing.h"
#include "ops/moe/validate_routing.h"

namespace blockscale::moe_detail {
namespace {

using checks::check_equal;
using checks::check_numbers;
using checks::fail;
using checks::is_but;
using gemm_detail::Access;

[[noreturn]] void fail_unsupported(const std::string& argument, const std::string& message) {
  throw Error(ErrorCode::unsupported, argument, message);
}

void check_range(const char* argument, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return;
  fail(argument, is_but(value, "in " + std::to_string(least) + ".." + std::to_string(most)));
}

/// What activations may be, but for bf16.
constexpr Recipe kQuantizedActivations[] = {Recipe::fp8_1x128, Recipe::fp8_1x128_pow2,
                                            Recipe::fp8_1x128_ue8m0, Recipe::fp8_row,
                                            Recipe::mxfp8_e4m3};

Recipe checked_activations(const MoeArguments& x) {
  if (!x.activations) {
    const bool is_fp8 = recipe_traits(x.w13.recipe).family == Family::fp8 &&
                        recipe_traits(x.w2.recipe).family == Family::fp8;
    return is_fp8 ? Recipe::fp8_1x128 : Recipe::bf16;
  }
  const Recipe recipe = *x.activations;
  const auto* const end = std::end(kQuantizedActivations);
  if (recipe == Recipe::bf16 || std::find(kQuantizedActivations, end, recipe) != end) return recipe;
  const int value = static_cast<int>(recipe);
  const std::string name =
      value < kRecipeCount ? recipe_traits(recipe).name : std::to_string(value);
  std::string allowed = "bf16";
  for (const Recipe other : kQuantizedActivations) {
    allowed += std::string(", ") + recipe_traits(other).name;
  }
  fail("activations", "is " + name + ", must be one of " + allowed);
}

void check_pair(Recipe a, const char* of_a, Recipe b, const char* of_b) {
  if (gemm_supports(a, b)) return;
  fail_unsupported(std::string(of_b) + ".recipe",
                   std::string("is ") + recipe_traits(b).name + " with " + of_a + " in " +
                       recipe_traits(a).name + ": no such pair (docs/numerics.md lists the pairs)");
}

/// Whether activations hold `k` columns.
void check_blocks(const MoeArguments& x, const char* argument, std::int64_t k) {
  const RecipeTraits& t = recipe_traits(activations_of(x));
  if (t.ragged || k % t.block_k == 0) return;
  fail(argument,
       is_but(k, "a multiple of " + std::to_string(t.block_k) + " for activations in " + t.name));
}

void check_recipes(const MoeArguments& x) {
  if (weighs_input(x) && !is_plain(x.x.recipe)) {
    fail_unsupported("x.recipe", std::string("is ") + recipe_traits(x.x.recipe).name +
                                     ", must be f32, f16 or bf16 where weights are on the input");
  }
  const bool quantizes = quantizes_x(x);
  if (quantizes) check_blocks(x, "x.k", x.x.k);
  check_blocks(x, "w2.k", inner_of(x));
  check_pair(quantizes ? activations_of(x) : x.x.recipe, quantizes ? "activations" : "x",
             x.w13.recipe, "w13");
  check_pair(activations_of(x), "activations", x.w2.recipe, "w2");
  if (!x.shared) return;
  check_blocks(x, "shared.w2.k", x.shared->w2.k);
  check_pair(quantizes ? activations_of(x) : x.x.recipe, quantizes ? "activations" : "x",
             x.shared->w13.recipe, "shared.w13");
  check_pair(activations_of(x), "activations", x.shared->w2.recipe, "shared.w2");
}

/// Of w13, [I, H], or [2 I, H] with Swiglu, for the I of w2.
void check_up_rows(const char* argument, std::int64_t rows, const MoeArguments& x,
                   std::int64_t inner, const std::string& of_w2) {
  const bool is_gated = std::holds_alternative<Swiglu>(x.transform);
  check_equal(argument, rows, is_gated ? 2 * inner : inner,
              ((is_gated ? "twice the k of " : "the k of ") + of_w2).c_str());
}

void check_shared(const MoeArguments& x, const SharedExperts& shared) {
  const ScaledTensorView &w13 = shared.w13, &w2 = shared.w2;
  check_range("shared.w2.batch", w2.batch, 1, kMaxTopK);
  checks::check_size("shared.w2.k", "", w2.k, 1);
  check_equal("shared.w2.rows", w2.rows, x.x.k, "the k of x");
  check_equal("shared.w13.k", w13.k, x.x.k, "the k of x");
  check_equal("shared.w13.batch", w13.batch, w2.batch, "the experts of shared.w2");
  check_up_rows("shared.w13.rows", w13.rows, x, w2.k, "shared.w2");
}

void check_shapes(const MoeArguments& x) {
  const std::int64_t experts = experts_of(x), inner = inner_of(x);
  check_equal("x.batch", x.x.batch, 1, "as tokens are rows of one matrix");
  check_range("x.rows", x.x.rows, 0, kMaxTokens);
  check_range("w2.batch", experts, 1, kMaxExperts);
  checks::check_size("w2.k", "", inner, 1);
  check_equal("w2.rows", x.w2.rows, x.x.k, "the k of x");
  check_equal("w13.k", x.w13.k, x.x.k, "the k of x");
  check_range("top_k", x.top_k, 1, kMaxTopK);
  if (x.shared) check_shared(x, *x.shared);
  const auto* const swiglu = std::get_if<Swiglu>(&x.transform);
  if (swiglu == nullptr || x.w13.batch != 2 * experts) {
    check_equal("w13.batch", x.w13.batch, experts,
                swiglu == nullptr ? "the experts of w2"
                                  : "the experts of w2, or twice as many with gates and ups apart");
    check_up_rows("w13.rows", x.w13.rows, x, inner, "w2");
    return;
  }
  check_equal("w13.rows", x.w13.rows, inner, "the k of w2, as gates and ups are apart");
  check_equal("transform.group", swiglu->group, 0, "as gates and ups are apart");
}

void check_kind_of_transform(const MoeArguments& x) {
  if (std::holds_alternative<Modulate>(x.transform) ||
      std::holds_alternative<RmsNorm>(x.transform)) {
    fail_unsupported("transform", "must be Identity, Gelu, Silu or Swiglu");
  }
}

/// Of a first product of so many columns behind its transform.
void check_transform(const MoeArguments& x, std::int64_t inner) {
  GemmArguments product;
  product.b.rows = std::holds_alternative<Swiglu>(x.transform) ? 2 * inner : inner;
  product.d.columns = inner;
  product.transform = x.transform;
  (void)gemm_detail::transform_of_result(product);
}

void check_result(const MoeArguments& x) {
  check_equal("y.batch", x.y.batch, 1, "as tokens are rows of one matrix");
  check_equal("y.rows", x.y.rows, x.x.rows, "the rows of x");
  check_equal("y.columns", x.y.columns, x.w2.rows, "the rows of w2");
  if (x.residual.data == nullptr) return;
  if (x.residual.dtype != x.y.dtype) {
    fail("residual.dtype", std::string("is ") + format_traits(x.residual.dtype).name +
                               ", must be that of y, " + format_traits(x.y.dtype).name);
  }
  check_equal("residual.batch", x.residual.batch, 1, "as tokens are rows of one matrix");
  check_equal("residual.rows", x.residual.rows, x.y.rows, "the rows of y");
  check_equal("residual.columns", x.residual.columns, x.y.columns, "the columns of y");
}

/// Whether each element of the residual is read before it is written.
bool is_in_place(const MoeArguments& x) {
  return x.residual.data == x.y.data && (x.y.rows <= 1 || x.residual.row_stride == x.y.row_stride);
}

void check_aliasing(const MoeArguments& x) {
  const Region y = {"y.data", lines_of(MatrixView(x.y))};
  for_each_memory(x, [&](std::string_view argument, Access access, const void*, const auto& lines) {
    if (access == Access::writes || (argument == "residual.data" && is_in_place(x))) return;
    check_apart(y, {std::string(argument), lines()});
  });
}

}  // namespace

MoeArguments validated(const MoeArguments& arguments, const MoeOptions& options) {
  checks::check_threads("options.threads", options.threads);
  checks::check_size("options.workspace_limit", "", options.workspace_limit, 1);
  MoeArguments x = arguments;
  x.x = resolved(arguments.x, "x");
  x.w13 = resolved(arguments.w13, "w13");
  x.w2 = resolved(arguments.w2, "w2");
  if (x.shared) {
    x.shared->w13 = resolved(arguments.shared->w13, "shared.w13");
    x.shared->w2 = resolved(arguments.shared->w2, "shared.w2");
  }
  x.y = resolved(arguments.y, "y");
  if (x.residual.data != nullptr) x.residual = resolved(arguments.residual, "residual");
  check_kind_of_transform(x);
  check_shapes(x);
  check_transform(x, inner_of(x));
  if (x.shared) check_transform(x, x.shared->w2.k);
  x.activations = checked_activations(x);
  check_recipes(x);
  check_result(x);
  check_range("first_expert", x.first_expert, 0,
              std::numeric_limits<std::int32_t>::max() - experts_of(x));
  check_expert_map(x.expert_map, x.mapped_ids);
  checks::check_size("all_experts", "", x.all_experts);
  check_numbers("ids", x.ids, x.x.rows > 0);
  check_numbers("weights", x.weights);
  check_numbers("w13_alphas", x.w13_alphas);
  check_numbers("w2_alphas", x.w2_alphas);
  gemm_detail::check_bias(x.w13_bias, x.bias_dtype, "w13_bias");
  gemm_detail::check_bias(x.w2_bias, x.bias_dtype, "w2_bias");
  (void)checks::product("w13", "rows", x.w13.batch, x.w13.rows);
  (void)checks::product("w2", "rows", x.w2.batch, x.w2.rows);
  if (!x.deterministic && x.batch_invariant) {
    fail("deterministic", "is false, must be true with batch_invariant");
  }
  check_aliasing(x);
  return x;
}

}  // namespace blockscale::moe_detail
