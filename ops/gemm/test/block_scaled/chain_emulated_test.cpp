// A chain on sm_120f in the emulator: quantized inputs and weights, a product whose result is
// quantized behind GELU, and a product of that.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "blockscale/device.h"
#include "blockscale/quantize.h"
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
using gemm_detail::ProductPlan;
using test::options_of;
using test::Quantized;

constexpr std::int64_t kRows = 40, kInner = 256, kColumns = 136;

TEST(EmulatedBlockScaled, ChainOfProducts) {
  const cuda::Chip& chip = cuda::chip_named("RTX 5090");
  const gemm_detail::ErrorLimit limit = gemm_detail::usual_error(GemmPath::sm120_block_scaled);
  for (const Recipe recipe : {Recipe::nvfp4, Recipe::mxfp8_e4m3}) {
    SCOPED_TRACE(recipe_traits(recipe).name);
    test::Random random(11);
    Quantized inputs(recipe, kRows, kInner), up(recipe, kInner, kInner),
        down(recipe, kColumns, kInner);
    for (Quantized* const x : {&inputs, &up, &down}) x->fill(random);

    Quantized hidden(recipe, kRows, kInner), expected(recipe, kRows, kInner);
    GemmArguments x;
    x.a = inputs.view();
    x.b = up.view();
    x.quantized = {hidden.view(), options_of(recipe, Gelu{})};
    const auto plan_in = [&](void* workspace) {
      return gemm_detail::plan_product(gemm_detail::validated(x, {}), chip, workspace);
    };
    std::vector<float> workspace(static_cast<std::size_t>(plan_in(nullptr).workspace_bytes / 4));
    ProductPlan first = plan_in(workspace.data());
    ASSERT_EQ(first.path(), GemmPath::sm120_block_scaled);
    std::vector<Buffer> buffers = {emulator::in_out("workspace", workspace)};
    for (const Quantized* const of : {&inputs, &up}) of->add_to(buffers, BufferUse::input);
    hidden.add_to(buffers, BufferUse::output);
    ASSERT_TRUE(test::emulate(first, buffers, emulator::random_order(7)));
    const MutableMatrixView numbers = {workspace.data(), Format::f32, kRows, kInner};
    quantize(numbers, expected.view(), options_of(recipe, Gelu{}));
    EXPECT_EQ(hidden.values(), expected.values());
    EXPECT_EQ(hidden.scales(), expected.scales());
    x.quantized.reset();
    x.d = numbers;
    EXPECT_LE(test::compare(x, limit).largest_share, 1);

    test::TestMatrix d(Format::bf16, kRows, kColumns);
    x.a = hidden.view();
    x.b = down.view();
    x.d = d.view();
    ProductPlan second = plan_in(nullptr);
    buffers = {emulator::buffer("d", d.bytes().data(), d.bytes().size(), BufferUse::output)};
    for (const Quantized* const of : {&hidden, &down}) of->add_to(buffers, BufferUse::input);
    ASSERT_TRUE(test::emulate(second, buffers, emulator::random_order(7)));
    EXPECT_TRUE(d.is_poison_intact());
    EXPECT_LE(test::compare(x, limit).largest_share, 1);
  }
}

}  // namespace
}  // namespace blockscale
