#include "exit_code.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace blockscale::cli {
namespace {

constexpr std::array kErrorCodes = {
    ErrorCode::invalid_argument, ErrorCode::unsupported,  ErrorCode::not_found,
    ErrorCode::already_exists,   ErrorCode::corrupt_file, ErrorCode::io,
    ErrorCode::nonfinite,        ErrorCode::interrupted,  ErrorCode::device,
    ErrorCode::compile_failed,
};

TEST(ExitCodes, EveryErrorHasOneOfItsOwnAndTheSameName) {
  std::set<ExitCode> codes;
  for (const ErrorCode error : kErrorCodes) {
    const ExitCode code = exit_code_of(error);
    EXPECT_TRUE(codes.insert(code).second) << error_code_name(error);
    bool listed = false;
    for (const ExitCodeEntry& entry : kExitCodes) {
      listed |= entry.code == code && std::string(entry.name) == error_code_name(error);
    }
    EXPECT_TRUE(listed) << error_code_name(error);
  }
}

TEST(ExitCodes, HelpListsAllOfThem) {
  const std::string help = exit_code_help();
  for (const ExitCodeEntry& entry : kExitCodes) {
    EXPECT_THAT(help, ::testing::HasSubstr(std::to_string(static_cast<int>(entry.code)) + "  " +
                                           entry.name));
  }
}

}  // namespace
}  // namespace blockscale::cli
