#include "moe_call.h"

#include <cstddef>
#include <cstdint>
#include <variant>

#include "beside.h"

namespace blockscale::python {
namespace {

/// Memory of a result that Python made; null for None.
template <class Number>
Number* result_in(const char* argument, nb::handle object, const Place& place, Array& array) {
  if (object.is_none()) return nullptr;
  array = output_array(argument, object, place);
  return static_cast<Number*>(array.data());
}

/// ids [T, top_k].
const std::int32_t* ids_argument(nb::handle object, const Place& place, Array& array) {
  array = input_array("ids", object, place);
  return numbers_in<std::int32_t>("ids", array, 2);
}

/// Of moe_sort or of a layer: as many numbers as there are.
template <class Arguments>
void set_expert_map(Arguments& to, nb::handle object, const Place& place, Array& array) {
  if (object.is_none()) return;
  array = input_array("expert_map", object, place);
  to.expert_map = numbers_in<std::int32_t>("expert_map", array);
  to.mapped_ids = array.size();
}

constexpr const char* kOneForEachExpert = "one for each expert of w2";

/// Columns of the first product's result.
std::int64_t columns_before(const MoeArguments& x) {
  return std::holds_alternative<Swiglu>(x.transform) ? 2 * x.w2.k : x.w2.k;
}

/// What comes after each product.
void set_factors_and_biases(MoeCall& call, const MoeCallOptions& options, const Place& place) {
  MoeArguments& to = call.arguments;
  const std::int64_t experts = to.w2.batch;
  to.w13_alphas = numbers_argument<float>("expert_alphas[0]", options.w13_alphas, experts,
                                          kOneForEachExpert, place, call.w13_alphas);
  to.w2_alphas = numbers_argument<float>("expert_alphas[1]", options.w2_alphas, experts,
                                         kOneForEachExpert, place, call.w2_alphas);
  if (!options.w13_bias.is_none()) {
    const BiasShape shape = {"(E, N)", experts, columns_before(to), "the rows of w13 of an expert"};
    to.w13_bias = bias_argument("biases[0]", options.w13_bias, shape, place, call.w13_bias);
    to.bias_dtype = nb::cast<Format>(options.w13_bias[1]);
  }
  if (!options.w2_bias.is_none()) {
    const BiasShape shape = {"(E, H)", experts, to.w2.rows, "the rows of w2"};
    to.w2_bias = bias_argument("biases[1]", options.w2_bias, shape, place, call.w2_bias);
    to.bias_dtype = nb::cast<Format>(options.w2_bias[1]);
  }
}

}  // namespace

RouteCall route_call(nb::handle logits, const nb::tuple& results, const nb::tuple& options,
                     const Place& place) {
  RouteCall call;
  RouteArguments& to = call.arguments;
  call.logits = input_array("logits", logits[0], place);
  to.logits = matrix_view("logits", call.logits, nb::cast<Format>(logits[1]));
  to.ids = result_in<std::int32_t>("ids", results[0], place, call.ids);
  to.weights = result_in<float>("weights", results[1], place, call.weights);
  to.top_k = nb::cast<int>(options[0]);
  to.correction_bias = numbers_argument<float>("correction_bias", options[1], to.logits.columns,
                                               "one for each expert", place, call.correction_bias);
  to.score = static_cast<RouterScore>(nb::cast<int>(options[2]));
  to.groups = nb::cast<int>(options[3]);
  to.top_groups = nb::cast<int>(options[4]);
  to.best_of_group = nb::cast<int>(options[5]);
  to.renormalize = nb::cast<bool>(options[6]);
  to.scale = nb::cast<float>(options[7]);
  call.threads = nb::cast<int>(options[8]);
  to.shared_experts = nb::cast<int>(options[9]);
  return call;
}

MoeSortCall moe_sort_call(nb::handle ids, const nb::tuple& results, const nb::tuple& options,
                          const Place& place) {
  MoeSortCall call;
  MoeSortArguments& to = call.arguments;
  to.ids = ids_argument(ids, place, call.ids);
  to.tokens = call.ids.shape(0);
  to.top_k = static_cast<int>(call.ids.shape(1));
  to.experts = nb::cast<std::int64_t>(options[0]);
  to.first_expert = nb::cast<std::int32_t>(options[1]);
  to.tile = nb::cast<int>(options[2]);
  call.threads = nb::cast<int>(options[3]);
  set_expert_map(to, options[4], place, call.expert_map);
  std::size_t next = 0;
  const auto result = [&](const char* name) {
    const std::size_t i = next++;
    return result_in<std::int32_t>(name, results[i], place, call.results[i]);
  };
  to.offsets = result("offsets");
  to.row_of_entry = result("row_of_entry");
  to.entry_of_row = result("entry_of_row");
  to.token_of_row = result("token_of_row");
  to.expert_of_tile = result("expert_of_tile");
  to.row_limit_of_tile = result("row_limit_of_tile");
  to.padded_rows = result("padded_rows");
  to.tiles = result("tiles");
  return call;
}

MoeCallOptions::MoeCallOptions(const nb::tuple& o)
    : transform(o[0]),
      activations(o[1]),
      w13_alphas(o[2]),
      w2_alphas(o[3]),
      w13_bias(o[4]),
      w2_bias(o[5]),
      first_expert(o[6]),
      residual(o[7]),
      workspace_limit(o[8]),
      threads(o[9]),
      expert_map(o[10]),
      all_experts(o[11]),
      batch_invariant(o[12]),
      weights_on_input(o[13]),
      shared(o[14]),
      deterministic(o[15]) {}

bool MoeCallOptions::are_usual() const {
  constexpr std::int64_t kSizes = std::int64_t{1} << 57;
  const auto is_flag = [](nb::handle object) { return PyBool_Check(object.ptr()) != 0; };
  return exact_count(first_expert) && exact_count(threads) &&
         exact_count(workspace_limit, kSizes) && exact_count(all_experts, kSizes) &&
         is_flag(batch_invariant) && is_flag(weights_on_input) && is_flag(deterministic) &&
         shared.is_none();
}

MoeCall moe_call(const nb::tuple& operands, const nb::tuple& routes, nb::handle out,
                 const MoeCallOptions& options, const Place& place) {
  MoeCall call{.x = operand_argument("x", operands[0], place),
               .w13 = operand_argument("w13", operands[1], place),
               .w2 = operand_argument("w2", operands[2], place)};
  MoeArguments& to = call.arguments;
  to.x = call.x.view;
  to.w13 = call.w13.view;
  to.w2 = call.w2.view;
  if (!options.shared.is_none()) {
    call.shared_w13 = operand_argument("shared[0]", options.shared[0], place);
    call.shared_w2 = operand_argument("shared[1]", options.shared[1], place);
    to.shared = {call.shared_w13.view, call.shared_w2.view};
  }
  to.ids = ids_argument(routes[0], place, call.ids);
  to.top_k = static_cast<int>(call.ids.shape(1));
  if (!routes[1].is_none()) {
    call.weights = input_array("weights", routes[1], place);
    to.weights = numbers_in<float>("weights", call.weights, 2);
  }
  to.first_expert = nb::cast<std::int32_t>(options.first_expert);
  set_expert_map(to, options.expert_map, place, call.expert_map);
  to.all_experts = nb::cast<std::int64_t>(options.all_experts);
  to.weights_on_input = nb::cast<bool>(options.weights_on_input);
  to.batch_invariant = nb::cast<bool>(options.batch_invariant);
  to.deterministic = nb::cast<bool>(options.deterministic);
  call.input = input_argument(options.transform, place);
  to.transform = call.input.input;
  if (!options.activations.is_none()) to.activations = nb::cast<Recipe>(options.activations);
  set_factors_and_biases(call, options, place);
  if (!options.residual.is_none()) {
    call.residual = input_array("residual", options.residual[0], place);
    to.residual = matrix_view("residual", call.residual, nb::cast<Format>(options.residual[1]));
  }
  call.out = output_array("out", out[0], place);
  to.y = matrix_view("out", call.out, nb::cast<Format>(out[1]));
  call.options.threads = nb::cast<int>(options.threads);
  call.options.workspace_limit = nb::cast<std::int64_t>(options.workspace_limit);
  return call;
}

bool is_of_layer(const MoeCall& call) {
  const MoeArguments& x = call.arguments;
  const bool has_weights_shape =
      x.weights == nullptr ||
      (call.weights.shape(0) == call.ids.shape(0) && call.weights.shape(1) == call.ids.shape(1));
  return call.x.ndim() == 2 && call.w13.ndim() == 3 && call.w2.ndim() == 3 &&
         call.ids.shape(0) == x.x.rows && has_weights_shape && call.out.ndim() == 2 &&
         x.y.rows == x.x.rows && x.y.columns == x.w2.rows;
}

}  // namespace blockscale::python
