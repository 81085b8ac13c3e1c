// Calls of the CUDA quantizers in the emulator that nobody has thought of: every argument is drawn.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "ops/quantize/test/emulated_cases.h"

namespace blockscale {
namespace {

using test::Case;
using test::check;
using test::Data;

/// Draws arguments. The same seed gives the same ones.
class RandomCase {
 public:
  explicit RandomCase(std::uint32_t seed) : random_(seed) {}

  Case draw() {
    Case c{one_of(test::scaled_recipes())};
    c.dtype = one_of<Format>({Format::bf16, Format::f16, Format::f32});
    draw_shape(c);
    draw_layout(c);
    draw_input(c);
    c.data =
        chance(2) ? Data::normal : one_of<Data>({test::kAllData.begin(), test::kAllData.end()});
    c.options.mx_scale_mode =
        one_of<MxScaleMode>({MxScaleMode::ceil, MxScaleMode::floor, MxScaleMode::even});
    if (chance(4)) c.options.fp8_amax_floor = 1e-4f;
    draw_given_scales(c);
    c.chip = test::chip_of(one_of<int>({1, 3, 8, 132}));
    c.seed = chance(2) ? 0 : random_();
    return c;
  }

 private:
  static constexpr std::int64_t kMostElements = 60000;

  template <class T>
  T one_of(const std::vector<T>& list) {
    return list[random_() % list.size()];
  }
  bool chance(std::uint32_t of) { return random_() % of == 0; }

  void draw_shape(Case& c) {
    c.rows = one_of<std::int64_t>({1, 2, 5, 8, 9, 16, 31, 33, 64, 100, 129, 150});
    c.k =
        one_of<std::int64_t>({1, 8, 15, 24, 31, 40, 64, 128, 131, 200, 264, 520, 1056, 2056, 5120});
    c.batch = one_of<std::int64_t>({1, 1, 2, 3});
    const RecipeTraits& t = recipe_traits(c.recipe);
    if (!t.ragged && t.block_k > 0) c.k = ceil_div(c.k, t.block_k) * t.block_k;
    while (c.batch * c.rows * c.k > kMostElements && c.rows > 1) c.rows /= 2;
    // Of rows that are not whole vectors some begin where these do.
    const std::int64_t to_vector = (8 - c.k % 8) % 8;
    c.x_padding = one_of<std::int64_t>({0, to_vector, to_vector, 1, 4, 16});
    c.value_padding = one_of<std::int64_t>({0, 0, 1, 3, 8, 16});
  }

  void draw_layout(Case& c) {
    c.layout = one_of(test::layouts_of(c.recipe));
    c.sense = one_of<TensorScaleSense>({TensorScaleSense::divisor, TensorScaleSense::multiplier});
    c.tensor_scale_stride = chance(2) ? 0 : 1;
  }

  void draw_input(Case& c) {
    QuantizeInput& input = c.options.input;
    input = test::input_of(static_cast<InputTransform>(random_() % kInputTransformCount));
    if (auto* const swiglu = std::get_if<Swiglu>(&input)) {
      swiglu->order = one_of<GateOrder>({GateOrder::gate_first, GateOrder::up_first});
      swiglu->group = one_of<std::int64_t>({0, 1, c.k % 64 == 0 ? 64 : 0});
    }
    c.operand_dtype = one_of<Format>({c.dtype, c.dtype, Format::f32, Format::bf16, Format::f16});
    do {
      c.groups = 1 + static_cast<std::int64_t>(random_()) % (c.rows * c.batch);
    } while (c.rows * c.batch % c.groups != 0);
  }

  void draw_given_scales(Case& c) {
    const RecipeTraits& t = recipe_traits(c.recipe);
    const bool can_be_given = t.tensor_scale || (t.family == Family::fp8 && t.block_k == 0);
    if (!can_be_given || !chance(3)) return;
    c.options.scale_source = ScaleSource::given;
    c.given = one_of<float>({1.0f, 0.37f, 1e4f, 1e-4f});
  }

  std::mt19937 random_;
};

TEST(RandomCases, AreQuantizedAsOnTheCpu) {
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    check(RandomCase(seed).draw());
    if (HasFatalFailure()) FAIL() << "seed " << seed;
  }
}

}  // namespace
}  // namespace blockscale
