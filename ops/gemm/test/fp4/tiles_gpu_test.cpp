// The kernels of many rows with weights in FP4, or in 16 bits, on a GPU: every pair, layout, tile,
// division and epilogue against the float64 reference and its committed bound, and bit for bit from
// run to run.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/test/plain_on_device.h"
#include "ops/gemm/test/plain_problem.h"
#include "tests/gpu.h"

namespace blockscale {
namespace {

using gemm_detail::Fp4TilesDivision;
using gemm_detail::GemmPath;
using test::for_each_16_bit_tiles_pair;
using test::for_each_converted_pair;
using test::for_each_fp4_pair;
using test::InputFamily;
using test::OnDevice;
using test::PlainProblem;
using test::problem_of;

class CudaGpuFp4Tiles : public test::OnHopper {};

double share_of(const OnDevice& problem, const PlainProblem& p, GemmPath path) {
  const gemm_detail::ErrorLimit limit =
      p.exact ? gemm_detail::ErrorLimit{} : gemm_detail::usual_error(path, p.k);
  return test::compare(problem.on_host(), limit).largest_share;
}

/// Has a fresh product computed by launch(execution), with so many bytes of workspace.
template <class Launch>
void multiply(OnDevice& problem, std::int64_t needed, const Launch& launch) {
  const runtime::DeviceBuffer workspace(static_cast<std::size_t>(needed));
  problem.multiply([&](const cuda::Execution& on) {
    launch(cuda::Execution{on.stream, workspace.data(), needed});
  });
}

/// The largest error, as a part of what is allowed, of a fresh product by the door, by tiles.
double by_door(OnDevice& problem, const PlainProblem& p) {
  const GemmArguments x = gemm_detail::validated(problem.arguments(), {});
  const GemmPath path = gemm_detail::plan_product(x, cuda::default_chip()).path();
  EXPECT_TRUE(path == GemmPath::sm90_fp4_tiles || path == GemmPath::sm90_fp8 ||
              path == GemmPath::sm90_fp8_fast);
  multiply(problem, cuda::gemm_workspace_bytes(problem.arguments()),
           [&](const cuda::Execution& on) { cuda::gemm(problem.arguments(), on); });
  return share_of(problem, p, path);
}

void check(const PlainProblem& p) {
  OnDevice problem(p);
  EXPECT_LE(by_door(problem, p), 1) << p.str();
}

/// The same of a product by a division, which there is.
double by_division(OnDevice& problem, const PlainProblem& p, const Fp4TilesDivision& division) {
  const GemmArguments x = gemm_detail::validated(problem.arguments(), {});
  const auto plan = gemm_detail::plan_fp4_tiles(x, cuda::default_chip(), nullptr, division);
  if (!plan) return HUGE_VAL;
  multiply(problem, plan->workspace_bytes, [&](const cuda::Execution& on) {
    gemm_detail::launch_fp4_gemm(problem.arguments(), division, on);
  });
  return share_of(problem, p, plan->path());
}

void check(const PlainProblem& p, const Fp4TilesDivision& division) {
  OnDevice problem(p);
  EXPECT_LE(by_division(problem, p, division), 1)
      << p.str() << " " << division.tokens << " " << division.blocks_k;
}

TEST_F(CudaGpuFp4Tiles, EveryPairLayoutAndTile) {
  for_each_fp4_pair([](Recipe a, Recipe b) {
    for (const ScaleLayout layout :
         {ScaleLayout::row_major, ScaleLayout::swizzled_128x4, ScaleLayout::swizzled_8x4}) {
      for (const int tokens : {64, 128, 256}) {
        for (const std::int64_t m : {17, 64, 300}) {
          for (const std::int64_t n : {1, 130, 640}) {
            PlainProblem p = problem_of(a, b, m, n, 32 * (1 + m % 13 * 5));
            p.b_layout = layout;
            check(p, Fp4TilesDivision{tokens, 1});
          }
        }
      }
    }
  });
}

/// Integers and powers of two, whose sums are exact: nothing but D's own rounding is allowed.
TEST_F(CudaGpuFp4Tiles, ExactSums) {
  for_each_fp4_pair([](Recipe a, Recipe b) {
    for (const std::int64_t m : {20, 200, 1000}) {
      for (const std::int64_t k : {256, 2048}) {
        PlainProblem p = problem_of(a, b, m, 300, k);
        p.exact = true;
        check(p);
      }
    }
  });
}

TEST_F(CudaGpuFp4Tiles, Divisions) {
  for_each_fp4_pair([](Recipe a, Recipe b) {
    for (const int tokens : {64, 128, 256}) {
      for (const std::uint32_t blocks : {2u, 4u, 8u}) {
        check(problem_of(a, b, 50, 520, 3104), Fp4TilesDivision{tokens, blocks});
      }
    }
  });
}

/// Several tiles a block, one after the other.
TEST_F(CudaGpuFp4Tiles, ManyTiles) {
  for_each_fp4_pair([](Recipe a, Recipe b) {
    for (const int tokens : {64, 256}) {
      PlainProblem p = problem_of(a, b, 1100, 6000, 416);
      check(p, Fp4TilesDivision{tokens, 1});
    }
  });
}

/// Scales of every exponent from 2^-30 to 2^50, many of which have no factor.
TEST_F(CudaGpuFp4Tiles, ScalesFarApart) {
  for (const Recipe a : {Recipe::bf16, Recipe::f16}) {
    PlainProblem p = problem_of(a, Recipe::mxfp4, 150, 260, 1056);
    p.family = InputFamily::adversarial;
    for (const int tokens : {64, 128, 256}) check(p, Fp4TilesDivision{tokens, 1});
  }
}

TEST_F(CudaGpuFp4Tiles, Epilogues) {
  test::for_each_epilogue(392, [](PlainProblem p) {
    for (const std::int64_t m : {33, 270}) {
      p.m = m;
      p.k = 544;
      p.a = Recipe::bf16;
      p.b = Recipe::nvfp4;
      check(p);
      p.a = Recipe::f16;
      p.b = Recipe::mxfp4;
      check(p);
    }
  });
}

/// Rows of A become bf16 first, wherever they begin and however many there are.
TEST_F(CudaGpuFp4Tiles, ConvertedRows) {
  for_each_converted_pair([](Recipe a, Recipe b) {
    const int most = test::most_tokens_of(a);
    for (const std::int64_t m : {17, 200, 1100}) {
      PlainProblem p = problem_of(a, b, m, 520, 1056);
      p.exact = true;
      check(p, {most, 1});
      p.exact = false;
      p.a_odd_bytes = 3;
      p.batch = 3;
      check(p);
      for (const int tokens : {64, 128, 256}) {
        if (tokens <= most) check(p, Fp4TilesDivision{tokens, 1});
      }
      check(p, Fp4TilesDivision{64, 2});
    }
    PlainProblem p = problem_of(a, b, 500, 1000, 1504);
    OnDevice problem(p);
    test::expect_same_bits(problem, [&] { return by_door(problem, p); });
  });
}

TEST_F(CudaGpuFp4Tiles, EpiloguesOfConvertedRows) {
  test::for_each_epilogue(392, [](PlainProblem p) {
    p.m = 270;
    p.k = 544;
    p.a = Recipe::nvfp4;
    check(p);
    p.a = Recipe::fp8_row;
    p.b = Recipe::mxfp4;
    check(p);
  });
}

/// Rows that stay in FP8, beside scales that fold into e4m3 and, far apart, that do not.
TEST_F(CudaGpuFp4Tiles, RowsInFp8) {
  for (const Recipe a : {Recipe::fp8_row, Recipe::fp8_tensor}) {
    for (const InputFamily family : {InputFamily::normal, InputFamily::adversarial}) {
      PlainProblem p = problem_of(a, Recipe::mxfp4, 270, 200, 1056);
      p.family = family;
      for (const bool fast : {false, true}) {
        p.fast_accumulation = fast;
        for (const int tokens : {64, 128, 256}) check(p, {tokens, tokens == 128 ? 3u : 1u, true});
        check(p);
      }
    }
    PlainProblem p = problem_of(a, Recipe::mxfp4, 300, 2000, 544);
    p.family = InputFamily::normal;
    OnDevice problem(p);
    test::expect_same_bits(problem, [&] { return by_division(problem, p, {256, 1, true}); });
  }
}

/// A sum of 3072 and, in the next stage, 2^(1 - difference), which the tensor cores do not hold
/// together. With fast accumulation they have both, as long as the first stage's tables have room
/// for the other's scale.
TEST_F(CudaGpuFp4Tiles, FastAccumulation) {
  for (const bool fast : {false, true}) {
    for (const std::uint32_t difference : {5u, 6u}) {
      PlainProblem p = problem_of(Recipe::fp8_row, Recipe::mxfp4, 300, 200, 384);
      p.exact = true;
      p.fast_accumulation = fast;
      OnDevice problem(p, [&](test::PlainOperands& operands) {
        std::memset(operands.a_values().at(), 0x48, 300 * 384);  // fours
        for (std::int64_t row = 0; row < p.n; ++row) {
          std::uint8_t* const codes = operands.b_values().at() + row * 192;
          std::memset(codes, 0, 192);
          std::memset(codes, 0x77, 64);  // sixes
          codes[64] = 1;                 // 0.5
          for (std::int64_t block = 0; block < p.k / 32; ++block) {
            operands.b().set_scale(row, block, block == 4 ? 127 - difference : 127);
          }
        }
      });
      const double share = by_division(problem, p, {256, 1, true});
      const bool is_held = !fast || difference == 6;
      EXPECT_EQ(share <= 1, is_held) << difference << (fast ? " fast" : "");
    }
  }
}

/// Weights in 16 bits, and those that become bf16 wherever they begin.
TEST_F(CudaGpuFp4Tiles, WeightsInSixteenBits) {
  for_each_16_bit_tiles_pair([](Recipe a, Recipe b) {
    if (is_plain(b)) check(problem_of(a, b, 130, 264, 1056));
    for (const std::int64_t m : {130, 300}) {
      PlainProblem p = problem_of(a, b, m, 136, 608);
      p.exact = true;
      check(p, {128, 1});
      p.exact = false;
      if (!is_plain(a)) p.odd_bytes = 3;
      p.batch = 2;
      for (const std::uint32_t blocks : {1u, 2u, 8u}) check(p, {128, blocks});
      for (const std::uint32_t blocks : {1u, 3u}) check(p, {256, blocks});
    }
    check(problem_of(a, b, 520, 4000, 64), {128, 1});  // several tiles a block
    PlainProblem p = problem_of(a, b, 130, 264, 1504);
    OnDevice problem(p);
    test::expect_same_bits(problem, [&] { return by_division(problem, p, {128, 2}); });
  });
  for (const std::int64_t k : {8, 72, 1000}) {
    check(problem_of(Recipe::f16, Recipe::f16, 70, 90, k), {128, 1});
  }
}

/// The product of B itself behind that of what it became, where bf16 lacks a number. The next call
/// in the same workspace has the bits that it had before.
TEST_F(CudaGpuFp4Tiles, NumbersThatSixteenBitsLack) {
  PlainProblem p = problem_of(Recipe::bf16, Recipe::mxfp8_e4m3, 1100, 520, 1856);
  OnDevice usual(p);
  p.exact = true;
  OnDevice lost(p, [](test::PlainOperands& operands) { test::lose_a_row(operands, 200); });
  const std::int64_t bytes = cuda::gemm_workspace_bytes(lost.arguments());
  const runtime::DeviceBuffer workspace(static_cast<std::size_t>(bytes));
  const auto multiply_in_workspace = [&](OnDevice& problem) {
    problem.multiply([&](const cuda::Execution& on) {
      cuda::gemm(problem.arguments(), {on.stream, workspace.data(), bytes});
    });
    return problem.download();
  };
  const std::vector<std::uint8_t> first = multiply_in_workspace(usual);
  (void)multiply_in_workspace(lost);
  EXPECT_LE(share_of(lost, p, GemmPath::plain), 1);
  EXPECT_EQ(multiply_in_workspace(usual), first);
}

TEST_F(CudaGpuFp4Tiles, EpiloguesOfWeightsInSixteenBits) {
  test::for_each_epilogue(392, [](PlainProblem p) {
    p.m = 270;
    p.k = 544;
    p.a = p.b = Recipe::f16;
    check(p, {256, 1});
    p.a = Recipe::fp8_row;
    p.b = Recipe::mxfp8_e4m3;
    check(p, {128, 1});
  });
}

TEST_F(CudaGpuFp4Tiles, SameBitsFromRunToRun) {
  for_each_fp4_pair([](Recipe a, Recipe b) {
    for (const std::int64_t m : {40, 500}) {
      PlainProblem p = problem_of(a, b, m, 1000, 1504);
      OnDevice problem(p);
      test::expect_same_bits(problem, [&] { return by_door(problem, p); });
    }
  });
}

/// Long sums of one sign, of which each instruction cuts a little: the largest error as a part of
/// what is usual is printed.
TEST_F(CudaGpuFp4Tiles, LongSums) {
  double largest = 0;
  const auto check_long = [&](Recipe a, Recipe b) {
    for (const InputFamily family : {InputFamily::normal, InputFamily::positive}) {
      PlainProblem p = problem_of(a, b, 130, 260, 16384);
      p.family = family;
      OnDevice problem(p);
      const bool is_fp4 = format_traits(recipe_traits(b).element).bits == 4;
      const double share = is_fp4 ? by_door(problem, p) : by_division(problem, p, {128, 1});
      EXPECT_LE(share, 1) << p.str();
      largest = share > largest ? share : largest;
    }
  };
  for_each_fp4_pair(check_long);
  for_each_16_bit_tiles_pair(check_long);
  std::printf("largest part of the usual error: %.3f\n", largest);
}

}  // namespace
}  // namespace blockscale
