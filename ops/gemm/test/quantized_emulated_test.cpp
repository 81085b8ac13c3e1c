// Products that quantize D, in the emulator: the bytes are those that the CPU's quantizer makes of
// the f32 D of a plain kernel, for each recipe, fused input, layout and edge, under random
// schedules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "ops/gemm/cuda/plan.h"
#include "ops/gemm/test/emulation.h"
#include "ops/gemm/test/product_emulation.h"
#include "ops/gemm/validate.h"
#include "tests/chip.h"
#include "tests/gemm_problem.h"

namespace blockscale {
namespace {

using emulator::BufferUse;
using gemm_detail::Fp8GemmPlan;
using gemm_detail::Fp8LaunchConfig;
using test::InputFamily;
using test::Random;

constexpr Recipe kResults[] = {Recipe::fp8_1x128, Recipe::fp8_1x128_pow2, Recipe::fp8_1x128_ue8m0,
                               Recipe::mxfp8_e4m3, Recipe::nvfp4};

struct Problem {
  std::int64_t m = 72, n = 256, k = 256, batch = 1;
  Recipe b = Recipe::fp8_128x128;
  Recipe result = Recipe::mxfp8_e4m3;
  QuantizeInput input = {};
  ScaleLayout layout = ScaleLayout::row_major;  // of the result's scales
  std::int64_t odd_bytes = 0;                   // before the result's values, and between rows
  float alpha = 1, beta = 0;                    // with C that holds NaN and infinities
  bool bias = false, multiplier = false, no_tensor_scale = false;
  InputFamily family = InputFamily::normal;
  MxScaleMode mode = MxScaleMode::ceil;
  float amax_floor = 0;
};

std::int64_t result_columns(const Problem& p) {
  return std::holds_alternative<Swiglu>(p.input) ? p.n / 2 : p.n;
}

std::string text_of(const Problem& p) {
  return std::to_string(p.m) + " x " + std::to_string(p.n) + " x " + std::to_string(p.k) +
         " batch " + std::to_string(p.batch) + ", B " + recipe_traits(p.b).name + ", to " +
         recipe_traits(p.result).name + " " + scale_layout_traits(p.layout).name + ", input " +
         std::to_string(p.input.index());
}

/// A quantized tensor, its bytes all 0xA5 until somebody writes them.
class Result {
 public:
  explicit Result(const Problem& p) {
    view_.recipe = p.result;
    view_.rows = p.m;
    view_.k = result_columns(p);
    view_.batch = p.batch;
    view_.layout = p.layout;
    view_.value_row_stride = row_bytes(p.result, view_.k) + p.odd_bytes;
    const auto bytes = static_cast<std::size_t>(p.batch * p.m * view_.value_row_stride);
    values_.assign(bytes + static_cast<std::size_t>(p.odd_bytes) + 16, 0xA5);
    const auto address = reinterpret_cast<std::uintptr_t>(values_.data());
    view_.values = values_.data() + (16 - address % 16) % 16 + p.odd_bytes;
    scales_.assign(static_cast<std::size_t>(scale_bytes(p.result, p.layout, p.m, view_.k, p.batch)),
                   0xA5);
    view_.scales = scales_.data();
    if (p.result == Recipe::nvfp4 && !p.no_tensor_scale) {
      tensor_scales_ = {p.multiplier ? 1 / 48.0f : 40.0f, p.multiplier ? 2.0f : 0.03f};
      view_.tensor_scale = tensor_scales_.data();
      view_.tensor_scale_batch_stride = p.batch > 1 ? 1 : 0;
      if (p.multiplier) view_.sense = TensorScaleSense::multiplier;
    }
    view_ = resolved(view_, "result");
  }
  Result(const Result&) = delete;
  Result& operator=(const Result&) = delete;

  MutableScaledTensorView view() const { return view_; }
  std::vector<std::uint8_t> values() const {
    const auto* const first = static_cast<const std::uint8_t*>(view_.values);
    return {first, first + (values_.data() + values_.size() - first)};
  }
  const std::vector<std::uint8_t>& scales() const { return scales_; }

