// Products without memory, for tests of plans.
#pragma once

#include <cstdint>

#include "blockscale/bench.h"
#include "ops/gemm/validate.h"

namespace blockscale::test {

/// Validated arguments, D in bf16.
inline GemmArguments imagined_product(std::int64_t m, std::int64_t n, std::int64_t k,
                                      Recipe a = Recipe::bf16, Recipe b = Recipe::nvfp4) {
  return gemm_detail::validated(imagined_gemm(m, n, k, a, b, Format::bf16, 1, {}, {}), {});
}

}  // namespace blockscale::test
