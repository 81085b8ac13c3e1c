// How inputs are quantized: options, presets, what sources say, and several recipes in one
// checkpoint.
#include <gtest/gtest.h>

#include <cmath>

#include "models/convert/testing.h"

namespace blockscale {
namespace {

using test::expect_error;
using test::Json;
using test::options_for;
using test::part;
using test::part_f32;

constexpr Dialect kCt = Dialect::compressed_tensors;

class ActivationsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    test::write_checkpoint(folder_ / "plain", test::small_model(), {{"model_type", "mixtral"}});
    Json scales = Json::object();
    for (const std::string& name : test::small_model_linears()) scales[name] = 4.0;
    scales["model.layers.0.q_proj.weight"] = 8.0;
    test::write_text(folder_ / "scales.json", scales.dump());
  }
  ConvertReport run(const std::string& source, const std::string& destination,
                    ConvertOptions options) {
    options.overwrite = true;
    return convert(folder_ / source, folder_ / destination, options);
  }
  ConvertOptions with(Recipe recipe, Dialect dialect, std::optional<Activations> activations = {},
                      bool scales = false) const {
    ConvertOptions options = options_for({recipe, dialect});
    options.activations = activations;
    if (scales) options.activation_scales = folder_ / "scales.json";
    return options;
  }
  Json quantization(const std::string& name) const {
    return Json::parse(test::read_text(folder_ / name / "config.json"))["quantization_config"];
  }
  Json inputs(const std::string& name) const {
    return quantization(name)["config_groups"]["group_0"]["input_activations"];
  }
  static Json fp8(const char* strategy, Json dynamic, Json group_size = nullptr) {
    return {{"num_bits", 8},        {"type", "float"},    {"symmetric", true},
            {"strategy", strategy}, {"dynamic", dynamic}, {"group_size", group_size}};
  }

  test::ScratchFolder folder_;
};

TEST_F(ActivationsTest, OfAPlainSourceAreThoseOfThePresets) {
  const auto preset = [&](Recipe recipe) {
    const ConvertReport report = run("plain", "out", with(recipe, kCt));
    EXPECT_EQ(report.activations.size(), 1u);
    return inputs("out");
  };
  EXPECT_EQ(preset(Recipe::fp8_row), fp8("token", true));
  EXPECT_EQ(preset(Recipe::fp8_128x128), fp8("group", true, 128));
  const Json mxfp4 = {
      {"num_bits", 4},   {"type", "float"},  {"symmetric", true},           {"strategy", "group"},
      {"dynamic", true}, {"group_size", 32}, {"scale_dtype", "torch.uint8"}};
  EXPECT_EQ(preset(Recipe::mxfp4), mxfp4);
  Json mxfp8 = mxfp4;
  mxfp8["num_bits"] = 8;
  EXPECT_EQ(preset(Recipe::mxfp8_e4m3), mxfp8);
  for (const Recipe recipe :
       {Recipe::nvfp4, Recipe::fp8_tensor, Recipe::mxfp6_e2m3, Recipe::fp8_1x128}) {
    EXPECT_TRUE(preset(recipe).is_null()) << recipe_traits(recipe).name;
  }
  EXPECT_EQ(run("plain", "out", with(Recipe::fp8_row, kCt)).activations[0],
            "fp8_row: dynamic, by default");
  EXPECT_EQ(run("plain", "out", with(Recipe::nvfp4, kCt)).activations[0],
            "nvfp4: none, static ones need activation_scales");
  EXPECT_EQ(run("plain", "out", with(Recipe::fp8_128x128, Dialect::deepseek)).activations[0],
            "fp8_128x128: dynamic, by default");
}

