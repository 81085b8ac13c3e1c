// The FP8 kernels with wgmma as host functions.
#include <array>
#include <utility>

#include "ops/gemm/kernels/sm90/fp8_entry.cuh"
#include "ops/gemm/test/emulation.h"

namespace blockscale::test {
namespace {

using Function = void (*)(const Fp8GemmParams&);

template <std::size_t... kIndices>
constexpr auto functions(std::index_sequence<kIndices...>) {
  return std::array<Function, sizeof...(kIndices)>{
      &fp8_gemm_kernel<kFp8GemmKernels[static_cast<int>(kIndices)]>...};
}
constexpr auto kFunctions = functions(std::make_index_sequence<Fp8GemmKernelList::kCount>());

}  // namespace

void run_kernel(std::size_t kernel, const Fp8GemmParams& params) {
  kFunctions[kernel](params);
}

}  // namespace blockscale::test
