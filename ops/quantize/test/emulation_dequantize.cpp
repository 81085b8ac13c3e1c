// The kernels of dequantize as host functions.
#include <array>
#include <utility>

#include "ops/quantize/kernels/dequantize.cuh"
#include "ops/quantize/test/emulation.h"

namespace blockscale::test {
namespace {

template <std::size_t... kIndices>
constexpr auto functions_of(std::index_sequence<kIndices...>) {
  return std::array<DequantizeFunction, sizeof...(kIndices)>{
      &dequantize_blocks<kDequantizeKernels[static_cast<int>(kIndices)]>...};
}
constexpr auto kFunctions =
    functions_of(std::make_index_sequence<static_cast<std::size_t>(kDequantizeKernels.count)>());

}  // namespace

DequantizeFunction dequantize_function(int kernel) {
  return kFunctions[static_cast<std::size_t>(kernel)];
}

}  // namespace blockscale::test
