// benchmark_grouped_gemm on CUDA devices, and arguments that descriptions of plans take.
#include <cstdint>
#include <string>

#include "blockscale/bench.h"
#include "blockscale/cuda.h"
#include "ops/common/cuda/call.h"
#include "ops/common/cuda/cold_calls.h"
#include "ops/grouped_gemm/call_memory.h"
#include "ops/grouped_gemm/cuda/launch.h"
#include "ops/grouped_gemm/validate.h"

namespace blockscale {

GroupedGemmArguments imagined_grouped_gemm(std::int64_t groups, std::int64_t rows, std::int64_t n,
                                           std::int64_t k, Recipe a, Recipe b, Format d,
                                           const QuantizeInput& input) {
  // Of one matrix and of as many as there are groups: parts of dense products.
  const GemmArguments of_rows = imagined_gemm(rows, n, k, a, b, d, 1, {}, input);
  GroupedGemmArguments arguments;
  arguments.a = of_rows.a;
  arguments.b = imagined_gemm(rows, n, k, a, b, d, groups, {}, input).b;
  arguments.d = of_rows.d;
  arguments.transform = input;
  constexpr std::uintptr_t kNowhere = std::uintptr_t{11} << 40;  // apart from all of these
  arguments.offsets = reinterpret_cast<const std::int32_t*>(kNowhere);
  return arguments;
}

namespace cuda {
namespace {

GroupedGemmArguments checked(const GroupedGemmArguments& arguments, int repeats) {
  const auto refuse = [](const char* argument, const std::string& message) {
    throw Error(ErrorCode::invalid_argument, argument, message);
  };
  if (repeats < 1) refuse("repeats", "is " + std::to_string(repeats) + ", must be at least 1");
  if (arguments.adds) refuse("adds", "is true, must be false: every replay would add");
  const GroupedGemmArguments host = grouped_gemm_detail::validated(arguments);
  require_kernels_for(grouped_gemm_detail::kernels(), current_device(), "device");
  return host;
}

}  // namespace

double benchmark_grouped_gemm(const GroupedGemmArguments& arguments, int repeats) {
  const GroupedGemmArguments host = checked(arguments, repeats);
  const auto memory = [](GroupedGemmArguments& x, const auto& visit) {
    grouped_gemm_detail::for_each_memory(x, visit);
  };
  const ColdCalls<GroupedGemmArguments> products(host, memory, grouped_gemm_workspace_bytes(host),
                                                 repeats);
  const double seconds = products.seconds({grouped_gemm}).front();
  products.copy_results();
  return seconds;
}

}  // namespace cuda
}  // namespace blockscale
