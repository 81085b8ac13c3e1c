#include "ops/quantize/test/emulation.h"

#include <array>
#include <utility>

#include "ops/quantize/kernels/entry.cuh"

namespace blockscale::test {
namespace {

template <std::size_t... kIndices>
constexpr auto quantize_functions(std::index_sequence<kIndices...>) {
  return std::array<QuantizeFunction, sizeof...(kIndices)>{
      &quantize_kernel<kQuantizeKernels[static_cast<int>(kIndices)]>...};
}
constexpr auto kFunctions = quantize_functions(
    std::make_index_sequence<static_cast<std::size_t>(kQuantizeKernels.count)>());

}  // namespace

QuantizeFunction quantize_function(int kernel) {
  return kFunctions[static_cast<std::size_t>(kernel)];
}

}  // namespace blockscale::test
