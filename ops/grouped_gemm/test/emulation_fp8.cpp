// The FP8 kernels of groups as host functions.
#include <array>
#include <utility>

#include "ops/grouped_gemm/test/emulation.h"

namespace blockscale::test {
namespace {

using Function = void (*)(const Fp8GroupedParams&);

template <std::size_t... kIndices>
constexpr auto functions(std::index_sequence<kIndices...>) {
  return std::array<Function, sizeof...(kIndices)>{
      &fp8_grouped_kernel<static_cast<int>(kIndices)>...};
}
constexpr auto kFunctions = functions(std::make_index_sequence<Fp8GroupedKernelList::kCount>());

}  // namespace

void run_grouped_kernel(std::size_t kernel, const Fp8GroupedParams& params) {
  kFunctions.at(kernel)(params);
}
void run_grouped_kernel(std::size_t, const Fp8FewRowsParams& params) {
  fp8_few_rows_kernel(params);
}

}  // namespace blockscale::test
