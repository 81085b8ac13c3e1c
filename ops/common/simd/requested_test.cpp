// BLOCKSCALE_SIMD, in processes of their own: it is read once.
#include "ops/common/simd/requested.h"

#include <gtest/gtest.h>

#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>

#include "blockscale/error.h"
#include "blockscale/gemm.h"
#include "blockscale/system.h"
#include "ops/common/simd/amx.h"
#include "tests/child_process.h"
#include "tests/simd_targets.h"

namespace blockscale {
namespace {

/// What `body` returns in a process that has this value of BLOCKSCALE_SIMD.
int with_simd(const std::string& value, const std::function<int()>& body) {
  return test::wait_for(test::spawn([&] {
    ::setenv("BLOCKSCALE_SIMD", value.c_str(), 1);
    return body();
  }));
}

/// The code of the error that products and simd_target end in; 99 without one.
int error_of_gemm() {
  for (int i = 0; i < 2; ++i) {
    try {
      if (i == 0) {
        gemm({});
      } else {
        (void)simd_target();
      }
      return 99;
    } catch (const Error& error) {
      if (std::string(error.what()).find("BLOCKSCALE_SIMD") == std::string::npos) return 98;
      if (i == 1) return static_cast<int>(error.code());
    }
  }
  return 97;
}

TEST(RequestedSimd, EachOfThisMachineIsUsed) {
  for (const std::int64_t target : test::simd_targets()) {
    std::string name = hwy::TargetName(target);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(with_simd(name, [&] { return simd_target() == hwy::TargetName(target) ? 0 : 1; }),
                0)
          << name;
      for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
}

TEST(RequestedSimd, AmxIsUsedUnlessAnotherIsNamed) {
  if (!has_amx()) {
    EXPECT_EQ(with_simd("amx", error_of_gemm), static_cast<int>(ErrorCode::unsupported));
    GTEST_SKIP() << "no AMX";
  }
  const auto uses = [] {
    use_requested_simd();
    return uses_amx() ? 1 : 0;
  };
  const std::string best = hwy::TargetName(test::simd_targets().front());
  EXPECT_EQ(with_simd("", uses), 1);
  EXPECT_EQ(with_simd("amx", uses), 1);
  EXPECT_EQ(with_simd(best, uses), 0);
}

TEST(RequestedSimd, AbsentOrEmptyIsTheBest) {
  const std::string best = hwy::TargetName(test::simd_targets().front());
  EXPECT_EQ(with_simd("", [&] { return simd_target() == best ? 0 : 1; }), 0);
}

TEST(RequestedSimd, UnknownNamesAreRefusedByEveryCall) {
  EXPECT_EQ(with_simd("avx9", error_of_gemm), static_cast<int>(ErrorCode::invalid_argument));
}

TEST(RequestedSimd, WhatTheCpuLacksIsRefused) {
  const std::int64_t missing = HWY_TARGETS & ~hwy::SupportedTargets();
  if (missing == 0) GTEST_SKIP() << "this CPU has every instruction set that is compiled";
  EXPECT_EQ(with_simd(hwy::TargetName(missing & -missing), error_of_gemm),
            static_cast<int>(ErrorCode::unsupported));
}

}  // namespace
}  // namespace blockscale
