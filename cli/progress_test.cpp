#include "progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include <algorithm>

#include "text.h"

namespace blockscale::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::uint64_t kMebibyte = 1 << 20;

ProgressState half_done() {
  return {50 * kMebibyte, 100 * kMebibyte, 0, 5.0, "encoder.layer.0.weight"};
}

TEST(ProgressLine, ShowsShareRateAndTimeLeft) {
  EXPECT_EQ(progress_line(half_done()),
            " 50%, 50.0 MiB of 100.0 MiB, 10.0 MiB/s, 5.0 s left, encoder.layer.0.weight");
}

TEST(ProgressLine, BytesReusedByResumeAreNoRate) {
  ProgressState state = half_done();
  state.reused = 40 * kMebibyte;
  EXPECT_THAT(progress_line(state), HasSubstr("50.0 MiB of 100.0 MiB, 2.0 MiB/s, 25.0 s left"));
  state.reused = state.done;
  EXPECT_THAT(progress_line(state), Not(HasSubstr("/s")));
}

TEST(ProgressLine, AnEmptyModelIsDone) {
  EXPECT_THAT(progress_line({0, 0, 0, 1.0, ""}), StartsWith("100%, 0 B of 0 B"));
}

TEST(ProgressBar, FitsAnyWidth) {
  const std::string wide = progress_bar(half_done(), 200);
  EXPECT_THAT(wide, StartsWith(" 50% [============>           ] 50.0 MiB of 100.0 MiB"));
  EXPECT_THAT(wide, HasSubstr("encoder.layer.0.weight"));
  for (std::size_t width = 0; width < 120; ++width) {
    EXPECT_LE(display_width(progress_bar(half_done(), width)), width);
  }
  EXPECT_THAT(progress_bar({1, 1, 0, 1, "x"}, 120), StartsWith("100% [========================]"));
}

TEST(ProgressBar, KeepsTheTimeLeft) {
  ProgressState hours = half_done();
  hours.done = 1;
  hours.seconds = 0.001;
  hours.total = std::uint64_t{27} << 20;  // 7 h 51 min at 1 kB/s
  for (const ProgressState& state : {half_done(), hours}) {
    const std::string left = state.done == 1 ? " left" : "5.0 s left";
    for (std::size_t width = 20; width < 120; ++width) {
      const std::string shown = progress_bar(state, width);
      EXPECT_THAT(shown, HasSubstr(left)) << width;
      EXPECT_LE(display_width(shown), width);
    }
  }
  EXPECT_EQ(progress_bar(half_done(), 39), " 50% [====>    ] 10.0 MiB/s, 5.0 s left");
  EXPECT_EQ(progress_bar(half_done(), 79),
            " 50% [============>           ] 50.0 MiB of 100.0 MiB, 10.0 MiB/s, 5.0 s left");
  EXPECT_EQ(progress_bar(half_done(), 16), " 50% 5.0 s left");
  EXPECT_EQ(progress_bar(half_done(), 14), " 50%");
}

TEST(ProgressBar, EscapesTheNameOfATensor) {
  EXPECT_THAT(progress_bar({1, 2, 0, 1, "a\x1b[2J"}, 200), HasSubstr("a\\x1B[2J"));
}

/// What a Progress of `style` writes in `updates` tenths of a second.
std::string written(Progress::Style style, int updates) {
  std::FILE* const file = std::tmpfile();
  {
    Progress progress(file, style);
    for (int i = 0; i < updates; ++i) {
      progress.update({static_cast<std::uint64_t>(i), 1000, "weight"}, 100 + i * 0.1);
    }
  }
  std::rewind(file);
  std::string text;
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text += static_cast<char>(c);
  std::fclose(file);
  return text;
}

TEST(Progress, LinesComeEveryFewSeconds) {
  const std::string text = written(Progress::Style::lines, 112);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  EXPECT_THAT(text, Not(HasSubstr("\r")));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

TEST(Progress, BarRedrawsOneLineAndClearsIt) {
  const std::string text = written(Progress::Style::bar, 5);
  EXPECT_THAT(text, StartsWith("\r  0% ["));
  EXPECT_THAT(text, Not(HasSubstr("\n")));
  EXPECT_TRUE(text.ends_with("\r\x1b[K"));
}

TEST(Progress, NoneWritesNothing) {
  EXPECT_EQ(written(Progress::Style::none, 200), "");
}

TEST(Progress, AFileGetsLines) {
  std::FILE* const file = std::tmpfile();
  EXPECT_EQ(Progress::style_for(file), Progress::Style::lines);
  std::fclose(file);
}

}  // namespace
}  // namespace blockscale::cli
