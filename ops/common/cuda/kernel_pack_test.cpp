// What is said of the kernels that are compiled, for a pack and a cache that the test makes.
#include "blockscale/kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>

#include "models/testing.h"
#include "ops/common/cuda/kernel_list.h"
#include "runtime/kernels/kernel_cache.h"
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
  const auto next = std::find_if(specs_.begin() + 1, specs_.end(), [&](const KernelSpec& spec) {
    return spec.architecture == specs_[0].architecture;
  });
  CompiledKernel old = kernel_of(*next, "any NVRTC");
  old.source.low ^= 1;
  ASSERT_EQ(current.architecture, old.architecture);
  runtime::write_pack(pack_of(current.architecture), std::vector{current, old});
  EXPECT_EQ(state_of(specs_[0]), KernelState::packed);
  EXPECT_EQ(state_of(*next), KernelState::outdated);
}

/// A launch asks the cache for what the NVRTC that is here would compile.
TEST_F(Kernels, AreCachedOnlyFromTheCompilerThatIsHere) {
  cache(specs_.at(0), "another NVRTC");
  EXPECT_EQ(state_of(specs_[0]), KernelState::missing);
  ASSERT_EQ(list_kernels().cache_entries.size(), 1u);
  EXPECT_EQ(list_kernels().cache_entries[0].state, CacheEntryState::other_compiler);
  const runtime::Nvrtc* const nvrtc = test::find_nvrtc();
  if (nvrtc == nullptr) GTEST_SKIP() << "no libnvrtc: set BLOCKSCALE_NVRTC";
  cache(specs_[0], nvrtc->version());
  EXPECT_EQ(state_of(specs_[0]), KernelState::cached);
  std::multiset<CacheEntryState> states;
  for (const CacheEntryInfo& entry : list_kernels().cache_entries) states.insert(entry.state);
  EXPECT_EQ(states, (std::multiset{CacheEntryState::current, CacheEntryState::other_compiler}));
}

TEST_F(Kernels, AreListedWithWhateverLiesInTheCache) {
  KernelSpec changed = specs_.at(0);
  changed.threads += 32;  // a part of the key, as sources and flags are
  CompiledKernel odd = kernel_of(changed, "an NVRTC");
  odd.name = std::string(4000, 'x') + "\x1b[2J\xff\n";
  (void)runtime::KernelCache::of_user().get(odd.source, odd.compiler, [&] { return odd; });
  const auto folder = folder_ / "cache";
  const auto whole = list_kernels().cache_entries.at(0);
  EXPECT_EQ(whole.state, CacheEntryState::other_sources);
  EXPECT_EQ(whole.name, odd.name);
  EXPECT_EQ(whole.problem, "");
  const std::string bytes = test::read_text(whole.path);
  const std::vector<std::string> damaged = {"", "no pack", bytes.substr(0, bytes.size() - 1),
                                            bytes.substr(0, 70), bytes /* another's name */};
  for (std::size_t i = 0; i < damaged.size(); ++i) {
    test::write_text(folder / (std::to_string(i) + ".kernel"), damaged[i]);
  }
  runtime::write_pack(folder / "5.kernel", {});
  runtime::write_pack(folder / "6.kernel",
                      std::vector{kernel_of(specs_.at(0), "a"), kernel_of(specs_.at(1), "a")});
  std::filesystem::create_directory(folder / "7.kernel");
  ASSERT_EQ(::mkfifo((folder / "8.kernel").c_str(), 0600), 0);
  std::filesystem::create_symlink("nowhere", folder / "9.kernel");
  const KernelListing listing = list_kernels();
  ASSERT_EQ(listing.cache_entries.size(), 8u);  // what is no file is no entry
  EXPECT_EQ(listing.cache_entries[0].state, CacheEntryState::other_sources);
  for (std::size_t i = 1; i < listing.cache_entries.size(); ++i) {
    const CacheEntryInfo& entry = listing.cache_entries[i];
    EXPECT_EQ(entry.path, folder / (std::to_string(i - 1) + ".kernel"));
    EXPECT_EQ(entry.state, CacheEntryState::damaged);
    EXPECT_THAT(entry.problem, testing::HasSubstr(entry.path.string()));
    EXPECT_EQ(entry.name, "");
  }
  EXPECT_EQ(state_of(specs_[0]), KernelState::missing);
}

}  // namespace
}  // namespace blockscale