TEST_F(ActivationsTest, AreThoseAskedFor) {
  const auto asked = [&](Recipe recipe, Activations activations) {
    run("plain", "out", with(recipe, kCt, activations));
    return inputs("out");
  };
  EXPECT_TRUE(asked(Recipe::fp8_row, Activations::none).is_null());
  EXPECT_TRUE(asked(Recipe::mxfp4, Activations::none).is_null());
  EXPECT_EQ(asked(Recipe::fp8_tensor, Activations::dynamic), fp8("token", true));
  EXPECT_EQ(asked(Recipe::fp8_1x128, Activations::dynamic), fp8("group", true, 128));
  EXPECT_EQ(asked(Recipe::mxfp6_e2m3, Activations::dynamic)["num_bits"], 8);
  const Json nvfp4 = asked(Recipe::nvfp4, Activations::dynamic);
  EXPECT_EQ(nvfp4["dynamic"], true);
  EXPECT_EQ(nvfp4["strategy"], "tensor_group");
  EXPECT_EQ(
      Checkpoint::open(folder_ / "out").store().find("model.layers.0.o_proj.input_global_scale"),
      nullptr);
}

TEST_F(ActivationsTest, StaticOnesHaveTheScalesGiven) {
  for (const Recipe recipe : {Recipe::fp8_tensor, Recipe::fp8_row}) {
    run("plain", "out", with(recipe, kCt, Activations::calibrated, true));
    EXPECT_EQ(inputs("out"), fp8("tensor", false));
    const Checkpoint out = Checkpoint::open(folder_ / "out");
    EXPECT_EQ(part_f32(out, "model.layers.0.o_proj.input_scale"), 4.0f / 448.0f);
    EXPECT_EQ(part_f32(out, "model.layers.0.k_proj.input_scale"), 8.0f / 448.0f);  // as q's
  }
  // Without a word of them as well, where the preset is static.
  EXPECT_EQ(run("plain", "out", with(Recipe::fp8_tensor, kCt, {}, true)).activations[0],
            "fp8_tensor: static, from activation_scales");
  EXPECT_EQ(inputs("out"), fp8("tensor", false));
}

TEST_F(ActivationsTest, WhatCannotBeIsRefused) {
  const auto refused = [&](const ConvertOptions& options, const char* argument,
                           const char* reason) {
    expect_error(ErrorCode::invalid_argument, argument, reason,
                 [&] { run("plain", "no", options); });
  };
  refused(with(Recipe::mxfp4, kCt, Activations::calibrated), "activations",
          "is static, must be none or dynamic for mxfp4 in compressed-tensors");
  refused(with(Recipe::fp8_128x128, Dialect::deepseek, Activations::none), "activations",
          "is none, must be dynamic for fp8_128x128 in deepseek");
  refused(with(Recipe::nvfp4, kCt, Activations::calibrated), "activations",
          "has no scale for its input; activation_scales gives them");
  refused(with(Recipe::nvfp4, kCt, Activations::dynamic, true), "activation_scales",
          "which stores none with these activations");
  refused(with(Recipe::mxfp4, kCt, {}, true), "activation_scales",
          "given for mxfp4 in compressed-tensors, which stores none");
  refused(with(Recipe::fp8_tensor, Dialect::modelopt), "activation_scales",
          "is not given, and must be for fp8_tensor in modelopt");
  refused(with(Recipe::fp8_row, kCt, static_cast<Activations>(7)), "activations",
          "must be none, dynamic or static");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "no"));
}

