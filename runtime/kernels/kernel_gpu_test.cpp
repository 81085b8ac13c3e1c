// Loading and launching on a GPU: every kind of stream, threads, capture, clusters, shared memory.
#include "runtime/kernels/kernel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "core/tensor_map.h"
#include "models/testing.h"
#include "runtime/cuda/measure.h"
#include "runtime/cuda/tensor_map.h"
#include "tests/gpu.h"
#include "tests/sample_kernel.h"
#include "tests/stream_gate.h"

namespace blockscale::runtime {
namespace {

using test::sample_spec;
using test::ScaleParameters;

constexpr int kItems = 4;
constexpr int kCount = 10'000;
constexpr float kFactor = 2.5f;

/// Reads a whole dynamic shared array that each block of the cluster fills.
constexpr std::string_view kSharedKernel = R"(#pragma once
#include "sample/parameters.h"
namespace sample {
template <int kWords>
__device__ __forceinline__ void gather(const ScaleParameters& p) {
  extern __shared__ float words[];
  for (int i = threadIdx.x; i < kWords; i += blockDim.x) words[i] = p.x[i % p.count] * p.factor;
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;");
  unsigned size;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
  for (int i = threadIdx.x; i < p.count; i += blockDim.x) {
    p.out[blockIdx.x * p.count + i] = words[kWords - p.count + i] + size;
  }
}
}  // namespace sample
)";

class KernelOnGpu : public test::OnHopper {
 protected:
  void SetUp() override {
    OnHopper::SetUp();
    if (IsSkipped()) return;
    for (int i = 0; i < kCount; ++i) values_.push_back(static_cast<float>(i % 977));
    x_ = DeviceBuffer(kCount * sizeof(float));
    x_.copy_from_host(values_.data(), x_.bytes());
    out_ = DeviceBuffer(kCount * sizeof(float));
  }

  static float* floats(const DeviceBuffer& buffer) {
    return reinterpret_cast<float*>(buffer.data());
  }
  static std::vector<float> download(const DeviceBuffer& buffer) {
    wait_for_device();
    std::vector<float> values(buffer.bytes() / sizeof(float));
    buffer.copy_to_host(values.data(), buffer.bytes());
    return values;
  }
  const float* x() const { return floats(x_); }
  ScaleParameters parameters() { return {x(), floats(out_), kFactor, kCount}; }
  LaunchShape shape() const {
    return {.grid = {static_cast<std::uint32_t>(ceil_div(kCount, 128 * kItems))}, .block = {128}};
  }
  void expect_scaled() const {
    const std::vector<float> out = download(out_);
    for (int i = 0; i < kCount; ++i) {
      const auto at = static_cast<std::size_t>(i);
      ASSERT_EQ(out[at], kFactor * values_[at]) << i;
    }
  }

