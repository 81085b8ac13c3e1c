#include "text.h"

#include <gtest/gtest.h>

#include <string>

namespace blockscale::cli {
namespace {

TEST(Printable, KeepsTextAndEscapesWhatDrivesATerminal) {
  EXPECT_EQ(printable("encoder.layer.0"), "encoder.layer.0");
  EXPECT_EQ(printable("größe 重み 🚀"), "größe 重み 🚀");
  EXPECT_EQ(printable("\x1b[31mred"), "\\x1B[31mred");
  EXPECT_EQ(printable("two\nlines\r\t\x7f"), "two\\x0Alines\\x0D\\x09\\x7F");
  EXPECT_EQ(printable(std::string_view("nul\0", 4)), "nul\\x00");
  EXPECT_EQ(printable("\xc2\x9b"), "\\xC2\\x9B");     // C1 control sequence introducer
  EXPECT_EQ(printable("\u202e"), "\\xE2\\x80\\xAE");  // right-to-left override
}

TEST(Printable, EscapesBytesThatAreNotUtf8) {
  EXPECT_EQ(printable("\xff"), "\\xFF");
  EXPECT_EQ(printable("\xc3"), "\\xC3");                    // cut short
  EXPECT_EQ(printable("\xc0\xaf"), "\\xC0\\xAF");           // overlong
  EXPECT_EQ(printable("\xe0\x80\xaf"), "\\xE0\\x80\\xAF");  // overlong
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xED\\xA0\\x80");  // surrogate
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xF4\\x90\\x80\\x80");
  EXPECT_EQ(printable("a\xc3(b"), "a\\xC3(b");
}

TEST(DisplayWidth, CountsTerminalColumns) {
  EXPECT_EQ(display_width(""), 0u);
  EXPECT_EQ(display_width("abc"), 3u);
  EXPECT_EQ(display_width("größe"), 5u);
  EXPECT_EQ(display_width("e\u0301"), 1u);  // combining acute accent
  EXPECT_EQ(display_width("重み"), 4u);
  EXPECT_EQ(display_width("🚀"), 2u);
}

TEST(Shortened, CutsTheMiddle) {
  EXPECT_EQ(shortened("short", 5), "short");
  EXPECT_EQ(shortened("abcdefghij", 5), "ab…ij");
  EXPECT_EQ(shortened("abcdefghij", 1), "…");
  EXPECT_EQ(shortened("abcdefghij", 0), "");
  for (std::size_t width = 0; width < 12; ++width) {
    EXPECT_LE(display_width(shortened("重みの名前は長い", width)), width);
  }
}

TEST(Text, Words) {
  EXPECT_EQ(comma_list({}), "");
  EXPECT_EQ(comma_list({"a", "b", "c"}), "a, b, c");
  EXPECT_EQ(shape_text({}), "[]");
  EXPECT_EQ(shape_text({384, 1536}), "[384, 1536]");
  EXPECT_EQ(plural(1, "tensor"), "1 tensor");
  EXPECT_EQ(plural(0, "tensor"), "0 tensors");
}

}  // namespace
}  // namespace blockscale::cli
