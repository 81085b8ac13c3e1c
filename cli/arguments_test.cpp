#include "arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace blockscale::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Parses `words` with an app that `add` has added options to.
template <class Add>
void parse(Add add, std::vector<std::string> words) {
  CLI::App app;
  add(app);
  std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
  app.parse(words);
}

TEST(Names, EveryOneOfTheTablesParsesToItself) {
  for (const RecipeTraits& traits : kRecipes) EXPECT_EQ(parse_recipe(traits.name), traits.recipe);
  for (const ScaleLayoutTraits& traits : kScaleLayouts) {
    EXPECT_EQ(parse_scale_layout(traits.name), traits.layout);
  }
  EXPECT_EQ(parse_plain_format("bf16"), Format::bf16);
  EXPECT_EQ(parse_mx_scale_mode("floor"), MxScaleMode::floor);
  EXPECT_EQ(parse_mx_scale_mode("ceil"), MxScaleMode::ceil);
  EXPECT_EQ(parse_mx_scale_mode("even"), MxScaleMode::even);
  EXPECT_EQ(parse_mx_scale_mode("even_e2m1"), MxScaleMode::even_e2m1);
}

TEST(Names, OthersAreRefusedWithTheChoices) {
  EXPECT_THAT([] { parse_recipe("NVFP4"); },
              ThrowsMessage<ParseError>(HasSubstr("'NVFP4' is no recipe; choose one of f32,")));
  EXPECT_THAT([] { parse_scale_layout(""); },
              ThrowsMessage<ParseError>(HasSubstr("choose one of row_major, mn_major,")));
  EXPECT_THAT([] { parse_plain_format("e4m3"); },
              ThrowsMessage<ParseError>(HasSubstr("choose one of f32, f16, bf16")));
  EXPECT_THAT([] { parse_mx_scale_mode("round"); },
              ThrowsMessage<ParseError>(HasSubstr("choose one of floor, ceil, even")));
}

TEST(RecipeHelp, ListsEveryRecipe) {
  const std::string help = recipe_help();
  for (const RecipeTraits& traits : kRecipes) {
    EXPECT_THAT(help, HasSubstr("\n" + std::string(traits.name) + " ")) << traits.name;
  }
}

TEST(BitsPerValue, CountsBlockScales) {
  EXPECT_EQ(bits_per_value(Recipe::nvfp4), 4.5);
  EXPECT_EQ(bits_per_value(Recipe::mxfp4), 4.25);
  EXPECT_EQ(bits_per_value(Recipe::mxfp6_e2m3), 6.25);
  EXPECT_EQ(bits_per_value(Recipe::fp8_1x128), 8.25);
  EXPECT_EQ(bits_per_value(Recipe::bf16), 16);
}

TEST(HelpText, BreaksAtSpacesOnly) {
  const std::string text = help_text(std::string(60, 'a') + " " + std::string(10, 'b') + " c");
  EXPECT_EQ(text, std::string(60, 'a') + "\n" + std::string(10, 'b') + " c");
  EXPECT_EQ(help_text("one two"), "one two");
  EXPECT_EQ(help_text(""), "");
}

TEST(AddRepeated, TakesOneValueEachTime) {
  std::vector<std::string> globs;
  std::string positional;
  const auto add = [&](CLI::App& app) {
    add_repeated(app, "--include", "GLOB", globs, [](const std::string& text) { return text; }, "");
    app.add_option("SRC", positional);
  };
  parse(add, {"--include", "a*", "source", "--include", "b*"});
  EXPECT_EQ(globs, (std::vector<std::string>{"a*", "b*"}));
  EXPECT_EQ(positional, "source");
}

TEST(AddParsed, NamesTheOptionAndRefusesASecondValue) {
  int threads = -1;
  const auto add = [&](CLI::App& app) { add_threads(app, threads); };
  parse(add, {"--threads", "8"});
  EXPECT_EQ(threads, 8);
  EXPECT_THAT([&] { parse(add, {"--threads", "many"}); },
              ThrowsMessage<CLI::ValidationError>(HasSubstr("--threads: 'many' is no integer")));
  EXPECT_THROW(parse(add, {"--threads", "4097"}), CLI::ValidationError);
  EXPECT_THROW(parse(add, {"--threads", "1", "--threads", "2"}), CLI::ParseError);
}

}  // namespace
}  // namespace blockscale::cli
