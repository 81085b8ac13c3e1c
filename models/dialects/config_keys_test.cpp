// What configurations of each dialect may say: as their packages write them, and everything that is
// refused because it would change what the weights mean.
#include <gtest/gtest.h>

#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/checkpoint_testing.h"

namespace blockscale {
namespace {

using test::expect_error;
using test::Json;
using test::TestTensor;

/// QuantizationArgs as compressed-tensors 0.20 dumps them.
Json arguments(int bits, const char* strategy, const Json& group_size) {
  return {{"num_bits", bits},
          {"type", "float"},
          {"symmetric", true},
          {"group_size", group_size},
          {"strategy", strategy},
          {"dynamic", false},
          {"observer", "memoryless_minmax"}};
}

/// What ModelCompressor.update_config of compressed-tensors 0.20 writes, group by group as asked.
Json compressed_tensors_file(const char* format, const Json& weights) {
  const Json group = {{"targets", {"Linear"}},
                      {"weights", weights},
                      {"input_activations", nullptr},
                      {"output_activations", nullptr},
                      {"format", format}};
  return {{"quantization_config",
           {{"version", "0.20.0"},
            {"quant_method", "compressed-tensors"},
            {"sparsity_config", Json::object()},
            {"transform_config", Json::object()},
            {"config_groups", {{"group_0", group}}},
            {"kv_cache_scheme", nullptr},
            {"format", format},
            {"quantization_status", "compressed"},
            {"global_compression_ratio", nullptr},
            {"ignore", {"lm_head"}},
            {"moe_sparsity_config", nullptr}}}};
}

/// The same as version 0.9 wrote it: every field, null or not; per channel, dynamic activations.
Json old_compressed_tensors_file() {
  Json weights = arguments(8, "channel", nullptr);
  weights.update({{"actorder", nullptr},
                  {"block_structure", nullptr},
                  {"observer", "minmax"},
                  {"observer_kwargs", Json::object()}});
  Json inputs = arguments(8, "token", nullptr);
  inputs.update({{"actorder", nullptr},
                 {"block_structure", nullptr},
                 {"observer", nullptr},
                 {"observer_kwargs", Json::object()},
                 {"dynamic", true}});
  Json file = compressed_tensors_file("float-quantized", weights);
  Json& config = file["quantization_config"];
  config.erase("moe_sparsity_config");
  config["config_groups"]["group_0"].erase("format");
  config["config_groups"]["group_0"]["input_activations"] = inputs;
  config["quantization_status"] = "frozen";
  config["global_compression_ratio"] = 1.4640;
  config["sparsity_config"] = {{"format", "dense"},
                               {"global_sparsity", 19.098},
                               {"registry_requires_subclass", false},
                               {"sparsity_structure", "2:4"}};
  return file;
}

class ConfigKeysTest : public ::testing::Test {
 protected:
  Checkpoint open(const std::vector<TestTensor>& tensors, const Json& config,
                  const Json& hf_quant_config = nullptr) {
    std::filesystem::remove_all(folder_ / "model");
    test::write_checkpoint(folder_ / "model", tensors, config);
    if (!hf_quant_config.is_null()) {
      test::write_text(folder_ / "model" / "hf_quant_config.json", hf_quant_config.dump());
    }
    return Checkpoint::open(folder_ / "model");
  }
  Recipe recipe_of(const std::vector<TestTensor>& tensors, const Json& config,
                   const Json& hf_quant_config = nullptr) {
    const Checkpoint checkpoint = open(tensors, config, hf_quant_config);
    const CheckpointTensor* weight = checkpoint.find("a.weight");
    return weight == nullptr ? Recipe::f32 : weight->recipe;
  }
  /// `config` with `value` at `pointer` of its quantization_config is refused, by this name.
  void expect_refused(const std::vector<TestTensor>& tensors, Json config,
                      const std::string& pointer, const Json& value, const std::string& named,
                      ErrorCode code = ErrorCode::unsupported) {
    SCOPED_TRACE(named + " = " + value.dump());
    config["quantization_config"][Json::json_pointer(pointer)] = value;
    expect_error(code, (folder_ / "model" / "config.json").string(), named,
                 [&] { open(tensors, config); });
  }

