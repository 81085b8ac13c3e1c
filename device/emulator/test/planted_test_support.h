// For tests of planted bugs and of correct programs.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/emulator/emulator.h"

namespace blockscale::emulator {

/// Remembers the line of the defect: `ptx::st_shared(s, 1u, bug.here())`.
class Mark {
 public:
  SourceLocation here(SourceLocation at = SourceLocation::current()) {
    at_ = at;
    return at;
  }
  SourceLocation at() const { return at_; }

 private:
  SourceLocation at_;
};

struct Program {
  LaunchShape shape;
  std::vector<Buffer> buffers;
  std::function<void()> kernel;
};

/// In order and under three random schedules, the first finding is of `kind`, involves the marked
/// line, and says each of `texts`.
inline void expect_planted(const Program& program, FindingKind kind, const Mark& bug,
                           const std::vector<std::string>& texts) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const Options options = seed == 0 ? in_order() : random_order(seed);
    const Report report = launch(program.shape, program.buffers, options, program.kernel);
    SCOPED_TRACE(report.text());
    ASSERT_FALSE(report.ok());
    EXPECT_STREQ(name_of(report.findings.front().kind), name_of(kind));
    EXPECT_TRUE(report.has(kind, bug.at().file_name(), bug.at().line()))
        << "line " << bug.at().line();
    for (const std::string& text : texts) {
      EXPECT_THAT(report.findings.front().text, testing::HasSubstr(text));
    }
  }
}

/// No finding in order and under five random schedules. `check` looks at the results of each run.
inline void expect_clean(const Program& program, const std::function<void()>& check = [] {}) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const Options options = seed == 0 ? in_order() : random_order(seed);
    const Report report = launch(program.shape, program.buffers, options, program.kernel);
    EXPECT_TRUE(report.ok()) << report.text();
    check();
  }
}

/// The encoder refuses a map, and says so.
inline void expect_refused(const TensorMapDescription& description, const char* text) {
  try {
    encode_tensor_map(description);
    ADD_FAILURE() << "accepted: " << text;
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(text));
  }
}

}  // namespace blockscale::emulator
