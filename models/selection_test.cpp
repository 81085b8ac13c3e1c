// Which tensors are converted: roles by name, globs, maps, and the reasons that are given.
#include "models/selection.h"

#include <gtest/gtest.h>

#include "models/checkpoint_testing.h"

namespace blockscale {
namespace {

using models::Decision;
using models::Role;
using test::expect_error;
using test::f32_tensor;
using test::Json;
using test::TestTensor;

TEST(Role, OfNamesOfKnownModels) {
  struct Case {
    Role role;
    std::string name;
    std::vector<std::int64_t> shape;
  };
  const std::vector<Case> cases = {
      {Role::linear, "encoder.layer.0.attention.self.query.weight", {384, 384}},
      {Role::linear, "encoder.layer.0.attention.output.dense.weight", {384, 384}},
      {Role::linear, "pooler.dense.weight", {384, 384}},
      {Role::linear, "model.layers.0.mlp.gate_proj.weight", {8, 8}},
      {Role::linear, "model.layers.0.mlp.experts.3.w1.weight", {8, 8}},
      {Role::linear, "decoder.block.0.layer.0.SelfAttention.q.weight", {8, 8}},
      {Role::embedding, "embeddings.word_embeddings.weight", {30522, 384}},
      {Role::embedding, "model.embed_tokens.weight", {8, 8}},
      {Role::embedding, "transformer.wte.weight", {8, 8}},
      {Role::embedding, "shared.weight", {8, 8}},
      {Role::embedding, "a.relative_attention_bias.weight", {32, 8}},
      {Role::head, "lm_head.weight", {8, 8}},
      {Role::head, "output.weight", {8, 8}},
      {Role::router, "model.layers.0.mlp.gate.weight", {8, 8}},
      {Role::router, "model.layers.0.block_sparse_moe.gate.weight", {8, 8}},
      {Role::router, "model.layers.0.mlp.shared_expert_gate.weight", {1, 8}},
      {Role::router, "model.layers.0.mlp.router.weight", {8, 8}},
      {Role::experts, "model.layers.0.mlp.experts.gate_up_proj", {2, 8, 8}},
      {Role::other, "model.layers.0.mlp.experts.gate_up_proj_bias", {2, 8}},
      {Role::other, "conv.weight", {8, 1, 4}},
      {Role::other, "encoder.layer.0.output.dense.bias", {384}},
      {Role::norm, "model.layers.0.input_layernorm.weight", {384}},
      {Role::other, "embeddings.position_ids", {1, 512}},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(static_cast<int>(models::role_of(c.name, c.shape)), static_cast<int>(c.role))
        << c.name;
  }
}

TEST(Glob, MatchesWeightsAndModules) {
  EXPECT_TRUE(models::glob_matches("*.dense.weight", "a.0.dense.weight"));
  EXPECT_TRUE(models::glob_matches("*.dense", "a.0.dense.weight"));
  EXPECT_TRUE(models::glob_matches("a.[0-3].*", "a.2.dense.weight"));
  EXPECT_FALSE(models::glob_matches("a.[0-3].*", "a.4.dense.weight"));
  EXPECT_FALSE(models::glob_matches("dense", "a.dense.weight"));
}

TEST(IsLinearWeight, NeedsARoleTwoDimensionsAndValuesThatCanBeRead) {
  CheckpointTensor tensor;
  tensor.name = "encoder.layer.0.output.dense.weight";
  tensor.shape = {4, 8};
  tensor.dtype = DType::BF16;
  EXPECT_TRUE(is_linear_weight(tensor));
  tensor.dtype = DType::I64;
  EXPECT_FALSE(is_linear_weight(tensor));
  tensor.dtype = DType::BF16;
  tensor.shape = {4};
  EXPECT_FALSE(is_linear_weight(tensor));
  tensor.shape = {4, 8};
  tensor.name = "embeddings.word_embeddings.weight";
  EXPECT_FALSE(is_linear_weight(tensor));
}

TEST(FusedGroup, OfSiblings) {
  const auto same = [](const std::string& a, const std::string& b) {
    return models::fused_group(a) == models::fused_group(b);
  };
  EXPECT_TRUE(same("m.0.q_proj.weight", "m.0.v_proj.weight"));
  EXPECT_TRUE(same("m.0.self.query.weight", "m.0.self.key.weight"));
  EXPECT_TRUE(same("m.0.gate_proj.weight", "m.0.up_proj.weight"));
  EXPECT_TRUE(same("e.1.w1.weight", "e.1.w3.weight"));
  EXPECT_TRUE(same("q_a_proj.weight", "kv_a_proj_with_mqa.weight"));
  EXPECT_FALSE(same("m.0.q_proj.weight", "m.1.q_proj.weight"));
  EXPECT_FALSE(same("m.0.q_proj.weight", "m.0.o_proj.weight"));
  EXPECT_FALSE(same("e.1.w1.weight", "e.1.w2.weight"));
  EXPECT_FALSE(same("m.gate_proj.weight", "m.down_proj.weight"));
}

class SelectTest : public ::testing::Test {
 protected:
  void make(const std::vector<TestTensor>& tensors, const Json& config = nullptr) {
    std::filesystem::remove_all(folder_ / "model");
    test::write_checkpoint(folder_ / "model", tensors, config);
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
  make(small_model());
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

TEST_F(SelectTest, IncludeReplacesTheDefaultAndExcludeWins) {
  make(small_model());
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
  make(small_model());
  ConvertOptions options;
  options.map = {
      {"lm_head*", Recipe::mxfp8_e4m3}, {"*proj.weight", Recipe::fp8_row}, {"*", Recipe::bf16}};
  EXPECT_EQ(decision(options, "lm_head.weight").recipe, Recipe::mxfp8_e4m3);
  EXPECT_EQ(decision(options, "model.layers.0.o_proj.weight").recipe, Recipe::fp8_row);
  EXPECT_EQ(decision(options, "model.embed_tokens.weight").recipe, Recipe::bf16);
  EXPECT_TRUE(decision(options, "model.layers.0.o_proj.bias").convert);  // to bf16
}

TEST_F(SelectTest, ATargetThatIsPlainTakesEveryMatrix) {
  make(small_model());
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
  make({f32_tensor("h.0.attn.c_attn.weight", {32, 32}, 1)}, {{"model_type", "gpt2"}});
  expect_error(ErrorCode::invalid_argument, "source", "gpt2 stores it as [in, out]",
               [&] { select({}); });
  make(
      {f32_tensor("m.experts.up_proj", {2, 32, 32}, 1), f32_tensor("m.q_proj.weight", {32, 32}, 1)},
      {{"model_type", "gpt_oss"}});
  expect_kept({}, "m.experts.up_proj", "gpt_oss stores it as [in, out]");
  EXPECT_TRUE(decision({}, "m.q_proj.weight").convert);
}

std::vector<TestTensor> deepseek_model() {
  return {{"a.weight", DType::F8_E4M3, {128, 128}, ""},
          {"a.weight_scale_inv", DType::F32, {1, 1}, ""},
          {"b.weight", DType::F8_E4M3, {128, 100}, ""},
          {"b.weight_scale_inv", DType::F32, {1, 1}, ""},
          f32_tensor("kept.weight", {128, 128}, 1)};
}

TEST_F(SelectTest, OfAQuantisedSourceWhatIsPlainStaysSo) {
  make(deepseek_model(), test::deepseek_config());
  EXPECT_TRUE(decision({}, "a.weight").convert);
  expect_kept({}, "kept.weight", "plain in the source");
  ConvertOptions options;
  options.include = {"kept"};
  EXPECT_TRUE(decision(options, "kept.weight").convert);
}

TEST_F(SelectTest, AQuantisedTensorThatStaysButCannotBeSaidBecomesBf16) {
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
  make(small_model(), {{"quantization_config", nullptr}});
  ConvertOptions options;
  const std::vector<std::string> kept = models::kept_modules(*source_, select(options));
  EXPECT_EQ(kept, (std::vector<std::string>{"empty", "lm_head", "model.layers.0.mlp.gate",
                                            "model.layers.0.o_proj"}));
  // A tied head has no tensor; what the source lists is carried over unless it is quantised now.
  Json config = test::deepseek_config();
  config["quantization_config"]["modules_to_not_convert"] = {"mtp.0.head", "a", "re:.*x", 3};
  std::vector<TestTensor> tensors = deepseek_model();
  tensors.push_back(f32_tensor("embed_tokens.weight", {4, 4}, 1));
  make(tensors, config);
  EXPECT_EQ(models::kept_modules(*source_, select({})),
            (std::vector<std::string>{"kept", "lm_head", "mtp.0.head"}));
}

TEST_F(SelectTest, OptionsThatCannotBe) {
  make(small_model());
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
  refuse(unsupported, "map", "mxfp4 cannot be said in modelopt, which has nvfp4", options);
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
