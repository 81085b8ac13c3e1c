// Mixture of experts: a door each for routing, sorting and the whole layer, on the CPU or a CUDA
// device. Python has looked at everything that is given (python/blockscale/_moe.py).
#include "blockscale/moe.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "argument_names.h"
#include "blockscale/bench.h"
#include "blockscale/cuda.h"
#include "module.h"
#include "moe_call.h"
#include "work.h"

namespace blockscale::python {
namespace {

/// python_name of what the layer and its steps take.
std::string name_here(const std::string& argument) {
  if (argument == "first_expert") return "local_expert_offset";
  if (argument == "w13_alphas") return "expert_alphas[0]";
  if (argument == "w2_alphas") return "expert_alphas[1]";
  if (argument == "w13_bias") return "biases[0]";
  if (argument == "w2_bias") return "biases[1]";
  if (argument == "b.rows") return "w13.rows";  // of the first product
  if (argument == "transform") return "activation";
  if (argument == "transform.group") return "interleave";
  if (argument == "transform.limit") return "limit";
  if (argument == "transform.alpha") return "alpha";
  if (argument == "transform.up_shift") return "up_shift";
  if (argument == "residual.data") return "residual";
  if (argument == "options.workspace_limit") return "workspace_limit";
  if (argument == "y" || argument == "y.data") return "out";
  constexpr std::string_view kSharedUp = "shared.w13", kSharedDown = "shared.w2";
  if (argument.starts_with(kSharedUp)) return "shared[0]" + argument.substr(kSharedUp.size());
  if (argument.starts_with(kSharedDown)) return "shared[1]" + argument.substr(kSharedDown.size());
  if (argument.starts_with("y.")) return "out." + argument.substr(2);
  return python_name(argument);
}

/// The same where ids have the shape.
std::string name_of_ids(const std::string& argument) {
  return argument == "top_k" || argument == "tokens" ? "ids" : name_here(argument);
}

/// Of no tokens nothing is read or written.
void rehearse(RouteArguments arguments) {
  arguments.logits.rows = 0;
  route(arguments);
}

/// And none of the results is made that have memory without tokens.
void rehearse(MoeSortArguments arguments) {
  arguments.tokens = 0;
  arguments.offsets = nullptr;
  arguments.padded_rows = nullptr;
  arguments.tiles = nullptr;
  moe_sort(arguments);
}

void route_into(nb::handle logits, const nb::tuple& results, const nb::tuple& options,
                const nb::tuple& where) {
  const Work work(where);
  const RouteCall call = route_call(logits, results, options, work.place());
  with_python_names(
      [&] {
        if (is_rehearsal) {
          rehearse(call.arguments);
        } else if (work.is_cuda()) {
          cuda::route(call.arguments, work.execution());
        } else {
          route(call.arguments, call.threads);
        }
      },
      name_here);
}

void moe_sort_into(nb::handle ids, const nb::tuple& results, const nb::tuple& options,
                   const nb::tuple& where) {
  const Work work(where);
  const MoeSortCall call = moe_sort_call(ids, results, options, work.place());
  with_python_names(
      [&] {
        if (is_rehearsal) {
          rehearse(call.arguments);
        } else if (work.is_cuda()) {
          cuda::moe_sort(call.arguments, work.execution());
        } else {
          moe_sort(call.arguments, call.threads);
        }
      },
      name_of_ids);
}

void run(const MoeCall& call, const Work& work) {
  with_python_names(
      [&] {
        if (is_rehearsal) {
          (void)describe_moe(call.arguments, call.options);
        } else if (work.is_cuda()) {
          cuda::moe(call.arguments, call.options, work.execution());
        } else {
          moe(call.arguments, call.options);
        }
      },
      name_of_ids);
}

/// Whether the call was taken as it is: of arrays that all lie in one place.
bool moe_as_given(const nb::tuple& operands, const nb::tuple& routes, nb::handle out,
                  const MoeCallOptions& given) {
  if (!given.are_usual()) return false;
  const std::optional<TakenPlace> place = TakenPlace::of(out);
  if (!place || !place->has_int32(routes[0])) return false;
  if (!given.expert_map.is_none() && !place->has_int32(given.expert_map)) return false;
  for (const nb::object& factors : {nb::object(routes[1]), given.w13_alphas, given.w2_alphas}) {
    if (!factors.is_none() && !place->has_f32(factors)) return false;
  }
  MoeCallOptions options = given;
  for (nb::object* const array : {&options.w13_bias, &options.w2_bias, &options.residual}) {
    if (!place->pair(*array)) return false;
  }
  const bool has_biases = !options.w13_bias.is_none() && !options.w2_bias.is_none();
  if (has_biases && !options.w13_bias[1].equal(options.w2_bias[1])) return false;
  const nb::object x = place->operand(operands[0]), w13 = place->operand(operands[1]),
                   w2 = place->operand(operands[2]);
  if (!x.is_valid() || !w13.is_valid() || !w2.is_valid()) return false;
  const nb::tuple here = nb::make_tuple(x, w13, w2), result = nb::make_tuple(out, place->format());
  return place->run([&](const Work& work) {
    return taken([&] { return moe_call(here, routes, result, options, work.place()); },
                 [&](const MoeCall& call) {
                   if (!is_of_layer(call)) return false;
                   run(call, work);
                   return true;
                 });
  });
}

/// `out` is a pair (array, Format) where `where` is known.
bool moe_into(const nb::tuple& operands, const nb::tuple& routes, nb::handle out,
              const nb::tuple& options, nb::handle where) {
  const MoeCallOptions given(options);
  if (where.is_none()) return moe_as_given(operands, routes, out, given);
  const Work work(nb::cast<nb::tuple>(where));
  run(moe_call(operands, routes, out, given, work.place()), work);
  return true;
}

/// What a layer is described of, in an order of its own.
struct LayerSizes {
  std::int64_t tokens, hidden, inner, experts;
  int top_k;
};

/// A layer in memory that does not exist: that of products of groups.
MoeArguments imagined_layer(const LayerSizes& sizes, Recipe x, Recipe w13, Recipe w2,
                            const QuantizeInput& transform) {
  const std::int64_t width = std::holds_alternative<Swiglu>(transform) ? 2 : 1;
  // Whatever pairs with w13: its own recipe.
  const GroupedGemmArguments up = imagined_grouped_gemm(
      sizes.experts, sizes.tokens, width * sizes.inner, sizes.hidden, x, w13, Format::bf16);
  const GroupedGemmArguments down = imagined_grouped_gemm(sizes.experts, sizes.tokens, sizes.hidden,
                                                          sizes.inner, w2, w2, Format::bf16);
  MoeArguments layer;
  layer.x = up.a;
  layer.w13 = up.b;
  layer.w2 = down.b;
  layer.ids = up.offsets;
  layer.top_k = sizes.top_k;
  layer.transform = transform;
  layer.y = down.d;
  return layer;
}

std::string describe_layer(const nb::tuple& sizes, Recipe x, Recipe w13, Recipe w2,
                           nb::handle transform, const std::optional<Recipe>& activations,
                           std::int64_t workspace_limit, const std::optional<std::string>& chip) {
  const InputArgument input = input_argument(transform, {});
  const auto size = [&](int i) { return nb::cast<std::int64_t>(sizes[i]); };
  MoeArguments layer = imagined_layer({size(0), size(1), size(2), size(3), nb::cast<int>(sizes[4])},
                                      x, w13, w2, input.input);
  layer.activations = activations;
  MoeOptions options;
  options.workspace_limit = workspace_limit;
  return with_python_names([&] { return cuda::describe_moe(layer, options, described_chip(chip)); },
                           name_here);
}

std::int64_t sort_rows(std::int64_t tokens, int top_k, std::int64_t experts, int tile) {
  return with_python_names([&] { return moe_sort_rows(tokens, top_k, experts, tile); },
                           name_of_ids);
}

}  // namespace

void bind_moe(nb::module_& module) {
  module.def("route", &route_into, nb::arg("logits"), nb::arg("results"), nb::arg("options"),
             nb::arg("where"));
  module.def("moe_sort_rows", &sort_rows, nb::arg("tokens"), nb::arg("top_k"), nb::arg("experts"),
             nb::arg("tile"));
  module.def("moe_sort", &moe_sort_into, nb::arg("ids"), nb::arg("results"), nb::arg("options"),
             nb::arg("where"));
  module.def("moe", &moe_into, nb::arg("operands"), nb::arg("routes"), nb::arg("out"),
             nb::arg("options"), nb::arg("where").none());
  module.def("cuda_describe_moe", &describe_layer, nb::arg("sizes"), nb::arg("x"), nb::arg("w13"),
             nb::arg("w2"), nb::arg("transform").none(), nb::arg("activations").none(),
             nb::arg("workspace_limit"), nb::arg("chip").none());
}

}  // namespace blockscale::python
