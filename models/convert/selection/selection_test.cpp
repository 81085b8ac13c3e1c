// Which tensors are converted: patterns, maps, stacks of experts, and the reasons that are given.
#include "models/convert/selection/selection.h"

#include <gtest/gtest.h>

#include "models/checkpoint/checkpoint_testing.h"

namespace blockscale {
namespace {

using models::Decision;
using test::expect_error;
using test::f32_tensor;
using test::Json;
using test::TestTensor;

TEST(IsLinearWeight, NeedsARoleTwoDimensionsAndValuesThatCanBeRead) {
  CheckpointTensor tensor;
  tensor.name = "encoder.layer.0.output.dense.weight";
  tensor.shape = {4, 8};
  tensor.dtype = DType::BF16;
  EXPECT_TRUE(is_linear_weight(tensor));
  tensor.dtype = DType::I64;
  EXPECT_FALSE(is_linear_weight(tensor));
  tensor.dtype = DType::BF16;
  tensor.shape.pop_back();
  EXPECT_FALSE(is_linear_weight(tensor));
  tensor.shape = {4, 8};
  tensor.name = "embeddings.word_embeddings.weight";
  EXPECT_FALSE(is_linear_weight(tensor));
}

class SelectTest : public ::testing::Test {
 protected:
  void make(const std::vector<TestTensor>& tensors, const Json& config = nullptr,
            const Json& hf_quant_config = nullptr) {
    std::filesystem::remove_all(folder_ / "model");
    test::write_checkpoint(folder_ / "model", tensors, config);
    if (!hf_quant_config.is_null()) {
      test::write_text(folder_ / "model/hf_quant_config.json", hf_quant_config.dump());
    }
    source_ = models::StoredCheckpoint::open(folder_ / "model");
  }
  std::vector<Decision> select(const ConvertOptions& options) {
    const Dialect dialect = options.dialect.value_or(default_dialect(options.recipe));
    return models::select(*source_, options, models::dialect_traits(dialect));
  }
  Decision decision(const ConvertOptions& options, const std::string& name) {
    const CheckpointTensor* tensor = source_->find(name);
    if (tensor == nullptr) throw std::runtime_error("no tensor " + name);
    return select(options)[source_->index_of(*tensor)];
  }
  void expect_kept(const ConvertOptions& options, const std::string& name,
                   const std::string& reason) {
    const Decision kept = decision(options, name);
    EXPECT_FALSE(kept.convert) << name;
    EXPECT_THAT(kept.reason, ::testing::HasSubstr(reason)) << name;
  }

  std::vector<TestTensor> small_model() {
    return {f32_tensor("model.embed_tokens.weight", {4, 64}, 1),
            f32_tensor("model.layers.0.q_proj.weight", {4, 64}, 2),
            f32_tensor("model.layers.0.o_proj.weight", {4, 40}, 3),
            f32_tensor("model.layers.0.o_proj.bias", {4}, 4),
            f32_tensor("model.layers.0.mlp.gate.weight", {4, 64}, 5),
            f32_tensor("model.layers.0.mlp.experts.up_proj", {2, 4, 64}, 6),
            f32_tensor("conv.weight", {2, 2, 4, 32}, 7),
            f32_tensor("empty.weight", {0, 64}, 8),
            {"ids", DType::I64, {2, 32}, ""},
            f32_tensor("lm_head.weight", {4, 64}, 9)};
  }

