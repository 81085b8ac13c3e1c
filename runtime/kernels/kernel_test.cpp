// Loading and launching kernels, against a fake libcuda.so.1.
#include "runtime/kernels/kernel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "blockscale/device.h"
#include "models/testing.h"
#include "tests/expect_error.h"
#include "tests/fake_libcuda.h"
#include "tests/find_nvrtc.h"
#include "tests/sample_kernel.h"

namespace blockscale::runtime {
namespace {

using test::expect_error;
using test::expect_invalid;
using test::sample_sources;
using test::sample_spec;
using test::ScaleParameters;
using Shape = std::array<std::uint32_t, 3>;

/// A kernel as the compiler would make it, with code that the fake driver takes.
CompiledKernel fake_kernel(const KernelSpec& spec, std::uint32_t static_shared_bytes = 0) {
  CompiledKernel kernel;
  kernel.name = spec.name;
  kernel.architecture = spec.architecture;
  kernel.compiler = "NVRTC of the test";
  kernel.flags = "--none";
  kernel.source = source_hash(spec, sample_sources());
  kernel.resources.registers = 32;
  kernel.resources.static_shared_bytes = static_shared_bytes;
  kernel.cubin = test::fake_cubin(spec.name);
  return kernel;
}

class Kernels : public testing::Test {
 protected:
  static void SetUpTestSuite() { setenv("BLOCKSCALE_LIBCUDA", BLOCKSCALE_FAKE_LIBCUDA, 1); }
  void SetUp() override {
    fake_.reset();
    fake_.parameter_bytes = sizeof(ScaleParameters);
  }

  /// A store whose pack has these kernels.
  KernelStore& store_with(const std::vector<CompiledKernel>& kernels) {
    const auto path = folder_ / "sample.pack";
    write_pack(path, kernels);
    return *stores_.emplace_back(std::make_unique<KernelStore>(
        sample_sources(), [path](const std::string&) { return path; },
        KernelCache(folder_ / "cache")));
  }
  KernelStore& sample_store() {
    return store_with({fake_kernel(sample_spec(2)), fake_kernel(sample_spec(4), 1024)});
  }

