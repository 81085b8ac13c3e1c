// What a checkpoint says of the inputs of its quantized weights, for those who run them.
#include "models/checkpoint/weight_inputs.h"

#include <gtest/gtest.h>

#include <cmath>

#include "models/convert/testing.h"

namespace blockscale {
namespace {

using test::expect_error;
using test::floats;
using test::Json;
using test::TestTensor;

constexpr Dialect kCt = Dialect::compressed_tensors;

Json words(int bits, const char* strategy, Json dynamic, Json group_size = nullptr) {
  return {{"num_bits", bits},     {"type", "float"},    {"symmetric", true},
          {"strategy", strategy}, {"dynamic", dynamic}, {"group_size", group_size}};
}

class WeightInputsTest : public ::testing::Test {
 protected:
  Checkpoint open(const std::vector<TestTensor>& tensors, const Json& config) {
    std::filesystem::remove_all(folder_ / "model");
    test::write_checkpoint(folder_ / "model", tensors, config);
    return Checkpoint::open(folder_ / "model");
  }
  WeightInputs inputs(const std::vector<TestTensor>& tensors, const Json& config) {
    const Checkpoint checkpoint = open(tensors, config);
    return checkpoint.inputs(*checkpoint.find("a.weight"));
  }
  /// Of compressed-tensors' FP8 rows with these words.
  WeightInputs inputs_of_rows(const Json& said, std::vector<TestTensor> more = {}) {
    more.push_back({"a.weight", DType::F8_E4M3, {16, 128}, ""});
    more.push_back({"a.weight_scale", DType::F32, {16, 1}, floats(std::vector<float>(16, 1.0f))});
    return inputs(more, config(words(8, "channel", false), said));
  }
  static Json config(const Json& weights, const Json& said) {
    Json config = test::compressed_tensors_config("float-quantized", weights);
    config["quantization_config"]["config_groups"]["group_0"]["input_activations"] = said;
    return config;
  }

