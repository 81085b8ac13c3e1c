// What the kernels of bf16 pairs end with. Who includes it has AVX-512's intrinsics: from Highway,
// which keeps g++ from warning of them, or as immintrin.h.
#pragma once

#include <cstdint>

#include "ops/gemm/cpu/bf16/tiles.h"

namespace blockscale::gemm_detail {

/// Adds the sums of a slab of k, of row `r` of B and the panel's rows 16 v
/// and on, with their scales if those are not folded.
__attribute__((target("avx512f"), always_inline)) inline void add_slab(const PairProduct& p,
                                                                       std::int64_t r,
                                                                       std::int64_t v,
                                                                       __m512 slab) {
  float* const to = p.sums + r * p.pitch + v * 16;
  const __m512 old = _mm512_load_ps(to);
  if (p.a_factors == nullptr) {
    _mm512_store_ps(to, _mm512_add_ps(old, slab));
  } else {
    const __m512 scaled = _mm512_mul_ps(slab, _mm512_load_ps(p.a_factors + v * 16));
    _mm512_store_ps(to, _mm512_fmadd_ps(scaled, _mm512_set1_ps(p.b_factors[r]), old));
  }
}

}  // namespace blockscale::gemm_detail
