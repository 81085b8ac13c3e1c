// The arguments of route, moe_sort and moe as Python passes them, on the CPU or a CUDA device.
#pragma once

#include <array>

#include "arrays.h"
#include "blockscale/moe.h"
#include "quantize_call.h"

namespace blockscale::python {

/// Everything that `route` takes, with the arrays that keep its memory alive.
struct RouteCall {
  Array logits, correction_bias, ids, weights;
  RouteArguments arguments = {};
  int threads = 0;
};

/// `logits` are a pair (array, Format); `results` (ids, weights); `options` (top_k,
/// correction_bias, number of the RouterScore, groups, top_groups, best_of_group, renormalize,
/// scale, threads, shared_experts).
RouteCall route_call(nb::handle logits, const nb::tuple& results, const nb::tuple& options,
                     const Place& place);

/// The same of `moe_sort`.
struct MoeSortCall {
  Array ids, expert_map;
  std::array<Array, 8> results;
  MoeSortArguments arguments = {};
  int threads = 0;
};

/// `results` are in the order of MoeSortArguments, or None; `options` (experts,
/// local_expert_offset, tile, threads, expert_map or None).
MoeSortCall moe_sort_call(nb::handle ids, const nb::tuple& results, const nb::tuple& options,
                          const Place& place);

/// Options of `moe`: a tuple in the order of these members, as Python made them; of a call that is
/// taken as it was given, arrays stand where pairs do.
struct MoeCallOptions {
  explicit MoeCallOptions(const nb::tuple& options);

  nb::object transform;              // as `lower` gives it
  nb::object activations;            // a Recipe, or None
  nb::object w13_alphas, w2_alphas;  // f32, or None
  nb::object w13_bias, w2_bias;      // pairs (array, Format), or None
  nb::object first_expert;
  nb::object residual;  // a pair (array, Format), or None
  nb::object workspace_limit;
  nb::object threads;
  nb::object expert_map;  // i32, or None
  nb::object all_experts;
  nb::object batch_invariant;
  nb::object weights_on_input;
  nb::object shared;  // a pair of operands, or None
  nb::object deterministic;

  /// Whether nothing is asked that Python has to look at, but for arrays.
  bool are_usual() const;
};

/// Everything that `moe` takes, with the arrays that keep its memory alive.
struct MoeCall {
  Operand x, w13, w2, shared_w13 = {}, shared_w2 = {};
  Array ids = {}, weights = {}, w13_alphas = {}, w2_alphas = {};  // of nothing where there is none
  Array expert_map = {};
  Array w13_bias = {}, w2_bias = {}, residual = {}, out = {};
  InputArgument input = {};
  MoeArguments arguments = {};
  MoeOptions options = {};
};

/// `operands` are x, w13 and w2, each a ScaledTensor or a pair (array, Format); `routes` (ids,
/// weights or None); `out` is such a pair.
MoeCall moe_call(const nb::tuple& operands, const nb::tuple& routes, nb::handle out,
                 const MoeCallOptions& options, const Place& place);

/// Whether x [T, H], weights [E, N, K], ids and weights of the routing and the result are a
/// layer's.
bool is_of_layer(const MoeCall& call);

}  // namespace blockscale::python
