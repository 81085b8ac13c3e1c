// The bytes of a dozen products in the emulator, next to what they were: nothing that moves code
// about may change them. `BLOCKSCALE_WRITE_BYTES=1` writes the file of their hashes anew.
//
// The emulator sums a k-block's products exactly, so these are not a GPU's bytes.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "ops/gemm/cuda/plan.h"
#include "ops/gemm/test/emulation.h"
#include "ops/gemm/validate.h"
#include "runtime/hash.h"
#include "tests/chip.h"
#include "tests/gemm_problem.h"

namespace blockscale {
namespace {

using emulator::BufferUse;
using gemm_detail::Fp8LaunchConfig;
using R = Recipe;
using L = ScaleLayout;

constexpr const char* kFile = BLOCKSCALE_SOURCE_DIR "/ops/gemm/test/bytes.txt";

struct Product {
  const char* name;
  std::int64_t m, n, k;
  std::optional<Fp8LaunchConfig> choice = {};
  Recipe a = R::fp8_1x128, b = R::fp8_128x128;
  ScaleLayout layout = L::row_major;
  std::int64_t batch = 1;
  Format d = Format::bf16;
  float beta = 0;  // with a bias
  std::int64_t odd_bytes = 0;
  std::optional<Recipe> to = {};
  QuantizeInput input = Identity{};
};

const std::vector<Product> kProducts = {
    {"128 x 128 with copied scales", 133, 152, 400, Fp8LaunchConfig{128, 128, 3, 1, 1}},
    {"192 x 96 in turn", 200, 200, 840, Fp8LaunchConfig{192, 96, 3, 1, 1}},
    {"a cluster divides K", 64, 150, 640, Fp8LaunchConfig{128, 128, 3, 3, 1}},
    {"two launches", 256, 800, 2048},
    {"scales of each column", 70, 150, 520, Fp8LaunchConfig{64, 96, 3, 1, 1}, R::fp8_1x128,
     R::fp8_1x128},
    {"swizzled scales", 64, 64, 700, {}, R::fp8_1x128_ue8m0, R::fp8_1x128_ue8m0, L::swizzled_128x4},
    {"one scale a tensor, f16",
     33,
     72,
     272,
     {},
     R::fp8_tensor,
     R::fp8_tensor,
     L::row_major,
     1,
     Format::f16},
    {"a batch with C and bias to f32",
     17,
     41,
     130,
     {},
     R::fp8_1x128,
     R::fp8_128x128,
     L::mn_major,
     2,
     Format::f32,
     2},
    {"one row", 1, 75, 4096, {}, R::fp8_1x128, R::fp8_128x128, L::row_major, 1, Format::bf16, 1},
    {"rows that begin anywhere",
     21,
     35,
     523,
     {},
     R::fp8_1x128,
     R::fp8_128x128,
     L::row_major,
     2,
     Format::bf16,
     0,
     7},
    {"to fp8_1x128",
     72,
     256,
     256,
     {},
     R::fp8_1x128,
     R::fp8_128x128,
     L::row_major,
     1,
     Format::f32,
     1,
     0,
     R::fp8_1x128},
    {"swiglu to mxfp8_e4m3",
     72,
     512,
     256,
     {},
     R::fp8_1x128,
     R::fp8_1x128,
     L::row_major,
     1,
     Format::f32,
     0,
     0,
     R::mxfp8_e4m3,
     Swiglu{}},
    {"gelu to nvfp4 in turn", 200, 304, 256, Fp8LaunchConfig{192, 128, 3, 1, 1}, R::fp8_1x128,
     R::fp8_128x128, L::row_major, 1, Format::f32, 0, 0, R::nvfp4, Gelu{}},
};

/// The memory that a product writes.
struct Written {
  explicit Written(const Product& p) : d(p.d, p.m, p.n, p.batch) {
    if (!p.to) return;
    out.recipe = *p.to;
    out.rows = p.m;
    out.k = std::holds_alternative<Swiglu>(p.input) ? p.n / 2 : p.n;
    out.batch = p.batch;
    values.assign(static_cast<std::size_t>(p.m * row_bytes(*p.to, out.k) * p.batch) + 16, 0xA5);
    const auto address = reinterpret_cast<std::uintptr_t>(values.data());
    out.values = values.data() + (16 - address % 16) % 16;
    scales.assign(
        static_cast<std::size_t>(scale_bytes(*p.to, ScaleLayout::row_major, p.m, out.k, p.batch)),
        0xA5);
    out.scales = scales.data();
    if (recipe_traits(*p.to).tensor_scale) out.tensor_scale = &tensor_scale;
    out = resolved(out, "out");
  }
  void add_to(GemmArguments& x, const Product& p, std::vector<emulator::Buffer>& buffers) {
    if (!p.to) {
      x.d = d.view();
      buffers.push_back(emulator::output("d", d.bytes()));
      return;
    }
    QuantizeOptions options;
    options.input = p.input;
    if (out.tensor_scale != nullptr) options.scale_source = ScaleSource::given;
    x.quantized = {out, options};
    buffers.push_back(
        emulator::buffer("values", out.values, values.size() - 16, BufferUse::output));
    buffers.push_back(emulator::output("scales", scales));
    buffers.push_back(emulator::buffer("S", &tensor_scale, sizeof tensor_scale, BufferUse::input));
  }
  runtime::Hash128 hash(const Product& p) const {
    if (!p.to) return runtime::hash_bytes(std::as_bytes(std::span(d.bytes())));
    const std::span<const std::uint8_t> bytes(static_cast<const std::uint8_t*>(out.values),
                                              values.size() - 16);
    runtime::Hasher hasher;
    hasher.add(runtime::hash_bytes(std::as_bytes(bytes)));
    hasher.add(runtime::hash_bytes(std::as_bytes(std::span(scales))));
    return hasher.finish();
  }

