// Conversions of a small model: bytes of every recipe and dialect, configuration, selection.
#include <gtest/gtest.h>

#include <cmath>

#include "models/convert/testing.h"

namespace blockscale {
namespace {

using test::contents;
using test::expect_error;
using test::Json;
using test::options_for;
using test::part;
using test::part_f32;
using test::Target;
using test::TestTensor;

class ConvertTest : public ::testing::Test {
 protected:
  void SetUp() override { test::write_checkpoint(folder_ / "plain", test::small_model(), config_); }
  ConvertReport convert_to(const std::string& source, const std::string& destination,
                           const ConvertOptions& options) {
    return convert(folder_ / source, folder_ / destination, options);
  }
  Json config_of(const std::string& name) const {
    return Json::parse(test::read_text(folder_ / name / "config.json"));
  }

  const Json config_ = {{"model_type", "mixtral"}, {"dtype", "float32"}, {"eps", 1e-06}};
  test::ScratchFolder folder_;
};

float amax_of(const std::vector<float>& values) {
  float amax = 0;
  for (const float value : values) amax = std::max(amax, std::fabs(value));
  return amax;
}

/// Expects that weight `name` of `result` holds what quantizing `values` as a whole to `recipe`
/// gives. `amax` is that of all weights that share a tensor scale. (What a reader says is not
/// enough: it cannot always tell that f32 scales are powers of two.)
void expect_quantized(const Checkpoint& result, Recipe recipe, const std::string& name,
                      const std::vector<float>& values, float amax, MxScaleMode mode) {
  const CheckpointTensor* tensor = result.find(name);
  ASSERT_NE(tensor, nullptr) << name;
  const ScaledTensorView view = resolved(result.view(*tensor), "view");
  const std::int64_t scale_size = format_traits(recipe_traits(view.recipe).scale).bits / 8;
  for (std::int64_t b = 0; b < view.batch; ++b) {
    const MatrixView matrix{values.data() + b * view.rows * view.k, Format::f32, view.rows, view.k};
    ScaledTensor expected(recipe, view.rows, view.k, ScaleLayout::row_major, 1, view.sense);
    QuantizeOptions options;
    options.mx_scale_mode = mode;
    if (view.recipe == Recipe::nvfp4) {
      // S = 2688 / amax as a divisor; amax / 2688 as a multiplier: each correctly rounded.
      const float factor =
          view.sense == TensorScaleSense::divisor ? 2688.0f / amax : amax / 2688.0f;
      EXPECT_EQ(*view.tensor_scale, factor) << name;
      *expected.view().tensor_scale = factor;
      options.scale_source = ScaleSource::given;
    } else if (view.recipe == Recipe::fp8_tensor) {
      const float of_matrix = view.batch == 1
                                  ? amax
                                  : amax_of({values.begin() + b * view.rows * view.k,
                                             values.begin() + (b + 1) * view.rows * view.k});
      *static_cast<float*>(expected.view().scales) = of_matrix / 448.0f;
      options.scale_source = ScaleSource::given;
    }
    quantize(matrix, expected.view(), options);
    const auto* stored_values = static_cast<const char*>(view.values) + b * view.value_batch_stride;
    const auto* stored_scales =
        static_cast<const char*>(view.scales) + b * view.scale_batch_stride * scale_size;
    EXPECT_EQ(std::memcmp(stored_values, expected.view().values,
                          static_cast<std::size_t>(view.value_batch_stride)),
              0)
        << name;
    EXPECT_EQ(std::memcmp(stored_scales, expected.view().scales,
                          static_cast<std::size_t>(view.scale_batch_stride * scale_size)),
              0)
        << name;
  }
}

/// Largest magnitude that sets the tensor scale of `name`: of q, k and v together.
float shared_amax(const Checkpoint& source, const std::string& name) {
  if (name.find("q_proj") == std::string::npos && name.find("k_proj") == std::string::npos &&
      name.find("v_proj") == std::string::npos) {
    return amax_of(test::values_of(source, name));
  }
  float amax = 0;
  // fp8 and NVFP4 siblings share where all but the rows agree: they do here.
  for (const char* sibling : {"q_proj", "k_proj", "v_proj"}) {
    amax = std::max(amax, amax_of(test::values_of(
                              source, std::string("model.layers.0.") + sibling + ".weight")));
  }
  return amax;
}

void expect_all_quantized(const Checkpoint& source, const Checkpoint& result, Recipe recipe) {
  const MxScaleMode mode = result.dialect() != Dialect::compressed_tensors ? MxScaleMode::ceil
                           : recipe == Recipe::mxfp8_e4m3                  ? MxScaleMode::even_e2m1
                                                                           : MxScaleMode::even;
  for (const std::string& name : test::small_model_linears()) {
    expect_quantized(result, recipe, name, test::values_of(source, name), shared_amax(source, name),
                     mode);
  }
}

TEST_F(ConvertTest, EveryRecipeInEveryDialectEqualsTheQuantizer) {
  const Checkpoint source = Checkpoint::open(folder_ / "plain");
  for (const Target& target : test::all_targets()) {
    SCOPED_TRACE(test::name_of(target));
    if (is_plain(target.recipe)) continue;
    ConvertOptions options = options_for(target);
    options.overwrite = true;
    const ConvertReport report = convert_to("plain", "result", options);
    const Checkpoint result = Checkpoint::open(folder_ / "result");
    EXPECT_EQ(result.dialect(), target.dialect);
    expect_all_quantized(source, result, target.recipe);
    EXPECT_EQ(part(result, "lm_head.weight"), part(source, "lm_head.weight"));
    EXPECT_EQ(part(result, "model.layers.0.v_proj.bias"),
              part(source, "model.layers.0.v_proj.bias"));
    EXPECT_EQ(report.tensors.size(), source.tensors().size());
    std::uint64_t bytes = 0;
    for (const auto& [name, entry] : result.store().tensors()) bytes += entry.info.bytes;
    EXPECT_EQ(report.bytes, bytes);
    EXPECT_EQ(config_of("result")["eps"], 1e-06);
  }
}

TEST_F(ConvertTest, ReadingAndWritingOneDialectIsByteIdentical) {
  for (const Target& target : test::all_targets()) {
    SCOPED_TRACE(test::name_of(target));
    if (is_plain(target.recipe)) continue;
    ConvertOptions options = options_for(target);
    options.overwrite = true;
    convert_to("plain", "once", options);
    const ConvertReport report = convert_to("once", "twice", options);
    // compressed-tensors does not say that f32 scales are powers of two: their values do.
    EXPECT_EQ(contents(folder_ / "once"), contents(folder_ / "twice"));
    EXPECT_EQ(report.source_bytes, report.bytes);
  }
}

TEST_F(ConvertTest, RequantizingGoesThroughTheF32Values) {
  for (const Target& from : test::all_targets()) {
    if (is_plain(from.recipe) && from.recipe != Recipe::bf16) continue;
    if (recipe_traits(from.recipe).block_rows % 128 != 0 && from.recipe != Recipe::mxfp4 &&
        from.recipe != Recipe::nvfp4) {
      continue;
    }
    SCOPED_TRACE("from " + test::name_of(from));
    ConvertOptions options = options_for(from);
    options.overwrite = true;
    convert_to("plain", "from", options);
    const Checkpoint source = Checkpoint::open(folder_ / "from");
    for (const Target& to : {Target{Recipe::nvfp4, Dialect::modelopt},
                             Target{Recipe::mxfp6_e2m3, Dialect::compressed_tensors},
                             Target{Recipe::fp8_128x128, Dialect::deepseek}}) {
      const RecipeTraits& t = recipe_traits(from.recipe);
      if (t.family == recipe_traits(to.recipe).family) continue;
      const bool keeps_blocks = from.recipe == Recipe::mxfp4 && to.recipe == Recipe::nvfp4;
      if (keeps_blocks) continue;  // mxfp4_test.cpp
      SCOPED_TRACE("to " + test::name_of(to));
      options = options_for(to);
      options.overwrite = true;
      convert_to("from", "to", options);
      expect_all_quantized(source, Checkpoint::open(folder_ / "to"), to.recipe);
    }
    options = options_for({Recipe::f32, Dialect::plain});
    options.overwrite = true;
    convert_to("from", "to", options);
    const Checkpoint result = Checkpoint::open(folder_ / "to");
    EXPECT_EQ(result.dialect(), Dialect::plain);
    for (const std::string& name : test::small_model_linears()) {
      EXPECT_EQ(test::values_of(result, name), test::values_of(source, name));
    }
    EXPECT_FALSE(config_of("to").contains("quantization_config"));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "to" / "hf_quant_config.json"));
  }
}