  LaunchShape shape_ = {.grid = {10}, .block = {128}};
  ScaleParameters parameters_ = {nullptr, nullptr, 2.5f, 5120};
  test::ScratchFolder folder_;
  std::vector<std::unique_ptr<KernelStore>> stores_;
  test::FakeCuda& fake_ = test::fake_cuda(BLOCKSCALE_FAKE_LIBCUDA);
};

TEST_F(Kernels, AreLoadedOnceWhenFirstAskedFor) {
  KernelSet set({sample_spec(2), sample_spec(4)}, sample_store());
  EXPECT_EQ(fake_.calls["cuLibraryLoadData"], 0);
  const Kernel& kernel = set.get(1, 90);
  EXPECT_EQ(fake_.calls["cuLibraryLoadData"], 1);
  EXPECT_EQ(kernel.spec().name, "sample_scale_4");
  EXPECT_EQ(kernel.resources().registers, 32u);
  EXPECT_EQ(&set.get(1, 90), &kernel);
  EXPECT_EQ(fake_.calls["cuLibraryLoadData"], 1);
  EXPECT_NE(&set.get(0, 90), &kernel);
  EXPECT_EQ(fake_.calls["cuLibraryLoadData"], 2);
  expect_invalid("kernel", "has index 2; there are 2", [&] { set.get(2, 90); });
}

TEST_F(Kernels, AreLoadedOnceByManyThreads) {
  KernelSet set({sample_spec(2), sample_spec(4)}, sample_store());
  std::vector<std::thread> threads;
  std::vector<const Kernel*> seen(16);
  for (std::size_t i = 0; i < seen.size(); ++i) {
    threads.emplace_back([&, i] { seen[i] = &set.get(i % 2, 90); });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 2; i < seen.size(); ++i) EXPECT_EQ(seen[i], seen[i % 2]);
  EXPECT_EQ(fake_.calls["cuLibraryLoadData"], 2);
}

TEST_F(Kernels, LoadingDoesNotDisturbACapture) {
  KernelSet set({sample_spec(2)}, sample_store());
  set.get(0, 90);
  EXPECT_EQ(fake_.capture_mode_while_loading, static_cast<int>(cu::CaptureMode::relaxed));
  EXPECT_EQ(fake_.capture_mode, static_cast<int>(cu::CaptureMode::global));
}

TEST_F(Kernels, LoadingFailsWithDetailAndCanBeTriedAgain) {
  KernelSet set({sample_spec(2)}, sample_store());
  fake_.failures["cuLibraryLoadData"] = 209;
  expect_error(ErrorCode::device, "driver",
               "kernel sample_scale_2 for sm_90a from " + (folder_ / "sample.pack").string() +
                   "; the driver is for CUDA 13.0",
               [&] { set.get(0, 90); });
  EXPECT_EQ(fake_.capture_mode, 0);
  fake_.failures.clear();
  EXPECT_EQ(set.get(0, 90).spec().name, "sample_scale_2");
}

TEST_F(Kernels, CodeWithoutTheKernelIsUnloaded) {
  CompiledKernel other = fake_kernel(sample_spec(2));
  other.cubin = test::fake_cubin("another_name");
  KernelSet set({sample_spec(2)}, store_with({other}));
  for (const int attempt : {1, 2}) {
    expect_error(ErrorCode::device, "driver", "cuLibraryGetKernel failed with error 500",
                 [&] { set.get(0, 90); });
    EXPECT_EQ(fake_.calls["cuLibraryLoadData"], attempt);
    EXPECT_EQ(fake_.calls["cuLibraryUnload"], attempt);
  }
}

TEST_F(Kernels, APackOfOtherSourcesIsRefused) {
  CompiledKernel old = fake_kernel(sample_spec(2));
  old.source.low ^= 1;
  KernelSet set({sample_spec(2)}, store_with({old}));
  expect_error(ErrorCode::unsupported, (folder_ / "sample.pack").string(),
               "kernel sample_scale_2 in this pack was compiled from other sources",
               [&] { set.get(0, 90); });
}

TEST_F(Kernels, CodeThatIsNoneIsRefusedByTheDriver) {
  CompiledKernel broken = fake_kernel(sample_spec(2));
  broken.cubin.assign(64, std::byte{});
  KernelSet set({sample_spec(2)}, store_with({broken}));
  expect_error(ErrorCode::device, "driver", "cuLibraryLoadData failed with error 200",
               [&] { set.get(0, 90); });
}

TEST_F(Kernels, LaunchPassesShapeStreamAndParameters) {
  KernelSet set({sample_spec(2)}, sample_store());
  const cuda::DeviceScope device(1);
  const LaunchShape shape = {.grid = {6, 4, 2},
                             .block = {32, 4},
                             .cluster = {3, 2, 1},
                             .dynamic_shared_bytes = 1000,
                             .programmatic_dependent_launch = true};
  int stream = 0;
  launch(set.get(0, 90), shape, &stream, parameters_);
  ASSERT_EQ(fake_.launches.size(), 1u);
  const test::FakeLaunch& launched = fake_.launches[0];
  EXPECT_EQ(launched.kernel, "sample_scale_2");
  EXPECT_EQ(launched.device, 1);
  EXPECT_EQ(launched.grid, (Shape{6, 4, 2}));
  EXPECT_EQ(launched.block, (Shape{32, 4, 1}));
  EXPECT_EQ(launched.cluster, (Shape{3, 2, 1}));
  EXPECT_EQ(launched.dynamic_shared_bytes, 1000u);
  EXPECT_TRUE(launched.programmatic_dependent_launch);
  EXPECT_EQ(launched.stream, &stream);
  EXPECT_EQ(std::memcmp(launched.parameters.data(), &parameters_, sizeof parameters_), 0);
  launch(set.get(0, 90), shape_, nullptr, parameters_);
  EXPECT_EQ(fake_.launches[1].cluster, (Shape{}));  // no attribute
  EXPECT_FALSE(fake_.launches[1].programmatic_dependent_launch);
  EXPECT_EQ(fake_.launches[1].stream, nullptr);
}

TEST_F(Kernels, OneKernelServesEveryDeviceAndThread) {
  KernelSet set({sample_spec(2)}, sample_store());
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const cuda::DeviceScope device(i % 2);
      for (int repeat = 0; repeat < 50; ++repeat) {
        launch(set.get(0, 90), shape_, nullptr, parameters_);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  int on_second = 0;
  for (const test::FakeLaunch& launched : fake_.launches) on_second += launched.device;
  EXPECT_EQ(fake_.launches.size(), 400u);
  EXPECT_EQ(on_second, 200);
  EXPECT_EQ(fake_.calls["cuLibraryLoadData"], 1);
}

TEST_F(Kernels, LargeSharedMemoryIsAllowedOnceADevice) {
  KernelSet set({sample_spec(4)}, sample_store());
  const Kernel& kernel = set.get(0, 90);
  const auto attribute = [&](const char* device) {
    return fake_.attributes[{"sample_scale_4", device, "8"}];
  };
  LaunchShape shape = shape_;
  const cuda::DeviceScope first(0);
  shape.dynamic_shared_bytes = 47 << 10;  // 48 KiB with the kernel's own
  launch(kernel, shape, nullptr, parameters_);
  EXPECT_EQ(fake_.calls["cuKernelSetAttribute"], 0);
  shape.dynamic_shared_bytes += 16;
  launch(kernel, shape, nullptr, parameters_);
  launch(kernel, shape, nullptr, parameters_);
  EXPECT_EQ(fake_.calls["cuKernelSetAttribute"], 1);
  EXPECT_EQ(attribute("0"), (227 << 10) - 1024);
  const cuda::DeviceScope second(1);
  launch(kernel, shape, nullptr, parameters_);
  EXPECT_EQ(fake_.calls["cuKernelSetAttribute"], 2);
  EXPECT_EQ(attribute("1"), (227 << 10) - 1024);
}

TEST_F(Kernels, LargeClustersAreAllowedOnceADevice) {
  KernelSet set({sample_spec(2)}, sample_store());
  const cuda::DeviceScope device(0);
  LaunchShape shape = shape_;
  shape.grid = {32};
  shape.cluster = {8};
  launch(set.get(0, 90), shape, nullptr, parameters_);
  EXPECT_EQ(fake_.calls["cuKernelSetAttribute"], 0);
  shape.cluster = {16};
  launch(set.get(0, 90), shape, nullptr, parameters_);
  launch(set.get(0, 90), shape, nullptr, parameters_);
  EXPECT_EQ(fake_.calls["cuKernelSetAttribute"], 1);
  const std::array<std::string, 3> key = {"sample_scale_2", "0", "14"};
  EXPECT_EQ(fake_.attributes.at(key), 1);
}

TEST_F(Kernels, LaunchRefusesWhatDoesNotFitTheKernel) {
  KernelSet set({sample_spec(2)}, sample_store());
  const cuda::DeviceScope device(0);
  const auto expect_refused = [&](const char* reason, auto change) {
    LaunchShape shape = shape_;
    change(shape);
    expect_invalid("kernel sample_scale_2", reason,
                   [&] { launch(set.get(0, 90), shape, nullptr, parameters_); });
  };
  expect_refused("launched with 64 threads; it is compiled for 128",
                 [](LaunchShape& shape) { shape.block = {64}; });
  expect_refused("multiple of its cluster", [](LaunchShape& shape) { shape.grid = {0}; });
  expect_refused("multiple of its cluster", [](LaunchShape& shape) { shape.cluster = {4}; });
  expect_refused("multiple of its cluster", [](LaunchShape& shape) { shape.cluster = {1, 0}; });
  expect_invalid("kernel sample_scale_2", "its parameters are 4 bytes; 24 are needed",
                 [&] { launch(set.get(0, 90), shape_, nullptr, 1.0f); });
  EXPECT_TRUE(fake_.launches.empty());
}

TEST_F(Kernels, LaunchTakesFewerThreadsWhereTheKernelSaysSo) {
  KernelSpec spec = sample_spec(2);
  spec.fewer_threads = true;
  KernelSet set({spec}, sample_store());
  const cuda::DeviceScope device(0);
  LaunchShape shape = shape_;
  shape.block = {96};
  launch(set.get(0, 90), shape, nullptr, parameters_);
  ASSERT_EQ(fake_.launches.size(), 1u);
  EXPECT_EQ(fake_.launches[0].block, (Shape{96, 1, 1}));
  for (const std::uint32_t threads : {0u, 160u}) {
    shape.block = {threads};
    expect_invalid("kernel sample_scale_2",
                   "with " + std::to_string(threads) + " threads; it is compiled for at most 128",
                   [&] { launch(set.get(0, 90), shape, nullptr, parameters_); });
  }
}

TEST_F(Kernels, LaunchFailsWithTheDriversTextAndTheShape) {
  KernelSet set({sample_spec(2)}, sample_store());
  const auto launch_it = [&] { launch(set.get(0, 90), shape_, nullptr, parameters_); };
  expect_error(
      ErrorCode::device, "driver",
      "cuLaunchKernelEx failed with error 201 (CUDA_ERROR_INVALID_CONTEXT): invalid device "
      "context; kernel sample_scale_2 for sm_90a, grid 10 x 1 x 1",
      launch_it);  // no context is current
  const cuda::DeviceScope device(0);
  fake_.failures["cuLaunchKernelEx"] = 719;
  expect_error(ErrorCode::device, "driver", "failed with error 719", launch_it);
}

TEST(Architectures, RunOnTheirDevices) {
  EXPECT_TRUE(runs_on("sm_90a", 90));
  EXPECT_FALSE(runs_on("sm_90a", 100));
  EXPECT_FALSE(runs_on("sm_90a", 80));
  EXPECT_TRUE(runs_on("sm_100f", 100));
  EXPECT_TRUE(runs_on("sm_100f", 103));
  EXPECT_FALSE(runs_on("sm_100f", 120));
  EXPECT_TRUE(runs_on("sm_120f", 121));
  EXPECT_TRUE(runs_on("sm_80", 89));
  EXPECT_FALSE(runs_on("sm_103f", 100));
  EXPECT_FALSE(runs_on("90a", 90));
  EXPECT_FALSE(runs_on("sm_", 90));
  EXPECT_FALSE(runs_on("sm_90x", 90));
}

TEST_F(Kernels, AreChosenByArchitecture) {
  const char* const names[] = {"sm_90a", "sm_120f"};
  const std::vector<KernelSpec> hopper = {sample_spec(8)};
  std::vector<KernelSpec> specs = for_architectures({sample_spec(2), sample_spec(4)}, names);
  specs.insert(specs.end(), hopper.begin(), hopper.end());
  KernelSet set(specs, sample_store());
  EXPECT_EQ(set.size(), 3u);
  EXPECT_EQ(set.chips(), "9.0 and 12.x");
  EXPECT_EQ(set.get(1, 90).spec().name, "sample_scale_4");
  EXPECT_EQ(set.get(1, 90).spec().architecture, "sm_90a");
  EXPECT_TRUE(set.has(0, 121));
  EXPECT_FALSE(set.has(2, 121));
  EXPECT_TRUE(set.has_any(120));
  EXPECT_FALSE(set.has_any(100));
  expect_error(ErrorCode::unsupported, "kernel sample_scale_8",
               "is not compiled for compute capability 12.0", [&] { (void)set.get(2, 120); });
}

class KernelsWithNvrtc : public Kernels {
 protected:
  void SetUp() override {
    if (test::find_nvrtc() == nullptr) GTEST_SKIP() << "no libnvrtc: set BLOCKSCALE_NVRTC";
    Kernels::SetUp();
  }
};

TEST_F(KernelsWithNvrtc, WhatThePackLacksIsCompiledAndCached) {
  KernelStore& store = store_with({fake_kernel(sample_spec(2))});
  EXPECT_FALSE(store.image(sample_spec(2)).pack.empty());
  const KernelImage image = store.image(sample_spec(8));
  EXPECT_TRUE(image.pack.empty());
  EXPECT_GT(image.cubin.size(), 1000u);
  ASSERT_EQ(store.cache().entries().size(), 1u);
  EXPECT_EQ(store.cache().entries()[0].kernel.name, "sample_scale_8");
  KernelSet set({sample_spec(8)}, store);
  EXPECT_EQ(set.get(0, 90).resources(), image.resources);
}

TEST_F(KernelsWithNvrtc, LocalMemoryThatIsNoLongerAllowedIsRefusedAlthoughCached) {
  const SourceTree tree = sample_sources(test::kLocalMemoryKernel);
  const auto image_for_new_process = [&](const KernelSpec& spec) {
    KernelStore store(
        tree, [](const std::string&) { return std::filesystem::path(); },
        KernelCache(folder_ / "cache"));
    return store.image(spec).resources;
  };
  KernelSpec spec = sample_spec();
  spec.allows_local_memory = true;
  EXPECT_GE(image_for_new_process(spec).stack_bytes, 256u);
  EXPECT_GE(image_for_new_process(spec).stack_bytes, 256u);  // from the cache
  spec.allows_local_memory = false;
  try {
    image_for_new_process(spec);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::compile_failed);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("uses local memory"));
  }
}

TEST_F(KernelsWithNvrtc, OtherCodeUnderOneNameIsAnotherKernel) {
  KernelStore& store = store_with({});
  KernelSpec other = sample_spec(8);
  other.call = "sample::scale<16>";
  const KernelImage first = store.image(sample_spec(8)), second = store.image(other);
  EXPECT_FALSE(std::ranges::equal(first.cubin, second.cubin));
  EXPECT_EQ(store.image(sample_spec(8)).cubin.data(), first.cubin.data());  // kept
}

}  // namespace
}  // namespace blockscale::runtime
