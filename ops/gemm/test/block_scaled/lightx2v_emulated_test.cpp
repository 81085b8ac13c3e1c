// LightX2V's operators as blockscale.compat.lightx2v calls them, on sm_120f in the emulator: inputs
// and weights by the quantizers, scales as these leave them, alpha read on the device, a bias, and
// a residual that gated columns are added to in place.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "blockscale/device.h"
#include "ops/gemm/cuda/product_plan.h"
#include "ops/gemm/test/block_scaled/chain.h"
#include "ops/gemm/test/product_emulation.h"
#include "ops/gemm/validate.h"
#include "tests/gemm_problem.h"

namespace blockscale {
namespace {

using emulator::Buffer;
using emulator::BufferUse;
using gemm_detail::GemmPath;
using test::Quantized;

constexpr std::int64_t kColumns = 136, kK = 256;

const cuda::Chip& chip() {
  return cuda::chip_named("RTX 5090");
}

/// scaled_NAME_quant of random numbers; its bytes are those of the CPU.
void quantize_on_chip(test::Random& random, Quantized& quantized, std::int64_t rows) {
  const Recipe recipe = quantized.view().recipe;
  test::TestMatrix x(Format::bf16, rows, kK);
  x.fill(random, test::InputFamily::normal);
  test::PlanBuffers buffers;
  buffers.add("input", x.bytes().data(), std::ssize(x.bytes()), BufferUse::input);
  quantized.add_to(buffers);
  ASSERT_TRUE(test::emulate_quantize(x.view(), quantized.view(), test::options_of(recipe), buffers,
                                     7, chip()));
  Quantized expected(recipe, rows, kK);
  quantize(x.view(), expected.view(), test::options_of(recipe));
  EXPECT_EQ(quantized.values(), expected.values());
  EXPECT_EQ(quantized.scales(), expected.scales());
}

/// cutlass_scaled_NAME_mm, or with a gate its _residual_gate.
void check_product(Recipe a, Recipe b, std::int64_t rows, bool with_gate) {
  SCOPED_TRACE(recipe_traits(b).name);
  test::Random random(static_cast<std::uint64_t>(rows));
  Quantized inputs(a, rows, kK), weights(b, kColumns, kK);
  quantize_on_chip(random, inputs, rows);
  quantize_on_chip(random, weights, kColumns);
  // The tensor scales are in alpha.
  const float alpha = 1 / (inputs.tensor_scale() * weights.tensor_scale());
  test::TestMatrix bias(Format::bf16, 1, kColumns), gate(Format::bf16, 1, kColumns);
  test::TestMatrix residual(Format::bf16, rows, kColumns), d(Format::bf16, rows, kColumns);
  for (test::TestMatrix* const numbers : {&bias, &gate, &residual}) {
    numbers->fill(random, test::InputFamily::normal);
  }
  d.copy_elements_from(residual);

  GemmArguments x;
  x.a = inputs.view();
  x.b = weights.view();
  x.a.tensor_scale = x.b.tensor_scale = nullptr;
  x.alpha_factor = &alpha;
  x.bias = bias.view().data;
  x.bias_dtype = Format::bf16;
  x.d = d.view();
  if (with_gate) {
    x.gate = gate.view().data;
    x.gate_dtype = Format::bf16;
    x.c = d.view();
    x.beta = 1;
  }
  auto plan = gemm_detail::plan_product(gemm_detail::validated(x, {}), chip());
  ASSERT_EQ(plan.path(), GemmPath::sm120_block_scaled);
  std::vector<Buffer> buffers = {
      emulator::buffer("alpha", &alpha, sizeof(alpha), BufferUse::input),
      emulator::buffer("bias", bias.bytes().data(), bias.bytes().size(), BufferUse::input),
      emulator::buffer("gate", gate.bytes().data(), gate.bytes().size(), BufferUse::input),
      emulator::buffer("d", d.bytes().data(), d.bytes().size(),
                       with_gate ? BufferUse::both : BufferUse::output)};
  for (const Quantized* const of : {&inputs, &weights}) of->add_to(buffers, BufferUse::input);
  ASSERT_TRUE(test::emulate(plan, buffers, emulator::random_order(7)));
  EXPECT_TRUE(d.is_poison_intact());
  if (with_gate) x.c = residual.view();
  const auto limit = gemm_detail::usual_error(GemmPath::sm120_block_scaled);
  EXPECT_LE(test::compare(x, limit).largest_share, 1);
}

TEST(EmulatedLightX2V, Products) {
  check_product(Recipe::nvfp4, Recipe::nvfp4, 40, false);
  check_product(Recipe::mxfp4, Recipe::mxfp4, 9, false);
  check_product(Recipe::mxfp8_e4m3, Recipe::mxfp6_e3m2, 9, false);
  check_product(Recipe::mxfp8_e4m3, Recipe::mxfp8_e4m3, 9, false);
}

TEST(EmulatedLightX2V, ProductsOfAResidualAndAGate) {
  check_product(Recipe::mxfp8_e4m3, Recipe::mxfp8_e4m3, 9, true);
  check_product(Recipe::nvfp4, Recipe::nvfp4, 9, true);
}

}  // namespace
}  // namespace blockscale
