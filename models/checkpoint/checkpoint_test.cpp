// Reading checkpoints of each dialect, right and wrong.
#include "models/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include "models/checkpoint/checkpoint_testing.h"

namespace blockscale {
namespace {

using test::expect_error;
using test::Json;
using test::TestTensor;

class CheckpointTest : public ::testing::Test {
 protected:
  Checkpoint open(const std::vector<TestTensor>& tensors, const Json& config = nullptr) {
    test::write_checkpoint(folder_ / "model", tensors, config);
    return Checkpoint::open(folder_ / "model");
  }
  void expect_corrupt(const std::vector<TestTensor>& tensors, const Json& config,
                      const std::string& argument, const std::string& reason) {
    SCOPED_TRACE(reason);
    std::filesystem::remove_all(folder_ / "model");
    expect_error(ErrorCode::corrupt_file, argument, reason, [&] { open(tensors, config); });
  }
  void expect_config_error(const Json& config, ErrorCode code, const std::string& reason) {
    SCOPED_TRACE(reason);
    std::filesystem::remove_all(folder_ / "model");
    expect_error(code, (folder_ / "model" / "config.json").string(), reason,
                 [&] { open({{"a.weight", DType::F32, {2, 4}, ""}}, config); });
  }

  test::ScratchFolder folder_;
};

const Json kNvfp4Weights = {{"num_bits", 4},
                            {"type", "float"},
                            {"strategy", "tensor_group"},
                            {"group_size", 16},
                            {"symmetric", true}};

std::vector<TestTensor> compressed_nvfp4() {
  return {{"a.weight_packed", DType::U8, {8, 16}, ""},
          {"a.weight_scale", DType::F8_E4M3, {8, 2}, ""},
          {"a.weight_global_scale", DType::F32, {1}, test::floats({1024.0f})},
          {"a.bias", DType::F32, {8}, ""}};
}

TEST_F(CheckpointTest, PlainTensorsAreBatchesOfMatrices) {
  const Checkpoint checkpoint = open({{"matrix", DType::BF16, {3, 8}, ""},
                                      {"stack", DType::F16, {2, 3, 8}, ""},
                                      {"vector", DType::F32, {8}, ""},
                                      {"number", DType::F32, {}, ""},
                                      {"ids", DType::I64, {4}, ""}});
  EXPECT_EQ(checkpoint.dialect(), Dialect::plain);
  ASSERT_EQ(checkpoint.tensors().size(), 5u);
  EXPECT_EQ(checkpoint.tensors()[0].name, "ids");  // sorted by name
  const ScaledTensorView matrix = checkpoint.view(*checkpoint.find("matrix"));
  EXPECT_EQ(matrix.recipe, Recipe::bf16);
  EXPECT_EQ(matrix.rows, 3);
  EXPECT_EQ(matrix.k, 8);
  const ScaledTensorView stack = checkpoint.view(*checkpoint.find("stack"));
  EXPECT_EQ(stack.batch, 2);
  EXPECT_EQ(stack.rows, 3);
  const ScaledTensorView vector = checkpoint.view(*checkpoint.find("vector"));
  EXPECT_EQ(vector.rows, 1);
  EXPECT_EQ(vector.k, 8);
  EXPECT_EQ(checkpoint.view(*checkpoint.find("number")).k, 1);
  expect_error(ErrorCode::unsupported, "ids", "holds I64",
               [&] { checkpoint.view(*checkpoint.find("ids")); });
  EXPECT_EQ(checkpoint.find("absent"), nullptr);
}

TEST_F(CheckpointTest, MisalignedValuesHaveNoView) {
  const Checkpoint checkpoint =
      open({{"byte", DType::U8, {1}, ""}, {"matrix", DType::F32, {2, 4}, ""}});
  expect_error(ErrorCode::unsupported, "matrix", "no multiple of 4",
               [&] { checkpoint.view(*checkpoint.find("matrix")); });
}

TEST_F(CheckpointTest, CompressedTensorsNvfp4) {
  const Checkpoint checkpoint = open(
      compressed_nvfp4(), test::compressed_tensors_config("nvfp4-pack-quantized", kNvfp4Weights));
  EXPECT_EQ(checkpoint.dialect(), Dialect::compressed_tensors);
  const CheckpointTensor* weight = checkpoint.find("a.weight");
  ASSERT_NE(weight, nullptr);
  EXPECT_TRUE(weight->quantized);
  EXPECT_EQ(weight->recipe, Recipe::nvfp4);
  EXPECT_EQ(weight->shape, (std::vector<std::int64_t>{8, 32}));
  EXPECT_EQ(weight->bytes, 128u + 16u + 4u);
  const ScaledTensorView view = checkpoint.view(*weight);
  EXPECT_EQ(view.sense, TensorScaleSense::divisor);
  ASSERT_NE(view.tensor_scale, nullptr);
  EXPECT_EQ(*view.tensor_scale, 1024.0f);
  EXPECT_EQ(checkpoint.find("a.weight_packed"), nullptr);  // a part, no tensor of its own
  EXPECT_NE(checkpoint.find("a.bias"), nullptr);
}

TEST_F(CheckpointTest, WithoutConfigurationTheNamesTell) {
  EXPECT_EQ(open(compressed_nvfp4()).dialect(), Dialect::compressed_tensors);
  EXPECT_EQ(open({{"a.weight", DType::U8, {8, 16}, ""},
                  {"a.weight_scale", DType::F8_E4M3, {8, 2}, ""},
                  {"a.weight_scale_2", DType::F32, {}, ""}})
                .dialect(),
            Dialect::modelopt);
  EXPECT_EQ(open({{"a.weight", DType::F8_E4M3, {130, 300}, ""},
                  {"a.weight_scale_inv", DType::F32, {2, 3}, ""}})
                .dialect(),
            Dialect::deepseek);
  const Checkpoint gpt_oss = open({{"experts.up_blocks", DType::U8, {2, 4, 3, 16}, ""},
                                   {"experts.up_scales", DType::U8, {2, 4, 3}, ""}});
  EXPECT_EQ(gpt_oss.dialect(), Dialect::gpt_oss);
  EXPECT_EQ(gpt_oss.find("experts.up")->shape, (std::vector<std::int64_t>{2, 4, 96}));
}

TEST_F(CheckpointTest, EveryCompressedTensorsScheme) {
  struct Case {
    Recipe recipe;
    std::vector<TestTensor> tensors;
    Json weights;
  };
  const std::string bf16_ones(2 * 130, '\x3f');
  const std::vector<Case> cases = {
      {Recipe::mxfp4,
       {{"a.weight_packed", DType::U8, {4, 32}, ""}, {"a.weight_scale", DType::U8, {4, 2}, ""}},
       {{"num_bits", 4}, {"type", "float"}, {"strategy", "group"}, {"group_size", 32}}},
      {Recipe::mxfp6_e2m3,
       {{"a.weight_packed", DType::U8, {4, 48}, ""}, {"a.weight_scale", DType::U8, {4, 2}, ""}},
       {{"num_bits", 6}, {"type", "float"}, {"strategy", "group"}, {"group_size", 32}}},
      {Recipe::mxfp8_e4m3,
       {{"a.weight", DType::F8_E4M3, {4, 64}, ""}, {"a.weight_scale", DType::U8, {4, 2}, ""}},
       {{"num_bits", 8}, {"type", "float"}, {"strategy", "group"}, {"group_size", 32}}},
      {Recipe::fp8_tensor,
       {{"a.weight", DType::F8_E4M3, {4, 64}, ""}, {"a.weight_scale", DType::F32, {1}, ""}},
       {{"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}}},
      {Recipe::fp8_row,
       {{"a.weight", DType::F8_E4M3, {130, 64}, ""},
        {"a.weight_scale", DType::BF16, {130, 1}, bf16_ones}},
       {{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}}},
      {Recipe::fp8_128x128,
       {{"a.weight", DType::F8_E4M3, {130, 64}, ""}, {"a.weight_scale", DType::F32, {2, 1}, ""}},
       {{"num_bits", 8},
        {"type", "float"},
        {"strategy", "block"},
        {"block_structure", {128, 128}}}},
      {Recipe::fp8_1x128,
       {{"a.weight", DType::F8_E4M3, {4, 256}, ""}, {"a.weight_scale", DType::F32, {4, 2}, ""}},
       {{"num_bits", 8}, {"type", "float"}, {"strategy", "group"}, {"group_size", 128}}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(recipe_traits(c.recipe).name);
    const Checkpoint checkpoint =
        open(c.tensors, test::compressed_tensors_config("mixed-precision", c.weights));
    const CheckpointTensor* weight = checkpoint.find("a.weight");
    ASSERT_NE(weight, nullptr);
    EXPECT_EQ(weight->recipe, c.recipe);
    const ScaledTensorView view = resolved(checkpoint.view(*weight), "view");
    if (c.recipe == Recipe::fp8_row) {  // bf16 scales are widened
      EXPECT_EQ(static_cast<const float*>(view.scales)[129], decode<Format::bf16>(0x3f3f));
    }
  }
}

TEST_F(CheckpointTest, DeepSeekScalesInEachForm) {
  Json config = test::deepseek_config();
  const TestTensor values = {"a.weight", DType::F8_E4M3, {130, 300}, ""};
  const auto recipe = [&](DType scale) {
    return open({values, {"a.weight_scale_inv", scale, {2, 3}, ""}}, config)
        .find("a.weight")
        ->recipe;
  };
  EXPECT_EQ(recipe(DType::F32), Recipe::fp8_128x128);
  config["quantization_config"]["scale_fmt"] = "ue8m0";
  EXPECT_EQ(recipe(DType::F32), Recipe::fp8_128x128_pow2);
  EXPECT_EQ(recipe(DType::F8_E8M0), Recipe::fp8_128x128_ue8m0);
  // V4: short names, and experts in MXFP4.
  const Checkpoint v4 = open({{"a.weight", DType::F8_E4M3, {128, 128}, ""},
                              {"a.scale", DType::F8_E8M0, {1, 1}, ""},
                              {"e.weight", DType::I8, {4, 32}, ""},
                              {"e.scale", DType::F8_E8M0, {4, 2}, ""},
                              {"hc.scale", DType::F32, {3}, ""}},
                             config);
  EXPECT_EQ(v4.find("a.weight")->recipe, Recipe::fp8_128x128_ue8m0);
  EXPECT_EQ(v4.find("e.weight")->recipe, Recipe::mxfp4);
  EXPECT_FALSE(v4.find("hc.scale")->quantized);
}

TEST_F(CheckpointTest, PartsInDifferentShards) {
  const std::filesystem::path model = folder_ / "model";
  std::filesystem::create_directories(model);
  test::write_store(model / "model-00001-of-00002.safetensors",
                    {{"a.weight", DType::F8_E4M3, {4, 8}, ""}});
  test::write_store(model / "model-00002-of-00002.safetensors",
                    {{"a.weight_scale_inv", DType::F32, {1, 1}, ""}});
  test::write_text(model / "model.safetensors.index.json",
                   R"({"weight_map": {"a.weight": "model-00001-of-00002.safetensors",
                       "a.weight_scale_inv": "model-00002-of-00002.safetensors"}})");
  test::write_text(model / "config.json", test::deepseek_config().dump());
  EXPECT_EQ(Checkpoint::open(model).find("a.weight")->recipe, Recipe::fp8_128x128);
}

TEST_F(CheckpointTest, StackedExpertsMayHaveATensorScaleEach) {
  const Checkpoint checkpoint =
      open({{"m.experts.up_packed", DType::U8, {2, 4, 16}, ""},
            {"m.experts.up_scale", DType::F8_E4M3, {2, 4, 2}, ""},
            {"m.experts.up_global_scale", DType::F32, {2}, test::floats({2.0f, 4.0f})}});
  const ScaledTensorView view = checkpoint.view(*checkpoint.find("m.experts.up"));
  EXPECT_EQ(view.batch, 2);
  EXPECT_EQ(view.tensor_scale_batch_stride, 1);
  EXPECT_EQ(view.tensor_scale[1], 4.0f);
}

TEST_F(CheckpointTest, PartsThatDisagreeAreRefused) {
  const Json nvfp4 = test::compressed_tensors_config("nvfp4-pack-quantized", kNvfp4Weights);
  auto without = [](std::vector<TestTensor> tensors, std::size_t i) {
    tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(i));
    return tensors;
  };
  auto with = [](std::vector<TestTensor> tensors, std::size_t i, TestTensor tensor) {
    tensors[i] = std::move(tensor);
    return tensors;
  };
  const std::vector<TestTensor> good = compressed_nvfp4();
  expect_corrupt(without(good, 0), nvfp4, "a.weight", "has scales but no values");
  expect_corrupt(without(good, 1), nvfp4, "a.weight_packed", "has no scales a.weight_scale");
  expect_corrupt(without(good, 2), nvfp4, "a.weight", "has no tensor scale");
  expect_corrupt(with(good, 0, {"a.weight_packed", DType::F16, {8, 16}, ""}), nvfp4, "a.weight",
                 "F16");
  expect_corrupt(with(good, 0, {"a.weight_packed", DType::U8, {8, 17}, ""}), nvfp4, "a.weight",
                 "no multiple of 16");
  expect_corrupt(with(good, 0, {"a.weight_packed", DType::U8, {128}, ""}), nvfp4, "a.weight",
                 "must have 2 or 3 dimensions");
  expect_corrupt(with(good, 1, {"a.weight_scale", DType::U8, {8, 2}, ""}), nvfp4, "a.weight",
                 "cannot hold ue4m3");
  expect_corrupt(with(good, 1, {"a.weight_scale", DType::F8_E4M3, {8, 3}, ""}), nvfp4, "a.weight",
                 "must be [8, 2] for nvfp4 of [8, 32]");
  expect_corrupt(with(good, 1, {"a.weight_scale", DType::F8_E4M3, {16}, ""}), nvfp4, "a.weight",
                 "must be [8, 2]");
  expect_corrupt(with(good, 2, {"a.weight_global_scale", DType::F32, {2}, ""}), nvfp4, "a.weight",
                 "must be F32 with 1 element");
  expect_corrupt(with(good, 2, {"a.weight_global_scale", DType::BF16, {1}, ""}), nvfp4, "a.weight",
                 "must be F32");
  std::vector<TestTensor> twice = good;
  twice.push_back({"a.weight", DType::F32, {8, 32}, ""});
  expect_corrupt(twice, nvfp4, "a.weight", "both plain and packed");

  const TestTensor fp8 = {"a.weight", DType::F8_E4M3, {130, 300}, ""};
  expect_corrupt({fp8}, test::deepseek_config(), "a.weight", "has no scales a.weight_scale_inv");
  expect_corrupt({{"a.weight_scale_inv", DType::F32, {2, 3}, ""}}, test::deepseek_config(),
                 "a.weight", "has scales but no values");
  expect_corrupt({fp8, {"a.weight_scale_inv", DType::F32, {3, 3}, ""}}, test::deepseek_config(),
                 "a.weight", "must be [2, 3]");
  expect_corrupt({fp8, {"a.weight_scale_inv", DType::I32, {2, 3}, ""}}, test::deepseek_config(),
                 "a.weight", "are I32");
  expect_corrupt({{"a.weight", DType::U8, {8, 16}, ""}}, test::modelopt_config(), "a.weight",
                 "has no scales a.weight_scale");
  expect_corrupt({{"a.weight", DType::U8, {8, 16}, ""},
                  {"a.weight_scale_2", DType::F32, {}, ""},
                  {"b.weight", DType::F32, {2, 2}, ""}},
                 test::modelopt_config(), "a.weight", "has no scales");
  const Json gpt_oss = {{"quantization_config", {{"quant_method", "mxfp4"}}}};
  expect_corrupt({{"e.up_blocks", DType::U8, {2, 4, 3, 16}, ""}}, gpt_oss, "e.up", "no scales");
  expect_corrupt({{"e.up_scales", DType::U8, {2, 4, 3}, ""}}, gpt_oss, "e.up", "no values");
  expect_corrupt(
      {{"e.up_blocks", DType::U8, {2, 4, 3, 16}, ""}, {"e.up_scales", DType::U8, {2, 4, 2}, ""}},
      gpt_oss, "e.up", "of the shape of");
  expect_corrupt(
      {{"e.up_blocks", DType::U8, {2, 4, 3, 15}, ""}, {"e.up_scales", DType::U8, {2, 4, 3}, ""}},
      gpt_oss, "e.up", "k/32, 16]");
}

TEST_F(CheckpointTest, ConfigurationsAreNotTrusted) {
  const auto quantization = [](Json value) { return Json{{"quantization_config", value}}; };
  const auto deepseek = [](const char* key, Json value) {
    Json config = test::deepseek_config();
    config["quantization_config"][key] = std::move(value);
    return config;
  };
  using enum ErrorCode;
  expect_config_error(Json::array({1}), corrupt_file, "must hold a JSON object");
  expect_config_error(quantization(7), corrupt_file, "must be an object");
  expect_config_error(quantization(Json::object()), corrupt_file, "no quant_method");
  expect_config_error(quantization({{"quant_method", 3}}), corrupt_file, "no quant_method");
  expect_config_error(quantization({{"quant_method", "gptq"}}), unsupported, "\"gptq\"");
  expect_config_error(deepseek("fmt", "e5m2"), corrupt_file, "fmt is \"e5m2\"");
  expect_config_error(deepseek("scale_fmt", 8), corrupt_file, "scale_fmt is 8");
  expect_config_error(deepseek("weight_block_size", "big"), corrupt_file, "weight_block_size");
  expect_config_error(deepseek("weight_block_size", Json::array({128})), corrupt_file, "[128]");
  expect_config_error(deepseek("weight_block_size", {0, 128}), corrupt_file, "[0,128]");
  expect_config_error(deepseek("weight_block_size", {128, -128}), corrupt_file, "[128,-128]");
  expect_config_error(quantization({{"quant_method", "modelopt"}, {"quant_algo", "W4A8_AWQ"}}),
                      unsupported, "quant_algo is \"W4A8_AWQ\"");
  expect_config_error(quantization({{"quant_method", "compressed-tensors"}}), corrupt_file,
                      "config_groups");
  expect_config_error(
      quantization({{"quant_method", "compressed-tensors"}, {"config_groups", {1, 2}}}),
      corrupt_file, "config_groups is [1,2], must be an object");
  Json weights = kNvfp4Weights;
  weights["type"] = "int";
  expect_config_error(test::compressed_tensors_config("float-quantized", weights), unsupported,
                      "\"int\"");
  weights = kNvfp4Weights;
  weights["group_size"] = -16;
  expect_config_error(test::compressed_tensors_config("float-quantized", weights), unsupported,
                      "-16");
  weights["group_size"] = "16";
  expect_config_error(test::compressed_tensors_config("float-quantized", weights), unsupported,
                      "readable are");
  expect_config_error(test::compressed_tensors_config("float-quantized", "all"), corrupt_file,
                      "group_0.weights is \"all\", must be an object");
}

TEST_F(CheckpointTest, ARecipeThatTheConfigurationDoesNotDeclareIsRefused) {
  Json weights = kNvfp4Weights;
  weights["strategy"] = "group";
  weights["group_size"] = 32;  // MXFP4 declared, NVFP4 stored
  expect_corrupt(compressed_nvfp4(), test::compressed_tensors_config("float-quantized", weights),
                 "a.weight", "cannot hold ue8m0 of mxfp4");
}

TEST(Dialects, NamesAndDefaults) {
  for (const models::DialectTraits& traits : models::dialects()) {
    EXPECT_STREQ(dialect_name(traits.dialect), traits.name);
    EXPECT_EQ(dialect_from_name(traits.name), traits.dialect);
  }
  EXPECT_EQ(dialect_from_name("gguf"), std::nullopt);
  EXPECT_EQ(default_dialect(Recipe::nvfp4), Dialect::compressed_tensors);
  EXPECT_EQ(default_dialect(Recipe::fp8_128x128_ue8m0), Dialect::deepseek);
  EXPECT_EQ(default_dialect(Recipe::bf16), Dialect::plain);
  EXPECT_TRUE(dialect_can_say(Dialect::modelopt, Recipe::nvfp4));
  EXPECT_FALSE(dialect_can_say(Dialect::modelopt, Recipe::mxfp4));
  EXPECT_FALSE(dialect_can_say(Dialect::gpt_oss, Recipe::mxfp4));
  EXPECT_FALSE(dialect_can_say(static_cast<Dialect>(99), Recipe::nvfp4));
}

/// What other producers write of FP8 and MX, by names, shapes and words of their configuration.
TEST_F(CheckpointTest, ReadsTheFp8AndMxOfVllmFbgemmAndModelOpt) {
  const TestTensor fp8 = {"a.weight", DType::F8_E4M3, {256, 128}, ""};
  const TestTensor packed = {"a.weight", DType::U8, {256, 64}, ""};
  const auto scales = [](DType dtype, std::vector<std::int64_t> shape) {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    std::vector<float> ones(static_cast<std::size_t>(count), 0.5f);
    return TestTensor{"a.weight_scale", dtype, shape,
                      dtype == DType::F32 ? test::floats(ones) : ""};
  };
  const auto recipe = [&](const std::vector<TestTensor>& tensors, const Json& quantization) {
    const Checkpoint checkpoint = open(tensors, {{"quantization_config", quantization}});
    return checkpoint.find("a.weight")->recipe;
  };
  const Json vllm = {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}};
  EXPECT_EQ(recipe({fp8, scales(DType::F32, {})}, vllm), Recipe::fp8_tensor);
  EXPECT_EQ(recipe({fp8, scales(DType::F32, {256, 1})}, vllm), Recipe::fp8_row);
  const Json fbgemm = {{"quant_method", "fbgemm_fp8"},
                       {"activation_scale_ub", 1200.0},
                       {"modules_to_not_convert", {"lm_head"}}};
  const TestTensor bound = {"a.input_scale_ub", DType::F32, {1}, test::floats({1200.0f})};
  EXPECT_EQ(recipe({fp8, scales(DType::F32, {256, 1}), bound}, fbgemm), Recipe::fp8_row);
  const auto modelopt = [](const char* algorithm) {
    return Json{{"quant_method", "modelopt"}, {"quant_algo", algorithm}};
  };
  EXPECT_EQ(recipe({fp8, scales(DType::F32, {})}, modelopt("FP8")), Recipe::fp8_tensor);
  EXPECT_EQ(recipe({fp8, scales(DType::F32, {2, 1, 1, 1})}, modelopt("fp8_pb_wo")),
            Recipe::fp8_128x128);
  EXPECT_EQ(recipe({fp8, scales(DType::U8, {256, 4})}, modelopt("MXFP8")), Recipe::mxfp8_e4m3);
  EXPECT_EQ(recipe({packed, scales(DType::U8, {256, 4})}, modelopt("mxfp4")), Recipe::mxfp4);
  EXPECT_EQ(recipe({packed, scales(DType::U8, {256, 4})}, modelopt("W4A8_MXFP4_FP8")),
            Recipe::mxfp4);
  const TestTensor awq = {"a.pre_quant_scale", DType::BF16, {128}, ""};
  EXPECT_EQ(recipe({packed, scales(DType::U8, {256, 4}), awq}, modelopt("NVFP4_AWQ")),
            Recipe::mxfp4);
  const TestTensor wrong = {"a.pre_quant_scale", DType::BF16, {64}, ""};
  expect_error(ErrorCode::corrupt_file, "a.weight",
               "factors a.pre_quant_scale are BF16 [64], must be F32, BF16 or F16 with 128", [&] {
                 const TestTensor factor = {"a.weight_scale_2", DType::F32, {}, ""};
                 recipe({packed, scales(DType::F8_E4M3, {256, 8}), factor, wrong},
                        modelopt("NVFP4_AWQ"));
               });
}

}  // namespace
}  // namespace blockscale
