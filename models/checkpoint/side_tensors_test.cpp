// Scales of activations and of the key and value cache through conversions: carried over with their
// meaning, or dropped together and reported; never left behind under a name that means another.
#include <gtest/gtest.h>

#include <cmath>

#include "models/convert/testing.h"

namespace blockscale {
namespace {

using test::expect_error;
using test::floats;
using test::Json;
using test::options_for;
using test::part;
using test::part_f32;
using test::Target;
using test::TestTensor;

const Json kFp8 = {{"num_bits", 8},
                   {"type", "float"},
                   {"strategy", "tensor"},
                   {"dynamic", false},
                   {"symmetric", true}};

class SideTensorsTest : public ::testing::Test {
 protected:
  ConvertReport convert_to(const std::string& name, const Target& target,
                           std::vector<std::string> exclude = {}) {
    ConvertOptions options = options_for(target);
    options.overwrite = true;
    options.exclude = std::move(exclude);
    return convert(folder_ / "source", folder_ / name, options);
  }
  void source(const std::vector<TestTensor>& tensors, const Json& config) {
    std::filesystem::remove_all(folder_ / "source");
    test::write_checkpoint(folder_ / "source", tensors, config);
  }
  Json quantization_of(const std::string& name) const {
    return Json::parse(test::read_text(folder_ / name / "config.json"))["quantization_config"];
  }
  std::vector<std::string> names_of(const std::string& name) const {
    const Checkpoint checkpoint = Checkpoint::open(folder_ / name);
    std::vector<std::string> names;
    for (const auto& [tensor, entry] : checkpoint.store().tensors()) names.push_back(tensor);
    return names;
  }

  static std::vector<TestTensor> fp8_layer(const std::string& name, float input_scale) {
    return {{name + ".weight", DType::F8_E4M3, {16, 128}, ""},
            {name + ".weight_scale", DType::F32, {1}, floats({0.5f})},
            {name + ".input_scale", DType::F32, {1}, floats({input_scale})}};
  }
  /// compressed-tensors, W8A8 with static activations and an FP8 cache.
  std::vector<TestTensor> ct_tensors() const {
    std::vector<TestTensor> tensors = fp8_layer("l.self_attn.k_proj", 0.25f);
    for (TestTensor& t : fp8_layer("l.self_attn.v_proj", 0.75f)) tensors.push_back(std::move(t));
    tensors.push_back({"l.self_attn.k_scale", DType::BF16, {1}, "\x80\x3e"});  // 0.25
    tensors.push_back(
        {"l.self_attn.v_scale", DType::BF16, {1}, std::string("\x00\x3f", 2)});  // 0.5
    return tensors;
  }
  Json ct_config() const {
    Json config = test::compressed_tensors_config("float-quantized", kFp8);
    config["quantization_config"]["kv_cache_scheme"] = kFp8;
    config["quantization_config"]["config_groups"]["group_0"]["input_activations"] = kFp8;
    return config;
  }
  /// ModelOpt's FP8, likewise.
  std::vector<TestTensor> modelopt_tensors() const {
    std::vector<TestTensor> tensors = {
        {"l.self_attn.k_proj.k_scale", DType::F32, {}, floats({0.25f})},
        {"l.self_attn.v_proj.v_scale", DType::F32, {}, floats({0.5f})}};
    for (const char* name : {"l.self_attn.k_proj", "l.self_attn.v_proj"}) {
      const std::string module = name;
      tensors.push_back({module + ".weight", DType::F8_E4M3, {16, 128}, ""});
      tensors.push_back({module + ".weight_scale", DType::F32, {}, floats({0.5f})});
      tensors.push_back({module + ".input_scale", DType::F32, {}, floats({0.125f})});
    }
    return tensors;
  }
  Json modelopt_config(const Json& cache) const {
    return {{"quantization_config",
             {{"quant_method", "modelopt"}, {"quant_algo", "FP8"}, {"kv_cache_scheme", cache}}}};
  }