TEST_F(ConvertTest, BetweenDialectsOfOneRecipeOnlyTheTensorScaleChanges) {
  convert_to("plain", "ct", options_for({Recipe::nvfp4, Dialect::compressed_tensors}));
  const ConvertReport report =
      convert_to("ct", "mo", options_for({Recipe::nvfp4, Dialect::modelopt}));
  convert_to("mo", "back", options_for({Recipe::nvfp4, Dialect::compressed_tensors}));
  const Checkpoint ct = Checkpoint::open(folder_ / "ct");
  const Checkpoint mo = Checkpoint::open(folder_ / "mo");
  const Checkpoint back = Checkpoint::open(folder_ / "back");
  EXPECT_EQ(mo.dialect(), Dialect::modelopt);
  for (const char* layer : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
    const std::string module = std::string("model.layers.0.") + layer;
    EXPECT_EQ(part(mo, module + ".weight"), part(ct, module + ".weight_packed"));
    EXPECT_EQ(part(mo, module + ".weight_scale"), part(ct, module + ".weight_scale"));
    const float divisor = part_f32(ct, module + ".weight_global_scale");
    const float multiplier = part_f32(mo, module + ".weight_scale_2");
    EXPECT_EQ(multiplier, 1.0f / divisor);
    EXPECT_EQ(part_f32(back, module + ".weight_global_scale"), 1.0f / multiplier);
    EXPECT_EQ(part(back, module + ".weight_packed"), part(ct, module + ".weight_packed"));
  }
  const std::string stack = "model.layers.0.mlp.experts.up_proj";
  EXPECT_EQ(part(mo, stack), part(ct, stack + "_packed"));
  EXPECT_EQ(part(mo, stack + "_weight_scale"), part(ct, stack + "_scale"));
  EXPECT_EQ(part_f32(mo, stack + "_weight_scale_2"), 1.0f / part_f32(ct, stack + "_global_scale"));
  int reported = 0;
  for (const ConvertedTensor& tensor : report.tensors) {
    if (tensor.reason.find("rounded once") != std::string::npos) ++reported;
  }
  EXPECT_EQ(reported, 5);
}

