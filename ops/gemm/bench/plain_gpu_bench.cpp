// Times the plain kernels: a square product, and one row of A times the weights of two layers, next
// to a copy kernel's rate.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/common/overlap.h"
#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/validate.h"
#include "ops/quantize/bench/copy.cuh"
#include "runtime/cuda/measure.h"
#include "tests/gpu_benchmark.h"

namespace blockscale {
namespace {

using Json = nlohmann::json;
using runtime::DeviceBuffer;

struct Case {
  Recipe a, b;
  std::int64_t m, n, k;
};

std::vector<Case> cases() {
  constexpr std::pair<Recipe, Recipe> kPairs[] = {
      {Recipe::bf16, Recipe::nvfp4},       {Recipe::bf16, Recipe::mxfp4},
      {Recipe::bf16, Recipe::mxfp6_e2m3},  {Recipe::bf16, Recipe::fp8_128x128},
      {Recipe::f16, Recipe::nvfp4},        {Recipe::nvfp4, Recipe::nvfp4},
      {Recipe::mxfp8_e4m3, Recipe::mxfp4}, {Recipe::fp8_1x128, Recipe::mxfp8_e4m3},
      {Recipe::bf16, Recipe::bf16},        {Recipe::f32, Recipe::nvfp4}};
  std::vector<Case> result;
  for (const auto& [a, b] : kPairs) {
    result.push_back({a, b, 4096, 4096, 4096});
    result.push_back({a, b, 1, 4096, 4096});
    result.push_back({a, b, 1, 28672, 4096});
  }
  result.push_back({Recipe::bf16, Recipe::nvfp4, 16, 28672, 4096});
  return result;
}

/// Operands in memory of their own, so that a call after another finds cold caches.
class Operands {
 public:
  Operands(const Case& c, std::int64_t parts, const std::vector<std::uint8_t>& noise)
      : c_(c), parts_(parts) {
    for (const auto& [recipe, rows] : {std::pair{c.a, c.m}, {c.b, c.n}}) {
      const RecipeTraits& t = recipe_traits(recipe);
      buffers_.emplace_back(bytes(value_bytes(recipe, rows, c.k)));
      DeviceBuffer& values = buffers_.back();
      for (std::size_t at = 0; at < values.bytes(); at += noise.size()) {
        values.copy_from_host(noise.data(), std::min(noise.size(), values.bytes() - at), at);
      }
      buffers_.emplace_back(bytes(scale_bytes(recipe, ScaleLayout::row_major, rows, c.k)));
      DeviceBuffer& scales = buffers_.back();
      if (t.scale == Format::f32) {
        const std::vector<float> numbers(scales.bytes() / 4, 0.01f);
        scales.copy_from_host(numbers.data(), scales.bytes());
      } else {
        scales.fill(t.scale == Format::ue8m0 ? 0x7F : 0x38);  // 1
      }
    }
    buffers_.emplace_back(bytes(c.m * c.n * 2));
  }

  GemmArguments part(std::int64_t i) const {
    GemmArguments x;
    x.a = view(c_.a, c_.m, 0, i);
    x.b = view(c_.b, c_.n, 2, i);
    x.d = {at(4, i), Format::bf16, c_.m, c_.n};
    return x;
  }

 private:
  std::size_t bytes(std::int64_t one) const {
    return static_cast<std::size_t>((one + 255) / 256 * 256 * parts_);
  }
  std::byte* at(std::size_t buffer, std::int64_t i) const {
    return buffers_[buffer].data() +
           static_cast<std::int64_t>(buffers_[buffer].bytes()) / parts_ * i;
  }
  ScaledTensorView view(Recipe recipe, std::int64_t rows, std::size_t buffer,
                        std::int64_t i) const {
    ScaledTensorView x = {recipe, rows, c_.k};
    x.values = at(buffer, i);
    if (!is_plain(recipe)) x.scales = at(buffer + 1, i);
    return x;
  }

  Case c_;
  std::int64_t parts_;
  std::vector<DeviceBuffer> buffers_;
};

/// Bytes read and written, in a second, by a copy of 256 MiB.
double copy_rate(const runtime::DeviceStream& stream) {
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  const runtime::KernelSpec spec =
      runtime::with_parameters<CopyParams>({.name = "gemm_yardstick_copy",
                                            .header = "ops/quantize/bench/copy.cuh",
                                            .call = "blockscale::copy_vectors",
                                            .threads = kCopyThreads},
                                           "blockscale::CopyParams");
  const runtime::Kernel copy(spec, runtime::KernelStore::instance());
  const DeviceBuffer from(kBytes), to(kBytes);
  const CopyParams params = {from.data(), to.data(), kBytes / 16};
  LaunchShape shape;
  shape.grid = {static_cast<std::uint32_t>(params.vectors / kCopyThreads)};
  shape.block = {kCopyThreads};
  const auto launch = [&](void* on, int) { runtime::launch(copy, shape, on, params); };
  return 2.0 * kBytes / runtime::median_seconds(stream, {{launch, 4}}, 9)[0];
}

Json measure() {
  std::vector<std::uint8_t> noise(std::size_t{8} << 20);
  std::mt19937 random(1);
  // Bytes that are no infinities and NaN in any type.
  for (std::uint8_t& x : noise) x = static_cast<std::uint8_t>(random() & 0xB7u);
  const runtime::DeviceStream stream;
  const double rate = copy_rate(stream);
  Json report = Json::array();
  for (const Case& c : cases()) {
    const std::int64_t size = value_bytes(c.a, c.m, c.k) + value_bytes(c.b, c.n, c.k) +
                              c.m * c.n * 2 + scale_bytes(c.a, ScaleLayout::row_major, c.m, c.k) +
                              scale_bytes(c.b, ScaleLayout::row_major, c.n, c.k);
    const std::int64_t parts = std::clamp<std::int64_t>(ceil_div(200 << 20, size), 1, 32);
    const Operands operands(c, parts, noise);
    const auto launch = [&](void* on, int i) {
      gemm_detail::launch_plain_gemm(operands.part(i), std::nullopt, {on});
    };
    const double seconds =
        runtime::median_seconds(stream, {{launch, static_cast<int>(parts)}}, 9)[0];
    const double flops =
        2.0 * static_cast<double>(c.m) * static_cast<double>(c.n) * static_cast<double>(c.k);
    report.push_back({{"a", recipe_traits(c.a).name},
                      {"b", recipe_traits(c.b).name},
                      {"m", c.m},
                      {"n", c.n},
                      {"k", c.k},
                      {"us", seconds * 1e6},
                      {"tflops", flops / seconds * 1e-12},
                      {"of_copy_rate", static_cast<double>(size) / seconds / rate}});
  }
  return {{"copy_bytes_per_second", rate}, {"products", report}};
}

}  // namespace
}  // namespace blockscale

int main() {
  return blockscale::test::gpu_benchmark_main(blockscale::measure);
}
