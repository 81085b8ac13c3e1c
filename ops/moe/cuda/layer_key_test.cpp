// No argument of a layer may be missing in its key: a call would launch another one's plan.
#include "ops/moe/cuda/layer_key.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace blockscale::moe_detail {
namespace {

/// Each changes one member of a matrix.
std::vector<std::function<void(MatrixView&)>> changes_of_matrix(const void* elsewhere) {
  return {[=](auto& x) { x.data = elsewhere; }, [](auto& x) { x.dtype = Format::f16; },
          [](auto& x) { x.rows += 1; },         [](auto& x) { x.columns += 1; },
          [](auto& x) { x.row_stride = 4096; }, [](auto& x) { x.batch += 1; },
          [](auto& x) { x.batch_stride = 9; }};
}

std::vector<std::function<void(ScaledTensorView&)>> changes_of_tensor(void* elsewhere) {
  return {[](auto& x) { x.recipe = Recipe::mxfp4; },
          [](auto& x) { x.rows += 1; },
          [](auto& x) { x.k += 1; },
          [](auto& x) { x.batch += 1; },
          [=](auto& x) { x.values = elsewhere; },
          [](auto& x) { x.value_row_stride = 4096; },
          [](auto& x) { x.value_batch_stride = 4096; },
          [=](auto& x) { x.scales = elsewhere; },
          [](auto& x) { x.layout = ScaleLayout::swizzled_128x4; },
          [](auto& x) { x.scale_leading_stride = 9; },
          [](auto& x) { x.scale_batch_stride = 9; },
          [=](auto& x) { x.tensor_scale = static_cast<float*>(elsewhere); },
          [](auto& x) { x.sense = TensorScaleSense::multiplier; },
          [](auto& x) { x.tensor_scale_batch_stride = 9; }};
}

TEST(LayerKey, EveryArgumentCounts) {
  float memory[2] = {};
  std::int32_t ids[1] = {};
  std::vector<std::function<void(MoeArguments&)>> changes = {
      [&](auto& x) { x.ids = ids; },
      [&](auto& x) { x.weights = memory; },
      [](auto& x) { x.top_k = 2; },
      [](auto& x) { x.weights_on_input = true; },
      [](auto& x) { x.first_expert = -1; },
      [&](auto& x) { x.expert_map = ids; },
      [](auto& x) { x.mapped_ids = 1; },
      [](auto& x) { x.shared.emplace(); },
      [](auto& x) { x.transform = Identity{}; },
      [](auto& x) { x.transform = Silu{}; },
      [](auto& x) { x.transform = Gelu{GeluForm::tanh}; },
      [](auto& x) { x.transform = Gelu{GeluForm::erf}; },
      [](auto& x) { x.transform = Swiglu{.order = GateOrder::up_first}; },
      [](auto& x) { x.transform = Swiglu{.group = 1}; },
      [](auto& x) { x.transform = Swiglu{.limit = 7}; },
      [](auto& x) { x.transform = Swiglu{.alpha = 2}; },
      [](auto& x) { x.transform = Swiglu{.up_shift = 1}; },
      [](auto& x) { x.transform = Swiglu{.up_shift = -0.0f}; },
      [](auto& x) { x.activations = Recipe::bf16; },
      [](auto& x) { x.activations = Recipe::mxfp8_e4m3; },
      [&](auto& x) { x.w13_alphas = memory; },
      [&](auto& x) { x.w2_alphas = memory; },
      [&](auto& x) { x.w13_bias = memory; },
      [&](auto& x) { x.w2_bias = memory; },
      [](auto& x) { x.bias_dtype = Format::bf16; },
      [](auto& x) { x.all_experts = 1; },
      [](auto& x) { x.batch_invariant = true; },
      [](auto& x) { x.deterministic = false; }};
  for (const auto& change : changes_of_tensor(memory)) {
    changes.emplace_back([=](auto& x) { change(x.x); });
    changes.emplace_back([=](auto& x) { change(x.w13); });
    changes.emplace_back([=](auto& x) { change(x.w2); });
    changes.emplace_back([=](auto& x) { change(x.shared.emplace().w13); });
    changes.emplace_back([=](auto& x) { change(x.shared.emplace().w2); });
  }
  for (const auto& change : changes_of_matrix(memory)) {
    changes.emplace_back([=](auto& x) { change(x.residual); });
  }
  changes.emplace_back([&](auto& x) { x.y.data = memory; });
  changes.emplace_back([](auto& x) { x.y.dtype = Format::f16; });
  changes.emplace_back([](auto& x) { x.y.row_stride = 4096; });

  std::vector<LayerKey> keys = {LayerKey({}, {}), LayerKey({}, {.threads = 1}),
                                LayerKey({}, {.workspace_limit = 1})};
  for (const auto& change : changes) {
    MoeArguments x;
    change(x);
    keys.emplace_back(x, MoeOptions{});
    EXPECT_EQ(keys.back(), LayerKey(x, {}));
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(keys[i], keys[j]) << i << " and " << j;
  }
}

}  // namespace
}  // namespace blockscale::moe_detail
