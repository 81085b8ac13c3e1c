// What a conversion would do with a model in memory is what it does with the same one on disk.
#include <gtest/gtest.h>

#include <set>

#include "models/convert/testing.h"

namespace blockscale {
namespace {

using test::expect_error;
using test::options_for;

class PlanWeightsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    test::write_checkpoint(folder_ / "plain", test::small_model(), {{"model_type", "mixtral"}});
    for (const test::TestTensor& tensor : test::small_model()) {
      tensors_.push_back(models::tensor_info(tensor.name, tensor.dtype, tensor.shape));
    }
  }

  test::ScratchFolder folder_;
  std::vector<TensorInfo> tensors_;
  const std::string config_ = R"({"model_type": "mixtral"})";
};

TEST_F(PlanWeightsTest, DecidesAsConvert) {
  for (const test::Target& target : test::all_targets()) {
    if (is_plain(target.recipe)) continue;
    SCOPED_TRACE(test::name_of(target));
    ConvertOptions options = options_for(target);
    options.dry_run = true;
    options.exclude = {"*o_proj*"};
    const ConvertReport report = convert(folder_ / "plain", folder_ / "out", options);
    const std::vector<PlannedWeight> planned = plan_weights(tensors_, config_, options);
    ASSERT_EQ(planned.size(), report.tensors.size());
    for (std::size_t i = 0; i < planned.size(); ++i) {
      const ConvertedTensor& wanted = report.tensors[i];
      EXPECT_EQ(planned[i].name, wanted.name);
      EXPECT_EQ(planned[i].recipe, wanted.recipe) << wanted.name;
      EXPECT_EQ(planned[i].converted, wanted.converted) << wanted.name;
      EXPECT_EQ(planned[i].reason, wanted.reason) << wanted.name;
      EXPECT_EQ(planned[i].rule, wanted.rule) << wanted.name;
    }
  }
}

TEST_F(PlanWeightsTest, FusedWeightsAreOneGroup) {
  std::map<std::string, int> groups;
  const ConvertOptions options = options_for({Recipe::nvfp4, Dialect::compressed_tensors});
  for (const PlannedWeight& weight : plan_weights(tensors_, config_, options)) {
    groups[weight.name] = weight.group;
  }
  const int group = groups["model.layers.0.q_proj.weight"];
  EXPECT_GE(group, 0);
  EXPECT_EQ(groups["model.layers.0.k_proj.weight"], group);
  EXPECT_EQ(groups["model.layers.0.v_proj.weight"], group);
  EXPECT_NE(groups["model.layers.0.o_proj.weight"], group);
  EXPECT_EQ(groups["lm_head.weight"], -1);
}

TEST_F(PlanWeightsTest, SaysHowInputsAndScalesAre) {
  std::string scales = "{";
  for (const std::string& name : test::small_model_linears()) {
    scales += (scales == "{" ? "\"" : ", \"") + name + "\": 4.0";
  }
  test::write_text(folder_ / "scales.json", scales + "}");
  ConvertOptions options = options_for({Recipe::nvfp4, Dialect::modelopt});
  options.activation_scales = folder_ / "scales.json";
  for (const PlannedWeight& weight : plan_weights(tensors_, config_, options)) {
    if (!weight.converted) continue;
    EXPECT_EQ(weight.inputs.activations, Activations::calibrated) << weight.name;
    EXPECT_EQ(weight.inputs.recipe, Recipe::nvfp4);
    EXPECT_EQ(weight.inputs.scales, std::vector<float>{4.0f / 2688.0f});
  }
  const auto mode_of = [&](Dialect dialect) {
    return plan_weights(tensors_, config_, options_for({Recipe::mxfp8_e4m3, dialect}))
        .back()
        .mx_scale_mode;
  };
  EXPECT_EQ(mode_of(Dialect::compressed_tensors), MxScaleMode::even_e2m1);
  EXPECT_EQ(mode_of(Dialect::modelopt), MxScaleMode::ceil);
}

TEST_F(PlanWeightsTest, RefusesAsConvert) {
  ConvertOptions options = options_for({Recipe::nvfp4, Dialect::compressed_tensors});
  options.include = {"nothing"};
  expect_error(ErrorCode::invalid_argument, "include", "nothing",
               [&] { (void)plan_weights(tensors_, config_, options); });
  options.include = {"*embed_tokens*"};
  expect_error(ErrorCode::invalid_argument, "include", "an embedding",
               [&] { (void)plan_weights(tensors_, config_, options); });
  options.include = {};
  expect_error(ErrorCode::invalid_argument, "experts_layout", "no model type says how",
               [&] { (void)plan_weights(tensors_, "", options); });
  expect_error(ErrorCode::corrupt_file, "config", "",
               [&] { (void)plan_weights(tensors_, "{", options); });
  // A model in memory is as it computes, not as a checkpoint of it was stored.
  tensors_.push_back(models::tensor_info("a.weight", DType::F8_E4M3, {128, 128}));
  tensors_.push_back(models::tensor_info("a.weight_scale_inv", DType::F32, {1, 1}));
  const std::string quantized = R"({"model_type": "mixtral", "quantization_config":
      {"quant_method": "fp8", "weight_block_size": [128, 128]}})";
  expect_error(ErrorCode::unsupported, "a.weight", "is quantized as deepseek stores it",
               [&] { (void)plan_weights(tensors_, quantized, options); });
}

}  // namespace
}  // namespace blockscale
