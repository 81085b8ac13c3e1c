// The plans of some 150 products as text, next to what they were: a change of a kernel's choice, of
// its tiles, grid or memory shows in one file. `BLOCKSCALE_WRITE_PLANS=1` writes that file anew.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "blockscale/bench.h"
#include "ops/gemm/cuda/plan.h"
#include "ops/gemm/validate.h"
#include "tests/chip.h"

namespace blockscale {
namespace {

constexpr const char* kFile = BLOCKSCALE_SOURCE_DIR "/ops/gemm/test/plans.txt";
constexpr int kMultiprocessors[] = {132, 78};  // of an H200 and an H20

struct Product {
  std::int64_t m, n, k;
  Recipe a = Recipe::fp8_1x128, b = Recipe::fp8_128x128;
  ScaleLayout a_layout = ScaleLayout::mn_major, b_layout = ScaleLayout::row_major;
  std::int64_t batch = 1;
  Format d = Format::bf16;
  std::optional<Recipe> to = {};
  QuantizeInput input = Identity{};
  std::int64_t odd_bytes = 0;      // between rows of A
  std::int64_t extra_columns = 0;  // between rows of D
  bool batch_invariant = false;
};

std::string name_of(const Product& p) {
  std::string text = std::to_string(p.m) + " x " + std::to_string(p.n) + " x " +
                     std::to_string(p.k) + " batch " + std::to_string(p.batch) + ", " +
                     recipe_traits(p.a).name + ' ' + scale_layout_traits(p.a_layout).name + " x " +
                     recipe_traits(p.b).name + ' ' + scale_layout_traits(p.b_layout).name + " to ";
  text += p.to ? recipe_traits(*p.to).name : format_traits(p.d).name;
  if (const auto* const gated = std::get_if<Swiglu>(&p.input)) {
    text += ", gates by " + std::to_string(gated->group);
    if (gated->order == GateOrder::up_first) text += " behind ups";
  }
  if (p.odd_bytes != 0) text += ", rows of A anywhere";
  if (p.extra_columns != 0) text += ", rows of D anywhere";
  if (p.batch_invariant) text += ", batch-invariant";
  return text;
}

GemmArguments arguments_of(const Product& p) {
  GemmArguments x = imagined_gemm(p.m, p.n, p.k, p.a, p.b, p.d, p.batch, p.to, p.input);
  x.a.layout = p.a_layout;
  x.b.layout = p.b_layout;
  x.a.value_row_stride = p.odd_bytes == 0 ? 0 : p.k + p.odd_bytes;
  x.d.row_stride = p.extra_columns == 0 ? 0 : p.n + p.extra_columns;
  x.batch_invariant = p.batch_invariant;
  return gemm_detail::validated(x, {});
}

/// The shapes of DeepSeek-V3's linear layers and squares, from one row to many; then every recipe,
/// layout, result and edge.
std::vector<Product> products() {
  using R = Recipe;
  using L = ScaleLayout;
  std::vector<Product> all;
  for (const std::int64_t m : {1, 8, 64, 128, 200, 1024, 4096, 16384}) {
    all.push_back({m, 2112, 7168});
    all.push_back({m, 576, 7168});
    all.push_back({m, 24576, 1536});
    all.push_back({m, 7168, 16384});
    all.push_back({m, 4096, 512});
  }
  all.push_back({4096, 4096, 4096});
  all.push_back({8192, 8192, 8192});
  for (const std::int64_t m : {1, 17, 128, 4096}) {
    for (const R recipe : {R::fp8_tensor, R::fp8_row, R::fp8_1x128, R::fp8_32x128, R::fp8_128x128,
                           R::fp8_1x128_ue8m0}) {
      all.push_back({m, 2112, 4224, recipe, recipe});
    }
  }
  for (const L layout : {L::row_major, L::mn_major, L::swizzled_128x4, L::swizzled_8x4}) {
    for (const std::int64_t m : {64, 2048}) {
      all.push_back({m, 4104, 2048, R::fp8_1x128_ue8m0, R::fp8_1x128_ue8m0, layout, layout});
      if (is_swizzled(layout)) continue;
      all.push_back({m, 4104, 2048, R::fp8_1x128, R::fp8_128x128, layout, layout});
    }
  }
  const auto add = [&](Product p, auto change) {
    change(p);
    all.push_back(p);
  };
  for (const std::int64_t m : {1, 96, 4096}) {
    const Product p = {m, 7168, 2048};
    add(p, [](Product& x) { x.d = Format::f32; });
    add(p, [](Product& x) { x.d = Format::f16; });
    add(p, [](Product& x) { x.batch = 3; });
    add(p, [](Product& x) { x.extra_columns = 1; });
    add(p, [](Product& x) { x.odd_bytes = 8; });
    add(p, [](Product& x) { x.batch_invariant = true; });
    add(p, [](Product& x) { x.n = 7169; });
    add(p, [](Product& x) { x.k = 0; });
    for (const R to : {R::fp8_1x128, R::fp8_1x128_ue8m0, R::mxfp8_e4m3, R::nvfp4}) {
      add(p, [&](Product& x) { x.to = to; });
      for (const QuantizeInput& input : {QuantizeInput{Gelu{}}, QuantizeInput{Swiglu{}},
                                         QuantizeInput{Swiglu{GateOrder::gate_first, 1}},
                                         QuantizeInput{Swiglu{GateOrder::up_first, 64}}}) {
        if (to != R::nvfp4 && !std::holds_alternative<Gelu>(input)) continue;
        add(p, [&](Product& x) { x.to = to, x.input = input; });
      }
    }
    add(p, [](Product& x) { x.to = R::nvfp4, x.b = R::fp8_1x128; });
  }
  all.push_back({0, 64, 128});
  return all;
}

std::string all_plans() {
  std::string text;
  for (const Product& p : products()) {
    text += name_of(p) + '\n';
    const GemmArguments x = arguments_of(p);
    for (const int count : kMultiprocessors) {
      text +=
          std::to_string(count) + ": " + gemm_detail::plan_fp8_gemm(x, test::chip_of(count)).str();
    }
    text += '\n';
  }
  return text;
}

TEST(GemmPlans, AreThoseOfTheFile) {
  const std::string plans = all_plans();
  if (std::getenv("BLOCKSCALE_WRITE_PLANS") != nullptr) std::ofstream(kFile) << plans;
  std::ostringstream expected;
  expected << std::ifstream(kFile).rdbuf();
  EXPECT_EQ(plans, expected.str());
}

}  // namespace
}  // namespace blockscale
