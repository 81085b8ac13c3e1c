// cuda::gemm with `quantized`: the bytes that the CPU's quantizer makes of the f32 D of a plain
// kernel that divides K alike.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/validate.h"
#include "runtime/cuda/measure.h"
#include "tests/gemm_problem.h"
#include "tests/gpu.h"

namespace blockscale {
namespace {

using gemm_detail::Fp8LaunchConfig;
using runtime::DeviceBuffer;

struct Problem {
  std::int64_t m = 200, n = 512, k = 640, batch = 1;
  Recipe b = Recipe::fp8_128x128;
  Recipe result = Recipe::fp8_1x128;
  QuantizeInput input = {};
  ScaleLayout layout = ScaleLayout::row_major;
  test::InputFamily family = test::InputFamily::normal;
  bool bias = false;
};

DeviceBuffer copy_of(const void* data, std::int64_t bytes) {
  DeviceBuffer buffer(static_cast<std::size_t>(bytes));
  buffer.copy_from_host(data, buffer.bytes());
  return buffer;
}

/// An operand of packed rows, on the device.
class OnDevice {
 public:
  explicit OnDevice(const ScaledTensorView& x)
      : values_(copy_of(x.values, value_bytes(x.recipe, x.rows, x.k, x.batch))),
        scales_(copy_of(x.scales, scale_bytes(x.recipe, x.layout, x.rows, x.k, x.batch))),
        view_(x) {
    view_.values = values_.data();
    view_.scales = scales_.data();
  }
  const ScaledTensorView& view() const { return view_; }

