#include "ops/moe/layer.h"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "blockscale/error.h"
#include "ops/gemm/cuda/problem.h"
#include "ops/gemm/validate.h"
#include "ops/grouped_gemm/validate.h"
#include "ops/moe/validate.h"
#include "ops/quantize/validate.h"

namespace blockscale::moe_detail {
namespace {

using gemm_detail::byte_at;

/// Memory of a workspace, one array behind the other; where it is null bytes are counted only.
class Workspace {
 public:
  explicit Workspace(void* base) : base_(base) {}

  void* take(std::int64_t bytes) {
    constexpr std::int64_t kAlignment = 64;
    void* const at = byte_at(base_, taken_);
    taken_ += ceil_div(bytes, kAlignment) * kAlignment;
    return at;
  }
  std::int32_t* take_integers(std::int64_t count) {
    return static_cast<std::int32_t*>(take(count * 4));
  }
  /// A tensor with scales in row_major, whose rows of both begin at multiples of 16 bytes: kernels
  /// copy no others by tensor copies.
  MutableScaledTensorView take_tensor(Recipe recipe, std::int64_t rows, std::int64_t k,
                                      std::int64_t batch = 1) {
    constexpr std::int64_t kRowAlignment = 16;
    const auto aligned = [](std::int64_t bytes) {
      return ceil_div(bytes, kRowAlignment) * kRowAlignment;
    };
    MutableScaledTensorView x;
    x.recipe = recipe;
    x.rows = rows;
    x.k = k;
    x.batch = batch;
    x.value_row_stride = aligned(row_bytes(recipe, k));
    x.value_batch_stride = rows * x.value_row_stride;
    x.values = take(batch * x.value_batch_stride);
    if (is_plain(recipe)) return x;
    const std::int64_t size = format_traits(recipe_traits(recipe).scale).bits / 8;
    const std::int64_t of_row = aligned(scale_grid(recipe, rows, k).columns * size);
    x.scale_leading_stride = of_row / size;
    x.scale_batch_stride = rows * x.scale_leading_stride;
    x.scales = take(batch * rows * of_row);
    return x;
  }
  std::int64_t taken() const { return taken_; }
  /// What lies from here on belongs to `other` too.
  void share(const Workspace& other) { taken_ = std::max(taken_, other.taken_); }

