// An expected Error, for the tests of every folder.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "blockscale/error.h"

namespace blockscale::test {

/// Runs `body` and expects an Error of this code and argument whose message holds `reason`, on one
/// line.
template <class Body>
void expect_error(ErrorCode code, const std::string& argument, const std::string& reason,
                  Body body) {
  try {
    body();
    ADD_FAILURE() << "no error, expected: " << reason;
  } catch (const Error& error) {
    EXPECT_STREQ(error_code_name(error.code()), error_code_name(code)) << error.what();
    EXPECT_EQ(error.argument(), argument) << error.what();
    EXPECT_THAT(error.what(), ::testing::HasSubstr(reason));
    EXPECT_THAT(error.what(), ::testing::Not(::testing::HasSubstr("\n")));
  }
}

/// `expect_error` of an invalid argument, whatever the message or with `reason` in it.
template <class Body>
void expect_invalid(const std::string& argument, const std::string& reason, Body body) {
  expect_error(ErrorCode::invalid_argument, argument, reason, body);
}

template <class Body>
void expect_invalid(const std::string& argument, Body body) {
  expect_invalid(argument, "", body);
}

}  // namespace blockscale::test
