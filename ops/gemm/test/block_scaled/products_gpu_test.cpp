// The kernels of products that take scales on a GPU of sm_120f: every pair, layout of scales and
// tile against the float64 reference and its committed bound, exact sums, and bit for bit from run
// to run. Nobody has run this yet.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>

#include "blockscale/cuda.h"
#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/test/block_scaled/problem.h"
#include "ops/gemm/test/plain_on_device.h"
#include "tests/gpu.h"

namespace blockscale {
namespace {

using gemm_detail::GemmPath;
using test::for_each_block_scaled_pair;
using test::in_atoms;
using test::InputFamily;
using test::OnDevice;
using test::PlainProblem;

class CudaGpuBlockScaled : public test::OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped()) return;
    const auto& device = cuda::current_device();
    if (device.architecture / 10 != 12) GTEST_SKIP() << "no sm_120f device: " << device.name;
  }
};

/// The largest error, as a part of what is allowed, of a fresh product by the door.
double by_door(OnDevice& problem, const PlainProblem& p) {
  const GemmArguments x = gemm_detail::validated(problem.arguments(), {});
  EXPECT_EQ(gemm_detail::plan_product(x, cuda::default_chip()).path(),
            GemmPath::sm120_block_scaled);
  problem.multiply([&](const cuda::Execution& on) { cuda::gemm(problem.arguments(), on); });
  const gemm_detail::ErrorLimit limit =
      p.exact ? gemm_detail::ErrorLimit{} : gemm_detail::usual_error(GemmPath::sm120_block_scaled);
  return test::compare(problem.on_host(), limit).largest_share;
}

void check(const PlainProblem& p) {
  OnDevice problem(p);
  EXPECT_LE(by_door(problem, p), 1) << p.str();
}

TEST_F(CudaGpuBlockScaled, EveryPairLayoutAndTile) {
  for_each_block_scaled_pair([](Recipe a, Recipe b, std::int64_t ragged_k) {
    for (const std::int64_t m : {1, 32, 33, 300}) {
      for (const std::int64_t n : {1, 130, 640}) {
        check(in_atoms(a, b, m, n, ragged_k));
        PlainProblem p = in_atoms(a, b, m, n, 1280);
        check(p);
        p.exact = true;
        p.k = 256;
        check(p);
        p.exact = false;
        p.a_layout = p.b_layout = ScaleLayout::row_major;
        check(p);
      }
    }
  });
}

TEST_F(CudaGpuBlockScaled, Epilogues) {
  test::for_each_epilogue(392, [](PlainProblem p) {
    p.m = 270;
    p.k = 544;
    p.a = p.b = Recipe::nvfp4;
    p.a_layout = p.b_layout = test::kAtoms;
    check(p);
    p.a = p.b = Recipe::mxfp8_e4m3;
    check(p);
  });
}

TEST_F(CudaGpuBlockScaled, SameBitsFromRunToRun) {
  for_each_block_scaled_pair([](Recipe a, Recipe b, std::int64_t) {
    for (const std::int64_t m : {20, 500}) {
      const PlainProblem p = in_atoms(a, b, m, 1000, 1536);
      OnDevice problem(p);
      test::expect_same_bits(problem, [&] { return by_door(problem, p); });
    }
  });
}

/// Long sums of one sign, of which each instruction cuts a little: the largest error as a part of
/// what is usual is printed.
TEST_F(CudaGpuBlockScaled, LongSums) {
  double largest = 0;
  for_each_block_scaled_pair([&](Recipe a, Recipe b, std::int64_t) {
    for (const InputFamily family : {InputFamily::normal, InputFamily::positive}) {
      PlainProblem p = in_atoms(a, b, 130, 260, 16384);
      p.family = family;
      OnDevice problem(p);
      const double share = by_door(problem, p);
      EXPECT_LE(share, 1) << p.str();
      largest = share > largest ? share : largest;
    }
  });
  std::printf("largest part of the usual error: %.3f\n", largest);
}

}  // namespace
}  // namespace blockscale
