// Every check of a layer's arguments, shared by all implementations.
#pragma once

#include <cstdint>

#include "blockscale/moe.h"

namespace blockscale::moe_detail {

/// `arguments` with strides and `activations` filled in. Throws invalid_argument or unsupported,
/// naming the argument, its value and what is allowed. Reads no data.
MoeArguments validated(const MoeArguments& arguments, const MoeOptions& options);

// Of validated arguments.

inline std::int64_t experts_of(const MoeArguments& x) {
  return x.w2.batch;
}
/// I: columns between the products.
inline std::int64_t inner_of(const MoeArguments& x) {
  return x.w2.k;
}
/// Whether gates and ups have a matrix of w13 each.
inline bool has_gates_apart(const MoeArguments& x) {
  return x.w13.batch != x.w2.batch;
}
/// Whether weights are those of the rows that go in.
inline bool weighs_input(const MoeArguments& x) {
  return x.weights_on_input && x.weights != nullptr;
}
/// What the products read; validated arguments say it.
inline Recipe activations_of(const MoeArguments& x) {
  return x.activations.value_or(Recipe::bf16);
}
inline bool is_quantized(const MoeArguments& x) {
  return !is_plain(activations_of(x));
}
/// Whether x comes as numbers, and its rows are quantized for the products.
inline bool quantizes_x(const MoeArguments& x) {
  return is_plain(x.x.recipe) && is_quantized(x);
}

}  // namespace blockscale::moe_detail
