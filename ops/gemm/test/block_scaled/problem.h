// Random products of two operands with scales, as the kernels of sm_120f take them, for tests.
#pragma once

#include <cstdint>

#include "ops/gemm/test/plain_problem.h"

namespace blockscale::test {

inline constexpr auto kAtoms = ScaleLayout::swizzled_128x4;

/// body(a, b, k) of every pair, with a K that ends within a stage where the pair takes one.
template <class Body>
void for_each_block_scaled_pair(const Body& body) {
  using R = Recipe;
  body(R::nvfp4, R::nvfp4, 288);
  body(R::mxfp4, R::mxfp4, 352);
  body(R::mxfp8_e4m3, R::mxfp8_e4m3, 288);
  for (const R b : {R::mxfp6_e2m3, R::mxfp6_e3m2, R::mxfp4}) body(R::mxfp8_e4m3, b, 256);
  body(R::fp8_1x128, R::fp8_128x128, 304);
}

inline bool has_f32_scales(Recipe recipe) {
  return recipe_traits(recipe).scale == Format::f32;
}

/// A problem whose scales lie as the kernels take them together, or in f32 as engines have them.
inline PlainProblem in_atoms(Recipe a, Recipe b, std::int64_t m, std::int64_t n, std::int64_t k) {
  PlainProblem p = problem_of(a, b, m, n, k);
  p.a_layout = has_f32_scales(a) ? ScaleLayout::mn_major : kAtoms;
  p.b_layout = has_f32_scales(a) ? ScaleLayout::row_major : kAtoms;
  return p;
}

}  // namespace blockscale::test
