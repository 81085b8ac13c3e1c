// Patterns of weight names: globs, llm-compressor's regular expressions, near names.
#include "models/convert/selection/pattern.h"

#include <gtest/gtest.h>

#include <chrono>

#include "blockscale/convert.h"
#include "models/testing.h"

namespace blockscale {
namespace {

using test::expect_error;

bool weight_matches(const std::string& pattern, const std::string& weight) {
  return models::Pattern(pattern, "pattern").matches(weight);
}

TEST(Pattern, GlobsMatchWholeNamesOfWeightsAndModules) {
  EXPECT_TRUE(weight_matches("*.dense.weight", "a.0.dense.weight"));
  EXPECT_TRUE(weight_matches("*.dense", "a.0.dense.weight"));
  EXPECT_TRUE(weight_matches("a.[0-3].*", "a.2.dense.weight"));
  EXPECT_FALSE(weight_matches("a.[0-3].*", "a.4.dense.weight"));
  EXPECT_FALSE(weight_matches("dense", "a.dense.weight"));
}

TEST(Pattern, RegularExpressionsMatchFromTheStartAsInLlmCompressor) {
  const std::string gate = "model.layers.0.mlp.gate.weight";
  EXPECT_TRUE(weight_matches("re:.*mlp.gate$", gate));  // by the module's name
  EXPECT_TRUE(weight_matches("re:.*mlp\\.gate\\.weight$", gate));
  EXPECT_TRUE(weight_matches("re:model\\.layers\\.\\d+", gate));  // need not reach the end
  EXPECT_FALSE(weight_matches("re:mlp.gate$", gate));             // but begins at the start
  EXPECT_FALSE(weight_matches("re:.*mlp.gate$", "model.layers.0.mlp.gate_proj.weight"));
  EXPECT_TRUE(weight_matches("re:.*self_attn\\.(q|k|v)_proj$", "l.3.self_attn.k_proj.weight"));
  EXPECT_TRUE(weight_matches("re:.*lm_head", "lm_head.weight"));
  EXPECT_TRUE(weight_matches("re:(?i).*LM_HEAD", "lm_head.weight"));
}

TEST(Pattern, WhatIsNoRegularExpressionIsRefused) {
  const auto refuse = [](const std::string& pattern, const std::string& reason) {
    expect_error(ErrorCode::invalid_argument, "exclude", reason,
                 [&] { models::Pattern(pattern, "exclude"); });
  };
  refuse("re:(", "\"re:(\" is no regular expression: \"missing ): (\"");
  refuse("re:a**", "is no regular expression: \"bad repetition operator: **\"");
  refuse("re:(?!a).*", "lookaround and backreferences are not available");
  refuse("re:(a)\\1", "is no regular expression");
  refuse("re:", "has no regular expression");
  refuse("re:((a{100}){100}){100}", "is no regular expression");
  expect_error(ErrorCode::invalid_argument, "pattern", "is no regular expression",
               [] { (void)weight_matches("re:[", "a"); });
}

TEST(Pattern, CatastrophicPatternsEndQuickly) {
  const std::string name(1024, 'a');
  std::string nested = "a";  // exponential for backtracking matchers, deep for recursive ones
  for (int i = 0; i < 20; ++i) nested = "(" + nested + "+)";
  std::string stars = "b";
  for (int i = 0; i < 50; ++i) stars = "*a" + stars;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(weight_matches("re:(a|a)*b", name));
  EXPECT_FALSE(weight_matches("re:(a*)*b", name));
  EXPECT_FALSE(weight_matches("re:" + nested + "b", name));
  EXPECT_FALSE(weight_matches(stars, name));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

TEST(MatchingWeights, KeepTheirOrderAndEachPatternMustMatch) {
  const std::vector<std::string> weights = {"b.down.weight", "a.up.weight", "a.down.weight"};
  using Names = std::vector<std::string>;
  EXPECT_EQ(matching_weights(weights, {"re:a\\.up$", "b.*"}, "tensor"),
            (Names{"b.down.weight", "a.up.weight"}));
  EXPECT_EQ(matching_weights(weights, {}, "tensor"), Names{});
  expect_error(ErrorCode::invalid_argument, "tensor",
               "\"a.dowm\" matches no tensor; near: \"a.down\"",
               [&] { (void)matching_weights(weights, {"a.*", "a.dowm"}, "tensor"); });
}

TEST(NearNames, HaveTheWordsOrNearlyThem) {
  const std::vector<std::string> weights = {
      "model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
      "model.layers.1.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight",
      "lm_head.weight"};
  using Names = std::vector<std::string>;
  EXPECT_EQ(models::near_names("lm_haed", weights), Names{"lm_head"});
  // One of the layers stands for all of them; the nearest comes first.
  const Names near = models::near_names("re:.*self_atn\\.q_proj$", weights);
  ASSERT_FALSE(near.empty());
  EXPECT_EQ(near[0], "model.layers.0.self_attn.q_proj");
  EXPECT_LE(near.size(), 3u);
  EXPECT_EQ(models::near_names("*.feed_forward.*", weights), Names{});
  EXPECT_EQ(models::near_names("*[!x]", weights), Names{});
  EXPECT_EQ(models::near_names("a", {}), Names{});
}

}  // namespace
}  // namespace blockscale
