// check_grouped_gemm of what a GPU left: by its plan, which says which kernels that was.
#include "ops/grouped_gemm/check.h"

#include "blockscale/cuda.h"
#include "ops/gemm/path.h"
#include "ops/gemm/reference.h"
#include "ops/grouped_gemm/cuda/plan.h"
#include "ops/grouped_gemm/validate.h"

namespace blockscale {

GemmCheck cuda::check_grouped_gemm(const GroupedGemmArguments& arguments, std::int64_t samples) {
  using namespace grouped_gemm_detail;
  gemm_detail::check_samples(samples);
  check_is_plain(arguments);
  const GroupedGemmArguments x = validated(arguments);
  grouped_gemm_detail::check_groups(x);
  return check_elements(x, samples, plan_grouped(x, default_chip()).path());
}

}  // namespace blockscale