  const std::vector<TestTensor> nvfp4_ = {
      {"a.weight_packed", DType::U8, {8, 16}, ""},
      {"a.weight_scale", DType::F8_E4M3, {8, 2}, ""},
      {"a.weight_global_scale", DType::F32, {1}, test::floats({1024.0f})}};
  const std::vector<TestTensor> row_ = {{"a.weight", DType::F8_E4M3, {4, 64}, ""},
                                        {"a.weight_scale", DType::F32, {4, 1}, ""}};
  const std::vector<TestTensor> block_ = {{"a.weight", DType::F8_E4M3, {130, 64}, ""},
                                          {"a.weight_scale", DType::F32, {2, 1}, ""}};
  const std::vector<TestTensor> deepseek_ = {{"a.weight", DType::F8_E4M3, {130, 300}, ""},
                                             {"a.weight_scale_inv", DType::F32, {2, 3}, ""}};
  const std::vector<TestTensor> modelopt_ = {
      {"a.weight", DType::U8, {8, 16}, ""},
      {"a.weight_scale", DType::F8_E4M3, {8, 2}, ""},
      {"a.weight_scale_2", DType::F32, {}, test::floats({0.5f})}};
  test::ScratchFolder folder_;
};

TEST_F(ConfigKeysTest, CompressedTensorsAsThePackageWritesIt) {
  Json weights = arguments(4, "tensor_group", 16);
  weights["scale_dtype"] = "torch.float8_e4m3fn";
  EXPECT_EQ(recipe_of(nvfp4_, compressed_tensors_file("nvfp4-pack-quantized", weights)),
            Recipe::nvfp4);
  EXPECT_EQ(recipe_of(row_, old_compressed_tensors_file()), Recipe::fp8_row);
  // Calibration's order of columns, and the old way of writing blocks.
  weights = arguments(8, "block", nullptr);
  weights.update({{"block_structure", "128x128"}, {"actorder", "weight"}});
  EXPECT_EQ(recipe_of(block_, compressed_tensors_file("float-quantized", weights)),
            Recipe::fp8_128x128);
  // Unknown keys that say nothing say nothing.
  Json file = old_compressed_tensors_file();
  file["quantization_config"]["new_in_1.0"] = nullptr;
  EXPECT_EQ(recipe_of(row_, file), Recipe::fp8_row);
}

TEST_F(ConfigKeysTest, CompressedTensorsThatChangesValuesIsRefusedByKey) {
  const Json good = old_compressed_tensors_file();
  const auto refuse = [&](const std::string& pointer, const Json& value, const std::string& named) {
    expect_refused(row_, good, pointer, value, named);
  };
  const std::string weights = "/config_groups/group_0/weights/";
  const std::string named = "quantization_config.config_groups.group_0.weights.";
  refuse(weights + "symmetric", false, named + "symmetric is false");
  refuse(weights + "actorder", "group", named + "actorder is \"group\"");
  refuse(weights + "actorder", "dynamic", named + "actorder is \"dynamic\"");
  refuse(weights + "actorder", true, named + "actorder is true");
  refuse(weights + "dynamic", true, named + "dynamic is true");
  refuse(weights + "dynamic", "local", named + "dynamic is \"local\"");
  refuse(weights + "scale_dtype", "torch.int8", named + "scale_dtype is \"torch.int8\"");
  refuse(weights + "rotation", "hadamard", named + "rotation is no key that is known here");
  refuse(weights + "rotation", false, named + "rotation is no key that is known here");
  refuse("/config_groups/group_0/format", "marlin-24",
         "quantization_config.config_groups.group_0.format is \"marlin-24\"");
  refuse("/config_groups/group_0/permutation", {1, 0},
         "quantization_config.config_groups.group_0.permutation is no key");
  refuse("/config_groups/group_0/input_activations/smooth", 0.5,
         "group_0.input_activations.smooth is no key");
  refuse("/format", "pack-quantized", "quantization_config.format is \"pack-quantized\"");
  refuse("/quantization_status", "decompressed", "quantization_config.quantization_status");
  refuse("/sparsity_config", {{"format", "sparse-24-bitmask"}, {"sparsity_structure", "2:4"}},
         "quantization_config.sparsity_config.format is \"sparse-24-bitmask\"");
  refuse("/transform_config",
         {{"config_groups", {{"u", {{"type", "hadamard"}, {"apply", Json::array({1})}}}}}},
         "quantization_config.transform_config.config_groups is {\"u\"");
  refuse("/transform_config", {{"rotations", {1}}},
         "quantization_config.transform_config.rotations is no key");
  refuse("/moe_sparsity_config", {{"method", "prune"}, {"num_experts", {1}}},
         "quantization_config.moe_sparsity_config is {");
  refuse("/lora", 1, "quantization_config.lora is no key that is known here");
  refuse("/a\nb", 1, "quantization_config.\"a\\x0Ab\" is no key");
  expect_refused(row_, good, "/config_groups/FP8", Json::array({"Linear"}),
                 "quantization_config.config_groups.FP8 is [\"Linear\"], must be an object",
                 ErrorCode::corrupt_file);
  expect_refused(row_, good, "/transform_config", 5,
                 "quantization_config.transform_config is 5, must be an object",
                 ErrorCode::corrupt_file);
}

TEST_F(ConfigKeysTest, DeepSeek) {
  // DeepSeek-V3.1, MiniMax-M2, Ministral, AutoFP8.
  Json config = {{"quantization_config",
                  {{"quant_method", "fp8"},
                   {"fmt", "e4m3"},
                   {"activation_scheme", "dynamic"},
                   {"scale_fmt", "ue8m0"},
                   {"weight_block_size", {128, 128}}}}};
  EXPECT_EQ(recipe_of(deepseek_, config), Recipe::fp8_128x128_pow2);
  config["quantization_config"] = {{"quant_method", "fp8"},
                                   {"fmt", "float8_e4m3fn"},
                                   {"activation_scheme", "dynamic"},
                                   {"weight_block_size", {128, 128}},
                                   {"modules_to_not_convert", {"gate", "lm_head"}}};
  EXPECT_EQ(recipe_of(deepseek_, config), Recipe::fp8_128x128);
  const Json good = config;
  config["quantization_config"] = {{"quant_method", "fp8"},
                                   {"activation_scheme", "static"},
                                   {"dequantize", false},
                                   {"modules_to_not_convert", {"lm_head"}},
                                   {"weight_block_size", nullptr}};
  EXPECT_EQ(recipe_of({{"a.weight", DType::F8_E4M3, {4, 64}, ""},
                       {"a.weight_scale_inv", DType::BF16, {}, "\x80\x3f"},
                       {"a.activation_scale", DType::BF16, {}, "\x80\x3f"}},
                      config),
            Recipe::fp8_tensor);
  config["quantization_config"] = {{"quant_method", "fp8"},
                                   {"activation_scheme", "static"},
                                   {"ignored_layers", {"lm_head"}},
                                   {"kv_cache_scheme", "static"}};
  EXPECT_EQ(recipe_of({{"a.weight", DType::F8_E4M3, {4, 64}, ""},
                       {"a.weight_scale", DType::F32, {}, test::floats({1.0f})},
                       {"a.input_scale", DType::F32, {}, test::floats({1.0f})}},
                      config),
            Recipe::fp8_tensor);
  expect_refused(deepseek_, good, "/modules_to_convert", Json::array({"embed_tokens"}),
                 "quantization_config.modules_to_convert is [\"embed_tokens\"]");
  expect_refused(deepseek_, good, "/activation_scheme", "block",
                 "quantization_config.activation_scheme is \"block\"");
  expect_refused(deepseek_, good, "/expert_dtype", "int4",
                 "quantization_config.expert_dtype is \"int4\"");
  expect_refused(deepseek_, good, "/zero_point", true,
                 "quantization_config.zero_point is no key that is known here");
}

TEST_F(ConfigKeysTest, ModelOpt) {
  const Json producer = {{"name", "modelopt"}, {"version", "0.47.0"}};
  const Json numbers = {{"dynamic", false}, {"num_bits", 4}, {"type", "float"}, {"group_size", 16}};
  const Json config = {
      {"quantization_config",
       {{"config_groups",
         {{"group_0",
           {{"input_activations", numbers}, {"weights", numbers}, {"targets", {"Linear"}}}}}},
        {"ignore", {"lm_head"}},
        {"quant_algo", "NVFP4"},
        {"kv_cache_scheme", {{"dynamic", false}, {"num_bits", 8}, {"type", "float"}}},
        {"producer", producer},
        {"quant_method", "modelopt"}}}};
  const Json hf = {
      {"producer", producer},
      {"quantization",
       {{"quant_algo", "MIXED_PRECISION"},
        {"kv_cache_quant_algo", "FP8"},
        {"exclude_modules", {"lm_head*"}},
        {"quantized_layers",
         {{"a", {{"quant_algo", "NVFP4"}, {"group_size", 16}}}, {"b", {{"quant_algo", "FP8"}}}}}}}};
  EXPECT_EQ(recipe_of(modelopt_, config), Recipe::nvfp4);
  EXPECT_EQ(recipe_of(modelopt_, config, hf), Recipe::nvfp4);
  EXPECT_EQ(recipe_of(modelopt_, nullptr, hf), Recipe::nvfp4);

  const auto refuse = [&](const std::string& pointer, const Json& value, const std::string& named) {
    expect_refused(modelopt_, config, pointer, value, named);
  };
  refuse("/config_groups/group_0/has_zero_point", true,
         "quantization_config.config_groups.group_0.has_zero_point is true");
  refuse("/config_groups/group_0/lora_rank", 32, "group_0.lora_rank is 32");
  refuse("/config_groups/group_0/weights/dynamic", true, "group_0.weights.dynamic is true");
  refuse("/config_groups/group_0/weights/type", "int", "group_0.weights.type is \"int\"");
  refuse("/quant_algo", "NVFP4_SVD", "quantization_config.quant_algo is \"NVFP4_SVD\"");
  refuse("/smooth_alpha", 0.5, "quantization_config.smooth_alpha is no key that is known here");
  const auto refuse_hf = [&](const std::string& pointer, const Json& value,
                             const std::string& named) {
    Json changed = hf;
    changed["quantization"][Json::json_pointer(pointer)] = value;
    expect_error(ErrorCode::unsupported, (folder_ / "model" / "config.json").string(), named,
                 [&] { open(modelopt_, config, changed); });
  };
  refuse_hf("/quantized_layers/b/quant_algo", "W4A16_AWQ",
            "hf_quant_config.json.quantization.quantized_layers.b.quant_algo is \"W4A16_AWQ\"");
  refuse_hf("/lora_rank", 32, "hf_quant_config.json.quantization.lora_rank is 32");
  refuse_hf("/clamp", 1, "hf_quant_config.json.quantization.clamp is no key");
}

TEST_F(ConfigKeysTest, GptOss) {
  const std::vector<TestTensor> tensors = {{"e.up_blocks", DType::U8, {2, 4, 3, 16}, ""},
                                           {"e.up_scales", DType::U8, {2, 4, 3}, ""},
                                           {"e.up_bias", DType::BF16, {2, 4}, ""}};
  const Json config = {{"quantization_config",
                        {{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"lm_head"}}}}};
  EXPECT_EQ(open(tensors, config).find("e.up")->recipe, Recipe::mxfp4);
  expect_refused(tensors, config, "/swizzle", "128x4",
                 "quantization_config.swizzle is no key that is known here");
}

TEST_F(ConfigKeysTest, TheConfigurationIsFoundWhereverItStands) {
  const Json quantization = old_compressed_tensors_file()["quantization_config"];
  const Json inner = {{"quantization_config", quantization}};
  EXPECT_EQ(recipe_of(row_, {{"compression_config", quantization}}), Recipe::fp8_row);
  EXPECT_EQ(recipe_of(row_, {{"text_config", inner}}), Recipe::fp8_row);
  EXPECT_EQ(recipe_of(row_, {{"thinker", {{"text_config", inner}}}}), Recipe::fp8_row);
  EXPECT_EQ(recipe_of(row_, {{"quantization_config", quantization}, {"text_config", inner}}),
            Recipe::fp8_row);
  Json other = quantization;
  other["ignore"] = Json::array();
  const Json differing = {{"text_config", inner},
                          {"vision_config", {{"quantization_config", other}}}};
  const std::string file = (folder_ / "model" / "config.json").string();
  expect_error(ErrorCode::unsupported, file,
               "vision_config.quantization_config differs from text_config.quantization_config",
               [&] { open(row_, differing); });
  other["lora"] = 1;
  expect_error(ErrorCode::unsupported, file, "text_config.quantization_config.lora is no key",
               [&] { open(row_, {{"text_config", {{"quantization_config", other}}}}); });
}

TEST_F(ConfigKeysTest, TensorsThatChangeWeightsAreRefusedByName) {
  const auto refuse = [&](const std::vector<TestTensor>& tensors, const Json& config,
                          const TestTensor& more, const std::string& reason) {
    SCOPED_TRACE(more.name);
    std::vector<TestTensor> all = tensors;
    all.push_back(more);
    expect_error(ErrorCode::unsupported, more.name, reason, [&] { open(all, config); });
  };
  const Json ct = old_compressed_tensors_file();
  refuse(row_, ct, {"a.weight_zero_point", DType::I8, {4, 1}, ""}, "zero points other than 0");
  refuse(row_, ct, {"a.weight_g_idx", DType::I32, {64}, ""}, "in a way that is not known here");
  refuse(row_, ct, {"a.bitmask", DType::U8, {4, 8}, ""}, "in a way that is not known here");
  refuse(row_, ct, {"b.compressed", DType::F8_E4M3, {4, 8}, ""}, "in a way that is not known");
  refuse(row_, ct, {"a.input_rotation", DType::F32, {64, 64}, ""},
         "belongs to the quantized weight a.weight");
  refuse(row_, ct, {"a.lora_A.weight", DType::BF16, {8, 64}, ""},
         "belongs to the quantized weight a.weight");
  refuse(row_, ct, {"a.pre_quant_scale", DType::BF16, {64}, ""}, "in a way that is not known");
  const Json mo = test::modelopt_config();
  refuse(modelopt_, mo, {"a.svdquant_lora_a", DType::BF16, {8, 32}, ""}, "not known here");
  refuse({{"m.up", DType::U8, {2, 8, 16}, ""},
          {"m.up_weight_scale", DType::F8_E4M3, {2, 8, 2}, ""},
          {"m.up_weight_scale_2", DType::F32, {}, test::floats({0.5f})}},
         mo, {"m.up_pre_quant_scale", DType::BF16, {32}, ""}, "not known here");
  // A bias is no such tensor, nor are the names of a plain checkpoint.
  std::vector<TestTensor> good = row_;
  good.push_back({"a.bias", DType::BF16, {4}, ""});
  good.push_back({"b.weight", DType::BF16, {4, 4}, ""});
  good.push_back({"b.anything", DType::BF16, {4}, ""});
  EXPECT_EQ(recipe_of(good, ct), Recipe::fp8_row);
  EXPECT_EQ(open({{"a.bitmask", DType::U8, {4}, ""}}, nullptr).dialect(), Dialect::plain);
}

}  // namespace
}  // namespace blockscale
