// The plans of some 60 problems as text, next to what they were: a change of a kernel's choice, of
// its tiles or grid shows in one file. `BLOCKSCALE_WRITE_PLANS=1` writes that file anew.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "blockscale/bench.h"
#include "tests/chip.h"

namespace blockscale {
namespace {

constexpr const char* kFile = BLOCKSCALE_SOURCE_DIR "/ops/quantize/test/plans.txt";

std::string plans_of(const cuda::QuantizeBenchmarkOptions& options) {
  std::string text;
  for (const cuda::QuantizeBenchmarkPlan& p : cuda::describe_benchmark(options, cuda::Chip())) {
    text += std::string(recipe_traits(p.recipe).name) + ' ' + format_traits(p.dtype).name + ' ' +
            scale_layout_traits(p.layout).name + ' ' +
            kInputTransformNames[static_cast<int>(p.transform)] + ' ' + std::to_string(p.rows) +
            " x " + std::to_string(p.k) + '\n' + p.plan + '\n';
  }
  return text;
}

/// What users ask most of at a small and a large size, then every recipe, dtype, layout and odd
/// width once.
std::string all_plans() {
  constexpr std::int64_t kSmall = 8 << 10, kLarge = 64 << 20;
  using R = Recipe;
  using T = InputTransform;
  std::string text;
  cuda::QuantizeBenchmarkOptions asked;
  asked.recipes = {R::fp8_1x128, R::fp8_row, R::mxfp8_e4m3, R::mxfp4, R::nvfp4};
  asked.layouts = {ScaleLayout::row_major};
  asked.transforms = {T::identity, T::swiglu, T::rms_norm, T::gelu_tanh, T::modulate};
  asked.input_bytes = {kSmall, kLarge};
  text += plans_of(asked);
  cuda::QuantizeBenchmarkOptions others;
  others.recipes = {R::mxfp6_e2m3, R::mxfp8_e5m2, R::fp8_128x128, R::fp8_32x128, R::fp8_tensor};
  others.dtypes = {Format::f32};
  others.transforms = {T::identity, T::rms_norm};
  others.layouts = {ScaleLayout::row_major};
  others.input_bytes = {kLarge};
  text += plans_of(others);
  cuda::QuantizeBenchmarkOptions layouts;
  layouts.recipes = {R::mxfp4};
  layouts.input_bytes = {kLarge};
  text += plans_of(layouts);
  for (const std::int64_t k : {80, 2880, 28672}) {
    cuda::QuantizeBenchmarkOptions odd;
    odd.recipes = {R::nvfp4, R::fp8_row};
    odd.layouts = {ScaleLayout::row_major};
    odd.transforms = {T::identity, T::swiglu};
    odd.input_bytes = {kLarge};
    odd.k = k;
    text += plans_of(odd);
  }
  return text;
}

TEST(QuantizePlans, AreThoseOfTheFile) {
  const std::string plans = all_plans();
  if (std::getenv("BLOCKSCALE_WRITE_PLANS") != nullptr) std::ofstream(kFile) << plans;
  std::ostringstream expected;
  expected << std::ifstream(kFile).rdbuf();
  EXPECT_EQ(plans, expected.str());
}

TEST(QuantizePlans, NeedAChip) {
  EXPECT_THROW(cuda::describe_benchmark({}, test::chip_of(0)), Error);
  cuda::Chip ampere;
  ampere.architecture = 80;
  EXPECT_THROW(cuda::describe_benchmark({}, ampere), Error);
  EXPECT_NO_THROW(cuda::describe_benchmark({}, cuda::chip_named("GB10")));
}

}  // namespace
}  // namespace blockscale
