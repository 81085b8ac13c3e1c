// Sources that are quantized already: stacks of experts, layers that engines do not quantize, and
// layers that a configuration names.
#include <gtest/gtest.h>

#include "models/convert/testing.h"

namespace blockscale {
namespace {

using test::expect_error;
using test::floats;
using test::Json;
using test::part;
using test::TestTensor;
using test::values_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class QuantizedSourceTest : public ::testing::Test {
 protected:
  void make(const std::vector<TestTensor>& tensors, const Json& config) {
    std::filesystem::remove_all(folder_ / "model");
    test::write_checkpoint(folder_ / "model", tensors, config);
  }
  const ConvertedTensor& run(const ConvertOptions& options, const std::string& name) {
    ConvertOptions again = options;
    again.overwrite = true;
    report_ = convert(folder_ / "model", folder_ / "out", again);
    const auto found = std::find_if(report_.tensors.begin(), report_.tensors.end(),
                                    [&](const ConvertedTensor& t) { return t.name == name; });
    if (found == report_.tensors.end()) throw std::runtime_error("no tensor " + name);
    return *found;
  }
  Json configuration() const {
    return Json::parse(test::read_text(folder_ / "out/config.json")).at("quantization_config");
  }
  Json targets(const char* group = "group_0") const {
    return configuration().at("config_groups").at(group).at("targets");
  }
  void expect_refused(const ConvertOptions& options, ErrorCode code, const std::string& argument,
                      const std::string& reason) {
    std::filesystem::remove_all(folder_ / "refused");
    expect_error(code, argument, reason,
                 [&] { convert(folder_ / "model", folder_ / "refused", options); });
    EXPECT_FALSE(std::filesystem::exists(folder_ / "refused"));
  }
  static ConvertOptions to(Recipe recipe, std::optional<Dialect> dialect = std::nullopt) {
    ConvertOptions options;
    options.recipe = recipe;
    options.dialect = dialect;
    options.threads = 2;
    return options;
  }
  static Json with(Json config, const char* key, const Json& value) {
    config[key] = value;
    return config;
  }
  static Json fp8_config(const std::string& strategy, const Json& targets = {"Linear"}) {
    Json config = test::compressed_tensors_config(
        "float-quantized", {{"num_bits", 8}, {"type", "float"}, {"strategy", strategy}});
    config["quantization_config"]["config_groups"]["group_0"]["targets"] = targets;
    return config;
  }
  static std::vector<TestTensor> fp8_linear(const std::string& module) {
    return {{module + ".weight", DType::F8_E4M3, {128, 128}, ""},
            {module + ".weight_scale_inv", DType::F32, {1, 1}, floats({0.5f})}};
  }
  static std::vector<TestTensor> fp8_rows(const std::string& module) {
    return {{module + ".weight", DType::F8_E4M3, {4, 64}, ""},
            {module + ".weight_scale", DType::F32, {4, 1}, floats({1, 2, 3, 4})}};
  }
  static std::vector<TestTensor> together(std::vector<std::vector<TestTensor>> parts) {
    std::vector<TestTensor> all;
    for (auto& each : parts) all.insert(all.end(), each.begin(), each.end());
    return all;
  }

  test::ScratchFolder folder_;
  ConvertReport report_;
};

// ---- Stacks of experts --------------------------------------------------------------------------

/// A stack in every dialect that has them, [2, 256, 128], and what its configuration is.
struct StackForm {
  const char* name;
  std::vector<TestTensor> tensors;
  Json config;
};
std::vector<StackForm> stack_forms() {
  const std::string p = "l.experts.gate_up_proj";
  const auto ones = [](std::size_t count) { return floats(std::vector<float>(count, 1.0f)); };
  const TestTensor fp8{p, DType::F8_E4M3, {2, 256, 128}, ""};
  Json rows = test::compressed_tensors_config(
      "float-quantized", {{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}});
  Json nvfp4 = test::compressed_tensors_config(
      "nvfp4-pack-quantized",
      {{"num_bits", 4}, {"type", "float"}, {"strategy", "tensor_group"}, {"group_size", 16}});
  return {
      {"deepseek",
       {fp8, {p + "_scale_inv", DType::F32, {2, 2, 1}, ones(4)}},
       test::deepseek_config()},
      {"fp8 without blocks",
       {fp8, {p + "_scale", DType::F32, {2}, ones(2)}},
       {{"quantization_config", {{"quant_method", "fp8"}}}}},
      {"modelopt",
       {fp8, {p + "_weight_scale", DType::F32, {2, 256}, ones(512)}},
       {{"quantization_config",
         {{"quant_method", "modelopt"}, {"quant_algo", "FP8_PER_CHANNEL_PER_TOKEN"}}}}},
      {"compressed-tensors", {fp8, {p + "_scale", DType::F32, {2, 256, 1}, ones(512)}}, rows},
      {"compressed-tensors NVFP4",
       {{p + "_packed", DType::U8, {2, 256, 64}, ""},
        {p + "_scale", DType::F8_E4M3, {2, 256, 8}, ""},
        {p + "_global_scale", DType::F32, {1}, floats({100})}},
       nvfp4},
  };
}

TEST_F(QuantizedSourceTest, StacksOfInOutStayPlainInEveryDialect) {
  for (const StackForm& form : stack_forms()) {
    for (const char* type : {"qwen3_vl_moe", "llama4_text", "gpt_oss"}) {
      SCOPED_TRACE(std::string(form.name) + " " + type);
      make(together({form.tensors}),
           with(with(form.config, "model_type", type), "hidden_size", 256));
      ConvertOptions options = to(Recipe::mxfp4);
      const ConvertedTensor& stack = run(options, "l.experts.gate_up_proj");
      EXPECT_EQ(stack.reason, std::string(type) +
                                  " stores it as [in, out], scales run along the "
                                  "last dimension; as bf16");
      const Checkpoint out = Checkpoint::open(folder_ / "out");
      EXPECT_EQ(out.find("l.experts.gate_up_proj")->dtype, DType::BF16);
      EXPECT_EQ(values_of(out, "l.experts.gate_up_proj").size(), 2u * 256 * 128);
    }
  }
}

TEST_F(QuantizedSourceTest, StacksOfInOutBecomeWhatConfigStates) {
  const StackForm form = stack_forms()[0];
  Json config = with(with(form.config, "model_type", "qwen3_vl_moe"), "torch_dtype", "float16");
  make(together({form.tensors, fp8_linear("l.o_proj")}), config);
  EXPECT_THAT(run(to(Recipe::nvfp4), "l.experts.gate_up_proj").reason, HasSubstr("; as f16"));
  const Checkpoint source = Checkpoint::open(folder_ / "model");
  const Checkpoint out = Checkpoint::open(folder_ / "out");
  EXPECT_EQ(values_of(out, "l.experts.gate_up_proj"), values_of(source, "l.experts.gate_up_proj"));
  EXPECT_EQ(out.find("l.o_proj.weight")->recipe, Recipe::nvfp4);
  EXPECT_THAT(configuration().at("ignore"), ElementsAre("l.experts"));
  EXPECT_EQ(out.store().find("l.experts.gate_up_proj_scale_inv"), nullptr);
}

TEST_F(QuantizedSourceTest, StacksOfUnknownLayoutNeedTheOption) {
  for (const StackForm& form : stack_forms()) {
    SCOPED_TRACE(form.name);
    make(form.tensors, with(form.config, "model_type", "new_moe"));
    ConvertOptions options = to(Recipe::mxfp4);
    expect_refused(options, ErrorCode::invalid_argument, "experts_layout",
                   "must be for \"l.experts.gate_up_proj\" [2, 256, 128], a stack of experts: how "
                   "\"new_moe\" stores them is not known");
    options.experts_layout = ExpertsLayout::out_in;
    run(options, "l.experts.gate_up_proj");
    const Checkpoint out = Checkpoint::open(folder_ / "out");
    EXPECT_EQ(out.find("l.experts.gate_up_proj")->recipe, Recipe::mxfp4);
    options.experts_layout = ExpertsLayout::in_out;
    EXPECT_THAT(run(options, "l.experts.gate_up_proj").reason,
                HasSubstr("experts_layout says that it is [in, out]"));
    // Values alone need no layout.
    EXPECT_NO_THROW(run(to(Recipe::bf16), "l.experts.gate_up_proj"));
  }
}

TEST_F(QuantizedSourceTest, StacksOfKnownOutInAreQuantizedAndContradictionsRefused) {
  for (const StackForm& form : stack_forms()) {
    SCOPED_TRACE(form.name);
    Json config = with(form.config, "model_type", "mixtral");
    make(form.tensors, with(config, "hidden_size", 128));
    run(to(Recipe::mxfp4), "l.experts.gate_up_proj");
    EXPECT_EQ(Checkpoint::open(folder_ / "out").find("l.experts.gate_up_proj")->recipe,
              Recipe::mxfp4);
    make(form.tensors, with(config, "hidden_size", 256));
    expect_refused(to(Recipe::mxfp4), ErrorCode::invalid_argument, "experts_layout",
                   "hidden_size 256 stands elsewhere than \"mixtral\" has it");
  }
}

TEST_F(QuantizedSourceTest, StacksThatStayAreNotAsked) {
  for (const StackForm& form : stack_forms()) {
    SCOPED_TRACE(form.name);
    make(form.tensors, with(form.config, "model_type", "qwen3_vl_moe"));
    const Checkpoint source = Checkpoint::open(folder_ / "model");
    const Recipe recipe = source.find("l.experts.gate_up_proj")->recipe;
    if (!dialect_can_say(source.dialect(), recipe)) continue;
    EXPECT_THAT(run(to(recipe, source.dialect()), "l.experts.gate_up_proj").reason,
                HasSubstr("copied"));
  }
  // In another dialect a known layout counts, and codes of an unknown one are copied.
  const StackForm form = stack_forms()[0];
  const ConvertOptions other = to(Recipe::fp8_128x128, Dialect::compressed_tensors);
  make(form.tensors, with(form.config, "model_type", "qwen3_vl_moe"));
  EXPECT_THAT(run(other, "l.experts.gate_up_proj").reason, HasSubstr("; as bf16"));
  make(form.tensors, form.config);
  EXPECT_THAT(run(other, "l.experts.gate_up_proj").reason, HasSubstr("codes copied"));
}

TEST_F(QuantizedSourceTest, WhatWasMadeOfGptOssBecomesPlainAsGptOssHasIt) {
  const std::string p = "l.experts.gate_up_proj", d = "l.experts.down_proj";
  const Json config = {{"model_type", "gpt_oss"}, {"hidden_size", 64}};
  make({{p + "_blocks", DType::U8, {2, 96, 2, 16}, ""},
        {p + "_scales", DType::U8, {2, 96, 2}, ""},
        {d + "_blocks", DType::U8, {2, 64, 2, 16}, ""},
        {d + "_scales", DType::U8, {2, 64, 2}, ""}},
       with(config, "quantization_config", {{"quant_method", "mxfp4"}}));
  run(to(Recipe::f32), p);
  const Checkpoint direct = Checkpoint::open(folder_ / "out");
  const auto gate_up = values_of(direct, p), down = values_of(direct, d);
  EXPECT_EQ(direct.find(p)->shape, (std::vector<std::int64_t>{2, 64, 96}));
  for (const Recipe between : {Recipe::mxfp4, Recipe::mxfp8_e4m3, Recipe::fp8_row}) {
    SCOPED_TRACE(recipe_traits(between).name);
    std::filesystem::remove_all(folder_ / "model");
    make({{p + "_blocks", DType::U8, {2, 96, 2, 16}, ""},
          {p + "_scales", DType::U8, {2, 96, 2}, ""},
          {d + "_blocks", DType::U8, {2, 64, 2, 16}, ""},
          {d + "_scales", DType::U8, {2, 64, 2}, ""}},
         with(config, "quantization_config", {{"quant_method", "mxfp4"}}));
    run(to(between, Dialect::compressed_tensors), p);
    std::filesystem::remove_all(folder_ / "model");
    std::filesystem::rename(folder_ / "out", folder_ / "model");
    // down_proj is square, but gate_up_proj shows that the file is not as gpt_oss has plain ones.
    expect_refused(to(Recipe::f32), ErrorCode::invalid_argument, "experts_layout",
                   "hidden_size 64 stands elsewhere than \"gpt_oss\" has it");
    ConvertOptions options = to(Recipe::f32);
    options.experts_layout = ExpertsLayout::out_in;
    if (between == Recipe::fp8_row) {
      expect_refused(options, ErrorCode::unsupported, d, "only blocks of one row can be turned");
      continue;
    }
    run(options, p);
    const Checkpoint out = Checkpoint::open(folder_ / "out");
    EXPECT_EQ(out.find(p)->shape, (std::vector<std::int64_t>{2, 64, 96}));
    if (between == Recipe::mxfp4) {  // whose codes were copied
      EXPECT_EQ(values_of(out, p), gate_up);
      EXPECT_EQ(values_of(out, d), down);
    }
  }
}

TEST_F(QuantizedSourceTest, LayersThatAreTransposedStayPlain) {
  make(
      together({fp8_rows("h.0.attn.c_attn"), fp8_rows("h.0.q"), fp8_rows("h.1.c_proj.base_layer")}),
      with(fp8_config("channel"), "model_type", "gpt2"));
  EXPECT_EQ(run(to(Recipe::nvfp4), "h.0.attn.c_attn.weight").reason,
            "gpt2 stores it as [in, out], scales run along the last dimension; as bf16");
  const Checkpoint out = Checkpoint::open(folder_ / "out");
  EXPECT_EQ(out.find("h.0.q.weight")->recipe, Recipe::nvfp4);
  EXPECT_EQ(out.find("h.1.c_proj.base_layer.weight")->recipe, Recipe::bf16);
}

TEST_F(QuantizedSourceTest, OneScaleForAllExpertsIsRead) {
  const std::string p = "l.experts.up_proj";
  const TestTensor values{p, DType::F8_E4M3, {3, 32, 64}, ""};
  const Json fp8 = {{"model_type", "mixtral"}, {"quantization_config", {{"quant_method", "fp8"}}}};
  const Json modelopt = {
      {"model_type", "mixtral"},
      {"quantization_config", {{"quant_method", "modelopt"}, {"quant_algo", "FP8"}}}};
  const Json compressed = with(fp8_config("tensor"), "model_type", "mixtral");
  struct Case {
    const Json& config;
    const char* suffix;
    std::vector<std::int64_t> shape;
    DType dtype = DType::F32;
  };
  for (const Case& c :
       {Case{compressed, "_scale", {}}, Case{compressed, "_scale", {1}},
        Case{compressed, "_scale", {1, 1, 1}}, Case{modelopt, "_weight_scale", {}},
        Case{modelopt, "_weight_scale", {1}}, Case{fp8, "_scale", {}},
        Case{fp8, "_weight_scale", {1}}, Case{compressed, "_scale", {1}, DType::BF16}}) {
    SCOPED_TRACE(c.suffix + std::to_string(c.shape.size()));
    const std::string scale = c.dtype == DType::F32 ? floats({0.25f}) : std::string("\x80\x3e", 2);
    make({values, {p + c.suffix, c.dtype, c.shape, scale}}, c.config);
    const Checkpoint source = Checkpoint::open(folder_ / "model");
    const std::string codes = part(source, p);
    std::vector<float> expected;
    for (const char code : codes) {
      expected.push_back(decode<Format::e4m3>(static_cast<std::uint8_t>(code)) * 0.25f);
    }
    EXPECT_EQ(values_of(source, p), expected);
    run(to(Recipe::f32), p);
    EXPECT_EQ(values_of(Checkpoint::open(folder_ / "out"), p), expected);
    // Where codes are copied each expert has the scale.
    for (const Dialect dialect : {Dialect::compressed_tensors, Dialect::modelopt}) {
      ConvertOptions options = to(Recipe::fp8_tensor, dialect);
      if (dialect == Dialect::modelopt) {
        if (source.dialect() != dialect) continue;
      }
      run(options, p);
      const Checkpoint out = Checkpoint::open(folder_ / "out");
      EXPECT_EQ(part(out, p), codes);
      EXPECT_EQ(values_of(out, p), expected);
    }
    run(to(Recipe::nvfp4), p);
    EXPECT_EQ(Checkpoint::open(folder_ / "out").find(p)->recipe, Recipe::nvfp4);
  }
}

TEST_F(QuantizedSourceTest, ScalesOfStacksThatFitNothingAreRefused) {
  const std::string p = "l.experts.up_proj";
  const TestTensor values{p, DType::F8_E4M3, {3, 32, 64}, ""};
  const auto refuse = [&](const char* suffix, const std::vector<std::int64_t>& shape,
                          const Json& config, const std::string& reason) {
    make({values, {p + suffix, DType::F32, shape, ""}}, config);
    expect_refused(to(Recipe::bf16), ErrorCode::corrupt_file, p, reason);
  };
  refuse("_scale", {2}, fp8_config("tensor"), "_scale have shape [2], must be [3, 1, 1]");
  refuse("_scale_inv", {}, test::deepseek_config(), "_scale_inv have shape [], must be [3, 1, 1]");
  refuse("_weight_scale", {1}, test::deepseek_config(), "_weight_scale have shape [1], must be");
  refuse("_scale_inv", {1}, test::deepseek_config(), "_scale_inv have shape [1], must be");
  // Scales under a name that the dialect has not would be lost.
  refuse("_weight_scale", {3}, fp8_config("tensor"), "is a stack in F8_E4M3 without scales");
  refuse("_amax", {3}, fp8_config("tensor"), "of the names that compressed-tensors gives them");
  refuse("_factors", {3}, test::deepseek_config(), "of the names that deepseek gives them");
}

// ---- Layers that are not linear -----------------------------------------------------------------

TEST_F(QuantizedSourceTest, LayersThatEnginesDoNotQuantizeBecomePlain) {
  for (const auto& [module, reason] :
       {std::pair("model.ngram_embedding", "embedding"),
        std::pair("model.embed_tokens", "embedding"), std::pair("transformer.wte", "embedding"),
        std::pair("model.audio_embed", "embedding"), std::pair("v.pos_emb", "embedding"),
        std::pair("model.embed_tokens.base_layer", "embedding"), std::pair("l.0.q_norm", "norm"),
        std::pair("l.0.mlp.gate", "router"), std::pair("l.0.mlp.router.layer", "router"),
        std::pair("l.0.eh_proj", "engines keep it in high precision")}) {
    SCOPED_TRACE(module);
    const std::string name = std::string(module) + ".weight";
    for (const Recipe recipe : {Recipe::nvfp4, Recipe::mxfp8_e4m3, Recipe::fp8_128x128}) {
      make(together({fp8_linear(module), fp8_linear("l.0.o_proj")}),
           with(test::deepseek_config(), "torch_dtype", "float32"));
      const ConvertOptions options =
          to(recipe,
             recipe == Recipe::fp8_128x128 ? Dialect::compressed_tensors : default_dialect(recipe));
      EXPECT_EQ(run(options, name).reason, std::string(reason) + "; as f32");
      const Checkpoint source = Checkpoint::open(folder_ / "model");
      const Checkpoint out = Checkpoint::open(folder_ / "out");
      EXPECT_EQ(out.find(name)->dtype, DType::F32);
      EXPECT_EQ(values_of(out, name), values_of(source, name));
      EXPECT_EQ(out.find("l.0.o_proj.weight")->recipe, recipe);
      EXPECT_THAT(targets(), ElementsAre("Linear"));
    }
  }
}

TEST_F(QuantizedSourceTest, LayersWithNamesLikeEmbeddingsAreLinear) {
  for (const char* module :
       {"time_embedding.0", "x_embedder", "t_embed.linear_1", "embed_proj", "patch_embed.proj"}) {
    make(together({fp8_linear(module), fp8_linear("l.0.o_proj")}), test::deepseek_config());
    run(to(Recipe::nvfp4), std::string(module) + ".weight");
    const Checkpoint out = Checkpoint::open(folder_ / "out");
    EXPECT_EQ(out.find(std::string(module) + ".weight")->recipe, Recipe::nvfp4) << module;
  }
}

TEST_F(QuantizedSourceTest, ParametersThatAreNoModuleBecomePlain) {
  make(together({{{"l.in_proj_weight", DType::F8_E4M3, {4, 64}, ""},
                  {"l.in_proj_weight_scale", DType::F32, {4, 1}, floats({1, 2, 3, 4})}},
                 fp8_rows("l.o_proj")}),
       fp8_config("channel"));
  EXPECT_EQ(run(to(Recipe::nvfp4), "l.in_proj_weight").reason,
            "no weight of a linear layer; as bf16");
}

TEST_F(QuantizedSourceTest, PatternsReachNoQuantizedEmbedding) {
  make(together({fp8_linear("model.embed_tokens"), fp8_linear("l.0.o_proj")}),
       test::deepseek_config());
  ConvertOptions options = to(Recipe::nvfp4);
  options.include = {"*"};
  expect_refused(options, ErrorCode::invalid_argument, "include",
                 "\"*\" reaches \"model.embed_tokens.weight\", an embedding");
  options = to(Recipe::nvfp4);
  options.map = {{"*embed*", Recipe::mxfp4}};
  expect_refused(options, ErrorCode::invalid_argument, "map", "only linear layers are quantized");
  options.map = {{"*embed*", Recipe::bf16}};
  run(options, "l.0.o_proj.weight");
  EXPECT_EQ(Checkpoint::open(folder_ / "out").find("model.embed_tokens.weight")->recipe,
            Recipe::bf16);
}

TEST_F(QuantizedSourceTest, WhatStaysIsNamed) {
  const Json config = fp8_config("channel", {"Linear", "Embedding"});
  make(together({fp8_rows("model.embed_tokens"), fp8_rows("l.0.o_proj")}), config);
  EXPECT_THAT(run(to(Recipe::fp8_row), "model.embed_tokens.weight").reason, HasSubstr("copied"));
  EXPECT_THAT(targets(), ElementsAre("Linear", "Embedding"));  // all files as they are
  ConvertOptions options = to(Recipe::fp8_row);
  options.map = {{"*o_proj", Recipe::bf16}};
  run(options, "model.embed_tokens.weight");
  EXPECT_EQ(Checkpoint::open(folder_ / "out").find("model.embed_tokens.weight")->recipe,
            Recipe::fp8_row);
  EXPECT_THAT(targets(), ElementsAre("Linear", "model.embed_tokens"));
}

// ---- Named targets ------------------------------------------------------------------------------

TEST_F(QuantizedSourceTest, HeadsStayNamed) {
  const std::vector<Json> sources = {
      {"Linear", "re:.*lm_head"}, {"Linear", "lm_head"}, {"Linear"}, {"re:.*"}};
  for (const Json& source : sources) {
    SCOPED_TRACE(source.dump());
    make(together({fp8_rows("lm_head"), fp8_rows("l.0.o_proj")}), fp8_config("channel", source));
    for (const auto& [recipe, dialect] : {std::pair(Recipe::nvfp4, Dialect::compressed_tensors),
                                          std::pair(Recipe::mxfp4, Dialect::compressed_tensors),
                                          std::pair(Recipe::nvfp4, Dialect::modelopt)}) {
      run(to(recipe, dialect), "lm_head.weight");
      EXPECT_EQ(Checkpoint::open(folder_ / "out").find("lm_head.weight")->recipe, recipe);
      EXPECT_THAT(targets(), ElementsAre("Linear", "lm_head"));
      EXPECT_THAT(configuration().at("ignore"), IsEmpty());
    }
  }
}

TEST_F(QuantizedSourceTest, HeadsOfOtherDialectsAndOptionsAreNamed) {
  make(together({fp8_linear("language_model.lm_head"), fp8_linear("l.0.o_proj")}),
       test::deepseek_config());
  run(to(Recipe::nvfp4), "l.0.o_proj.weight");
  EXPECT_THAT(targets(), ElementsAre("Linear", "language_model.lm_head"));
  make({test::f32_tensor("lm_head.weight", {4, 64}, 1),
        test::f32_tensor("l.0.o_proj.weight", {4, 64}, 2),
        test::f32_tensor("l.0.mlp.gate.weight", {4, 64}, 2)},
       Json::object());
  ConvertOptions options = to(Recipe::nvfp4);
  options.include = {"*"};
  run(options, "lm_head.weight");
  EXPECT_THAT(targets(), ElementsAre("Linear", "l.0.mlp.gate", "lm_head"));
  options.map = {{"lm_head", Recipe::mxfp8_e4m3}};
  run(options, "lm_head.weight");
  EXPECT_THAT(targets("group_1"), ElementsAre("lm_head"));
  options = to(Recipe::fp8_128x128);
  options.include = {"*"};
  run(options, "lm_head.weight");
  EXPECT_THAT(report_.warnings, ElementsAre(HasSubstr("\"l.0.mlp.gate\" and 1 more: quantized")));
}

TEST_F(QuantizedSourceTest, WhatTheSourceNamesBesideAClassStaysNamed) {
  const auto rows = together({fp8_rows("l.0.o_proj"), fp8_rows("v.merger"), fp8_rows("v.pos_mlp")});
  make(rows, fp8_config("channel", {"Linear", "re:v\\.m.*", "v.pos_mlp"}));
  run(to(Recipe::nvfp4), "l.0.o_proj.weight");
  EXPECT_THAT(targets(), ElementsAre("Linear", "v.merger", "v.pos_mlp"));
  make(rows, fp8_config("channel", {"re:.*"}));  // beside no class
  run(to(Recipe::nvfp4), "l.0.o_proj.weight");
  EXPECT_THAT(targets(), ElementsAre("Linear"));
}

}  // namespace
}  // namespace blockscale
