// Products whose D a quantizer takes from the workspace, in the emulator: D is that of the same
// product without `quantized`, and the bytes are those that the CPU's quantizer makes of it.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "ops/gemm/cuda/product_plan.h"
#include "ops/gemm/test/plain_emulation.h"
#include "ops/gemm/test/plain_problem.h"
#include "ops/gemm/test/product_emulation.h"
#include "ops/gemm/validate.h"
#include "tests/chip.h"
#include "tests/gemm_problem.h"

namespace blockscale {
namespace {

using emulator::BufferUse;
using test::InputFamily;

/// D of any pair, which is multiplied as it is without `quantized`.
void check_behind(const test::PlainProblem& p, gemm_detail::GemmPath path, Recipe result,
                  const QuantizeInput& input) {
  SCOPED_TRACE(p.str() + " to " + recipe_traits(result).name);
  test::PlainOperands operands(p);
  GemmArguments x = operands.arguments();
  ScaledTensor got(result, p.m, std::holds_alternative<Swiglu>(input) ? p.n / 2 : p.n);
  ScaledTensor expected(result, p.m, got.view().k);
  x.quantized = {got.view(), {}};
  x.quantized->options.input = input;
  if (result == Recipe::nvfp4) {
    x.quantized->options.scale_source = ScaleSource::given;
    *got.view().tensor_scale = *expected.view().tensor_scale = 3.0f;
  }
  const GemmArguments validated = gemm_detail::validated(x, {});
  const cuda::Chip chip = test::chip_of(4);
  std::vector<std::uint32_t> workspace = test::poisoned_workspace(validated, chip);
  gemm_detail::ProductPlan plan = gemm_detail::plan_product(validated, chip, workspace.data());
  SCOPED_TRACE(plan.str());
  ASSERT_EQ(plan.path(), path);
  std::vector<emulator::Buffer> buffers = test::buffers_of(operands);
  buffers.push_back(emulator::in_out("workspace", workspace));
  const MutableScaledTensorView out = got.view();
  const std::int64_t of_values = value_bytes(result, p.m, out.k);
  const std::int64_t of_scales = scale_bytes(result, out.layout, p.m, out.k);
  buffers.push_back(emulator::buffer("values", out.values, static_cast<std::size_t>(of_values),
                                     BufferUse::output));
  buffers.push_back(emulator::buffer("scales", out.scales, static_cast<std::size_t>(of_scales),
                                     BufferUse::output));
  if (out.tensor_scale != nullptr) {
    buffers.push_back(emulator::buffer("S", out.tensor_scale, 4, BufferUse::input));
  }
  ASSERT_TRUE(test::emulate(plan, buffers, emulator::random_order(5)));
  GemmArguments in_f32 = operands.arguments();
  in_f32.d.data = workspace.data();
  EXPECT_EQ(test::compare(in_f32, test::limit_of(p, path)).violations, 0);
  quantize(MatrixView(in_f32.d), expected.view(), x.quantized->options);
  const auto same = [](const void* a, const void* b, std::int64_t count) {
    return std::memcmp(a, b, static_cast<std::size_t>(count)) == 0;
  };
  EXPECT_TRUE(same(out.values, expected.view().values, of_values));
  EXPECT_TRUE(same(out.scales, expected.view().scales, of_scales));
}

TEST(EmulatedQuantizerBehind, EveryPairWithoutAnEpilogueThatQuantizes) {
  using gemm_detail::GemmPath;
  const Swiglu clamped{GateOrder::gate_first, 0, 7, 1.702f, 1};
  test::PlainProblem p{.m = 21, .n = 128, .k = 256, .family = InputFamily::normal};
  p.a = Recipe::fp8_1x128;
  p.b = Recipe::mxfp6_e2m3;
  for (const Recipe result :
       {Recipe::fp8_1x128, Recipe::fp8_row, Recipe::mxfp8_e4m3, Recipe::nvfp4}) {
    for (const QuantizeInput& input :
         {QuantizeInput{Identity{}}, QuantizeInput{Gelu{}}, QuantizeInput{Silu{}},
          QuantizeInput{Swiglu{}}, QuantizeInput{clamped}}) {
      check_behind(p, GemmPath::plain, result, input);
    }
  }
  p.a = Recipe::bf16;
  for (const Recipe b : {Recipe::nvfp4, Recipe::mxfp4}) {
    p.b = b;
    p.m = 3;
    check_behind(p, GemmPath::fp4_few_rows, Recipe::fp8_row, Identity{});
    check_behind(p, GemmPath::fp4_few_rows, Recipe::mxfp8_e4m3, clamped);
    p.m = 70;
    check_behind(p, GemmPath::sm90_fp4_tiles, Recipe::fp8_1x128, Swiglu{});
    check_behind(p, GemmPath::sm90_fp4_tiles, Recipe::nvfp4, Silu{});
  }
}

}  // namespace
}  // namespace blockscale
