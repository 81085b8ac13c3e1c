#include "units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

namespace blockscale::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(ParseBytes, ReadsDecimalAndBinaryUnits) {
  EXPECT_EQ(parse_bytes("1"), 1u);
  EXPECT_EQ(parse_bytes("4096B"), 4096u);
  EXPECT_EQ(parse_bytes("3kB"), 3000u);
  EXPECT_EQ(parse_bytes("5GB"), 5'000'000'000u);
  EXPECT_EQ(parse_bytes("2GiB"), std::uint64_t{2} << 30);
  EXPECT_EQ(parse_bytes("512MiB"), std::uint64_t{512} << 20);
  EXPECT_EQ(parse_bytes("7TiB"), std::uint64_t{7} << 40);
  EXPECT_EQ(parse_bytes("9223372036854775807"), (std::uint64_t{1} << 63) - 1);
}

TEST(ParseBytes, FractionsAreExactAndCutToBytes) {
  EXPECT_EQ(parse_bytes("1.5GiB"), std::uint64_t{3} << 29);
  EXPECT_EQ(parse_bytes("0.3GB"), 300'000'000u);
  EXPECT_EQ(parse_bytes("0.1KiB"), 102u);
  EXPECT_EQ(parse_bytes("0.0000000001TB"), 100u);
}

TEST(ParseBytes, RefusesNonsense) {
  for (const char* text : {"", "GB", "5 GB", "5gb", "5G", "-1GB", "+5GB", "5GBs", "0x10", "1e9",
                           "1.GB", ".5GB", "1.2.3GB", "5GB ", "1,5GB", "five"}) {
    EXPECT_THAT([&] { parse_bytes(text); }, ThrowsMessage<ParseError>(HasSubstr("is no size")))
        << text;
  }
}

TEST(ParseBytes, RefusesZeroAndOverflow) {
  for (const char* text : {"0", "0GiB", "0.1B", "9223372036854775808", "8388608TiB",
                           "99999999999999999999999", "18446744073709551616B"}) {
    EXPECT_THAT([&] { parse_bytes(text); }, ThrowsMessage<ParseError>(HasSubstr("out of range")))
        << text;
  }
}

TEST(ParseInteger, IsStrict) {
  EXPECT_EQ(parse_integer("0", 0, 10), 0);
  EXPECT_EQ(parse_integer("-3", -5, 10), -3);
  EXPECT_EQ(parse_integer("010", 0, 10), 10);
  for (const char* text : {"", " 1", "1 ", "1.0", "0x1", "+1", "ten", "1e1"}) {
    EXPECT_THAT([&] { parse_integer(text, 0, 10); },
                ThrowsMessage<ParseError>(HasSubstr("is no integer; allowed are 0..10")))
        << text;
  }
  for (const char* text : {"11", "-1", "9223372036854775808", "99999999999999999999"}) {
    EXPECT_THAT([&] { parse_integer(text, 0, 10); },
                ThrowsMessage<ParseError>(HasSubstr("out of range; allowed are 0..10")))
        << text;
  }
}

TEST(ParseNumber, IsStrictAndFinite) {
  EXPECT_EQ(parse_number("1e-4", 0, 1), 1e-4);
  EXPECT_EQ(parse_number("0.25", 0, 1), 0.25);
  for (const char* text : {"", "nan", "inf", "-inf", "0x1p3", "1,5", "1 ", " 1", "x"}) {
    EXPECT_THAT([&] { parse_number(text, 0, 1); },
                ThrowsMessage<ParseError>(HasSubstr("is no finite number; allowed are 0..1")))
        << text;
  }
  for (const char* text : {"-0.1", "1.5", "1e999"}) {
    EXPECT_THAT([&] { parse_number(text, 0, 1); },
                ThrowsMessage<ParseError>(HasSubstr("out of range; allowed are 0..1")))
        << text;
  }
}

TEST(ParseShape, ReadsRowsTimesK) {
  const Shape shape = parse_shape("256x128");
  EXPECT_EQ(shape.rows, 256);
  EXPECT_EQ(shape.k, 128);
}

TEST(ParseShape, RefusesOtherForms) {
  for (const char* text : {"", "256", "x", "256x", "x128", "256x128x2", "256X128", "0x128", "256x0",
                           "-1x4", "256 x 128", "256*128", "2e2x128"}) {
    EXPECT_THROW(parse_shape(text), ParseError) << text;
  }
  EXPECT_THROW(parse_shape("1099511627777x1"), ParseError);
  EXPECT_EQ(parse_shape("1099511627776x1").rows, std::int64_t{1} << 40);
}

TEST(FormatBytes, PicksTheUnitThatReadsBest) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(90.9e6), "86.7 MiB");
  EXPECT_EQ(format_bytes(1048575), "1.0 MiB");
  EXPECT_EQ(format_bytes(std::ldexp(1.0, 63)), "8.0 EiB");
}

TEST(FormatDuration, CoversMicrosecondsToHours) {
  EXPECT_EQ(format_duration(12.3e-6), "12.3 us");
  EXPECT_EQ(format_duration(0.0032), "3.2 ms");
  EXPECT_EQ(format_duration(0.9996), "1.0 s");
  EXPECT_EQ(format_duration(4.06), "4.1 s");
  EXPECT_EQ(format_duration(125), "2 min 05 s");
  EXPECT_EQ(format_duration(3600), "1 h 00 min");
  EXPECT_EQ(format_duration(11220), "3 h 07 min");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "?");
  EXPECT_EQ(format_duration(-1), "?");
}

TEST(Format, NumbersThatAreNotFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(format_fixed(infinity, 2), "inf");
  EXPECT_EQ(format_fixed(-infinity, 2), "-inf");
  EXPECT_EQ(format_fixed(std::nan(""), 2), "NaN");
  EXPECT_EQ(format_significant(-std::nan(""), 2), "NaN");
  EXPECT_EQ(format_fixed(3.14159, 2), "3.14");
  EXPECT_EQ(format_rate(25.678e9), "25.68");
  EXPECT_EQ(format_significant(0.0000123, 3), "1.23e-05");
}

TEST(FormatCount, GroupsThousands) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(22713216), "22,713,216");
}

}  // namespace
}  // namespace blockscale::cli
