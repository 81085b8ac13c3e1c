// JSON of untrusted files: what is refused, and why; text that is shown to people.
#include "models/json_file.h"

#include <cmath>
#include <limits>

#include "models/testing.h"
#include "models/text.h"

namespace blockscale {
namespace {

using test::expect_error;
using test::ScratchFolder;
using test::write_text;

void expect_corrupt(std::string_view text, const std::string& reason,
                    const JsonLimits& limits = {}) {
  SCOPED_TRACE(quote(text, 40));
  expect_error(ErrorCode::corrupt_file, "config.json", reason,
               [&] { parse_json(text, "config.json", limits); });
}

TEST(ParseJson, AcceptsWhatJsonAllows) {
  const nlohmann::json value = parse_json(
      " {\"a\":[1,-2,0.5,1e-12,true,null,\"\\u00e9\\n\"],\"b\":{\"a\":{}}}\r\n", "config.json");
  EXPECT_EQ(value["a"][1], -2);
  EXPECT_EQ(value["a"][6], "é\n");
  EXPECT_TRUE(value["b"]["a"].is_object());
  EXPECT_EQ(parse_json("3", "config.json"), 3);
}

TEST(ParseJson, RefusesWhatIsNoJson) {
  expect_corrupt("", "not valid JSON at byte");
  expect_corrupt("{", "not valid JSON at byte");
  expect_corrupt("{}x", "not valid JSON at byte 3");
  expect_corrupt("{\"a\":1,}", "not valid JSON at byte");
  expect_corrupt("// comment\n{}", "not valid JSON at byte");
  expect_corrupt("{'a':1}", "not valid JSON at byte");
  for (const char* text : {"[nan]", "[-NaN]", "[+Infinity]", "[Infinit]", "[NaN5]", "[1NaN]",
                           "[NaN NaN]", "[\"a\"NaN]", "[- Infinity]"}) {
    expect_corrupt(text, "not valid JSON at byte");
  }
  expect_corrupt("{\"a\":1,NaN:2}", "JSON names a member by no text");
  expect_corrupt("[01]", "not valid JSON at byte");
  expect_corrupt("[1e999]", "not valid JSON");
  expect_corrupt("[\"\xFF\"]", "not valid JSON at byte");
  expect_corrupt("[\"\\ud800\"]", "not valid JSON at byte");
  expect_corrupt("[\"\n\"]", "not valid JSON at byte");
  expect_corrupt(std::string_view("{}\0{}", 5), "NUL byte at position 2");
}

TEST(ParseJson, TakesNumbersThatAreNotFiniteAndGivesThemBack) {
  const std::string text =
      R"({"\"NaN":"NaN","Infinity":"a\\","a":[NaN,null,-Infinity,"",1],"b":Infinity})";
  const nlohmann::json value = parse_json(text, "config.json");
  EXPECT_TRUE(std::isnan(value["a"][0].get<double>()));
  EXPECT_EQ(value["a"][2], -std::numeric_limits<double>::infinity());
  EXPECT_EQ(value["a"][3], "");
  EXPECT_EQ(value["b"], std::numeric_limits<double>::infinity());
  EXPECT_EQ(value["\"NaN"], "NaN");
  EXPECT_EQ(value["Infinity"], "a\\");
  EXPECT_EQ(show_json(value, 200), text);
  const std::string lines = json_text(value);
  EXPECT_EQ(json_text(parse_json(lines, "config.json")), lines);
  EXPECT_EQ(lines.find("{\n  \"\\\"NaN\": \"NaN\""), 0u);
  EXPECT_EQ(json_text(parse_json(" NaN ", "config.json")), "NaN");
}

TEST(ParseJson, KeepsToItsLimits) {
  expect_corrupt("[[[1]]]", "nested deeper than 2 levels", {.depth = 2});
  expect_corrupt("{\"a\":[{}]}", "nested deeper than 2 levels", {.depth = 2});
  EXPECT_NO_THROW(parse_json("[[1],[2]]", "config.json", {.depth = 2}));
  expect_corrupt(std::string(1'000'000, '['), "nested deeper than 32 levels");
  expect_corrupt("[1,2,3]", "JSON of 7 bytes exceeds the limit of 6", {.bytes = 6});
  EXPECT_NO_THROW(parse_json("[1,2,3]", "config.json", {.bytes = 7}));
}

TEST(ParseJson, RefusesNamesThatRepeat) {
  expect_corrupt(R"({"a":1,"a":1})", "names \"a\" more than once");
  expect_corrupt(R"({"a":1,"\u0061":1})", "names \"a\" more than once");
  expect_corrupt(R"([{"x":{"b":1,"c":[],"b":2}}])", "names \"b\" more than once");
  EXPECT_NO_THROW(parse_json(R"({"a":{"a":[{"a":1},{"a":2}]}})", "config.json"));
}

TEST(ShowJson, IsPrintableShortAndOneLine) {
  EXPECT_EQ(show_json({{"a\n", "é\x7F"}}), R"({"a\n":"\u00e9\u007f"})");
  EXPECT_EQ(show_json({1, 2, 3}, 4), "[1,2...");
  EXPECT_EQ(show_json(nullptr), "null");
}

TEST(ReadJsonFile, NamesTheFile) {
  const ScratchFolder folder;
  write_text(folder / "good.json", "{\"a\":1}");
  EXPECT_EQ(read_json_file(folder / "good.json")["a"], 1);
  write_text(folder / "bad.json", "{\"a\"");
  expect_error(ErrorCode::corrupt_file, (folder / "bad.json").string(), "not valid JSON",
               [&] { read_json_file(folder / "bad.json"); });
  write_text(folder / "empty.json", "");
  expect_error(ErrorCode::corrupt_file, (folder / "empty.json").string(), "not valid JSON",
               [&] { read_json_file(folder / "empty.json"); });
  expect_error(ErrorCode::not_found, (folder / "none.json").string(), "No such file",
               [&] { read_json_file(folder / "none.json"); });
}

TEST(Text, QuotesAnythingOnOnePrintableLine) {
  EXPECT_EQ(quote("a.weight"), "\"a.weight\"");
  EXPECT_EQ(quote("\"\\\n\x1B\x7Fé"), R"("\"\\\x0A\x1B\x7F\xC3\xA9")");
  EXPECT_EQ(quote("abcdef", 3), "\"abc\"...");
  EXPECT_EQ(quote("abc", 3), "\"abc\"");
  EXPECT_EQ(quote(std::string_view("\0", 1)), "\"\\x00\"");
}

TEST(Text, FindsControlCharacters) {
  for (const char* text : {"\x01", "a\nb", "\x7F", "\xC2\x80", "\xC2\x9F"}) {
    EXPECT_TRUE(has_control_character(text)) << quote(text);
  }
  for (const char* text : {"", " ~", "\xC2\xA0", "é", "重み", "😀"}) {
    EXPECT_FALSE(has_control_character(text)) << quote(text);
  }
  EXPECT_TRUE(has_control_character(std::string_view("a\0", 2)));
}

TEST(Text, KnowsUtf8) {
  for (const char* text :
       {"", "abc", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
        "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_TRUE(is_utf8(text)) << quote(text);
  }
  for (const char* text :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xC2", "\xC2\x41", "\xE0\x9F\xBF", "\xE0\xA0",
        "\xED\xA0\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF",
        "\xF0\x90\x80", "a\xE2\x82", "\xE2\x28\xA1"}) {
    EXPECT_FALSE(is_utf8(text)) << quote(text);
  }
}

}  // namespace
}  // namespace blockscale