  test::TestMatrix d;
  std::vector<std::uint8_t> values, scales;
  float tensor_scale = 40;
  MutableScaledTensorView out;
};

/// What the product wrote, as one hash.
std::string bytes_of(const Product& p) {
  test::Random random(7);
  test::OperandOptions operand;
  operand.batch = p.batch;
  operand.layout = p.layout;
  operand.extra_row_bytes = (16 - p.k % 16) % 16 + p.odd_bytes;
  const auto family = test::InputFamily::normal;
  const test::TestOperand a(random, p.a, p.m, p.k, family, operand);
  const test::TestOperand b(random, p.b, p.n, p.k, family, operand);
  test::AlignedCopy a_values = test::copy_of_values(a.view(), p.odd_bytes);
  test::AlignedCopy b_values = test::copy_of_values(b.view(), p.odd_bytes);
  test::TestMatrix c(Format::f32, p.m, p.n, p.batch), bias(Format::f32, 1, p.n);
  c.fill(random, family);
  bias.fill(random, family);
  GemmArguments x;
  x.a = a.view();
  x.b = b.view();
  x.a.values = a_values.at();
  x.b.values = b_values.at();
  x.beta = p.beta;
  if (p.beta != 0) {
    x.c = c.view();
    x.bias = bias.view().data;
  }
  std::vector<emulator::Buffer> buffers;
  const auto add = [&](const char* name, const void* data, std::int64_t bytes) {
    buffers.push_back(
        emulator::buffer(name, data, static_cast<std::size_t>(bytes), BufferUse::input));
  };
  add("a", a_values.at(), a_values.bytes());
  add("b", b_values.at(), b_values.bytes());
  add("a scales", x.a.scales, test::scale_bytes_of(x.a));
  add("b scales", x.b.scales, test::scale_bytes_of(x.b));
  buffers.push_back(emulator::input("c", c.bytes()));
  buffers.push_back(emulator::input("bias", bias.bytes()));
  Written written(p);
  written.add_to(x, p, buffers);
  const GemmArguments validated = gemm_detail::validated(x, {});
  const auto plan_with = [&](void* workspace) {
    return gemm_detail::plan_fp8_gemm(validated, test::chip_of(4), p.choice, workspace);
  };
  test::AlignedCopy workspace(nullptr, plan_with(nullptr).workspace_bytes, 0);
  gemm_detail::Fp8GemmPlan plan = plan_with(workspace.at());
  SCOPED_TRACE(p.name);
  if (!test::emulate(plan, buffers, emulator::in_order())) return "a finding";
  return hexadecimal(written.hash(p));
}

TEST(EmulatedGemm, BytesAreThoseOfTheFile) {
  std::string text;
  for (const Product& p : kProducts) text += bytes_of(p) + "  " + p.name + "\n";
  if (std::getenv("BLOCKSCALE_WRITE_BYTES") != nullptr) std::ofstream(kFile) << text;
  std::ostringstream expected;
  expected << std::ifstream(kFile).rdbuf();
  EXPECT_EQ(text, expected.str());
}

}  // namespace
}  // namespace blockscale
