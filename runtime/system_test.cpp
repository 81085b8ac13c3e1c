#include "blockscale/system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace blockscale {
namespace {

TEST(System, ComponentsHaveVersionsWithDigits) {
  EXPECT_EQ(components().front().name, "blockscale");
  EXPECT_EQ(components().front().version, library_version());
  for (const Component& component : components()) {
    EXPECT_NE(component.version.find_first_of("0123456789"), std::string::npos) << component.name;
  }
}

TEST(System, CpuAgreesWithTheSystem) {
  const CpuInfo cpu = cpu_info();
  EXPECT_EQ(cpu.logical_cpus, sysconf(_SC_NPROCESSORS_ONLN));
  EXPECT_GE(cpu.threads, 1);
  EXPECT_LE(cpu.threads, cpu.logical_cpus);
}

TEST(System, TheSimdTargetIsOneThatWasCompiledAndThatTheCpuHas) {
  EXPECT_THAT(simd_targets_compiled(), ::testing::Contains(simd_target()));
  const auto features = cpu_info().features;
  if (simd_target() == "AVX3") {
    EXPECT_THAT(features, ::testing::Contains("avx512bw"));
  }
  if (simd_target() == "AVX2") {
    EXPECT_THAT(features, ::testing::Contains("avx2"));
  }
}

TEST(System, MemoryIsPlausible) {
  const MemoryInfo memory = memory_info();
  const auto pages = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES));
  EXPECT_EQ(memory.total / (1 << 20),
            pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) >> 20);
  EXPECT_LE(memory.available, memory.total);
}

TEST(System, GpuAnswersWithoutOne) {
  const GpuInfo gpu = gpu_info();
  if (!gpu.driver_library) {
    EXPECT_TRUE(gpu.devices.empty());
  }
  if (gpu.devices.empty() && gpu.driver_library) {
    EXPECT_FALSE(gpu.problem.empty());
  }
  for (const GpuDevice& device : gpu.devices) {
    EXPECT_FALSE(device.name.empty());
    EXPECT_GE(device.compute_capability, 30);
    EXPECT_GT(device.memory_bytes, 0u);
  }
}

}  // namespace
}  // namespace blockscale
