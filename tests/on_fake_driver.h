// Tests of calls against a fake libcuda.so.1, whose packs have every kernel. The target names it:
// blockscale_use_fake_driver.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "ops/common/cuda/kernel_list.h"
#include "tests/fake_libcuda.h"
#include "tests/fake_pack.h"

namespace blockscale::test {

class OnFakeDriver : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("BLOCKSCALE_LIBCUDA", BLOCKSCALE_FAKE_LIBCUDA, 1);
    pack_ = std::make_unique<FakePack>(kernel_list());
  }
  static void TearDownTestSuite() { pack_.reset(); }
  void SetUp() override { fake_.reset(); }

  /// Memory of a device in the fake, 128 MiB of its own for each number up to 31.
  template <class Number = std::byte>
  static Number* memory(int part, int device = 0) {
    return reinterpret_cast<Number*>((static_cast<std::uintptr_t>(device + 1) << 32) +
                                     (static_cast<std::uintptr_t>(part) << 27));
  }

  inline static std::unique_ptr<FakePack> pack_;
  FakeCuda& fake_ = fake_cuda(BLOCKSCALE_FAKE_LIBCUDA);
};

}  // namespace blockscale::test
