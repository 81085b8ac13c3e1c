// cuda::route and cuda::moe_sort on a GPU: the bytes that the CPU gives.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/common/cuda/cold_calls.h"
#include "ops/moe/routing_memory.h"
#include "ops/moe/test/routing_problem.h"
#include "runtime/cuda/measure.h"
#include "tests/expect_error.h"
#include "tests/gpu.h"

namespace blockscale {
namespace {

using runtime::DeviceBuffer;
using runtime::DeviceStream;
using test::LogitFamily;
using test::Random;
using test::RouteProblem;
using test::RouteResults;
using test::SortProblem;
using test::SortResults;

/// A call's memory on the device, in exact allocations, so that a sanitizer sees what is touched
/// beside it.
template <class Arguments>
cuda::DeviceArguments<Arguments> on_device(const Arguments& x) {
  return {moe_detail::validated(x),
          [](auto& of, const auto& visit) { moe_detail::for_each_memory(of, visit); }};
}

class CudaGpuRouting : public test::OnGpu {};

void check(const RouteProblem& problem) {
  RouteArguments x = problem.arguments();
  RouteResults expected(x), results(x);
  expected.set(x);
  route(x);
  results.set(x);
  const auto device = on_device(x);
  const DeviceStream stream;
  cuda::route(device.arguments(), {stream.handle()});
  stream.wait();
  device.copy_results();
  EXPECT_EQ(results.ids, expected.ids) << problem.text();
  EXPECT_EQ(results.weight_bits(), expected.weight_bits()) << problem.text();
}

void check(const SortProblem& problem) {
  MoeSortArguments x = problem.arguments();
  SortResults expected(x), results(x);
  expected.set(x);
  moe_sort(x);
  results.set(x);
  const auto device = on_device(x);
  const std::int64_t needed = cuda::moe_sort_workspace_bytes(device.arguments());
  const DeviceBuffer workspace(static_cast<std::size_t>(needed));
  const DeviceStream stream;
  cuda::moe_sort(device.arguments(), {stream.handle(), workspace.data(), needed});
  stream.wait();
  device.copy_results();
  EXPECT_TRUE(results == expected) << problem.text();
}

TEST_F(CudaGpuRouting, RandomRoutes) {
  Random random(1);
  for (int i = 0; i < 500; ++i) check(RouteProblem(random));
}

TEST_F(CudaGpuRouting, RoutesOfManyTokens) {
  Random random(2);
  for (const RouterScore score : {RouterScore::softmax, RouterScore::sigmoid}) {
    for (const LogitFamily family :
         {LogitFamily::normal, LogitFamily::tied, LogitFamily::special}) {
      RouteArguments x;
      x.logits.dtype = Format::bf16;
      x.logits.rows = 20'000;
      x.logits.columns = 256;
      x.top_k = 8;
      x.score = score;
      x.groups = 8;
      x.top_groups = 4;
      x.scale = 2.5f;
      check(RouteProblem(random, x, family, score == RouterScore::sigmoid));
    }
  }
}

TEST_F(CudaGpuRouting, RandomSorts) {
  Random random(3);
  constexpr int kTiles[] = {1, 8, 128, 256, 12};
  for (int i = 0; i < 500; ++i) check(SortProblem(random, 300, 300, kTiles[i % 5]));
}

TEST_F(CudaGpuRouting, SortsOfManyEntries) {
  Random random(4);
  for (const int tile : {1, 128}) {
    for (const std::int64_t tokens : {std::int64_t{30'000}, kMaxTokens}) {
      MoeSortArguments x;
      x.tokens = tokens;
      x.top_k = kMaxTopK;
      x.experts = tokens == kMaxTokens ? 16 : kMaxExperts;
      x.first_expert = 5;
      x.tile = tile;
      std::vector<std::int32_t> ids;
      for (std::int64_t i = 0; i < x.tokens * x.top_k; ++i) {
        ids.push_back(static_cast<std::int32_t>(test::uniform(random, 0, x.experts + 9)));
      }
      check(SortProblem(x, std::move(ids)));
    }
  }
}

// What ids say is not known when a graph is captured.
TEST_F(CudaGpuRouting, AGraphsReplaySortsOtherIds) {
  Random random(5);
  SortProblem problem(random, 200, 20, 8);
  MoeSortArguments x = problem.arguments();
  std::vector<std::int32_t> ids(static_cast<std::size_t>(x.tokens * x.top_k), 0);
  x.ids = ids.data();
  SortResults results(x);
  results.set(x);
  auto device = on_device(x);
  const std::int64_t needed = cuda::moe_sort_workspace_bytes(device.arguments());
  const DeviceBuffer workspace(static_cast<std::size_t>(needed));
  const DeviceStream stream;
  const auto sort = [&](void* on) {
    cuda::moe_sort(device.arguments(), {on, workspace.data(), needed});
  };
  sort(stream.handle());  // loads the kernels: no graph may
  const runtime::DeviceGraph graph(stream, sort);
  for (int i = 0; i < 3; ++i) {
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(test::uniform(random, 0, 30));
    stream.wait();
    device.write(device.arguments().ids, ids.data(), ids.size() * 4);
    graph.launch(stream);
    stream.wait();
    device.copy_results();
    EXPECT_TRUE(results == test::sort_reference(SortProblem(problem.x, ids)));
  }
}

TEST_F(CudaGpuRouting, Refuses) {
  Random random(6);
  const SortProblem problem(random, 50, 4, 8);
  MoeSortArguments x = problem.arguments();
  SortResults results(x);
  results.set(x);
  const auto device = on_device(x);
  const std::int64_t needed = cuda::moe_sort_workspace_bytes(device.arguments());
  EXPECT_GT(needed, 0);
  test::expect_invalid("execution.workspace_bytes", "must be at least",
                       [&] { cuda::moe_sort(device.arguments()); });
  const DeviceBuffer workspace(static_cast<std::size_t>(needed));
  MoeSortArguments mixed = device.arguments();
  mixed.offsets = results.offsets.data();
  test::expect_invalid("offsets", "memory of the host",
                       [&] { cuda::moe_sort(mixed, {nullptr, workspace.data(), needed}); });
  mixed.offsets = reinterpret_cast<std::int32_t*>(workspace.data() + needed - 4);
  test::expect_invalid("execution.workspace", "offsets",
                       [&] { cuda::moe_sort(mixed, {nullptr, workspace.data(), needed}); });
}

}  // namespace
}  // namespace blockscale