  void add_to(std::vector<emulator::Buffer>& buffers) const {
    const std::int64_t bytes = view_.batch * view_.rows * view_.value_row_stride -
                               (view_.value_row_stride - row_bytes(view_.recipe, view_.k));
    buffers.push_back(emulator::buffer("result", view_.values, static_cast<std::size_t>(bytes),
                                       BufferUse::output));
    buffers.push_back(
        emulator::buffer("result scales", scales_.data(), scales_.size(), BufferUse::output));
    if (!tensor_scales_.empty()) buffers.push_back(emulator::input("S", tensor_scales_));
  }

 private:
  std::vector<std::uint8_t> values_, scales_;
  std::vector<float> tensor_scales_;
  MutableScaledTensorView view_;
};

QuantizeOptions options_of(const Problem& p) {
  QuantizeOptions options;
  options.input = p.input;
  options.mx_scale_mode = p.mode;
  options.fp8_amax_floor = p.amax_floor;
  if (p.result == Recipe::nvfp4) options.scale_source = ScaleSource::given;
  return options;
}

/// NaN, infinities, the smallest and the largest numbers, and zeros, here and there.
void add_exceptions(Random& random, test::TestMatrix& c) {
  const float numbers[] = {std::numeric_limits<float>::quiet_NaN(),
                           std::numeric_limits<float>::infinity(),
                           -std::numeric_limits<float>::infinity(),
                           0x1p-140f,
                           3e38f,
                           -3e38f};
  const MutableMatrixView view = c.view();
  auto* const data = static_cast<float*>(view.data);
  for (std::int64_t i = 0; i < view.batch * view.batch_stride; ++i) {
    if (test::chance(random, 0.005)) data[i] = numbers[test::uniform(random, 0, 5)];
  }
}

Fp8GemmPlan plan_of(const GemmArguments& x, const std::optional<Fp8LaunchConfig>& choice) {
  return gemm_detail::plan_fp8_gemm(gemm_detail::validated(x, {}), test::chip_of(4), choice);
}

/// Runs a problem by a choice (or the plan's own) under one schedule.
void check(const Problem& p, const std::optional<Fp8LaunchConfig>& choice,
           const emulator::Options& options, std::size_t launches = 1) {
  SCOPED_TRACE(text_of(p));
  Random random(static_cast<std::uint64_t>(p.m * 31 + p.n * 7 + p.k));
  test::OperandOptions operand;
  operand.batch = p.batch;
  operand.extra_row_bytes = (16 - p.k % 16) % 16;
  operand.smallest_scales = false;
  const test::TestOperand a(random, Recipe::fp8_1x128, p.m, p.k, p.family, operand);
  const test::TestOperand b(random, p.b, p.n, p.k, p.family, operand);
  test::AlignedCopy a_values = test::copy_of_values(a.view());
  test::AlignedCopy b_values = test::copy_of_values(b.view());
  test::TestMatrix c(Format::f32, p.m, p.n, p.batch), d(Format::f32, p.m, p.n, p.batch);
  test::TestMatrix bias(Format::f32, 1, p.n);
  c.fill(random, InputFamily::normal);
  add_exceptions(random, c);
  bias.fill(random, InputFamily::normal);
  GemmArguments x;
  x.a = a.view();
  x.b = b.view();
  x.a.values = a_values.at();
  x.b.values = b_values.at();
  x.alpha = p.alpha;
  x.beta = p.beta;
  if (p.beta != 0) x.c = c.view();
  if (p.bias) x.bias = bias.view().data;
  const auto bytes_of = [](std::int64_t bytes) { return static_cast<std::size_t>(bytes); };
  std::vector<emulator::Buffer> buffers = {
      emulator::buffer("a", a_values.at(), bytes_of(a_values.bytes()), BufferUse::input),
      emulator::buffer("b", b_values.at(), bytes_of(b_values.bytes()), BufferUse::input),
      emulator::buffer("a scales", x.a.scales, bytes_of(test::scale_bytes_of(x.a)),
                       BufferUse::input),
      emulator::buffer("b scales", x.b.scales, bytes_of(test::scale_bytes_of(x.b)),
                       BufferUse::input)};
  if (p.beta != 0) buffers.push_back(emulator::input("c", c.bytes()));
  if (p.bias) buffers.push_back(emulator::input("bias", bias.bytes()));

  Result result(p);
  x.quantized = {result.view(), options_of(p)};
  Fp8GemmPlan plan = plan_of(x, choice);
  SCOPED_TRACE(plan.str());
  ASSERT_EQ(plan.steps.size(), launches);
  std::vector<emulator::Buffer> with_result = buffers;
  result.add_to(with_result);
  if (!test::emulate(plan, with_result, options)) return;

  // D, by tiles of another width, but K divided as there.
  x.quantized.reset();
  x.d = d.view();
  Fp8GemmPlan plain = plan_of(x, Fp8LaunchConfig{64, 64, 3, plan.steps[0].config.split, 1});
  buffers.push_back(emulator::buffer("d", d.bytes().data(), d.bytes().size(), BufferUse::output));
  if (!test::emulate(plain, buffers, emulator::in_order())) return;
  Result expected(p);
  quantize(d.view(), expected.view(), options_of(p));
  EXPECT_EQ(result.values(), expected.values());
  EXPECT_EQ(result.scales(), expected.scales());
}

/// D in f32 in the workspace, and a quantizer behind it: what no epilogue does.
void check_apart(const Problem& p) {
  SCOPED_TRACE(text_of(p));
  Random random(4);
  const test::TestOperand a(random, Recipe::fp8_1x128, p.m, p.k, p.family);
  const test::TestOperand b(random, p.b, p.n, p.k, p.family);
  test::AlignedCopy a_values = test::copy_of_values(a.view());
  test::AlignedCopy b_values = test::copy_of_values(b.view());
  test::TestMatrix d(Format::f32, p.m, p.n);
  Result result(p), expected(p);
  GemmArguments x;
  x.a = a.view();
  x.b = b.view();
  x.a.values = a_values.at();
  x.b.values = b_values.at();
  x.quantized = {result.view(), options_of(p)};
  const GemmArguments validated = gemm_detail::validated(x, {});
  const cuda::Chip chip = test::chip_of(4);
  std::vector<std::uint32_t> workspace = test::poisoned_workspace(validated, chip);
  gemm_detail::ProductPlan plan = gemm_detail::plan_product(validated, chip, workspace.data());
  SCOPED_TRACE(plan.str());
  ASSERT_TRUE(plan.is_fp8() && plan.quantization);
  std::vector<emulator::Buffer> buffers = {
      emulator::buffer("a", a_values.at(), static_cast<std::size_t>(a_values.bytes()),
                       BufferUse::input),
      emulator::buffer("b", b_values.at(), static_cast<std::size_t>(b_values.bytes()),
                       BufferUse::input),
      emulator::buffer("a scales", x.a.scales, static_cast<std::size_t>(test::scale_bytes_of(x.a)),
                       BufferUse::input),
      emulator::buffer("b scales", x.b.scales, static_cast<std::size_t>(test::scale_bytes_of(x.b)),
                       BufferUse::input)};
  std::vector<emulator::Buffer> all = buffers;
  all.push_back(emulator::in_out("workspace", workspace));
  result.add_to(all);
  ASSERT_TRUE(test::emulate(plan, all, emulator::random_order(6)));
  x.quantized.reset();
  x.d = d.view();
  Fp8GemmPlan in_f32 = plan_of(x, {});
  buffers.push_back(emulator::buffer("d", d.bytes().data(), d.bytes().size(), BufferUse::output));
  ASSERT_TRUE(test::emulate(in_f32, buffers, emulator::in_order()));
  quantize(d.view(), expected.view(), options_of(p));
  EXPECT_EQ(result.values(), expected.values());
  EXPECT_EQ(result.scales(), expected.scales());
}

TEST(EmulatedQuantizedGemm, SiluIsAQuantizersBehindTheProduct) {
  for (const Recipe recipe : kResults) {
    Problem p;
    p.result = recipe;
    p.input = Silu{};
    check_apart(p);
  }
}

const std::vector<QuantizeInput> kInputs = {Identity{},
                                            Gelu{GeluForm::tanh},
                                            Gelu{GeluForm::erf},
                                            Swiglu{},
                                            Swiglu{GateOrder::up_first, 0},
                                            Swiglu{GateOrder::gate_first, 1},
                                            Swiglu{GateOrder::up_first, 1},
                                            Swiglu{GateOrder::gate_first, 64},
                                            Swiglu{GateOrder::up_first, 64},
                                            Swiglu{GateOrder::gate_first, 0, 7, 1.702f, 1},
                                            Swiglu{GateOrder::up_first, 1, 0.5f, -0.8f, -0.25f}};

/// A scale follows from more columns than a tile has.
TEST(EmulatedQuantizedGemm, ScalesOfRowsAreAQuantizersBehindTheProduct) {
  for (const QuantizeInput& input : kInputs) {
    Problem p;
    p.result = Recipe::fp8_row;
    p.input = input;
    check_apart(p);
  }
  Problem p;
  p.result = Recipe::fp8_row;
  p.input = Silu{};
  p.layout = ScaleLayout::mn_major;
  p.odd_bytes = 3;
  p.family = InputFamily::adversarial;
  check_apart(p);
}

TEST(EmulatedQuantizedGemm, EveryKernel) {
  for (const Recipe b : {Recipe::fp8_128x128, Recipe::fp8_1x128}) {
    for (const int rows : {64, 128, 192}) {
      if (rows != 128 && b == Recipe::fp8_1x128) continue;  // there is none
      for (const Recipe result : kResults) {
        Problem p;
        p.b = b;
        p.m = rows + 9;
        p.n = 160;
        p.result = result;
        check(p, Fp8LaunchConfig{rows, 128, 3, 1, 1}, emulator::in_order());
        p.input = Swiglu{};
        p.n = 384;
        check(p, Fp8LaunchConfig{rows, 128, 3, 1, 1}, emulator::random_order(1));
      }
    }
  }
}

TEST(EmulatedQuantizedGemm, EveryInput) {
  for (const QuantizeInput& input : kInputs) {
    for (const Recipe result : {Recipe::fp8_1x128, Recipe::mxfp8_e4m3, Recipe::nvfp4}) {
      Problem p;
      p.m = 20;
      p.n = 640;
      p.k = 130;
      p.result = result;
      p.input = input;
      p.alpha = -0.5f;
      p.bias = true;
      check(p, {}, emulator::in_order());
    }
  }
}

TEST(EmulatedQuantizedGemm, LayoutsOfScales) {
  for (const Recipe result : kResults) {
    for (int i = 0; i < kScaleLayoutCount; ++i) {
      const auto layout = static_cast<ScaleLayout>(i);
      if (is_swizzled(layout) && format_traits(recipe_traits(result).scale).bits != 8) continue;
      for (const bool gated : {false, true}) {
        Problem p;
        p.m = 73;
        p.n = gated ? 384 : 192;
        p.k = 128;
        p.batch = 2;
        p.result = result;
        p.layout = layout;
        if (gated) p.input = Swiglu{};
        check(p, {}, emulator::in_order());
      }
    }
  }
}

/// NaN, infinities and extreme numbers in D, and scales of all magnitudes.
TEST(EmulatedQuantizedGemm, ExceptionalBlocks) {
  for (const Recipe result : kResults) {
    for (const float beta : {0.0f, 1.0f}) {
      for (const MxScaleMode mode : {MxScaleMode::floor, MxScaleMode::even}) {
        Problem p;
        p.result = result;
        p.family = InputFamily::adversarial;
        p.beta = beta;
        p.mode = mode;
        p.multiplier = mode == MxScaleMode::even;
        p.no_tensor_scale = mode == MxScaleMode::floor;
        p.amax_floor = beta;
        check(p, {}, emulator::in_order());
        p.input = Gelu{};
        check(p, {}, emulator::in_order());
        p.input = Swiglu{GateOrder::gate_first, 1};
        check(p, {}, emulator::in_order());
        p.input = Swiglu{GateOrder::gate_first, 1, 7, 1.702f, 1};
        check(p, {}, emulator::in_order());
      }
    }
  }
}

TEST(EmulatedQuantizedGemm, EdgesAndAlignments) {
  for (const std::int64_t n : {1, 16, 80, 200, 333}) {
    for (const std::int64_t odd : {0, 1, 8}) {
      Problem p;
      p.m = 3;
      p.n = n;
      p.k = 144;
      p.result = Recipe::fp8_1x128;
      p.odd_bytes = odd;
      p.beta = 1;
      check(p, {}, emulator::in_order());
      // Halves of B that begin anywhere: columns of a tile lie on any blocks of B.
      p.n = 2 * n;
      p.b = Recipe::fp8_1x128;
      p.bias = true;
      for (const std::int64_t group : {0, 1}) {
        p.input = Swiglu{GateOrder::up_first, group};
        check(p, {}, emulator::in_order());
      }
    }
  }
  for (const Recipe result : {Recipe::mxfp8_e4m3, Recipe::nvfp4}) {
    Problem p;
    p.m = 130;
    p.n = 96;
    p.result = result;
    p.odd_bytes = 3;
    check(p, {}, emulator::in_order());
  }
}

TEST(EmulatedQuantizedGemm, ClustersDivideK) {
  for (const QuantizeInput& input : {QuantizeInput{Identity{}}, QuantizeInput{Gelu{}}}) {
    for (const std::uint32_t split : {2u, 3u}) {
      Problem p;
      p.m = 30;
      p.n = 192;
      p.k = 900;
      p.result = Recipe::fp8_1x128;
      p.input = input;
      const Fp8LaunchConfig choice = {64, 128, 3, split, 1};
      check(p, choice, emulator::in_order());
      check(p, choice, emulator::random_order(2));
    }
  }
  Problem p;
  p.b = Recipe::fp8_1x128;
  p.n = 150;
  p.result = Recipe::fp8_1x128;
  check(p, Fp8LaunchConfig{128, 128, 3, 2, 1}, emulator::random_order(2));
}

TEST(EmulatedQuantizedGemm, BlocksQuantizeTileAfterTile) {
  for (const QuantizeInput& input : {QuantizeInput{Identity{}}, QuantizeInput{Swiglu{}}}) {
    Problem p;
    p.m = 140;
    p.n = 1000;
    p.k = 640;
    p.batch = 2;
    p.result = Recipe::fp8_1x128_ue8m0;
    p.layout = ScaleLayout::swizzled_128x4;
    p.input = input;
    p.b = Recipe::fp8_1x128;
    check(p, Fp8LaunchConfig{128, 128, 4, 1, 1}, emulator::random_order(3));
  }
}

TEST(EmulatedQuantizedGemm, LastColumnsBesideALastWave) {
  for (const bool gated : {false, true}) {
    Problem p;
    p.m = 128;
    p.n = (gated ? 2 : 1) * (4 * 128 + 64);
    p.k = gated ? 12288 : 4096;
    p.result = Recipe::nvfp4;
    p.layout = ScaleLayout::swizzled_128x4;
    p.bias = true;
    if (gated) p.input = Swiglu{};
    check(p, {}, emulator::random_order(5), 2);
  }
}

TEST(EmulatedQuantizedGemm, NoK) {
  Problem p;
  p.k = 0;
  p.beta = 1;
  p.result = Recipe::nvfp4;
  check(p, {}, emulator::in_order());
}

}  // namespace
}  // namespace blockscale