TEST_F(ConvertTest, ScalesOfPowersOfTwoChangeTheirFormatExactly) {
  convert_to("plain", "bytes", options_for({Recipe::fp8_128x128_ue8m0, Dialect::deepseek}));
  convert_to("bytes", "floats", options_for({Recipe::fp8_128x128_pow2, Dialect::deepseek}));
  convert_to("floats", "again", options_for({Recipe::fp8_128x128_ue8m0, Dialect::deepseek}));
  convert_to("bytes", "ct", options_for({Recipe::fp8_128x128, Dialect::compressed_tensors}));
  EXPECT_EQ(contents(folder_ / "bytes"), contents(folder_ / "again"));
  const Checkpoint bytes = Checkpoint::open(folder_ / "bytes");
  const Checkpoint ct = Checkpoint::open(folder_ / "ct");
  EXPECT_EQ(bytes.find("model.layers.0.q_proj.weight")->recipe, Recipe::fp8_128x128_ue8m0);
  for (const std::string& name : test::small_model_linears()) {
    EXPECT_EQ(test::values_of(ct, name), test::values_of(bytes, name));
  }
  EXPECT_EQ(config_of("floats")["quantization_config"]["scale_fmt"], "ue8m0");
  EXPECT_FALSE(config_of("ct")["quantization_config"].contains("scale_fmt"));
}

