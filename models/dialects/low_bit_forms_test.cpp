// Weights of few bits where nothing, or something else than a quantization_config, says what they
// are: read where that is certain, refused by name elsewhere.
#include "models/dialects/low_bit_forms.h"

#include <gtest/gtest.h>

#include <cmath>

#include "models/dialects/swizzled_testing.h"

namespace blockscale {
namespace {

using test::expect_error;
using test::f32_tensor;
using test::floats;
using test::Json;
using test::part;
using test::part_f32;
using test::TestTensor;
using test::values_of;

class LowBitFormsTest : public test::DialectTest {
 protected:
  void write(const std::vector<TestTensor>& tensors, const Json& config = nullptr,
             const std::map<std::string, std::string>& metadata = {{"format", "pt"}}) {
    std::filesystem::remove_all(folder_ / "model");
    std::filesystem::create_directories(folder_ / "model");
    test::write_store(folder_ / "model" / "model.safetensors", tensors, metadata);
    if (!config.is_null()) test::write_text(folder_ / "model" / "config.json", config.dump());
  }
  /// Opening and converting say so, and nothing is written.
  void expect_refused(const std::string& argument, const std::string& reason,
                      ErrorCode code = ErrorCode::unsupported) {
    SCOPED_TRACE(reason);
    std::filesystem::remove_all(folder_ / "out");
    expect_error(code, argument, reason, [&] { Checkpoint::open(folder_ / "model"); });
    for (const Recipe recipe : {Recipe::bf16, Recipe::nvfp4}) {
      expect_error(code, argument, reason, [&] { converted(recipe, default_dialect(recipe)); });
    }
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
  }
  std::string config_path() const { return (folder_ / "model" / "config.json").string(); }
  std::string file() const { return (folder_ / "model" / "model.safetensors").string(); }
};

std::vector<float> codes_as(const std::string& codes, int exponent_bits, int bias_more = 0) {
  std::vector<float> values;
  for (const char code : codes) {
    values.push_back(std::ldexp(
        test::small_float(static_cast<unsigned char>(code), exponent_bits, 7 - exponent_bits),
        -bias_more));
  }
  return values;
}

TEST_F(LowBitFormsTest, BareFp8IsWidened) {
  struct Kind {
    DType dtype;
    int exponent_bits, bias_more;
  };
  for (const Kind kind : {Kind{DType::F8_E4M3, 4, 0}, Kind{DType::F8_E5M2, 5, 0},
                          Kind{DType::F8_E4M3FNUZ, 4, 1}, Kind{DType::F8_E5M2FNUZ, 5, 1}}) {
    SCOPED_TRACE(dtype_name(kind.dtype));
    const TestTensor weight = {"a.weight", kind.dtype, {4, 32}, ""};
    const TestTensor bias = {"a.bias", kind.dtype, {4}, ""};
    const TestTensor stack = {"p", kind.dtype, {2, 3, 8}, ""};
    write({weight, bias, stack, f32_tensor("norm.weight", {8}, 1)});
    EXPECT_EQ(Checkpoint::open(folder_ / "model").dialect(), Dialect::plain);
    for (const Recipe recipe : {Recipe::bf16, Recipe::f16, Recipe::f32}) {
      const Checkpoint plain = converted(recipe, Dialect::plain);
      for (const TestTensor& tensor : {weight, bias, stack}) {
        EXPECT_EQ(plain.find(tensor.name)->recipe, recipe);
        EXPECT_EQ(values_of(plain, tensor.name),
                  codes_as(test::test_bytes(tensor), kind.exponent_bits, kind.bias_more));
      }
      EXPECT_EQ(plain.find("norm.weight")->dtype, DType::F32);
    }
    const auto wide = compare(folder_ / "model", folder_ / "out");
    EXPECT_EQ(wide.tensors.size(), 4u);
    for (const TensorComparison& each : wide.tensors) {
      EXPECT_EQ(each.status, ComparisonStatus::equal) << each.name;
    }
  }
}

TEST_F(LowBitFormsTest, BareFp8IsQuantizedAsOtherFloatsAre) {
  const TestTensor weight = {"l.q_proj.weight", DType::F8_E4M3, {16, 64}, ""};
  write({weight,
         {"embed_tokens.weight", DType::F8_E4M3, {16, 64}, ""},
         {"norm.weight", DType::F8_E4M3, {64}, ""}});
  const Checkpoint ct = converted(Recipe::nvfp4, Dialect::compressed_tensors);
  EXPECT_EQ(ct.find("l.q_proj.weight")->recipe, Recipe::nvfp4);
  // What stays is in a dtype that readers of quantized checkpoints take for no damage.
  EXPECT_EQ(ct.find("embed_tokens.weight")->dtype, DType::BF16);
  EXPECT_EQ(ct.find("norm.weight")->dtype, DType::BF16);
  write({{weight.name, DType::F32, {16, 64}, floats(codes_as(test::test_bytes(weight), 4))}});
  const std::string packed = part(ct, "l.q_proj.weight_packed");
  EXPECT_EQ(part(converted(Recipe::nvfp4, Dialect::compressed_tensors), "l.q_proj.weight_packed"),
            packed);
}

TEST_F(LowBitFormsTest, NansOfBareFp8AreRefused) {
  for (const auto& [dtype, code] :
       {std::pair(DType::F8_E4M3, '\x7F'), std::pair(DType::F8_E5M2, '\x7C'),
        std::pair(DType::F8_E4M3FNUZ, '\x80'), std::pair(DType::F8_E5M2FNUZ, '\x80')}) {
    std::string bytes(64, '\x10');
    bytes[33] = code;
    write({{"a.weight", dtype, {2, 32}, bytes}});
    expect_error(ErrorCode::nonfinite, "a.weight", "holds NaN or infinity at [1, 1]",
                 [&] { converted(Recipe::bf16, Dialect::plain); });
  }
}

TEST_F(LowBitFormsTest, Fp8BesideAScaleIsNotBare) {
  const TestTensor weight = {"a.weight", DType::F8_E4M3, {2, 32}, ""};
  for (const char* name : {"a.scale", "a.w_scale", "a.rescale", "a.scaling", "a.weight_my_scale"}) {
    const TestTensor scale = {name, DType::F32, {}, floats({0.5f})};
    write({weight, scale});
    expect_refused(name, "scales a.weight (F8_E4M3) in a way that is not known here");
  }
  write({{"p", DType::F8_E5M2, {2, 3, 32}, ""}, {"p_my_scales", DType::F32, {2}, ""}});
  expect_refused("p_my_scales", "scales p (F8_E5M2)");
  write({{"a.weight", DType::F8_E4M3FNUZ, {2, 32}, ""}, {"a.k_scaler", DType::F32, {}, ""}});
  expect_refused("a.k_scaler", "scales a.weight (F8_E4M3FNUZ)");
  // A scale of another module's is none of this weight's.
  write({weight, {"a.b.scale", DType::F32, {}, floats({0.5f})}});
  EXPECT_EQ(converted(Recipe::bf16, Dialect::plain).find("a.weight")->dtype, DType::BF16);
}

TEST_F(LowBitFormsTest, CodesInIntegersAreRefused) {
  for (const DType dtype : {DType::I8, DType::U8, DType::U16, DType::U32, DType::F4, DType::F6_E2M3,
                            DType::F6_E3M2, DType::F8_E8M0}) {
    write({{"a.weight", dtype, {4, 32}, ""}, f32_tensor("b.weight", {4, 32}, 1)});
    expect_refused("a.weight", "holds " + std::string(dtype_name(dtype)) + ", codes of");
  }
  // Neither vectors nor other names are weights, and 64 bits are no few.
  write({{"a.weight", DType::I64, {4, 32}, ""},
         {"mask", DType::U8, {4, 32}, ""},
         {"table.weight", DType::I8, {32}, ""},
         {"none.weight", DType::U8, {0, 32}, ""},
         f32_tensor("b.weight", {4, 32}, 1)});
  const Checkpoint plain = converted(Recipe::bf16, Dialect::plain);
  EXPECT_EQ(plain.find("mask")->dtype, DType::U8);
}

TEST_F(LowBitFormsTest, MlxIsNamed) {
  const std::vector<TestTensor> tensors = {{"a.weight", DType::U32, {4, 8}, ""},
                                           {"a.scales", DType::BF16, {4, 1}, ""},
                                           {"a.biases", DType::BF16, {4, 1}, ""}};
  write(tensors);
  expect_refused("a.weight", "are a weight as MLX quantizes it");
  const Json words = {{"group_size", 64}, {"bits", 4}, {"mode", "affine"}};
  write(tensors, {{"model_type", "llama"}, {"quantization", words}});
  expect_refused(config_path(), "quantization says");
  write(tensors, {{"quantization", words}, {"quantization_config", words}});
  expect_refused(config_path(), "as MLX does");
  write(tensors, {{"quantization_config", words}});
  expect_refused(config_path(), "as MLX does");
  write(tensors, {{"text_config", {{"quantization", words}}}});
  expect_refused(config_path(), "text_config.quantization says");
  write({{"a.weight", DType::U32, {4, 8}, ""}, {"a.scales", DType::U8, {4, 1}, ""}});
  expect_refused("a.weight", "MLX");  // its mxfp4
  write({f32_tensor("a.weight", {4, 32}, 1)}, {{"quantization", Json::object()}});
  EXPECT_NO_THROW(converted(Recipe::bf16, Dialect::plain));
}

TEST_F(LowBitFormsTest, OtherProducersAreNamed) {
  const TestTensor weight = {"a.weight", DType::F8_E4M3, {2, 32}, ""};
  const TestTensor plain = f32_tensor("b.weight", {2, 32}, 1);
  const auto named = [&](const TestTensor& mark, const std::string& producer) {
    write({weight, mark, plain});
    expect_refused(mark.name, "as " + producer + " quantizes it");
  };
  named({"a.weights_scaling_factor", DType::F32, {1}, ""}, "TensorRT-LLM");
  named({"a.activation_scaling_factor", DType::F32, {1}, ""}, "TensorRT-LLM");
  named({"a.prequant_scaling_factor", DType::F16, {32}, ""}, "TensorRT-LLM");
  named({"c.qweight", DType::I32, {4, 32}, ""}, "GPTQ, AWQ or Nunchaku");
  named({"c.wscales", DType::BF16, {4, 32}, ""}, "Nunchaku");
  named({"c.weight._data", DType::I8, {4, 32}, ""}, "optimum-quanto");
  named({"c.W_q", DType::U8, {4, 32}, ""}, "HQQ");
  named({"c.SCB", DType::F32, {4}, ""}, "bitsandbytes");
  named({"c.weight.absmax", DType::U8, {4}, ""}, "bitsandbytes");
  named({"c.weight_packed", DType::I32, {4, 4}, ""}, "compressed-tensors");
  write({plain}, {{"quantization", {{"quant_algo", "FP8"}, {"kv_cache_quant_algo", nullptr}}}});
  expect_refused(config_path(), "as TensorRT-LLM does");
  write({plain}, {{"quantization", {{"quant_algo", nullptr}, {"group_size", 128}}}});
  EXPECT_NO_THROW(converted(Recipe::bf16, Dialect::plain));
  Json both = test::deepseek_config();  // which says how its weights are stored
  both["quantization"] = {{"quant_algo", "FP8"}};
  both["model_type"] = "llama";
  write(
      {{"a.weight", DType::F8_E4M3, {4, 128}, ""}, {"a.weight_scale_inv", DType::F32, {1, 1}, ""}},
      both);
  EXPECT_NO_THROW(converted(Recipe::bf16, Dialect::plain));
  const Json result = Json::parse(test::read_text(folder_ / "out" / "config.json"));
  EXPECT_FALSE(result.contains("quantization"));  // it is that no more
}

TEST_F(LowBitFormsTest, MistralsFp8HasOneScaleAndPerhapsOneOfItsInputs) {
  const TestTensor weight = {"layers.0.attention.wq.weight", DType::F8_E4M3, {4, 32}, ""};
  const auto scale = [&](const char* name, std::vector<std::int64_t> shape, DType dtype,
                         const std::string& bytes) {
    return TestTensor{"layers.0.attention.wq." + std::string(name), dtype, std::move(shape), bytes};
  };
  const std::string half_bf16("\x00\x3F", 2);
  std::vector<float> expected = codes_as(test::test_bytes(weight), 4);
  for (float& value : expected) value *= 0.5f;
  for (const bool narrow : {false, true}) {
    write({weight, narrow ? scale("qscale_weight", {}, DType::BF16, half_bf16)
                          : scale("qscale_weight", {1}, DType::F32, floats({0.5f}))});
    EXPECT_EQ(values_of(converted(Recipe::f32, Dialect::plain), weight.name), expected);
    const Checkpoint ct = converted(Recipe::fp8_tensor, Dialect::compressed_tensors);
    EXPECT_EQ(part(ct, weight.name), test::test_bytes(weight));
    EXPECT_EQ(report_.activations[0], "fp8_tensor: dynamic, as in the source");
  }
  write({weight,
         scale("qscale_weight", {}, DType::F32, floats({0.5f})),
         scale("qscale_act", {}, DType::F32, floats({0.25f})),
         {"layers.0.attention.k_fake_quantizer.qscale_act", DType::F32, {}, floats({2.0f})},
         {"norm.weight", DType::BF16, {32}, ""}});
  const Checkpoint mo = converted(Recipe::fp8_tensor, Dialect::modelopt);
  EXPECT_EQ(part_f32(mo, "layers.0.attention.wq.input_scale"), 0.25f);
  EXPECT_EQ(mo.find("layers.0.attention.k_fake_quantizer.qscale_act"), nullptr);
  EXPECT_EQ(report_.warnings.size(), 1u);  // the cache's scale
  const auto params = folder_ / "out" / "params.json";
  test::write_text(folder_ / "model" / "params.json",
                   R"({"dim": 32, "quantization": {"qformat_weight": "fp8_e4m3"}})");
  converted(Recipe::bf16, Dialect::plain);
  EXPECT_EQ(Json::parse(test::read_text(params)), (Json{{"dim", 32}}));
  std::filesystem::remove_all(folder_ / "out");  // without a config.json it is not replaced
  test::write_text(folder_ / "model" / "params.json", R"({"dim":32})");
  converted(Recipe::bf16, Dialect::plain);
  EXPECT_EQ(test::read_text(params), R"({"dim":32})");  // copied
  std::filesystem::remove_all(folder_ / "out");
  write({weight, scale("qscale_weight", {4}, DType::F32, floats({1.0f, 2.0f, 3.0f, 4.0f}))});
  EXPECT_EQ(Checkpoint::open(folder_ / "model").find(weight.name)->recipe, Recipe::fp8_row);
  write({weight, scale("qscale_weight", {2, 2}, DType::F32, "")});
  expect_refused(weight.name, "its scales", ErrorCode::corrupt_file);
  write({weight,
         scale("qscale_weight", {}, DType::F32, floats({0.5f})),
         {"layers.0.attention.wk.weight", DType::F8_E4M3, {4, 32}, ""}});
  expect_refused("layers.0.attention.wk.weight", "has no scales", ErrorCode::corrupt_file);
}

TEST_F(LowBitFormsTest, HeadersThatDeclareQuantizedWeightsAreRefused) {
  const std::vector<TestTensor> tensors = {f32_tensor("a.weight", {4, 32}, 1)};
  for (const char* key : {"quantization_config", "quantization", "quant_method", "quantized_by",
                          "svdquant", "gptq_bits", "QuantFormat"}) {
    write(tensors, nullptr, {{key, R"({"method": "svdquant"})"}});
    expect_refused(file(), "metadata \"" + std::string(key) + "\"");
  }
  for (const char* nothing : {"", "none", "None", "null", "false", "{}"}) {
    write(tensors, nullptr, {{"quantization", nothing}, {"format", "pt"}});
    EXPECT_NO_THROW(converted(Recipe::bf16, Dialect::plain));
  }
}

TEST_F(LowBitFormsTest, HeadersMustSayWhatTheConfigurationSays) {
  const std::vector<TestTensor> tensors = {{"a.weight", DType::F8_E4M3, {4, 128}, ""},
                                           {"a.weight_scale_inv", DType::F32, {1, 1}, ""}};
  const Json config = test::deepseek_config();
  const std::string said = config["quantization_config"].dump();
  write(tensors, config, {{"quantization_config", said}, {"quantized_by", "somebody"}});
  EXPECT_NO_THROW(converted(Recipe::bf16, Dialect::plain));
  write(tensors, config, {{"quantization_config", R"({"quant_method": "modelopt"})"}});
  expect_refused(config_path(), "which is not what this file says");
  write(tensors, config, {{"quantization_config", "{"}});
  expect_refused(config_path(), "which is not what this file says");
  write(tensors, config, {{"_quantization_metadata", R"({"layers": {}})"}});
  expect_refused(config_path(), "readable is one of them");
  write(tensors, nullptr,
        {{"_quantization_metadata", R"({"layers": {}})"}, {"quantization_config", said}});
  expect_refused(file(), "in which order codes and scales lie");
  write(tensors, nullptr, {{"quantization_config", said}});
  expect_refused(file(), "readable only where config.json says the same");
}

TEST_F(LowBitFormsTest, FloatsThatStayAreSaidInTheSummary) {
  write({{"a.weight", DType::F64, {4, 8}, std::string(256, '\0')},
         {"b.weight", DType::F64, {4, 8}, std::string(256, '\0')},
         {"c.weight", DType::F8_E4M3, {4, 32}, ""},
         {"ids", DType::I64, {4}, ""},
         f32_tensor("d.weight", {4, 32}, 1)});
  ConvertOptions options = test::options_for({Recipe::bf16, Dialect::plain});
  options.exclude = {"c.*"};
  const ConvertReport report = convert(folder_ / "model", folder_ / "out", options);
  const std::vector<std::string> expected = {
      "2 tensors stay in F64, such as \"a.weight\": neither rounded nor quantized",
      "1 tensor stays in F8_E4M3 (\"c.weight\"): neither rounded nor quantized"};
  EXPECT_EQ(report.warnings, expected);
}

}  // namespace
}  // namespace blockscale