  test::ScratchFolder folder_;
  std::shared_ptr<const models::StoredCheckpoint> source_;
};

TEST_F(SelectTest, DefaultChoiceAndReasons) {
  make(small_model(), {{"model_type", "mixtral"}});
  ConvertOptions options;
  EXPECT_TRUE(decision(options, "model.layers.0.q_proj.weight").convert);
  EXPECT_TRUE(decision(options, "model.layers.0.mlp.experts.up_proj").convert);
  expect_kept(options, "model.embed_tokens.weight", "embedding");
  expect_kept(options, "model.layers.0.o_proj.weight", "k = 40 is no multiple of 16");
  expect_kept(options, "model.layers.0.o_proj.bias", "no weight of a linear layer");
  expect_kept(options, "model.layers.0.mlp.gate.weight", "router");
  expect_kept(options, "lm_head.weight", "output head");
  expect_kept(options, "empty.weight", "empty");
  options.recipe = Recipe::fp8_row;  // any k
  EXPECT_TRUE(decision(options, "model.layers.0.o_proj.weight").convert);
}

TEST_F(SelectTest, WhatAGateIsFollowsFromItsSiblings) {
  const auto gate = [&](const std::vector<std::string>& siblings, const Json& config = nullptr,
                        const std::string& name = "l.0.mlp.gate") {
    std::vector<TestTensor> tensors = {f32_tensor(name + ".weight", {32, 64}, 1),
                                       f32_tensor("l.0.q_proj.weight", {32, 64}, 2)};
    for (const std::string& sibling : siblings) {
      const bool stack = !sibling.ends_with(".weight");
      tensors.push_back(f32_tensor(
          sibling, stack ? std::vector<std::int64_t>{2, 32, 64} : std::vector<std::int64_t>{32, 64},
          3));
    }
    make(tensors, config);
    ConvertOptions options;
    options.experts_layout = ExpertsLayout::out_in;
    return decision(options, name + ".weight").convert;
  };
  EXPECT_TRUE(gate({"l.0.mlp.up.weight", "l.0.mlp.down.weight"}));
  EXPECT_TRUE(gate({"l.0.mlp.up.base_layer.weight"}, nullptr, "l.0.mlp.gate.base_layer"));
  EXPECT_TRUE(gate({"l.0.attn.q_proj.weight", "l.0.attn.o_proj.weight"}, nullptr, "l.0.attn.gate"));
  EXPECT_TRUE(gate({"l.0.mlp.up.weight"}, {{"num_experts", 8}}));  // a dense layer of such a model
  // Routers: experts beside it, of whatever form, or as many rows as there are.
  EXPECT_FALSE(gate({"l.0.mlp.experts.0.up.weight"}));
  EXPECT_FALSE(gate({"l.0.mlp.experts.up_proj"}));
  EXPECT_FALSE(gate({"l.0.mlp.up.weight", "l.0.mlp.shared_experts.up.weight"}));
  EXPECT_FALSE(gate({"l.0.mlp.up.weight"}, {{"num_experts", 32}}));
  EXPECT_FALSE(gate({"l.0.mlp.up.weight"}, {{"text_config", {{"n_routed_experts", 32}}}}));
  EXPECT_FALSE(gate({}));  // nothing speaks for a layer
  EXPECT_FALSE(gate({"l.0.mlp.w1"}));
}

TEST_F(SelectTest, WhatAHeadIsFollowsFromTheBlocksAndTheVocabulary) {
  const auto converts = [&](const std::string& layer, std::int64_t rows, const Json& config,
                            const char* other = "1.") {
    make({f32_tensor("l.0." + layer, {rows, 64}, 1),
          f32_tensor(std::string("l.") + other + layer, {rows, 64}, 2),
          f32_tensor("a.o_proj.weight", {32, 64}, 3)},
         config);
    return decision({}, "l.0." + layer).convert;
  };
  const Json config = {{"vocab_size", 96}};
  for (const char* layer : {"attn.score.weight", "attn.head.weight", "mlp.shared.weight",
                            "attn.output_projection.weight", "mixer.summary.linear.weight"}) {
    EXPECT_TRUE(converts(layer, 32, config)) << layer;
    EXPECT_FALSE(converts(layer, 96, config)) << layer;        // heads of several blocks
    EXPECT_FALSE(converts(layer, 8, config)) << layer;         // labels
    EXPECT_FALSE(converts(layer, 32, nullptr)) << layer;       // nothing says what the outputs are
    EXPECT_FALSE(converts(layer, 32, config, "5.")) << layer;  // in one block only
  }
  EXPECT_FALSE(converts("shared_head.head.weight", 32, config));
  EXPECT_FALSE(
      converts("head.weight", 32, {{"vocab_size", 96}, {"text_config", {{"vocab_size", 32}}}}));
}

TEST_F(SelectTest, IncludeReplacesTheDefaultAndExcludeWins) {
  make(small_model(), {{"model_type", "mixtral"}});
  ConvertOptions options;
  options.include = {"lm_head", "ids", "conv*", "*.bias", "model.layers.0.*"};
  options.exclude = {"*experts*"};
  EXPECT_TRUE(decision(options, "lm_head.weight").convert);
  EXPECT_TRUE(decision(options, "model.layers.0.mlp.gate.weight").convert);
  expect_kept(options, "model.embed_tokens.weight", "not included");
  expect_kept(options, "model.layers.0.mlp.experts.up_proj", "excluded");
  expect_kept(options, "ids", "holds I64");
  expect_kept(options, "conv.weight", "has 4 dimensions");
  expect_kept(options, "model.layers.0.o_proj.bias", "a vector");
}

TEST_F(SelectTest, MapChoosesTheRecipeOfTheFirstMatch) {
  make(small_model(), {{"model_type", "mixtral"}});
  ConvertOptions options;
  options.map = {
      {"lm_head*", Recipe::mxfp8_e4m3}, {"*proj.weight", Recipe::fp8_row}, {"*", Recipe::bf16}};
  EXPECT_EQ(decision(options, "lm_head.weight").recipe, Recipe::mxfp8_e4m3);
  EXPECT_EQ(decision(options, "model.layers.0.o_proj.weight").recipe, Recipe::fp8_row);
  EXPECT_EQ(decision(options, "model.embed_tokens.weight").recipe, Recipe::bf16);
  EXPECT_TRUE(decision(options, "model.layers.0.o_proj.bias").convert);  // to bf16
}

TEST_F(SelectTest, ATargetThatIsPlainTakesEveryMatrix) {
  make(small_model(), {{"model_type", "mixtral"}});
  ConvertOptions options;
  options.recipe = Recipe::bf16;
  EXPECT_TRUE(decision(options, "model.embed_tokens.weight").convert);
  expect_kept(options, "model.layers.0.mlp.gate.weight", "router");
  expect_kept(options, "model.layers.0.o_proj.bias", "a vector");
  options.recipe = Recipe::f32;
  options.include = {"*proj*"};
  expect_error(ErrorCode::invalid_argument, "source", "already f32", [&] { select(options); });
}

TEST_F(SelectTest, ModelsThatKeepWeightsTransposed) {
  make({f32_tensor("h.0.attn.c_attn.weight", {32, 32}, 1), f32_tensor("h.0.q.weight", {32, 32}, 1)},
       {{"model_type", "gpt2"}});
  expect_kept({}, "h.0.attn.c_attn.weight", "gpt2 stores it as [in, out]");
  EXPECT_TRUE(decision({}, "h.0.q.weight").convert);  // not all of its layers are Conv1D
  make({f32_tensor("ffn.experts.mlp.w1", {32, 32}, 1),
        f32_tensor("ffn.experts.mlp.w2", {32, 32}, 1)},
       {{"model_type", "dbrx"}});
  ConvertOptions options;
  options.include = {"*.mlp.*"};
  EXPECT_TRUE(decision(options, "ffn.experts.mlp.w1").convert);
  expect_kept(options, "ffn.experts.mlp.w2", "dbrx stores it as [in, out]");
}

TEST_F(SelectTest, StacksOfExpertsAsTheModelTypeStoresThem) {
  const std::vector<TestTensor> tensors = {f32_tensor("m.experts.up_proj", {2, 32, 64}, 1),
                                           f32_tensor("m.q_proj.weight", {32, 32}, 1)};
  for (const char* type :
       {"gpt_oss", "llama4", "llama4_text", "qwen3_vl_moe", "aria_text", "nemo_speechlm"}) {
    make(tensors, {{"model_type", type}});
    expect_kept({}, "m.experts.up_proj", std::string(type) + " stores it as [in, out]");
    EXPECT_TRUE(decision({}, "m.q_proj.weight").convert) << type;
    // Engines must not expect the layer that has it quantized.
    EXPECT_EQ(models::kept_modules(*source_, select({})), std::vector<std::string>{"m.experts"});
  }
  for (const char* type : {"mixtral", "qwen3_5_moe", "qwen3_5_moe_text", "gemma4", "glm4_moe"}) {
    make(tensors, {{"model_type", type}});
    EXPECT_TRUE(decision({}, "m.experts.up_proj").convert) << type;
  }
}

TEST_F(SelectTest, StacksOfExpertsOfUnknownLayoutNeedTheOption) {
  const std::vector<TestTensor> tensors = {f32_tensor("m.experts.up_proj", {2, 32, 64}, 1),
                                           f32_tensor("m.q_proj.weight", {32, 32}, 1)};
  const auto refuse = [&](const std::string& reason, const ConvertOptions& options = {}) {
    expect_error(ErrorCode::invalid_argument, "experts_layout", reason, [&] { select(options); });
  };
  make(tensors, {{"model_type", "new_moe"}});
  refuse("\"m.experts.up_proj\" [2, 32, 64], a stack of experts: how \"new_moe\" stores them");
  make(tensors);
  refuse("no model type says how; out-in means [experts, out, in]");
  ConvertOptions options;
  options.exclude = {"*.experts.*"};  // is not touched, so that nothing must be known
  EXPECT_TRUE(decision(options, "m.q_proj.weight").convert);
  options = {};
  options.recipe = Recipe::bf16;  // has no scales
  EXPECT_TRUE(decision(options, "m.experts.up_proj").convert);
  options = {};
  options.experts_layout = ExpertsLayout::out_in;
  EXPECT_TRUE(decision(options, "m.experts.up_proj").convert);
  options.experts_layout = ExpertsLayout::in_out;
  expect_kept(options, "m.experts.up_proj", "experts_layout says that it is [in, out]");

  // A known type whose stack has the hidden size where it should not be.
  make(tensors, {{"model_type", "qwen3_vl_moe"}, {"text_config", {{"hidden_size", 64}}}});
  refuse("hidden_size 64 stands elsewhere than \"qwen3_vl_moe\" has it");
  EXPECT_FALSE(decision(options, "m.experts.up_proj").convert);
  make(tensors, {{"model_type", "mixtral"}, {"hidden_size", 32}});
  refuse("hidden_size 32 stands elsewhere than \"mixtral\" has it");
  make(tensors, {{"model_type", "mixtral"}, {"hidden_size", 64}});
  EXPECT_TRUE(decision({}, "m.experts.up_proj").convert);
}

TEST_F(SelectTest, PatternsThatReachEmbeddingsOrNormsAreRefused) {
  make({f32_tensor("model.embed_tokens.weight", {4, 64}, 1),
        f32_tensor("a.norm.weight", {4, 64}, 2), f32_tensor("a.q_proj.weight", {4, 64}, 3)});
  const auto refuse = [&](const char* option, const std::string& reason,
                          const ConvertOptions& options) {
    expect_error(ErrorCode::invalid_argument, option, reason, [&] { select(options); });
  };
  for (const Dialect dialect : {Dialect::compressed_tensors, Dialect::modelopt}) {
    ConvertOptions options;
    options.dialect = dialect;
    options.include = {"*"};
    refuse("include", "\"*\" reaches \"a.norm.weight\", an element of a norm", options);
    options.exclude = {"*norm"};
    refuse("include", "\"*\" reaches \"model.embed_tokens.weight\", an embedding; in ", options);
    options.exclude = {"*norm", "re:.*embed"};
    EXPECT_TRUE(decision(options, "a.q_proj.weight").convert);
    options = {};
    options.dialect = dialect;
    options.map = {{"*embed*", Recipe::nvfp4}};
    refuse("map", "only linear layers are quantized", options);
    options.map = {{"*embed*", Recipe::bf16}};
    EXPECT_TRUE(decision(options, "model.embed_tokens.weight").convert);
  }
}

TEST_F(SelectTest, HeadsThatAreTiedAreListed) {
  make({f32_tensor("bert.embeddings.word_embeddings.weight", {4, 64}, 1),
        f32_tensor("bert.a.query.weight", {4, 64}, 3), f32_tensor("cls.predictions.bias", {4}, 4),
        f32_tensor("embeddings_project.weight", {4, 64}, 5)});
  EXPECT_EQ(models::kept_modules(*source_, select({})),
            (std::vector<std::string>{"cls.predictions.decoder", "embeddings_project"}));
  make({f32_tensor("a.query.weight", {4, 64}, 3), f32_tensor("lm_head.bias", {4}, 4),
        f32_tensor("lm_head.dense.weight", {4, 64}, 5)});
  EXPECT_EQ(models::kept_modules(*source_, select({})),
            (std::vector<std::string>{"lm_head.decoder", "lm_head.dense"}));
}

TEST_F(SelectTest, StacksStayPlainWhereADialectHasNone) {
  make(small_model(), {{"model_type", "mixtral"}});
  ConvertOptions options;
  options.recipe = Recipe::nvfp4;
  options.dialect = Dialect::lightx2v;
  EXPECT_TRUE(decision(options, "model.layers.0.q_proj.weight").convert);
  const std::string stack = "model.layers.0.mlp.experts.up_proj";
  expect_kept(options, stack, "has 3 dimensions, and lightx2v has matrices only");
  make({{stack, DType::U8, {2, 4, 32}, ""},
        {stack + "_weight_scale", DType::F8_E4M3, {2, 4, 4}, ""},
        {stack + "_weight_scale_2", DType::F32, {}, test::floats({0.5f})},
        f32_tensor("model.layers.0.q_proj.weight", {4, 64}, 2)},
       test::modelopt_config());
  options.include = {"*.experts.*", "*.q_proj.*"};
  const Decision plain = decision(options, stack);
  EXPECT_TRUE(is_plain(plain.recipe));
  EXPECT_THAT(plain.reason, ::testing::HasSubstr("lightx2v has matrices only; as bf16"));
}

TEST_F(SelectTest, PatternsThatMatchNothingAreErrorsWithNearNames) {
  make(small_model(), {{"model_type", "mixtral"}});
  const auto refuse = [&](const char* option, const std::string& reason,
                          const ConvertOptions& options) {
    expect_error(ErrorCode::invalid_argument, option, reason, [&] { select(options); });
  };
  ConvertOptions options;
  options.exclude = {"lm_head", "*.o_porj"};
  refuse("exclude", "\"*.o_porj\" matches no tensor; near: \"model.layers.0.o_proj\"", options);
  options.exclude = {"re:model\\.layers\\.1\\..*"};
  refuse("exclude", "matches no tensor", options);
  options.exclude = {"re:.*o_proj(", "lm_head"};
  refuse("exclude", "is no regular expression", options);
  options.exclude = {"re:.*\\.(o|q)_proj$"};
  expect_kept(options, "model.layers.0.q_proj.weight", "excluded");
  options = {};
  options.include = {"re:.*q_proj$"};
  EXPECT_TRUE(decision(options, "model.layers.0.q_proj.weight").convert);
  options = {};
  options.map = {{"re:.*q_proj$", Recipe::mxfp4}};
  EXPECT_EQ(decision(options, "model.layers.0.q_proj.weight").recipe, Recipe::mxfp4);
  // A tied head has no tensor, but is a layer.
  std::vector<TestTensor> tied = small_model();
  tied.pop_back();
  make(tied, {{"model_type", "mixtral"}});
  options = {};
  options.exclude = {"lm_head"};
  EXPECT_TRUE(decision(options, "model.layers.0.q_proj.weight").convert);
  options = {};
  options.include = {"lm_head"};
  refuse("include", "\"lm_head\" matches no tensor", options);
}

std::vector<TestTensor> deepseek_model() {
  return {{"a.weight", DType::F8_E4M3, {128, 128}, ""},
          {"a.weight_scale_inv", DType::F32, {1, 1}, ""},
          {"b.weight", DType::F8_E4M3, {128, 100}, ""},
          {"b.weight_scale_inv", DType::F32, {1, 1}, ""},
          f32_tensor("kept.weight", {128, 128}, 1)};
}

TEST_F(SelectTest, OfAQuantizedSourceWhatIsPlainStaysSo) {
  make(deepseek_model(), test::deepseek_config());
  EXPECT_TRUE(decision({}, "a.weight").convert);
  expect_kept({}, "kept.weight", "plain in the source");
  ConvertOptions options;
  options.include = {"kept"};
  EXPECT_TRUE(decision(options, "kept.weight").convert);
}

TEST_F(SelectTest, AQuantizedTensorThatStaysButCannotBeSaidBecomesBf16) {
  make(deepseek_model(), test::deepseek_config());
  ConvertOptions options;
  options.dialect = Dialect::modelopt;
  const Decision b = decision(options, "b.weight");
  EXPECT_TRUE(b.convert);
  EXPECT_EQ(b.recipe, Recipe::bf16);
  EXPECT_THAT(b.reason, ::testing::HasSubstr("no multiple of 16"));
  EXPECT_THAT(b.reason, ::testing::HasSubstr("modelopt cannot hold fp8_128x128 beside nvfp4"));
  options.dialect = Dialect::compressed_tensors;  // which can
  expect_kept(options, "b.weight", "no multiple of 16");
  EXPECT_EQ(decision(options, "b.weight").recipe, Recipe::fp8_128x128);
}

TEST_F(SelectTest, KeptLinearLayersAreListed) {
  make(small_model(), {{"model_type", "mixtral"}, {"quantization_config", nullptr}});
  ConvertOptions options;
  const std::vector<std::string> kept = models::kept_modules(*source_, select(options));
  EXPECT_EQ(kept, (std::vector<std::string>{"empty", "lm_head", "model.layers.0.mlp.gate",
                                            "model.layers.0.o_proj"}));
  // A tied head has no tensor; what the source lists is carried over unless it is quantized now.
  Json config = test::deepseek_config();
  config["quantization_config"]["modules_to_not_convert"] = {"mtp.0.head", "a", "re:.*x", 3};
  std::vector<TestTensor> tensors = deepseek_model();
  tensors.push_back(f32_tensor("embed_tokens.weight", {4, 4}, 1));
  make(tensors, config);
  EXPECT_EQ(models::kept_modules(*source_, select({})),
            (std::vector<std::string>{"kept", "lm_head", "mtp.0.head"}));
  // Under the name that vLLM's FP8 has, and where only hf_quant_config.json says it.
  config["quantization_config"].erase("modules_to_not_convert");
  config["quantization_config"]["ignored_layers"] = {"mtp.1.head"};
  make(tensors, config, {{"quantization", {{"exclude_modules", {"mtp.2.head", "mtp*"}}}}});
  EXPECT_EQ(models::kept_modules(*source_, select({})),
            (std::vector<std::string>{"kept", "lm_head", "mtp.1.head", "mtp.2.head"}));
}

TEST_F(SelectTest, OptionsThatCannotBe) {
  make(small_model(), {{"model_type", "mixtral"}});
  using enum ErrorCode;
  const auto refuse = [&](ErrorCode code, const std::string& argument, const std::string& reason,
                          const ConvertOptions& options) {
    SCOPED_TRACE(reason);
    expect_error(code, argument, reason, [&] { select(options); });
  };
  ConvertOptions options;
  options.include = {"nothing*"};
  refuse(invalid_argument, "include", "\"nothing*\" matches no tensor", options);
  options = {};
  options.map = {{"nothing*", Recipe::mxfp4}};
  refuse(invalid_argument, "map", "\"nothing*\" matches no tensor", options);
  options.dialect = Dialect::modelopt;
  options.map = {{"*", Recipe::mxfp4}};
  refuse(unsupported, "map",
         "mxfp4 cannot be said in modelopt, which has fp8_tensor, fp8_row, mxfp8_e4m3, nvfp4",
         options);
  options = {};
  options.recipe = Recipe::fp8_128x128;
  options.map = {{"*", Recipe::fp8_128x128_ue8m0}};
  refuse(unsupported, "map", "deepseek cannot hold fp8_128x128_ue8m0 beside fp8_128x128", options);
  options = {};
  options.recipe = Recipe::mxfp6_e3m2;
  refuse(unsupported, "recipe", "mxfp6_e3m2 cannot be said in compressed-tensors", options);
  options.recipe = static_cast<Recipe>(200);
  options.dialect = Dialect::compressed_tensors;
  refuse(invalid_argument, "recipe", "is 200", options);
  options = {};
  options.dialect = Dialect::gpt_oss;
  refuse(unsupported, "dialect", "gpt-oss can be read, not written", options);
  options = {};
  options.exclude = {"*"};
  refuse(invalid_argument, "source", "holds no tensor to convert to nvfp4", options);
  EXPECT_THROW(models::dialect_traits(static_cast<Dialect>(9)), Error);
}

}  // namespace
}  // namespace blockscale
