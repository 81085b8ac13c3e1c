// cuda::quantize on several GPUs of one process. Skipped, and says so, where there are not two.
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/quantize/test/gpu_support.h"
#include "runtime/cuda/measure.h"
#include "tests/expect_error.h"
#include "tests/gpu.h"

namespace blockscale {
namespace {

using runtime::DeviceBuffer;
using runtime::DeviceStream;
using test::Case;
using test::check;
using test::Data;
using test::GpuCall;
using test::random_elements;
using test::size_of;

class CudaDevices : public test::OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped()) return;
    for (const cuda::DeviceTraits& device : cuda::devices()) {
      if (device.architecture == 90) ordinals_.push_back(device.ordinal);
    }
    if (ordinals_.size() < 2) GTEST_SKIP() << "no second GPU";
  }

  std::vector<int> ordinals_;
};

/// A call, its memory and its stream, on one device.
struct CallOnDevice {
  CallOnDevice(const Case& c, const std::vector<std::uint8_t>& elements)
      : call(c, elements), workspace(size_of(call.workspace_bytes())) {}

  GpuCall call;
  DeviceBuffer workspace;
  DeviceStream stream;
};

/// Kernels of one launch and of two, with and without a workspace.
std::vector<Case> some_cases() {
  std::vector<Case> cases;
  for (const Recipe recipe :
       {Recipe::mxfp4, Recipe::nvfp4, Recipe::fp8_128x128, Recipe::fp8_row, Recipe::fp8_tensor}) {
    Case c{recipe};
    c.rows = 200;
    c.k = 1024;
    cases.push_back(c);
    test::use(c, InputTransform::gelu_tanh);
    cases.push_back(c);
  }
  return cases;
}

/// Kernels that nobody has used before are loaded into the contexts of all devices at the same
/// time.
TEST_F(CudaDevices, HaveThreadsOfTheirOwn) {
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < 4 * ordinals_.size(); ++i) {
    threads.emplace_back([this, i] {
      try {
        const cuda::DeviceScope scope(ordinals_[i % ordinals_.size()]);
        for (const Case& c : some_cases()) check(c, random_elements(c, Data::normal, 7 + i));
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// The memory says which device a call is for, whichever is current.
TEST_F(CudaDevices, TakeTurnsInOneThread) {
  for (const Case& c : some_cases()) {
    std::vector<std::unique_ptr<CallOnDevice>> calls;
    for (const int ordinal : ordinals_) {
      const cuda::DeviceScope scope(ordinal);
      const auto seed = static_cast<std::uint32_t>(ordinal);
      calls.push_back(
          std::make_unique<CallOnDevice>(c, random_elements(c, Data::normal, 20 + seed)));
    }
    for (int turn = 0; turn < 3; ++turn) {
      for (const auto& on : calls) on->call.run(on->stream.handle(), on->workspace);
    }
    EXPECT_EQ(cuda::current_device().ordinal, 0);
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const cuda::DeviceScope scope(ordinals_[i]);
      calls[i]->stream.wait();
      calls[i]->call.expect_bytes_of_cpu();
    }
  }
}

TEST_F(CudaDevices, AreNotMixedInOneCall) {
  const Case c{Recipe::mxfp4};
  const std::vector<std::uint8_t> elements = random_elements(c, Data::normal, 1);
  DeviceBuffer x(elements.size()), scales(8);
  std::unique_ptr<DeviceBuffer> elsewhere;
  {
    const cuda::DeviceScope scope(ordinals_[1]);
    elsewhere = std::make_unique<DeviceBuffer>(64);
  }
  ScaledTensor shape(c.recipe, c.rows, c.k);
  MutableScaledTensorView out = shape.view();
  out.values = elsewhere->data();
  out.scales = scales.data();
  test::expect_invalid("out.values", "must be on 0 like x.data",
                       [&] { cuda::quantize({x.data(), c.dtype, c.rows, c.k}, out); });
}

}  // namespace
}  // namespace blockscale
