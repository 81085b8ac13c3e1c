// LightX2V's checkpoints: read, converted, refused.
#include <gtest/gtest.h>

#include "models/dialects/swizzled_testing.h"

namespace blockscale {
namespace {

using test::BlockWeight;
using test::expect_error;
using test::floats;
using test::part;
using test::part_f32;
using test::TestTensor;
using test::values_of;

class LightX2VTest : public test::ReadOnlyDialectTest {
 protected:
  void write(const std::vector<TestTensor>& tensors) {
    std::filesystem::remove_all(folder_ / "model");
    test::write_checkpoint(folder_ / "model", tensors);
  }
  Checkpoint open(const std::vector<TestTensor>& tensors) {
    write(tensors);
    return Checkpoint::open(folder_ / "model");
  }
  void expect_refused(ErrorCode code, const std::vector<TestTensor>& tensors,
                      const std::string& argument, const std::string& reason) {
    SCOPED_TRACE(reason);
    write(tensors);
    expect_error(code, argument, reason, [&] { Checkpoint::open(folder_ / "model"); });
  }
  /// `module`'s weight and swizzled scales.
  static std::vector<TestTensor> stored(const std::string& module, const BlockWeight& weight) {
    return {{module + ".weight", DType::U8, {weight.rows, weight.row_bytes()}, weight.codes},
            {module + ".weight_scale",
             weight.e8m0 ? DType::F8_E8M0 : DType::F8_E4M3,
             {weight.padded_rows(), weight.padded_columns()},
             weight.swizzled()}};
  }
  static BlockWeight filled(BlockWeight weight) {
    weight.fill(static_cast<unsigned>(weight.k + weight.bits));
    return weight;
  }
};

const BlockWeight kMxfp4 = {130, 256, 4, 2, 32, true};
const BlockWeight kMxfp6 = {130, 512, 6, 3, 32, true};
const BlockWeight kMxfp8 = {130, 416, 8, 4, 32, true};
const BlockWeight kNvfp4 = {130, 96, 4, 2, 16, false};

TEST_F(LightX2VTest, BlocksOf32AreToldApartByTheirShapes) {
  for (const auto& [weight, recipe] :
       {std::pair(kMxfp4, Recipe::mxfp4), std::pair(kMxfp6, Recipe::mxfp6_e3m2),
        std::pair(kMxfp8, Recipe::mxfp8_e4m3)}) {
    SCOPED_TRACE(recipe_traits(recipe).name);
    const BlockWeight w = filled(weight);
    std::vector<TestTensor> tensors = stored("blocks.0.ffn.0", w);
    tensors.push_back({"blocks.0.ffn.0.bias", DType::BF16, {130}, ""});
    const Checkpoint checkpoint = open(tensors);
    EXPECT_EQ(checkpoint.dialect(), Dialect::lightx2v);
    const CheckpointTensor* tensor = checkpoint.find("blocks.0.ffn.0.weight");
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->recipe, recipe);
    EXPECT_EQ(tensor->shape, (std::vector<std::int64_t>{w.rows, w.k}));
    EXPECT_EQ(checkpoint.view(*tensor).layout, ScaleLayout::swizzled_128x4);
    EXPECT_EQ(values_of(checkpoint, tensor->name), w.values());
    EXPECT_EQ(values_of(converted(Recipe::f32, Dialect::plain), tensor->name), w.values());
    converted(Recipe::nvfp4, Dialect::compressed_tensors);
    EXPECT_EQ(report_.source_dialect, Dialect::lightx2v);
    EXPECT_EQ(report_.activations[0], recipe == Recipe::mxfp4
                                          ? "nvfp4: dynamic, as in the source"
                                          : "nvfp4: none, dynamic in the source, in other bits");
  }
}

TEST_F(LightX2VTest, CodesAndScalesAreCarriedOverRowByRow) {
  const BlockWeight mxfp4 = filled(kMxfp4);
  write(stored("a", mxfp4));
  const Checkpoint ct = converted(Recipe::mxfp4, Dialect::compressed_tensors);
  EXPECT_EQ(part(ct, "a.weight_packed"), mxfp4.codes);
  EXPECT_EQ(part(ct, "a.weight_scale"), mxfp4.scales);
  const BlockWeight mxfp8 = filled(kMxfp8);
  write(stored("a", mxfp8));
  const Checkpoint mo = converted(Recipe::mxfp8_e4m3, Dialect::modelopt);
  EXPECT_EQ(part(mo, "a.weight"), mxfp8.codes);
  EXPECT_EQ(part(mo, "a.weight_scale"), mxfp8.scales);
}

TEST_F(LightX2VTest, Nvfp4HasATensorScaleAndInputs) {
  BlockWeight w = filled(kNvfp4);
  std::vector<TestTensor> tensors = stored("a", w);
  tensors.push_back({"a.weight_global_scale", DType::F32, {}, floats({512.0f})});
  tensors.push_back({"a.input_absmax", DType::F32, {}, floats({42.0f})});
  w.factor = 1.0f / 512.0f;
  const Checkpoint checkpoint = open(tensors);
  EXPECT_EQ(checkpoint.dialect(), Dialect::lightx2v);
  EXPECT_EQ(values_of(checkpoint, "a.weight"), w.values());
  const Checkpoint ct = converted(Recipe::nvfp4, Dialect::compressed_tensors);
  EXPECT_EQ(part(ct, "a.weight_packed"), w.codes);
  EXPECT_EQ(part(ct, "a.weight_scale"), w.scales);
  EXPECT_EQ(part_f32(ct, "a.weight_global_scale"), 512.0f);
  EXPECT_EQ(part_f32(ct, "a.input_global_scale"), 64.0f);  // 2688 / 42
  const Checkpoint mo = converted(Recipe::nvfp4, Dialect::modelopt);
  EXPECT_EQ(part(mo, "a.weight_scale"), w.scales);
  EXPECT_EQ(part_f32(mo, "a.weight_scale_2"), w.factor);
  EXPECT_EQ(part_f32(mo, "a.input_scale"), 1.0f / 64.0f);
  EXPECT_EQ(report_.activations[0], "nvfp4: static, as in the source");
}

/// alpha is 1 / (input_global_scale * weight_global_scale): of the two, one may stand for the
/// other.
TEST_F(LightX2VTest, Nvfp4MayHaveAlpha) {
  BlockWeight w = filled(kNvfp4);
  w.factor = 1.0f / 512.0f;
  std::vector<TestTensor> tensors = stored("a", w);
  tensors.push_back({"a.input_global_scale", DType::F32, {}, floats({64.0f})});
  tensors.push_back({"a.alpha", DType::F32, {}, floats({1.0f / (64.0f * 512.0f)})});
  for (const bool both : {false, true}) {
    if (both) tensors.push_back({"a.weight_global_scale", DType::F32, {1}, floats({512.0f})});
    write(tensors);
    EXPECT_EQ(values_of(converted(Recipe::f32, Dialect::plain), "a.weight"), w.values());
    const Checkpoint ct = converted(Recipe::nvfp4, Dialect::compressed_tensors);
    EXPECT_EQ(part_f32(ct, "a.weight_global_scale"), 512.0f);
    EXPECT_EQ(part_f32(ct, "a.input_global_scale"), 64.0f);
    EXPECT_EQ(ct.store().find("a.alpha"), nullptr);
    EXPECT_EQ(part_f32(converted(Recipe::nvfp4, Dialect::modelopt), "a.input_scale"), 1.0f / 64.0f);
  }
}

TEST_F(LightX2VTest, Fp8HasItsIndexAsAMark) {
  const TestTensor values = {"blocks.0.attn.q.weight", DType::F8_E4M3, {4, 32}, ""};
  const TestTensor scales = {
      "blocks.0.attn.q.weight_scale", DType::F32, {4, 1}, floats({0.5f, 1.0f, 0.25f, 2.0f})};
  std::filesystem::create_directories(folder_ / "model");
  test::write_store(folder_ / "model" / "block_0.safetensors", {values, scales});
  EXPECT_EQ(Checkpoint::open(folder_ / "model").dialect(), Dialect::compressed_tensors);
  test::write_text(folder_ / "model" / "diffusion_pytorch_model.safetensors.index.json",
                   R"({"weight_map": {"blocks.0.attn.q.weight": "block_0.safetensors",
                       "blocks.0.attn.q.weight_scale": "block_0.safetensors"}})");
  const Checkpoint checkpoint = Checkpoint::open(folder_ / "model");
  EXPECT_EQ(checkpoint.dialect(), Dialect::lightx2v);
  EXPECT_EQ(checkpoint.find("blocks.0.attn.q.weight")->recipe, Recipe::fp8_row);
  const std::string codes = part(checkpoint, values.name);
  std::vector<float> expected;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const float factor[] = {0.5f, 1.0f, 0.25f, 2.0f};
    expected.push_back(test::small_float(codes[i], 4, 3) * factor[i / 32]);
  }
  EXPECT_EQ(values_of(checkpoint, values.name), expected);
  const Checkpoint ct = converted(Recipe::fp8_row, Dialect::compressed_tensors);
  EXPECT_EQ(part(ct, values.name), codes);
  EXPECT_EQ(report_.activations[0], "fp8_row: dynamic, as in the source");
  EXPECT_TRUE(test::read_text(folder_ / "out" / "config.json").find("float-quantized") !=
              std::string::npos);
}

