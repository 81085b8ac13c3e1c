// What routing, sorting and a layer ask of the driver, against a fake libcuda.so.1.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "blockscale/cuda.h"
#include "runtime/cuda/driver.h"
#include "tests/expect_error.h"
#include "tests/on_fake_driver.h"

namespace blockscale {
namespace {

class MoeCalls : public test::OnFakeDriver {
 protected:
  void SetUp() override {
    fake_.reset();
    fake_.parameter_bytes = 8;
  }

  static RouteArguments routing(std::int64_t tokens) {
    RouteArguments x;
    x.logits = {memory<float>(0), Format::f32, tokens, 64};
    x.top_k = 4;
    x.ids = memory<std::int32_t>(1);
    x.weights = memory<float>(2);
    return x;
  }
  static MoeSortArguments sorting(std::int64_t tokens, int tile) {
    MoeSortArguments x;
    x.ids = memory<std::int32_t>(0);
    x.tokens = tokens;
    x.top_k = 4;
    x.experts = 8;
    x.tile = tile;
    x.offsets = memory<std::int32_t>(1);
    x.entry_of_row = memory<std::int32_t>(2);
    return x;
  }
  /// Of FP8 weights, with gates and ups apart where I is no multiple of 128.
  static MoeArguments layer(std::int64_t tokens, std::int64_t inner) {
    constexpr std::int64_t kHidden = 256, kExperts = 4;
    const bool apart = inner % 128 != 0;
    MoeArguments x;
    x.x = as_scaled({memory<void>(0), Format::bf16, tokens, kHidden});
    const auto weights = [](int part, std::int64_t rows, std::int64_t k, std::int64_t batch) {
      ScaledTensorView w;
      w.recipe = Recipe::fp8_128x128;
      w.rows = rows;
      w.k = k;
      w.batch = batch;
      w.values = memory<void>(part);
      w.scales = memory<void>(part + 1);
      return w;
    };
    x.w13 = weights(2, apart ? inner : 2 * inner, kHidden, apart ? 2 * kExperts : kExperts);
    x.w2 = weights(4, kHidden, inner, kExperts);
    x.ids = memory<std::int32_t>(6);
    x.weights = memory<float>(7);
    x.top_k = 2;
    x.y = {memory<void>(8), Format::bf16, tokens, kHidden};
    return x;
  }
  std::vector<std::string> launched() {
    std::vector<std::string> names;
    for (const test::FakeLaunch& launch : fake_.launches) names.push_back(launch.kernel);
    fake_.launches.clear();
    return names;
  }
};

using Names = std::vector<std::string>;

TEST_F(MoeCalls, RouteIsOneLaunch) {
  cuda::route(routing(100));
  ASSERT_EQ(fake_.launches.size(), 1u);
  EXPECT_TRUE(fake_.launches[0].programmatic_dependent_launch);
  EXPECT_EQ(launched(), Names{"moe_route"});
  cuda::route(routing(100), {.overlap = false});
  EXPECT_FALSE(fake_.launches.at(0).programmatic_dependent_launch);
  fake_.launches.clear();
  cuda::route(routing(0));
  EXPECT_EQ(launched(), Names{});
}

TEST_F(MoeCalls, SortIsOneLaunchAndWithPaddingTwo) {
  cuda::moe_sort(sorting(100, 1));
  EXPECT_EQ(launched(), Names{"moe_sort"});
  const std::int64_t needed = cuda::moe_sort_workspace_bytes(sorting(100, 8));
  EXPECT_EQ(needed, 48 + 1600);
  EXPECT_EQ(cuda::moe_sort_workspace_bytes(sorting(100, 1)), 0);
  cuda::moe_sort(sorting(100, 8), {nullptr, memory<void>(9), needed});
  EXPECT_EQ(launched(), (Names{"moe_sort", "moe_pad"}));
  // Without tokens there still are offsets.
  cuda::moe_sort(sorting(0, 8), {nullptr, memory<void>(9), needed});
  EXPECT_EQ(launched(), (Names{"moe_sort", "moe_pad"}));
}

TEST_F(MoeCalls, WorkspaceComesFromItsSource) {
  class Source final : public cuda::WorkspaceSource {
   public:
    void* allocate(std::int64_t bytes) override {
      asked.push_back(bytes);
      return memory<void>(9);
    }
    std::vector<std::int64_t> asked;
  } source;
  cuda::moe_sort(sorting(100, 8), {.workspace_source = &source});
  EXPECT_EQ(source.asked, std::vector<std::int64_t>{48 + 1600});
  ASSERT_EQ(fake_.launches.size(), 2u);
  // The second launch's first parameter: where the first one leaves offsets.
  std::uintptr_t offsets = 0;
  std::memcpy(&offsets, fake_.launches[1].parameters.data(), sizeof(offsets));
  EXPECT_EQ(offsets, reinterpret_cast<std::uintptr_t>(memory<void>(9)));
  cuda::moe_sort(sorting(100, 1), {.workspace_source = &source});
  EXPECT_EQ(source.asked.size(), 1u);
}

TEST_F(MoeCalls, ALayerIsFiveLaunches) {
  const auto run = [&](const MoeArguments& x, const MoeOptions& options = {}) {
    const std::int64_t needed = cuda::moe_workspace_bytes(x, options);
    cuda::moe(x, options, {nullptr, memory<void>(30), needed});
    return launched();
  };
  const auto begins = [](const std::string& text, const char* with) {
    return text.starts_with(with);
  };
  const Names names = run(layer(40, 256));
  ASSERT_EQ(names.size(), 5u) << testing::PrintToString(names);
  EXPECT_EQ(names[0], "moe_sort");
  EXPECT_TRUE(begins(names[1], "quantize_")) << names[1];
  EXPECT_TRUE(begins(names[2], "grouped_gemm_fp8_")) << names[2];
  EXPECT_TRUE(begins(names[3], "grouped_gemm_fp8_")) << names[3];
  EXPECT_EQ(names[4], "moe_finalize");
  // Few entries are not sorted; products of few rows are quantized by a launch of their own.
  const Names few = run(layer(1, 256));
  ASSERT_EQ(few.size(), 5u) << testing::PrintToString(few);
  EXPECT_TRUE(begins(few[0], "quantize_")) << few[0];
  EXPECT_EQ(few[1], "grouped_gemm_fp8_few_rows");
  EXPECT_TRUE(begins(few[2], "quantize_")) << few[2];
  EXPECT_EQ(few[3], "grouped_gemm_fp8_few_rows");
  EXPECT_EQ(few[4], "moe_finalize");
  // Scales of gates and ups whose blocks do not meet are joined first, once for all parts.
  const Names apart = run(layer(40, 192));
  ASSERT_EQ(apart.size(), 6u);
  EXPECT_EQ(apart[0], "moe_join_scales");
  const Names parts = run(layer(300, 192), {.workspace_limit = 1});
  EXPECT_EQ(parts.size(), 1u + 3 * 5);
  EXPECT_EQ(run(layer(0, 256)), Names{});
  MoeArguments x = layer(40, 256);
  x.weights_on_input = true;
  const Names weighed = run(x);
  ASSERT_EQ(weighed.size(), 6u);
  EXPECT_EQ(weighed[1], "moe_weigh");
  EXPECT_TRUE(begins(weighed[2], "quantize_")) << weighed[2];
  // Shared experts are two products more, of the same rows of tokens; and a launch for these where
  // the others' rows are those of entries.
  const auto shared = [&](MoeArguments of) {
    of.shared = {of.w13, of.w2};
    of.shared->w13.batch = of.shared->w2.batch = 1;
    return run(of);
  };
  const Names with_shared = shared(layer(600, 256));
  ASSERT_EQ(with_shared.size(), 7u) << testing::PrintToString(with_shared);
  EXPECT_TRUE(begins(with_shared[1], "quantize_blocks_")) << with_shared[1];
  EXPECT_TRUE(begins(with_shared[2], "gemm_fp8_")) << with_shared[2];
  EXPECT_TRUE(begins(with_shared[3], "gemm_fp8_")) << with_shared[3];
  EXPECT_TRUE(begins(with_shared[4], "grouped_gemm_fp8_")) << with_shared[4];
  x = layer(600, 256);
  x.weights_on_input = true;
  EXPECT_EQ(shared(x).size(), 9u);
}

/// Launches of calls that come again, of which plans are kept.
class RepeatedLayers : public MoeCalls {
 protected:
  static cuda::Execution in(int part, const MoeArguments& x) {
    return {nullptr, memory<void>(part), cuda::moe_workspace_bytes(x)};
  }
  std::vector<test::FakeLaunch> launches_of(const MoeArguments& x,
                                            const cuda::Execution& execution) {
    fake_.launches.clear();
    fake_.calls.clear();
    cuda::moe(x, {}, execution);
    return std::exchange(fake_.launches, {});
  }
  /// By a thread that has kept nothing.
  std::vector<test::FakeLaunch> launches_anew(const MoeArguments& x,
                                              const cuda::Execution& execution) {
    std::vector<test::FakeLaunch> launches;
    std::thread([&] { launches = launches_of(x, execution); }).join();
    return launches;
  }
  static bool are_same(const std::vector<test::FakeLaunch>& x,
                       const std::vector<test::FakeLaunch>& y) {
    return std::ranges::equal(x, y, [](const test::FakeLaunch& one, const test::FakeLaunch& other) {
      return one.kernel == other.kernel && one.device == other.device && one.grid == other.grid &&
             one.dynamic_shared_bytes == other.dynamic_shared_bytes &&
             one.programmatic_dependent_launch == other.programmatic_dependent_launch &&
             one.parameters == other.parameters;
    });
  }
};

TEST_F(RepeatedLayers, LaunchTheSame) {
  for (const std::int64_t tokens : {1, 40, 0}) {
    const MoeArguments x = layer(tokens, 256);
    const cuda::Execution execution = in(30, x);
    const auto first = launches_of(x, execution);
    for (int repeat = 0; repeat < 2; ++repeat) {
      EXPECT_TRUE(are_same(launches_of(x, execution), first)) << tokens;
      EXPECT_EQ(fake_.calls["cuTensorMapEncodeTiled"], 0);
    }
    EXPECT_TRUE(are_same(launches_of(x, in(29, x)), launches_anew(x, in(29, x)))) << tokens;
  }
}

TEST_F(RepeatedLayers, AskTheirWorkspacesSourceOnce) {
  class Source final : public cuda::WorkspaceSource {
   public:
    void* allocate(std::int64_t) override { return memory<void>(20 + asked++ / 2); }
    int asked = 0;
  } source;
  const MoeArguments x = layer(40, 256);
  for (int call = 1; call <= 4; ++call) {
    const auto launches = launches_of(x, {.workspace_source = &source});
    EXPECT_EQ(source.asked, call);
    EXPECT_TRUE(are_same(launches, launches_anew(x, in(20 + (call - 1) / 2, x)))) << call;
  }
}

TEST_F(RepeatedLayers, AreChecked) {
  const MoeArguments x = layer(40, 256);
  const cuda::Execution execution = in(30, x);
  (void)launches_of(x, execution);
  test::expect_invalid("execution.workspace_bytes", "is 16, must be at least",
                       [&] { cuda::moe(x, {}, {nullptr, execution.workspace, 16}); });
  test::expect_invalid("execution.workspace", "ids", [&] {
    cuda::moe(x, {}, {nullptr, memory<void>(6), execution.workspace_bytes});
  });
  fake_.failures["cuPointerGetAttribute"] = runtime::cu::kInvalidValue;  // freed
  test::expect_invalid("y.data", "is memory of the host", [&] { cuda::moe(x, {}, execution); });
  EXPECT_EQ(launched(), Names{});
}

TEST_F(MoeCalls, ALayerRefuses) {
  const MoeArguments x = layer(40, 256);
  const std::int64_t needed = cuda::moe_workspace_bytes(x);
  const auto expect_refused = [&](const char* argument, const char* reason, const MoeArguments& of,
                                  const cuda::Execution& execution) {
    test::expect_invalid(argument, reason, [&] { cuda::moe(of, {}, execution); });
    EXPECT_EQ(launched(), Names{});
  };
  expect_refused("execution.workspace_bytes", "is 16, must be at least", x,
                 {nullptr, memory<void>(30), 16});
  expect_refused("execution.workspace", "ids", x, {nullptr, memory<void>(6), needed});
  MoeArguments elsewhere = x;
  elsewhere.w2.scales = memory<void>(5, 1);
  expect_refused("w2.scales", "is on CUDA device 1, must be on 0", elsewhere,
                 {nullptr, memory<void>(30), needed});
}

TEST_F(MoeCalls, Refuses) {
  const auto expect_refused = [&](const char* argument, const char* reason,
                                  const MoeSortArguments& x, const cuda::Execution& execution) {
    test::expect_invalid(argument, reason, [&] { cuda::moe_sort(x, execution); });
    EXPECT_EQ(launched(), Names{});
  };
  expect_refused("execution.workspace_bytes", "is 0, must be at least 1648", sorting(100, 8), {});
  expect_refused("execution.workspace", "is null", sorting(100, 8), {nullptr, nullptr, 4096});
  expect_refused("execution.workspace", "offsets", sorting(100, 8),
                 {nullptr, memory<void>(1), 4096});
  MoeSortArguments x = sorting(100, 1);
  x.offsets = memory<std::int32_t>(1, 1);
  expect_refused("entry_of_row", "is on CUDA device 0, must be on 1", x, {});
  x.offsets = nullptr;
  x.experts = 0;
  expect_refused("experts", "is 0", x, {});
  RouteArguments r = routing(100);
  r.top_k = 0;
  test::expect_invalid("top_k", "is 0", [&] { cuda::route(r); });
  r = routing(100);
  r.ids = memory<std::int32_t>(1, 1);
  test::expect_invalid("weights", "is on CUDA device 0", [&] { cuda::route(r); });
  EXPECT_EQ(launched(), Names{});
}

}  // namespace
}  // namespace blockscale
