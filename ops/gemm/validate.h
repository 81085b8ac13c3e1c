// Every check of a GEMM's arguments, shared by all implementations.
#pragma once

#include "blockscale/gemm.h"

namespace blockscale::gemm_detail {

/// `arguments` with strides filled in. Throws invalid_argument, or unsupported for a pair of
/// recipes that gemm does not compute, naming the argument, its value and what is allowed. Reads no
/// data.
GemmArguments validated(const GemmArguments& arguments, const GemmOptions& options);

/// Checks the workspace of `options` for a product of validated arguments: aligned, of `needed`
/// bytes, apart from all that is read and written.
void check_workspace(const GemmArguments& x, const GemmOptions& options, std::int64_t needed);

/// alpha times its factor, read from the host's memory: exact.
inline double alpha_of(const GemmArguments& x) {
  return double{x.alpha} * (x.alpha_factor == nullptr ? 1.0 : double{*x.alpha_factor});
}

}  // namespace blockscale::gemm_detail
