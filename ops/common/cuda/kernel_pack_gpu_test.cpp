// The kernels of the library on a GPU that has a pack: nothing is left to compile. Skipped, and
// says so, without a GPU.
#include <gtest/gtest.h>

#include "blockscale/device.h"
#include "ops/common/cuda/kernel_list.h"
#include "runtime/kernels/architecture.h"
#include "runtime/kernels/kernel_store.h"
#include "tests/gpu.h"

namespace blockscale {
namespace {

using KernelsGpu = test::OnGpu;

TEST_F(KernelsGpu, ComeFromThePack) {
  const int capability = cuda::current_device().architecture;
  for (const runtime::KernelSpec& spec : kernel_list()) {
    if (!runtime::runs_on(spec.architecture, capability)) continue;
    EXPECT_FALSE(runtime::KernelStore::instance().image(spec).pack.empty()) << spec.name;
    if (HasFailure()) break;  // the others would be compiled, too
  }
}

}  // namespace
}  // namespace blockscale