TEST_F(ConvertTest, AScaleThatIsNoPowerOfTwoAsSaidIsRefused) {
  Json config = test::deepseek_config();
  config["quantization_config"]["scale_fmt"] = "ue8m0";
  test::write_checkpoint(folder_ / "ds",
                         {{"a.weight", DType::F8_E4M3, {8, 8}, ""},
                          {"a.weight_scale_inv", DType::F32, {1, 1}, test::floats({0.75f})}},
                         config);
  expect_error(ErrorCode::corrupt_file, "a.weight_scale_inv", "must be a power of two", [&] {
    convert_to("ds", "out", options_for({Recipe::fp8_128x128_ue8m0, Dialect::deepseek}));
  });
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

TEST_F(ConvertTest, NarrowScalesAreWidenedExactly) {
  const std::string scales("\x20\x3c\x80\x3f\xc0\x3f\x00\x40", 8);
  test::write_checkpoint(
      folder_ / "ct",
      {{"a.weight", DType::F8_E4M3, {4, 8}, ""}, {"a.weight_scale", DType::BF16, {4, 1}, scales}},
      test::compressed_tensors_config(
          "float-quantized", {{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}}));
  convert_to("ct", "same", options_for({Recipe::fp8_row, Dialect::compressed_tensors}));
  const Checkpoint same = Checkpoint::open(folder_ / "same");
  EXPECT_EQ(same.store().find("a.weight_scale")->info.dtype, DType::BF16);
  EXPECT_EQ(part(same, "a.weight_scale"), scales);
  convert_to("ct", "f32", options_for({Recipe::f32, Dialect::plain}));
  const Checkpoint ct = Checkpoint::open(folder_ / "ct");
  EXPECT_EQ(test::values_of(Checkpoint::open(folder_ / "f32"), "a.weight"),
            test::values_of(ct, "a.weight"));
}

TEST_F(ConvertTest, ConfigurationOfEachDialect) {
  const Json kept = {"lm_head", "model.layers.0.mlp.gate"};
  const auto check = [&](const Target& target) {
    ConvertOptions options = options_for(target);
    options.overwrite = true;
    convert_to("plain", "out", options);
    return config_of("out")["quantization_config"];
  };
  const Json ct = check({Recipe::nvfp4, Dialect::compressed_tensors});
  EXPECT_EQ(ct["quant_method"], "compressed-tensors");
  EXPECT_EQ(ct["quantization_status"], "compressed");
  EXPECT_EQ(ct["format"], "nvfp4-pack-quantized");
  EXPECT_EQ(ct["ignore"], kept);
  const Json expected_group = {{"targets", {"Linear"}},
                               {"format", "nvfp4-pack-quantized"},
                               {"weights",
                                {{"num_bits", 4},
                                 {"type", "float"},
                                 {"symmetric", true},
                                 {"strategy", "tensor_group"},
                                 {"dynamic", false},
                                 {"group_size", 16},
                                 {"scale_dtype", "torch.float8_e4m3fn"}}},
                               {"input_activations", nullptr},
                               {"output_activations", nullptr}};
  EXPECT_EQ(ct["config_groups"]["group_0"], expected_group);
  const Json block = check({Recipe::fp8_128x128_pow2, Dialect::compressed_tensors});
  EXPECT_EQ(block["config_groups"]["group_0"]["weights"]["block_structure"], Json({128, 128}));
  EXPECT_EQ(block["format"], "float-quantized");

  const Json deepseek = check({Recipe::fp8_128x128, Dialect::deepseek});
  EXPECT_EQ(deepseek, Json({{"quant_method", "fp8"},
                            {"fmt", "e4m3"},
                            {"activation_scheme", "dynamic"},
                            {"weight_block_size", {128, 128}},
                            {"modules_to_not_convert", kept}}));

  const Json modelopt = check({Recipe::nvfp4, Dialect::modelopt});
  EXPECT_EQ(modelopt["quant_method"], "modelopt");
  EXPECT_EQ(modelopt["quant_algo"], "W4A16_NVFP4");
  EXPECT_EQ(modelopt["ignore"], kept);
  EXPECT_FALSE(modelopt["config_groups"]["group_0"].contains("input_activations"));
  const Json hf = Json::parse(test::read_text(folder_ / "out" / "hf_quant_config.json"));
  EXPECT_EQ(hf["quantization"], Json({{"quant_algo", "W4A16_NVFP4"},
                                      {"kv_cache_quant_algo", nullptr},
                                      {"group_size", 16},
                                      {"exclude_modules", kept}}));

  EXPECT_TRUE(check({Recipe::bf16, Dialect::plain}).is_null());
  EXPECT_EQ(config_of("out")["dtype"], "bfloat16");
}

TEST_F(ConvertTest, APlainResultStatesItsDtypeAndKeepsNoThirdOne) {
  const auto typed = [](const char* name, DType dtype) {
    std::vector<std::int64_t> shape = {4};
    if (std::string(name).ends_with("proj.weight")) shape = {4, 32};
    const TensorInfo info = models::tensor_info(name, dtype, shape);
    return TestTensor{name, dtype, shape, std::string(info.bytes, '\x3F')};  // finite in all
  };
  const std::vector<TestTensor> tensors = {
      typed("l.q_proj.weight", DType::BF16), typed("l.norm.weight", DType::BF16),
      typed("l.bias", DType::F16), typed("l.router.scale", DType::F32)};
  const auto config_from = [&](const Json& config, Recipe recipe) {
    std::filesystem::remove_all(folder_ / "in");
    test::write_checkpoint(folder_ / "in", tensors, config);
    ConvertOptions options = options_for({recipe, Dialect::plain});
    options.overwrite = true;
    convert_to("in", "out", options);
    return config_of("out");
  };
  EXPECT_EQ(config_from({{"torch_dtype", "bfloat16"}}, Recipe::f16),
            Json({{"torch_dtype", "float16"}}));
  const Checkpoint out = Checkpoint::open(folder_ / "out");
  EXPECT_EQ(out.find("l.q_proj.weight")->dtype, DType::F16);
  EXPECT_EQ(out.find("l.norm.weight")->dtype, DType::F16);
  EXPECT_EQ(out.find("l.bias")->dtype, DType::F16);
  EXPECT_EQ(out.find("l.router.scale")->dtype, DType::F32);
  EXPECT_EQ(config_from({{"text_config", {{"dtype", "bfloat16"}, {"a", 1}}}, {"dtype", "bfloat16"}},
                        Recipe::f32),
            Json({{"text_config", {{"dtype", "float32"}, {"a", 1}}}, {"dtype", "float32"}}));
  EXPECT_EQ(config_from({{"model_type", "x"}}, Recipe::f16),
            Json({{"model_type", "x"}, {"torch_dtype", "float16"}}));
  EXPECT_EQ(config_from({{"dtype", nullptr}}, Recipe::f16), Json({{"dtype", "float16"}}));
}

TEST_F(ConvertTest, NumbersThatAreNoJsonStayInTheConfiguration) {
  test::write_text(folder_ / "plain" / "config.json",
                   R"({"model_type": "mixtral", "limit": [0.0, Infinity], "b": -Infinity,
                       "c": NaN, "NaN": "Infinity"})");
  convert_to("plain", "out", options_for({Recipe::nvfp4, Dialect::compressed_tensors}));
  const std::string text = test::read_text(folder_ / "out" / "config.json");
  for (const char* line : {"\"b\": -Infinity,", "\"c\": NaN,", "\"NaN\": \"Infinity\",",
                           "    0.0,\n    Infinity\n  ]"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
  EXPECT_EQ(Checkpoint::open(folder_ / "out").dialect(), Dialect::compressed_tensors);
}

TEST_F(ConvertTest, MixedRecipesInCompressedTensors) {
  ConvertOptions options = options_for({Recipe::nvfp4, Dialect::compressed_tensors});
  options.map = {{"*.o_proj", Recipe::mxfp8_e4m3}, {"*.k_proj", Recipe::bf16}};
  convert_to("plain", "out", options);
  const Checkpoint result = Checkpoint::open(folder_ / "out");
  EXPECT_EQ(result.find("model.layers.0.o_proj.weight")->recipe, Recipe::mxfp8_e4m3);
  EXPECT_EQ(result.find("model.layers.0.q_proj.weight")->recipe, Recipe::nvfp4);
  EXPECT_EQ(result.find("model.layers.0.k_proj.weight")->dtype, DType::BF16);
  const Json ct = config_of("out")["quantization_config"];
  EXPECT_EQ(ct["format"], "mixed-precision");
  const Json groups = ct["config_groups"];
  EXPECT_EQ(groups["group_0"]["format"], "nvfp4-pack-quantized");
  EXPECT_EQ(groups["group_0"]["targets"], Json({"model.layers.0.mlp.experts.up_proj",
                                                "model.layers.0.q_proj", "model.layers.0.v_proj"}));
  EXPECT_EQ(groups["group_1"]["targets"], Json::array({"model.layers.0.o_proj"}));
  EXPECT_EQ(ct["ignore"], Json({"lm_head", "model.layers.0.k_proj", "model.layers.0.mlp.gate"}));
  convert_to("out", "again", options_for({Recipe::nvfp4, Dialect::compressed_tensors}));
}

TEST_F(ConvertTest, CalibratedActivations) {
  Json scales = Json::object();
  for (const std::string& name : test::small_model_linears()) scales[name] = 4.0;
  scales["model.layers.0.q_proj.weight"] = 8.0;
  scales["of.no.weight"] = 1.0;
  const auto with_scales = [&](Dialect dialect) {
    ConvertOptions options = options_for({Recipe::nvfp4, dialect});
    test::write_text(folder_ / "scales.json", scales.dump());
    options.activation_scales = folder_ / "scales.json";
    options.overwrite = true;
    return options;
  };
  convert_to("plain", "ct", with_scales(Dialect::compressed_tensors));
  const Checkpoint ct = Checkpoint::open(folder_ / "ct");
  // Fused layers share the largest.
  EXPECT_EQ(part_f32(ct, "model.layers.0.k_proj.input_global_scale"), 2688.0f / 8.0f);
  EXPECT_EQ(part_f32(ct, "model.layers.0.o_proj.input_global_scale"), 2688.0f / 4.0f);
  const Json group = config_of("ct")["quantization_config"]["config_groups"]["group_0"];
  EXPECT_EQ(group["input_activations"]["dynamic"], "local");
  EXPECT_EQ(group["input_activations"]["strategy"], "tensor_group");

  convert_to("plain", "mo", with_scales(Dialect::modelopt));
  const Checkpoint mo = Checkpoint::open(folder_ / "mo");
  EXPECT_EQ(part_f32(mo, "model.layers.0.k_proj.input_scale"), 8.0f / 2688.0f);
  EXPECT_EQ(config_of("mo")["quantization_config"]["quant_algo"], "NVFP4");

  // Input scales of a source go along, and stay as they are within a dialect.
  convert_to("mo", "mo2", options_for({Recipe::nvfp4, Dialect::modelopt}));
  EXPECT_EQ(contents(folder_ / "mo"), contents(folder_ / "mo2"));
  convert_to("mo", "ct2", options_for({Recipe::nvfp4, Dialect::compressed_tensors}));
  EXPECT_EQ(part_f32(Checkpoint::open(folder_ / "ct2"), "model.layers.0.k_proj.input_global_scale"),
            1.0f / (8.0f / 2688.0f));
  convert_to("mo", "mx", options_for({Recipe::mxfp4, Dialect::compressed_tensors}));
  EXPECT_EQ(Checkpoint::open(folder_ / "mx").store().find("model.layers.0.k_proj.input_scale"),
            nullptr);

  test::write_store(folder_ / "scales.safetensors",
                    {{"model.layers.0.k_proj.weight", DType::F32, {1}, test::floats({2.0f})}});
  ConvertOptions options = with_scales(Dialect::modelopt);
  options.activation_scales = folder_ / "scales.safetensors";
  expect_error(ErrorCode::invalid_argument, "activation_scales",
               "has no entry \"model.layers.0.mlp.experts.up_proj\"",
               [&] { convert_to("plain", "no", options); });
  const auto refuse = [&](const Json& value, const std::string& reason) {
    scales["model.layers.0.q_proj.weight"] = value;
    const ConvertOptions bad = with_scales(Dialect::modelopt);
    expect_error(ErrorCode::corrupt_file, (folder_ / "scales.json").string(), reason,
                 [&] { convert_to("plain", "no", bad); });
  };
  refuse(0.0, "must be finite and above 0");
  refuse(-1.0, "must be finite and above 0");
  refuse(1e300, "must be finite and above 0");
  refuse("big", "must be a number");
  test::write_text(folder_ / "scales.json", "[]");
  options.activation_scales = folder_ / "scales.json";
  expect_error(ErrorCode::corrupt_file, (folder_ / "scales.json").string(),
               "must hold a JSON object", [&] { convert_to("plain", "no", options); });
  scales["model.layers.0.q_proj.weight"] = 1.0;
  options = with_scales(Dialect::modelopt);
  options.recipe = Recipe::mxfp4;
  options.dialect = std::nullopt;
  expect_error(ErrorCode::invalid_argument, "activation_scales", "which stores none",
               [&] { convert_to("plain", "no", options); });
  EXPECT_FALSE(std::filesystem::exists(folder_ / "no"));
}

TEST_F(ConvertTest, AStackThatOneScaleEachOfItsMatricesHasKeepsThem) {
  test::write_checkpoint(
      folder_ / "ct", {{"m.experts.up_packed", DType::U8, {2, 4, 16}, ""},
                       {"m.experts.up_scale", DType::F8_E4M3, {2, 4, 2}, ""},
                       {"m.experts.up_global_scale", DType::F32, {2}, test::floats({2.0f, 4.0f})}});
  convert_to("ct", "mo", options_for({Recipe::nvfp4, Dialect::modelopt}));
  EXPECT_EQ(part(Checkpoint::open(folder_ / "mo"), "m.experts.up_weight_scale_2"),
            test::floats({0.5f, 0.25f}));
}

TEST_F(ConvertTest, TensorScalesThatMeanNothingAreRefused) {
  const auto with_scale = [&](float scale) {
    test::write_checkpoint(folder_ / "ct",
                           {{"a.weight_packed", DType::U8, {4, 16}, ""},
                            {"a.weight_scale", DType::F8_E4M3, {4, 2}, ""},
                            {"a.weight_global_scale", DType::F32, {1}, test::floats({scale})}});
    convert_to("ct", "mo", options_for({Recipe::nvfp4, Dialect::modelopt}));
  };
  for (const float scale : {0.0f, -1.0f, INFINITY, NAN}) {
    expect_error(ErrorCode::corrupt_file, "a.weight_global_scale", "must be finite and above 0",
                 [&] { with_scale(scale); });
  }
}

}  // namespace
}  // namespace blockscale
