// Times cuda::gemm on the shapes of dense models, by every choice that a plan has, and where it
// quantizes D of many rows.
#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <variant>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/validate.h"
#include "runtime/cuda/measure.h"
#include "tests/gpu_benchmark.h"

namespace blockscale {
namespace {

using gemm_detail::Fp8LaunchConfig;
using Json = nlohmann::json;
using runtime::DeviceBuffer;

struct Shape {
  std::int64_t m, n, k;
};

/// Those of DeepSeek-V3's linear layers, and squares.
std::vector<Shape> shapes() {
  std::vector<Shape> result;
  for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{2112, 7168},
                             {576, 7168},
                             {24576, 1536},
                             {32768, 512},
                             {7168, 16384},
                             {4096, 7168},
                             {7168, 2048}}) {
    for (const std::int64_t m : {1, 4, 8, 64, 128, 4096}) result.push_back({m, n, k});
  }
  result.push_back({8192, 8192, 8192});
  result.push_back({4096, 4096, 4096});
  result.push_back({16384, 4096, 7168});
  return result;
}

/// Operands of a product in memory of their own, so that a call after another finds cold caches.
/// Rows of A and of B that were alike would have products so large that nvfp4 is rounded the long
/// way.
class Operands {
 public:
  Operands(const Shape& s, std::int64_t parts, const std::vector<std::uint8_t>& noise_a,
           const std::vector<std::uint8_t>& noise_b)
      : shape_(s),
        a_(bytes(s.m * s.k, parts)),
        b_(bytes(s.n * s.k, parts)),
        a_scales_(bytes(s.m * ceil_div(s.k, 128) * 4, parts)),
        b_scales_(bytes(ceil_div(s.n, 128) * ceil_div(s.k, 128) * 4, parts)),
        d_(bytes(s.m * s.n * 2, parts)) {
    fill(a_, noise_a);
    fill(b_, noise_b);
    for (DeviceBuffer* const x : {&a_scales_, &b_scales_}) {
      const std::vector<float> ones(x->bytes() / 4, 0.01f);
      x->copy_from_host(ones.data(), x->bytes());
    }
    parts_ = parts;
  }

  GemmArguments part(std::int64_t i) const {
    GemmArguments x;
    x.a = {Recipe::fp8_1x128, shape_.m, shape_.k};
    x.b = {Recipe::fp8_128x128, shape_.n, shape_.k};
    x.a.values = at(a_, i);
    x.b.values = at(b_, i);
    x.a.scales = at(a_scales_, i);
    x.b.scales = at(b_scales_, i);
    x.a.layout = ScaleLayout::mn_major;
    x.d = {at(d_, i), Format::bf16, shape_.m, shape_.n};
    return x;
  }

  /// The same, quantized into the memory of D.
  GemmArguments quantized_part(std::int64_t i, Recipe recipe, const QuantizeInput& input) const {
    GemmArguments x = part(i);
    MutableScaledTensorView out;
    out.recipe = recipe;
    out.rows = shape_.m;
    out.k = std::holds_alternative<Swiglu>(input) ? shape_.n / 2 : shape_.n;
    out.values = at(d_, i);
    out.scales = at(d_, i) + shape_.m * shape_.n;
    x.quantized = {out, {}};
    x.quantized->options.input = input;
    if (recipe == Recipe::nvfp4) x.quantized->options.scale_source = ScaleSource::given;
    return x;
  }

 private:
  static void fill(DeviceBuffer& x, const std::vector<std::uint8_t>& noise) {
    for (std::size_t at = 0; at < x.bytes(); at += noise.size()) {
      x.copy_from_host(noise.data(), std::min(noise.size(), x.bytes() - at), at);
    }
  }
  static std::size_t bytes(std::int64_t one, std::int64_t parts) {
    return static_cast<std::size_t>((one + 255) / 256 * 256 * parts);
  }
  std::byte* at(const DeviceBuffer& buffer, std::int64_t i) const {
    return buffer.data() + static_cast<std::int64_t>(buffer.bytes()) / parts_ * i;
  }

  Shape shape_;
  DeviceBuffer a_, b_, a_scales_, b_scales_, d_;
  std::int64_t parts_ = 1;
};