  test::ScratchFolder folder_;
  KernelStore store_{test::sample_sources(), [](const std::string&) { return ""; },
                     KernelCache(folder_.path())};
  KernelSet set_{{sample_spec(kItems), sample_spec(2)}, store_};
  std::vector<float> values_;
  DeviceBuffer x_;
  DeviceBuffer out_;
};

/// In that stream: while it is held back, nothing is written.
TEST_F(KernelOnGpu, RunsOnEveryKindOfStream) {
  const DeviceStream own;
  const test::Peephole peephole;
  void* const legacy = reinterpret_cast<void*>(1);          // CU_STREAM_LEGACY
  void* const per_thread = reinterpret_cast<void*>(2);      // CU_STREAM_PER_THREAD
  launch(set_.get(0, 90), shape(), nullptr, parameters());  // loads it
  wait_for_device();
  for (void* const stream : {static_cast<void*>(nullptr), legacy, per_thread, own.handle()}) {
    out_.fill(0xff);
    test::StreamGate gate(stream);
    launch(set_.get(0, 90), shape(), stream, parameters());
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const std::vector<std::uint8_t> held = peephole.read(out_.data(), out_.bytes());
    EXPECT_THAT(held, testing::Each(0xff)) << stream;
    ASSERT_TRUE(gate.has_held()) << stream;
    gate.open();
    expect_scaled();
  }
}

TEST_F(KernelOnGpu, RunsFromManyThreads) {
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const cuda::DeviceScope device(0);
      const DeviceStream stream;
      for (int repeat = 0; repeat < 20; ++repeat) {
        const LaunchShape wide = {.grid = {static_cast<std::uint32_t>(ceil_div(kCount, 256))},
                                  .block = {128}};
        launch(set_.get(i % 2, 90), i % 2 == 0 ? shape() : wide, stream.handle(), parameters());
      }
      stream.wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect_scaled();
}

TEST_F(KernelOnGpu, IsLoadedAndLaunchedWithinACapture) {
  const DeviceStream stream;
  const DeviceGraph graph(stream, [&](void* captured) {
    launch(set_.get(0, 90), shape(), captured, parameters());  // the first use of this kernel
  });
  out_.fill(0xff);
  graph.launch(stream);
  stream.wait();
  expect_scaled();
}

TEST_F(KernelOnGpu, RunsWithProgrammaticDependentLaunch) {
  const DeviceStream stream;
  LaunchShape dependent = shape();
  dependent.programmatic_dependent_launch = true;
  for (int i = 0; i < 3; ++i) launch(set_.get(0, 90), dependent, stream.handle(), parameters());
  stream.wait();
  expect_scaled();
}

TEST_F(KernelOnGpu, UsesWhatTheCompilerSaid) {
  const Kernel& kernel = set_.get(0, 90);
  int registers = 0, local = -1;
  driver().kernel_attribute(&registers, cu::FunctionAttribute::registers, kernel.handle(), 0);
  driver().kernel_attribute(&local, cu::FunctionAttribute::local_bytes, kernel.handle(), 0);
  EXPECT_EQ(static_cast<std::uint32_t>(registers), kernel.resources().registers);
  EXPECT_EQ(local, 0);
}

TEST_F(KernelOnGpu, HasLargeSharedMemoryAndClusters) {
  constexpr int kWords = 50'000;  // 200 kB
  constexpr int kRow = 1000;
  KernelSpec spec = sample_spec();
  spec.name = "sample_gather";
  spec.call = "sample::gather<50000>";
  KernelStore store(
      test::sample_sources(kSharedKernel), [](const std::string&) { return ""; },
      KernelCache(folder_.path()));
  KernelSet set({spec}, store);
  for (const std::uint32_t cluster : {1u, 2u, 8u, 16u}) {
    DeviceBuffer out(16 * kRow * sizeof(float));
    const LaunchShape shape = {
        .grid = {16}, .block = {128}, .cluster = {cluster}, .dynamic_shared_bytes = kWords * 4};
    launch(set.get(0, 90), shape, nullptr, ScaleParameters{x(), floats(out), kFactor, kRow});
    const std::vector<float> result = download(out);
    for (std::size_t i = 0; i < result.size(); ++i) {
      const std::size_t word = kWords - kRow + i % kRow;
      ASSERT_EQ(result[i], values_[word % kRow] * kFactor + static_cast<float>(cluster)) << i;
    }
  }
}

TEST_F(KernelOnGpu, DriverEncodesTensorMaps) {
  TensorMapDescription d;
  d.address = reinterpret_cast<std::uintptr_t>(x_.data());
  d.rank = 2;
  d.element = TensorMapElement::f32;
  d.sizes[0] = 100;
  d.sizes[1] = 100;
  d.strides[0] = 400;
  d.box[0] = 32;
  d.box[1] = 64;
  d.element_strides[0] = d.element_strides[1] = 1;
  d.swizzle = TensorMapSwizzle::bytes_128;
  const TensorMap map = encode_tensor_map(d), again = encode_tensor_map(d);
  EXPECT_NE(map.words[0] | map.words[1] | map.words[2], 0u);
  EXPECT_EQ(std::memcmp(&map, &again, sizeof map), 0);
}

}  // namespace
}  // namespace blockscale::runtime
