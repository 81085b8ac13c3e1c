// NVRTC for tests, which say that they are skipped where there is none.
#pragma once

#include <gtest/gtest.h>

#include "blockscale/error.h"
#include "runtime/cuda/nvrtc.h"

namespace blockscale::test {

/// Null if none is found; one that is found but does not work throws.
inline const runtime::Nvrtc* find_nvrtc() {
  try {
    return &runtime::Nvrtc::instance();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found) throw;
    return nullptr;
  }
}

/// A fixture whose tests have `nvrtc_`.
class WithNvrtc : public testing::Test {
 protected:
  void SetUp() override {
    if (nvrtc_ == nullptr) GTEST_SKIP() << "no libnvrtc: set BLOCKSCALE_NVRTC";
  }

  const runtime::Nvrtc* nvrtc_ = find_nvrtc();
};

}  // namespace blockscale::test
