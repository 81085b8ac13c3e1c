// cuda::grouped_gemm and its kin on a GPU against the float64 reference and the bound.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <variant>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/common/cuda/cold_calls.h"
#include "ops/grouped_gemm/check.h"
#include "ops/grouped_gemm/cuda/plan.h"
#include "ops/grouped_gemm/test/k_grouped_reference.h"
#include "ops/grouped_gemm/test/launched_problem.h"
#include "runtime/cuda/measure.h"
#include "tests/expect_error.h"
#include "tests/gpu.h"

namespace blockscale {
namespace {

using runtime::DeviceBuffer;
using runtime::DeviceStream;
using test::GroupedCase;
using test::InputFamily;
using test::LaunchedProblem;
using test::Random;

/// A problem whose memory lies on the device, in exact allocations, so that a sanitizer sees what
/// is touched beside it.
using OnDevice = cuda::DeviceArguments<GroupedGemmArguments>;
OnDevice on_device(LaunchedProblem& problem) {
  return {problem.validated(),
          [](auto& x, const auto& visit) { grouped_gemm_detail::for_each_memory(x, visit); }};
}

void run(const OnDevice& device, const DeviceStream& stream) {
  const std::int64_t needed = cuda::grouped_gemm_workspace_bytes(device.arguments());
  const DeviceBuffer workspace(static_cast<std::size_t>(needed));
  cuda::grouped_gemm(device.arguments(), {stream.handle(), workspace.data(), needed});
  stream.wait();
  device.copy_results();
}

/// A sample of D's elements within their bound.
void check_elements(LaunchedProblem& problem) {
  const GroupedGemmArguments x = problem.validated();
  const auto plan = grouped_gemm_detail::plan_grouped(x, cuda::default_chip());
  const GemmCheck result = grouped_gemm_detail::check_elements(x, 4'000, plan.path());
  EXPECT_TRUE(result.passed()) << plan.str() << result.largest_error << " of "
                               << result.proven_error << ", " << result.of_usual << " of usual";
}

/// The same of a case's product, and all that is no group's is as it was.
void check(const GroupedCase& of) {
  SCOPED_TRACE(text_of(of));
  Random random(3);
  LaunchedProblem problem(random, of);
  run(on_device(problem), DeviceStream());
  problem.expect_others_untouched();
  check_elements(problem);
}

class CudaGpuGrouped : public test::OnGpu {};

TEST_F(CudaGpuGrouped, EveryRouting) {
  Random random(5);
  for (const test::Spread spread : test::kSpreads) {
    for (const std::int64_t average : {3, 20, 70, 137, 192, 400}) {
      check({.rows = test::random_lengths(random, spread, 9, 9 * average), .n = 768, .k = 1040});
    }
    check({.rows = test::random_lengths(random, spread, 700, 3500), .n = 256, .k = 256});
    check({.a = Recipe::bf16,
           .b = Recipe::nvfp4,
           .rows = test::random_lengths(random, spread, 300, 1500),
           .n = 256,
           .k = 256});
  }
}

TEST_F(CudaGpuGrouped, EveryKindOfScale) {
  const std::vector<std::int32_t> rows = {100, 0, 33, 260, 1};
  for (const ScaleLayout layout : {ScaleLayout::row_major, ScaleLayout::mn_major}) {
    for (const std::int64_t k : {64, 528, 2048}) {
      check({.rows = rows, .n = 520, .k = k, .layout = layout});
      check({.b = Recipe::fp8_1x128, .rows = rows, .n = 520, .k = k, .layout = layout});
      check({.a = Recipe::fp8_1x128_ue8m0, .b = Recipe::fp8_128x128_ue8m0, .rows = rows, .k = k});
      check({.a = Recipe::fp8_row,
             .b = Recipe::fp8_row,
             .rows = rows,
             .n = 520,
             .k = k,
             .layout = layout,
             .alpha = true,
             .bias = true});
      check({.rows = rows, .n = 520, .k = k, .layout = layout, .masked = true});
      check({.rows = {101, 2, 133, 260}, .n = 512, .k = k, .layout = layout});
    }
  }
  check({.a = Recipe::fp8_tensor, .b = Recipe::fp8_tensor, .rows = rows, .n = 520, .alpha = true});
  check({.a = Recipe::fp8_128x128, .b = Recipe::fp8_128x128, .rows = rows, .n = 520, .k = 512});
}

TEST_F(CudaGpuGrouped, WeightsInFp4) {
  Random random(6);
  for (const Recipe a : {Recipe::bf16, Recipe::f16, Recipe::fp8_row}) {
    for (const Recipe b : {Recipe::nvfp4, Recipe::mxfp4}) {
      if (!is_plain(a) && b == Recipe::nvfp4) continue;  // which has the plain kernel
      GroupedCase of = {.a = a, .b = b, .n = 520, .k = 1056};
      for (const std::int64_t average : {20, 70, 150}) {
        of.rows = test::random_lengths(random, test::Spread::zipf, 9, 9 * average);
        check(of);
      }
      of.rows = {100, 0, 33, 260, 1};
      of.layout = ScaleLayout::swizzled_128x4;
      of.dtype = Format::f32;
      of.alpha = of.bias = of.masked = true;
      check(of);
      of.masked = false;
      of.gathered = true;
      of.gap = 3;
      check(of);
    }
  }
}

/// Checks a product of few rows by the kernel that is launched with `Params`.
template <class Params>
void check_few(const GroupedCase& of) {
  Random random(3);
  LaunchedProblem problem(random, of);
  const auto plan = grouped_gemm_detail::plan_grouped(problem.validated(), cuda::default_chip());
  EXPECT_TRUE(std::holds_alternative<Params>(plan.steps.at(0).params)) << plan.str();
  check(of);
}

TEST_F(CudaGpuGrouped, FewRows) {
  std::vector<std::int32_t> few = {1, 0, 0, 2, 0, 17}, many(40);
  few.resize(20);
  many[7] = 3;
  many[33] = 1;
  many[39] = 11;
  for (const std::vector<std::int32_t>& rows : {few, many}) {
    for (const std::int64_t k : {256, 400, 2048, 7168}) {
      for (const ScaleLayout layout : {ScaleLayout::row_major, ScaleLayout::mn_major}) {
        const std::int64_t n = k > 400 ? 40 : 200;
        check_few<Fp8FewRowsParams>(
            {.rows = rows, .n = n, .k = k, .layout = layout, .behind = 0, .alpha = true});
        check_few<Fp8FewRowsParams>({.a = Recipe::fp8_1x128_ue8m0,
                                     .b = Recipe::fp8_128x128_ue8m0,
                                     .rows = rows,
                                     .n = n,
                                     .k = k,
                                     .dtype = Format::f32,
                                     .layout = layout,
                                     .behind = 0,
                                     .bias = true,
                                     .gathered = true});
      }
    }
  }
}

TEST_F(CudaGpuGrouped, FewRowsOfFp4) {
  std::vector<std::int32_t> few = {1, 0, 9, 2, 0, 17, 8}, many(400);
  for (std::size_t i = 3; i < many.size(); i += 11) many[i] = static_cast<std::int32_t>(i % 10);
  for (const Recipe a : {Recipe::bf16, Recipe::f16, Recipe::fp8_row, Recipe::fp8_1x128}) {
    for (const Recipe b : {Recipe::nvfp4, Recipe::mxfp4}) {
      const InputFamily family = a == Recipe::f16 ? InputFamily::normal : InputFamily::adversarial;
      for (const std::int64_t k : {32, 544, 2880, 7168}) {
        GroupedCase of = {
            .a = a, .b = b, .n = 1000, .k = k, .family = family, .alpha = true, .bias = true};
        of.behind = 0;
        of.rows = few;
        check_few<Fp4FewRowsParams>(of);
        of.masked = true;
        of.rows = {5, 0, 2, 1};
        check_few<Fp4FewRowsParams>(of);
        of.masked = false;
        of.rows = many;
        of.n = k > 544 ? 40 : 136;
        of.dtype = Format::f32;
        of.gathered = true;
        check_few<Fp4FewRowsParams>(of);
      }
    }
  }
}

TEST_F(CudaGpuGrouped, EveryDtypeGapsAndGatheredRows) {
  const std::vector<std::int32_t> rows = {100, 0, 33, 260, 1};
  for (const Format dtype : {Format::bf16, Format::f16, Format::f32}) {
    for (const bool gathered : {false, true}) {
      GroupedCase of = {.rows = rows,
                        .n = 1000,
                        .k = 656,
                        .dtype = dtype,
                        .family = dtype == Format::f16 ? test::InputFamily::normal
                                                       : test::InputFamily::adversarial,
                        .gap = 3,
                        .alpha = true,
                        .bias = true,
                        .gathered = gathered};
      check(of);
      of.alpha = of.bias = false;
      of.gap = 0;
      const std::pair<Recipe, Recipe> pairs[] = {{Recipe::fp8_row, Recipe::fp8_row},
                                                 {Recipe::fp8_1x128, Recipe::fp8_1x128},
                                                 {Recipe::bf16, Recipe::nvfp4}};
      for (const auto& [a, b] : pairs) {
        of.a = a;
        of.b = b;
        check(of);
      }
    }
  }
  check({.rows = {1 << 21}, .n = 128, .k = 128, .behind = 0});
  check(
      {.a = Recipe::bf16, .b = Recipe::nvfp4, .rows = {1}, .k = 48, .behind = 0, .gathered = true});
  check({.rows = {1}, .k = 128, .behind = 0, .gathered = true});
}

TEST_F(CudaGpuGrouped, ScatteredRows) {
  for (const Recipe b : {Recipe::fp8_128x128, Recipe::mxfp4}) {
    test::expect_scattered(
        {.a = b == Recipe::mxfp4 ? Recipe::bf16 : Recipe::fp8_1x128,
         .b = b,
         .rows = {30, 0, 137, 20},
         .n = 264,
         .k = 256,
         .dtype = Format::f32},
        [](LaunchedProblem& problem) { run(on_device(problem), DeviceStream()); });
  }
  for (const std::int64_t k : {48, 96, 128, 144}) {
    test::expect_scattered(
        {.rows = {1}, .k = k, .dtype = Format::f32, .behind = 0, .extra_columns = 1},
        [](LaunchedProblem& problem) { run(on_device(problem), DeviceStream()); });
  }
}

TEST_F(CudaGpuGrouped, ReplaysHaveOtherGroupsAndTheSameBits) {
  Random random(3);
  LaunchedProblem problem(random, {.rows = {100, 0, 33, 260, 1}, .n = 512, .k = 1024});
  OnDevice device = on_device(problem);
  const DeviceStream stream;
  const runtime::DeviceGraph graph(
      stream, [&](void* handle) { cuda::grouped_gemm(device.arguments(), {handle, nullptr, 0}); });
  const auto replay = [&] {
    problem.d().fill_code(0xA5A5);
    device.reset_results();
    graph.launch(stream);
    stream.wait();
    device.copy_results();
  };
  replay();
  const std::vector<std::uint8_t> first = problem.d().bytes();
  for (int i = 0; i < 2; ++i) {
    replay();
    EXPECT_EQ(problem.d().bytes(), first);
  }
  // The same graph, where other groups are said.
  const std::vector<std::int32_t> others = {0, 5, 300, 300, 394, 394};
  problem.set_offsets(others);
  device.write(device.arguments().offsets, others.data(), others.size() * sizeof(others[0]));
  replay();
  EXPECT_NE(problem.d().bytes(), first);
  problem.expect_others_untouched();
  check_elements(problem);
}

TEST_F(CudaGpuGrouped, NumbersThatAreNoOffsets) {
  for (const Recipe b : {Recipe::fp8_128x128, Recipe::mxfp4}) {
    for (const std::vector<std::int32_t>& list : test::kNoOffsets) {
      Random random(4);
      LaunchedProblem problem(
          random, {.a = b == Recipe::mxfp4 ? Recipe::bf16 : Recipe::fp8_1x128, .b = b, .k = 128});
      problem.set_offsets(list);
      const OnDevice device = on_device(problem);
      const DeviceStream stream;
      run(device, stream);
      problem.expect_others_untouched();
      test::expect_error(ErrorCode::invalid_argument, "offsets", "group",
                         [&] { cuda::check_groups(device.arguments(), {stream.handle()}); });
    }
  }
  Random random(4);
  LaunchedProblem right(random, {.k = 128});
  cuda::check_groups(on_device(right).arguments());
}

TEST_F(CudaGpuGrouped, GroupsOfK) {
  constexpr std::int64_t kM = 200, kN = 136, kK = 1000;
  const std::vector<std::int32_t> offsets = {0, 130, 130, 257, 1000};
  for (const Recipe recipe : {Recipe::fp8_1x128, Recipe::fp8_row, Recipe::bf16}) {
    for (const bool adds : {false, true}) {
      Random random(8);
      const test::TestOperand a(random, recipe, kM, kK, test::InputFamily::normal);
      const test::TestOperand b(random, recipe, kN, kK, test::InputFamily::normal);
      std::vector<float> d(static_cast<std::size_t>(4 * kM * kN), adds ? 0.5f : NAN);
      const std::vector<float> before = d;
      KGroupedGemmArguments x;
      x.a = a.view();
      x.b = b.view();
      x.d = {d.data(), Format::f32, kM, kN, kN, 4};
      x.offsets = offsets.data();
      x.adds = adds;
      const cuda::DeviceArguments<KGroupedGemmArguments> device(
          grouped_gemm_detail::validated(x),
          [](auto& y, const auto& visit) { grouped_gemm_detail::for_each_memory(y, visit); });
      const DeviceStream stream;
      cuda::k_grouped_gemm(device.arguments(), {stream.handle()});
      stream.wait();
      device.copy_results();
      EXPECT_LE(test::of_usual(gemm_detail::GemmPath::plain, x, test::rows_of(a.view()),
                               test::rows_of(b.view()), before),
                1);
    }
  }
}

}  // namespace
}  // namespace blockscale
