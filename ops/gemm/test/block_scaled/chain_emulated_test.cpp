// A chain on sm_120f in the emulator: quantized inputs and weights, a product whose result is
// quantized behind GELU, and a product of that.
#include <gtest/gtest.h>

#include <cstdint>
#include <variant>
#include <vector>

#include "blockscale/device.h"
#include "blockscale/quantize.h"
#include "ops/gemm/cuda/product_plan.h"
#include "ops/gemm/test/emulation.h"
#include "ops/gemm/validate.h"
#include "ops/quantize/test/emulation.h"
#include "tests/gemm_problem.h"

namespace blockscale {
namespace {

using emulator::Buffer;
using emulator::BufferUse;
using gemm_detail::BlockScaledPlan;
using gemm_detail::GemmPath;
using gemm_detail::ProductPlan;

constexpr std::int64_t kRows = 40, kInner = 256, kColumns = 136;

QuantizeOptions options_of(Recipe recipe, const QuantizeInput& input = {}) {
  QuantizeOptions options;
  options.input = input;
  if (recipe == Recipe::nvfp4) options.scale_source = ScaleSource::given;
  return options;
}

/// A quantized matrix, its scales as they lie in atoms, its bytes 0xA5 until somebody writes them.
class Quantized {
 public:
  Quantized(Recipe recipe, std::int64_t rows, std::int64_t k) {
    view_.recipe = recipe;
    view_.rows = rows;
    view_.k = k;
    view_.layout = ScaleLayout::swizzled_128x4;
    values_.assign(static_cast<std::size_t>(rows * row_bytes(recipe, k)), 0xA5);
    scales_.assign(static_cast<std::size_t>(scale_bytes(recipe, view_.layout, rows, k, 1)), 0xA5);
    view_.values = values_.data();
    view_.scales = scales_.data();
    if (recipe == Recipe::nvfp4) view_.tensor_scale = &tensor_scale_;
    view_ = resolved(view_, "quantized");
  }
  Quantized(const Quantized&) = delete;
  Quantized& operator=(const Quantized&) = delete;

  const MutableScaledTensorView& view() const { return view_; }
  const std::vector<std::uint8_t>& values() const { return values_; }
  const std::vector<std::uint8_t>& scales() const { return scales_; }

  void fill(test::Random& random) {
    test::TestMatrix matrix(Format::bf16, view_.rows, view_.k);
    matrix.fill(random, test::InputFamily::normal);
    quantize(matrix.view(), view_, options_of(view_.recipe));
  }
  void add_to(std::vector<Buffer>& buffers, BufferUse use) const {
    buffers.push_back(emulator::buffer("values", values_.data(), values_.size(), use));
    buffers.push_back(emulator::buffer("scales", scales_.data(), scales_.size(), use));
    buffers.push_back(emulator::buffer("S", &tensor_scale_, sizeof(float), BufferUse::input));
  }

 private:
  std::vector<std::uint8_t> values_, scales_;
  float tensor_scale_ = 40;
  MutableScaledTensorView view_;
};

/// Runs a product and what quantizes it. False if the emulator has something to report.
bool run(ProductPlan& plan, const std::vector<Buffer>& buffers) {
  const auto launch = [&](const LaunchShape& shape, const auto& kernel) {
    const emulator::Report report = emulator::launch(
        shape, buffers, emulator::compiled_for(120, emulator::random_order(7)), kernel);
    EXPECT_TRUE(report.ok()) << plan.str() << report.text();
    return report.ok();
  };
  auto& product = std::get<BlockScaledPlan>(plan.product);
  gemm_detail::resolve_tensor_maps(product.maps, emulator::encode_tensor_map, product.params);
  const auto kernel = static_cast<std::size_t>(product.kernel);
  if (!launch(product.shape, [&] { test::run_kernel(kernel, product.params); })) return false;
  for (int i = 0; plan.quantization && i < plan.quantization->count; ++i) {
    const auto& step = plan.quantization->steps[static_cast<std::size_t>(i)];
    const auto function = test::quantize_function(step.kernel);
    if (!launch(step.shape, [&] { function(step.params); })) return false;
  }
  return true;
}

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
    ASSERT_TRUE(run(first, buffers));
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
    ASSERT_TRUE(run(second, buffers));
    EXPECT_TRUE(d.is_poison_intact());
    EXPECT_LE(test::compare(x, limit).largest_share, 1);
  }
}

}  // namespace
}  // namespace blockscale