struct Quantization {
  const char* name;
  Recipe recipe;
  QuantizeInput input;
};
const std::vector<Quantization> kQuantizations = {
    {"fp8_1x128", Recipe::fp8_1x128, Identity{}},
    {"mxfp8_e4m3", Recipe::mxfp8_e4m3, Identity{}},
    {"nvfp4", Recipe::nvfp4, Identity{}},
    {"gelu_tanh, fp8_1x128", Recipe::fp8_1x128, Gelu{}},
    {"swiglu, fp8_1x128", Recipe::fp8_1x128, Swiglu{}},
    {"swiglu, mxfp8_e4m3", Recipe::mxfp8_e4m3, Swiglu{}},
    {"swiglu, nvfp4", Recipe::nvfp4, Swiglu{}},
};
constexpr std::int64_t kManyRows = 4096;

Json measure() {
  std::vector<std::uint8_t> noise_a(std::size_t{8} << 20), noise_b(noise_a.size());
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 100);
  for (std::vector<std::uint8_t>* const noise : {&noise_a, &noise_b}) {
    for (std::uint8_t& x : *noise) {
      x = static_cast<std::uint8_t>(encode(Format::e4m3, normal(random)));
    }
  }
  const bool all = std::getenv("BLOCKSCALE_BENCH_QUICK") == nullptr;
  const runtime::DeviceStream stream;
  const cuda::Chip& chip = cuda::current_device();
  Json report = Json::array();
  for (const Shape& s : shapes()) {
    const std::int64_t size = s.m * s.k + s.n * s.k + 2 * s.m * s.n;
    const std::int64_t parts = std::clamp<std::int64_t>(ceil_div(200 << 20, size), 1, 64);
    const Operands operands(s, parts, noise_a, noise_b);
    const GemmArguments first = gemm_detail::validated(operands.part(0), {});
    const auto planned = gemm_detail::plan_fp8_gemm(first, chip);
    std::vector<std::optional<Fp8LaunchConfig>> choices = {std::nullopt};  // the plan's
    if (all) {
      for (const Fp8LaunchConfig& c :
           gemm_detail::fp8_launch_configs(gemm_detail::size_of(first), chip)) {
        choices.emplace_back(c);
      }
    }
    std::vector<runtime::TimedWork> works;
    for (const std::optional<Fp8LaunchConfig>& c : choices) {
      works.push_back(
          {[&operands, c](void* on, int i) { gemm_detail::launch_gemm(operands.part(i), c, {on}); },
           static_cast<int>(parts)});
    }
    if (s.m >= kManyRows) {  // alone, and so the plan's once more
      const auto alone = [](void* on) {
        cuda::Execution execution{on};
        execution.overlap = false;
        return execution;
      };
      works.push_back(
          {[&operands, alone](void* on, int i) { cuda::gemm(operands.part(i), alone(on)); },
           static_cast<int>(parts)});
      for (const Quantization& q : kQuantizations) {
        works.push_back({[&operands, &q, alone](void* on, int i) {
                           cuda::gemm(operands.quantized_part(i, q.recipe, q.input), alone(on));
                         },
                         static_cast<int>(parts)});
      }
    }
    const std::vector<double> seconds = runtime::median_seconds(stream, works, 9);
    Json quantized = Json::array();
    const std::size_t bf16 = choices.size();
    for (std::size_t i = bf16 + 1; i < works.size(); ++i) {
      quantized.push_back({{"result", kQuantizations[i - bf16 - 1].name},
                           {"us", seconds[i] * 1e6},
                           {"bf16_by_this", seconds[bf16] / seconds[i]}});
    }
    Json tried = Json::array();
    for (std::size_t i = 1; i < choices.size(); ++i) {
      const Fp8LaunchConfig& c = *choices[i];
      const double expected = gemm_detail::expected_seconds(gemm_detail::size_of(first), c, chip);
      tried.push_back({{"rows", c.rows},
                       {"columns", c.columns},
                       {"stages", c.stages},
                       {"split", c.split},
                       {"per_sm", c.per_sm},
                       {"expected_us", expected * 1e6},
                       {"us", seconds[i] * 1e6}});
    }
    report.push_back({{"m", s.m},
                      {"n", s.n},
                      {"k", s.k},
                      {"us", seconds[0] * 1e6},
                      {"expected_us", planned.expected_seconds * 1e6},
                      {"plan", planned.str()},
                      {"choices", tried},
                      {"quantized", quantized}});
  }
  return {{"shapes", report}};
}

}  // namespace
}  // namespace blockscale

int main() {
  return blockscale::test::gpu_benchmark_main(blockscale::measure);
}
