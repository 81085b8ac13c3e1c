// The layer on the CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "ops/gemm/cpu/memory.h"
#include "ops/gemm/cpu/path.h"
#include "ops/moe/cpu/steps.h"
#include "ops/moe/test/layer_problem.h"

namespace blockscale {
namespace {

using moe_detail::Gather;
using test::InputFamily;
using test::LayerCase;
using test::LayerProblem;
using test::Random;
using test::Routing;

/// Runs a layer and checks each of its steps; `moe` itself has the same bits for any threads.
void check(const LayerCase& of, std::uint64_t seed = 1) {
  SCOPED_TRACE(test::text_of(of));
  Random random(seed);
  LayerProblem problem(random, of);
  const MoeArguments before = problem.arguments_before();
  const MoeArguments x = moe_detail::validated(before, {});
  std::vector<std::uint8_t> results;
  if (x.x.rows > 0) {
    const std::int64_t bytes = moe_detail::part_bytes(x, x.x.rows, Gather::product);
    const auto workspace = gemm_detail::allocate<std::uint8_t>(bytes);
    std::memset(workspace.get(), 0xA5, static_cast<std::size_t>(bytes));
    const MoeArguments call = moe_detail::validated(problem.arguments(), {});
    moe_detail::run_part(moe_detail::part_of(call, 0, x.x.rows, workspace.get(), Gather::product),
                         1);
    test::expect_layer(
        before, workspace.get(), Gather::product,
        [](const GroupedGemmArguments& up) { grouped_gemm(up); }, gemm_detail::cpu_path(),
        gemm_detail::cpu_path(), gemm_detail::cpu_path());
    results = problem.y().bytes();
  }
  EXPECT_TRUE(problem.y().is_poison_intact());
  Random again(seed);
  LayerProblem whole(again, of);
  moe(whole.arguments(), {.threads = 2});
  if (!results.empty()) {
    EXPECT_EQ(whole.y().bytes(), results);
  }
}

TEST(Moe, EveryRouting) {
  for (const Routing routing : test::kRoutings) {
    for (const int top_k : {1, 3, 8}) {
      check({.top_k = top_k, .routing = routing, .residual = routing == Routing::elsewhere});
    }
  }
}

TEST(Moe, EveryKindOfWeight) {
  for (const Recipe recipe :
       {Recipe::fp8_tensor, Recipe::fp8_row, Recipe::fp8_1x128, Recipe::fp8_64x128,
        Recipe::fp8_128x128_pow2, Recipe::fp8_128x128_ue8m0, Recipe::nvfp4, Recipe::mxfp4,
        Recipe::mxfp8_e4m3, Recipe::bf16}) {
    check({.w13 = recipe, .w2 = recipe, .family = InputFamily::normal});
    check({.w13 = recipe, .w2 = recipe, .alphas = true, .bias = true});
  }
  check({.w13 = Recipe::nvfp4, .w2 = Recipe::mxfp4, .activations = Recipe::mxfp8_e4m3});
  check({.w2 = Recipe::fp8_row, .activations = Recipe::fp8_1x128_ue8m0});
  constexpr Recipe kRow = Recipe::fp8_row;
  for (const Recipe recipe : {Recipe::mxfp4, Recipe::nvfp4, kRow}) {
    check({.w13 = recipe, .w2 = recipe, .activations = kRow, .shared = 1});
  }
  check({.x = kRow, .w13 = kRow, .w2 = kRow, .activations = kRow, .hidden = 161, .inner = 77});
  check({.w13 = Recipe::fp8_row, .activations = Recipe::bf16});
}

TEST(Moe, ScalesThatMayBeFarApart) {
  check({.w13 = Recipe::fp8_128x128, .family = InputFamily::adversarial});
  check({.w13 = Recipe::mxfp4, .w2 = Recipe::mxfp4, .family = InputFamily::adversarial});
}

TEST(Moe, EveryTransform) {
  for (const bool is_quantized : {true, false}) {
    const auto activations = is_quantized ? Recipe::fp8_1x128 : Recipe::bf16;
    check({.activations = activations, .transform = Identity{}});
    check({.activations = activations, .transform = Gelu{GeluForm::tanh}});
    check({.activations = activations, .transform = Gelu{GeluForm::erf}, .bias = true});
    check({.activations = activations, .transform = Silu{}});
    check({.activations = activations, .transform = Swiglu{GateOrder::up_first, 0}});
    check({.activations = activations, .transform = Swiglu{GateOrder::up_first, 64}});
    check({.activations = activations, .transform = Swiglu{GateOrder::gate_first, 1}});
  }
}

TEST(Moe, ShardsWhoseGatesNoBlockDivides) {
  for (const std::int64_t inner : {64, 80, 192, 768}) {
    check({.tokens = 5, .inner = inner, .apart = true});
    check({.tokens = 5, .inner = inner, .apart = true, .layout = ScaleLayout::mn_major});
    check({.tokens = 5, .inner = inner});
  }
  for (const Recipe recipe : {Recipe::fp8_tensor, Recipe::fp8_row, Recipe::fp8_128x128_ue8m0}) {
    check({.w13 = recipe, .tokens = 5, .inner = 80, .apart = true, .bias = true});
  }
  for (const std::int64_t inner : {96, 128}) {
    for (const ScaleLayout layout : {ScaleLayout::row_major, ScaleLayout::mn_major,
                                     ScaleLayout::swizzled_128x4, ScaleLayout::swizzled_8x4}) {
      check({.w13 = Recipe::mxfp4,
             .w2 = Recipe::mxfp4,
             .tokens = 5,
             .inner = inner,
             .apart = true,
             .layout = layout});
    }
  }
}

TEST(Moe, EveryKindOfX) {
  for (const Recipe x :
       {Recipe::f32, Recipe::f16, Recipe::bf16, Recipe::fp8_1x128, Recipe::fp8_1x128_ue8m0}) {
    check({.x = x, .y = x == Recipe::f32 ? Format::f32 : Format::f16});
  }
  check({.x = Recipe::f32, .activations = Recipe::bf16});
}

TEST(Moe, SwigluOfGptOss) {
  const Swiglu of_gpt_oss = {GateOrder::gate_first, 1, 0.7f, 1.702f, 1};
  check({.transform = of_gpt_oss, .bias = true});
  check({.w13 = Recipe::mxfp4, .w2 = Recipe::mxfp4, .transform = of_gpt_oss, .bias = true});
}

TEST(Moe, ResidualsAndWeights) {
  for (const Format y : {Format::f32, Format::f16, Format::bf16}) {
    check({.y = y, .residual = true});
    check({.y = y, .residual = true, .in_place = true});
    check({.hidden = 161, .y = y, .weights = false, .residual = true});
  }
}

TEST(Moe, WeightsOnTheInput) {
  for (const Routing routing : test::kRoutings) {
    for (const int top_k : {1, 3}) {
      check({.top_k = top_k, .routing = routing, .weights_on_input = true});
    }
  }
  for (const Recipe x : {Recipe::f32, Recipe::f16, Recipe::bf16}) {
    check({.x = x, .residual = true, .weights_on_input = true});
    check({.x = x, .activations = Recipe::bf16, .weights_on_input = true});
  }
  for (const Recipe recipe : {Recipe::fp8_row, Recipe::nvfp4, Recipe::bf16}) {
    check({.w13 = recipe, .w2 = recipe, .alphas = true, .bias = true, .weights_on_input = true});
  }
  check({.inner = 80, .apart = true, .weights_on_input = true});
  check({.hidden = 161, .weights_on_input = true});
}

TEST(Moe, SharedExperts) {
  for (const std::int64_t shared : {1, 3}) {
    check({.shared = shared});
    check({.shared = shared, .y = Format::f32, .residual = true, .in_place = true});
    check({.activations = Recipe::bf16, .shared = shared});
    check({.shared = shared, .weights_on_input = true});
    check({.shared = shared, .routing = Routing::elsewhere});
  }
  for (const Recipe recipe : {Recipe::fp8_row, Recipe::nvfp4, Recipe::mxfp4, Recipe::bf16}) {
    check({.w13 = recipe, .w2 = recipe, .shared = 2, .alphas = true, .bias = true});
  }
  check({.x = Recipe::fp8_1x128, .shared = 2, .shared_inner = 200});
  check({.inner = 80, .shared = 2, .apart = true});
  for (const QuantizeInput& transform : std::initializer_list<QuantizeInput>{
           Identity{}, Gelu{GeluForm::erf}, Silu{}, Swiglu{GateOrder::up_first, 64},
           Swiglu{GateOrder::gate_first, 1, 0.7f, 1.702f, 1}}) {
    check({.shared = 1, .transform = transform});
  }
}

// Tokens whose shared experts are the others too, with weights of one: as many terms, of which
// those of shared experts come first.
TEST(Moe, SharedExpertsAreAsOthersOfWeightOne) {
  constexpr std::int64_t kTokens = 19;
  Random random(7);
  LayerProblem problem(random, {.tokens = kTokens,
                                .inner = 128,
                                .experts = 2,
                                .top_k = 2,
                                .y = Format::f32,
                                .weights = false,
                                .residual = true,
                                .batch_invariant = true});
  MoeArguments& x = problem.arguments();
  for (std::int64_t i = 0; i < 2 * kTokens; ++i) {
    problem.ids()[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i % 2);
  }
  moe(x);
  const std::vector<std::uint8_t> routed = problem.y().bytes();
  x.shared = {x.w13, x.w2};
  for (std::int32_t& id : problem.ids()) id = -1;
  moe(x);
  EXPECT_EQ(problem.y().bytes(), routed);
}

// One expert of integers: silu is not linear, so a weight before it is none behind it.
TEST(Moe, WeightsOnTheInputAreBeforeTheActivation) {
  for (const bool weights_on_input : {true, false}) {
    const float x = 3, w13[2] = {1, 1}, w2 = 1, weight = 0.5;
    const std::int32_t id = 0;
    float y = 0;
    MoeArguments layer;
    layer.x = as_scaled({&x, Format::f32, 1, 1});
    layer.w13 = as_scaled({w13, Format::f32, 2, 1});
    layer.w2 = as_scaled({&w2, Format::f32, 1, 1});
    layer.ids = &id;
    layer.weights = &weight;
    layer.weights_on_input = weights_on_input;
    layer.y = {&y, Format::f32, 1, 1};
    moe(layer);
    const double in = weights_on_input ? 1.5 : 3, out = weights_on_input ? 1 : 0.5;
    EXPECT_NEAR(y, out * test::exact_silu(in) * in, 0.02);
  }
}

TEST(Moe, Sizes) {
  check({.tokens = 0});
  check({.tokens = 1, .experts = 1, .top_k = 1});
  check({.tokens = 1, .experts = 40, .top_k = 16});
  check({.tokens = 300, .hidden = 32, .inner = 16, .experts = 2, .top_k = 2});
  check({.hidden = 16, .inner = 1});
  check({.experts = 7, .first_expert = 21, .routing = Routing::half_of_it});
}

/// Token `t` of a layer as the only one.
MoeArguments only_token(MoeArguments x, std::int64_t t) {
  const std::int64_t size = format_traits(x.y.dtype).bits / 8;
  x.x.values = static_cast<const std::uint8_t*>(x.x.values) + t * x.x.value_row_stride;
  x.ids += t * x.top_k;
  x.weights += t * x.top_k;
  x.y.data = static_cast<std::uint8_t*>(x.y.data) + t * x.y.row_stride * size;
  x.x.rows = x.y.rows = 1;
  return x;
}

/// A layer whose bits depend on the rows of its experts where they may.
LayerCase sensitive(bool batch_invariant) {
  return {.w13 = Recipe::nvfp4,
          .w2 = Recipe::nvfp4,
          .tokens = 150,
          .hidden = 512,
          .inner = 512,
          .experts = 8,
          .top_k = 2,
          .y = Format::f32,
          .batch_invariant = batch_invariant};
}

TEST(Moe, BatchInvariantTokens) {
  for (const bool batch_invariant : {true, false}) {
    Random random(6), again(6);
    LayerProblem whole(random, sensitive(batch_invariant)),
        alone(again, sensitive(batch_invariant));
    moe(whole.arguments());
    for (std::int64_t t = 0; t < 150; ++t) moe(only_token(alone.arguments(), t));
    EXPECT_EQ(alone.y().bytes() == whole.y().bytes(), batch_invariant);
  }
}

TEST(Moe, PartsOfTheTokensChangeNothing) {
  for (const Recipe x : {Recipe::bf16, Recipe::fp8_1x128, Recipe::fp8_1x128_ue8m0}) {
    const LayerCase of = {.x = x,
                          .tokens = 300,
                          .hidden = 32,
                          .inner = 48,
                          .shared = 2,
                          .apart = true,
                          .batch_invariant = true};
    Random random(3), again(3);
    LayerProblem whole(random, of), parts(again, of);
    moe(whole.arguments());
    const MoeArguments arguments = moe_detail::validated(parts.arguments(), {});
    MoeOptions options;
    options.workspace_limit = moe_detail::part_bytes(arguments, 128, Gather::product);
    EXPECT_NE(describe_moe(parts.arguments(), options).find("parts of 128 tokens"),
              std::string::npos);
    moe(parts.arguments(), options);
    EXPECT_EQ(parts.y().bytes(), whole.y().bytes());
    options.workspace_limit = 1;
    moe(parts.arguments(), options);
    EXPECT_EQ(parts.y().bytes(), whole.y().bytes());
  }
  Random random(3), again(3);
  LayerProblem whole(random, sensitive(true)), parts(again, sensitive(true));
  moe(whole.arguments());
  moe(parts.arguments(), {.workspace_limit = 1});
  EXPECT_EQ(parts.y().bytes(), whole.y().bytes());
}

TEST(Moe, ANanStaysInItsToken) {
  const LayerCase of = {.tokens = 9, .y = Format::f32};
  Random random(4), again(4);
  LayerProblem clean(random, of), spoilt(again, of);
  const ScaledTensorView x = spoilt.arguments().x;
  auto* const row = reinterpret_cast<std::uint16_t*>(
      const_cast<std::uint8_t*>(static_cast<const std::uint8_t*>(x.values) + 5 * x.k * 2));
  row[17] = 0x7FC0;
  moe(clean.arguments());
  moe(spoilt.arguments());
  for (std::int64_t t = 0; t < of.tokens; ++t) {
    for (std::int64_t c = 0; c < of.hidden; ++c) {
      const double got = gemm_detail::matrix_element(MatrixView(spoilt.y().view()), 0, t, c);
      const double expected = gemm_detail::matrix_element(MatrixView(clean.y().view()), 0, t, c);
      if (t == 5) {
        EXPECT_TRUE(std::isnan(got));
      } else {
        EXPECT_EQ(got, expected);
      }
    }
  }
}

/// y of float64 products, but for the quantization of x and between the products, and for the bf16
/// of the second product, and of weights on the input.
std::vector<double> model_of(const MoeArguments& arguments) {
  const MoeArguments x = moe_detail::validated(arguments, {});
  const std::int64_t hidden = x.x.k, inner = moe_detail::inner_of(x);
  const MatrixView tokens = {x.x.values, Format::bf16, x.x.rows, hidden, hidden};
  std::vector<double> y(static_cast<std::size_t>(x.x.rows * hidden), 0.0);
  for (std::int64_t entry = 0; entry < x.x.rows * x.top_k; ++entry) {
    const std::int64_t e = x.ids[entry], token = entry / x.top_k;
    std::vector<float> input;
    for (std::int64_t c = 0; c < hidden; ++c) {
      const double element = gemm_detail::matrix_element(tokens, 0, token, c);
      const auto weighted = static_cast<float>(double{x.weights[entry]} * element);
      const auto code = encode(Format::bf16, weighted, Overflow::propagate);
      input.push_back(x.weights_on_input ? bit_cast<float>(code << 16)
                                         : static_cast<float>(element));
    }
    const ScaledTensor quantized =
        quantize({input.data(), Format::f32, 1, hidden}, Recipe::fp8_1x128);
    const std::vector<double> row = gemm_detail::operand_row(resolved(quantized.view(), "x"), 0, 0);
    const auto product = [](const std::vector<double>& a, const std::vector<double>& b) {
      double sum = 0;
      for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
      return sum;
    };
    std::vector<float> h;
    for (std::int64_t i = 0; i < inner; ++i) {
      const double gate = product(row, gemm_detail::operand_row(x.w13, e, i));
      const double up = product(row, gemm_detail::operand_row(x.w13, e, inner + i));
      h.push_back(static_cast<float>(test::exact_silu(gate) * up));
    }
    const ScaledTensor between = quantize({h.data(), Format::f32, 1, inner}, Recipe::fp8_1x128);
    const std::vector<double> middle =
        gemm_detail::operand_row(resolved(between.view(), "h"), 0, 0);
    for (std::int64_t c = 0; c < hidden; ++c) {
      const double d = product(middle, gemm_detail::operand_row(x.w2, e, c));
      const auto code = encode(Format::bf16, static_cast<float>(d), Overflow::propagate);
      y[static_cast<std::size_t>(token * hidden + c)] +=
          (x.weights_on_input ? 1 : double{x.weights[entry]}) * double{bit_cast<float>(code << 16)};
    }
  }
  return y;
}

TEST(Moe, IsTheModelOfTheLayer) {
  for (const bool weights_on_input : {false, true}) {
    Random random(5);
    LayerProblem problem(
        random,
        {.hidden = 256, .inner = 256, .y = Format::f32, .weights_on_input = weights_on_input});
    moe(problem.arguments());
    const std::vector<double> model = model_of(problem.arguments());
    double errors = 0, squares = 0;
    for (std::size_t i = 0; i < model.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      const double y =
          gemm_detail::matrix_element(MatrixView(problem.y().view()), 0, at / 256, at % 256);
      errors += (y - model[i]) * (y - model[i]);
      squares += model[i] * model[i];
    }
    EXPECT_LE(std::sqrt(errors / squares), 0.006);
  }
}

}  // namespace
}  // namespace blockscale