TEST_F(ActivationsTest, OfAQuantizedSourceStayAndAreReported) {
  run("plain", "w8a16", with(Recipe::fp8_row, kCt, Activations::none));
  EXPECT_EQ(run("w8a16", "out", with(Recipe::mxfp8_e4m3, kCt)).activations[0],
            "mxfp8_e4m3: none, as in the source");
  EXPECT_TRUE(inputs("out").is_null());
  run("plain", "w8a8", with(Recipe::fp8_row, kCt));
  EXPECT_EQ(run("w8a8", "out", with(Recipe::fp8_tensor, kCt)).activations[0],
            "fp8_tensor: dynamic, as in the source");
  run("plain", "static", with(Recipe::fp8_tensor, kCt, {}, true));
  EXPECT_EQ(run("static", "out", with(Recipe::fp8_row, kCt)).activations[0],
            "fp8_row: static, as in the source");
  EXPECT_EQ(run("static", "out", with(Recipe::mxfp4, kCt)).activations[0],
            "mxfp4: none, static in the source, whose scales are dropped");
  run("plain", "deepseek", with(Recipe::fp8_128x128, Dialect::deepseek));
  EXPECT_EQ(run("deepseek", "out", with(Recipe::fp8_128x128, kCt)).activations[0],
            "fp8_128x128: dynamic, as in the source");
  EXPECT_EQ(run("deepseek", "out", with(Recipe::nvfp4, kCt)).activations[0],
            "nvfp4: none, dynamic in the source, in other bits");

  // ModelOpt has static ones alone for FP8: what stays without them becomes bf16.
  run("plain", "tensor", with(Recipe::fp8_tensor, kCt, Activations::dynamic));
  ConvertOptions some = with(Recipe::fp8_row, Dialect::modelopt);
  some.exclude = {"*.o_proj.*"};
  std::vector<std::string> plain;
  for (const ConvertedTensor& tensor : run("tensor", "out", some).tensors) {
    if (tensor.recipe == Recipe::bf16 && tensor.converted) plain.push_back(tensor.name);
  }
  EXPECT_EQ(plain, std::vector<std::string>{"model.layers.0.o_proj.weight"});

  // Another choice than the source's rewrites the configuration, not the weights.
  EXPECT_TRUE(run("w8a16", "out", with(Recipe::fp8_row, kCt)).activations.empty());
  const ConvertReport report =
      run("w8a16", "out", with(Recipe::fp8_row, kCt, Activations::dynamic));
  EXPECT_EQ(report.activations[0], "fp8_row: dynamic, as asked for");
  EXPECT_EQ(inputs("out"), fp8("token", true));
  EXPECT_EQ(test::read_text(folder_ / "out" / "model.safetensors"),
            test::read_text(folder_ / "w8a16" / "model.safetensors"));
  const ConvertReport dropped =
      run("static", "out", with(Recipe::fp8_tensor, kCt, Activations::dynamic));
  ASSERT_EQ(dropped.warnings.size(), 1u);
  EXPECT_NE(dropped.warnings[0].find("activations says so"), std::string::npos);
  EXPECT_EQ(Checkpoint::open(folder_ / "out").store().find("model.layers.0.o_proj.input_scale"),
            nullptr);
}

/// Groups of one recipe with different inputs stay apart, in their own words; the first that names
/// a module holds, then patterns, then classes.
TEST_F(ActivationsTest, EveryGroupOfASourceKeepsItsOwn) {
  const Json weights = {{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}};
  Json words = fp8("token", true);
  words["observer"] = "minmax";
  const auto group = [&](Json targets, Json inputs) {
    return Json{{"targets", targets}, {"weights", weights}, {"input_activations", inputs}};
  };
  std::vector<test::TestTensor> tensors;
  for (const char* name : {"l.a", "l.b", "l.c", "l.d"}) {
    tensors.push_back({std::string(name) + ".weight", DType::F8_E4M3, {4, 32}, ""});
    tensors.push_back(
        {std::string(name) + ".weight_scale", DType::F32, {4, 1}, test::floats({1, 2, 3, 4})});
  }
  test::write_checkpoint(folder_ / "ct", tensors,
                         {{"quantization_config",
                           {{"quant_method", "compressed-tensors"},
                            {"config_groups",
                             {{"group_0", group({"Linear"}, nullptr)},
                              {"group_1", group({"re:.*[bc]$"}, words)},
                              {"group_2", group({"l.c"}, nullptr)}}}}}});
  ConvertOptions options = with(Recipe::fp8_row, kCt);
  options.map = {{"l.d", Recipe::mxfp8_e4m3}};
  run("ct", "out", options);
  const Json groups = quantization("out")["config_groups"];
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups["group_0"]["targets"], Json::array({"l.d"}));
  EXPECT_TRUE(groups["group_0"]["input_activations"].is_null());
  EXPECT_EQ(groups["group_1"]["targets"], Json({"l.a", "l.c"}));
  EXPECT_TRUE(groups["group_1"]["input_activations"].is_null());
  EXPECT_EQ(groups["group_2"]["targets"], Json::array({"l.b"}));
  EXPECT_EQ(groups["group_2"]["input_activations"], words);
}

