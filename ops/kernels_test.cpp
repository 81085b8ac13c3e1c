// What is said of the kernels that are compiled, for a pack and a cache that the test makes.
#include "blockscale/kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <string>

#include "models/testing.h"
#include "ops/kernel_list.h"
#include "runtime/kernel_cache.h"
#include "tests/find_nvrtc.h"

namespace blockscale {
namespace {

using runtime::CompiledKernel;
using runtime::KernelSpec;

/// A kernel of the list as if `compiler` had compiled it.
CompiledKernel kernel_of(const KernelSpec& spec, const std::string& compiler) {
  CompiledKernel kernel;
  kernel.name = spec.name;
  kernel.architecture = spec.architecture;
  kernel.compiler = compiler;
  kernel.source = source_hash(spec, runtime::embedded_sources());
  kernel.cubin.resize(100);
  return kernel;
}

class Kernels : public testing::Test {
 protected:
  void SetUp() override {
    setenv("BLOCKSCALE_CACHE", (folder_ / "cache").c_str(), 1);
    setenv("BLOCKSCALE_KERNELS", folder_.path().c_str(), 1);
    std::set<std::string> architectures;
    for (const KernelSpec& spec : specs_) architectures.insert(spec.architecture);
    for (const std::string& one : architectures) runtime::write_pack(pack_of(one), {});
  }
  void TearDown() override {
    unsetenv("BLOCKSCALE_CACHE");
    unsetenv("BLOCKSCALE_KERNELS");
  }

  std::filesystem::path pack_of(const std::string& architecture) const {
    return folder_ / runtime::pack_file_name(architecture);
  }
  void cache(const KernelSpec& spec, const std::string& compiler) {
    const CompiledKernel kernel = kernel_of(spec, compiler);
    (void)runtime::KernelCache::of_user().get(kernel.source, compiler, [&] { return kernel; });
  }
  static KernelState state_of(const KernelSpec& spec) {
    for (const KernelInfo& kernel : list_kernels().kernels) {
      if (kernel.name == spec.name && kernel.architecture == spec.architecture) return kernel.state;
    }
    ADD_FAILURE() << spec.name << " is not listed";
    return KernelState::missing;
  }

  test::ScratchFolder folder_;
  const std::vector<KernelSpec> specs_ = kernel_list();
};

TEST_F(Kernels, AreMissingWhereNothingIsCompiled) {
  const KernelListing listing = list_kernels();
  EXPECT_EQ(listing.kernels.size(), specs_.size());
  for (const KernelInfo& kernel : listing.kernels) EXPECT_EQ(kernel.state, KernelState::missing);
}

TEST_F(Kernels, ArePackedOrOutdatedByTheirSources) {
  CompiledKernel current = kernel_of(specs_.at(0), "any NVRTC");
  CompiledKernel old = kernel_of(specs_.at(1), "any NVRTC");
  old.source.low ^= 1;
  ASSERT_EQ(current.architecture, old.architecture);
  runtime::write_pack(pack_of(current.architecture), std::vector{current, old});
  EXPECT_EQ(state_of(specs_[0]), KernelState::packed);
  EXPECT_EQ(state_of(specs_[1]), KernelState::outdated);
}

/// A launch asks the cache for what the NVRTC that is here would compile.
TEST_F(Kernels, AreCachedOnlyFromTheCompilerThatIsHere) {
  cache(specs_.at(0), "another NVRTC");
  EXPECT_EQ(state_of(specs_[0]), KernelState::missing);
  EXPECT_EQ(list_kernels().cached_kernels, 1u);
  const runtime::Nvrtc* const nvrtc = test::find_nvrtc();
  if (nvrtc == nullptr) GTEST_SKIP() << "no libnvrtc: set BLOCKSCALE_NVRTC";
  cache(specs_[0], nvrtc->version());
  EXPECT_EQ(state_of(specs_[0]), KernelState::cached);
}

}  // namespace
}  // namespace blockscale
