// The plain kernels on a GPU: every pair, layout, edge and epilogue against the float64 reference
// and its committed bound, and bit for bit from run to run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/test/plain_on_device.h"
#include "ops/gemm/test/plain_problem.h"
#include "ops/gemm/test/transformed.h"
#include "runtime/cuda/measure.h"
#include "tests/gpu.h"

namespace blockscale {
namespace {

using runtime::DeviceBuffer;
using test::InputFamily;
using test::OnDevice;
using test::PlainOperands;
using test::PlainProblem;

constexpr PlainTile kTiles[] = {PlainTile::large, PlainTile::medium, PlainTile::small,
                                PlainTile::few_rows};

gemm_detail::ErrorLimit limit_of(const PlainProblem& p) {
  return p.exact ? gemm_detail::ErrorLimit{}
                 : gemm_detail::usual_error(gemm_detail::GemmPath::plain);
}

/// The largest error, as a part of what is allowed, of a fresh product by a tile.
double share_by(OnDevice& problem, const PlainProblem& p, const std::optional<PlainTile>& tile) {
  problem.multiply([&](const cuda::Execution& on) {
    gemm_detail::launch_plain_gemm(problem.arguments(), tile, on);
  });
  return test::compare(problem.on_host(), limit_of(p)).largest_share;
}

/// The largest error of d behind GELU, SiLU or SwiGLU, as a part of what is allowed, by the door.
double transformed_of_allowed(OnDevice& problem) {
  const std::int64_t needed = cuda::gemm_workspace_bytes(problem.arguments());
  const DeviceBuffer workspace(static_cast<std::size_t>(needed));
  problem.multiply([&](const cuda::Execution& on) {
    cuda::gemm(problem.arguments(), {on.stream, workspace.data(), needed});
  });
  const GemmArguments x = gemm_detail::validated(problem.on_host(), {});
  const gemm_detail::ProductPlan plan = gemm_detail::plan_product(x, cuda::default_chip());
  return test::largest_of_allowed(x, gemm_detail::usual_error(plan.path()));
}

void check(const PlainProblem& p, const std::optional<PlainTile>& tile = std::nullopt) {
  OnDevice problem(p);
  EXPECT_LE(share_by(problem, p, tile), 1)
      << p.str() << (tile ? ", tile " + std::to_string(static_cast<int>(*tile)) : "");
}

class CudaGpuPlainGemm : public test::OnGpu {};

TEST_F(CudaGpuPlainGemm, EveryPair) {
  for (const std::int64_t m : {7, 60}) {
    test::for_each_pair([&](Recipe a, Recipe b) {
      PlainProblem p = test::problem_of(a, b, m, 90, 416);
      check(p);
    });
  }
}

/// Integers and powers of two, whose sums are exact: nothing but D's own rounding is allowed.
TEST_F(CudaGpuPlainGemm, ExactSumsOfEveryPair) {
  test::for_each_pair([&](Recipe a, Recipe b) {
    PlainProblem p = test::problem_of(a, b, 33, 50, 320);
    p.exact = true;
    check(p);
  });
}

TEST_F(CudaGpuPlainGemm, EveryLayoutOfBothSides) {
  for (const auto& [a, b] : {std::pair{Recipe::nvfp4, Recipe::nvfp4},
                             {Recipe::mxfp4, Recipe::mxfp4},
                             {Recipe::mxfp8_e5m2, Recipe::mxfp6_e3m2},
                             {Recipe::fp8_1x128_ue8m0, Recipe::mxfp6_e2m3},
                             {Recipe::fp8_32x128, Recipe::nvfp4},
                             {Recipe::fp8_row, Recipe::mxfp8_e4m3},
                             {Recipe::fp8_128x128, Recipe::fp8_1x128_ue8m0}}) {
    for (const ScaleLayout a_layout : test::layouts_of(a)) {
      for (const ScaleLayout b_layout : test::layouts_of(b)) {
        PlainProblem p;
        p.a = a;
        p.b = b;
        p.a_layout = a_layout;
        p.b_layout = b_layout;
        p.m = 140;
        p.n = 137;
        p.k = 352;
        check(p, PlainTile::large);
        p.m = 3;
        check(p, PlainTile::few_rows);
      }
    }
  }
}

TEST_F(CudaGpuPlainGemm, EveryTileAndEdge) {
  for (const PlainTile tile : kTiles) {
    for (const Recipe a : {Recipe::bf16, Recipe::f16, Recipe::nvfp4}) {
      const PlainGemmConfig c = kPlainGemmKernels[kPlainGemmKernels.index(tile, Format::bf16)];
      for (const std::int64_t k : {16, c.depth, c.depth * 2 + 48, c.depth * 9}) {
        PlainProblem p;
        p.a = a;
        p.batch = 2;
        p.m = c.rows + 3;
        p.n = c.columns + 5;
        p.k = k;
        check(p, tile);
        p.m = c.rows - 1;
        p.n = c.columns;
        check(p, tile);
      }
    }
  }
}

TEST_F(CudaGpuPlainGemm, RowsThatBeginAnywhere) {
  for (const Recipe recipe : {Recipe::fp8_1x128, Recipe::fp8_tensor_e5m2, Recipe::mxfp6_e2m3,
                              Recipe::nvfp4, Recipe::bf16, Recipe::f32}) {
    const PlainTile few = recipe == Recipe::f32 ? PlainTile::small : PlainTile::few_rows;
    const int size = std::max(1, format_traits(recipe_traits(recipe).element).bits / 8);
    for (const std::int64_t odd : {0, 1, 4, 8}) {
      PlainProblem p;
      p.a = p.b = recipe;
      p.m = 70;
      p.n = 80;
      p.k = recipe_traits(recipe).ragged ? 323 : 320;
      p.batch = 2;
      p.odd_bytes = odd * size;
      p.extra_bytes = (odd == 8 ? 3 : odd) * size;
      check(p, PlainTile::medium);
      check(p, few);
    }
  }
}

TEST_F(CudaGpuPlainGemm, Epilogues) {
  test::for_each_epilogue(140, [](PlainProblem p) {
    p.a = p.b = Recipe::nvfp4;
    p.k = 256;
    for (const std::int64_t m : {2, 150}) {
      p.m = m;
      check(p);
    }
  });
}

TEST_F(CudaGpuPlainGemm, TransformsOfPlainResults) {
  for (const test::TransformCase& c : test::kTransformCases) {
    for (const Format d : {Format::bf16, Format::f16, Format::f32}) {
      for (const auto& [a, b] : {std::pair{Recipe::bf16, Recipe::nvfp4},
                                 {Recipe::f16, Recipe::mxfp4},
                                 {Recipe::fp8_1x128, Recipe::fp8_128x128}}) {
        for (const std::int64_t m : {1, 18, 200}) {
          const auto* const swiglu = std::get_if<Swiglu>(&c.input);
          PlainProblem p;
          p.a = a;
          p.b = b;
          p.transform = c.input;
          p.family = InputFamily::normal;
          p.d = d;
          p.m = m;
          p.n = swiglu == nullptr ? 301 : swiglu->group == 64 ? 384 : 302;
          p.k = 416;
          p.batch = 2;
          p.b_shared = m == 18;
          p.alpha = a == Recipe::fp8_1x128 ? 0x1p-15f : 0.125f;
          p.alpha_factor = true;
          p.beta = m == 1 ? 0.0f : -0.5f;
          p.bias = true;
          p.extra_columns = m == 200 ? 1 : 0;
          OnDevice problem(p);
          EXPECT_LE(transformed_of_allowed(problem), 1) << c.name << " " << p.str();
          const std::vector<std::uint8_t> first = problem.download();
          (void)transformed_of_allowed(problem);
          EXPECT_EQ(problem.download(), first) << c.name << " " << p.str();
        }
      }
    }
  }
}

TEST_F(CudaGpuPlainGemm, TheDoorTakesEveryPair) {
  PlainProblem p;
  p.a = Recipe::fp8_1x128;
  p.b = Recipe::mxfp6_e2m3;
  p.m = 20;
  OnDevice problem(p);
  const runtime::DeviceStream stream;
  cuda::gemm(problem.arguments(), {stream.handle()});
  stream.wait();
  const std::vector<std::uint8_t> by_door = problem.download();
  EXPECT_LE(share_by(problem, p, std::nullopt), 1);
  EXPECT_EQ(by_door, problem.download());
}

TEST_F(CudaGpuPlainGemm, SameBitsEachRun) {
  PlainProblem p;
  p.a = Recipe::mxfp8_e4m3;
  p.b = Recipe::mxfp4;
  p.n = 500;
  p.k = 2048;
  for (const std::int64_t m : {1, 300}) {
    p.m = m;
    OnDevice problem(p);
    test::expect_same_bits(problem, [&] { return share_by(problem, p, std::nullopt); });
  }
}

/// The largest errors over 10^7 elements of each family: what ops/gemm/error_bound.h commits.
TEST_F(CudaGpuPlainGemm, DISABLED_MeasureErrorConstants) {
  for (const InputFamily family :
       {InputFamily::normal, InputFamily::positive, InputFamily::adversarial}) {
    double largest = 0;
    std::int64_t elements = 0;
    const auto measure = [&](Recipe a, Recipe b, std::int64_t m, std::int64_t n, std::int64_t k) {
      PlainProblem p = test::problem_of(a, b, m, n, k);
      p.family = family;
      OnDevice problem(p);
      largest = std::max(largest, share_by(problem, p, std::nullopt));
      elements += m * n;
    };
    test::for_each_pair([&](Recipe a, Recipe b) { measure(a, b, 60, 400, 288); });
    measure(Recipe::nvfp4, Recipe::nvfp4, 800, 1000, 768);
    measure(Recipe::bf16, Recipe::bf16, 1400, 1000, 768);
    measure(Recipe::mxfp8_e4m3, Recipe::mxfp4, 16, 4000, 768);
    std::printf("family %d: %.2f over %lld elements\n", static_cast<int>(family), largest,
                static_cast<long long>(elements));
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace blockscale