TEST_F(ActivationsTest, ModelOptFp8IsStatic) {
  const ConvertOptions options = with(Recipe::fp8_tensor, Dialect::modelopt, {}, true);
  run("plain", "mo", options);
  const Checkpoint mo = Checkpoint::open(folder_ / "mo");
  EXPECT_EQ(mo.store().find("model.layers.0.k_proj.weight_scale")->info.shape,
            std::vector<std::int64_t>{});
  EXPECT_EQ(mo.store().find("model.layers.0.mlp.experts.up_proj_weight_scale")->info.shape,
            std::vector<std::int64_t>{2});
  EXPECT_EQ(part_f32(mo, "model.layers.0.k_proj.input_scale"), 8.0f / 448.0f);
  EXPECT_EQ(quantization("mo")["quant_algo"], "FP8");
  run("plain", "ct", with(Recipe::fp8_tensor, kCt, {}, true));
  const Checkpoint ct = Checkpoint::open(folder_ / "ct");
  for (const std::string& name : test::small_model_linears()) {
    EXPECT_EQ(test::values_of(mo, name), test::values_of(ct, name));
  }
  // Between the two everything is copied.
  run("ct", "again", with(Recipe::fp8_tensor, Dialect::modelopt));
  EXPECT_EQ(test::contents(folder_ / "again"), test::contents(folder_ / "mo"));
  run("mo", "row", with(Recipe::fp8_row, Dialect::modelopt));
  EXPECT_EQ(quantization("row")["quant_algo"], "FP8_PER_CHANNEL_PER_TOKEN");
  EXPECT_EQ(Checkpoint::open(folder_ / "row")
                .store()
                .find("model.layers.0.o_proj.weight_scale")
                ->info.shape,
            std::vector<std::int64_t>{128});
}

TEST_F(ActivationsTest, MixedRecipesInModelOpt) {
  ConvertOptions options = with(Recipe::nvfp4, Dialect::modelopt, {}, true);
  options.map = {{"*.o_proj", Recipe::fp8_tensor}, {"*.experts.*", Recipe::mxfp8_e4m3}};
  run("plain", "mo", options);
  const Json layers = {
      {"model.layers.0.k_proj", {{"quant_algo", "NVFP4"}, {"group_size", 16}}},
      {"model.layers.0.q_proj", {{"quant_algo", "NVFP4"}, {"group_size", 16}}},
      {"model.layers.0.v_proj", {{"quant_algo", "NVFP4"}, {"group_size", 16}}},
      {"model.layers.0.o_proj", {{"quant_algo", "FP8"}}},
      {"model.layers.0.mlp.experts.up_proj", {{"quant_algo", "MXFP8"}, {"group_size", 32}}}};
  EXPECT_EQ(quantization("mo")["quant_algo"], "MIXED_PRECISION");
  EXPECT_EQ(quantization("mo")["quantized_layers"], layers);
  const Json hf = Json::parse(test::read_text(folder_ / "mo" / "hf_quant_config.json"));
  EXPECT_EQ(hf["quantization"]["quantized_layers"], layers);

  // To compressed-tensors: the recipes by their names, inputs as each layer has them.
  options = with(Recipe::nvfp4, kCt);
  options.map = {{"*.o_proj", Recipe::fp8_tensor}, {"*.experts.*", Recipe::mxfp8_e4m3}};
  const ConvertReport report = run("mo", "ct", options);
  EXPECT_EQ(report.activations, (std::vector<std::string>{"fp8_tensor: static, as in the source",
                                                          "mxfp8_e4m3: dynamic, as in the source",
                                                          "nvfp4: static, as in the source"}));
  const Checkpoint mo = Checkpoint::open(folder_ / "mo");
  const Checkpoint ct = Checkpoint::open(folder_ / "ct");
  for (const std::string& name : test::small_model_linears()) {
    EXPECT_EQ(mo.find(name)->recipe, ct.find(name)->recipe);
  }
  EXPECT_EQ(part(mo, "model.layers.0.o_proj.weight"), part(ct, "model.layers.0.o_proj.weight"));
  options.dialect = Dialect::modelopt;
  run("ct", "back", options);
  EXPECT_EQ(quantization("back"), quantization("mo"));
}

}  // namespace
}  // namespace blockscale
