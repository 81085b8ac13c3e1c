#include "ops/gemm/cuda/trials.h"

#include <algorithm>
#include <array>
#include <random>

#include "core/format.h"
#include "core/packing.h"
#include "core/scale_layout.h"
#include "ops/common/cuda/trial_results.h"
#include "ops/gemm/call_memory.h"
#include "ops/gemm/validate.h"

namespace blockscale::gemm_detail {
namespace {

/// Sets element `i` of an array of elements of a format.
void put(Format format, void* array, std::int64_t i, std::uint32_t code) {
  visit_format(format, [&](auto of) {
    store_code<decltype(of)::value>(static_cast<std::uint8_t*>(array), i, code);
  });
}

bool few_rows_agree(std::size_t kernel) {
  return std::ranges::all_of(kTrialFormats, [&](Recipe a) {
    return agrees_with_plain(trial_product_of_few_rows(static_cast<int>(kernel), a));
  });
}

bool block_scales_agree(std::size_t kernel) {
  return agrees_with_plain(trial_product_of_block_scales(static_cast<int>(kernel)));
}

}  // namespace

ScaledTensor trial_operand(Recipe recipe, std::int64_t rows, std::int64_t k, std::uint64_t seed,
                           std::int64_t batch, ScaleLayout layout) {
  constexpr std::array kMagnitudes = {0.0f, 1.0f, 2.0f, 3.0f, 4.0f, 6.0f};
  const RecipeTraits& t = recipe_traits(recipe);
  ScaledTensor tensor(recipe, rows, k, layout, batch);
  const MutableScaledTensorView view = tensor.view();
  std::mt19937_64 random(seed);
  for (std::int64_t row = 0; row < batch * rows; ++row) {
    for (std::int64_t i = 0; i < k; ++i) {
      const float magnitude = kMagnitudes[random() % kMagnitudes.size()];
      const std::uint32_t code = encode(t.element, random() % 2 == 0 ? magnitude : -magnitude);
      put(t.element, static_cast<std::uint8_t*>(view.values) + row * view.value_row_stride, i,
          code);
    }
  }
  if (is_plain(recipe)) return tensor;
  const std::int64_t bytes = scale_bytes(recipe, view.layout, rows, k, batch);
  const std::int64_t scales = bytes * 8 / format_traits(t.scale).bits;
  for (std::int64_t i = 0; i < scales; ++i) {
    const auto exponent = static_cast<int>(random() % 3);
    put(t.scale, view.scales, i,
        t.scale == Format::ue8m0 ? static_cast<std::uint32_t>(127 + exponent)
                                 : encode(t.scale, static_cast<float>(1 << exponent)));
  }
  return tensor;
}

bool agrees_with_plain(const TrialProduct& product) {
  const ScaledTensor a = trial_operand(product.a, product.rows, product.k, 1);
  const ScaledTensor b =
      trial_operand(product.b, product.columns, product.k, 2, 1, product.b_layout);
  std::vector<float> d(static_cast<std::size_t>(product.rows * product.columns));
  GemmArguments host;
  host.a = a.view();
  host.b = b.view();
  host.d = {d.data(), Format::f32, product.rows, product.columns};
  cuda::TrialMemory<GemmArguments> memory(
      validated(host, {}), [](auto& x, const auto& visit) { for_each_memory(x, visit); });
  cuda::Chip chip = cuda::current_device();
  if (product.is_for_one) chip.multiprocessors = 1;
  const auto result = [&] {
    return memory.result_of([&](const GemmArguments& x, const cuda::Execution& execution) {
      ProductPlan plan = plan_product(x, chip);
      if (!chip.plain_only && plan.path() == GemmPath::plain) {
        throw Error(ErrorCode::unsupported, "kernel", "does not take the product of its trial");
      }
      find_tensor_maps(plan);
      launch_steps(plan, execution);
    });
  };
  const std::vector<std::byte> own = result();
  chip.plain_only = true;
  return own == result();
}

TrialProduct trial_product_of_few_rows(int kernel, Recipe a) {
  const Fp4GemmConfig c = kFp4GemmKernels[kernel];
  // The last tile, chunk and eight rows are not full, and A comes in parts.
  return {a, c.b, c.tokens - 3, 24, 4128};
}

cuda::Trial trial_of_few_rows(std::size_t kernel) {
  return {&fp4_kernels(), kernel, few_rows_agree};
}

TrialProduct trial_product_of_block_scales(int kernel) {
  const BlockScaledConfig c = kBlockScaledKernels[kernel];
  // The tile is not full, and its stages are more than the ring has. B's scales are copied as they
  // lie where they may lie in whole atoms, A's word by word.
  const bool has_atoms = recipe_traits(c.b).scale != Format::f32;
  return {c.a,
          c.b,
          c.rows - 3,
          72,
          c.rows < 128 ? 1280 : 640,
          has_atoms ? ScaleLayout::swizzled_128x4 : ScaleLayout::row_major,
          true};
}

cuda::Trial trial_of_block_scales(std::size_t kernel) {
  return {&block_scaled_kernels(), kernel, block_scales_agree};
}

std::vector<cuda::Trial> trials_on(const cuda::Chip& chip) {
  std::vector<cuda::Trial> trials;
  for (int i = 0; i < kFp4GemmKernels.kCount && is_sm120(chip); ++i) {
    if (kFp4GemmKernels.is_of_sm120(i)) {
      trials.push_back(trial_of_few_rows(static_cast<std::size_t>(i)));
    }
  }
  for (std::size_t i = 0; i < kBlockScaledKernels.kCount && is_sm120(chip); ++i) {
    trials.push_back(trial_of_block_scales(i));
  }
  return trials;
}

}  // namespace blockscale::gemm_detail
