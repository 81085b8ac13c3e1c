// cuda::grouped_gemm and its kin on a GPU against the float64 reference and the bound.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/grouped_gemm/check.h"
#include "ops/grouped_gemm/cuda/plan.h"
#include "ops/grouped_gemm/test/problem.h"
#include "runtime/cuda/measure.h"
#include "tests/expect_error.h"
#include "tests/gpu.h"

namespace blockscale {
namespace {

using runtime::DeviceBuffer;
using runtime::DeviceStream;
using test::GroupedCase;
using test::GroupedProblem;
using test::Random;
using test::Routing;

/// A problem whose memory lies on the device, in exact allocations, so that a sanitizer sees what
/// is touched beside it.
class OnDevice {
 public:
  explicit OnDevice(GroupedProblem& problem)
      : problem_(problem), there_(grouped_gemm_detail::validated(problem.arguments)) {
    const void* const d = there_.d.data;
    grouped_gemm_detail::for_each_memory(there_, [&](const char*, gemm_detail::Access,
                                                     auto& pointer, const auto& lines) {
      if (pointer == nullptr) return;
      const MemoryLines m = lines();
      const std::int64_t bytes =
          m.batch * m.lines * m.bytes == 0
              ? 0
              : (m.batch - 1) * m.batch_stride + (m.lines - 1) * m.line_stride + m.bytes;
      memory_.emplace_back(static_cast<std::size_t>(bytes));
      if (bytes != 0) memory_.back().copy_from_host(pointer, memory_.back().bytes());
      if (pointer == d) d_ = memory_.size() - 1;
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(memory_.back().data());
    });
  }

  const GroupedGemmArguments& arguments() const { return there_; }
  GroupedGemmArguments& arguments() { return there_; }
  void download() { memory_[d_].copy_to_host(problem_.arguments.d.data, memory_[d_].bytes()); }
  void upload(const void* there, const void* data, std::size_t bytes) {
    for (DeviceBuffer& buffer : memory_) {
      if (buffer.data() == there) buffer.copy_from_host(data, bytes);
    }
  }
  void upload_d() { memory_[d_].copy_from_host(problem_.arguments.d.data, memory_[d_].bytes()); }

