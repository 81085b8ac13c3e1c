// Products in a caller's workspace: the same bits, nothing beyond its end, nothing from the heap.
#include "ops/gemm/cpu/memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "blockscale/gemm.h"
#include "core/sanitizer_test_share.h"
#include "tests/expect_error.h"
#include "tests/gemm_problem.h"
#include "tests/simd_targets.h"

// Counts what the heap is asked for, where no sanitizer does so itself.
#if defined(__GLIBC__) && !BLOCKSCALE_IS_SANITIZED
#define BLOCKSCALE_COUNTS_ALLOCATIONS 1
namespace {
std::atomic<int> allocations{0};
}
extern "C" {
void* __libc_malloc(std::size_t);                 // NOLINT(bugprone-reserved-identifier)
void* __libc_memalign(std::size_t, std::size_t);  // NOLINT(bugprone-reserved-identifier)
void* malloc(std::size_t size) {
  ++allocations;
  return __libc_malloc(size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  ++allocations;
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** out, std::size_t alignment, std::size_t size) {
  ++allocations;
  *out = __libc_memalign(alignment, size);
  return *out == nullptr ? 1 : 0;
}
}
#else
#define BLOCKSCALE_COUNTS_ALLOCATIONS 0
#endif

namespace blockscale {
namespace {

using test::InputFamily;
using test::OperandOptions;
using test::Random;
using test::TestMatrix;
using test::TestOperand;

/// A product and memory for it.
struct Problem {
  Problem(Recipe recipe_a, Recipe recipe_b, std::int64_t m, std::int64_t k, std::int64_t batch,
          InputFamily family)
      : random(31),
        a(random, recipe_a, m, k, family, options_of(batch)),
        b(random, recipe_b, 70, k, family, options_of(1)),
        d(Format::f32, m, 70, batch) {
    x.a = a.view();
    x.b = b.view();
    x.d = d.view();
  }
  static OperandOptions options_of(std::int64_t batch) {
    OperandOptions options;
    options.batch = batch;
    return options;
  }

  Random random;
  TestOperand a;
  TestOperand b;
  TestMatrix d;
  GemmArguments x;
};

/// Exactly `bytes`, aligned.
gemm_detail::Array<std::uint8_t> memory_of(std::int64_t bytes) {
  return gemm_detail::allocate<std::uint8_t>(bytes);
}

class GemmWorkspaceTest : public test::OnSimdTarget {};

TEST_P(GemmWorkspaceTest, GivesTheSameBits) {
  const std::pair<Recipe, Recipe> pairs[] = {{Recipe::bf16, Recipe::nvfp4},
                                             {Recipe::mxfp4, Recipe::mxfp4},
                                             {Recipe::fp8_1x128, Recipe::fp8_128x128},
                                             {Recipe::f32, Recipe::mxfp6_e2m3}};
  for (const auto& [recipe_a, recipe_b] : pairs) {
    for (const std::int64_t m : {1, 4, 37, 300}) {
      for (const std::int64_t batch : {1, 3}) {
        for (const InputFamily family : {InputFamily::normal, InputFamily::adversarial}) {
          Problem problem(recipe_a, recipe_b, m, 160, batch, family);
          gemm(problem.x, {2});
          const std::vector<std::uint8_t> expected = problem.d.bytes();
          for (const int threads : {1, 2, 5}) {
            const std::int64_t bytes = gemm_workspace_bytes(problem.x, threads);
            constexpr std::int64_t kGuard = 64;
            const auto workspace = memory_of(bytes + kGuard);
            std::memset(workspace.get(), 0xA5, static_cast<std::size_t>(bytes + kGuard));
            problem.d.fill_code(0);
            gemm(problem.x, {threads, workspace.get(), bytes});
            EXPECT_EQ(problem.d.bytes(), expected) << describe_gemm(problem.x) << threads;
            for (std::int64_t i = 0; i < kGuard; ++i) {
              ASSERT_EQ(workspace[static_cast<std::size_t>(bytes + i)], 0xA5) << i;
            }
          }
        }
      }
    }
  }
}

#if BLOCKSCALE_COUNTS_ALLOCATIONS
TEST_P(GemmWorkspaceTest, TakesNothingFromTheHeap) {
  for (const Recipe recipe : {Recipe::nvfp4, Recipe::mxfp8_e4m3, Recipe::fp8_1x128}) {
    for (const std::int64_t m : {1, 4, 37}) {
      for (const InputFamily family : {InputFamily::normal, InputFamily::adversarial}) {
        for (const Recipe recipe_a : {Recipe::bf16, recipe}) {
          Problem problem(recipe_a, recipe, m, 4224, 2, family);
          const std::int64_t bytes = gemm_workspace_bytes(problem.x, 1);
          const auto workspace = memory_of(bytes);
          const int before = allocations;
          gemm(problem.x, {1, workspace.get(), bytes});
          EXPECT_EQ(allocations - before, 0) << describe_gemm(problem.x);
          gemm(problem.x, {1});
          EXPECT_GT(allocations - before, 0) << "the test counts nothing";
        }
      }
    }
  }
}
#endif

TEST(GemmWorkspace, IsChecked) {
  Problem problem(Recipe::bf16, Recipe::mxfp4, 8, 64, 1, InputFamily::normal);
  const std::int64_t bytes = gemm_workspace_bytes(problem.x, 2);
  const auto workspace = memory_of(bytes + 64);
  test::expect_invalid("options.workspace_bytes", std::to_string(bytes),
                       [&] { gemm(problem.x, {2, workspace.get(), bytes - 1}); });
  test::expect_invalid("options.workspace", "64 bytes",
                       [&] { gemm(problem.x, {2, workspace.get() + 1, bytes}); });
  problem.x.d = {workspace.get() + bytes - 64, Format::bf16, 8, 70};
  test::expect_invalid("options.workspace", "overlaps d.data",
                       [&] { gemm(problem.x, {2, workspace.get(), bytes}); });
  problem.x.d.rows = 7;
  test::expect_invalid("d.rows", [&] { (void)gemm_workspace_bytes(problem.x); });
}

TEST(GemmWorkspace, OfAnEmptyProductIsEmpty) {
  Problem problem(Recipe::bf16, Recipe::mxfp4, 0, 64, 1, InputFamily::normal);
  EXPECT_EQ(gemm_workspace_bytes(problem.x), 0);
}

INSTANTIATE_TEST_SUITE_P(Targets, GemmWorkspaceTest, testing::ValuesIn(test::product_targets()),
                         [](const auto& param_info) {
                           return test::target_name(param_info.param);
                         });

}  // namespace
}  // namespace blockscale
