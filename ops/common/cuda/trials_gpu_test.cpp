// Trials of kernels on a GPU that has them, an SM120 or a Hopper: they agree with the plain ones.
// Skipped, and says so, without one.
#include "ops/common/cuda/trials.h"

#include <gtest/gtest.h>

#include "ops/gemm/cuda/trials.h"
#include "ops/grouped_gemm/cuda/trials.h"
#include "tests/gpu.h"

namespace blockscale {
namespace {

using KernelTrialsGpu = test::OnGpu;

TEST_F(KernelTrialsGpu, Agree) {
  const int capability = cuda::current_device().architecture;
  int held = 0;
  const cuda::Chip& of_sm120 = cuda::chip_named("RTX 5090");
  for (const auto& trials :
       {gemm_detail::trials_on(of_sm120), grouped_gemm_detail::trials_on(of_sm120)}) {
    for (const cuda::Trial& trial : trials) {
      if (!trial.kernels->has(trial.kernel, capability)) continue;
      ++held;
      EXPECT_TRUE(trial.agrees(trial.kernel)) << trial.kernels->spec(trial.kernel, capability).name;
    }
  }
  if (held == 0) GTEST_SKIP() << "no such kernels";
}

}  // namespace
}  // namespace blockscale
