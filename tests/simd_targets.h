// Runs tests once for every instruction set of this machine.
#pragma once

#define BLOCKSCALE_WANT_AVX3_DL
#include "ops/common/simd/targets.h"
//
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/sanitizer_test_share.h"
#include "ops/common/simd/amx.h"

namespace blockscale::test {

/// The instruction sets that are compiled in and that this machine has, one bit each.
inline std::vector<std::int64_t> simd_targets() {
  std::vector<std::int64_t> result;
  for (std::int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    result.push_back(left & -left);
  }
  return result;
}

/// The best instruction set and AMX, which is no target of Highway's.
inline constexpr std::int64_t kAmx = 0;

/// What tests of products run on: simd_targets(), and kAmx, where they skip without AMX.
inline std::vector<std::int64_t> product_targets() {
  std::vector<std::int64_t> result = simd_targets();
  result.push_back(kAmx);
  return result;
}

inline std::string target_name(std::int64_t target) {
  return target == kAmx ? "AMX" : hwy::TargetName(target);
}

/// Whether this machine has one of product_targets().
inline bool has_target(std::int64_t target) {
  return target != kAmx || has_amx();
}

/// While it lives, dynamic dispatch chooses `target`, or the best below it where a file is not
/// compiled for it: as on a CPU that has no better one.
class UseSimdTarget {
 public:
  explicit UseSimdTarget(std::int64_t target)
      : saved_(hwy::SupportedTargets()),
        saved_amx_(uses_amx()),
        is_best_(target == kAmx || target == simd_targets().front()) {
    use_amx(target == kAmx && has_amx());
    if (target != kAmx) use(saved_ & ~(target - 1));
  }
  ~UseSimdTarget() {
    use(saved_);
    use_amx(saved_amx_);
  }
  UseSimdTarget(const UseSimdTarget&) = delete;
  UseSimdTarget& operator=(const UseSimdTarget&) = delete;

  /// Whether nothing better is here; simd_targets() no longer tells.
  bool is_best() const { return is_best_; }

 private:
  static void use(std::int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(targets);
  }

  std::int64_t saved_;
  bool saved_amx_;
  bool is_best_;
};

/// Tests of products, one for each of product_targets().
class OnSimdTarget : public testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override {
    if (!has_target(GetParam())) GTEST_SKIP() << "no AMX";
  }
  /// Whether all cases are tried, or a part of them: by the best instruction set, without
  /// sanitizers.
  bool tries_all() const { return use_.is_best() && !kIsSanitized; }

 private:
  UseSimdTarget use_{GetParam()};
};

}  // namespace blockscale::test
