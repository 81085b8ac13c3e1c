// The kernels of few rows with weights in FP4 and MXFP8 on a GPU: every pair, layout, division and
// epilogue against the float64 reference and its committed bound, and bit for bit from run to run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/test/plain_on_device.h"
#include "ops/gemm/test/plain_problem.h"
#include "tests/gpu.h"

namespace blockscale {
namespace {

using gemm_detail::Fp4Division;
using gemm_detail::GemmPath;
using test::InputFamily;
using test::OnDevice;
using test::PlainProblem;
using test::problem_of;

class CudaGpuFp4Gemm : public test::OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped()) return;
    const auto& device = cuda::current_device();
    if (!gemm_detail::has_fp4_kernels(device)) GTEST_SKIP() << "no such kernels: " << device.name;
  }
};

bool is_on_sm120() {
  return gemm_detail::is_sm120(cuda::current_device());
}

/// The pairs that have a kernel on this GPU.
template <class Body>
void for_each_pair(const Body& body) {
  if (is_on_sm120()) {
    test::for_each_fp4_pair(body);
  } else {
    test::for_each_few_rows_pair(body);
  }
}

/// The largest error, as a part of what is allowed, of a fresh product by the door.
double share_of(OnDevice& problem, const PlainProblem& p) {
  const GemmArguments x = gemm_detail::validated(problem.arguments(), {});
  EXPECT_EQ(gemm_detail::plan_product(x, cuda::default_chip()).path(), GemmPath::fp4_few_rows);
  problem.multiply([&](const cuda::Execution& on) { cuda::gemm(problem.arguments(), on); });
  const gemm_detail::ErrorLimit limit =
      p.exact ? gemm_detail::ErrorLimit{} : gemm_detail::usual_error(GemmPath::fp4_few_rows);
  return test::compare(problem.on_host(), limit).largest_share;
}

void check(const PlainProblem& p) {
  OnDevice problem(p);
  EXPECT_LE(share_of(problem, p), 1) << p.str();
}

TEST_F(CudaGpuFp4Gemm, EveryPairLayoutAndEdge) {
  for_each_pair([](Recipe a, Recipe b) {
    for (const ScaleLayout layout :
         {ScaleLayout::row_major, ScaleLayout::swizzled_128x4, ScaleLayout::swizzled_8x4}) {
      for (std::int64_t m = 1; m <= 16; ++m) {
        for (const std::int64_t n : {1, 130, 512}) {
          PlainProblem p = problem_of(a, b, m, n, 32 * (1 + m * 7));
          p.b_layout = layout;
          check(p);
        }
      }
    }
  });
}

/// Sums of exact problems of a longer K have more bits than f32 where both operands have scales of
/// blocks.
std::int64_t longest_exact_k(Recipe a) {
  return recipe_traits(a).block_k != 0 ? 1056 : 1 << 20;
}

/// Integers and powers of two, whose sums are exact: nothing but D's own rounding is allowed.
TEST_F(CudaGpuFp4Gemm, ExactSums) {
  for_each_pair([](Recipe a, Recipe b) {
    for (const std::int64_t m : {1, 8, 13}) {
      for (const std::int64_t k : {256, 2048, 7168}) {
        if (k > longest_exact_k(a)) continue;
        PlainProblem p = problem_of(a, b, m, 300, k);
        p.exact = true;
        check(p);
      }
    }
  });
}

/// The same sums, but for the order in which parts of K are added.
TEST_F(CudaGpuFp4Gemm, Divisions) {
  if (is_on_sm120()) GTEST_SKIP() << "clusters of several blocks are Hopper's";
  for_each_pair([](Recipe a, Recipe b) {
    PlainProblem p = problem_of(a, b, 11, 4000, std::min<std::int64_t>(3104, longest_exact_k(a)));
    p.exact = true;
    OnDevice problem(p);
    (void)share_of(problem, p);
    const std::vector<std::uint8_t> expected = problem.download();
    for (const Fp4Division& division : {Fp4Division{1, 1, 1},
                                        {1, 16, 1},
                                        {1, 3, 5},
                                        {1, 1, 16},
                                        {2, 4, 2},
                                        {4, 1, 3},
                                        {8, 2, 8}}) {
      problem.multiply([&](const cuda::Execution& on) {
        gemm_detail::launch_fp4_gemm(problem.arguments(), division, on);
      });
      EXPECT_EQ(problem.download(), expected)
          << division.blocks_k << " " << division.warps_k << " " << division.block_tiles;
    }
  });
}

TEST_F(CudaGpuFp4Gemm, Epilogues) {
  for (const Format d : {Format::bf16, Format::f16, Format::f32}) {
    for (const TensorScaleSense sense : {TensorScaleSense::multiplier, TensorScaleSense::divisor}) {
      for (const std::int64_t m : {1, 9}) {
        PlainProblem p = problem_of(Recipe::bf16, Recipe::nvfp4, m, 141, 448);
        p.batch = 3;
        p.b_shared = m == 9;
        p.d = d;
        p.family = InputFamily::normal;
        p.extra_columns = 1;
        p.alpha = -0.01f;
        p.alpha_factor = true;
        p.beta = 2;
        p.bias = p.gate = true;
        p.sense = sense;
        check(p);
      }
    }
  }
}

TEST_F(CudaGpuFp4Gemm, SameBitsEachRun) {
  for (const std::int64_t m : {1, 16}) {
    const PlainProblem p = problem_of(Recipe::bf16, Recipe::nvfp4, m, 3000, 8192);
    OnDevice problem(p);
    test::expect_same_bits(problem, [&] { return share_of(problem, p); });
  }
}

/// The largest errors over 10^7 elements of each family: what ops/gemm/error_bound.h commits.
TEST_F(CudaGpuFp4Gemm, DISABLED_MeasureErrorConstants) {
  for (const InputFamily family :
       {InputFamily::normal, InputFamily::positive, InputFamily::adversarial}) {
    double largest = 0;
    std::int64_t elements = 0;
    for (std::int64_t turn = 0; elements < 10'000'000; ++turn) {
      for_each_pair([&](Recipe a, Recipe b) {
        for (const std::int64_t k : {96, 768, 4096}) {
          PlainProblem p = problem_of(a, b, 16, 4000 + turn, k);  // a seed of its own
          p.family = family;
          OnDevice problem(p);
          largest = std::max(largest, share_of(problem, p));
          elements += p.m * p.n;
        }
      });
    }
    std::printf("family %d: %.2f over %lld elements\n", static_cast<int>(family), largest,
                static_cast<long long>(elements));
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace blockscale
