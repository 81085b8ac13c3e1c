// The plain kernels of groups of rows and of k as host functions.
#include <cstdlib>
#include <iterator>

#include "ops/grouped_gemm/cuda/specs.h"
#include "ops/grouped_gemm/test/emulation.h"

namespace blockscale::test {
namespace {

/// run(index of the dense kernel, as a constant) for the one that `is_it(tile, form)` says.
template <int kTile = 0, std::size_t kCount, class IsIt, class Run>
void find(const PlainTile (&tiles)[kCount], const IsIt& is_it, const Run& run) {
  if constexpr (kTile < static_cast<int>(PlainGemmKernelList::kCount)) {
    constexpr auto kTileOf = static_cast<PlainTile>(kTile / 2);
    constexpr Format kForm = kTile % 2 == 0 ? Format::bf16 : Format::f16;
    for (const PlainTile tile : tiles) {
      if (tile == kTileOf && is_it(tile, kForm)) return run.template operator()<kTile>();
    }
    find<kTile + 1>(tiles, is_it, run);
  } else {
    std::abort();
  }
}

}  // namespace

void run_grouped_kernel(std::size_t kernel, const PlainGroupedParams& params) {
  find(
      kPlainGroupedTiles,
      [&](PlainTile tile, Format form) {
        return grouped_gemm_detail::plain_kernel(tile, form) == kernel;
      },
      [&]<int kIndex>() { plain_grouped_kernel<kIndex>(params); });
}

void run_grouped_kernel(std::size_t kernel, const PlainKGroupedParams& params) {
  find(
      kPlainKGroupedTiles,
      [&](PlainTile tile, Format form) {
        return grouped_gemm_detail::plain_k_kernel(tile, form) == kernel;
      },
      [&]<int kIndex>() { plain_k_grouped_kernel<kIndex>(params); });
}

}  // namespace blockscale::test