 private:
  DeviceBuffer values_, scales_;
  ScaledTensorView view_;
};

/// Of a product by `plan`: one that a plain kernel has, and that divides K alike.
Fp8LaunchConfig plain_choice(const GemmArguments& plain, std::uint32_t split) {
  const GemmArguments x = gemm_detail::validated(plain, {});
  for (const Fp8LaunchConfig& c : gemm_detail::fp8_launch_configs(gemm_detail::size_of(x), {})) {
    if (c.split == split) return c;
  }
  ADD_FAILURE() << "no plain kernel divides K by " << split;
  return {};
}

/// Of each launch of a plan K is divided alike here: those of two launches by 1.
void check(const Problem& p, const std::optional<Fp8LaunchConfig>& choice = std::nullopt) {
  const bool gated = std::holds_alternative<Swiglu>(p.input);
  const std::int64_t columns = gated ? p.n / 2 : p.n;
  test::Random random(static_cast<std::uint64_t>(p.m + p.n * 7 + p.k));
  test::OperandOptions operand;
  operand.batch = p.batch;
  operand.smallest_scales = false;
  const test::TestOperand a(random, Recipe::fp8_1x128, p.m, p.k, p.family, operand);
  const test::TestOperand b(random, p.b, p.n, p.k, p.family, operand);
  const OnDevice a_there(a.view()), b_there(b.view());
  const std::vector<float> bias(static_cast<std::size_t>(p.n), 0.5f);
  const DeviceBuffer bias_there = copy_of(bias.data(), p.n * 4);
  GemmArguments x;
  x.a = a_there.view();
  x.b = b_there.view();
  if (p.bias) x.bias = bias_there.data();

  ScaledTensor result(p.result, p.m, columns, p.layout, p.batch);
  ScaledTensor expected(p.result, p.m, columns, p.layout, p.batch);
  const MutableScaledTensorView host = result.view();
  const std::int64_t values = value_bytes(p.result, p.m, columns, p.batch);
  const std::int64_t scales = scale_bytes(p.result, p.layout, p.m, columns, p.batch);
  DeviceBuffer values_there(static_cast<std::size_t>(values));
  DeviceBuffer scales_there(static_cast<std::size_t>(scales));
  values_there.fill(0xA5);
  scales_there.fill(0xA5);
  GemmArguments quantizing = x;
  quantizing.quantized = {host, {}};
  quantizing.quantized->out.values = values_there.data();
  quantizing.quantized->out.scales = scales_there.data();
  quantizing.quantized->out.tensor_scale = nullptr;
  quantizing.quantized->options.input = p.input;
  if (p.result == Recipe::nvfp4) quantizing.quantized->options.scale_source = ScaleSource::given;
  const auto plan = gemm_detail::plan_fp8_gemm(gemm_detail::validated(quantizing, {}), {}, choice);
  SCOPED_TRACE(plan.str());
  const runtime::DeviceStream stream;
  gemm_detail::launch_gemm(quantizing, choice, {stream.handle()});

  DeviceBuffer d_there(static_cast<std::size_t>(p.batch * p.m * p.n * 4));
  x.d = {d_there.data(), Format::f32, p.m, p.n};
  x.d.batch = p.batch;
  gemm_detail::launch_gemm(x, plain_choice(x, plan.steps[0].config.split), {stream.handle()});
  stream.wait();
  std::vector<float> d(static_cast<std::size_t>(p.batch * p.m * p.n));
  d_there.copy_to_host(d.data(), d_there.bytes());
  x.d.data = d.data();
  MutableScaledTensorView out = expected.view();
  quantize(x.d, out, quantizing.quantized->options);
  std::vector<std::uint8_t> got(static_cast<std::size_t>(values + scales));
  values_there.copy_to_host(got.data(), values_there.bytes());
  scales_there.copy_to_host(got.data() + values, scales_there.bytes());
  const auto* const v = static_cast<const std::uint8_t*>(out.values);
  const auto* const s = static_cast<const std::uint8_t*>(out.scales);
  std::vector<std::uint8_t> wanted(v, v + values);
  wanted.insert(wanted.end(), s, s + scales);
  std::int64_t different = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) different += got[i] != wanted[i] ? 1 : 0;
  EXPECT_EQ(different, 0) << "bytes of " << wanted.size();
}

class CudaGpuQuantizedGemm : public test::OnHopper {};

TEST_F(CudaGpuQuantizedGemm, EveryRecipeInputAndLayout) {
  for (const Recipe result : {Recipe::fp8_1x128, Recipe::fp8_1x128_pow2, Recipe::fp8_1x128_ue8m0,
                              Recipe::mxfp8_e4m3, Recipe::nvfp4}) {
    for (int i = 0; i < kScaleLayoutCount; ++i) {
      const auto layout = static_cast<ScaleLayout>(i);
      if (is_swizzled(layout) && format_traits(recipe_traits(result).scale).bits != 8) continue;
      for (const QuantizeInput& input :
           {QuantizeInput{Identity{}}, QuantizeInput{Gelu{}}, QuantizeInput{Gelu{GeluForm::erf}},
            QuantizeInput{Swiglu{}}, QuantizeInput{Swiglu{GateOrder::up_first, 1}},
            QuantizeInput{Swiglu{GateOrder::gate_first, 64}},
            QuantizeInput{Swiglu{GateOrder::up_first, 0, 7, 1.702f, 1}}}) {
        for (const auto family : {test::InputFamily::normal, test::InputFamily::adversarial}) {
          Problem p;
          p.result = result;
          p.layout = layout;
          p.input = input;
          p.family = family;
          p.bias = family == test::InputFamily::normal;
          check(p);
          p.b = Recipe::fp8_1x128;
          check(p);
        }
      }
    }
  }
}

TEST_F(CudaGpuQuantizedGemm, EveryChoice) {
  for (const QuantizeInput& input : {QuantizeInput{Identity{}}, QuantizeInput{Swiglu{}}}) {
    Problem p;
    p.m = 150;
    p.k = 1040;
    p.input = input;
    GemmArguments x;
    ScaledTensor a(Recipe::fp8_1x128, p.m, p.k), b(p.b, p.n, p.k);
    ScaledTensor out(p.result, p.m, std::holds_alternative<Swiglu>(input) ? p.n / 2 : p.n);
    x.a = a.view();
    x.b = b.view();
    x.quantized = {out.view(), {}};
    x.quantized->options.input = input;
    const auto size = gemm_detail::size_of(gemm_detail::validated(x, {}));
    for (const Fp8LaunchConfig& choice : gemm_detail::fp8_launch_configs(size, {}))
      check(p, choice);
  }
}

TEST_F(CudaGpuQuantizedGemm, Edges) {
  for (const std::int64_t m : {1, 17, 65, 129}) {
    for (const std::int64_t n : {2, 80, 200, 334, 1000}) {
      Problem p;
      p.m = m;
      p.n = n;
      p.k = 144;
      p.batch = 2;
      check(p);
      p.b = Recipe::fp8_1x128;
      p.input = Swiglu{};
      check(p);
    }
  }
}

TEST_F(CudaGpuQuantizedGemm, LargeProducts) {
  for (const QuantizeInput& input : {QuantizeInput{Identity{}}, QuantizeInput{Swiglu{}}}) {
    Problem p;
    p.m = 4096;
    p.n = 4096;
    p.k = 1024;
    p.input = input;
    check(p);
  }
}

}  // namespace
}  // namespace blockscale