  test::ScratchFolder folder_;
};

std::string all(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

using Names = std::vector<std::string>;

TEST_F(SideTensorsTest, WhereNothingChangesEverythingStays) {
  std::vector<TestTensor> tensors = ct_tensors();
  tensors.push_back({"l.self_attn.q_scale", DType::F32, {2, 1, 1}, floats({1.0f, 2.0f})});
  tensors.push_back({"l.o_proj.weight_zero_point", DType::I8, {1}, std::string(1, '\0')});
  Json config = ct_config();
  config["quantization_config"]["kv_cache_scheme"]["strategy"] = "attn_head";
  source(tensors, config);
  const ConvertReport report = convert_to("out", {Recipe::fp8_tensor, Dialect::compressed_tensors});
  EXPECT_EQ(test::read_text(folder_ / "source" / "config.json"),
            test::read_text(folder_ / "out" / "config.json"));
  EXPECT_EQ(names_of("source"), names_of("out"));
  for (const std::string& name : names_of("out")) {
    EXPECT_TRUE(part(Checkpoint::open(folder_ / "source"), name) ==
                part(Checkpoint::open(folder_ / "out"), name))
        << name;
  }
  EXPECT_TRUE(report.warnings.empty()) << all(report.warnings);
}

TEST_F(SideTensorsTest, Fp8InputsAndCacheFromModelOptToCompressedTensors) {
  source(modelopt_tensors(),
         modelopt_config({{"dynamic", false}, {"num_bits", 8}, {"type", "float"}}));
  const ConvertReport report = convert_to("ct", {Recipe::fp8_tensor, Dialect::compressed_tensors});
  EXPECT_TRUE(report.warnings.empty()) << all(report.warnings);
  EXPECT_EQ(names_of("ct"), (Names{"l.self_attn.k_proj.input_scale", "l.self_attn.k_proj.weight",
                                   "l.self_attn.k_proj.weight_scale", "l.self_attn.k_scale",
                                   "l.self_attn.v_proj.input_scale", "l.self_attn.v_proj.weight",
                                   "l.self_attn.v_proj.weight_scale", "l.self_attn.v_scale"}));
  const Checkpoint ct = Checkpoint::open(folder_ / "ct");
  EXPECT_EQ(part_f32(ct, "l.self_attn.k_scale"), 0.25f);
  EXPECT_EQ(part_f32(ct, "l.self_attn.v_scale"), 0.5f);
  EXPECT_EQ(part_f32(ct, "l.self_attn.k_proj.input_scale"), 0.125f);  // amax / 448 in both
  EXPECT_EQ(ct.store().find("l.self_attn.k_scale")->info.shape, (std::vector<std::int64_t>{1}));
  const Json quantization = quantization_of("ct");
  for (const Json& said : {quantization["kv_cache_scheme"],
                           quantization["config_groups"]["group_0"]["input_activations"]}) {
    for (const auto& [key, value] : kFp8.items()) EXPECT_EQ(said[key], value) << key;
  }
}

TEST_F(SideTensorsTest, CacheFromCompressedTensorsToModelOpt) {
  source(ct_tensors(), ct_config());
  const ConvertReport report = convert_to("mo", {Recipe::nvfp4, Dialect::modelopt});
  EXPECT_EQ(all(report.warnings),
            "dropped input scales (2, such as \"l.self_attn.k_proj.input_scale\"): nvfp4 in "
            "modelopt has none of this kind\n");
  const Checkpoint mo = Checkpoint::open(folder_ / "mo");
  EXPECT_EQ(part_f32(mo, "l.self_attn.k_proj.k_scale"), 0.25f);
  EXPECT_EQ(part_f32(mo, "l.self_attn.v_proj.v_scale"), 0.5f);
  EXPECT_TRUE(mo.store().find("l.self_attn.k_proj.k_scale")->info.shape.empty());
  EXPECT_EQ(mo.store().find("l.self_attn.k_scale"), nullptr);
  EXPECT_EQ(mo.store().find("l.self_attn.k_proj.input_scale"), nullptr);
  EXPECT_EQ(quantization_of("mo")["kv_cache_scheme"]["num_bits"], 8);
  EXPECT_EQ(quantization_of("mo")["quant_algo"], "W4A16_NVFP4");
  const Json hf = Json::parse(test::read_text(folder_ / "mo" / "hf_quant_config.json"));
  EXPECT_EQ(hf["quantization"]["kv_cache_quant_algo"], "FP8");
  // And on from there: every reader of ours knows where it is.
  ConvertOptions options = options_for({Recipe::nvfp4, Dialect::compressed_tensors});
  EXPECT_TRUE(convert(folder_ / "mo", folder_ / "back", options).warnings.empty());
  EXPECT_EQ(part_f32(Checkpoint::open(folder_ / "back"), "l.self_attn.v_scale"), 0.5f);
}

TEST_F(SideTensorsTest, AnotherRecipeInTheSameDialectKeepsTheCacheAndDropsInputs) {
  source(ct_tensors(), ct_config());
  const ConvertReport report = convert_to("mx", {Recipe::mxfp4, Dialect::compressed_tensors});
  EXPECT_EQ(all(report.warnings),
            "dropped input scales (2, such as \"l.self_attn.k_proj.input_scale\"): mxfp4 in "
            "compressed-tensors has none of this kind\n");
  EXPECT_EQ(names_of("mx"),
            (Names{"l.self_attn.k_proj.weight_packed", "l.self_attn.k_proj.weight_scale",
                   "l.self_attn.k_scale", "l.self_attn.v_proj.weight_packed",
                   "l.self_attn.v_proj.weight_scale", "l.self_attn.v_scale"}));
  EXPECT_EQ(quantization_of("mx")["kv_cache_scheme"], kFp8);
  EXPECT_TRUE(quantization_of("mx")["config_groups"]["group_0"]["input_activations"].is_null());
}

TEST_F(SideTensorsTest, DialectsThatCannotSayThemDropThem) {
  Json config = ct_config();
  config["model_type"] = "llama";
  source(ct_tensors(), config);
  for (const Target& target :
       {Target{Recipe::fp8_128x128, Dialect::deepseek}, Target{Recipe::bf16, Dialect::plain}}) {
    SCOPED_TRACE(test::name_of(target));
    const ConvertReport report = convert_to("out", target);
    EXPECT_EQ(report.warnings.size(), 2u);
    EXPECT_NE(all(report.warnings)
                  .find("dropped scales of the key and value cache (2, such as "
                        "\"l.self_attn.k_scale\")"),
              std::string::npos);
    for (const std::string& name : names_of("out")) {
      EXPECT_TRUE(name.ends_with(".weight") || name.ends_with(".weight_scale_inv")) << name;
    }
    EXPECT_EQ(test::read_text(folder_ / "out" / "config.json").find("kv_cache"), std::string::npos);
    std::uint64_t bytes = 0;
    for (const ConvertedTensor& tensor : report.tensors) {
      bytes += tensor.bytes;
      if (!tensor.name.ends_with("_scale")) continue;
      EXPECT_EQ(tensor.bytes, 0u);
      EXPECT_TRUE(tensor.reason.starts_with("dropped: ")) << tensor.reason;
    }
    EXPECT_EQ(report.bytes, bytes);
  }
}

TEST_F(SideTensorsTest, SchemesThatDialectsDoNotShareAreDroppedWhole) {
  // ModelOpt's NVFP4 cache, one scale for both of AutoFP8, a scale a head.
  source(modelopt_tensors(), modelopt_config("NVFP4"));
  EXPECT_EQ(convert_to("ct", {Recipe::fp8_tensor, Dialect::compressed_tensors}).warnings.size(),
            1u);
  EXPECT_TRUE(quantization_of("ct")["kv_cache_scheme"].is_null());
  EXPECT_EQ(Checkpoint::open(folder_ / "ct").store().find("l.self_attn.k_scale"), nullptr);
  // Within the dialect it stays.
  EXPECT_EQ(convert_to("mo", {Recipe::nvfp4, Dialect::modelopt}).warnings.size(), 1u);  // inputs
  EXPECT_EQ(quantization_of("mo")["kv_cache_scheme"], "NVFP4");
  EXPECT_EQ(part_f32(Checkpoint::open(folder_ / "mo"), "l.self_attn.k_proj.k_scale"), 0.25f);

  std::vector<TestTensor> tensors = fp8_layer("l.self_attn.k_proj", 0.25f);
  tensors.push_back({"l.self_attn.kv_scale", DType::F32, {1}, floats({0.5f})});
  source(tensors, {{"quantization_config",
                    {{"quant_method", "fp8"},
                     {"activation_scheme", "static"},
                     {"kv_cache_scheme", "static"}}}});
  EXPECT_EQ(all(convert_to("ct", {Recipe::fp8_tensor, Dialect::compressed_tensors}).warnings),
            "dropped scales of the key and value cache (\"l.self_attn.kv_scale\"): "
            "compressed-tensors cannot say them\n");
  EXPECT_EQ(part_f32(Checkpoint::open(folder_ / "ct"), "l.self_attn.k_proj.input_scale"), 0.25f);

  tensors = ct_tensors();
  tensors.back() = {"l.self_attn.v_scale", DType::F32, {2, 1, 1}, floats({1.0f, 2.0f})};
  source(tensors, ct_config());
  convert_to("mo", {Recipe::nvfp4, Dialect::modelopt});
  for (const std::string& name : names_of("mo")) {
    EXPECT_TRUE(name.find("k_scale") == std::string::npos) << name;  // both go, or none
  }
  EXPECT_FALSE(quantization_of("mo").contains("kv_cache_scheme"));
}

TEST_F(SideTensorsTest, InputScalesGoOutForAllWeightsOfARecipeOrForNone) {
  std::vector<TestTensor> tensors = ct_tensors();
  tensors.erase(tensors.begin() + 2);  // the first layer's
  for (TestTensor& t : fp8_layer("l.o_proj", 1.0f)) tensors.push_back(std::move(t));
  source(tensors, ct_config());
  const ConvertReport report =
      convert_to("out", {Recipe::mxfp8_e4m3, Dialect::compressed_tensors}, {"l.self_attn.*"});
  EXPECT_EQ(all(report.warnings),
            "dropped input scales (\"l.o_proj.input_scale\"): mxfp8_e4m3 in compressed-tensors has "
            "none of this kind\n"
            "dropped input scales (\"l.self_attn.v_proj.input_scale\"): other weights in "
            "fp8_tensor have none\n");
  for (const std::string& name : names_of("out")) {
    EXPECT_EQ(name.find("input_scale"), std::string::npos) << name;
  }
}

TEST_F(SideTensorsTest, ZeroPointsOfZeroAndScalesWithoutWeightsAreNotLeftBehind) {
  std::vector<TestTensor> tensors = ct_tensors();
  tensors.push_back({"l.self_attn.k_proj.weight_zero_point", DType::I8, {1}, std::string(1, '\0')});
  tensors.push_back({"l.o_proj.weight", DType::BF16, {16, 128}, ""});
  tensors.push_back({"l.o_proj.output_scale", DType::F32, {1}, floats({1.0f})});
  tensors.push_back({"vision.input_scale", DType::F32, {1}, floats({-1.0f})});  // the model's own
  source(tensors, ct_config());
  const ConvertReport report = convert_to("out", {Recipe::mxfp4, Dialect::compressed_tensors});
  EXPECT_EQ(report.warnings.size(), 3u) << all(report.warnings);
  for (const std::string& name : names_of("out")) {
    EXPECT_TRUE(name.ends_with("weight_packed") || name.ends_with("weight_scale") ||
                name.ends_with("k_scale") || name.ends_with("v_scale") ||
                name == "l.o_proj.weight" || name == "vision.input_scale")
        << name;
  }
  EXPECT_EQ(part_f32(Checkpoint::open(folder_ / "out"), "vision.input_scale"), -1.0f);
}

TEST_F(SideTensorsTest, InputsOfSomeWeightsStayWhereNothingChanges) {
  std::vector<TestTensor> tensors;
  for (const std::string name : {"a", "b"}) {
    tensors.push_back({name + ".weight_packed", DType::U8, {4, 16}, ""});
    tensors.push_back({name + ".weight_scale", DType::F8_E4M3, {4, 2}, ""});
    tensors.push_back({name + ".weight_global_scale", DType::F32, {1}, floats({8.0f})});
  }
  tensors.push_back({"a.input_global_scale", DType::F32, {1}, floats({16.0f})});
  source(tensors, nullptr);
  EXPECT_TRUE(convert_to("ct", {Recipe::nvfp4, Dialect::compressed_tensors}).warnings.empty());
  EXPECT_EQ(names_of("ct"), names_of("source"));
  const ConvertReport report = convert_to("mo", {Recipe::nvfp4, Dialect::modelopt});
  EXPECT_EQ(all(report.warnings),
            "dropped input scales (\"a.input_global_scale\"): other weights in nvfp4 have none\n");
  EXPECT_EQ(Checkpoint::open(folder_ / "mo").store().find("a.input_scale"), nullptr);
}

TEST_F(SideTensorsTest, AStaleDescriptionInsideTheConfigurationGoes) {
  source(ct_tensors(), {{"text_config", ct_config()}, {"compression_config", nullptr}});
  convert_to("out", {Recipe::bf16, Dialect::plain});
  EXPECT_EQ(Json::parse(test::read_text(folder_ / "out" / "config.json")),
            Json({{"text_config", Json::object()}, {"torch_dtype", "bfloat16"}}));
}

TEST_F(SideTensorsTest, ScalesOfMatricesAndActivationsThatMeanNothingAreRefused) {
  struct Case {
    const char* tensor;
    Json config;
    std::vector<TestTensor> tensors;
  };
  const auto factor = [](const char* name) { return TestTensor{name, DType::F32, {1}, ""}; };
  const Json ct = ct_config();
  const Json fp8 = {{"quantization_config", {{"quant_method", "fp8"}}}};
  const std::vector<Case> cases = {
      {"a.weight_scale", ct, {{"a.weight", DType::F8_E4M3, {4, 64}, ""}, factor("a.weight_scale")}},
      {"a.input_scale",
       ct,
       {{"a.weight", DType::F8_E4M3, {4, 64}, ""},
        {"a.weight_scale", DType::F32, {1}, floats({1.0f})},
        factor("a.input_scale")}},
      {"a.weight_scale_inv",
       fp8,
       {{"a.weight", DType::F8_E4M3, {4, 64}, ""}, factor("a.weight_scale_inv")}},
      {"a.weight_scale_2",
       test::modelopt_config(),
       {{"a.weight", DType::U8, {4, 16}, ""},
        {"a.weight_scale", DType::F8_E4M3, {4, 2}, ""},
        factor("a.weight_scale_2")}},
      {"a.weight_global_scale",
       nullptr,
       {{"a.weight_packed", DType::U8, {4, 16}, ""},
        {"a.weight_scale", DType::F8_E4M3, {4, 2}, ""},
        factor("a.weight_global_scale")}},
      {"l.self_attn.k_scale",
       ct,
       {{"l.self_attn.k_proj.weight", DType::F8_E4M3, {4, 64}, ""},
        {"l.self_attn.k_proj.weight_scale", DType::F32, {1}, floats({1.0f})},
        factor("l.self_attn.k_scale")}},
  };
  for (Case c : cases) {
    for (const float scale : {0.0f, -1.0f, INFINITY, -INFINITY, NAN}) {
      SCOPED_TRACE(c.tensor + std::string(" = ") + std::to_string(scale));
      // One of 0 is of inputs that calibration never saw (unused_inputs_test.cpp).
      if (scale == 0 && std::string_view(c.tensor) == "a.input_scale") continue;
      c.tensors.back().data = floats({scale});
      source(c.tensors, c.config);
      // To another dialect, to another recipe, and as it is.
      for (const Target& target : {Target{Recipe::nvfp4, Dialect::modelopt},
                                   Target{Recipe::nvfp4, Dialect::compressed_tensors},
                                   Target{Recipe::bf16, Dialect::plain}}) {
        expect_error(ErrorCode::corrupt_file, c.tensor, "must be finite and above 0",
                     [&] { convert_to("out", target); });
      }
      EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
      EXPECT_NE(Checkpoint::open(folder_ / "source").tensors().size(), 0u);  // still to look at
    }
  }
}

TEST_F(SideTensorsTest, NegativeBlockScalesAreRefusedAndZeroIsNot) {
  std::string bytes(8, '\x38');  // 1.0
  const auto nvfp4 = [&](char scale, Dialect dialect) {
    bytes[5] = scale;
    source({{"a.weight_packed", DType::U8, {4, 16}, ""},
            {"a.weight_scale", DType::F8_E4M3, {4, 2}, bytes},
            {"a.weight_global_scale", DType::F32, {1}, floats({8.0f})}},
           nullptr);
    convert_to("out", {dialect == Dialect::plain ? Recipe::bf16 : Recipe::nvfp4, dialect});
  };
  const auto blocks = [&](float scale, const Target& target) {
    source({{"a.weight", DType::F8_E4M3, {4, 256}, ""},
            {"a.weight_scale_inv", DType::F32, {1, 2}, floats({1.0f, scale})}},
           nullptr);
    convert_to("out", target);
  };
  for (const Dialect dialect : {Dialect::plain, Dialect::modelopt}) {
    expect_error(ErrorCode::corrupt_file, "a.weight_scale", "scale 5 is -1.0",
                 [&] { nvfp4('\xb8', dialect); });
    nvfp4('\x00', dialect);
  }
  for (const Target& target : {Target{Recipe::bf16, Dialect::plain},
                               Target{Recipe::fp8_128x128, Dialect::compressed_tensors}}) {
    expect_error(ErrorCode::corrupt_file, "a.weight_scale_inv", "scale 1 is -0.5",
                 [&] { blocks(-0.5f, target); });
    blocks(0.0f, target);  // amax / 448 of a block of zeros
  }
}

}  // namespace
}  // namespace blockscale