 private:
  void* base_;
  std::int64_t taken_ = 0;
};

/// Rows [first, first + rows) of x.
ScaledTensorView rows_of(ScaledTensorView x, std::int64_t first, std::int64_t rows) {
  const RecipeTraits& t = recipe_traits(x.recipe);
  x.values = byte_at(x.values, first * x.value_row_stride);
  if (t.block_rows != 0 && x.scales != nullptr) {
    const std::int64_t size = format_traits(t.scale).bits / 8;
    x.scales = byte_at(
        x.scales, scale_offset(x.layout, first / t.block_rows, 0, x.scale_leading_stride) * size);
  }
  x.rows = rows;
  return x;
}

/// A plain tensor.
template <bool Mutable>
BasicMatrixView<Mutable> as_matrix(const BasicScaledTensorView<Mutable>& x) {
  const Format dtype = recipe_traits(x.recipe).element;
  const std::int64_t size = format_traits(dtype).bits / 8;
  return {x.values,
          dtype,
          x.rows,
          x.k,
          x.value_row_stride / size,
          x.batch,
          x.value_batch_stride / size};
}

/// What the first product's result becomes, for the second one.
template <class Product>
void set_inner(Product& up, const MoeArguments& x, const MutableScaledTensorView& inner) {
  if (!is_quantized(x)) {
    up.d = as_matrix(inner);
    up.transform = x.transform;
    return;
  }
  up.quantized.emplace();
  up.quantized->out = inner;
  up.quantized->options.input = x.transform;
}

template <class View>
View rows_of_matrix(View x, std::int64_t first, std::int64_t rows) {
  x.data = byte_at(x.data, first * x.row_stride * (format_traits(x.dtype).bits / 8));
  x.rows = rows;
  return x;
}

/// The FP8 recipe of blocks of as many rows, at most those of `recipe`, as divide `rows`; with one
/// scale for all of k where `recipe` has one.
const RecipeTraits& recipe_that_divides(const RecipeTraits& recipe, std::int64_t rows) {
  const RecipeTraits* best = nullptr;
  for (const RecipeTraits& t : kRecipes) {
    const bool is_alike = t.family == recipe.family && t.element == recipe.element &&
                          t.scale == recipe.scale && t.block_k == recipe.block_k &&
                          t.power_of_two == recipe.power_of_two;
    const bool fits = t.block_rows != 0 && rows % t.block_rows == 0 &&
                      (recipe.block_rows == 0 || t.block_rows <= recipe.block_rows);
    if (is_alike && fits && (best == nullptr || t.block_rows > best->block_rows)) best = &t;
  }
  if (best != nullptr) return *best;
  throw Error(ErrorCode::unsupported, "w13.recipe",
              std::string("is ") + recipe.name +
                  " with gates and ups apart, whose scales do not meet; give them as one matrix "
                  "of [2I, H] an expert");
}

/// w13 as a batch of E.
struct UpWeights {
  ScaledTensorView b;
  std::optional<JoinedScales> scales;
};

/// Gates and ups lie one behind the other, as do their scales where blocks of rows meet.
UpWeights up_weights(const MoeArguments& x, Workspace& workspace) {
  UpWeights up = {x.w13, {}};
  if (!has_gates_apart(x)) return up;
  ScaledTensorView& b = up.b;
  if (b.rows > 0 && b.value_batch_stride != b.rows * b.value_row_stride) {
    throw Error(ErrorCode::unsupported, "w13.value_batch_stride",
                "is " + std::to_string(b.value_batch_stride) + ", must be " +
                    std::to_string(b.rows * b.value_row_stride) +
                    ": the ups of an expert lie behind its gates");
  }
  if (b.tensor_scale != nullptr && b.tensor_scale_batch_stride != 0) {
    throw Error(ErrorCode::unsupported, "w13.tensor_scale_batch_stride",
                "is " + std::to_string(b.tensor_scale_batch_stride) +
                    ", must be 0: gates and ups of an expert share a tensor scale");
  }
  const std::int64_t matrices = b.batch;
  b.batch /= 2;
  b.rows *= 2;
  b.value_batch_stride *= 2;
  if (is_plain(b.recipe)) return up;
  const RecipeTraits& t = recipe_traits(b.recipe);
  const std::int64_t unit =
      is_swizzled(b.layout) ? scale_layout_traits(b.layout).tile_rows : std::max(1, t.block_rows);
  const std::int64_t of_grid =
      ceil_div(x.w13.rows, unit) * b.scale_leading_stride * (is_swizzled(b.layout) ? 4 * unit : 1);
  const bool meets = t.block_rows != 0 && b.layout != ScaleLayout::mn_major &&
                     x.w13.rows % unit == 0 && b.scale_batch_stride == of_grid;
  if (meets) {
    b.scale_batch_stride *= 2;
    return up;
  }
  const RecipeTraits& divided = recipe_that_divides(t, x.w13.rows);
  JoinedScales& s = up.scales.emplace();
  s.from = gemm_detail::scales_of_operand(x.w13);
  s.matrices = matrices;
  s.block_rows = divided.block_rows;
  s.rows = x.w13.rows / divided.block_rows;
  s.columns = scale_grid(divided.recipe, x.w13.rows, x.w13.k).columns;
  const std::int64_t bytes = format_traits(t.scale).bits / 8;
  s.to = static_cast<std::uint8_t*>(workspace.take(matrices * s.rows * s.columns * bytes));
  b.recipe = divided.recipe;
  b.layout = ScaleLayout::row_major;
  b.scales = s.to;
  b.scale_leading_stride = s.columns;
  b.scale_batch_stride = 2 * s.rows * s.columns;
  return up;
}

/// Has `from` quantized in `workspace`: `rows` rows, those that an index names or, without one, its
/// own.
QuantizeRows quantize_rows(const MoeArguments& x, const ScaledTensorView& from,
                           const std::int32_t* index, std::int64_t rows, Workspace& workspace) {
  return {as_matrix(from), index, workspace.take_tensor(activations_of(x), rows, from.k)};
}

/// Products of `tokens`; `input` is what the others take of these, if that is them.
SharedProducts shared_products(const MoeArguments& x, const SharedExperts& shared,
                               const ScaledTensorView& tokens,
                               const std::optional<ScaledTensorView>& input, Workspace& workspace) {
  const ScaledTensorView& w2 = shared.w2;
  SharedProducts products;
  if (!input && quantizes_x(x)) {
    products.quantize = quantize_rows(x, tokens, nullptr, tokens.rows, workspace);
  }
  products.up.a = input ? *input : products.quantize ? products.quantize->out : tokens;
  products.up.b = shared.w13;
  products.up.batch_invariant = x.batch_invariant;
  const MutableScaledTensorView inner =
      workspace.take_tensor(activations_of(x), tokens.rows, w2.k, w2.batch);
  set_inner(products.up, x, inner);
  products.down.a = inner;
  products.down.b = w2;
  products.down.batch_invariant = x.batch_invariant;
  products.down.d = as_matrix(workspace.take_tensor(Recipe::bf16, tokens.rows, w2.rows, w2.batch));
  return products;
}

LayerPart make_part(const MoeArguments& x, std::int64_t first, std::int64_t tokens,
                    Workspace& workspace, Gather gather) {
  const std::int64_t experts = experts_of(x), entries = tokens * x.top_k;
  // Of all tokens: the plan of every part is the same, though the last may have few rows.
  const std::int64_t least_of_part =
      tokens < x.x.rows ? grouped_gemm_detail::kFewRowsOnAverage + 1 : 1;
  const std::int64_t expected_rows =
      std::max(least_of_part, ceil_div(x.x.rows * x.top_k, std::max(experts, x.all_experts)));
  LayerPart part;
  const UpWeights weights = up_weights(x, workspace);
  part.scales = weights.scales;

  const bool sorts = gather != Gather::entries, adds = adds_rows(x);
  const std::int32_t* const ids = x.ids + first * x.top_k;
  MoeSortArguments sort;
  if (sorts) {
    sort.ids = ids;
    sort.tokens = tokens;
    sort.top_k = x.top_k;
    sort.experts = experts;
    sort.first_expert = x.first_expert;
    sort.expert_map = x.expert_map;
    sort.mapped_ids = x.mapped_ids;
    sort.offsets = workspace.take_integers(experts + 1);
    if (!adds) sort.row_of_entry = workspace.take_integers(entries);
  }

  const float* const weights_of_part = x.weights == nullptr ? nullptr : x.weights + first * x.top_k;
  const ScaledTensorView tokens_of_part = rows_of(x.x, first, tokens);
  ScaledTensorView input = tokens_of_part;
  if (weighs_input(x)) {
    sort.entry_of_row = workspace.take_integers(entries);
    const MutableScaledTensorView rows = workspace.take_tensor(x.x.recipe, entries, x.x.k);
    part.weigh = {as_matrix(input), sort.entry_of_row, weights_of_part, x.top_k, as_matrix(rows)};
    input = rows;
  }
  if (sorts) {
    if (adds || !weighs_input(x)) sort.token_of_row = workspace.take_integers(entries);
    part.sort = sort;
  }
  const MutableScaledTensorView inner =
      workspace.take_tensor(activations_of(x), entries, inner_of(x));
  // Null where rows are those of x, or of entries.
  const std::int32_t* index = weighs_input(x) ? nullptr : sort.token_of_row;
  Workspace of_input = workspace;  // which nobody reads when `rows` are written
  MutableScaledTensorView rows;
  if (!adds) rows = workspace.take_tensor(Recipe::bf16, entries, x.w2.rows);
  if (quantizes_x(x)) {
    const bool gathers = gather == Gather::quantize && index != nullptr;
    part.quantize = gathers ? quantize_rows(x, input, index, entries, of_input)
                            : quantize_rows(x, input, nullptr, input.rows, of_input);
    if (gathers) index = nullptr;
    input = part.quantize->out;
    workspace.share(of_input);
  }
  if (x.shared) {
    const bool are_tokens = index != nullptr || !sorts;
    const auto same = are_tokens ? input : std::optional<ScaledTensorView>();
    part.shared = shared_products(x, *x.shared, tokens_of_part, same, workspace);
  }

  GroupedGemmArguments& up = part.up;
  up.a = input;
  up.b = weights.b;
  up.offsets = sort.offsets;
  up.index = index;
  up.rows = entries;
  up.expected_rows = expected_rows;
  up.alpha_factors = x.w13_alphas;
  up.bias = x.w13_bias;
  up.bias_dtype = x.bias_dtype;
  up.batch_invariant = x.batch_invariant;
  up.owns_rows = true;
  if (!sorts) up.entries = {ids, x.first_expert, x.top_k};
  set_inner(up, x, inner);

  GroupedGemmArguments& down = part.down;
  down.a = inner;
  down.b = x.w2;
  if (!adds) down.d = as_matrix(rows);
  down.offsets = sort.offsets;
  if (!sorts) down.entries = {ids, x.first_expert};
  down.expected_rows = expected_rows;
  down.alpha_factors = x.w2_alphas;
  down.bias = x.w2_bias;
  down.bias_dtype = x.bias_dtype;
  down.batch_invariant = x.batch_invariant;

  FinalizeArguments& finalize = part.finalize;
  if (part.shared) finalize.shared = part.shared->down.d;
  const float* const weights_of_rows = weighs_input(x) ? nullptr : weights_of_part;
  if (x.residual.data != nullptr) finalize.residual = rows_of_matrix(x.residual, first, tokens);
  finalize.y = rows_of_matrix(x.y, first, tokens);
  if (!adds) {
    finalize.rows = rows;
    finalize.row_of_entry = sort.row_of_entry;
    finalize.entries = down.entries;
    finalize.experts = experts;
    finalize.weights = weights_of_rows;
    finalize.top_k = x.top_k;
    return part;
  }
  finalize.top_k = 0;
  down.d = finalize.y;
  down.rows = entries;
  down.destinations = sort.token_of_row;
  down.adds = true;
  if (weights_of_rows != nullptr) {
    part.row_weights = {weights_of_rows, static_cast<float*>(workspace.take(entries * 4))};
    down.weights = part.row_weights.of_rows;
  }
  return part;
}

}  // namespace

void rethrow_as_layers(PartCall call, const Error& error) {
  struct Name {
    std::string_view of_call, of_layer;
  };
  constexpr Name kOfQuantize[] = {{"out", "activations"}};
  constexpr Name kOfFirst[] = {{"a", "x"},
                               {"b", "w13"},
                               {"d.columns", "w13.rows"},
                               {"d", "activations"},
                               {"quantized.out", "activations"},
                               {"quantized", "activations"}};
  constexpr Name kOfSecond[] = {{"a", "activations"}, {"b", "w2"}, {"d", "y"}};
  const bool is_shared = call == PartCall::first_of_shared || call == PartCall::second_of_shared;
  const bool is_first = call == PartCall::first_product || call == PartCall::first_of_shared;
  const std::span<const Name> names = call == PartCall::quantize
                                          ? std::span<const Name>(kOfQuantize)
                                      : is_first ? std::span<const Name>(kOfFirst)
                                                 : std::span<const Name>(kOfSecond);
  const std::string& argument = error.argument();
  const std::string_view message = std::string_view(error.what()).substr(argument.size() + 2);
  for (const Name& name : names) {
    const std::string_view of_call = name.of_call;
    const bool begins = argument.starts_with(of_call);
    if (!begins || (argument.size() > of_call.size() && argument[of_call.size()] != '.')) continue;
    const char* const prefix = is_shared && name.of_layer.starts_with("w") ? "shared." : "";
    throw Error(error.code(), prefix + std::string(name.of_layer) + argument.substr(of_call.size()),
                message);
  }
  throw error;
}

void check_part(const LayerPart& part) {
  const auto check_quantize = [](const std::optional<QuantizeRows>& of) {
    if (!of) return;
    of_part(PartCall::quantize,
            [&] { return quantize_detail::validated_gather(of->x, of->row_index, of->out, {}); });
  };
  check_quantize(part.quantize);
  if (part.shared) {
    const SharedProducts& shared = *part.shared;
    check_quantize(shared.quantize);
    of_part(PartCall::first_of_shared, [&] { return gemm_detail::validated(shared.up, {}); });
    of_part(PartCall::second_of_shared, [&] { return gemm_detail::validated(shared.down, {}); });
  }
  of_part(PartCall::first_product, [&] { return grouped_gemm_detail::validated(part.up); });
  of_part(PartCall::second_product, [&] { return grouped_gemm_detail::validated(part.down); });
}

bool may_stay_unsorted(const MoeArguments& x) {
  constexpr std::int64_t kLeastExperts = 4;  // of an entry, of several tokens
  const std::int64_t entries = x.x.rows * x.top_k;
  const std::int64_t experts = std::max(experts_of(x), x.all_experts);
  return entries <= kMostUnsorted && (x.x.rows == 1 || kLeastExperts * entries <= experts) &&
         x.expert_map == nullptr && !weighs_input(x) && !adds_rows(x);
}

bool adds_rows(const MoeArguments& x) {
  // Elsewhere it was measured to cost up to a sixth (docs/log/moe.md): additions hide behind
  // products that are long enough.
  constexpr std::int64_t kLeastRows = 64, kLeastInner = 512;
  const std::int64_t experts = std::max(experts_of(x), x.all_experts);
  return !x.deterministic && x.x.rows * x.top_k >= kLeastRows * experts &&
         inner_of(x) >= kLeastInner && (x.y.dtype == Format::f32 || gemm_detail::has_chunks(x.y));
}

std::int64_t part_bytes(const MoeArguments& x, std::int64_t tokens, Gather gather) {
  Workspace workspace(nullptr);
  (void)make_part(x, 0, tokens, workspace, gather);
  return workspace.taken();
}

LayerPart part_of(const MoeArguments& x, std::int64_t first, std::int64_t tokens, void* workspace,
                  Gather gather) {
  Workspace memory(workspace);
  return make_part(x, first, tokens, memory, gather);
}

std::int64_t tokens_of_part(std::int64_t tokens, std::int64_t limit,
                            const std::function<std::int64_t(std::int64_t)>& bytes_of) {
  std::int64_t part = tokens;
  for (std::int64_t parts = 1; part > kPartTokens;) {
    const std::int64_t bytes = bytes_of(part);
    if (bytes <= limit) break;
    const double least = double(bytes) / double(limit) * double(tokens) / double(part);
    parts = std::max(parts + 1, static_cast<std::int64_t>(std::min(least, double(tokens))));
    part = ceil_div(ceil_div(tokens, parts), kPartTokens) * kPartTokens;
  }
  return part;
}

}  // namespace blockscale::moe_detail