TEST_F(LightX2VTest, WhatFitsSeveralRecipesIsRefusedUnlessAnotherWeightDecides) {
  const BlockWeight small = filled({128, 96, 4, 2, 32, true});  // or mxfp6 of 64
  expect_refused(ErrorCode::unsupported, stored("a", small), "a.weight",
                 "is mxfp4 and mxfp6_e3m2 alike by its shapes");
  std::vector<TestTensor> both = stored("a", small);
  for (TestTensor& tensor : stored("b", filled(kMxfp4))) both.push_back(std::move(tensor));
  EXPECT_EQ(open(both).find("a.weight")->recipe, Recipe::mxfp4);
}

TEST_F(LightX2VTest, WhatDoesNotFitIsRefused) {
  const BlockWeight w = filled(kMxfp4);
  std::vector<TestTensor> row_major = stored("a", w);
  row_major[1] = {"a.weight_scale", DType::F8_E8M0, {w.rows, w.columns()}, w.scales};
  expect_refused(ErrorCode::corrupt_file, row_major, "a.weight",
                 "have shape [130, 8], must be [256, 8] for mxfp4 of [130, 256]");
  std::vector<TestTensor> lacking = stored("a", w);
  lacking.push_back({"b.weight", DType::U8, {130, 128}, w.codes});
  expect_refused(ErrorCode::corrupt_file, lacking, "b.weight",
                 "has no scales b.weight_scale in any shard");
  std::vector<TestTensor> nvfp4 = stored("a", filled(kNvfp4));
  nvfp4.push_back({"a.alpha", DType::F32, {}, floats({1.0f})});
  expect_refused(ErrorCode::corrupt_file, nvfp4, "a.weight", "has no tensor scale");
  std::vector<TestTensor> int8 = stored("a", w);
  int8.push_back({"b.weight", DType::I8, {4, 32}, ""});
  int8.push_back({"b.weight_scale", DType::F32, {4, 1}, ""});
  expect_refused(ErrorCode::unsupported, int8, "b.weight", "holds int8");
  std::vector<TestTensor> zero = stored("a", filled(kNvfp4));
  zero.push_back({"a.weight_global_scale", DType::F32, {}, floats({512.0f})});
  zero.push_back({"a.input_absmax", DType::F32, {}, floats({0.0f})});
  write(zero);
  expect_error(ErrorCode::corrupt_file, "a.input_absmax", "must be finite and above 0",
               [&] { converted(Recipe::nvfp4, Dialect::modelopt); });
  std::vector<TestTensor> large = stored("a", filled(kNvfp4));
  large.push_back({"a.input_global_scale", DType::F32, {}, floats({1e30f})});
  large.push_back({"a.alpha", DType::F32, {}, floats({1e30f})});
  write(large);
  expect_error(ErrorCode::corrupt_file, "a.alpha", "is inf, must be finite and above 0",
               [&] { converted(Recipe::nvfp4, Dialect::modelopt); });
}

TEST_F(LightX2VTest, ItsComfyuiModeIsComfyUisFp8) {
  for (const DType dtype : {DType::F8_E4M3, DType::F8_E5M2}) {
    const std::vector<TestTensor> tensors = {{"a.weight", dtype, {2, 32}, ""},
                                             {"a.scale_weight", DType::F32, {}, floats({0.5f})}};
    EXPECT_EQ(open(tensors).dialect(), Dialect::comfy);
  }
  EXPECT_EQ(open({{"a.weight", DType::F8_E4M3, {2, 32}, ""}}).dialect(), Dialect::plain);
}

TEST_F(LightX2VTest, IsReadOnly) {
  write(stored("a", filled(kMxfp4)));
  expect_error(ErrorCode::unsupported, "dialect", "lightx2v can be read, not written",
               [&] { converted(Recipe::mxfp4, Dialect::lightx2v); });
}

}  // namespace
}  // namespace blockscale
