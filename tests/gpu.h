// Tests and benchmarks that need a GPU; runtime/cuda/measure.h has memory, streams and graphs for
// them.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string_view>

#include "blockscale/device.h"
#include "blockscale/error.h"
#include "runtime/cuda/measure.h"

namespace blockscale::test {

/// Whether kernels can run here. Throws if a driver is there and does not work, and if there is no
/// GPU although BLOCKSCALE_REQUIRE_GPU is set.
inline bool has_gpu() {
  try {
    (void)cuda::devices();
    return true;
  } catch (const Error& error) {
    const bool none = std::string_view(error.what()).starts_with("no GPU");
    if (!none || std::getenv("BLOCKSCALE_REQUIRE_GPU") != nullptr) throw;
    return false;
  }
}

/// A fixture whose tests run with device 0 current, or say that they are skipped.
class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU";
    device_ = std::make_unique<cuda::DeviceScope>(0);
  }
  void TearDown() override {
    if (device_ != nullptr) runtime::wait_for_device();
  }

 private:
  std::unique_ptr<cuda::DeviceScope> device_;
};

/// The same for kernels of sm_90a.
class OnHopper : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped()) return;
    const auto& device = cuda::current_device();
    if (device.architecture != 90) GTEST_SKIP() << "no sm_90a device: " << device.name;
  }
};

}  // namespace blockscale::test