  test::ScratchFolder folder_;
};

TEST_F(WeightInputsTest, AreWhatTheWordsSay) {
  EXPECT_EQ(inputs_of_rows(nullptr).activations, Activations::none);
  EXPECT_EQ(inputs_of_rows(nullptr).recipe, Recipe::f32);
  for (const char* strategy : {"token", "tensor"}) {
    const WeightInputs found = inputs_of_rows(words(8, strategy, true));
    EXPECT_EQ(found.activations, Activations::dynamic);
    EXPECT_EQ(found.recipe, Recipe::fp8_row);
    EXPECT_TRUE(found.scales.empty());
  }
  const WeightInputs fixed = inputs_of_rows(words(8, "tensor", false),
                                            {{"a.input_scale", DType::F32, {1}, floats({0.25f})}});
  EXPECT_EQ(fixed.activations, Activations::calibrated);
  EXPECT_EQ(fixed.recipe, Recipe::fp8_row);
  EXPECT_EQ(fixed.scales, std::vector<float>{0.25f});
}

TEST_F(WeightInputsTest, WithoutAScaleTheyAreQuantizedAsTheyCome) {
  EXPECT_EQ(inputs_of_rows(words(8, "tensor", false)).activations, Activations::dynamic);
  const std::vector<TestTensor> unused = {{"a.input_scale", DType::F32, {1}, floats({0.0f})}};
  const WeightInputs found = inputs_of_rows(words(8, "tensor", false), unused);
  EXPECT_EQ(found.activations, Activations::dynamic);
  EXPECT_TRUE(found.scales.empty());
}

TEST_F(WeightInputsTest, WhatNoRecipeSaysIsRefused) {
  Json integers = words(8, "token", true);
  integers["type"] = "int";
  Json skewed = words(8, "token", true);
  skewed["symmetric"] = false;
  for (const Json& said : {integers, skewed, words(8, "group", true, 48), words(8, "channel", true),
                           words(6, "token", true)}) {
    expect_error(ErrorCode::unsupported, "a.weight", "which no recipe says",
                 [&] { (void)inputs_of_rows(said); });
  }
}

TEST_F(WeightInputsTest, Mxfp4WithInputsOfEightBits) {
  const std::vector<TestTensor> tensors = {{"a.weight_packed", DType::U8, {16, 64}, ""},
                                           {"a.weight_scale", DType::U8, {16, 4}, ""}};
  Json four = words(4, "group", false, 32);
  four["scale_dtype"] = "torch.uint8";
  Json eight = words(8, "group", true, 32);
  eight["scale_dtype"] = "torch.uint8";
  Json of = config(four, eight);
  of["quantization_config"]["format"] = "mxfp4-pack-quantized";
  EXPECT_EQ(inputs(tensors, of).recipe, Recipe::mxfp8_e4m3);
  of = config(four, words(8, "token", true));
  of["quantization_config"]["format"] = "mxfp4-pack-quantized";
  EXPECT_EQ(inputs(tensors, of).recipe, Recipe::fp8_row);
  // Static ones of eight bits have a scale whose meaning no dialect states.
  std::vector<TestTensor> more = tensors;
  more.push_back({"a.input_scale", DType::F32, {1}, floats({0.25f})});
  of = config(four, words(8, "tensor", false));
  of["quantization_config"]["format"] = "mxfp4-pack-quantized";
  expect_error(ErrorCode::unsupported, "a.weight", "is mxfp4 with static inputs in fp8_tensor",
               [&] { (void)inputs(more, of); });
}

/// What convert writes is what is read: every recipe of every dialect, with all it can say.
TEST_F(WeightInputsTest, OfWhatConvertWrites) {
  test::write_checkpoint(folder_ / "plain", {test::f32_tensor("a.q_proj.weight", {64, 512}, 1)});
  test::write_text(folder_ / "scales.json", R"({"a.q_proj": 4.0})");
  int checked = 0;
  for (const models::DialectTraits& dialect : models::dialects()) {
    for (const RecipeTraits& t : kRecipes) {
      for (const Activations asked :
           {Activations::none, Activations::dynamic, Activations::calibrated}) {
        if (is_plain(t.recipe) || !dialect.can_write(t.recipe)) continue;
        if (!dialect.can_have(t.recipe, asked)) continue;
        SCOPED_TRACE(std::string(t.name) + " in " + dialect.name + ", " + activations_name(asked));
        ConvertOptions options = test::options_for({t.recipe, dialect.dialect});
        options.overwrite = true;
        options.activations = asked;
        const bool fixed = asked == Activations::calibrated;
        if (fixed) options.activation_scales = folder_ / "scales.json";
        (void)convert(folder_ / "plain", folder_ / "out", options);
        const Checkpoint out = Checkpoint::open(folder_ / "out");
        const CheckpointTensor& tensor = *out.find("a.q_proj.weight");
        const WeightInputs found = out.inputs(tensor);
        EXPECT_EQ(found.activations, asked);
        EXPECT_EQ(found.recipe, input_recipe(tensor.recipe, asked));
        ASSERT_EQ(found.scales.size(), fixed ? 1u : 0u);
        if (fixed) {
          const bool divisor = dialect.sense == TensorScaleSense::divisor;
          const float scale = t.recipe != Recipe::nvfp4 ? 4.0f / 448.0f
                              : divisor                 ? 2688.0f / 4.0f
                                                        : 4.0f / 2688.0f;
          EXPECT_EQ(found.scales[0], scale);
        }
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 30);
}

TEST_F(WeightInputsTest, OfVllmsFp8) {
  const std::vector<TestTensor> tensors = {{"a.weight", DType::F8_E4M3, {16, 128}, ""},
                                           {"a.weight_scale", DType::F32, {}, floats({0.5f})},
                                           {"a.input_scale", DType::F32, {}, floats({0.125f})}};
  Json config = {
      {"quantization_config", {{"quant_method", "fp8"}, {"activation_scheme", "static"}}}};
  const WeightInputs fixed = inputs(tensors, config);
  EXPECT_EQ(fixed.activations, Activations::calibrated);
  EXPECT_EQ(fixed.recipe, Recipe::fp8_tensor);
  EXPECT_EQ(fixed.scales, std::vector<float>{0.125f});
  config["quantization_config"]["activation_scheme"] = "dynamic";
  EXPECT_EQ(inputs(tensors, config).activations, Activations::dynamic);
  EXPECT_EQ(inputs(tensors, config).recipe, Recipe::fp8_1x128);
}

TEST_F(WeightInputsTest, WhereNothingIsSaidAStoredScaleHolds) {
  const std::vector<TestTensor> tensors = {{"a.weight", DType::U8, {16, 64}, ""},
                                           {"a.weight_scale", DType::F8_E4M3, {16, 8}, ""},
                                           {"a.weight_scale_2", DType::F32, {}, floats({0.5f})},
                                           {"a.input_scale", DType::F32, {}, floats({0.125f})},
                                           {"b.weight", DType::U8, {16, 64}, ""},
                                           {"b.weight_scale", DType::F8_E4M3, {16, 8}, ""},
                                           {"b.weight_scale_2", DType::F32, {}, floats({0.5f})}};
  const Checkpoint checkpoint = open(tensors, nullptr);
  const WeightInputs a = checkpoint.inputs(*checkpoint.find("a.weight"));
  EXPECT_EQ(a.activations, Activations::calibrated);
  EXPECT_EQ(a.recipe, Recipe::nvfp4);
  EXPECT_EQ(a.scales, std::vector<float>{0.125f});
  EXPECT_EQ(checkpoint.inputs(*checkpoint.find("b.weight")).activations, Activations::none);
}

TEST(InputRecipe, HasAProductWithTheWeights) {
  EXPECT_EQ(input_recipe(Recipe::nvfp4, Activations::none), Recipe::f32);
  EXPECT_EQ(input_recipe(Recipe::bf16, Activations::dynamic), Recipe::f32);
  EXPECT_EQ(input_recipe(Recipe::nvfp4, Activations::calibrated), Recipe::nvfp4);
  EXPECT_EQ(input_recipe(Recipe::mxfp6_e3m2, Activations::dynamic), Recipe::mxfp8_e4m3);
  EXPECT_EQ(input_recipe(Recipe::fp8_tensor, Activations::dynamic), Recipe::fp8_1x128);
  EXPECT_EQ(input_recipe(Recipe::fp8_tensor, Activations::calibrated), Recipe::fp8_tensor);
  EXPECT_EQ(input_recipe(Recipe::fp8_row, Activations::calibrated), Recipe::fp8_row);
  EXPECT_EQ(input_recipe(Recipe::fp8_128x128_ue8m0, Activations::dynamic), Recipe::fp8_1x128_pow2);
}

/// Names, dtypes and shapes are those of the tensors that convert writes.
TEST_F(WeightInputsTest, StoredPartsAreThoseOfConvert) {
  test::write_checkpoint(folder_ / "plain", {test::f32_tensor("a.q_proj.weight", {64, 512}, 1)});
  for (const test::Target& target : test::targets_of_matrices()) {
    if (is_plain(target.recipe)) continue;
    SCOPED_TRACE(test::name_of(target));
    ConvertOptions options = test::options_for(target);
    options.overwrite = true;
    (void)convert(folder_ / "plain", folder_ / "out", options);
    const Checkpoint out = Checkpoint::open(folder_ / "out");
    const auto parts = stored_parts(target.dialect, target.recipe, "a.q_proj.weight", {64, 512},
                                    Activations::none);
    EXPECT_EQ(parts.size(), out.store().tensors().size());
    for (const StoredPart& part : parts) {
      const TensorStore::Entry* entry = out.store().find(part.info.name);
      ASSERT_NE(entry, nullptr) << part.info.name;
      EXPECT_EQ(entry->info.dtype, part.info.dtype);
      EXPECT_EQ(entry->info.shape, part.info.shape);
      if (part.part == "scales") {
        EXPECT_EQ(part.layout, out.find("a.q_proj.weight")->scale_layout);
      }
    }
  }
  const auto parts = stored_parts(kCt, Recipe::nvfp4, "a.weight", {4, 32}, Activations::calibrated);
  ASSERT_EQ(parts.size(), 4u);
  EXPECT_EQ(parts[3].part, "input_scale");
  EXPECT_EQ(parts[3].info.name, "a.input_global_scale");
  expect_error(ErrorCode::unsupported, "dialect", "deepseek stores no nvfp4", [] {
    (void)stored_parts(Dialect::deepseek, Recipe::nvfp4, "a.weight", {4, 32}, Activations::none);
  });
  expect_error(ErrorCode::unsupported, "dialect", "plain stores no bf16", [] {
    (void)stored_parts(Dialect::plain, Recipe::bf16, "a.weight", {4, 32}, Activations::none);
  });
  test::expect_invalid("shape", "has 3 dimensions, must have 2 in lightx2v", [] {
    (void)stored_parts(Dialect::lightx2v, Recipe::nvfp4, "a.weight", {2, 4, 32}, Activations::none);
  });
  test::expect_invalid("shape", "has 1 dimensions, must have 2 or 3", [] {
    (void)stored_parts(kCt, Recipe::nvfp4, "a.weight", {32}, Activations::none);
  });
}

}  // namespace
}  // namespace blockscale