 private:
  GroupedProblem& problem_;
  GroupedGemmArguments there_;
  std::vector<DeviceBuffer> memory_;
  std::size_t d_ = 0;
};

void run(const GroupedGemmArguments& there, const DeviceStream& stream) {
  const std::int64_t needed = cuda::grouped_gemm_workspace_bytes(there);
  const DeviceBuffer workspace(static_cast<std::size_t>(needed));
  cuda::grouped_gemm(there, {stream.handle(), workspace.data(), needed});
  stream.wait();
}

std::string text_of(const GroupedCase& c) {
  std::string text = std::string(recipe_traits(c.a).name) + " x " + recipe_traits(c.b).name +
                     ", n " + std::to_string(c.n) + ", k " + std::to_string(c.k) + ", rows";
  for (std::size_t i = 0; i < c.rows.size() && i < 12; ++i) text += " " + std::to_string(c.rows[i]);
  return text;
}

gemm_detail::GemmPath path_of(const grouped_gemm_detail::GroupedPlan& plan) {
  return std::holds_alternative<Fp8GroupedParams>(plan.steps.at(0).params)
             ? gemm_detail::GemmPath::sm90_fp8
             : gemm_detail::GemmPath::plain;
}

/// A sample of D's elements within their bound, and all that is no group's as it was.
void check(const GroupedCase& of) {
  SCOPED_TRACE(text_of(of));
  Random random(3);
  GroupedProblem problem(random, of);
  OnDevice device(problem);
  const DeviceStream stream;
  run(device.arguments(), stream);
  device.download();
  problem.expect_others_untouched();
  const GroupedGemmArguments x = grouped_gemm_detail::validated(problem.arguments);
  const auto plan = grouped_gemm_detail::plan_grouped(x, cuda::default_chip());
  const GemmCheck result = grouped_gemm_detail::check_elements(x, 20'000, path_of(plan));
  EXPECT_TRUE(result.passed()) << plan.str() << result.largest_error << " of "
                               << result.proven_error << ", " << result.of_usual << " of usual";
}

class CudaGpuGrouped : public test::OnGpu {};

TEST_F(CudaGpuGrouped, EveryRouting) {
  Random random(5);
  for (const Routing routing :
       {Routing::uniform, Routing::zipf, Routing::one_hot, Routing::half_empty, Routing::empty}) {
    for (const std::int64_t average : {3, 20, 70, 137, 192, 400}) {
      check({.rows = test::routed_rows(random, routing, 9, average), .n = 768, .k = 1040});
    }
    check({.rows = test::routed_rows(random, routing, 700, 5), .n = 256, .k = 256});
    check({.a = Recipe::bf16,
           .b = Recipe::nvfp4,
           .rows = test::routed_rows(random, routing, 300, 5),
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

TEST_F(CudaGpuGrouped, EveryDtypeGapsAndGatheredRows) {
  const std::vector<std::int32_t> rows = {100, 0, 33, 260, 1};
  for (const Format dtype : {Format::bf16, Format::f16, Format::f32}) {
    for (const bool gathered : {false, true}) {
      const auto family =
          dtype == Format::f16 ? test::InputFamily::normal : test::InputFamily::adversarial;
      check({.rows = rows,
             .n = 1000,
             .k = 656,
             .dtype = dtype,
             .family = family,
             .gap = 3,
             .alpha = true,
             .bias = true,
             .gathered = gathered});
      check({.a = Recipe::fp8_row,
             .b = Recipe::fp8_row,
             .rows = rows,
             .n = 1000,
             .k = 656,
             .dtype = dtype,
             .family = family,
             .gathered = gathered});
      check({.b = Recipe::fp8_1x128,
             .rows = rows,
             .n = 1000,
             .k = 656,
             .dtype = dtype,
             .family = family,
             .gathered = gathered});
      check({.a = Recipe::mxfp8_e4m3,
             .b = Recipe::mxfp4,
             .rows = rows,
             .n = 1000,
             .k = 640,
             .dtype = dtype,
             .family = family,
             .gathered = gathered});
    }
  }
  check({.rows = {1 << 21}, .n = 128, .k = 128, .behind = 0});
  check(
      {.a = Recipe::bf16, .b = Recipe::nvfp4, .rows = {1}, .k = 48, .behind = 0, .gathered = true});
  check({.rows = {1}, .k = 128, .behind = 0, .gathered = true});
}

TEST_F(CudaGpuGrouped, ScatteredRows) {
  for (const Recipe b : {Recipe::fp8_128x128, Recipe::mxfp4}) {
    for (const bool adds : {false, true}) {
      GroupedCase of = {.a = b == Recipe::mxfp4 ? Recipe::bf16 : Recipe::fp8_1x128,
                        .b = b,
                        .rows = {30, 0, 137, 20},
                        .n = 264,
                        .k = 256,
                        .dtype = Format::f32};
      const DeviceStream stream;
      Random random(3);
      GroupedProblem plain(random, of);
      OnDevice plain_device(plain);
      run(plain_device.arguments(), stream);
      plain_device.download();
      of.scattered = true;
      of.adds = adds;
      Random again(3);
      GroupedProblem scattered(again, of);
      if (adds) scattered.d().fill_code(bit_cast<std::uint32_t>(1.5f));
      OnDevice device(scattered);
      run(device.arguments(), stream);
      device.download();
      if (!adds) scattered.expect_others_untouched();
      const GroupedGemmArguments& x = scattered.arguments;
      const auto* const from = static_cast<const float*>(plain.arguments.d.data);
      const auto* const to = static_cast<const float*>(x.d.data);
      for (std::int64_t r = 0; r < 187; ++r) {
        if (x.destinations[r] < 0) continue;
        for (std::int64_t c = 0; c < of.n; ++c) {
          const float own = from[r * of.n + c] * x.weights[r];
          const float expected = adds ? 1.5f + own : own;
          ASSERT_EQ(bit_cast<std::uint32_t>(to[x.destinations[r] * of.n + c]),
                    bit_cast<std::uint32_t>(expected))
              << r << ", " << c;
        }
      }
    }
  }
}

TEST_F(CudaGpuGrouped, ReplaysHaveOtherGroupsAndTheSameBits) {
  Random random(3);
  GroupedProblem problem(random, {.rows = {100, 0, 33, 260, 1}, .n = 512, .k = 1024});
  OnDevice device(problem);
  const DeviceStream stream;
  const runtime::DeviceGraph graph(
      stream, [&](void* handle) { cuda::grouped_gemm(device.arguments(), {handle, nullptr, 0}); });
  std::vector<std::uint8_t> first;
  for (int i = 0; i < 3; ++i) {
    problem.d().fill_code(0xA5A5);
    device.upload_d();
    graph.launch(stream);
    stream.wait();
    device.download();
    if (i == 0) first = problem.d().bytes();
    EXPECT_EQ(problem.d().bytes(), first);
  }
  // The same graph, where other groups are said.
  const std::vector<std::int32_t> others = {0, 5, 300, 300, 394, 394};
  std::copy(others.begin(), others.end(), problem.offsets().begin());
  device.upload(device.arguments().offsets, others.data(), others.size() * 4);
  problem.d().fill_code(0xA5A5);
  device.upload_d();
  graph.launch(stream);
  stream.wait();
  device.download();
  problem.expect_others_untouched();
  const GroupedGemmArguments x = grouped_gemm_detail::validated(problem.arguments);
  const auto plan = grouped_gemm_detail::plan_grouped(x, cuda::default_chip());
  EXPECT_TRUE(grouped_gemm_detail::check_elements(x, 20'000, path_of(plan)).passed());
}

TEST_F(CudaGpuGrouped, NumbersThatAreNoOffsets) {
  for (const Recipe b : {Recipe::fp8_128x128, Recipe::mxfp4}) {
    for (const std::vector<std::int32_t>& list :
         std::vector<std::vector<std::int32_t>>{{50, 20, 20, 10, 5, 0},
                                                {-5, 10, 1 << 30, 7, -2'000'000'000, -3},
                                                {2'147'483'647, 2'147'483'647, 0, 5, 5, 5},
                                                {0, 40, 20, 60, 30, 90}}) {
      Random random(4);
      GroupedProblem problem(
          random, {.a = b == Recipe::mxfp4 ? Recipe::bf16 : Recipe::fp8_1x128, .b = b, .k = 128});
      std::copy(list.begin(), list.end(), problem.offsets().begin());
      OnDevice device(problem);
      const DeviceStream stream;
      run(device.arguments(), stream);
      device.download();
      problem.expect_others_untouched();
      test::expect_error(ErrorCode::invalid_argument, "offsets", "group",
                         [&] { cuda::check_groups(device.arguments(), {stream.handle()}); });
    }
  }
  Random random(4);
  GroupedProblem right(random, {.k = 128});
  OnDevice device(right);
  cuda::check_groups(device.arguments());
}

TEST_F(CudaGpuGrouped, GroupsOfK) {
  constexpr std::int64_t kM = 200, kN = 136, kK = 1000;
  const std::vector<std::int32_t> offsets = {0, 130, 130, 257, 1000};
  for (const Recipe recipe : {Recipe::fp8_1x128, Recipe::fp8_row, Recipe::bf16}) {
    Random random(8);
    const test::TestOperand a(random, recipe, kM, kK, test::InputFamily::normal);
    const test::TestOperand b(random, recipe, kN, kK, test::InputFamily::normal);
    std::vector<float> d(static_cast<std::size_t>(4 * kM * kN), NAN), expected = d;
    KGroupedGemmArguments x;
    x.a = a.view();
    x.b = b.view();
    x.d = {expected.data(), Format::f32, kM, kN, kN, 4};
    x.offsets = offsets.data();
    k_grouped_gemm(x);
    KGroupedGemmArguments there = grouped_gemm_detail::validated(x);
    std::vector<DeviceBuffer> memory;
    grouped_gemm_detail::for_each_memory(there, [&](const char*, gemm_detail::Access, auto& pointer,
                                                    const auto& lines) {
      if (pointer == nullptr) return;
      const MemoryLines m = lines();
      memory.emplace_back(static_cast<std::size_t>((m.batch - 1) * m.batch_stride +
                                                   (m.lines - 1) * m.line_stride + m.bytes));
      memory.back().copy_from_host(pointer, memory.back().bytes());
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(memory.back().data());
    });
    const DeviceStream stream;
    cuda::k_grouped_gemm(there, {stream.handle()});
    stream.wait();
    memory[0].copy_to_host(d.data(), memory[0].bytes());
    for (std::size_t i = 0; i < d.size(); ++i) {
      ASSERT_NEAR(d[i], expected[i], 1e-3 * (1 + std::abs(expected[i]))) << i;
    }
  }
}

}  // namespace
}  // namespace blockscale
