// Plans of products on CUDA devices, without one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "blockscale/cuda.h"
#include "core/tensor_map_rules.h"
#include "device/scheduler/dense_order.h"
#include "ops/gemm/cuda/plan.h"
#include "ops/gemm/validate.h"
#include "tests/chip.h"
#include "tests/expect_error.h"

namespace blockscale {
namespace {

using gemm_detail::Fp8GemmPlan;
using gemm_detail::Fp8LaunchConfig;

/// Addresses that nobody follows, 1 TiB apart.
template <class T = void>
T* nowhere(int i) {
  return reinterpret_cast<T*>((std::uintptr_t{1} << 40) * static_cast<std::uintptr_t>(i + 1));
}

GemmArguments product(std::int64_t m, std::int64_t n, std::int64_t k, Recipe a = Recipe::fp8_1x128,
                      Recipe b = Recipe::fp8_128x128, std::int64_t batch = 1) {
  GemmArguments x;
  x.a = {a, m, k, batch};
  x.b = {b, n, k, batch};
  x.a.values = nowhere(0);
  x.b.values = nowhere(1);
  x.a.scales = nowhere(2);
  x.b.scales = nowhere(3);
  x.a.value_row_stride = x.b.value_row_stride = (k + 15) / 16 * 16;
  x.d = {nowhere(4), Format::bf16, m, n};
  x.d.batch = batch;
  return x;
}

/// On an H200, whatever chip this machine has.
std::string describe(const GemmArguments& x) {
  return cuda::describe_gemm(x, cuda::Chip());
}

Fp8GemmPlan plan_of(const GemmArguments& x) {
  void* const workspace = reinterpret_cast<void*>(std::uintptr_t{1} << 40);  // not looked at
  return gemm_detail::plan_fp8_gemm(gemm_detail::validated(x, {}), {}, std::nullopt, workspace);
}

void expect_launchable(const gemm_detail::GemmStep& launch, const Fp8GemvParams& p,
                       const GemmArguments& x) {
  const std::uint32_t warps = launch.shape.block.x / 32, divisions = 1u << p.division_shift;
  EXPECT_EQ(warps % divisions, 0u);
  EXPECT_LE(launch.shape.dynamic_shared_bytes, 227u * 1024);
  EXPECT_GE(launch.shape.grid.x * (warps / divisions * kGemvWarpRows), x.d.columns);
  EXPECT_EQ(launch.shape.grid.y, x.d.batch);
  EXPECT_GE(p.part_blocks * divisions * 128, x.a.k);
  EXPECT_EQ(x.d.rows, 1);
  EXPECT_FALSE(x.batch_invariant);
}

/// What the driver asks of launches, and the kernels of their parameters.
void expect_launchable(const Fp8GemmPlan& plan, const GemmArguments& x) {
  EXPECT_GT(plan.expected_seconds, 0);
  if (const auto* const gemv = plan.steps.front().of<Fp8GemvParams>()) {
    expect_launchable(plan.steps.front(), *gemv, x);
    return;
  }
  ASSERT_FALSE(plan.steps.empty());
  std::int64_t columns = 0;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const gemm_detail::GemmStep& launch = plan.steps[i];
    if (launch.of<AlignRowsParams>() != nullptr) continue;
    ASSERT_NE(launch.of<Fp8GemmParams>(), nullptr);
    const Fp8GemmParams& p = *launch.of<Fp8GemmParams>();
    const Fp8LaunchConfig& c = launch.config;
    const LaunchShape& shape = launch.shape;
    EXPECT_LT(launch.kernel, std::size_t{Fp8GemmKernelList::kCount});
    EXPECT_GT(shape.grid.x, 0u);
    EXPECT_LE(shape.grid.y, 65535u);
    EXPECT_EQ(shape.grid.x % shape.cluster.x, 0u);
    EXPECT_LE(shape.cluster.x, 8u);
    EXPECT_GE(c.stages, 3u);
    EXPECT_LE((shape.dynamic_shared_bytes + 1024) * c.per_sm, 228u * 1024);
    EXPECT_EQ(p.epilogue.d.data,
              static_cast<std::uint8_t*>(x.d.data) + columns * (format_traits(x.d.dtype).bits / 8));
    EXPECT_EQ(columns % 128, 0);
    EXPECT_EQ(p.is_beside, columns != 0);
    columns += p.epilogue.columns;
    EXPECT_GE(std::int64_t{p.order.tiles_m} * c.rows, x.d.rows);
    EXPECT_GE(p.order.tiles_n * static_cast<std::uint32_t>(c.columns), p.epilogue.columns);
    EXPECT_EQ(p.order.tiles, p.order.tiles_m * p.order.tiles_n * x.d.batch);
    EXPECT_GE(p.split_blocks * c.split, p.k_blocks);
    if (c.split > 1) {
      EXPECT_EQ(shape.grid.x, p.order.tiles * c.split);
    }
    const auto is_used = [&](Fp8GemmMap which) {
      return launch.maps[static_cast<std::size_t>(which)].rank != 0;
    };
    EXPECT_EQ(is_used(Fp8GemmMap::a), x.a.k > 0);
    EXPECT_EQ(is_used(Fp8GemmMap::a_tail), x.a.k > 0);
    EXPECT_EQ(is_used(Fp8GemmMap::b_second), x.a.k > 0);
    EXPECT_EQ(is_used(Fp8GemmMap::d), p.epilogue.d.chunks);
    for (const TensorMapDescription& map : launch.maps) {
      std::ostringstream rule;
      if (map.rank == 0) continue;
      EXPECT_FALSE(print_broken_rule(rule, map)) << rule.str();
    }
  }
  EXPECT_EQ(columns, x.d.columns);
}

TEST(CudaGemmPlan, AlwaysExists) {
  std::mt19937_64 random(1);
  const auto size = [&](std::uint64_t bits) {
    return static_cast<std::int64_t>(1 + random() % (std::uint64_t{1} << (1 + random() % bits)));
  };
  const Recipe recipes[] = {Recipe::fp8_tensor, Recipe::fp8_row, Recipe::fp8_1x128,
                            Recipe::fp8_32x128_ue8m0, Recipe::fp8_128x128};
  for (int i = 0; i < 100'000; ++i) {
    const Recipe a = recipes[random() % 5];
    const Recipe b = recipe_traits(a).block_k == 0 ? a : recipes[2 + random() % 3];
    const GemmArguments x = product(size(14), size(16), size(15), a, b, size(3));
    SCOPED_TRACE(std::to_string(x.d.rows) + " x " + std::to_string(x.d.columns) + " x " +
                 std::to_string(x.a.k) + " batch " + std::to_string(x.d.batch));
    const Fp8GemmPlan plan = plan_of(x);
    expect_launchable(plan, x);
    if (HasFailure()) return;
  }
}

TEST(CudaGemmPlan, EveryConfigIsLaunchable) {
  for (const std::int64_t m : {1, 64, 200, 4096}) {
    for (const Recipe b : {Recipe::fp8_128x128, Recipe::fp8_1x128}) {
      const GemmArguments x = product(m, 2112, 7168, Recipe::fp8_1x128, b);
      const GemmArguments validated = gemm_detail::validated(x, {});
      const auto choices = gemm_detail::fp8_launch_configs(gemm_detail::size_of(validated), {});
      EXPECT_GE(choices.size(), 4u);
      for (const Fp8LaunchConfig& c : choices) {
        const Fp8GemmPlan plan = gemm_detail::plan_fp8_gemm(validated, {}, c);
        EXPECT_EQ(plan.steps.size(), 1u);
        EXPECT_EQ(plan.steps[0].config, c);
        expect_launchable(plan, x);
      }
    }
  }
}

TEST(CudaGemmPlan, NothingToDoAndNoK) {
  EXPECT_TRUE(plan_of(product(0, 64, 128)).steps.empty());
  EXPECT_TRUE(plan_of(product(64, 0, 128)).steps.empty());
  const Fp8GemmPlan plan = plan_of(product(64, 64, 0));
  ASSERT_EQ(plan.steps.size(), 1u);
  EXPECT_EQ(plan.steps[0].of<Fp8GemmParams>()->k_blocks, 0u);
}

TEST(CudaGemmPlan, SaysWhatIsLaunched) {
  EXPECT_EQ(
      describe(product(4096, 4096, 4096)),
      "gemm_fp8_128x128_blocks_copied: 1024 tiles of 128 x 128, 32 blocks of K; 132 x 384 threads, "
      "1 a multiprocessor, 5 stages, 206592 bytes shared, stored as boxes, scales copied; 109.1 us "
      "expected\nworkspace 0 bytes\n");
  EXPECT_THAT(describe(product(64, 576, 7168)),
              testing::HasSubstr("divided among 5 blocks of a cluster"));
  EXPECT_THAT(describe(product(16384, 2112, 7168)),
              testing::HasSubstr("beside its last wave the other 64 columns by gemm_fp8_"));
  EXPECT_THAT(describe(product(64, 577, 7168)), testing::HasSubstr("stored by elements"));
  EXPECT_THAT(describe(product(0, 2112, 7168)), testing::HasSubstr("nothing to do"));
}

TEST(CudaGemmPlan, OneRowHasAKernelOfItsOwn) {
  EXPECT_EQ(describe(product(1, 2112, 7168)),
            "gemm_fp8_one_row: 8 rows of B a block, K divided among 8 warps; 264 x 256 threads, "
            "7648 bytes shared; 5.3 us expected\nworkspace 0 bytes\n");
  const auto has_gemv = [](const GemmArguments& x) {
    return plan_of(x).steps[0].of<Fp8GemvParams>() != nullptr;
  };
  EXPECT_TRUE(has_gemv(product(1, 64, 4096, Recipe::fp8_tensor, Recipe::fp8_tensor)));
  EXPECT_TRUE(has_gemv(product(1, 64, 4096, Recipe::fp8_row, Recipe::fp8_row)));
  EXPECT_FALSE(has_gemv(product(1, 64, 4096, Recipe::fp8_1x128, Recipe::fp8_1x128)));
  EXPECT_FALSE(has_gemv(product(1, 24576, 1536)));
  EXPECT_FALSE(has_gemv(product(1, 64, 4104)));
  EXPECT_FALSE(has_gemv(product(2, 64, 4096)));
  GemmArguments x = product(1, 64, 4096);
  x.batch_invariant = true;
  EXPECT_FALSE(has_gemv(x));
}

TEST(CudaGemmPlan, CopiesWhatTensorCopiesCannotRead) {
  GemmArguments x = product(64, 96, 120);
  x.b.values = static_cast<const std::uint8_t*>(x.b.values) + 8;
  x.a.value_row_stride = 136;
  EXPECT_EQ(plan_of(x).steps.size(), 3u);
  EXPECT_EQ(cuda::gemm_workspace_bytes(x), (64 + 96) * 128);
  EXPECT_THAT(describe(x),
              testing::HasSubstr("a copy of 64 rows, which begin where tensor copies are slow or "
                                 "none\na copy of 96 rows"));
  EXPECT_THAT(describe(x), testing::HasSubstr("workspace 20480 bytes"));
  EXPECT_EQ(cuda::gemm_workspace_bytes(product(64, 96, 120)), 0);
}

TEST(CudaGemmPlan, CopiesWhatTensorCopiesReadSlowly) {
  const auto copied = [](const GemmArguments& x) {
    std::vector<std::int64_t> rows;
    for (const gemm_detail::GemmStep& step : plan_of(x).steps) {
      if (const auto* const copy = step.of<AlignRowsParams>()) rows.push_back(copy->rows);
    }
    return rows;
  };
  using Rows = std::vector<std::int64_t>;
  EXPECT_EQ(copied(product(4096, 4176, 7184)), (Rows{4096, 4176}));
  EXPECT_EQ(copied(product(512, 4096, 7184)), Rows{512});  // B would cost more than it gives
  EXPECT_EQ(copied(product(128, 4096, 7184)), Rows{});
  EXPECT_EQ(copied(product(4096, 1024, 7184)), Rows{1024});
  EXPECT_EQ(copied(product(4096, 4096, 7200)), Rows{});
  EXPECT_EQ(cuda::gemm_workspace_bytes(product(512, 4096, 7184)), 512 * 7296);
  GemmArguments x = product(512, 4096, 7168);
  EXPECT_EQ(copied(x), Rows{});
  x.a.values = static_cast<const std::uint8_t*>(x.a.values) + 16;
  EXPECT_EQ(copied(x), Rows{512});
}

TEST(CudaGemmPlan, BatchInvariantPlansDoNotDivideK) {
  for (const std::int64_t m : {1, 16, 64, 128, 4096}) {
    GemmArguments x = product(m, 2112, 7168);
    x.batch_invariant = true;
    const Fp8GemmPlan plan = plan_of(x);
    for (const gemm_detail::GemmStep& step : plan.steps) EXPECT_EQ(step.config.split, 1u);
    EXPECT_GE(plan.batch_invariant_seconds, 0);
  }
  GemmArguments x = product(64, 576, 7168);
  x.batch_invariant = true;
  EXPECT_THAT(describe(x), testing::HasSubstr("batch-invariant: K is not divided"));
}

TEST(CudaGemmPlan, RefusesWithTheArgumentsName) {
  using test::expect_error;
  expect_error(ErrorCode::unsupported, "a.recipe", "is mxfp8_e4m3",
               [] { (void)plan_of(product(64, 64, 128, Recipe::mxfp8_e4m3, Recipe::mxfp8_e4m3)); });
  GemmArguments far = product(64, 64, 128);
  far.a.scale_leading_stride = std::int64_t{1} << 27;
  expect_error(ErrorCode::unsupported, "a.scale_leading_stride", "is 134217728",
               [&] { (void)plan_of(far); });
  expect_error(ErrorCode::invalid_argument, "chip.multiprocessors", "is 0",
               [] { (void)cuda::describe_gemm(product(1, 1, 128), test::chip_of(0)); });
  cuda::Chip ampere;
  ampere.architecture = 80;
  expect_error(ErrorCode::unsupported, "chip", "(compute capability 8.0); kernels are for 9.0",
               [&] { (void)cuda::describe_gemm(product(1, 1, 128), ampere); });
  expect_error(ErrorCode::unsupported, "a.recipe",
               "has no kernel for NVIDIA B200 (compute capability 10.0)", [] {
                 const GemmArguments x = gemm_detail::validated(product(1, 1, 128), {});
                 (void)gemm_detail::plan_fp8_gemm(x, cuda::chip_named("B200"));
               });
}

TEST(CudaGemmPlan, HasHigherBandsWhereKIsShort) {
  const auto group = [](std::int64_t m, std::int64_t n, std::int64_t k) {
    const Fp8GemmPlan plan = plan_of(product(m, n, k));
    return plan.steps[0].of<Fp8GemmParams>()->order.height.divisor *
           static_cast<std::uint32_t>(plan.steps[0].config.rows);
  };
  EXPECT_EQ(group(4096, 32768, 512), 2048u);
  EXPECT_EQ(group(4096, 24576, 1536), 1024u);
  EXPECT_EQ(group(4096, 7168, 16384), 512u);
  EXPECT_EQ(group(16384, 4096, 7168), 576u);  // tiles of 192
  EXPECT_EQ(group(4096, 4096, 0), 2048u);
}

TEST(DenseOrder, HasNoBandHigherThanTheMatrix) {
  const DenseOrder wide(1, std::uint32_t{1} << 30, 1, 32, 128);
  EXPECT_EQ(wide.band.divisor, std::uint32_t{1} << 30);
  EXPECT_EQ(wide.tile<128>((std::uint32_t{1} << 30) - 1).n, (std::uint32_t{1} << 30) - 1);
}

TEST(DenseOrder, VisitsEachTileOnce) {
  for (const auto& [m, n, batch, band_rows] : {std::array<std::uint32_t, 4>{1, 1, 1, 4},
                                               {16, 3, 2, 4},
                                               {17, 5, 1, 8},
                                               {40, 7, 3, 3},
                                               {5, 6, 2, 1},
                                               {3, 100, 1, 16}}) {
    const DenseOrder order(m, n, batch, band_rows, m * 64 - 5);
    std::vector<int> seen(order.tiles, 0);
    for (std::uint32_t i = 0; i < order.tiles; ++i) {
      const Tile t = order.tile<64>(i);
      ASSERT_LT(t.first_row, t.end_row);
      ASSERT_EQ(t.end_row, m * 64 - 5);
      ASSERT_EQ(t.first_row % 64, 0u);
      ASSERT_LT(t.n, n);
      ASSERT_LT(t.group, batch);
      ++seen[(t.group * m + t.first_row / 64) * n + t.n];
    }
    EXPECT_THAT(seen, testing::Each(1));
  }
}

}  // namespace
}  // namespace blockscale
