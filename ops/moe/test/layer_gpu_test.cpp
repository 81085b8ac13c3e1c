// The layer on a GPU: each of its steps from what it left in its workspace.
#include <gtest/gtest.h>

#include <cstdint>
#include <type_traits>
#include <variant>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/common/cuda/cold_calls.h"
#include "ops/gemm/cpu/memory.h"
#include "ops/grouped_gemm/call_memory.h"
#include "ops/moe/call_memory.h"
#include "ops/moe/cuda/plan.h"
#include "ops/moe/test/layer_problem.h"
#include "runtime/cuda/measure.h"
#include "tests/gpu.h"

namespace blockscale {
namespace {

using runtime::DeviceBuffer;
using runtime::DeviceStream;
using test::LayerCase;
using test::LayerProblem;
using test::Random;
using test::Routing;

/// A call's memory on the device, in exact allocations, so that a sanitizer sees what is touched
/// beside it.
template <class Arguments>
cuda::DeviceArguments<Arguments> on_device(const Arguments& x) {
  return {x, [](auto& of, const auto& visit) {
            if constexpr (std::is_same_v<Arguments, MoeArguments>) {
              moe_detail::for_each_memory(of, visit);
            } else {
              grouped_gemm_detail::for_each_memory(of, visit);
            }
          }};
}

class CudaGpuMoe : public test::OnGpu {};

/// A layer's arguments, and what its workspace holds when it has run.
struct Ran {
  MoeArguments arguments;
  moe_detail::Gather gather = moe_detail::Gather::product;
  gemm_detail::Array<std::uint8_t> workspace;
};

Ran run(LayerProblem& problem) {
  const MoeArguments x = moe_detail::validated(problem.arguments(), {});
  const auto device = on_device(x);
  const std::int64_t bytes = cuda::moe_workspace_bytes(device.arguments());
  Ran ran = {x, moe_detail::gather_of(x, cuda::default_chip()),
             gemm_detail::allocate<std::uint8_t>(bytes)};
  const DeviceBuffer workspace(static_cast<std::size_t>(bytes));
  const DeviceStream stream;
  cuda::moe(device.arguments(), {}, {stream.handle(), workspace.data(), bytes});
  stream.wait();
  device.copy_results();
  workspace.copy_to_host(ran.workspace.get(), static_cast<std::size_t>(bytes));
  EXPECT_TRUE(problem.y().is_poison_intact());
  return ran;
}

/// Runs a layer twice, which has the same bytes, and checks each step by the memory that the first
/// run left; of one that is not sorted by the memory of the same that is, which has those bytes
/// too.
void check(const LayerCase& of) {
  SCOPED_TRACE(test::text_of(of));
  Random random(2);
  LayerProblem problem(random, of);
  Ran ran = run(problem);
  if (ran.gather == moe_detail::Gather::entries) {
    const std::vector<std::uint8_t> unsorted = problem.y().bytes();
    (void)run(problem);
    EXPECT_EQ(problem.y().bytes(), unsorted);
    problem.map_ids();
    ran = run(problem);
    EXPECT_EQ(problem.y().bytes(), unsorted);
  }
  const MoeArguments& x = ran.arguments;
  const std::vector<std::uint8_t> first = problem.y().bytes();
  const cuda::Chip& chip = cuda::default_chip();
  const auto plan =
      moe_detail::plan_moe(x, moe_detail::parts_of(x, {}, chip), chip, ran.workspace.get());
  const auto multiply = [&](const GroupedGemmArguments& up) {
    const auto product = on_device(grouped_gemm_detail::validated(up));
    const std::int64_t bytes = cuda::grouped_gemm_workspace_bytes(product.arguments());
    const DeviceBuffer workspace(static_cast<std::size_t>(bytes));
    const DeviceStream stream;
    cuda::grouped_gemm(product.arguments(), {stream.handle(), workspace.data(), bytes});
    stream.wait();
    product.copy_results();
  };
  const auto& shared = plan.parts[0].shared;
  const auto shared_path = shared ? shared->down.path() : gemm_detail::GemmPath::plain;
  test::expect_layer(problem.arguments(), ran.workspace.get(), ran.gather, multiply,
                     plan.parts[0].up.path(), plan.parts[0].down.path(), shared_path);
  (void)run(problem);
  EXPECT_EQ(problem.y().bytes(), first);
}

TEST_F(CudaGpuMoe, EveryRouting) {
  for (const Routing routing : test::kRoutings) {
    for (const std::int64_t tokens : {1, 40, 300}) {
      check({.tokens = tokens,
             .hidden = 512,
             .inner = 256,
             .experts = 9,
             .routing = routing,
             .residual = routing == Routing::elsewhere});
    }
  }
}

TEST_F(CudaGpuMoe, KindsOfWeight) {
  for (const Recipe recipe :
       {Recipe::fp8_tensor, Recipe::fp8_row, Recipe::fp8_1x128, Recipe::fp8_128x128_ue8m0,
        Recipe::nvfp4, Recipe::mxfp4, Recipe::bf16}) {
    check({.w13 = recipe, .w2 = recipe, .tokens = 70, .alphas = true, .bias = true});
  }
  for (const Recipe recipe : {Recipe::fp8_row, Recipe::nvfp4, Recipe::mxfp4}) {
    for (const std::int64_t tokens : {3, 70}) {
      check({.w13 = recipe, .w2 = recipe, .activations = Recipe::fp8_row, .tokens = tokens});
    }
  }
}

// gpt-oss's shapes, and those of NVFP4 with a tensor scale an expert, as decode has them.
TEST_F(CudaGpuMoe, FewRowsOfFp4) {
  const Swiglu clamped = {GateOrder::gate_first, 1, 0.7f, 1.702f, 1};
  for (const std::int64_t tokens : {1, 4, 16, 33}) {
    check({.w13 = Recipe::mxfp4,
           .w2 = Recipe::mxfp4,
           .tokens = tokens,
           .hidden = 2880,
           .inner = 288,
           .experts = 32,
           .top_k = 4,
           .transform = clamped,
           .bias = true});
    for (const Recipe activations : {Recipe::bf16, Recipe::fp8_1x128}) {
      check({.w13 = Recipe::nvfp4,
             .w2 = Recipe::nvfp4,
             .activations = activations,
             .tokens = tokens,
             .hidden = 1024,
             .inner = 384,
             .experts = 40,
             .alphas = true});
    }
  }
}

// As many entries as stay unsorted, of layers as decode has them.
TEST_F(CudaGpuMoe, FewEntriesAreNotSorted) {
  for (const Routing routing : test::kRoutings) {
    for (const std::int64_t tokens : {1, 2, 4}) {
      LayerCase fp8 = {.tokens = tokens,
                       .hidden = 2048,
                       .inner = 512,
                       .experts = 128,
                       .top_k = 8,
                       .first_expert = 64,
                       .routing = routing};
      check(fp8);
      fp8.alphas = fp8.residual = true;
      fp8.shared = 1;
      check(fp8);
      check({.w13 = Recipe::mxfp4,
             .w2 = Recipe::mxfp4,
             .tokens = tokens,
             .hidden = 1024,
             .inner = 288,
             .experts = 64,
             .top_k = 4,
             .routing = routing,
             .transform = Swiglu{GateOrder::gate_first, 1, 0.7f, 1.702f, 1},
             .bias = true});
    }
  }
}

// By the kernel of FP8's few rows, of entries and of sorted rows.
TEST_F(CudaGpuMoe, FewRowsAreTransformed) {
  const Swiglu of_gpt_oss = {GateOrder::gate_first, 1, 0.7f, 1.702f, 1};
  const QuantizeInput transforms[] = {Swiglu{}, Swiglu{GateOrder::up_first, 64}, of_gpt_oss, Gelu{},
                                      Silu{}};
  for (const std::int64_t tokens : {1, 3, 9}) {
    LayerCase of = {.tokens = tokens, .hidden = 2064, .inner = 320, .experts = 20, .top_k = 2};
    of.apart = true;
    check(of);
    of.inner = 256;
    of.apart = false;
    of.bias = of.alphas = true;
    for (const QuantizeInput& transform : transforms) {
      of.transform = transform;
      check(of);
    }
  }
}

TEST_F(CudaGpuMoe, TransformsAndShards) {
  for (const Recipe activations : {Recipe::fp8_1x128, Recipe::bf16}) {
    check({.activations = activations, .tokens = 60, .transform = Gelu{}});
    for (const std::int64_t tokens : {3, 60, 300}) {
      check({.activations = activations, .tokens = tokens, .transform = Silu{}});
    }
    check({.activations = activations, .tokens = 60, .shared = 1, .transform = Silu{}});
    check({.activations = activations, .tokens = 60, .transform = Swiglu{GateOrder::up_first, 64}});
  }
  for (const std::int64_t inner : {64, 80, 192, 768}) {
    check({.tokens = 50, .inner = inner, .apart = true});
    check({.tokens = 5, .inner = inner, .apart = true, .layout = ScaleLayout::mn_major});
  }
}

TEST_F(CudaGpuMoe, WeightsOnTheInput) {
  for (const Recipe x : {Recipe::f32, Recipe::f16, Recipe::bf16}) {
    check({.x = x, .tokens = 40, .residual = true, .weights_on_input = true});
    check(
        {.x = x, .activations = Recipe::bf16, .tokens = 40, .top_k = 1, .weights_on_input = true});
  }
  check({.tokens = 300, .hidden = 1041, .routing = Routing::half_of_it, .weights_on_input = true});
}

TEST_F(CudaGpuMoe, SharedExperts) {
  for (const std::int64_t shared : {1, 2}) {
    for (const std::int64_t tokens : {1, 40, 300}) {
      check({.tokens = tokens, .hidden = 512, .inner = 256, .shared = shared, .shared_inner = 256});
    }
    check({.tokens = 40, .shared = shared, .residual = true, .weights_on_input = true});
    check({.activations = Recipe::bf16, .tokens = 40, .shared = shared});
  }
  check({.w13 = Recipe::nvfp4, .w2 = Recipe::nvfp4, .tokens = 40, .shared = 1});
  check({.x = Recipe::fp8_1x128, .tokens = 33, .shared = 3});
}

TEST_F(CudaGpuMoe, ResidualsAndTypes) {
  for (const Format y : {Format::f32, Format::f16, Format::bf16}) {
    check({.tokens = 33, .y = y, .residual = true});
    check({.tokens = 33, .hidden = 161, .y = y, .weights = false, .residual = true});
  }
  check({.x = Recipe::fp8_1x128, .tokens = 33});
  check({.tokens = 700, .hidden = 1040, .inner = 384, .experts = 33, .top_k = 8});
}

TEST_F(CudaGpuMoe, RowsThatAreAdded) {
  const auto check_added = [&](LayerCase of) {
    SCOPED_TRACE(test::text_of(of));
    Random random(2), again(2);
    LayerProblem ordered(random, of);
    of.deterministic = false;
    LayerProblem added(again, of);
    const Ran in_order = run(ordered);
    const MoeArguments &x = in_order.arguments, y = run(added).arguments;
    const auto part =
        moe_detail::part_of(x, 0, of.tokens, in_order.workspace.get(), in_order.gather);
    EXPECT_TRUE(moe_detail::adds_rows(y));
    EXPECT_EQ(test::count_far(part, x, y.y), 0) << format_traits(of.y).name;
  };
  for (const Format y : {Format::f32, Format::f16, Format::bf16}) {
    check_added({.tokens = 200,
                 .hidden = 264,
                 .inner = 512,
                 .experts = 5,
                 .y = y,
                 .residual = true,
                 .largest_weight = 0x1p-26});
    check_added({.tokens = 300,
                 .hidden = 96,
                 .inner = 640,
                 .experts = 33,
                 .top_k = 8,
                 .y = y,
                 .largest_weight = 0x1p-26});
  }
  check_added(
      {.w13 = Recipe::nvfp4, .w2 = Recipe::nvfp4, .tokens = 100, .inner = 512, .shared = 1});
  check_added(
      {.tokens = 100, .inner = 512, .routing = Routing::half_of_it, .weights_on_input = true});
  check_added(
      {.tokens = 100, .hidden = 97, .inner = 512, .routing = Routing::skewed, .y = Format::f32});
}

}  // namespace
}  // namespace blockscale
